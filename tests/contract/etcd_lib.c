#include "tests/contract/etcd_lib.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "tests/lib/tap.h"

/* ---- servers ---- */

/* Another server than the one in PATH: ER_ETCD_BIN. */
static const char *server(void)
{
    const char *bin = getenv("ER_ETCD_BIN");

    return bin && *bin ? bin : "etcd";
}

void etcd_need(void)
{
    struct er_test_proc p;
    int rc = er_test_run(&p, (const char *[]){server(), "--version", NULL}, NULL, 10000);

    er_test_done(&p);
    if (rc != 0)
        er_tap_skip("no etcd in PATH (Debian: etcd-server)");
}

static void member_dir(const struct etcd_cluster *e, int i, char ret[ER_TEST_PATH_MAX])
{
    er_tap_require(snprintf(ret, ER_TEST_PATH_MAX, "%s/m%d", e->dir, i) < ER_TEST_PATH_MAX);
}

/* Relative names are socket files in the cluster's folder; they must look like host:number. */
static void peer_url(int i, char ret[128])
{
    snprintf(ret, 128, "unix://peer:%d", i);
}

/* A killed etcd leaves its sockets behind, and doesn't start beside them. */
static void forget_sockets(const struct etcd_cluster *e, int i)
{
    static const char *const names[] = {"etcd", "peer"};
    char path[ER_TEST_PATH_MAX + 16];

    for (size_t k = 0; k < 2; k++) {
        snprintf(path, sizeof(path), "%s/%s:%d", e->dir, names[k], i);
        unlink(path);
    }
}

void etcd_member_start(struct etcd_cluster *e, int i)
{
    char client[256], peer[128], cluster[512] = "", name[8], data[16];
    const char *argv[64] = {"env", "-C", e->dir, "setpriv", "--pdeathsig", "KILL", server()};
    size_t n = 7;

    forget_sockets(e, i);
    snprintf(name, sizeof(name), "m%d", i);
    snprintf(data, sizeof(data), "m%d/data", i);
    snprintf(client, sizeof(client), "%s://etcd:%d%s", e->scheme, i, e->listen);
    for (int k = 0; k < e->n; k++) {
        peer_url(k, peer);
        snprintf(cluster + strlen(cluster), sizeof(cluster) - strlen(cluster), "%sm%d=%s",
                 k ? "," : "", k, peer);
    }
    peer_url(i, peer);
    for (const char *const *a = (const char *[]){"--name",
                                                 name,
                                                 "--data-dir",
                                                 data,
                                                 "--listen-client-urls",
                                                 client,
                                                 "--advertise-client-urls",
                                                 client,
                                                 "--listen-peer-urls",
                                                 peer,
                                                 "--initial-advertise-peer-urls",
                                                 peer,
                                                 "--initial-cluster",
                                                 cluster,
                                                 "--logger",
                                                 "zap",
                                                 "--log-level",
                                                 "error",
                                                 "--heartbeat-interval",
                                                 e->n > 1 ? "50" : "10",
                                                 "--election-timeout",
                                                 e->n > 1 ? "500" : "100",
                                                 "--backend-batch-limit",
                                                 "100",
                                                 "--backend-batch-interval",
                                                 "10ms",
                                                 NULL};
         *a; a++)
        argv[n++] = *a;
    for (const char *const *a = e->extra; *a && n < 62; a++)
        argv[n++] = *a;
    argv[n] = NULL;
    er_test_start(&e->members[i], argv, NULL);
    e->running[i] = true;
}

