#include "agent/help.h"

#include <errno.h>
#include <string.h>

#include "agent/config.h"
#include "agent/docgen_internal.h"
#include "agent/keys.h"
#include "agent/subst.h"
#include "base/cleanup.h"
#include "base/exit_codes.h"
#include "base/fd.h"
#include "base/parse.h"

enum { HELP_MAX = 256 << 10, COLUMN = 32, WIDTH = 100 };

/* A line "  head          text ...", text wrapped into its column. */
static int entry(struct er_buf *out, const char *head, const char *text)
{
    size_t used = strlen(head) + 2;
    int rc = er_buf_printf(out, "  %s", head);

    if (!rc && used + 2 > COLUMN) {
        rc = er_buf_add(out, "\n", 1);
        used = 0;
    }
    while (!rc) {
        size_t room = WIDTH - COLUMN, n = strlen(text);

        if (n > room) {
            n = room;
            while (n && text[n] != ' ')
                n--;
            n = n ? n : room;
        }
        rc = er_buf_printf(out, "%*s%.*s\n", (int)(COLUMN - used), "", (int)n, text);
        text += n + (text[n] == ' ');
        used = 0;
        if (!*text)
            break;
    }
    return rc;
}

static int option_entry(struct er_buf *out, const struct er_option *option)
{
    char head[96] = "    ";
    size_t n = 4;
    const char *parts[] = {"--", option->name, option->metavar ? " " : "",
                           option->metavar ? option->metavar : ""};

    if (option->letter)
        memcpy(head, (char[]){'-', option->letter, ',', ' '}, 4);
    for (size_t i = 0; i < ER_ARRAY_N(parts); i++) {
        size_t length = strlen(parts[i]);

        if (n + length >= sizeof(head))
            return -ENOBUFS;
        memcpy(head + n, parts[i], length + 1);
        n += length;
    }
    return entry(out, head, option->help);
}

static int group_options(struct er_buf *out, enum er_key_group group)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < er_options_n; i++) {
        if (er_options[i].group == group)
            rc = option_entry(out, &er_options[i]);
    }
    return rc;
}

static bool has_options(enum er_key_group group)
{
    for (size_t i = 0; i < er_options_n; i++) {
        if (er_options[i].group == group)
            return true;
    }
    return false;
}

static bool has_keys(enum er_key_group group)
{
    for (size_t i = 0; i < er_keys_n; i++) {
        if (er_keys[i].group == group)
            return true;
    }
    return false;
}

#define USAGE                                                                                      \
    "usage: elastic-run [OPTIONS] PROGRAM [ARG...]       start PROGRAM once per worker\n"          \
    "       elastic-run [OPTIONS] JOB.yaml [ARG...]      start a job spec; ARGs go to `command`\n" \
    "       elastic-run [OPTIONS] -- PROGRAM [ARG...]    PROGRAM, whatever its name\n"             \
    "Options end at the first operand. --a-b and --a_b are the same option.\n"

static int format_usage(struct er_buf *out)
{
    int rc = er_buf_add_str(out, USAGE);

    for (int group = 0; !rc && group < ER_GROUP_COUNT; group++) {
        if (!has_options((enum er_key_group)group))
            continue;
        rc = er_buf_printf(out, "\n%s:\n", er_key_group_title((enum er_key_group)group));
        if (!rc)
            rc = group_options(out, (enum er_key_group)group);
    }
    if (!rc)
        rc = er_buf_add_str(out,
                            "\nMore: --help TOPIC, with a key such as restart.max, or one of\n ");
    for (int group = 0; !rc && group < ER_GROUP_COUNT; group++)
        rc = er_buf_printf(out, " %s", er_key_group_topic((enum er_key_group)group));
    return rc ? rc
              : er_buf_add_str(out, "\n  keys types substitution exit-codes\n"
                                    "Man pages: elastic-run(1), elastic-job(5), elastic-ctl(1).\n");
}

static int choices(const struct er_key_info *key, struct er_buf *out)
{
    int rc = 0;

    for (size_t i = 0; !rc && key->choices && key->choices[i]; i++)
        rc = er_buf_printf(out, "%s%s", i ? " | " : " ", key->choices[i]);
    return rc;
}

