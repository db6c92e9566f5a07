/* --check, --print-config and --dry-run: nothing is started, everything is told. */
#include <arpa/inet.h>
#include <sys/socket.h>

#include "tests/integration/agent_case.h"

#define ERR_HAS(c, text) er_tap_check(strstr(er_test_err(&(c)->p), (text)) != NULL)
#define OUT_HAS(c, text) er_tap_check(strstr(er_test_out(&(c)->p), (text)) != NULL)

static int run(struct agent_case *c, const char *const args[])
{
    const char *argv[CASE_ARGS_MAX] = {er_test_bin("elastic-run")};
    char env[ER_TEST_PATH_MAX + 8];

    for (size_t i = 0; args[i]; i++)
        argv[i + 1] = args[i];
    snprintf(env, sizeof(env), "CASE=%s", c->dir);
    er_test_done(&c->p);
    er_test_start(&c->p, argv, (const char *const[]){env, "SECRET_TOKEN=hidden-value", NULL});
    return case_finish(c);
}

/* Spec, host and program: five mistakes in one go. */
static void check_tells_everything_at_once(void)
{
    struct agent_case c = {0};
    const char *path;

    case_begin(&c);
    path = case_job(&c, "[./no-such-program]",
                    "restart: {mx: 3}\nstop: {grace: 30}\nlog: {dir: /etc/passwd/x}\n"
                    "checkpoint: {dir: /etc/passwd}\n");
    er_tap_check(run(&c, ARGS("--check", path)) == 78);
    ERR_HAS(&c, "unknown key 'restart.mx'; did you mean 'restart.max'?");
    ERR_HAS(&c, "stop.grace: expected a duration");
    ERR_HAS(&c, "command: program './no-such-program' is not there");
    ERR_HAS(&c, "log.dir: '/etc/passwd/x'");
    ERR_HAS(&c, "checkpoint.dir:");
    er_tap_check(er_test_out(&c.p)[0] == '\0');
    case_note(er_test_err(&c.p));
    case_end(&c);
}

static void check_tells_what_a_start_would_find(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(run(&c, ARGS("--check", case_job(&c, "\"true\"",
                                                  "nproc_per_node: 3\nlog: {dir: none}\n"))) == 0);
    OUT_HAS(&c, "workers      3\n");
    OUT_HAS(&c, "store        embedded\n");
    OUT_HAS(&c, "cgroup v2 ");
    OUT_HAS(&c, "\nok\n");
    er_tap_check(er_test_err(&c.p)[0] == '\0');
    case_end(&c);
}

static void check_asks_the_store(void)
{
    struct agent_case c = {0};
    const char *path;

    case_begin(&c);
    path = case_job(&c, "\"true\"", "rendezvous: {endpoints: '127.0.0.1:1'}\nlog: {dir: none}\n");
    if (access(er_test_bin("er_store_etcd.so"), F_OK)) {
        er_tap_check(run(&c, ARGS("--check", path)) == 78); /* a build without etcd */
    } else {
        er_tap_check(run(&c, ARGS("--check", path)) == 69);
        ERR_HAS(&c, "store: ");
        ERR_HAS(&c, "127.0.0.1:1");
    }
    case_note(er_test_err(&c.p));
    case_end(&c);
}

/* Of this host's member: its program, its port and the secret, all at once. */
static void check_looks_at_a_managed_store(void)
{
    struct agent_case c = {0};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char more[512];

    case_begin(&c);
    er_tap_check(!bind(fd, (struct sockaddr *)&at, n) && !listen(fd, 1) &&
                 !getsockname(fd, (struct sockaddr *)&at, &n));
    snprintf(more, sizeof(more),
             "nnodes: 2\nlog: {dir: none}\nrendezvous: {backend: managed, endpoints: "
             "['127.0.0.1:%u'], managed: {etcd: no-such-etcd, secret_file: no-such-secret}}\n",
             ntohs(at.sin_port));
    er_tap_check(run(&c, ARGS("--check", case_job(&c, "\"true\"", more))) != 0);
    ERR_HAS(&c, "program 'no-such-etcd' not found in PATH");
    ERR_HAS(&c, "is in use by another program");
    ERR_HAS(&c, "rendezvous.managed.secret_file: ");
    case_note(er_test_err(&c.p));
    close(fd);
    case_end(&c);
}

