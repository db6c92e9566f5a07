/* Who may talk to etcd: TLS in both directions, password, permissions; and what the error says when
 * something is wrong. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "tests/contract/etcd_lib.h"
#include "tests/contract/etcd_pki.h"
#include "tests/lib/tap.h"

/* etcd that wants client certificates, on a socket and, when `listen` says so, on TCP. */
static void start_tls(struct etcd_cluster *e, const struct pki *k, const char *listen)
{
    const char *extra[] = {"--cert-file",       k->server_cert, "--key-file",         k->server_key,
                           "--trusted-ca-file", k->ca,          "--client-cert-auth", NULL};

    etcd_start_with(e, 1, "unixs", listen, extra);
}

/* ---- what is expected ---- */

static void expect_put(const struct er_etcd_opts *opts)
{
    struct er_store *s = etcd_open_with(opts);
    struct er_etcd_status status;

    if (!er_tap_check(etcd_put_surely(s, "/t/a", "1") == 0)) {
        er_store_etcd_status(s, &status);
        er_tap_note("%s", status.text);
    }
    s->ops->free(s);
}

#define EITHER 1 /* -ENOTCONN or -EACCES: TLS 1.3 tells late, versions of etcd differ */

/* The first write ends with `rc`, and the text names the endpoint and says `says`. */
static void expect_refusal(const struct er_etcd_opts *opts, int rc, const char *says)
{
    struct er_store *s = etcd_open_with(opts);
    struct er_etcd_status status;
    int have = etcd_put(s, "/t/a", "1", 0);

    er_store_etcd_status(s, &status);
    if (!er_tap_check(have == rc || (rc == EITHER && (have == -ENOTCONN || have == -EACCES))))
        er_tap_note("%d", have);
    er_tap_check(strstr(status.text, opts->endpoints) != NULL);
    if (!er_tap_check(strstr(status.text, says) != NULL) || !says[0])
        er_tap_note("%s", status.text);
    s->ops->free(s);
}

static void expect_no_open(const struct er_etcd_opts *opts, const char *says)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_store *s = NULL;

    er_tap_check(er_store_etcd_open(&s, opts, &err) == ER_E_CONFIG && !s);
    if (!er_tap_check(strstr(err.text, says) != NULL))
        er_tap_note("%s", err.text);
}

/* The server is up: what fails later is not its being late. */
static void wait_up(const struct er_etcd_opts *opts)
{
    expect_put(opts);
}

static struct er_etcd_opts tls_opts(const struct etcd_cluster *e, const struct pki *k)
{
    return (struct er_etcd_opts){.endpoints = e->endpoints,
                                 .prefix = "/t/",
                                 .ca = k->ca,
                                 .cert = k->client_cert,
                                 .key = k->client_key,
                                 .server_name = "etcd.test",
                                 .request_timeout_us = 3 * ER_US_PER_S};
}

/* ---- TLS ---- */

static void client_certificate_and_server_name(void)
{
    struct etcd_cluster e;
    struct er_etcd_opts o;
    struct pki k;

    pki_new(&k);
    start_tls(&e, &k, "");
    o = tls_opts(&e, &k);
    expect_put(&o);
    etcd_stop(&e);
    er_test_rmtree(k.dir);
}

static void over_both_ip_versions(void)
{
    static const char *const hosts[] = {"127.0.0.1", "::1"};

    for (size_t i = 0; i < ER_ARRAY_N(hosts); i++) {
        int port = etcd_free_port(hosts[i]);
        struct etcd_cluster e;
        struct er_etcd_opts o;
        struct pki k;
        char listen[128], endpoint[120];

        if (port < 0) {
            er_tap_note("no %s here", hosts[i]);
            continue;
        }
        snprintf(endpoint, sizeof(endpoint), i ? "https://[%s]:%d" : "https://%s:%d", hosts[i],
                 port);
        snprintf(listen, sizeof(listen), ",%s", endpoint);
        pki_new(&k);
        start_tls(&e, &k, listen);
        o = tls_opts(&e, &k);
        o.endpoints = endpoint;
        o.server_name = NULL; /* the address stands in the certificate */
        expect_put(&o);
        etcd_stop(&e);
        er_test_rmtree(k.dir);
    }
}

static void what_is_wrong_with_tls_is_said(void)
{
    struct etcd_cluster e;
    struct er_etcd_opts good, o;
    struct pki k;

    pki_new(&k);
    start_tls(&e, &k, "");
    good = tls_opts(&e, &k);
    wait_up(&good);
    o = good;
    o.ca = k.other_ca;
    expect_refusal(&o, -EACCES, "certificate verify failed");
    o = good;
    o.server_name = "else.test";
    expect_refusal(&o, -EACCES, "else.test");
    o = good;
    o.cert = o.key = NULL;
    expect_refusal(&o, EITHER, "client certificate");
    etcd_stop(&e);
    er_test_rmtree(k.dir);
}

