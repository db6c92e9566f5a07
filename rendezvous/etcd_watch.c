#include "rendezvous/etcd_watch.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "rendezvous/etcd_ids.h"
#include "rendezvous/etcd_status.h"

enum watch_state { FRESH, ASKED, LIVE };

struct watch {
    struct er_list node;
    enum watch_state state;
    uint64_t id, wire_id, next_rev; /* next_rev 0: not known yet */
    bool opening;                   /* it is to be told when it is open */
    struct er_bytes key;            /* owned */
    bool prefix, denied;
    bool dead; /* no callbacks any more */
    er_store_watch_fn fn;
    void *user;
    /* Events of a revision that is not whole yet, and what they point into. */
    struct er_store_event *events;
    size_t event_n, event_cap;
    struct er_etcd_watch_answer *held;
    size_t held_n;
};

struct er_etcd_watches {
    struct er_list fresh, asked, live; /* by state; asked: in the order of asking */
    struct er_list doomed;             /* dead: freed by the next reap */
    struct er_etcd_ids by_id, by_wire; /* not the dead; by_wire: ASKED and LIVE */
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
    er_list_init(&ws->asked);
    er_list_init(&ws->live);
    er_list_init(&ws->doomed);
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
    for (size_t i = 0; i < 4; i++) {
        struct er_list *const lists[] = {&ws->fresh, &ws->asked, &ws->live, &ws->doomed};

        er_list_for_each_safe (node, lists[i])
            watch_free(ws, ER_LIST_ITEM(node, struct watch, node));
    }
    er_etcd_ids_done(&ws->by_id);
    er_etcd_ids_done(&ws->by_wire);
    free(ws->cancels);
    free(ws);
}

int er_etcd_watches_add(struct er_etcd_watches *ws, struct er_bytes key, bool prefix,
                        uint64_t start_rev, uint64_t known_rev, er_store_watch_fn fn, void *user,
                        uint64_t *ret_id)
{
    struct watch *w = calloc(1, sizeof(*w));
    char *copy = malloc(key.len + 1);

    if (!w || !copy || ws->n == ER_ETCD_WATCHES_MAX ||
        er_etcd_ids_put(&ws->by_id, ws->last_id + 1, w) < 0) {
        free(w);
        free(copy);
        return ws->n == ER_ETCD_WATCHES_MAX ? ER_E_LIMIT : -ENOMEM;
    }
    if (key.len)
        memcpy(copy, key.data, key.len);
    w->id = ++ws->last_id;
    w->key = (struct er_bytes){copy, key.len};
    w->prefix = prefix;
    w->opening = start_rev == ER_STORE_OPENED;
    if (!w->opening)
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

static void reap(struct er_etcd_watches *ws)
{
    er_list_for_each_safe (node, &ws->doomed) {
        if (!ws->busy)
            watch_free(ws, ER_LIST_ITEM(node, struct watch, node));
    }
}

static void move_to(struct er_list *list, struct watch *w)
{
    er_list_remove(&w->node);
    er_list_push_back(list, &w->node);
}

/* No callbacks any more. A watch that was asked for stays until its answer came: answers are told
 * apart by their order. */
static void kill_watch(struct er_etcd_watches *ws, struct watch *w)
{
    if (!w->dead) {
        er_etcd_ids_remove(&ws->by_id, w->id);
        er_etcd_ids_remove(&ws->by_wire, w->wire_id);
    }
    w->dead = true;
    if (w->state != ASKED)
        move_to(&ws->doomed, w);
}

void er_etcd_watches_remove(struct er_etcd_watches *ws, uint64_t id)
{
    struct watch *w = er_etcd_ids_get(&ws->by_id, id);

    if (!w)
        return;
    if (w->state == LIVE)
        queue_cancel(ws, w->wire_id);
    kill_watch(ws, w);
    reap(ws);
}

static void ask_again(struct er_etcd_watches *ws, struct er_list *list)
{
    er_list_for_each_safe (node, list) {
        struct watch *w = ER_LIST_ITEM(node, struct watch, node);

        drop_held(w); /* it comes again, from next_rev on */
        w->state = FRESH;
        move_to(w->dead ? &ws->doomed : &ws->fresh, w);
    }
}

void er_etcd_watches_connected(struct er_etcd_watches *ws, uint64_t known_rev)
{
    ask_again(ws, &ws->live);
    ask_again(ws, &ws->asked);
    er_etcd_ids_clear(&ws->by_wire);
    ws->cancel_n = 0;
    reap(ws);
    er_list_for_each (node, &ws->fresh) {
        struct watch *w = ER_LIST_ITEM(node, struct watch, node);

        if (w->next_rev == 0 && !w->opening)
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
    if (er_etcd_ids_put(&ws->by_wire, ws->last_wire_id + 1, w) < 0)
        return false; /* without memory it waits */
    move_to(&ws->asked, w);
    w->wire_id = ++ws->last_wire_id;
    w->state = ASKED;
    *ret = (struct er_etcd_watch_request){
        ER_ETCD_WATCH_CREATE, w->wire_id, w->key, w->prefix, w->next_rev,
    };
    return true;
}

/* ---- answers ---- */

/* rc: the watch ends with it. */
static void tell(struct er_etcd_watches *ws, struct watch *w, int rc,
                 const struct er_store_event *events, size_t n, uint64_t rev)
{
    bool was_busy = ws->busy;

    if (w->dead)
        return;
    if (rc)
        kill_watch(ws, w);
    ws->busy = true;
    w->fn(w->user, rc, events, n, rev);
    ws->busy = was_busy;
}

/* The watch whose create this answers: they come in the order of asking. */
static struct watch *first_asked(struct er_etcd_watches *ws)
{
    return er_list_empty(&ws->asked) ? NULL : ER_LIST_ITEM(ws->asked.next, struct watch, node);
}

static struct watch *by_wire_id(struct er_etcd_watches *ws, int64_t wire_id)
{
    struct watch *w = wire_id > 0 ? er_etcd_ids_get(&ws->by_wire, (uint64_t)wire_id) : NULL;

    return w && w->state == LIVE ? w : NULL;
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
    move_to(&ws->live, w);
    if (w->dead) { /* nobody wants it any more */
        if (!a->canceled)
            queue_cancel(ws, w->wire_id);
        kill_watch(ws, w);
        return ER_ETCD_WATCH_HANDLED;
    }
    if (a->canceled)
        return on_cancel(ws, w, a, may_login);
    w->denied = false;
    if (w->opening) {
        w->opening = false;
        w->next_rev = a->header.revision + 1;
        tell(ws, w, 0, NULL, 0, a->header.revision);
    }
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

static void stale(struct er_etcd_watches *ws, struct watch *w)
{
    if (w->state == LIVE)
        queue_cancel(ws, w->wire_id);
    tell(ws, w, ER_E_STALE, NULL, 0, 0);
}

void er_etcd_watches_stale(struct er_etcd_watches *ws)
{
    struct er_list all; /* not those that callbacks add */

    er_list_init(&all);
    er_list_for_each_safe (node, &ws->fresh)
        move_to(&all, ER_LIST_ITEM(node, struct watch, node));
    er_list_for_each_safe (node, &ws->live)
        move_to(&all, ER_LIST_ITEM(node, struct watch, node));
    while (!er_list_empty(&all)) /* telling moves it on */
        stale(ws, ER_LIST_ITEM(all.next, struct watch, node));
    er_list_for_each (node, &ws->asked) /* these stay */
        stale(ws, ER_LIST_ITEM(node, struct watch, node));
    reap(ws);
}