static void print_config_is_a_spec_again(void)
{
    struct agent_case c = {0};
    const char *path;
    char *first;

    case_begin(&c);
    path = case_job(&c, "[echo, '$$HOME ${rank}']", "restart: {max: 5}\n");
    er_tap_check(run(&c, ARGS("--print-config", "--tee=1", path)) == 0);
    OUT_HAS(&c, "job.yaml:3\n");
    OUT_HAS(&c, "# --tee\n");
    OUT_HAS(&c, "# default\n");
    first = strdup(er_test_out(&c.p));
    er_test_write_file(case_path(&c, "again.yaml"), first);
    er_tap_check(run(&c, ARGS("--print-config", case_path(&c, "again.yaml"))) == 0);
    for (char *a = first, *b = (char *)er_test_out(&c.p); *a && *b;) { /* but for the origins */
        size_t n = strcspn(a, "#\n"), m = strcspn(b, "#\n");

        if (!er_tap_check(n == m && !strncmp(a, b, n)))
            er_tap_note("%.*s", (int)n, a);
        a += strcspn(a, "\n") + 1;
        b += strcspn(b, "\n") + 1;
    }
    free(first);
    case_end(&c);
}

static void dry_run_has_argv_and_environment_of_each_worker(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(
        run(&c, ARGS("--dry-run", case_job(&c, "[./train, '--rank=${rank}']",
                                           "nproc_per_node: 2\nenv: {A: 'x${rank}'}\n"))) == 0);
    OUT_HAS(&c, "argv: [\"./train\", \"--rank=0\"]");
    OUT_HAS(&c, "argv: [\"./train\", \"--rank=1\"]");
    OUT_HAS(&c, "    A: \"x1\"\n");
    OUT_HAS(&c, "    WORLD_SIZE: \"2\"\n");
    OUT_HAS(&c, "    TORCHELASTIC_USE_AGENT_STORE: ");
    er_tap_check(strstr(er_test_out(&c.p), "hidden-value") == NULL);
    er_tap_check(!case_has(&c, "logs"));
    case_end(&c);
}

static void secrets_are_masked(void)
{
    struct agent_case c = {0};
    const char *path;

    case_begin(&c);
    path = case_job(&c, "[x, --lr, 1]",
                    "env: {API_TOKEN: hidden-1, AWS_SECRET_ACCESS_KEY: hidden-2, DB_PASSWORD: "
                    "hidden-3, PLAIN: shown}\n");
    er_tap_check(run(&c, ARGS("--print-config", path)) == 0);
    er_tap_check(strstr(er_test_out(&c.p), "hidden-") == NULL);
    OUT_HAS(&c, "API_TOKEN: \"***\"");
    OUT_HAS(&c, "PLAIN: \"shown\"");
    er_tap_check(run(&c, ARGS("--dry-run", path)) == 0);
    er_tap_check(strstr(er_test_out(&c.p), "hidden-") == NULL);
    OUT_HAS(&c, "DB_PASSWORD: \"***\"");
    OUT_HAS(&c, "PLAIN: \"shown\"");
    case_end(&c);
}

/* An interface that is not there, or a name that nobody knows: before anything starts. */
static void address_that_means_nothing_is_refused(void)
{
    static const char *const QUICKLY[] = {"RES_OPTIONS=timeout:1 attempts:1", NULL};
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(er_test_run(&c.p,
                             ARGS(er_test_bin("elastic-run"), "--rdzv-id", c.name, "--local-addr",
                                  "nosuchif0", "echo", "started"),
                             QUICKLY, ER_TEST_DEADLINE_MS) == 78);
    ERR_HAS(&c, "node.address: 'nosuchif0' is neither an interface of this host, nor an address, ");
    er_tap_check(er_test_out(&c.p)[0] == '\0');
    er_test_done(&c.p);
    er_tap_check(er_test_run(&c.p,
                             ARGS(er_test_bin("elastic-run"), "--check", "--local-addr",
                                  "nosuchif0", "true"),
                             QUICKLY, ER_TEST_DEADLINE_MS) == 78);
    er_tap_check(strncmp(er_test_err(&c.p), "elastic-run: node.address: 'nosuchif0'", 38) == 0);
    er_test_done(&c.p);
    er_tap_check(case_run(&c, ARGS("--local-addr", "lo", SH("echo $MASTER_ADDR"))) == 0);
    OUT_HAS(&c, "127.0.0.1\n");
    case_end(&c);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case CASES[] = {
        {"check_tells_everything_at_once", check_tells_everything_at_once, 0},
        {"check_tells_what_a_start_would_find", check_tells_what_a_start_would_find, 0},
        {"check_asks_the_store", check_asks_the_store, 0},
        {"check_looks_at_a_managed_store", check_looks_at_a_managed_store, 0},
        {"print_config_is_a_spec_again", print_config_is_a_spec_again, 0},
        {"dry_run_has_argv_and_environment_of_each_worker",
         dry_run_has_argv_and_environment_of_each_worker, 0},
        {"secrets_are_masked", secrets_are_masked, 0},
        {"address_that_means_nothing_is_refused", address_that_means_nothing_is_refused, 0},
    };

    return er_tap_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
