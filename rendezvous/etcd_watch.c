#include "rendezvous/etcd_watch.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "rendezvous/etcd_status.h"

enum watch_state { FRESH, ASKED, LIVE };

struct watch {
    struct er_list node;
    enum watch_state state;
    uint64_t id, wire_id, next_rev; /* next_rev 0: not known yet */
    struct er_bytes key;            /* owned */
    bool prefix, denied;
    bool dead; /* no callbacks any more; goes with the next reap */
    er_store_watch_fn fn;
    void *user;
    /* Events of a revision that is not whole yet, and what they point into. */
    struct er_store_event *events;
    size_t event_n, event_cap;
    struct er_etcd_watch_answer *held;
    size_t held_n;
};

struct er_etcd_watches {
    struct er_list fresh, active; /* active: ASKED and LIVE, by wire id */
    uint64_t last_id, last_wire_id;
    size_t n;
    uint64_t *cancels; /* wire ids to cancel */
    size_t cancel_n, cancel_cap;
    bool busy; /* in a callback: nothing is freed */
};

int er_etcd_watches_new(struct er_etcd_watches **ret)
{
    struct er_etcd_watches *ws = calloc(1, sizeof(*ws));

    if (!ws)
        return -ENOMEM;
    er_list_init(&ws->fresh);
    er_list_init(&ws->active);
    *ret = ws;
    return 0;
}

static void drop_held(struct watch *w)
{
    for (size_t i = 0; i < w->held_n; i++)
        er_etcd_watch_answer_done(&w->held[i]);
    w->held_n = w->event_n = 0;
}

static void watch_free(struct er_etcd_watches *ws, struct watch *w)
{
    er_list_remove(&w->node);
    drop_held(w);
    free(w->held);
    free(w->events);
    free((void *)(uintptr_t)w->key.data);
    free(w);
    ws->n--;
}

void er_etcd_watches_free(struct er_etcd_watches *ws)
{
    if (!ws)
        return;
    er_list_for_each_safe (node, &ws->fresh)
        watch_free(ws, ER_LIST_ITEM(node, struct watch, node));
    er_list_for_each_safe (node, &ws->active)
        watch_free(ws, ER_LIST_ITEM(node, struct watch, node));
    free(ws->cancels);
    free(ws);
}

int er_etcd_watches_add(struct er_etcd_watches *ws, struct er_bytes key, bool prefix,
                        uint64_t start_rev, uint64_t known_rev, er_store_watch_fn fn, void *user,
                        uint64_t *ret_id)
{
    struct watch *w = calloc(1, sizeof(*w));
    char *copy = malloc(key.len + 1);

    if (!w || !copy || ws->n == ER_ETCD_WATCHES_MAX) {
        free(w);
        free(copy);
        return ws->n == ER_ETCD_WATCHES_MAX ? ER_E_LIMIT : -ENOMEM;
    }
    if (key.len)
        memcpy(copy, key.data, key.len);
    w->id = ++ws->last_id;
    w->key = (struct er_bytes){copy, key.len};
    w->prefix = prefix;
    w->next_rev = start_rev ? start_rev : known_rev ? known_rev + 1 : 0;
    w->fn = fn;
    w->user = user;
    er_list_push_back(&ws->fresh, &w->node);
    ws->n++;
    *ret_id = w->id;
    return 0;
}

size_t er_etcd_watches_n(const struct er_etcd_watches *ws)
{
    return ws->n;
}

bool er_etcd_watches_pending(const struct er_etcd_watches *ws)
{
    return ws->cancel_n || !er_list_empty(&ws->fresh);
}

/* Without memory the server goes on sending what is then ignored. */
static void queue_cancel(struct er_etcd_watches *ws, uint64_t wire_id)
{
    if (ws->cancel_n == ws->cancel_cap) {
        size_t cap = ws->cancel_cap ? 2 * ws->cancel_cap : 16;
        uint64_t *more = reallocarray(ws->cancels, cap, sizeof(*more));

        if (!more)
            return;
        ws->cancels = more;
        ws->cancel_cap = cap;
    }
    ws->cancels[ws->cancel_n++] = wire_id;
}

