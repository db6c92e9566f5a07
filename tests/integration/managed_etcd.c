/* Jobs of several agents on an etcd of their own: agents, keepers and etcd as real processes on
 * loopback. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include "agent/keeper_opts.h"
#include "base/cleanup.h"
#include "tests/integration/agent_case.h"

#define AGENTS_MAX 4
#define LONG_MS    60000u

struct job {
    struct agent_case c; /* folder and name; its process is agent 0 */
    struct er_test_proc agents[AGENTS_MAX];
    size_t n;
    char endpoint[128], secret[600];
};

/* ---- helpers ---- */

static void need_etcd(void)
{
    struct er_test_proc p;
    int rc = er_test_run(&p, ARGS("etcd", "--version"), NULL, ER_TEST_DEADLINE_MS);

    er_test_done(&p);
    if (rc != 0)
        er_tap_skip("no etcd in PATH (Debian: etcd-server)");
}

/* Bound and let go: the kernel gives it to nobody else for a while. */
static int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    er_tap_require(fd >= 0 && bind(fd, (struct sockaddr *)&at, n) == 0);
    er_tap_require(getsockname(fd, (struct sockaddr *)&at, &n) == 0);
    close(fd);
    return ntohs(at.sin_port);
}

static void job_begin(struct job *j, const char *endpoint)
{
    need_etcd();
    memset(j, 0, sizeof(*j));
    case_begin(&j->c);
    snprintf(j->c.name, sizeof(j->c.name), "managed-%d", (int)getpid());
    if (endpoint)
        snprintf(j->endpoint, sizeof(j->endpoint), "%s", endpoint);
    else
        snprintf(j->endpoint, sizeof(j->endpoint), "127.0.0.1:%d", free_port());
}

static void job_secret(struct job *j, const char *file, const char *text)
{
    snprintf(j->secret, sizeof(j->secret), "%s", case_path(&j->c, file));
    er_test_write_file(j->secret, text);
    er_tap_require(chmod(j->secret, 0600) == 0);
}

/* One more agent; `env` ("NAME=value") may be NULL. Ends of workers: when the file "go" is there.
 */
static struct er_test_proc *job_agent_with(struct job *j, const char *nnodes, const char *env,
                                           const char *const more[])
{
    char dir[ER_TEST_PATH_MAX + 8], secret[700];
    const char *argv[48] = {er_test_bin("elastic-run"),
                            "--rdzv-id",
                            j->c.name,
                            "--rdzv-backend=c10d",
                            "--nnodes",
                            nnodes,
                            "--rdzv-endpoint",
                            j->endpoint,
                            "--rdzv-conf",
                            "join_timeout=40,last_call_timeout=0"};
    struct er_test_proc *p = &j->agents[j->n++];
    size_t n = 10;

    for (size_t i = 0; more && more[i]; i++)
        argv[n++] = more[i];
    if (j->secret[0]) {
        snprintf(secret, sizeof(secret), "rendezvous.managed.secret_file=%s", j->secret);
        argv[n++] = "--set";
        argv[n++] = secret;
    }
    argv[n++] = "sh";
    argv[n++] = "-c";
    argv[n++] = "echo up; : >$CASE/up.$RANK; while [ ! -e $CASE/go ]; do sleep 0.05; done";
    snprintf(dir, sizeof(dir), "CASE=%s", j->c.dir);
    er_test_start(p, argv, (const char *const[]){dir, env, NULL});
    return p;
}

static struct er_test_proc *job_agent(struct job *j, const char *nnodes)
{
    return job_agent_with(j, nnodes, NULL, NULL);
}

static void job_up(struct job *j, int ranks)
{
    for (int i = 0; i < ranks; i++) {
        char file[16];

        snprintf(file, sizeof(file), "up.%d", i);
        if (!er_tap_check(er_test_wait_path(case_path(&j->c, file), LONG_MS)))
            break;
    }
}

static void job_go(struct job *j)
{
    er_test_write_file(case_path(&j->c, "go"), "");
}

static void expect_exit(struct er_test_proc *p, int code)
{
    if (er_tap_check(er_test_wait_exit(p, LONG_MS)) && er_tap_check(er_test_exit_code(p) == code))
        return;
    er_tap_note("exit code %d", er_test_exit_code(p));
    case_note(er_test_out(p));
    case_note(er_test_err(p));
}