int er_help_attributes(const struct er_key_info *key, struct er_buf *out)
{
    bool timed = key->type == ER_KEY_DURATION || key->type == ER_KEY_SIZE;
    int rc = er_buf_add_str(out, er_key_type_name(key->type));

    if (!rc)
        rc = choices(key, out);
    if (!rc && key->flags & ER_KEY_AUTO)
        rc = er_buf_add_str(out, " or auto");
    if (!rc && key->flags & ER_KEY_NONE)
        rc = er_buf_add_str(out, " or none");
    if (!rc && !timed && key->max && (key->type == ER_KEY_U32 || key->type == ER_KEY_U64))
        rc = er_buf_printf(out, " from %llu to %llu", (unsigned long long)key->min,
                           (unsigned long long)key->max);
    if (!rc && key->flags & ER_KEY_AGREE)
        rc = er_buf_add_str(out, "; same on all nodes");
    if (!rc && key->flags & ER_KEY_LIVE)
        rc = er_buf_printf(out, "; can change while the job runs (elastic-ctl %s)",
                           key->flags & ER_KEY_AGREE ? "set" : "reload");
    if (!rc && key->flags & ER_KEY_LATER)
        rc = er_buf_add_str(out, "; not available in this release: only the default");
    return rc;
}

static int key_entry(struct er_buf *out, const struct er_key_info *key)
{
    ER_CLEANUP(er_buf_done) struct er_buf text;
    int rc;

    er_buf_init(&text, 4096);
    rc = er_buf_printf(&text, "%s (default %s%s)", key->help, key->def ? key->def : "-",
                       key->flags & ER_KEY_LATER ? "; not available yet" : "");
    return rc ? rc : entry(out, key->path, er_buf_str(&text));
}

static int group_keys(struct er_buf *out, enum er_key_group group)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < er_keys_n; i++) {
        if (er_keys[i].group == group)
            rc = key_entry(out, &er_keys[i]);
    }
    return rc;
}

static int format_group(struct er_buf *out, enum er_key_group group)
{
    int rc = er_buf_printf(out, "%s\n", er_key_group_title(group));

    if (!rc && has_options(group))
        rc = er_buf_add_str(out, "\nOptions:\n");
    if (!rc)
        rc = group_options(out, group);
    if (!rc && has_keys(group))
        rc = er_buf_add_str(out, "\nKeys of the job spec, also for --set KEY=VALUE:\n");
    return rc ? rc : group_keys(out, group);
}

static int format_key(struct er_buf *out, const struct er_key_info *key)
{
    ER_CLEANUP(er_buf_done) struct er_buf attributes;
    int rc;

    er_buf_init(&attributes, 4096);
    rc = er_help_attributes(key, &attributes);
    if (!rc)
        rc = er_buf_printf(out, "%s\n", key->path);
    if (!rc)
        rc = entry(out, "meaning", key->help);
    if (!rc)
        rc = entry(out, "value", er_buf_str(&attributes));
    if (!rc)
        rc = er_buf_printf(out, "  %-30s%s", "default", key->def ? key->def : "-");
    if (!rc && key->def_program)
        rc = er_buf_printf(out, "; with PROGRAM instead of a job spec: %s", key->def_program);
    if (!rc)
        rc = er_buf_add(out, "\n", 1);
    for (size_t i = 0; !rc && i < er_options_n; i++) {
        const struct er_option *option = &er_options[i];

        if (option->key && !strcmp(option->key, key->path))
            rc =
                er_buf_printf(out, "  %-30s--%s%s%s%s%s\n", "option", option->name,
                              option->metavar ? " " : "", option->metavar ? option->metavar : "",
                              option->env ? "; environment: " : "", option->env ? option->env : "");
    }
    return rc;
}

static int format_keys(struct er_buf *out)
{
    int rc = 0;

    for (int group = 0; !rc && group < ER_GROUP_COUNT; group++) {
        if (!has_keys((enum er_key_group)group))
            continue;
        rc = er_buf_printf(out, "%s%s:\n", group ? "\n" : "",
                           er_key_group_title((enum er_key_group)group));
        if (!rc)
            rc = group_keys(out, (enum er_key_group)group);
    }
    return rc;
}

static int format_types(struct er_buf *out)
{
    static const struct {
        const char *name, *form;
    } rows[] = {ER_VALUE_FORMS};
    int rc = er_buf_add_str(out, "Forms of values\n\n");

    for (size_t i = 0; !rc && i < ER_ARRAY_N(rows); i++)
        rc = entry(out, rows[i].name, rows[i].form);
    return rc;
}