/* An authority is replaced by another one, and the client's file with it: no new client is needed.
 */
static void a_certificate_that_was_replaced_is_taken_up(void)
{
    struct etcd_cluster e;
    struct er_etcd_opts o;
    struct er_store *s;
    struct pki k;
    char trusted[700], cert[700];

    pki_new(&k);
    shell(k.dir, "cp ca.pem trusted.pem; cp client.pem mine.pem; openssl x509 -req -in client.csr "
                 "-CA other.pem -CAkey other.key -CAcreateserial -out next.pem -days 2 "
                 "-extfile client.ext");
    snprintf(trusted, sizeof(trusted), "%s/trusted.pem", k.dir);
    snprintf(cert, sizeof(cert), "%s/mine.pem", k.dir);
    etcd_start_with(&e, 1, "unixs", "",
                    (const char *[]){"--cert-file", k.server_cert, "--key-file", k.server_key,
                                     "--trusted-ca-file", trusted, "--client-cert-auth", NULL});
    o = tls_opts(&e, &k);
    o.cert = cert;
    s = etcd_open_with(&o);
    er_tap_check(etcd_put_surely(s, "/t/a", "1") == 0);
    etcd_member_kill(&e, 0);
    shell(k.dir, "cp other.pem trusted.pem");
    etcd_member_start(&e, 0);
    er_tap_check(etcd_put(s, "/t/a", "2", 0) != 0);
    shell(k.dir, "cp next.pem next && mv next mine.pem");
    er_tap_check(etcd_put_surely(s, "/t/a", "3") == 0);
    s->ops->free(s);
    etcd_stop(&e);
    er_test_rmtree(k.dir);
}

static void plaintext_against_tls_and_tls_against_plaintext(void)
{
    struct etcd_cluster e, plain;
    struct er_etcd_opts good, o;
    struct pki k;
    char endpoint[ER_TEST_PATH_MAX + 16];

    pki_new(&k);
    start_tls(&e, &k, "");
    good = tls_opts(&e, &k);
    wait_up(&good);
    snprintf(endpoint, sizeof(endpoint), "unix:%s/etcd:0", e.dir);
    o = (struct er_etcd_opts){.endpoints = endpoint, .request_timeout_us = 2 * ER_US_PER_S};
    expect_refusal(&o, -ENOTCONN, "expect TLS");
    etcd_start(&plain, 1);
    o = (struct er_etcd_opts){.endpoints = plain.endpoints};
    wait_up(&o);
    snprintf(endpoint, sizeof(endpoint), "unixs:%s/etcd:0", plain.dir);
    o = good;
    o.endpoints = endpoint;
    expect_refusal(&o, -ENOTCONN, "speak TLS");
    etcd_stop(&plain);
    etcd_stop(&e);
    er_test_rmtree(k.dir);
}

static void files_are_checked_before_anything_is_sent(void)
{
    struct pki k;

    pki_new(&k);
    expect_no_open(&(struct er_etcd_opts){.endpoints = "a:1", .ca = "/nowhere/ca.pem"},
                   "/nowhere/ca.pem");
    expect_no_open(&(struct er_etcd_opts){.endpoints = "a:1", .ca = "/dev/null"}, "is empty");
    expect_no_open(&(struct er_etcd_opts){.endpoints = "a:1", .ca = k.client_key},
                   "no CERTIFICATE");
    expect_no_open(&(struct er_etcd_opts){.endpoints = "a:1", .cert = k.client_cert},
                   "go together");
    expect_no_open(&(struct er_etcd_opts){.endpoints = "a:1", .user = "u"}, "go together");
    expect_no_open(
        &(struct er_etcd_opts){
            .endpoints = "a:1", .cert = k.client_cert, .key = k.client_cert, .ca = k.ca},
        "every user of this host may read it");
    er_tap_require(chmod(k.client_cert, 0640) == 0);
    expect_no_open(
        &(struct er_etcd_opts){
            .endpoints = "a:1", .cert = k.client_cert, .key = k.client_cert, .ca = k.ca},
        "PRIVATE KEY");
    expect_no_open(&(struct er_etcd_opts){.endpoints = "http://a:1", .ca = k.ca}, "plaintext");
    expect_no_open(&(struct er_etcd_opts){.endpoints = "a:b"}, "a:b");
    expect_no_open(&(struct er_etcd_opts){.endpoints = ""}, "no etcd endpoint");
    er_test_rmtree(k.dir);
}

/* ---- passwords and permissions ---- */

