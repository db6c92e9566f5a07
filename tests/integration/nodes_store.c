/* Reaching the store: certificates, password, role; and every way in which it can go wrong ends in
 * one clear message and the documented exit code. */
#include "tests/contract/etcd_pki.h"
#include "tests/integration/nodes_case.h"

#define SOON "--set=rendezvous.join_timeout=4s"

/* One agent whose options are `args` ends with `code`, and says all of `says`. */
static void expect(struct nodes_case *n, const char *const args[], int code,
                   const char *const says[])
{
    int got;

    node_start(n, 0, args);
    got = node_finish(n, 0);
    if (!er_tap_check(got == code))
        er_tap_note("exit code %d", got);
    for (; *says; says++) {
        if (!er_tap_check(strstr(er_test_err(&n->p[0]), *says) != NULL))
            er_tap_note("'%s' is not in:", *says);
    }
    case_note(er_test_err(&n->p[0]));
    er_tap_check(strcmp(er_test_out(&n->p[0]), "") == 0);
    node_forget(n, 0);
}

static void nobody_listens(void)
{
    struct nodes_case n;
    int port = etcd_free_port("127.0.0.1");

    nodes_begin(&n, "1");
    snprintf(n.etcd.endpoints, sizeof(n.etcd.endpoints), "127.0.0.1:%d", port);
    expect(&n, ARGS(SOON, "echo", "started"), 69,
           ARGS("waiting for the store", n.etcd.endpoints, "giving up in",
                "not reached within rendezvous.join_timeout (4s)"));
    nodes_end(&n);
}