static int format_substitution(struct er_buf *out)
{
    int rc = er_buf_add_str(out, ER_SUBSTITUTION_TEXT "\n\n");

    for (size_t i = 0; !rc && er_subst_names[i]; i++)
        rc = er_buf_printf(out, "%s${%s}%s", i % 5 ? " " : "  ", er_subst_names[i],
                           i % 5 == 4 ? "\n" : "");
    return rc ? rc : er_buf_add_str(out, "  ${env.NAME}\n");
}

static int format_exit_codes(struct er_buf *out)
{
    static const struct {
        const char *number, *when;
    } rows[] = {{"1-255", "the worker's own: the root cause's code, passed on unchanged"},
                {"128+n", "the root cause died by signal n"},
#define EXIT_CODE_ROW(number, name, text, when, who, again) {#number " " text, when},
                ER_EXIT_CODES(EXIT_CODE_ROW)
#undef EXIT_CODE_ROW
    };
    int rc = er_buf_add_str(out, "Exit codes\n\n");

    for (size_t i = 0; !rc && i < ER_ARRAY_N(rows); i++)
        rc = entry(out, rows[i].number, rows[i].when);
    return rc;
}

/* Topics beside groups and keys. */
static const struct {
    const char *name;
    int (*format)(struct er_buf *out);
} TOPICS[] = {
    {"options", format_usage},         {"keys", format_keys},
    {"types", format_types},           {"substitution", format_substitution},
    {"exit-codes", format_exit_codes},
};

static int unknown_topic(const char *topic, struct er_error *err)
{
    const char *names[ER_ARRAY_N(TOPICS) + ER_GROUP_COUNT], *near;
    char key[ER_KEY_PATH_MAX];
    size_t n = 0;

    for (size_t i = 0; i < ER_ARRAY_N(TOPICS); i++)
        names[n++] = TOPICS[i].name;
    for (int group = 0; group < ER_GROUP_COUNT; group++)
        names[n++] = er_key_group_topic((enum er_key_group)group);
    near = er_nearest(topic, names, n);
    if (!near && er_key_nearest(topic, key))
        near = key;
    if (near)
        return er_error_set(err, ER_E_USAGE, "--help: no topic '%.100s'; did you mean '%s'?", topic,
                            near);
    return er_error_set(err, ER_E_USAGE, "--help: no topic '%.100s'; --help lists them", topic);
}

int er_help_format(const char *topic, struct er_buf *out, struct er_error *err)
{
    const struct er_key_info *key = topic ? er_key_find(topic) : NULL;
    int rc = 1;

    if (!topic)
        rc = format_usage(out);
    else if (key)
        rc = format_key(out, key);
    for (size_t i = 0; rc > 0 && i < ER_ARRAY_N(TOPICS); i++) {
        if (!strcmp(TOPICS[i].name, topic))
            rc = TOPICS[i].format(out);
    }
    for (int group = 0; rc > 0 && group < ER_GROUP_COUNT; group++) {
        if (!strcmp(er_key_group_topic((enum er_key_group)group), topic))
            rc = format_group(out, (enum er_key_group)group);
    }
    if (rc > 0)
        return unknown_topic(topic, err);
    return rc ? er_error_set(err, rc, "help: %s", er_error_name(rc)) : 0;
}

static int format_completion(const char *shell, struct er_buf *out, struct er_error *err)
{
    static const struct {
        const char *shell;
        int (*format)(struct er_buf *out);
    } rows[] = {{"bash", er_docgen_bash}, {"zsh", er_docgen_zsh}, {"fish", er_docgen_fish}};

    for (size_t i = 0; i < ER_ARRAY_N(rows); i++) {
        if (!strcmp(rows[i].shell, shell))
            return rows[i].format(out);
    }
    return er_error_set(err, ER_E_USAGE,
                        "--print-completion: expected bash, zsh or fish; got '%.100s'", shell);
}

int er_config_help(const struct er_config *config, struct er_error *err)
{
    ER_CLEANUP(er_buf_done) struct er_buf out;
    int rc;

    er_buf_init(&out, HELP_MAX);
    if (config->mode == ER_MODE_VERSION)
        rc = er_buf_add_str(&out, "elastic-run " ER_VERSION "\n");
    else if (config->mode == ER_MODE_COMPLETION)
        rc = format_completion(config->help_topic, &out, err);
    else
        rc = er_help_format(config->help_topic, &out, err);
    if (!rc)
        rc = er_write_all(1, out.data, out.len);
    return rc && (!err || !err->code) ? er_error_set(err, rc, "help: %s", er_error_name(rc)) : rc;
}

const char *er_agent_version(void)
{
    return ER_VERSION;
}
