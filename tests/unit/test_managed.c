/* Managed etcd: the decisions, the arguments, and what the keeper makes of them. */
#include <criterion/criterion.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/keeper_argv.h"
#include "agent/keeper_clients.h"
#include "agent/keeper_ports.h"
#include "agent/keeper_tls.h"
#include "agent/managed_plan.h"
#include "agent/managed_spawn.h"
#include "base/cleanup.h"
#include "tests/lib/tempdir.h"

#define LIST(...) ((const char *const[]){__VA_ARGS__})

/* ---- which hosts ---- */

Test(managed, one_or_three_hosts_make_a_plan)
{
    struct er_managed_plan plan;
    char text[ER_MANAGED_TEXT_MAX];

    cr_assert_eq(er_managed_plan_make(&plan, LIST("node1"), 1, 2380, NULL), 0);
    er_managed_plan_endpoints(&plan, text);
    cr_assert_str_eq(text, "node1:2379");
    cr_assert_eq(
        er_managed_plan_make(&plan, LIST("node1", "10.0.0.2:4000", "[fd00::1]"), 3, 2380, NULL), 0);
    er_managed_plan_endpoints(&plan, text);
    cr_assert_str_eq(text, "node1:2379,10.0.0.2:4000,[fd00::1]:2379");
    cr_assert_eq(plan.members[2].peer_port, 2380);
}

Test(managed, members_of_one_host_have_ports_of_their_own)
{
    struct er_managed_plan plan;

    cr_assert_eq(er_managed_plan_make(&plan, LIST("::1:1", "b", "c"), 3, 2380, NULL), ER_E_CONFIG);
    cr_assert_eq(er_managed_plan_make(&plan, LIST("a:4001", "a:4002", "A:4003"), 3, 2380, NULL), 0);
    cr_assert_eq(plan.members[0].peer_port, 2380);
    cr_assert_eq(plan.members[1].peer_port, 2381);
    cr_assert_eq(plan.members[2].peer_port, 2382);
}

Test(managed, what_makes_no_plan_is_refused_with_the_reason)
{
    static const struct {
        const char *endpoints[4];
        size_t n;
        uint16_t peer_port;
        const char *says;
    } bad[] = {
        {{NULL}, 0, 2380, "the one or three hosts"},
        {{"a", "b"}, 2, 2380, "two members are worse than one"},
        {{"a", "b", "c", "d"}, 4, 2380, "4 members"},
        {{"https://a"}, 1, 2380, "secret_file"},
        {{"unix:/tmp/s"}, 1, 2380, "a host or HOST:PORT"},
        {{"srv:example.org"}, 1, 2380, "a host or HOST:PORT"},
        {{"0.0.0.0"}, 1, 2380, "name the host"},
        {{"[::]:2379"}, 1, 2380, "name the host"},
        {{"a:99999"}, 1, 2380, "port"},
        {{"a", "b", "a"}, 3, 2380, "given twice"},
        {{"a:2380", "b", "c"}, 3, 2380, "another peer_port"},
    };

    for (size_t i = 0; i < ER_ARRAY_N(bad); i++) {
        struct er_error err = ER_ERROR_INIT;
        struct er_managed_plan plan;

        cr_assert_eq(
            er_managed_plan_make(&plan, bad[i].endpoints, bad[i].n, bad[i].peer_port, &err),
            ER_E_CONFIG, "%zu", i);
        cr_assert(strstr(err.text, bad[i].says), "%s", err.text);
    }
}

/* ---- this host? ---- */

static const char OWN[][ER_MANAGED_ADDRESS_MAX] = {"127.0.0.1", "::1", "10.0.0.5", "fd00::5"};

static bool here(const char *endpoint, const char *resolved, struct er_managed_listen *l)
{
    const struct er_managed_host host = {.name = "node5.example.org", .addresses = OWN, .n = 4};
    char addresses[1][ER_MANAGED_ADDRESS_MAX] = {""};
    struct er_managed_plan plan;

    cr_assert_eq(er_managed_plan_make(&plan, LIST(endpoint), 1, 2380, NULL), 0, "%s", endpoint);
    if (resolved)
        strcpy(addresses[0], resolved);
    return er_managed_is_here(&plan.members[0], &host, addresses, resolved != NULL, l);
}

Test(managed, own_addresses_and_names_are_here)
{
    struct er_managed_listen l;

    cr_assert(here("10.0.0.5", "10.0.0.5", &l));
    cr_assert(l.n == 1 && !l.all);
    cr_assert_str_eq(l.addresses[0], "10.0.0.5");
    cr_assert(here("[fd00::5]:1", "fd00::5", &l));
    cr_assert_str_eq(l.addresses[0], "fd00::5");
    cr_assert(here("localhost", "127.0.0.1", &l));
    cr_assert_str_eq(l.addresses[0], "127.0.0.1");
    cr_assert(here("127.0.0.2:5", "127.0.0.2", &l));
    cr_assert(here("node5", "10.0.0.5", &l));
    cr_assert(!l.all);
    cr_assert(here("alias.example.org", "10.0.0.5", &l));
}

