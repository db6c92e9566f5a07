/* torchrun's options, one row each: every spelling and its variable set the same key to the same
 * value, and the command line beats the variable. */
#include "tests/unit/config_case.h"

static const struct {
    const char *option, *value; /* value NULL: a flag */
    const char *key, *expected; /* key NULL: nothing is set, one warning is given */
    bool pet;                   /* torchrun reads PET_<NAME> */
} FLAGS[] = {
    {"nnodes", "1:1", "nnodes", "1", true},
    {"nproc-per-node", "3", "nproc_per_node", "3", true},
    {"rdzv-backend", "c10d", "rendezvous.backend", "embedded", true},
    {"rdzv-endpoint", "localhost:29400", "rendezvous.endpoints", "[]", true},
    {"rdzv-id", "job7", "name", "job7", true},
    {"rdzv-conf", "join_timeout=7", "rendezvous.join_timeout", "7s", true},
    {"standalone", NULL, "rendezvous.backend", "embedded", true},
    {"max-restarts", "4", "restart.max", "4", true},
    {"monitor-interval", "5", NULL, NULL, true},
    {"start-method", "fork", NULL, NULL, true},
    {"event-log-handler", "console", NULL, NULL, true},
    {"role", "trainer", "role", "trainer", true},
    {"module", NULL, "command", "[python3, \"-u\", \"-m\", x.py]", true},
    {"no-python", NULL, "command", "[x.py]", true},
    {"log-dir", "/tmp/x", "log.dir", "/tmp/x", true},
    {"redirects", "1", "log.redirects", "\"1\"", true},
    {"tee", "0:2", "log.tee", "\"0:2\"", true},
    {"local-ranks-filter", "0", "log.console", "\"local:0\"", true},
    {"duplicate-stdout-filters", "a,b,,c", "log.duplicate_stdout", "[a, \"b,c\"]", true},
    {"duplicate-stderr-filters", "a", "log.duplicate_stderr", "[a]", true},
    {"log-line-prefix-template", "${role_name}${rank}", "log.prefix", "\"${role}${rank}\"", true},
    {"node-rank", "0", "node.rank", "0", true},
    {"master-port", "29501", "master_port", "\"29501\"", true},
    {"local-addr", "10.1.1.1", "node.address", "\"10.1.1.1\"", true},
    {"logs-specs", "default", NULL, NULL, false},
    {"signals-to-handle", "SIGTERM,SIGINT", "stop.signals_to_handle", "[INT, TERM]", true},
    {"shutdown-timeout", "1.5", "stop.grace", "1s500ms", true},
    {"virtual-local-rank", NULL, "virtual_local_rank", "true", true},
    {"exit-barrier-timeout", "9", "rendezvous.exit_timeout", "9s", true},
};

enum { JOINED = 1, UNDERSCORED = 2, FORMS = 4 };

static void spell(char *to, size_t size, const char *option, const char *value, int form)
{
    bool joined = form & JOINED && value;

    snprintf(to, size, "--%s%s%s", option, joined ? "=" : "", joined ? value : "");
    for (char *s = to + 2; form & UNDERSCORED && *s && *s != '='; s++)
        *s = *s == '-' ? '_' : *s;
}

static void check(const struct loaded *l, size_t row, const char *how)
{
    cr_assert_eq(l->rc, 0, "%s: %s", how, l->err.text);
    if (FLAGS[row].key)
        cr_expect_str_eq(value_of(l, FLAGS[row].key), FLAGS[row].expected, "%s: %s", how,
                         value_of(l, FLAGS[row].key));
    else
        cr_expect_eq(l->config->warnings.n, 1, "%s", how);
    er_config_free(l->config);
}

Test(torchrun_flags, every_spelling_is_the_same)
{
    for (size_t i = 0; i < ER_ARRAY_N(FLAGS); i++) {
        for (int form = 0; form < FORMS; form++) {
            const char *args[4] = {NULL, "x.py"};
            char text[128];
            struct loaded l;

            spell(text, sizeof(text), FLAGS[i].option, FLAGS[i].value, form);
            args[0] = text;
            if (FLAGS[i].value && !(form & JOINED)) {
                args[1] = FLAGS[i].value;
                args[2] = "x.py";
            }
            l = load_args(args);
            check(&l, i, text);
        }
    }
}

