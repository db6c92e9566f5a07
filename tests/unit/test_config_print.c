#include "tests/unit/config_case.h"

#include <fcntl.h>

#include "agent/dry_run.h"
#include "base/file.h"
#include "base/rand.h"

enum { PRINT_MAX = 1 << 20 };

/* ---- printing ---- */

static void print(const struct er_config *config, bool origins, struct er_buf *out)
{
    er_buf_init(out, PRINT_MAX);
    cr_assert_eq(er_config_format(config, origins, out), 0);
}

/* With origins, so that the comments are shown to be comments. */
static void reload_and_compare(struct loaded *first)
{
    struct er_buf printed, plain, again;
    struct loaded second;

    print(first->config, true, &printed);
    print(first->config, false, &plain);
    second = load_text(er_buf_str(&printed));
    cr_assert_eq(second.rc, 0, "%s\n%s", second.text, er_buf_str(&printed));
    print(second.config, false, &again);
    cr_expect_str_eq(er_buf_str(&again), er_buf_str(&plain));
    er_buf_done(&printed);
    er_buf_done(&plain);
    er_buf_done(&again);
    er_config_free(second.config);
    er_config_free(first->config);
}

Test(config_print, printed_configuration_loads_back)
{
    static const char spec[] =
        "name: j\ncommand: [a, 'b \"c\" \\', \"\\t\\u00e9\\u2028\\x7f\", '${rank}$$', '']\n"
        "env: {A: null, 'B C': 'x: y # z', D: '', E: '~', 'F\"': '${rank}'}\n"
        "workdir: 'w ${rank}'\nnnodes: {min: 1, max: 1}\nnproc_per_node: auto\nstdin: none\n"
        "master_port: 100-200\nnode: {rank: 3, topology: 'a/b'}\n"
        "rendezvous: {lease_ttl: 9s, replacement_wait: 0s, join_timeout: none}\n"
        "restart: {max: none, window: none, fatal_exit_codes: [1, 255]}\n"
        "stop: {signal: INT, grace: 1m1s, signals_to_handle: [TERM, USR1], forward: USR2}\n"
        "checkpoint: {dir: 'c$$', every_steps: 50, every: none}\n"
        "log: {dir: none, console: 'local:0', prefix: '', redirects: '0:1', tee: 0, max_size: "
        "1GB}\n";
    struct loaded from_spec = load_text(spec);
    struct loaded from_program =
        load_args(ARGS("-t", "3", "--log-dir=/tmp/a$b", "--set", "env.A=$x ${local_rank}", "x.py",
                       "${local_rank}", "${what} $$", "{\"a\": [1]}", "- x", "#", "0x1", "1e3"));

    cr_assert_eq(from_spec.rc, 0, "%s", from_spec.text);
    cr_assert_eq(from_program.rc, 0, "%s", from_program.err.text);
    reload_and_compare(&from_spec);
    reload_and_compare(&from_program);
}

Test(config_print, origins_are_printed)
{
    struct loaded l = load_config(&(struct load_case){.args = ARGS("--max-restarts=7", SPEC),
                                                      .spec = "command: a\nstop:\n  grace: 5s\n"});
    struct er_buf text;

    cr_assert_eq(l.rc, 0, "%s", l.text);
    print(l.config, true, &text);
    cr_expect(strstr(er_buf_str(&text), "\nrestart:\n  max: 7                                    # "
                                        "--max-restarts\n"));
    cr_expect(strstr(er_buf_str(&text), "/job.yaml:3\n"));
    cr_expect(strstr(er_buf_str(&text), "# default\n"));
    er_buf_done(&text);
    er_config_free(l.config);
}