Test(managed, others_are_not_here)
{
    struct er_managed_listen l;

    cr_assert(!here("10.0.0.6", "10.0.0.6", &l));
    cr_assert(!here("node6", "10.0.0.6", &l));
    cr_assert(!here("node6", NULL, &l));
    cr_assert(!here("node5.other.org", "10.0.0.6", &l));
    cr_assert(!here("node", NULL, &l));
}

/* Debian has "127.0.1.1 node5" in /etc/hosts: nobody else would reach it there. */
Test(managed, an_own_name_that_leads_to_loopback_listens_everywhere)
{
    struct er_managed_listen l;

    cr_assert(here("node5", "127.0.1.1", &l));
    cr_assert(l.all);
    cr_assert(here("NODE5.example.org.", NULL, &l));
    cr_assert(l.all);
}

/* ---- the keeper's arguments ---- */

static struct er_keeper_opts some_opts(void)
{
    return (struct er_keeper_opts){.name = "job-1",
                                   .endpoints = "n1:2379,n2:2379,[fd00::3]:2379",
                                   .index = 2,
                                   .peer_port = 2380,
                                   .listen = "fd00::3,10.0.0.3",
                                   .home = "/run/x",
                                   .data = "/var/y",
                                   .etcd = "/usr/bin/etcd",
                                   .secret = "/s",
                                   .linger_ms = 60000,
                                   .keep_data = 1};
}

Test(managed, the_keeper_reads_what_the_agent_writes)
{
    struct er_keeper_opts a = some_opts(), b;
    char *args[ER_KEEPER_ARGS_MAX];
    int n = er_keeper_opts_format(&a, args, NULL);

    cr_assert_gt(n, 5);
    cr_assert_eq(er_keeper_opts_parse(n, args, &b, NULL), 0);
    cr_assert_eq(memcmp(&a, &b, sizeof(a)), 0);
    for (int i = 0; i < n; i++)
        free(args[i]);
}

Test(managed, the_keeper_refuses_what_it_does_not_know)
{
    static const char *const bad[] = {"--what=1",  "name=x",     "--name",
                                      "--index=x", "--index=-1", "--nam=x"};

    for (size_t i = 0; i < ER_ARRAY_N(bad); i++) {
        struct er_keeper_opts o;
        char *arg = strdup(bad[i]);

        cr_assert_eq(er_keeper_opts_parse(1, &arg, &o, NULL), ER_E_USAGE, "%s", bad[i]);
        free(arg);
    }
}

static bool has(const struct er_keeper_argv *a, const char *arg)
{
    for (size_t i = 0; i < a->n; i++) {
        if (strcmp(a->argv[i], arg) == 0)
            return true;
    }
    return false;
}

Test(managed, etcd_gets_its_peers_and_limits)
{
    static struct er_keeper_argv a;
    struct er_keeper_opts o = some_opts();
    struct er_managed_listen listen;
    struct er_managed_plan plan;

    cr_assert_eq(er_keeper_opts_plan(&o, &plan, &listen, NULL), 0);
    cr_assert_eq(er_keeper_argv_make(&a, &o, &plan, &listen, NULL), 0);
    cr_assert_str_eq(a.argv[0], "/usr/bin/etcd");
    cr_assert_null(a.argv[a.n]);
    cr_assert(has(&a, "--listen-client-urls=https://[fd00::3]:2379,https://10.0.0.3:2379"));
    cr_assert(has(&a, "--advertise-client-urls=https://[fd00::3]:2379"));
    cr_assert(has(&a, "--initial-cluster=m0=https://n1:2380,m1=https://n2:2380,"
                      "m2=https://[fd00::3]:2380"));
    cr_assert(has(&a, "--client-cert-auth"));
    cr_assert(has(&a, "--peer-client-cert-auth"));
    cr_assert(has(&a, "--backend-batch-limit=100"));
    cr_assert(has(&a, "--auto-compaction-mode=revision"));
    cr_assert(has(&a, "--quota-backend-bytes=2147483648"));
}

Test(managed, a_single_member_without_secret_has_no_peers_and_no_tls)
{
    static struct er_keeper_argv a;
    struct er_keeper_opts o = {
        .name = "j", .endpoints = "n1:4000", .listen = "all", .etcd = "etcd", .data = "d"};
    struct er_managed_listen listen;
    struct er_managed_plan plan;

    cr_assert_eq(er_keeper_opts_plan(&o, &plan, &listen, NULL), 0);
    cr_assert_eq(er_keeper_argv_make(&a, &o, &plan, &listen, NULL), 0);
    cr_assert(has(&a, "--listen-client-urls=http://[::]:4000"));
    cr_assert(has(&a, "--listen-peer-urls=unix://peer:0"));
    cr_assert(!has(&a, "--client-cert-auth"));
}

