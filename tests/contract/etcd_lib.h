#pragma once
/*
 * Private etcd clusters on Unix sockets, and a client that is driven step by step.
 *
 * Each member runs in a folder of its own under one folder of the program, dies with the case that
 * started it (PDEATHSIG), and is reaped by etcd_stop(). Nothing listens on a port unless asked.
 */
#include <stdio.h>

#include "rendezvous/store_etcd.h"
#include "tests/lib/proc.h"
#include "tests/lib/tempdir.h"

#define ETCD_MEMBERS_MAX 3
#define ETCD_DEADLINE_MS 60000 /* a backstop */

struct etcd_cluster {
    char dir[ER_TEST_PATH_MAX];
    int n;
    struct er_test_proc members[ETCD_MEMBERS_MAX];
    bool running[ETCD_MEMBERS_MAX];
    const char *extra[16]; /* more arguments for etcd, NULL-ended */
    const char *scheme;    /* "unix" or "unixs" */
    char listen[128];      /* more URLs to listen on for clients: ",http://127.0.0.1:1"; or "" */
    char endpoints[1024];  /* for the store */
};

/* Is there an etcd to run? Else the case is skipped. */
void etcd_need(void);
/* Starts the members; does not wait for them. */
void etcd_start(struct etcd_cluster *e, int n);
/* `extra`: NULL, or more arguments, NULL-ended; the texts must live as long as the cluster. */
void etcd_start_with(struct etcd_cluster *e, int n, const char *scheme, const char *listen,
                     const char *const *extra);
void etcd_member_kill(struct etcd_cluster *e, int i); /* SIGKILL and reap */
void etcd_member_start(struct etcd_cluster *e, int i);
void etcd_member_signal(struct etcd_cluster *e, int i, int sig);
void etcd_wipe(struct etcd_cluster *e, int i); /* a stopped member forgets everything */
void etcd_stop(struct etcd_cluster *e);
/* `etcdctl ARGUMENT...` against member `i`; its exit code, output in `p`. Call er_test_done(). */
int etcd_ctl(struct etcd_cluster *e, int i, struct er_test_proc *p, const char *const argv[]);
/* Which member leads; -1: none. */
int etcd_leader(struct etcd_cluster *e);
/* A TCP port that was free just now. */
int etcd_free_port(const char *address);

/* ---- a client ---- */

struct etcd_seen {
    char key[64], value[64];
    enum er_store_event_kind kind;
    uint64_t rev;
};
#define ETCD_SEEN_MAX 8192
struct etcd_watching {
    uint64_t id;
    int ended; /* rc that ended it */
    int calls;
    struct etcd_seen seen[ETCD_SEEN_MAX];
    size_t n;
    uint64_t last_rev;
    bool disorder; /* a revision in two calls, or out of order */
};

struct etcd_answer {
    bool done;
    int rc;
    bool succeeded;
    uint64_t revision, lease, ttl_us;
    struct etcd_seen kvs[64];
    uint64_t create_rev[64], kv_lease[64];
    size_t kv_n, range_n[8], range_count;
};

struct er_store *etcd_open(const struct etcd_cluster *e);
struct er_store *etcd_open_with(const struct er_etcd_opts *opts);

/* Drives up to 8 stores until the condition holds; false at the deadline. */
typedef bool (*etcd_cond)(void *user);
bool etcd_run(struct er_store *const *stores, size_t n, etcd_cond cond, void *user);
bool etcd_wait_answer(struct er_store *s, struct etcd_answer *a);
/* Drives the store for that long, for what must not happen. */
void etcd_idle(struct er_store *s, uint64_t us);

struct er_bytes etcd_text(const char *text);
void etcd_txn_start(struct er_store *s, const struct er_store_txn *txn, struct etcd_answer *a);
int etcd_txn(struct er_store *s, const struct er_store_txn *txn, struct etcd_answer *a);
int etcd_put(struct er_store *s, const char *key, const char *value, uint64_t lease);
/* Again and again until it is certain. */
int etcd_put_surely(struct er_store *s, const char *key, const char *value);
int etcd_get(struct er_store *s, const char *key, struct etcd_answer *a);
int etcd_delete(struct er_store *s, const char *key, bool prefix);
int etcd_grant(struct er_store *s, uint64_t id, uint64_t ttl_us, struct etcd_answer *a);
void etcd_grant_start(struct er_store *s, uint64_t id, uint64_t ttl_us, struct etcd_answer *a);
int etcd_revoke(struct er_store *s, uint64_t id);
void etcd_revoke_start(struct er_store *s, uint64_t id, struct etcd_answer *a);
void etcd_keep(struct er_store *s, uint64_t id, struct etcd_answer *lost);
void etcd_watch(struct er_store *s, const char *key, bool prefix, uint64_t from,
                struct etcd_watching *w);