Test(config_print, spec_text_holds_what_must_agree)
{
    struct loaded a = load_args(ARGS("--rdzv-id=j", "--log-dir=/x", "x")),
                  b = load_args(ARGS("--rdzv-id=j", "--nproc-per-node=3", "--node-id=q", "x")),
                  c = load_args(ARGS("--rdzv-id=j", "--max-restarts=1", "x"));
    char *texts[3] = {0};
    struct er_error err = ER_ERROR_INIT;

    cr_assert_eq(er_config_spec_text(a.config, &texts[0], &err), 0);
    cr_assert_eq(er_config_spec_text(b.config, &texts[1], &err), 0);
    cr_assert_eq(er_config_spec_text(c.config, &texts[2], &err), 0);
    cr_expect_str_eq(texts[0], texts[1]);
    cr_expect_str_neq(texts[0], texts[2]);
    cr_expect(strstr(texts[2], "\nrestart.max=1\n"));
    cr_expect(strlen(texts[0]) < 4096);
    for (size_t i = 0; i < ER_ARRAY_N(texts); i++)
        free(texts[i]);
    er_config_free(a.config);
    er_config_free(b.config);
    er_config_free(c.config);
}

Test(config_print, spec_text_stays_small)
{
    static char words[20000];
    struct er_error err = ER_ERROR_INIT;
    struct loaded l;
    char *text = NULL;

    memset(words, 'w', sizeof(words) - 1);
    l = load_args(ARGS("x", words));
    cr_assert_eq(l.rc, 0);
    cr_expect_eq(er_config_spec_text(l.config, &text, &err), 0, "%s", err.text);
    cr_expect(text && strstr(text, "\ncommand=xxh3:"));
    free(text);
    er_config_free(l.config);
}

/* ---- dry run and check ---- */

/* Parts of what is printed. */
static const char *const DRY_RUN[] = {
    "- rank: 0\n  argv: [a, \"0/2\", \"<master_port>\"]\n  workdir: /w\n  env:\n",
    "- rank: 1\n  argv: [a, \"1/2\", \"<master_port>\"]\n",
    "    X: \"1\"\n",
    "    RANK: \"1\"\n",
    "    WORLD_SIZE: \"2\"\n",
    "    MASTER_PORT: \"<master_port>\"\n",
    "    OMP_NUM_THREADS: \"1\"\n",
    "    GONE: null\n",
    "    NOTIFY_SOCKET: null\n",
};

Test(config_print, dry_run_shows_each_worker)
{
    static char *environ_[] = {(char *)"HOME=/h", (char *)"NOTIFY_SOCKET=/x", (char *)"RANK=9",
                               (char *)"GONE=1", NULL};
    struct loaded l = load_text("name: j\ncommand: [a, '${rank}/${world_size}', '${master_port}']\n"
                                "env: {X: '${local_rank}', GONE: null}\nworkdir: /w\n"
                                "nproc_per_node: 2\nlog: {dir: none}\n");
    struct er_error err = ER_ERROR_INIT;
    struct er_buf text;

    cr_assert_eq(l.rc, 0, "%s", l.text);
    er_buf_init(&text, PRINT_MAX);
    cr_assert_eq(er_dry_run_format(l.config, environ_, &text, &err), 0, "%s", err.text);
    for (size_t i = 0; i < ER_ARRAY_N(DRY_RUN); i++)
        cr_expect(strstr(er_buf_str(&text), DRY_RUN[i]), "%s\n%s", DRY_RUN[i], er_buf_str(&text));
    cr_expect_null(strstr(er_buf_str(&text), "HOME"));
    er_buf_done(&text);
    er_config_free(l.config);
}

/* er_config_check() says "ok" on stdout, where TAP goes. */
static int check_quietly(const struct er_config *config, struct er_error *err)
{
    static char *environ_[] = {(char *)"HOME=/h", (char *)"PATH=/nonexistent:/usr/bin:/bin", NULL};
    int saved = dup(1), null = open("/dev/null", O_WRONLY), rc;

    fflush(stdout);
    dup2(null, 1);
    rc = er_config_check(config, environ_, err);
    dup2(saved, 1);
    close(saved);
    close(null);
    return rc;
}