static void ctl(struct etcd_cluster *e, const char *const argv[])
{
    struct er_test_proc p;

    if (!er_tap_check(etcd_ctl(e, 0, &p, argv) == 0))
        er_tap_note("%s%s", er_test_out(&p), er_test_err(&p));
    er_test_done(&p);
}

#define CTL(e, ...) ctl((e), (const char *[]){__VA_ARGS__, NULL})

/* Users root and worker (whose role is the prefix /t/ alone); passwords in files. */
static void start_auth(struct etcd_cluster *e, char password[600])
{
    struct er_etcd_opts o;

    etcd_start_with(e, 1, "unix", "", (const char *[]){"--bcrypt-cost", "4", NULL});
    o = (struct er_etcd_opts){.endpoints = e->endpoints};
    wait_up(&o);
    CTL(e, "user", "add", "root:rootpw");
    CTL(e, "user", "grant-role", "root", "root");
    CTL(e, "role", "add", "job");
    CTL(e, "role", "grant-permission", "--prefix=true", "job", "readwrite", "/t/");
    CTL(e, "user", "add", "worker:secret");
    CTL(e, "user", "grant-role", "worker", "job");
    CTL(e, "auth", "enable");
    snprintf(password, 600, "%s/password", e->dir);
    er_test_write_secret(password, "secret\n");
}

static bool told(void *user)
{
    return ((struct etcd_answer *)user)->done;
}

static bool watch_ended(void *user)
{
    return ((struct etcd_watching *)user)->ended != 0;
}

static bool watch_saw(void *user)
{
    const struct etcd_watching *w = user;

    return w->ended || w->n >= 1;
}

static void a_password_is_enough_and_only_for_the_prefix(void)
{
    struct etcd_cluster e;
    struct er_store *s;
    struct etcd_watching *w = calloc(2, sizeof(*w));
    struct etcd_answer a, lost;
    char password[600];

    er_tap_require(w != NULL);
    start_auth(&e, password);
    s = etcd_open_with(&(struct er_etcd_opts){
        .endpoints = e.endpoints, .prefix = "/t/", .user = "worker", .password_file = password});
    etcd_watch(s, "/t/", true, 0, &w[0]);
    etcd_watch(s, "/other/", true, 0, &w[1]);
    er_tap_check(etcd_grant(s, 9, 5 * ER_US_PER_S, &a) == 0);
    etcd_keep(s, 9, &lost);
    er_tap_check(etcd_put(s, "/t/a", "1", 9) == 0);
    er_tap_check(etcd_put(s, "/other/a", "1", 0) == -EACCES);
    er_tap_check(etcd_run(&s, 1, watch_saw, &w[0]) && w[0].n == 1);
    er_tap_check(etcd_run(&s, 1, watch_ended, &w[1]) && w[1].ended == -EACCES);
    er_tap_check(w[0].ended == 0 && !lost.done);
    s->ops->free(s);
    etcd_stop(&e);
    free(w);
}

/* A restarted member forgets its tokens. */
static void an_old_token_is_renewed_in_silence(void)
{
    struct etcd_cluster e;
    struct er_store *s;
    struct etcd_watching *w = calloc(1, sizeof(*w));
    char password[600];

    er_tap_require(w != NULL);
    start_auth(&e, password);
    s = etcd_open_with(&(struct er_etcd_opts){
        .endpoints = e.endpoints, .prefix = "/t/", .user = "worker", .password_file = password});
    er_tap_check(etcd_put(s, "/t/a", "1", 0) == 0);
    etcd_watch(s, "/t/b", false, 0, w);
    etcd_member_kill(&e, 0);
    etcd_member_start(&e, 0);
    er_tap_check(etcd_put_surely(s, "/t/b", "2") == 0);
    er_tap_check(etcd_run(&s, 1, watch_saw, w) && w->n == 1);
    s->ops->free(s);
    etcd_stop(&e);
    free(w);
}

static void what_is_wrong_with_the_login_is_said(void)
{
    struct etcd_cluster e;
    struct er_etcd_opts o;
    char password[600], wrong[600];

    start_auth(&e, password);
    snprintf(wrong, sizeof(wrong), "%s/wrong", e.dir);
    er_test_write_secret(wrong, "guess");
    o = (struct er_etcd_opts){
        .endpoints = e.endpoints, .prefix = "/t/", .user = "worker", .password_file = wrong};
    expect_refusal(&o, -EACCES, "invalid user ID or password");
    o.user = "nobody";
    expect_refusal(&o, -EACCES, "login");
    o.user = o.password_file = NULL;
    expect_refusal(&o, -EACCES, "user name is empty");
    o.user = "worker";
    o.password_file = password;
    o.prefix = "/elsewhere/";
    expect_refusal(&o, -EACCES, "permission denied");
    etcd_stop(&e);
}