static void home_path(const struct job *j, size_t member, const char *file, char ret[256])
{
    char home[ER_KEEPER_HOME_MAX];

    er_keeper_home(j->c.name, member, home);
    snprintf(ret, 256, "%s%s%s", home, file ? "/" : "", file ? file : "");
}

/* A number of the member's file; 0: no such member runs. */
static pid_t member_pid(const struct job *j, size_t member, const char *what)
{
    char path[256], *text;
    const char *at;
    pid_t pid = 0;

    home_path(j, member, ER_KEEPER_MEMBER, path);
    text = er_test_read_file(path);
    at = text ? strstr(text, what) : NULL;
    if (at)
        pid = (pid_t)atoi(at + strlen(what));
    free(text);
    return pid;
}

static pid_t keeper_pid(const struct job *j, size_t member)
{
    return member_pid(j, member, "\nkeeper ");
}

static pid_t etcd_pid(const struct job *j, size_t member)
{
    return member_pid(j, member, "\netcd ");
}

struct change {
    const struct job *j;
    size_t member;
    const char *what;
    pid_t from;
};

static bool changed(void *user)
{
    struct change *c = user;
    pid_t now = member_pid(c->j, c->member, c->what);

    return now > 0 && now != c->from;
}

/* The pid of the member's process that came after `from`. */
static void wait_other(const struct job *j, size_t member, const char *what, pid_t from)
{
    struct change c = {j, member, what, from};

    er_tap_check(er_test_wait_until(changed, &c, LONG_MS));
}

static void expect_clean(const struct job *j, size_t members)
{
    for (size_t i = 0; i < members; i++) {
        char path[256];

        home_path(j, i, NULL, path);
        er_tap_check(access(path, F_OK) != 0);
    }
}

static void job_end(struct job *j)
{
    for (size_t i = 0; i < j->n; i++)
        er_test_done(&j->agents[i]);
    for (size_t i = 0; i < ER_MANAGED_MAX; i++) {
        pid_t keeper = keeper_pid(j, i);
        char path[256];

        if (keeper > 0)
            kill(keeper, SIGTERM);
        home_path(j, i, NULL, path);
        er_tap_check(er_test_wait_gone(path, LONG_MS));
    }
    er_test_remove_jobs(getpid()); /* of agents that were killed with their guards */
    er_test_rmtree(j->c.dir);
}

/* ---- one member ---- */

static void two_agents_share_one_etcd_and_leave_nothing(void)
{
    struct job j;

    job_begin(&j, NULL);
    job_agent(&j, "2");
    job_agent(&j, "2");
    job_up(&j, 2);
    er_tap_check(keeper_pid(&j, 0) > 0 && keeper_pid(&j, 1) == 0);
    job_go(&j);
    expect_exit(&j.agents[0], 0);
    expect_exit(&j.agents[1], 0);
    er_tap_check(strstr(er_test_err(&j.agents[0]), "secret_file") != NULL);
    expect_clean(&j, 1);
    job_end(&j);
}

static void three_agents_go_on(int sig, bool keeper_too)
{
    struct job j;
    pid_t was, keeper;

    job_begin(&j, NULL);
    job_secret(&j, "secret", "0123456789abcdef0123456789abcdef\n");
    for (int i = 0; i < 3; i++)
        job_agent(&j, "3");
    job_up(&j, 3);
    was = etcd_pid(&j, 0);
    keeper = keeper_pid(&j, 0);
    er_tap_require(was > 0 && keeper > 0);
    if (keeper_too)
        kill(keeper, sig);
    kill(was, sig);
    wait_other(&j, 0, "\netcd ", was);
    er_tap_check(keeper_pid(&j, 0) == keeper);
    job_go(&j);
    for (int i = 0; i < 3; i++) {
        expect_exit(&j.agents[i], 0);
        er_tap_check(strstr(er_test_err(&j.agents[i]), "secret_file") == NULL);
        er_tap_check(strstr(er_test_err(&j.agents[i]), "generation 2") == NULL);
        er_tap_check(strstr(er_test_err(&j.agents[i]), "started again with its data") != NULL);
    }
    expect_clean(&j, 1);
    job_end(&j);
}