Test(config_print, check_looks_at_this_host)
{
    static const struct {
        const char *args[8], *message; /* NULL: ok */
    } cases[] = {
        {{"true"}, NULL},
        {{"/bin/sh"}, NULL},
        {{"no-such-program"}, "command: program 'no-such-program' is not there or not executable"},
        {{"/etc/passwd"}, "command: program '/etc/passwd' is not there or not executable"},
        {{"no-such-script.py"}, "command: script 'no-such-script.py': No such file or directory"},
        {{"--log-dir=/tmp/a/b/c", "true"}, NULL},
        {{"--log-dir=/etc/passwd", "true"}, "log.dir: '/etc/passwd' is not a folder"},
        {{"--log-dir=/etc/passwd/x", "true"}, "log.dir: '/etc/passwd/x': Not a directory"},
        {{"--set", "workdir=/no/such", "true"}, "workdir: no folder '/no/such'"},
        {{"--set", "checkpoint.dir=/etc/passwd", "true"},
         "checkpoint.dir: '/etc/passwd' is not a folder"},
        {{"--set", "env.PATH=/nonexistent", "true"},
         "command: program 'true' is not there or not executable"},
    };

    for (size_t i = 0; i < ER_ARRAY_N(cases); i++) {
        struct loaded l = load_args(cases[i].args);
        struct er_error err = ER_ERROR_INIT;
        int rc;

        cr_assert_eq(l.rc, 0, "%s", l.err.text);
        rc = check_quietly(l.config, &err);
        cr_expect_eq(rc == 0, cases[i].message == NULL, "%s", err.text);
        cr_expect_str_eq(err.text, cases[i].message ? cases[i].message : "");
        er_config_free(l.config);
    }
}

/* ---- hostile input ---- */

/* The loader without the file system: what a spec of these bytes leads to. */
static int load_bytes(const char *data, size_t n)
{
    const struct er_config_source source = {ER_LAYER_SPEC, "fuzz.yaml", 0, 0, false};
    struct er_error err = ER_ERROR_INIT;
    struct er_loader loader = {0};
    struct er_origins *origins = calloc(1, sizeof(*origins));
    struct er_spec *spec = NULL;
    int rc = er_spec_parse(&spec, "fuzz.yaml", data, n, &err);

    loader.config = calloc(1, sizeof(*loader.config));
    cr_assert(origins && loader.config);
    origins->settings = calloc(er_keys_n, sizeof(*origins->settings));
    cr_assert(origins->settings);
    loader.config->origins = origins;
    er_findings_init(&loader.findings);
    if (!rc && er_spec_root(spec)->kind == ER_NODE_MAP)
        er_loader_map(&loader, er_spec_root(spec), "", &source);
    if (!rc)
        rc = er_findings_result(&loader.findings, &err);
    er_findings_done(&loader.findings);
    er_config_free(loader.config);
    er_spec_free(spec);
    return rc;
}

Test(config_print, flipped_bytes_never_crash, .timeout = 120)
{
    /* valgrind is twenty times slower and adds little to the sanitizers here */
    const char *preload = getenv("LD_PRELOAD");
    int rounds = preload && strstr(preload, "vgpreload") ? 300 : 20000, refused = 0;
    struct er_error err = ER_ERROR_INIT;
    struct er_buf original, text;
    struct er_rand random;

    er_buf_init(&original, PRINT_MAX);
    er_buf_init(&text, PRINT_MAX);
    cr_assert_eq(er_file_read(ER_SOURCE_ROOT "/tests/unit/data/small_spec.yaml", &original, &err),
                 0, "%s", err.text);
    cr_assert_eq(load_bytes(original.data, original.len), 0);
    er_rand_init(&random, 20240607);
    for (int i = 0; i < rounds; i++) {
        int flips = 1 + (int)er_rand_below(&random, 8);

        er_buf_clear(&text);
        cr_assert_eq(er_buf_add(&text, original.data, original.len), 0);
        for (int k = 0; k < flips; k++)
            text.data[er_rand_below(&random, text.len)] ^= (char)(1u << er_rand_below(&random, 8));
        refused += load_bytes(text.data, text.len) != 0;
    }
    cr_expect(refused > rounds / 2, "%d of %d", refused, rounds);
    er_buf_done(&original);
    er_buf_done(&text);
}

Test(config_print, cut_files_never_crash, .timeout = 120)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_buf text;

    er_buf_init(&text, PRINT_MAX);
    cr_assert_eq(er_file_read(ER_SOURCE_ROOT "/tests/unit/data/small_spec.yaml", &text, &err), 0,
                 "%s", err.text);
    for (size_t n = 0; n < text.len; n++)
        load_bytes(text.data, n);
    er_buf_done(&text);
}
