#pragma once
/*
 * A job's store as elastic-ctl opens it, on any host: one request at a time, each waited for.
 * Results are 0, or elastic-ctl's exit code (agent/ctl_find.h) with a text in `err`.
 */
#include "agent/config.h"
#include "rendezvous/codec.h"
#include "rendezvous/store_etcd.h"

struct er_ctl_store;

/* The etcd that `config` names, or the job's own (with certificates from its secret file). Whether
 * it is there shows with the first request. ER_CTL_EXIT_NO_SUCH: the configuration names none. */
int er_ctl_store_open(struct er_ctl_store **ret, const struct er_config *config,
                      struct er_error *err);
/* NULL is fine. */
void er_ctl_store_close(struct er_ctl_store *s);
/* rendezvous.prefix; valid as long as the store. */
const char *er_ctl_store_prefix(const struct er_ctl_store *s);
void er_ctl_store_status(const struct er_ctl_store *s, struct er_etcd_status *ret);

/* What becomes of an answer. Zeroed but for `take` and `user` is fine. */
struct er_ctl_reading {
    void (*take)(void *user, const struct er_store_kv *kv); /* each key; NULL: nothing */
    void *user;
    bool answered, succeeded;
    int rc;
    size_t n; /* keys */
    uint64_t revision;
    char last[ER_KEY_MAX]; /* the last key */
    size_t last_n;
};
/* Waits for the answer, at most 10 s. ER_CTL_EXIT_UNREACHABLE, ER_CTL_EXIT_REFUSED. */
int er_ctl_store_txn(struct er_ctl_store *s, const struct er_store_txn *txn,
                     struct er_ctl_reading *g, struct er_error *err);
/* A lease of our own, which nobody keeps alive; and its end. As above. */
int er_ctl_store_lease(struct er_ctl_store *s, uint64_t id, uint64_t ttl_us, struct er_error *err);
int er_ctl_store_revoke(struct er_ctl_store *s, uint64_t id, struct er_error *err);
/* Every key that begins with `prefix`, as of `*revision` (0: now, and which one that was). */
int er_ctl_store_read(struct er_ctl_store *s, const char *prefix, size_t prefix_n,
                      uint64_t *revision, void (*take)(void *, const struct er_store_kv *),
                      void *user, struct er_error *err);