/* A watch that was asked for stays until its answer came: answers are told apart by their order. */
static bool may_go(const struct watch *w)
{
    return w->dead && w->state != ASKED;
}

static void reap(struct er_etcd_watches *ws)
{
    struct er_list *const lists[] = {&ws->fresh, &ws->active};

    for (size_t i = 0; i < 2 && !ws->busy; i++) {
        er_list_for_each_safe (node, lists[i]) {
            struct watch *w = ER_LIST_ITEM(node, struct watch, node);

            if (may_go(w))
                watch_free(ws, w);
        }
    }
}

static struct watch *find(struct er_list *list, uint64_t id)
{
    er_list_for_each (node, list) {
        struct watch *w = ER_LIST_ITEM(node, struct watch, node);

        if (w->id == id && !w->dead)
            return w;
    }
    return NULL;
}

void er_etcd_watches_remove(struct er_etcd_watches *ws, uint64_t id)
{
    struct watch *w = find(&ws->active, id);

    if (!w)
        w = find(&ws->fresh, id);
    if (!w)
        return;
    w->dead = true;
    if (w->state == LIVE)
        queue_cancel(ws, w->wire_id);
    reap(ws);
}

void er_etcd_watches_connected(struct er_etcd_watches *ws, uint64_t known_rev)
{
    er_list_for_each_safe (node, &ws->active) {
        struct watch *w = ER_LIST_ITEM(node, struct watch, node);

        drop_held(w); /* it comes again, from next_rev on */
        w->state = FRESH;
        er_list_remove(node);
        er_list_push_back(&ws->fresh, node);
    }
    ws->cancel_n = 0;
    reap(ws);
    er_list_for_each (node, &ws->fresh) {
        struct watch *w = ER_LIST_ITEM(node, struct watch, node);

        if (w->next_rev == 0)
            w->next_rev = known_rev + 1;
    }
}

bool er_etcd_watches_next_request(struct er_etcd_watches *ws, struct er_etcd_watch_request *ret)
{
    struct watch *w;

    if (ws->cancel_n) {
        *ret = (struct er_etcd_watch_request){.kind = ER_ETCD_WATCH_CANCEL,
                                              .wire_id = ws->cancels[--ws->cancel_n]};
        return true;
    }
    if (er_list_empty(&ws->fresh))
        return false;
    w = ER_LIST_ITEM(ws->fresh.next, struct watch, node);
    er_list_remove(&w->node);
    er_list_push_back(&ws->active, &w->node);
    w->wire_id = ++ws->last_wire_id;
    w->state = ASKED;
    *ret = (struct er_etcd_watch_request){
        ER_ETCD_WATCH_CREATE, w->wire_id, w->key, w->prefix, w->next_rev,
    };
    return true;
}

/* ---- answers ---- */

static void tell(struct er_etcd_watches *ws, struct watch *w, int rc,
                 const struct er_store_event *events, size_t n, uint64_t rev)
{
    bool was_busy = ws->busy;

    if (w->dead)
        return;
    w->dead = rc != 0;
    ws->busy = true;
    w->fn(w->user, rc, events, n, rev);
    ws->busy = was_busy;
}

/* The watch whose create this answers: they come in the order of asking. */
static struct watch *first_asked(struct er_etcd_watches *ws)
{
    er_list_for_each (node, &ws->active) {
        struct watch *w = ER_LIST_ITEM(node, struct watch, node);

        if (w->state == ASKED)
            return w;
    }
    return NULL;
}

static struct watch *by_wire_id(struct er_etcd_watches *ws, int64_t wire_id)
{
    er_list_for_each (node, &ws->active) {
        struct watch *w = ER_LIST_ITEM(node, struct watch, node);

        if (wire_id > 0 && w->wire_id == (uint64_t)wire_id && w->state == LIVE)
            return w;
    }
    return NULL;
}

static enum er_etcd_watch_outcome on_cancel(struct er_etcd_watches *ws, struct watch *w,
                                            const struct er_etcd_watch_answer *a, bool may_login)
{
    int rc = a->compact_rev ? ER_E_STALE : er_etcd_judge(ER_GRPC_UNKNOWN, a->reason).rc;

    if (rc == -EACCES && may_login && !w->denied && !w->dead) {
        w->denied = true;
        return ER_ETCD_WATCH_LOGIN;
    }
    tell(ws, w, rc == -EACCES ? rc : ER_E_STALE, NULL, 0, 0);
    return ER_ETCD_WATCH_HANDLED;
}