static void a_login_where_none_is_needed_does_no_harm(void)
{
    struct etcd_cluster e;
    char password[600];

    etcd_start(&e, 1);
    snprintf(password, sizeof(password), "%s/password", e.dir);
    er_test_write_secret(password, "secret\n");
    expect_put(&(struct er_etcd_opts){
        .endpoints = e.endpoints, .prefix = "/t/", .user = "worker", .password_file = password});
    etcd_stop(&e);
}

static void revoked_permission_is_told(void)
{
    struct etcd_cluster e;
    struct er_store *s;
    struct etcd_answer a;
    char password[600];

    start_auth(&e, password);
    s = etcd_open_with(&(struct er_etcd_opts){
        .endpoints = e.endpoints, .prefix = "/t/", .user = "worker", .password_file = password});
    er_tap_check(etcd_put(s, "/t/a", "1", 0) == 0);
    CTL(&e, "--user", "root:rootpw", "user", "revoke-role", "worker", "job");
    er_tap_check(etcd_put(s, "/t/a", "2", 0) == -EACCES);
    er_tap_check(etcd_get(s, "/t/a", &a) == -EACCES);
    er_tap_check(!told(&(struct etcd_answer){.done = false}));
    s->ops->free(s);
    etcd_stop(&e);
}

/* What gRPC prints about a failed handshake goes where our log goes, at DEBUG. */
static void grpc_writes_nothing_to_stderr(void)
{
    struct etcd_cluster e;
    struct er_etcd_opts o;
    struct pki k;
    char path[ER_TEST_PATH_MAX + 8], *text;
    int fd, keep = dup(2);

    pki_new(&k);
    start_tls(&e, &k, "");
    o = tls_opts(&e, &k);
    wait_up(&o);
    o.ca = k.other_ca;
    snprintf(path, sizeof(path), "%s/stderr", k.dir);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    er_tap_require(fd >= 0 && keep >= 0 && dup2(fd, 2) == 2);
    expect_refusal(&o, -EACCES, "certificate verify failed");
    er_tap_require(dup2(keep, 2) == 2);
    close(fd);
    close(keep);
    text = er_test_read_file(path);
    if (!er_tap_check(text && !*text))
        er_tap_note("%s", text);
    free(text);
    etcd_stop(&e);
    er_test_rmtree(k.dir);
}

static void srv_records_that_are_not_there(void)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_store *s = NULL;
    int rc = er_store_etcd_open(&s, &(struct er_etcd_opts){.endpoints = "srv:name.invalid"}, &err);

    er_tap_check((rc == ER_E_CONFIG || rc == -ENOTCONN) && !s);
    er_tap_check(strstr(err.text, "_etcd-client._tcp.name.invalid") != NULL);
}

static void nobody_listens(void)
{
    expect_refusal(&(struct er_etcd_opts){.endpoints = "unix:/nowhere/etcd.sock",
                                          .request_timeout_us = ER_US_PER_S},
                   -ENOTCONN, "No such file");
    expect_refusal(
        &(struct er_etcd_opts){.endpoints = "name.invalid:2379", .request_timeout_us = ER_US_PER_S},
        -ENOTCONN, "name.invalid");
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"client_certificate_and_server_name", client_certificate_and_server_name, 0},
        {"over_both_ip_versions", over_both_ip_versions, 0},
        {"what_is_wrong_with_tls_is_said", what_is_wrong_with_tls_is_said, 0},
        {"a_certificate_that_was_replaced_is_taken_up", a_certificate_that_was_replaced_is_taken_up,
         0},
        {"plaintext_against_tls_and_tls_against_plaintext",
         plaintext_against_tls_and_tls_against_plaintext, 0},
        {"files_are_checked_before_anything_is_sent", files_are_checked_before_anything_is_sent, 0},
        {"a_password_is_enough_and_only_for_the_prefix",
         a_password_is_enough_and_only_for_the_prefix, 0},
        {"an_old_token_is_renewed_in_silence", an_old_token_is_renewed_in_silence, 0},
        {"what_is_wrong_with_the_login_is_said", what_is_wrong_with_the_login_is_said, 0},
        {"a_login_where_none_is_needed_does_no_harm", a_login_where_none_is_needed_does_no_harm, 0},
        {"revoked_permission_is_told", revoked_permission_is_told, 0},
        {"grpc_writes_nothing_to_stderr", grpc_writes_nothing_to_stderr, 0},
        {"srv_records_that_are_not_there", srv_records_that_are_not_there, 0},
        {"nobody_listens", nobody_listens, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
