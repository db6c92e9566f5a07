#include "agent/barrier.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define KEY_MAX (ER_BARRIER_NAME_MAX + 48)

/* One worker's request. */
struct waiter {
    struct er_ticket ticket;
    struct er_list node; /* in its barrier or round */
    int local_rank;
    uint64_t deadline_us;
};

struct barrier {
    struct er_list node, waiters;
    uint64_t use;
    uint8_t *arrived; /* owned; one a local rank, of the current use */
    int arrived_n;
    char name[ER_BARRIER_NAME_MAX];
};

/* One use whose local ranks have all arrived: on its way through the store. */
struct round {
    struct er_list node, waiters;
    struct er_barriers *owner; /* NULL: the generation is over, only the callback is awaited */
    uint64_t generation, use, wait_id;
    int next_node; /* first node only: whose arrival is awaited */
    bool first, releasing;
    char name[ER_BARRIER_NAME_MAX];
};

struct er_barriers {
    struct er_driver *driver;
    uint64_t generation;
    int node_rank, nnodes, local_size;
    struct er_list barriers, rounds, orphans; /* orphans: rounds without owner */
    unsigned name_n;
    bool over; /* the generation ends: nobody waits any more */
};

static void advance(struct round *r);

static void answer(struct waiter *w, int status)
{
    struct er_ctl_msg reply = {.status = status};

    if (status < 0)
        er_ctl_str(&reply, er_error_name(status));
    er_list_remove(&w->node);
    er_ticket_answer(&w->ticket, &reply);
    free(w);
}

static void answer_all(struct er_list *waiters, int status)
{
    while (!er_list_empty(waiters))
        answer(ER_LIST_ITEM(waiters->next, struct waiter, node), status);
}

/* The worker has disconnected. */
static void on_gone(struct er_ticket *ticket)
{
    struct waiter *w = ER_LIST_ITEM(ticket, struct waiter, ticket);

    er_list_remove(&w->node);
    free(w);
}

static void free_barrier(struct barrier *b, int status)
{
    answer_all(&b->waiters, status);
    er_list_remove(&b->node);
    free(b->arrived);
    free(b);
}

static void free_round(struct round *r, int status)
{
    answer_all(&r->waiters, status);
    er_list_remove(&r->node);
    free(r);
}

static void make_key(const struct round *r, const char *what, char key[KEY_MAX])
{
    snprintf(key, KEY_MAX, "b/%s/%" PRIu64 "/%s", r->name, r->use, what);
}

static void on_store(void *user, int rc, const void *value, size_t n)
{
    struct round *r = user;

    r->wait_id = 0;
    if (!r->owner || rc < 0) {
        free_round(r, rc < 0 ? rc : ER_E_STALE);
        return;
    }
    if (r->releasing) {
        free_round(r, 0);
        return;
    }
    r->next_node++;
    advance(r);
}

/* First node: the others' arrivals one after the other, then the release. Others: own arrival, then
 * wait for the release. next_node counts the steps done. */
static void advance(struct round *r)
{
    struct er_driver *driver = r->owner->driver;
    char key[KEY_MAX], node[16];

    if (r->first && r->next_node < r->owner->nnodes) {
        snprintf(node, sizeof(node), "%d", r->next_node);
        make_key(r, node, key);
        r->wait_id = er_driver_kv_get(driver, r->generation, key, ER_FOREVER, on_store, r);
    } else if (r->first) {
        r->releasing = true;
        make_key(r, "go", key);
        er_driver_kv_put(driver, r->generation, key, "1", 1, on_store, r);
    } else if (r->next_node == 1) {
        snprintf(node, sizeof(node), "%d", r->owner->node_rank);
        make_key(r, node, key);
        er_driver_kv_put(driver, r->generation, key, "1", 1, on_store, r);
    } else {
        r->releasing = true;
        make_key(r, "go", key);
        r->wait_id = er_driver_kv_get(driver, r->generation, key, ER_FOREVER, on_store, r);
    }
}

static void begin_round(struct er_barriers *bs, struct barrier *b)
{
    struct round *r = bs->nnodes > 1 ? calloc(1, sizeof(*r)) : NULL;

    b->arrived_n = 0;
    memset(b->arrived, 0, (size_t)bs->local_size);
    if (!r) { /* nobody else to meet, or out of memory */
        b->use++;
        answer_all(&b->waiters, bs->nnodes > 1 ? -ENOMEM : 0);
        return;
    }
    er_list_init(&r->node);
    er_list_init(&r->waiters);
    r->owner = bs;
    r->generation = bs->generation;
    r->use = b->use++;
    r->next_node = 1;
    r->first = bs->node_rank == 0;
    strcpy(r->name, b->name);
    er_list_for_each_safe (node, &b->waiters) {
        er_list_remove(node);
        er_list_push_back(&r->waiters, node);
    }
    er_list_push_back(&bs->rounds, &r->node);
    advance(r);
}

static struct barrier *find(struct er_barriers *bs, const char *name)
{
    er_list_for_each (node, &bs->barriers) {
        struct barrier *b = ER_LIST_ITEM(node, struct barrier, node);

        if (strcmp(b->name, name) == 0)
            return b;
    }
    return NULL;
}

static struct barrier *find_or_add(struct er_barriers *bs, const char *name)
{
    struct barrier *b = find(bs, name);