static enum er_etcd_watch_outcome on_created(struct er_etcd_watches *ws,
                                             const struct er_etcd_watch_answer *a, bool may_login)
{
    struct watch *w = first_asked(ws);

    if (!w)
        return ER_ETCD_WATCH_HANDLED;
    w->state = LIVE;
    if (a->canceled)
        return on_cancel(ws, w, a, may_login);
    w->denied = false;
    if (w->dead)
        queue_cancel(ws, w->wire_id);
    return ER_ETCD_WATCH_HANDLED;
}

/* Takes over the answer; on failure it is given back to the caller. */
static int hold(struct watch *w, struct er_etcd_watch_answer *a)
{
    size_t want = w->event_n + a->event_n;
    struct er_etcd_watch_answer *held;

    if (w->held_n == ER_ETCD_HELD_MAX)
        return ER_E_LIMIT;
    held = reallocarray(w->held, w->held_n + 1, sizeof(*held));
    if (!held)
        return -ENOMEM;
    w->held = held;
    if (want > w->event_cap) {
        struct er_store_event *more = reallocarray(w->events, want, sizeof(*more));

        if (!more)
            return -ENOMEM;
        w->events = more;
        w->event_cap = want;
    }
    if (a->event_n)
        memcpy(w->events + w->event_n, a->events, a->event_n * sizeof(*a->events));
    w->event_n = want;
    w->held[w->held_n++] = *a;
    memset(a, 0, sizeof(*a));
    return 0;
}

static size_t same_rev(const struct watch *w, size_t from)
{
    size_t to = from + 1;

    while (to < w->event_n && w->events[to].kv.mod_rev == w->events[from].kv.mod_rev)
        to++;
    return to;
}

static void on_events(struct er_etcd_watches *ws, struct watch *w, struct er_etcd_watch_answer *a)
{
    bool more = a->fragment;
    size_t from = 0;

    if (hold(w, a) < 0) {
        queue_cancel(ws, w->wire_id);
        tell(ws, w, ER_E_STALE, NULL, 0, 0);
        return;
    }
    while (from < w->event_n && !w->dead) {
        size_t to = same_rev(w, from);
        uint64_t rev = w->events[from].kv.mod_rev;

        if (to == w->event_n && more)
            break; /* the next fragment may go on with it */
        if (rev >= w->next_rev) {
            w->next_rev = rev + 1;
            tell(ws, w, 0, w->events + from, to - from, rev);
        }
        from = to;
    }
    w->event_n -= from;
    if (w->event_n)
        memmove(w->events, w->events + from, w->event_n * sizeof(*w->events));
    else
        drop_held(w);
}

enum er_etcd_watch_outcome er_etcd_watches_answer(struct er_etcd_watches *ws,
                                                  struct er_etcd_watch_answer *a, bool may_login)
{
    enum er_etcd_watch_outcome outcome = ER_ETCD_WATCH_HANDLED;
    struct watch *w = a->created ? NULL : by_wire_id(ws, a->wire_id);

    if (a->created)
        outcome = on_created(ws, a, may_login);
    else if (w && a->canceled)
        outcome = on_cancel(ws, w, a, may_login);
    else if (w)
        on_events(ws, w, a);
    er_etcd_watch_answer_done(a);
    reap(ws);
    return outcome;
}

void er_etcd_watches_stale(struct er_etcd_watches *ws)
{
    struct er_list *const lists[] = {&ws->fresh, &ws->active};
    uint64_t last = ws->last_id; /* not those that callbacks add */

    for (size_t i = 0; i < 2; i++) {
        er_list_for_each (node, lists[i]) {
            struct watch *w = ER_LIST_ITEM(node, struct watch, node);

            if (w->id > last || w->dead)
                continue;
            if (w->state == LIVE)
                queue_cancel(ws, w->wire_id);
            tell(ws, w, ER_E_STALE, NULL, 0, 0);
        }
    }
    reap(ws);
}
