#include "agent/ctl_store.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/ctl_find.h"
#include "agent/managed_plan.h"
#include "agent/managed_spawn.h"
#include "agent/store_open.h"
#include "base/cleanup.h"
#include "base/clock.h"

#define ANSWER_US  (10 * ER_US_PER_S)
#define PAGE_KEYS  512
#define FOLDER_MAX 256

/* A request under way. Its answer may come later than it was waited for, when `to` (and the stack
 * where that was) is no longer there. */
struct call {
    struct call *next;
    struct er_ctl_reading *to; /* NULL: nobody waits any more */
};

struct er_ctl_store {
    struct er_opened_store store;
    char *prefix;      /* owned */
    struct call *late; /* owned: those that nobody waits for, till the end */
};

/* ---- opening ---- */

static const char *const NAMES[] = {ER_KEEPER_CA, ER_KEEPER_CERT, ER_KEEPER_KEY};

static void remove_certificates(const char *folder)
{
    char path[FOLDER_MAX + 32];

    for (size_t i = 0; i < ER_ARRAY_N(NAMES); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, NAMES[i]);
        unlink(path);
    }
    rmdir(folder);
}

/* What the secret of a managed store gives: certificates in `folder`, a private one of our own ("":
 * none was made). */
static int make_certificates(char folder[FOLDER_MAX], const struct er_config *c,
                             const char *endpoints, struct er_error *err)
{
    struct er_keeper_opts o = {.peer_port = c->rendezvous.managed.peer_port};
    char keeper[ER_KEEPER_PATH_MAX];
    const char *base = getenv("TMPDIR");
    int rc = er_managed_find_keeper(keeper, err);

    if (rc)
        return rc;
    if (!base || base[0] != '/' || strlen(base) > FOLDER_MAX - 32)
        base = "/tmp";
    snprintf(folder, FOLDER_MAX, "%s/elastic-ctl-XXXXXX", base);
    if (!mkdtemp(folder)) {
        rc = er_error_errno(err, "make a folder for certificates");
        folder[0] = '\0';
        return rc;
    }
    snprintf(o.endpoints, sizeof(o.endpoints), "%s", endpoints);
    snprintf(o.secret, sizeof(o.secret), "%s", c->rendezvous.managed.secret_file);
    snprintf(o.out, sizeof(o.out), "%s", folder);
    return er_managed_make_tls(keeper, &o, err);
}

/* The store reads its certificates when it is opened: they are on disk no longer than that, and no
 * signal ends us in between. A Ctrl-C ends the program that makes them too, so that it is not in
 * vain. */