Test(managed, a_line_of_the_kernels_table_is_a_client_or_not)
{
    static const struct {
        const char *line;
        bool is;
    } lines[] = {
        {"   0: 0100007F:094B 0100007F:C350 01 00000000:00000000 00:00000000 0 0 0 1", true},
        {"   0: 0100007F:094B 00000000:0000 0A 00000000:00000000 00:00000000 0 0 0 1", false},
        {"   1: 0100007F:C350 0100007F:094B 01 00000000:00000000 00:00000000 0 0 0 1", false},
        {"   2: 00000000000000000000000001000000:094B 00000000000000000000000001000000:C350 01 0",
         true},
        {"  sl  local_address rem_address   st tx_queue rx_queue", false},
        {"", false},
    };

    for (size_t i = 0; i < ER_ARRAY_N(lines); i++)
        cr_assert_eq(er_keeper_is_client(lines[i].line, 2379), lines[i].is, "%zu", i);
}

/* ---- its folder and its ports ---- */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), end_n = strlen(end);

    return n >= end_n && strcmp(text + n - end_n, end) == 0;
}

/* A folder whose name is cut short is that of another member, or of another job. */
Test(managed, the_longest_name_of_the_highest_uid_has_a_folder_of_its_own)
{
    char name[ER_MANAGED_NAME_MAX] = "", home[ER_KEEPER_HOME_MAX], data[ER_KEEPER_PATH_MAX];

    memset(name, 'n', sizeof(name) - 1);
    if (geteuid() == 0 && seteuid((uid_t)-2) < 0)
        cr_skip("needs the right to be another user");
    unsetenv("HOME");
    unsetenv("XDG_STATE_HOME");
    er_keeper_home(name, 2, home);
    er_managed_data_dir(NULL, name, 2, home, data);
    cr_assert(ends_with(home, "n-2"), "%s", home);
    cr_assert(ends_with(data, "n-2/data"), "%s", data);
}

Test(managed, a_port_that_cannot_be_tried_is_told_with_the_reason)
{
    const struct er_managed_listen listen = {.addresses = {"127.0.0.1"}, .n = 1};
    struct er_error err = ER_ERROR_INIT;
    struct er_managed_plan plan;
    struct rlimit limit, none;
    int rc;

    cr_assert_eq(er_managed_plan_make(&plan, LIST("localhost"), 1, 2380, NULL), 0);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = limit.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    rc = er_keeper_ports_free(&plan, 0, &listen, 0, &err);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_assert_eq(rc, -EMFILE, "%s", err.text);
}

/* ---- certificates ---- */

static void secret(const char *dir, const char *text, mode_t mode, char path[600])
{
    snprintf(path, 600, "%s/secret", dir);
    er_test_write_file(path, text);
    cr_assert_eq(chmod(path, mode), 0);
}

Test(managed, a_secret_that_is_none_is_refused)
{
    static const struct {
        const char *text;
        mode_t mode;
        const char *says;
    } bad[] = {
        {"too short      \n\n\n", 0600, "shorter than 16 bytes"},
        {"0123456789abcdef0123456789abcdef", 0640, "chmod 600"},
        {"0123456789abcdef0123456789abcdef", 0604, "chmod 600"},
    };
    char dir[ER_TEST_PATH_MAX], path[600];
    struct er_managed_plan plan;

    er_test_tempdir(dir);
    cr_assert_eq(er_managed_plan_make(&plan, LIST("a"), 1, 2380, NULL), 0);
    for (size_t i = 0; i < ER_ARRAY_N(bad); i++) {
        struct er_error err = ER_ERROR_INIT;

        secret(dir, bad[i].text, bad[i].mode, path);
        cr_assert_eq(er_keeper_tls_write(path, &plan, dir, &err), ER_E_CONFIG);
        cr_assert(strstr(err.text, bad[i].says) && strstr(err.text, path), "%s", err.text);
    }
    cr_assert_eq(er_keeper_tls_write("/nowhere/secret", &plan, dir, NULL), ER_E_CONFIG);
    cr_assert_eq(er_keeper_tls_write("/dev/null", &plan, dir, NULL), ER_E_CONFIG);
    er_test_rmtree(dir);
}

Test(managed, certificates_are_private_files)
{
    static const char *const files[] = {"ca.pem", "cert.pem", "key.pem"};
    char dir[ER_TEST_PATH_MAX], path[600];
    struct er_managed_plan plan;
    struct stat st;

    er_test_tempdir(dir);
    secret(dir, "0123456789abcdef0123456789abcdef\n", 0600, path);
    cr_assert_eq(er_managed_plan_make(&plan, LIST("a", "10.0.0.1", "[::1]"), 3, 2380, NULL), 0);
    for (int round = 0; round < 2; round++)
        cr_assert_eq(er_keeper_tls_write(path, &plan, dir, NULL), 0);
    for (size_t i = 0; i < ER_ARRAY_N(files); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, files[i]);
        cr_assert_eq(stat(path, &st), 0);
        cr_assert_eq(st.st_mode & 07777, 0600);
    }
    er_test_rmtree(dir);
}