/* A store that comes up while agents wait for it. */
static void store_that_comes_late_is_waited_for(void)
{
    struct nodes_case n;

    nodes_begin(&n, "1");
    etcd_member_kill(&n.etcd, 0);
    node_start(&n, 0, ARGS(SH(NODES_WORKER)));
    er_tap_check(er_test_wait_err(&n.p[0], "waiting for the store", NODES_WAIT));
    etcd_member_start(&n.etcd, 0);
    er_tap_check(nodes_next(&n, 0, 1, 1));
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

/* The store answers, so that what follows is not its being late. */
static void wait_until_up(struct nodes_case *n, const char *const flags[])
{
    const char *argv[16] = {"put", "/up", "1"};
    struct er_test_proc p;
    size_t k = 3;
    int code;

    while (*flags && k < 15)
        argv[k++] = *flags++;
    do {
        code = etcd_ctl(&n->etcd, 0, &p, argv);
        er_test_done(&p);
    } while (code != 0);
}

static void begin_tls(struct nodes_case *n, struct pki *k)
{
    pki_new(k);
    nodes_begin_with(n, "1", "unixs",
                     (const char *[]){"--cert-file", k->server_cert, "--key-file", k->server_key,
                                      "--trusted-ca-file", k->ca, "--client-cert-auth", NULL});
}

static void certificates_are_shown_and_checked(void)
{
    struct nodes_case n;
    struct pki k;
    char ca[700], other[700], cert[700], old[700], key[700], old_key[700];

    begin_tls(&n, &k);
    snprintf(ca, sizeof(ca), "--set=rendezvous.tls.ca=%s", k.ca);
    snprintf(other, sizeof(other), "--set=rendezvous.tls.ca=%s", k.other_ca);
    snprintf(cert, sizeof(cert), "--set=rendezvous.tls.cert=%s", k.client_cert);
    snprintf(old, sizeof(old), "--set=rendezvous.tls.cert=%s", k.old_cert);
    snprintf(key, sizeof(key), "--set=rendezvous.tls.key=%s", k.client_key);
    node_start(&n, 0,
               ARGS(ca, cert, key, "--set=rendezvous.tls.server_name=etcd.test", SH(NODES_WORKER)));
    er_tap_check(nodes_next(&n, 0, 1, 1));
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    er_tap_check(
        strstr(er_test_err(&n.p[0]), "client.pem' (rendezvous.tls.cert) expires in 1d23h"));
    node_forget(&n, 0);
    expect(&n,
           ARGS("--set=rendezvous.join_timeout=20s", other, cert, key,
                "--set=rendezvous.tls.server_name=etcd.test", "echo", "started"),
           77, ARGS("the store refuses this agent", "certificate", n.etcd.endpoints));
    expect(&n,
           ARGS("--set=rendezvous.join_timeout=20s", ca, cert, key,
                "--set=rendezvous.tls.server_name=wrong.test", "echo", "started"),
           77, ARGS("the store refuses this agent", "wrong.test", n.etcd.endpoints));
    snprintf(old_key, sizeof(old_key), "--set=rendezvous.tls.key=%s/old.key", k.dir);
    expect(&n,
           ARGS("--set=rendezvous.join_timeout=20s", ca, old, old_key,
                "--set=rendezvous.tls.server_name=etcd.test", "echo", "started"),
           77, ARGS("old.pem' has expired, at 20"));
    expect(&n, ARGS(SOON, ca, "--set=rendezvous.tls.cert=/nowhere.pem", key, "echo", "started"), 78,
           ARGS("/nowhere.pem"));
    expect(&n, ARGS(SOON, ca, cert, "echo", "started"), 64,
           ARGS("rendezvous.tls.cert: needs rendezvous.tls.key too"));
    nodes_end(&n);
    er_test_rmtree(k.dir);
}

static void ctl(struct nodes_case *n, const char *const argv[])
{
    struct er_test_proc p;

    if (!er_tap_check(etcd_ctl(&n->etcd, 0, &p, argv) == 0))
        case_note(er_test_err(&p));
    er_test_done(&p);
}

#define CTL(...) ctl(&n, ARGS(__VA_ARGS__))

/* A role for the job's prefix is enough for everything a job does. */
static void account_needs_the_jobs_prefix_and_no_more(void)
{
    struct nodes_case n;
    char prefix[128], good[ER_TEST_PATH_MAX + 64], bad[ER_TEST_PATH_MAX + 64];

    nodes_begin_with(&n, "2", "unix", (const char *[]){"--bcrypt-cost", "4", NULL});
    wait_until_up(&n, ARGS("--write-out=json"));
    snprintf(prefix, sizeof(prefix), "/elastic-run/%s/", n.c.name);
    er_test_write_secret(case_path(&n.c, "good"), "secret\n");
    er_test_write_secret(case_path(&n.c, "bad"), "guess\n");
    snprintf(good, sizeof(good), "--set=rendezvous.auth.password_file=%s/good", n.c.dir);
    snprintf(bad, sizeof(bad), "--set=rendezvous.auth.password_file=%s/bad", n.c.dir);
    CTL("user", "add", "root:rootpw");
    CTL("user", "grant-role", "root", "root");
    CTL("role", "add", "job");
    CTL("role", "grant-permission", "--prefix=true", "job", "readwrite", prefix);
    CTL("role", "add", "reader");
    CTL("role", "grant-permission", "--prefix=true", "reader", "read", prefix);
    CTL("user", "add", "worker:secret");
    CTL("user", "grant-role", "worker", "job");
    CTL("user", "add", "watcher:secret");
    CTL("user", "grant-role", "watcher", "reader");
    CTL("user", "add", "nobody:secret");
    CTL("auth", "enable");
    expect(&n,
           ARGS("--set=rendezvous.join_timeout=20s", "--set=rendezvous.auth.user=worker", bad,
                "echo", "started"),
           77, ARGS("the store refuses this agent", "authentication failed", n.etcd.endpoints));
    expect(&n,
           ARGS("--set=rendezvous.join_timeout=20s", "--set=rendezvous.auth.user=nobody", good,
                "echo", "started"),
           77, ARGS("the store refuses this agent", "permission denied", n.etcd.endpoints));
    expect(&n,
           ARGS("--set=rendezvous.join_timeout=20s", "--set=rendezvous.auth.user=watcher", good,
                "echo", "started"),
           77, ARGS("may not write below", prefix));
    for (int i = 0; i < 2; i++)
        node_start(&n, i, ARGS("--set=rendezvous.auth.user=worker", good, SH(NODES_WORKER)));
    er_tap_check(nodes_next(&n, 0, 2, 2));
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

/* While the job runs. */
static void account_that_loses_its_role_is_told_so(void)
{
    struct nodes_case n;
    char prefix[128], password[ER_TEST_PATH_MAX + 64];

    nodes_begin_with(&n, "2", "unix", (const char *[]){"--bcrypt-cost", "4", NULL});
    wait_until_up(&n, ARGS("--write-out=json"));
    snprintf(prefix, sizeof(prefix), "/elastic-run/%s/", n.c.name);
    er_test_write_secret(case_path(&n.c, "password"), "secret");
    snprintf(password, sizeof(password), "--set=rendezvous.auth.password_file=%s/password",
             n.c.dir);
    CTL("user", "add", "root:rootpw");
    CTL("user", "grant-role", "root", "root");
    CTL("role", "add", "job");
    CTL("role", "grant-permission", "--prefix=true", "job", "readwrite", prefix);
    CTL("user", "add", "worker:secret");
    CTL("user", "grant-role", "worker", "job");
    CTL("auth", "enable");
    for (int i = 0; i < 2; i++)
        node_start(&n, i, ARGS("--set=rendezvous.auth.user=worker", password, SH(NODES_WORKER)));
    er_tap_require(nodes_next(&n, 0, 2, 2));
    CTL("--user=root:rootpw", "user", "revoke-role", "worker", "job");
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 77));
    for (int i = 0; i < 2; i++)
        er_tap_check(strstr(er_test_err(&n.p[i]), "may not write below"));
    case_note(er_test_err(&n.p[0]));
    nodes_end(&n);
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name, 0                                                                             \
    }
    static const struct er_tap_case cases[] = {
        CASE(nobody_listens),
        CASE(store_that_comes_late_is_waited_for),
        CASE(certificates_are_shown_and_checked),
        CASE(account_needs_the_jobs_prefix_and_no_more),
        CASE(account_that_loses_its_role_is_told_so),
    };
    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
