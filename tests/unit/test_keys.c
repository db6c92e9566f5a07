#include "tests/unit/config_case.h"

#include "agent/docgen.h"
#include "agent/help.h"
#include "base/file.h"

enum { FILE_MAX = 1 << 20 };

static void read_source(const char *path, struct er_buf *text)
{
    struct er_error err = ER_ERROR_INIT;
    char full[4096];

    er_buf_init(text, FILE_MAX);
    snprintf(full, sizeof(full), ER_SOURCE_ROOT "/%s", path);
    cr_assert_eq(er_file_read(full, text, &err), 0, "%s", err.text);
}

/* The YAML block of the reference names every key with its default, but for two that have none. */
Test(keys, defaults_are_the_documented_ones)
{
    struct loaded documented, plain = load_text("name: gpt-small\ncommand: [x]\n");
    struct er_buf text;

    read_source("tests/unit/data/reference_spec.yaml", &text);
    documented = load_text(er_buf_str(&text));
    cr_assert_eq(documented.rc, 0, "%s", documented.text);
    cr_assert_eq(plain.rc, 0, "%s", plain.text);
    for (size_t i = 0; i < er_keys_n; i++) {
        const char *path = er_keys[i].path;

        cr_expect_eq(er_config_setting(documented.config, path)->layer, ER_LAYER_SPEC,
                     "%s is not in the reference", path);
        if (strcmp(path, "command") != 0 && strcmp(path, "workdir") != 0)
            cr_expect_str_eq(value_of(&documented, path), value_of(&plain, path), "%s", path);
    }
    er_config_free(documented.config);
    er_config_free(plain.config);
    er_buf_done(&text);
}

Test(keys, three_defaults_differ_for_a_program)
{
    struct loaded spec = load_text("command: [x]\nname: n\nnode: {id: n}\nlog: {dir: none}\n");
    struct loaded program =
        load_config(&(struct load_case){.args = ARGS("--rdzv-id=n", "--node-id=n", "x")});
    static const char *const differ[] = {"workdir", "restart.max", "restart.window", "log.tee"};

    cr_assert_eq(spec.rc, 0);
    cr_assert_eq(program.rc, 0);
    for (size_t i = 0; i < er_keys_n; i++) {
        bool expected = true;

        for (size_t k = 0; k < ER_ARRAY_N(differ); k++)
            expected &= strcmp(differ[k], er_keys[i].path) != 0;
        cr_expect_eq(!strcmp(value_of(&spec, er_keys[i].path), value_of(&program, er_keys[i].path)),
                     expected, "%s", er_keys[i].path);
    }
    cr_expect_eq(program.config->restart.max, 0);
    cr_expect_eq(program.config->restart.window_us, ER_FOREVER);
    cr_expect_null(program.config->log.dir);
    cr_expect_eq(program.config->log.tee.all, 0);
    er_config_free(spec.config);
    er_config_free(program.config);
}

/* The default of a key that is not available is compared as text: it must be canonical. */
Test(keys, defaults_are_canonical)
{
    struct loaded plain = load_text("command: [x]\n");

    cr_assert_eq(plain.rc, 0);
    for (size_t i = 0; i < er_keys_n; i++) {
        if (er_keys[i].flags & ER_KEY_LATER)
            cr_expect_str_eq(value_of(&plain, er_keys[i].path), er_keys[i].def, "%s",
                             er_keys[i].path);
    }
    er_config_free(plain.config);
}

Test(keys, table_is_sound)
{
    for (size_t i = 0; i < er_keys_n; i++) {
        const struct er_key_info *key = &er_keys[i];
        bool choice = key->type == ER_KEY_CHOICE || key->type == ER_KEY_CHOICE_TEXT ||
                      key->type == ER_KEY_CHOICES;

        cr_expect_eq(er_key_find(key->path), key, "%s twice", key->path);
        cr_expect_eq(er_key_index(key), i);
        cr_expect(!er_key_is_group(key->path), "%s is a group too", key->path);
        cr_expect_eq(choice, key->choices != NULL, "%s", key->path);
        cr_expect(key->help && *key->help, "%s", key->path);
        cr_expect(key->flags & ER_KEY_LATER || key->offset != ER_KEY_NOWHERE, "%s", key->path);
    }
    for (size_t i = 0; i < er_options_n; i++) {
        const struct er_option *option = &er_options[i];

        cr_expect_eq(er_option_find(option->name, strlen(option->name)), option);
        if (option->key)
            cr_expect(er_key_find(option->key), "--%s sets no key", option->name);
        cr_expect_eq(option->metavar == NULL, (option->flags & ER_OPTION_NO_VALUE) != 0, "--%s",
                     option->name);
    }
    cr_expect_eq(er_option_find_letter('r'), er_option_find("redirects", 9));
    cr_expect_eq(er_option_find_letter('t'), er_option_find("tee", 3));
    cr_expect_eq(er_option_find_letter('m'), er_option_find("module", 6));
    cr_expect_null(er_option_find_letter('\0'));
}