void etcd_start_with(struct etcd_cluster *e, int n, const char *scheme, const char *listen,
                     const char *const *extra)
{
    char dir[ER_TEST_PATH_MAX];

    etcd_need();
    memset(e, 0, sizeof(*e));
    er_test_tempdir(e->dir);
    e->n = n;
    e->scheme = scheme;
    for (size_t i = 0; extra && extra[i] && i < ER_ARRAY_N(e->extra) - 1; i++)
        e->extra[i] = extra[i];
    snprintf(e->listen, sizeof(e->listen), "%s", listen);
    for (int i = 0; i < n; i++) {
        size_t at = strlen(e->endpoints);

        member_dir(e, i, dir);
        er_tap_require(er_mkdir_all(dir, 0700, NULL) == 0);
        snprintf(e->endpoints + at, sizeof(e->endpoints) - at, "%s%s:%s/etcd:%d", i ? "," : "",
                 scheme, e->dir, i);
    }
    for (int i = 0; i < n; i++)
        etcd_member_start(e, i);
}

void etcd_start(struct etcd_cluster *e, int n)
{
    etcd_start_with(e, n, "unix", "", NULL);
}

void etcd_member_kill(struct etcd_cluster *e, int i)
{
    if (!e->running[i])
        return;
    etcd_member_signal(e, i, SIGKILL);
    er_tap_require(er_test_wait_exit(&e->members[i], ETCD_DEADLINE_MS));
    er_test_done(&e->members[i]);
    e->running[i] = false;
}

void etcd_member_signal(struct etcd_cluster *e, int i, int sig)
{
    pid_t pid = e->members[i].pid;

    er_tap_require(sig == SIGSTOP ? er_test_stop(pid) : kill(pid, sig) == 0);
}

void etcd_wipe(struct etcd_cluster *e, int i)
{
    char dir[ER_TEST_PATH_MAX], data[ER_TEST_PATH_MAX + 8];

    member_dir(e, i, dir);
    snprintf(data, sizeof(data), "%s/data", dir);
    er_tap_require(er_remove_all(data, NULL) == 0);
}

void etcd_stop(struct etcd_cluster *e)
{
    for (int i = 0; i < e->n; i++)
        etcd_member_kill(e, i);
    er_test_rmtree(e->dir);
}

int etcd_ctl(struct etcd_cluster *e, int i, struct er_test_proc *p, const char *const argv[])
{
    char endpoint[ER_TEST_PATH_MAX + 32];
    const char *all[32] = {"etcdctl", "--endpoints", endpoint};
    size_t n = 3;

    snprintf(endpoint, sizeof(endpoint), "%s://%s/etcd:%d", e->scheme, e->dir, i);
    while (*argv && n < 31)
        all[n++] = *argv++;
    all[n] = NULL;
    return er_test_run(p, all, (const char *[]){"ETCDCTL_API=3", NULL}, ETCD_DEADLINE_MS);
}

/* ID, VERSION, ..., IS LEADER, ...: `status -w json` has leader and member_id. */
static bool is_leader(struct etcd_cluster *e, int i)
{
    struct er_test_proc p;
    const char *at;
    unsigned long long member = 0, leader = 1;
    bool is = false;

    if (etcd_ctl(e, i, &p, (const char *[]){"endpoint", "status", "-w", "json", NULL}) == 0) {
        at = strstr(er_test_out(&p), "\"member_id\":");
        if (at)
            member = strtoull(at + 12, NULL, 10);
        at = strstr(er_test_out(&p), "\"leader\":");
        if (at)
            leader = strtoull(at + 9, NULL, 10);
        is = member == leader;
    }
    er_test_done(&p);
    return is;
}

int etcd_leader(struct etcd_cluster *e)
{
    for (int i = 0; i < e->n; i++) {
        if (e->running[i] && is_leader(e, i))
            return i;
    }
    return -1;
}

int etcd_free_port(const char *address)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    bool is_v6 = inet_pton(AF_INET6, address, &v6.sin6_addr) == 1;
    socklen_t n = is_v6 ? sizeof(v6) : sizeof(v4);
    struct sockaddr *at = is_v6 ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4;
    int fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0), port;

    if (!is_v6)
        er_tap_require(inet_pton(AF_INET, address, &v4.sin_addr) == 1);
    if (fd < 0 || bind(fd, at, n) < 0 || getsockname(fd, at, &n) < 0) {
        close(fd);
        return -1;
    }
    port = ntohs(is_v6 ? v6.sin6_port : v4.sin_port);
    close(fd);
    return port;
}