static int open_with_secret(struct er_ctl_store *s, const struct er_config *c,
                            const char *endpoints, struct er_error *err)
{
    char folder[FOLDER_MAX] = "", files[3][FOLDER_MAX + 32];
    const struct er_store_access access = {.endpoints = &endpoints,
                                           .endpoint_n = 1,
                                           .ca = files[0],
                                           .cert = files[1],
                                           .key = files[2],
                                           .server_name = ER_MANAGED_SERVER_NAME};
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    rc = make_certificates(folder, c, endpoints, err);
    for (size_t i = 0; i < ER_ARRAY_N(NAMES); i++)
        snprintf(files[i], sizeof(files[i]), "%s/%s", folder, NAMES[i]);
    if (!rc)
        rc = er_store_open(&s->store, &access, s->prefix, c->name, er_now_us(), err);
    if (folder[0])
        remove_certificates(folder);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

static int open_managed(struct er_ctl_store *s, const struct er_config *c, struct er_error *err)
{
    char endpoints[ER_MANAGED_TEXT_MAX];
    const char *list = endpoints;
    const struct er_store_access access = {.endpoints = &list, .endpoint_n = 1};
    struct er_managed_plan plan;
    int rc = er_managed_plan_make(&plan, (const char *const *)c->rendezvous.endpoints.items,
                                  c->rendezvous.endpoints.n,
                                  (uint16_t)c->rendezvous.managed.peer_port, err);

    if (rc)
        return rc;
    er_managed_plan_endpoints(&plan, endpoints);
    if (c->rendezvous.managed.secret_file)
        return open_with_secret(s, c, endpoints, err);
    return er_store_open(&s->store, &access, s->prefix, c->name, er_now_us(), err);
}

static int open_etcd(struct er_ctl_store *s, const struct er_config *c, struct er_error *err)
{
    struct er_store_access access;

    er_store_access_from(c, &access);
    return er_store_open(&s->store, &access, s->prefix, c->name, er_now_us(), err);
}

int er_ctl_store_open(struct er_ctl_store **ret, const struct er_config *config,
                      struct er_error *err)
{
    struct er_ctl_store *s;
    int rc;

    if (!config || !er_config_keeps_record(config)) {
        er_error_set(err, -ENOENT, "no store is named that other hosts could ask");
        return ER_CTL_EXIT_NO_SUCH;
    }
    s = calloc(1, sizeof(*s));
    if (s)
        s->prefix = strdup(config->rendezvous.prefix);
    if (!s || !s->prefix)
        rc = er_error_set(err, -ENOMEM, "out of memory");
    else if (config->rendezvous.backend == ER_BACKEND_MANAGED)
        rc = open_managed(s, config, err);
    else
        rc = open_etcd(s, config, err);
    if (rc) {
        er_ctl_store_close(s);
        return ER_CTL_EXIT_UNREACHABLE;
    }
    *ret = s;
    return 0;
}

void er_ctl_store_close(struct er_ctl_store *s)
{
    if (!s)
        return;
    er_store_close(&s->store);
    for (struct call *call = s->late, *next; call; call = next) {
        next = call->next;
        free(call);
    }
    free(s->prefix);
    free(s);
}

/* ---- one transaction at a time ---- */

static void on_answer(void *user, int rc, const struct er_store_reply *reply)
{
    const struct call *call = user;
    struct er_ctl_reading *g = call->to;

    if (!g)
        return;
    g->answered = true;
    g->rc = rc;
    if (rc)
        return;
    g->succeeded = reply->succeeded;
    g->revision = reply->revision;
    g->n = reply->kv_n;
    for (size_t i = 0; i < reply->kv_n; i++) {
        const struct er_store_kv *kv = &reply->kvs[i];

        if (g->take)
            g->take(g->user, kv);
        if (kv->key.len < sizeof(g->last)) {
            memcpy(g->last, kv->key.data, kv->key.len);
            g->last_n = kv->key.len;
        }
    }
}

static int not_reached(struct er_ctl_store *s, int rc, struct er_error *err)
{
    struct er_etcd_status now;

    er_ctl_store_status(s, &now);
    if (rc == -EACCES) {
        er_error_set(err, rc, "the store refuses this: %s", now.text[0] ? now.text : "permission");
        return ER_CTL_EXIT_REFUSED;
    }
    er_error_set(err, rc, "the store is not reached: %s",
                 now.text[0] ? now.text : er_error_name(rc));
    return ER_CTL_EXIT_UNREACHABLE;
}

static int await(struct er_ctl_store *s, int rc, struct er_ctl_reading *g, struct er_error *err)
{
    struct er_store *store = s->store.store;
    uint64_t until_us = er_deadline_in(er_now_us(), ANSWER_US);

    while (!rc && !g->answered) {
        uint64_t now_us = er_now_us(), at_us = store->ops->deadline(store);
        struct pollfd p = {.fd = store->ops->fd(store), .events = POLLIN};

        if (now_us >= until_us)
            break;
        if (store->ops->pending(store))
            at_us = now_us;
        poll(&p, 1, er_poll_ms(now_us, at_us < until_us ? at_us : until_us));
        store->ops->dispatch(store, er_now_us());
    }
    if (!rc && g->answered)
        rc = g->rc;
    else if (!rc)
        rc = -ETIMEDOUT;
    return rc ? not_reached(s, rc, err) : 0;
}

int er_ctl_store_txn(struct er_ctl_store *s, const struct er_store_txn *txn,
                     struct er_ctl_reading *g, struct er_error *err)
{
    struct er_store *store = s->store.store;
    struct call *call = calloc(1, sizeof(*call));
    int rc = call ? 0 : -ENOMEM, code;

    g->answered = false;
    if (!rc) {
        call->to = g;
        rc = store->ops->txn(store, txn, on_answer, call);
    }
    code = await(s, rc, g, err);
    if (rc || g->answered) {
        free(call);
    } else {
        *call = (struct call){.next = s->late};
        s->late = call;
    }
    return code;
}

static void on_lease(void *user, int rc, uint64_t lease, uint64_t ttl_us)
{
    struct er_ctl_reading *g = user;

    g->answered = true;
    g->rc = rc;
}

/* An answer that comes later than it was waited for must not find the stack of then. */
static struct er_ctl_reading lease_answer;

int er_ctl_store_lease(struct er_ctl_store *s, uint64_t id, uint64_t ttl_us, struct er_error *err)
{
    struct er_store *store = s->store.store;

    lease_answer = (struct er_ctl_reading){.answered = false};
    return await(s, store->ops->lease_grant(store, id, ttl_us, on_lease, &lease_answer),
                 &lease_answer, err);
}

int er_ctl_store_revoke(struct er_ctl_store *s, uint64_t id, struct er_error *err)
{
    struct er_store *store = s->store.store;

    lease_answer = (struct er_ctl_reading){.answered = false};
    return await(s, store->ops->lease_revoke(store, id, on_lease, &lease_answer), &lease_answer,
                 err);
}

int er_ctl_store_read(struct er_ctl_store *s, const char *prefix, size_t prefix_n,
                      uint64_t *revision, void (*take)(void *, const struct er_store_kv *),
                      void *user, struct er_error *err)
{
    struct er_ctl_reading g = {.take = take, .user = user};
    char after[ER_KEY_MAX];
    size_t after_n = 0;
    int code;

    do {
        const struct er_store_op op = {.kind = ER_OP_RANGE,
                                       .key = {prefix, prefix_n},
                                       .prefix = true,
                                       .limit = PAGE_KEYS,
                                       .after = {after, after_n},
                                       .revision = *revision};

        code = er_ctl_store_txn(s, &(struct er_store_txn){.then_ops = &op, .then_n = 1}, &g, err);
        if (code)
            return code;
        *revision = *revision ? *revision : g.revision;
        memcpy(after, g.last, g.last_n);
        after_n = g.last_n;
    } while (g.n >= PAGE_KEYS);
    return 0;
}

const char *er_ctl_store_prefix(const struct er_ctl_store *s)
{
    return s->prefix;
}

void er_ctl_store_status(const struct er_ctl_store *s, struct er_etcd_status *ret)
{
    s->store.etcd->status(s->store.store, ret);
}