    if (b || bs->name_n >= ER_BARRIER_NAMES_MAX)
        return b;
    b = calloc(1, sizeof(*b));
    if (!b || !(b->arrived = calloc((size_t)bs->local_size, 1))) {
        free(b);
        return NULL;
    }
    er_list_init(&b->node);
    er_list_init(&b->waiters);
    snprintf(b->name, sizeof(b->name), "%s", name);
    er_list_push_back(&bs->barriers, &b->node);
    bs->name_n++;
    return b;
}

static bool waits_already(const struct barrier *b, int local_rank)
{
    er_list_for_each (node, &b->waiters) {
        if (ER_LIST_ITEM(node, struct waiter, node)->local_rank == local_rank)
            return true;
    }
    return false;
}

void er_barriers_arrive(struct er_barriers *bs, struct er_ctlconn *conn, uint32_t seq,
                        int local_rank, const char *name, uint64_t deadline_us)
{
    struct barrier *b = bs->over ? NULL : find_or_add(bs, name);
    struct waiter *w;

    if (!b || waits_already(b, local_rank)) {
        er_ctlconn_status(conn, seq, bs->over ? ER_E_STALE : b ? -EALREADY : ER_E_LIMIT, NULL);
        return;
    }
    w = calloc(1, sizeof(*w));
    if (!w) {
        er_ctlconn_status(conn, seq, -ENOMEM, NULL);
        return;
    }
    er_ticket_init(&w->ticket, conn, seq, on_gone);
    er_list_init(&w->node);
    w->local_rank = local_rank;
    w->deadline_us = deadline_us;
    er_list_push_back(&b->waiters, &w->node);
    b->arrived_n += !b->arrived[local_rank];
    b->arrived[local_rank] = 1;
    if (b->arrived_n == bs->local_size)
        begin_round(bs, b);
}

void er_barriers_end(struct er_barriers *bs)
{
    while (!er_list_empty(&bs->barriers))
        free_barrier(ER_LIST_ITEM(bs->barriers.next, struct barrier, node), ER_E_STALE);
    while (!er_list_empty(&bs->rounds)) {
        struct round *r = ER_LIST_ITEM(bs->rounds.next, struct round, node);

        answer_all(&r->waiters, ER_E_STALE);
        er_list_remove(&r->node);
        if (r->wait_id) {
            er_driver_kv_cancel(bs->driver, r->wait_id);
            free(r);
            continue;
        }
        r->owner = NULL; /* its put is under way: freed by the callback */
        er_list_push_back(&bs->orphans, &r->node);
    }
    bs->name_n = 0;
    bs->over = true;
}

void er_barriers_begin(struct er_barriers *bs, const struct er_assignment *a)
{
    er_barriers_end(bs);
    bs->over = false;
    bs->generation = a->generation;
    bs->node_rank = a->node_rank;
    bs->nnodes = a->nnodes;
    bs->local_size = a->local_size;
}

int er_barriers_new(struct er_barriers **ret, struct er_driver *driver, struct er_error *err)
{
    struct er_barriers *bs = calloc(1, sizeof(*bs));

    if (!bs)
        return er_error_set(err, -ENOMEM, "barriers: out of memory");
    bs->driver = driver;
    er_list_init(&bs->barriers);
    er_list_init(&bs->rounds);
    er_list_init(&bs->orphans);
    *ret = bs;
    return 0;
}

void er_barriers_free(struct er_barriers *bs)
{
    if (!bs)
        return;
    er_barriers_end(bs);
    while (!er_list_empty(&bs->orphans))
        free_round(ER_LIST_ITEM(bs->orphans.next, struct round, node), ER_E_STALE);
    free(bs);
}

static bool has(const struct er_list *waiters, int local_rank)
{
    er_list_for_each (node, waiters) {
        if (ER_LIST_ITEM(node, struct waiter, node)->local_rank == local_rank)
            return true;
    }
    return false;
}

bool er_barriers_has(const struct er_barriers *bs, int local_rank)
{
    er_list_for_each (node, &bs->barriers) {
        if (has(&ER_LIST_ITEM(node, struct barrier, node)->waiters, local_rank))
            return true;
    }
    er_list_for_each (node, &bs->rounds) {
        if (has(&ER_LIST_ITEM(node, struct round, node)->waiters, local_rank))
            return true;
    }
    return false;
}

uint64_t er_barriers_deadline(const struct er_barriers *bs)
{
    const struct er_list *lists[] = {&bs->barriers, &bs->rounds};
    uint64_t deadline_us = ER_FOREVER;

    for (int i = 0; i < 2; i++) {
        er_list_for_each (node, lists[i]) {
            const struct er_list *waiters = i == 0
                                                ? &ER_LIST_ITEM(node, struct barrier, node)->waiters
                                                : &ER_LIST_ITEM(node, struct round, node)->waiters;

            er_list_for_each (at, waiters) {
                uint64_t us = ER_LIST_ITEM(at, struct waiter, node)->deadline_us;

                deadline_us = us < deadline_us ? us : deadline_us;
            }
        }
    }
    return deadline_us;
}

static void expire(struct er_list *waiters, uint64_t now_us)
{
    er_list_for_each_safe (node, waiters) {
        struct waiter *w = ER_LIST_ITEM(node, struct waiter, node);

        if (w->deadline_us <= now_us)
            answer(w, -ETIMEDOUT);
    }
}

void er_barriers_step(struct er_barriers *bs, uint64_t now_us)
{
    er_list_for_each (node, &bs->barriers)
        expire(&ER_LIST_ITEM(node, struct barrier, node)->waiters, now_us);
    er_list_for_each (node, &bs->rounds)
        expire(&ER_LIST_ITEM(node, struct round, node)->waiters, now_us);
}