static void three_agents_with_a_secret_go_on_when_etcd_is_killed(void)
{
    three_agents_go_on(SIGKILL, false);
}

/* As Slurm's notice does: the agents leave in order with it. */
static void a_signal_to_all_leaves_the_agents_their_store(void)
{
    three_agents_go_on(SIGTERM, true);
}

static void a_killed_keeper_is_replaced_and_the_job_goes_on(void)
{
    struct job j;
    pid_t was;

    job_begin(&j, NULL);
    job_agent(&j, "2");
    job_agent(&j, "2");
    job_up(&j, 2);
    was = keeper_pid(&j, 0);
    er_tap_require(was > 0 && kill(was, SIGKILL) == 0);
    wait_other(&j, 0, "\nkeeper ", was);
    job_go(&j);
    for (int i = 0; i < 2; i++) {
        expect_exit(&j.agents[i], 0);
        er_tap_check(strstr(er_test_err(&j.agents[i]), "generation 2") == NULL);
    }
    expect_clean(&j, 1);
    job_end(&j);
}

static void etcd_outlives_its_agent_and_is_found_again(void)
{
    struct job j;
    pid_t etcd, agent;

    job_begin(&j, NULL);
    job_agent(&j, "2");
    job_agent(&j, "2");
    job_up(&j, 2);
    etcd = etcd_pid(&j, 0);
    agent = agent_of(j.agents[0].pid);
    er_tap_require(agent > 0 && kill(agent, SIGKILL) == 0);
    expect_exit(&j.agents[0], 70);
    er_tap_check(etcd > 0 && kill(etcd, 0) == 0);
    job_agent(&j, "2");
    er_tap_check(er_test_wait_out(&j.agents[2], "up", LONG_MS));
    er_tap_check(etcd_pid(&j, 0) == etcd);
    job_go(&j);
    expect_exit(&j.agents[1], 0);
    expect_exit(&j.agents[2], 0);
    expect_clean(&j, 1);
    job_end(&j);
}

static void a_start_after_guard_and_agent_were_killed_cleans_up(void)
{
    struct job j;
    pid_t agent, keeper;

    job_begin(&j, NULL);
    job_agent(&j, "1:2");
    job_up(&j, 1);
    agent = agent_of(j.agents[0].pid);
    keeper = keeper_pid(&j, 0);
    er_tap_require(agent > 0 && keeper > 0);
    kill(j.agents[0].pid, SIGKILL);
    kill(agent, SIGKILL);
    kill(keeper, SIGKILL); /* a whole host that was reset leaves as little */
    er_tap_check(er_test_wait_exit(&j.agents[0], LONG_MS));
    unlink(case_path(&j.c, "up.0"));
    job_agent(&j, "1:2");
    job_up(&j, 1);
    er_tap_check(keeper_pid(&j, 0) > 0 && keeper_pid(&j, 0) != keeper);
    job_go(&j);
    expect_exit(&j.agents[1], 0);
    expect_clean(&j, 1);
    job_end(&j);
}

static void named_data_stay(void)
{
    char set[ER_TEST_PATH_MAX + 64];
    struct job j;
    char path[ER_TEST_PATH_MAX + 100];

    job_begin(&j, NULL);
    snprintf(set, sizeof(set), "rendezvous.managed.data_dir=%s/data", j.c.dir);
    job_agent_with(&j, "1:2", NULL, ARGS("--set", set));
    job_up(&j, 1);
    job_go(&j);
    expect_exit(&j.agents[0], 0);
    snprintf(path, sizeof(path), "%s/data/%s-0/member", j.c.dir, j.c.name);
    er_tap_check(access(path, F_OK) == 0);
    expect_clean(&j, 1);
    job_end(&j);
}

/* ---- three members ---- */