/* ---- driving ---- */

struct er_store *etcd_open_with(const struct er_etcd_opts *opts)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_store *s = NULL;

    if (er_store_etcd_open(&s, opts, &err) < 0)
        er_tap_note("%s", err.text);
    er_tap_require(s != NULL);
    return s;
}

struct er_store *etcd_open(const struct etcd_cluster *e)
{
    return etcd_open_with(&(struct er_etcd_opts){.endpoints = e->endpoints, .prefix = "/t/"});
}

static void step(struct er_store *const *stores, size_t n, uint64_t until)
{
    struct pollfd fds[8];
    uint64_t now = er_now_us();

    for (size_t i = 0; i < n; i++) {
        uint64_t at = stores[i]->ops->deadline(stores[i]);

        if (stores[i]->ops->pending(stores[i]))
            at = 0;
        until = at < until ? at : until;
        fds[i] = (struct pollfd){.fd = stores[i]->ops->fd(stores[i]), .events = POLLIN};
    }
    poll(fds, n, er_poll_ms(now, until));
    for (size_t i = 0; i < n; i++)
        stores[i]->ops->dispatch(stores[i], er_now_us());
}

bool etcd_run(struct er_store *const *stores, size_t n, etcd_cond cond, void *user)
{
    uint64_t until = er_deadline_in(er_now_us(), ETCD_DEADLINE_MS * ER_US_PER_MS);

    while (!cond(user)) {
        if (er_now_us() >= until)
            return false;
        step(stores, n, until);
    }
    return true;
}

void etcd_idle(struct er_store *s, uint64_t us)
{
    uint64_t until = er_deadline_in(er_now_us(), us);

    while (er_now_us() < until)
        step(&s, 1, until);
}

static bool is_done(void *user)
{
    return ((struct etcd_answer *)user)->done;
}

bool etcd_wait_answer(struct er_store *s, struct etcd_answer *a)
{
    return etcd_run(&s, 1, is_done, a);
}

/* ---- calls ---- */

struct er_bytes etcd_text(const char *text)
{
    return (struct er_bytes){text, strlen(text)};
}

static void copy_text(char to[64], struct er_bytes from)
{
    size_t n = from.len < 63 ? from.len : 63;

    if (n)
        memcpy(to, from.data, n);
    to[n] = 0;
}

static void on_txn(void *user, int rc, const struct er_store_reply *reply)
{
    struct etcd_answer *a = user;

    er_tap_check(!a->done);
    a->done = true;
    a->rc = rc;
    if (!er_tap_check((rc == 0) == (reply != NULL)) || !reply)
        return;
    a->succeeded = reply->succeeded;
    a->revision = reply->revision;
    a->kv_n = reply->kv_n;
    for (size_t i = 0; i < reply->kv_n && i < 64; i++) {
        copy_text(a->kvs[i].key, reply->kvs[i].key);
        copy_text(a->kvs[i].value, reply->kvs[i].value);
        a->kvs[i].rev = reply->kvs[i].mod_rev;
        a->create_rev[i] = reply->kvs[i].create_rev;
        a->kv_lease[i] = reply->kvs[i].lease;
    }
    a->range_count = reply->range_count;
    for (size_t i = 0; i < reply->range_count && i < 8; i++)
        a->range_n[i] = reply->range_n[i];
}

void etcd_txn_start(struct er_store *s, const struct er_store_txn *txn, struct etcd_answer *a)
{
    memset(a, 0, sizeof(*a));
    er_tap_require(s->ops->txn(s, txn, on_txn, a) == 0);
}

int etcd_txn(struct er_store *s, const struct er_store_txn *txn, struct etcd_answer *a)
{
    etcd_txn_start(s, txn, a);
    er_tap_require(etcd_wait_answer(s, a));
    return a->rc;
}