/* torchrun takes PET_<LONGEST NAME>; two of its options have none. */
Test(keys, environment_names_follow_the_option)
{
    for (size_t i = 0; i < er_options_n; i++) {
        const struct er_option *option = &er_options[i];
        char name[64];
        int n;

        if (!option->env)
            continue;
        n = snprintf(name, sizeof(name), "PET_%s", option->name);
        for (char *s = name; n > 0 && *s; s++)
            *s = *s == '-' ? '_' : (char)(*s >= 'a' && *s <= 'z' ? *s - 32 : *s);
        cr_expect_str_eq(option->env, name);
    }
    cr_expect_null(er_option_find("logs-specs", 10)->env);
    cr_expect_null(er_option_find("numa-binding", 12)->env);
}

Test(keys, nearest_name)
{
    static const struct {
        const char *wrong, *near;
    } cases[] = {
        {"comand", "command"},
        {"restart.maxx", "restart.max"},
        {"restrat.max", "restart.max"},
        {"restrat", "restart"},
        {"rendezvous.tls.crt", "rendezvous.tls.cert"},
        {"rendezvous.tsl", "rendezvous.tls.ca"},
        {"max_files", "log.max_files"},
        {"checkpoint.keep_lst", "checkpoint.keep_last"},
        {"zzzzzz", NULL},
        {"", NULL},
        {".", NULL},
        {"a.b.c.d.e.f", NULL},
    };

    for (size_t i = 0; i < ER_ARRAY_N(cases); i++) {
        char near[ER_KEY_PATH_MAX] = "";
        bool found = er_key_nearest(cases[i].wrong, near);

        cr_expect_eq(found, cases[i].near != NULL, "%s: %s", cases[i].wrong, near);
        cr_expect_str_eq(near, cases[i].near ? cases[i].near : "");
    }
}

/* After a change of the tables: `ninja docs`. */
Test(keys, docs_are_up_to_date)
{
    for (size_t i = 0; i < er_docs_n; i++) {
        struct er_buf page, file;

        read_source(er_docs[i].name, &file);
        er_buf_init(&page, FILE_MAX);
        cr_expect_eq(er_docs[i].write(&page), 0);
        cr_expect_str_eq(er_buf_str(&page), er_buf_str(&file), "%s is stale: run `ninja docs`",
                         er_docs[i].name);
        er_buf_done(&page);
        er_buf_done(&file);
    }
}

Test(keys, help_names_every_option_and_key)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_buf screen;
    char text[128];

    er_buf_init(&screen, FILE_MAX);
    cr_assert_eq(er_help_format(NULL, &screen, &err), 0);
    for (size_t i = 0; i < er_options_n; i++) {
        snprintf(text, sizeof(text), "--%s", er_options[i].name);
        cr_expect(strstr(er_buf_str(&screen), text), "%s", text);
    }
    er_buf_clear(&screen);
    cr_assert_eq(er_help_format("keys", &screen, &err), 0);
    for (size_t i = 0; i < er_keys_n; i++)
        cr_expect(strstr(er_buf_str(&screen), er_keys[i].path), "%s", er_keys[i].path);
    er_buf_done(&screen);
}

Test(keys, help_has_topics)
{
    static const char *const topics[] = {"job",   "node",         "rendezvous", "restart",
                                         "types", "substitution", "exit-codes", "options",
                                         "log",   "log.tee",      "command",    "run"};
    struct er_error err = ER_ERROR_INIT;
    struct er_buf screen;

    for (size_t i = 0; i < ER_ARRAY_N(topics); i++) {
        er_buf_init(&screen, FILE_MAX);
        cr_expect_eq(er_help_format(topics[i], &screen, &err), 0, "%s", topics[i]);
        cr_expect(screen.len > 40, "%s", topics[i]);
        for (const char *line = er_buf_str(&screen); *line; line += strcspn(line, "\n") + 1)
            cr_expect(strcspn(line, "\n") <= 102, "%s: %.40s", topics[i], line);
        er_buf_done(&screen);
    }
    er_buf_init(&screen, FILE_MAX);
    cr_expect_eq(er_help_format("restrt", &screen, &err), ER_E_USAGE);
    cr_expect_str_eq(err.text, "--help: no topic 'restrt'; did you mean 'restart'?");
    cr_expect_eq(er_help_format("qqqqqqq", &screen, &err), ER_E_USAGE);
    cr_expect_str_eq(err.text, "--help: no topic 'qqqqqqq'; --help lists them");
    er_buf_done(&screen);
}