static void three_members_do_without_one(void)
{
    char endpoints[128], peers[64];
    struct job j;

    snprintf(peers, sizeof(peers), "rendezvous.managed.peer_port=%d", free_port());
    snprintf(endpoints, sizeof(endpoints), "127.0.0.1:%d,127.0.0.2:%d,127.0.0.3:%d", free_port(),
             free_port(), free_port());
    job_begin(&j, endpoints);
    job_secret(&j, "secret", "0123456789abcdef0123456789abcdef\n");
    for (int i = 0; i < 3; i++)
        job_agent_with(&j, "3", NULL, ARGS("--set", peers));
    job_up(&j, 3);
    er_tap_check(keeper_pid(&j, 0) > 0 && keeper_pid(&j, 1) > 0 && keeper_pid(&j, 2) > 0);
    er_tap_check(er_test_stop(etcd_pid(&j, 1))); /* hangs, as a lost host does */
    job_go(&j);
    for (int i = 0; i < 3; i++) {
        expect_exit(&j.agents[i], 0);
        er_tap_check(strstr(er_test_err(&j.agents[i]), "generation 2") == NULL);
    }
    expect_clean(&j, 3);
    job_end(&j);
}

/* ---- strangers ---- */

static void who_has_no_secret_gets_nothing(void)
{
    char url[200];
    struct er_test_proc p;
    struct job j;

    job_begin(&j, NULL);
    job_secret(&j, "secret", "0123456789abcdef0123456789abcdef\n");
    job_agent(&j, "1:2");
    job_up(&j, 1);
    for (int tls = 0; tls < 2; tls++) {
        snprintf(url, sizeof(url), "%s://%s", tls ? "https" : "http", j.endpoint);
        er_tap_check(
            er_test_run(&p,
                        ARGS("etcdctl", "--endpoints", url, "--insecure-skip-tls-verify",
                             "--command-timeout=2s", "--dial-timeout=2s", "get", "", "--prefix"),
                        (const char *const[]){"ETCDCTL_API=3", NULL}, LONG_MS) != 0);
        er_tap_check(er_test_out(&p)[0] == '\0');
        er_test_done(&p);
    }
    /* Another secret is a stranger, too, and is told what may be wrong. */
    job_secret(&j, "other", "fedcba9876543210fedcba9876543210\n");
    job_agent(&j, "1:2");
    expect_exit(&j.agents[1], 77);
    if (!er_tap_check(strstr(er_test_err(&j.agents[1]), "secret_file") ||
                      strstr(er_test_out(&j.agents[1]), "secret_file")))
        case_note(er_test_err(&j.agents[1]));
    job_go(&j);
    expect_exit(&j.agents[0], 0);
    job_end(&j);
}

/* ---- what does not work is said ---- */

static void expect_says(struct er_test_proc *p, const char *text)
{
    if (er_tap_check(strstr(er_test_err(p), text) || strstr(er_test_out(p), text)))
        return;
    case_note(er_test_out(p));
    case_note(er_test_err(p));
}

static void a_host_without_etcd_is_told_what_to_install(void)
{
    struct job j;

    job_begin(&j, NULL);
    job_agent_with(&j, "2", "PATH=/nowhere", NULL);
    expect_exit(&j.agents[0], 78);
    expect_says(&j.agents[0], "etcd-server");
    job_end(&j);
}