int etcd_put(struct er_store *s, const char *key, const char *value, uint64_t lease)
{
    const struct er_store_op op = {
        .kind = ER_OP_PUT, .key = etcd_text(key), .value = etcd_text(value), .lease = lease};
    struct etcd_answer a;

    return etcd_txn(s, &(struct er_store_txn){.then_ops = &op, .then_n = 1}, &a);
}

int etcd_put_surely(struct er_store *s, const char *key, const char *value)
{
    int rc;

    do {
        rc = etcd_put(s, key, value, 0);
    } while (rc == ER_E_AMBIGUOUS || rc == -ENOTCONN);
    return rc;
}

int etcd_get(struct er_store *s, const char *key, struct etcd_answer *a)
{
    const struct er_store_op op = {.kind = ER_OP_RANGE, .key = etcd_text(key)};

    return etcd_txn(s, &(struct er_store_txn){.then_ops = &op, .then_n = 1}, a);
}

int etcd_delete(struct er_store *s, const char *key, bool prefix)
{
    const struct er_store_op op = {.kind = ER_OP_DELETE, .key = etcd_text(key), .prefix = prefix};
    struct etcd_answer a;

    return etcd_txn(s, &(struct er_store_txn){.then_ops = &op, .then_n = 1}, &a);
}

static void on_lease(void *user, int rc, uint64_t lease, uint64_t ttl_us)
{
    struct etcd_answer *a = user;

    er_tap_check(!a->done);
    a->done = true;
    a->rc = rc;
    a->lease = lease;
    a->ttl_us = ttl_us;
}

void etcd_grant_start(struct er_store *s, uint64_t id, uint64_t ttl_us, struct etcd_answer *a)
{
    memset(a, 0, sizeof(*a));
    er_tap_require(s->ops->lease_grant(s, id, ttl_us, on_lease, a) == 0);
}

int etcd_grant(struct er_store *s, uint64_t id, uint64_t ttl_us, struct etcd_answer *a)
{
    etcd_grant_start(s, id, ttl_us, a);
    er_tap_require(etcd_wait_answer(s, a));
    return a->rc;
}

void etcd_revoke_start(struct er_store *s, uint64_t id, struct etcd_answer *a)
{
    memset(a, 0, sizeof(*a));
    er_tap_require(s->ops->lease_revoke(s, id, on_lease, a) == 0);
}

int etcd_revoke(struct er_store *s, uint64_t id)
{
    struct etcd_answer a;

    etcd_revoke_start(s, id, &a);
    er_tap_require(etcd_wait_answer(s, &a));
    return a.rc;
}

void etcd_keep(struct er_store *s, uint64_t id, struct etcd_answer *lost)
{
    memset(lost, 0, sizeof(*lost));
    er_tap_require(s->ops->lease_keep(s, id, on_lease, lost) == 0);
}

static void on_watch(void *user, int rc, const struct er_store_event *events, size_t n,
                     uint64_t revision)
{
    struct etcd_watching *w = user;

    er_tap_check(w->ended == 0);
    w->calls++;
    if (rc) {
        w->ended = rc;
        return;
    }
    w->disorder = w->disorder || n == 0 || revision <= w->last_rev;
    w->last_rev = revision;
    for (size_t i = 0; i < n && w->n < ETCD_SEEN_MAX; i++) {
        struct etcd_seen *seen = &w->seen[w->n++];

        seen->kind = events[i].kind;
        seen->rev = events[i].kv.mod_rev;
        w->disorder = w->disorder || seen->rev != revision;
        copy_text(seen->key, events[i].kv.key);
        copy_text(seen->value, events[i].kv.value);
    }
}

void etcd_watch(struct er_store *s, const char *key, bool prefix, uint64_t from,
                struct etcd_watching *w)
{
    memset(w, 0, sizeof(*w));
    er_tap_require(s->ops->watch(s, etcd_text(key), prefix, from, on_watch, w, &w->id) == 0);
    er_tap_check(w->id > 0);
}