static void variable(char *to, size_t size, const char *option, const char *value)
{
    snprintf(to, size, "PET_%s", option);
    for (char *s = to; *s; s++)
        *s = *s == '-' ? '_' : *s >= 'a' && *s <= 'z' ? (char)(*s - 32) : *s;
    strncat(to, "=", size - strlen(to) - 1);
    strncat(to, value, size - strlen(to) - 1);
}

Test(torchrun_flags, variables_do_what_options_do)
{
    for (size_t i = 0; i < ER_ARRAY_N(FLAGS); i++) {
        const char *env[] = {"HOME=/h", NULL, NULL};
        char text[128];
        struct loaded l;

        if (!FLAGS[i].pet)
            continue;
        variable(text, sizeof(text), FLAGS[i].option, FLAGS[i].value ? FLAGS[i].value : "1");
        env[1] = text;
        l = load_config(&(struct load_case){.args = ARGS("x.py"), .env = env});
        check(&l, i, text);
    }
}

Test(torchrun_flags, command_line_beats_the_variable)
{
    static const struct {
        const char *env, *option, *key, *expected;
    } cases[] = {
        {"PET_MAX_RESTARTS=9", "--max-restarts=4", "restart.max", "4"},
        {"PET_STANDALONE=0", "--standalone", "rendezvous.backend", "embedded"},
        {"PET_VIRTUAL_LOCAL_RANK=0", "--virtual-local-rank", "virtual_local_rank", "true"},
        {"PET_TEE=3", "-t1", "log.tee", "\"1\""},
        {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=9", "--shutdown-timeout=4", "stop.grace", "4s"},
        {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=a", "--log-line-prefix-template=b", "log.prefix",
         "b"},
    };

    for (size_t i = 0; i < ER_ARRAY_N(cases); i++) {
        struct loaded l = load_config(&(struct load_case){
            .args = ARGS(cases[i].option, "x"),
            .env = ARGS("HOME=/h", cases[i].env),
        });

        cr_assert_eq(l.rc, 0, "%s", l.err.text);
        cr_expect_str_eq(value_of(&l, cases[i].key), cases[i].expected, "%s", cases[i].option);
        er_config_free(l.config);
    }
}

/* Options with an effect on others, or none at all. */
Test(torchrun_flags, refused_ones_say_why)
{
    struct loaded l = load_args(ARGS("--run-path", "x.py"));

    cr_expect_eq(er_config_exit_code(&l.err), 64);
    cr_expect_str_eq(l.err.text, "--run-path: refused: give PROGRAM");
    l = load_config(
        &(struct load_case){.args = ARGS("x.py"), .env = ARGS("HOME=/h", "PET_STANDALONE=yes")});
    cr_expect_eq(er_config_exit_code(&l.err), 64);
    cr_expect_str_eq(l.err.text, "PET_STANDALONE: expected 0 or 1, got 'yes'");
    l = load_args(ARGS("--redirect=3", "x.py")); /* torchrun takes beginnings */
    cr_expect_eq(er_config_exit_code(&l.err), 64);
    cr_expect_str_eq(l.err.text, "unknown option '--redirect=3'; did you mean '--redirects'?");
}

Test(torchrun_flags, options_behind_a_spec_are_told_of)
{
    struct loaded l = load_config(&(struct load_case){
        .args = ARGS(SPEC, "--nproc_per_node=2", "--lr", "3", "--", "--tee"),
        .spec = "command: a\n",
    });

    cr_assert_eq(l.rc, 0, "%s", l.err.text);
    cr_assert_eq(l.config->warnings.n, 1);
    cr_expect(strstr(l.config->warnings.items[0], "'--nproc_per_node=2' stands behind"));
    cr_expect_str_eq(value_of(&l, "command"),
                     "[a, \"--nproc_per_node=2\", \"--lr\", \"3\", \"--\", \"--tee\"]", "%s",
                     value_of(&l, "command"));
    er_config_free(l.config);
    l = load_args(ARGS("prog", "--nproc-per-node=2"));
    cr_assert_eq(l.rc, 0);
    cr_expect_eq(l.config->warnings.n, 0);
    er_config_free(l.config);
}

Test(torchrun_flags, completions_are_printed)
{
    struct loaded l = load_args(ARGS("--print-completion", "bash"));

    cr_assert_eq(l.rc, 0);
    cr_expect_eq(l.config->mode, ER_MODE_COMPLETION);
    cr_expect_str_eq(l.config->help_topic, "bash");
    er_config_free(l.config);
}