static void a_port_in_use_is_told(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = free_port();
    char endpoint[64], says[64];
    struct job j;

    at.sin_port = htons((uint16_t)port);
    er_tap_require(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
    er_tap_require(listen(fd, 1) == 0);
    snprintf(endpoint, sizeof(endpoint), "127.0.0.1:%d", port);
    snprintf(says, sizeof(says), "port %d of 127.0.0.1 is in use", port);
    job_begin(&j, endpoint);
    job_agent(&j, "2");
    expect_exit(&j.agents[0], 69);
    expect_says(&j.agents[0], says);
    expect_clean(&j, 1);
    close(fd);
    job_end(&j);
}

static void an_etcd_that_does_not_start_shows_its_last_words(void)
{
    char set[ER_TEST_PATH_MAX + 64], script[ER_TEST_PATH_MAX + 16];
    struct job j;

    job_begin(&j, NULL);
    snprintf(script, sizeof(script), "%s", case_path(&j.c, "etcd"));
    er_test_write_file(script, "#!/bin/sh\necho '{\"level\":\"fatal\",\"msg\":\"no luck\","
                               "\"error\":\"today\"}' >&2\nexit 5\n");
    er_tap_require(chmod(script, 0700) == 0);
    snprintf(set, sizeof(set), "rendezvous.managed.etcd=%s", script);
    job_agent_with(&j, "2", NULL, ARGS("--set", set));
    expect_exit(&j.agents[0], 69);
    expect_says(&j.agents[0], "exit code 5");
    expect_says(&j.agents[0], "no luck: today");
    expect_clean(&j, 1);
    job_end(&j);
}

/* ---- two jobs ---- */

static void two_jobs_on_one_host_have_an_etcd_each(void)
{
    struct job a, b;

    job_begin(&a, NULL);
    job_begin(&b, NULL);
    strcat(b.c.name, "-b");
    job_agent(&a, "1:2");
    job_agent(&b, "1:2");
    job_up(&a, 1);
    job_up(&b, 1);
    er_tap_check(etcd_pid(&a, 0) > 0 && etcd_pid(&a, 0) != etcd_pid(&b, 0));
    job_go(&a);
    expect_exit(&a.agents[0], 0);
    er_tap_check(kill(etcd_pid(&b, 0), 0) == 0);
    job_go(&b);
    expect_exit(&b.agents[0], 0);
    job_end(&a);
    job_end(&b);
}

/* ---- the keeper alone ---- */

static void a_keeper_that_nobody_needs_ends_by_itself(void)
{
    char home[256], data[ER_TEST_PATH_MAX + 32], out[4][2 * ER_TEST_PATH_MAX];
    struct er_test_proc p;
    struct job j;

    job_begin(&j, NULL);
    snprintf(data, sizeof(data), "%s/state/data", j.c.dir);
    home_path(&j, 0, NULL, home);
    snprintf(out[0], sizeof(out[0]), "--name=%s", j.c.name);
    snprintf(out[1], sizeof(out[1]), "--endpoints=%s", j.endpoint);
    snprintf(out[2], sizeof(out[2]), "--home=%s", home);
    snprintf(out[3], sizeof(out[3]), "--data=%s", data);
    er_test_start(&p,
                  ARGS(er_test_bin("elastic-managed-etcd"), "keep", out[0], out[1], out[2], out[3],
                       "--etcd=/usr/bin/etcd", "--listen=127.0.0.1", "--peer-port=2380",
                       "--linger-ms=300"),
                  NULL);
    expect_exit(&p, 0);
    expect_clean(&j, 1);
    er_tap_check(access(data, F_OK) != 0);
    er_test_done(&p);
    job_end(&j);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"two_agents_share_one_etcd_and_leave_nothing", two_agents_share_one_etcd_and_leave_nothing,
         120},
        {"three_agents_with_a_secret_go_on_when_etcd_is_killed",
         three_agents_with_a_secret_go_on_when_etcd_is_killed, 120},
        {"a_signal_to_all_leaves_the_agents_their_store",
         a_signal_to_all_leaves_the_agents_their_store, 120},
        {"a_killed_keeper_is_replaced_and_the_job_goes_on",
         a_killed_keeper_is_replaced_and_the_job_goes_on, 120},
        {"etcd_outlives_its_agent_and_is_found_again", etcd_outlives_its_agent_and_is_found_again,
         120},
        {"a_start_after_guard_and_agent_were_killed_cleans_up",
         a_start_after_guard_and_agent_were_killed_cleans_up, 120},
        {"named_data_stay", named_data_stay, 120},
        {"three_members_do_without_one", three_members_do_without_one, 120},
        {"who_has_no_secret_gets_nothing", who_has_no_secret_gets_nothing, 120},
        {"a_host_without_etcd_is_told_what_to_install", a_host_without_etcd_is_told_what_to_install,
         120},
        {"a_port_in_use_is_told", a_port_in_use_is_told, 120},
        {"an_etcd_that_does_not_start_shows_its_last_words",
         an_etcd_that_does_not_start_shows_its_last_words, 120},
        {"two_jobs_on_one_host_have_an_etcd_each", two_jobs_on_one_host_have_an_etcd_each, 120},
        {"a_keeper_that_nobody_needs_ends_by_itself", a_keeper_that_nobody_needs_ends_by_itself,
         120},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
