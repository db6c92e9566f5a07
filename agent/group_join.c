/* Workers that start beside a generation, in places that it leaves free; and who is in the next. */
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "agent/group_internal.h"
#include "base/cleanup.h"

/* What the next generation would be for this node if nothing else changed: its workers speak
 * libelastic, and are told of the one that comes when it is there. */
static void guess(const struct er_group *g, struct er_assignment *ret)
{
    int more = g->places_n - g->a.local_size;

    *ret = g->a;
    ret->local_size += more;
    ret->world_size += more;
    ret->role_size += more;
}

/* The living process in a place; NULL: it is free. */
static struct er_worker *in_place(struct er_group *g, int place)
{
    for (int i = 0; i < g->pool_n; i++) {
        if (g->pool[i].place == place && er_worker_fsm_alive(&g->pool[i].fsm))
            return &g->pool[i];
    }
    return NULL;
}

static bool is_listed(const struct er_group *g, const struct er_worker *w)
{
    for (int i = 0; i < g->n; i++) {
        if (g->workers[i] == w)
            return true;
    }
    return false;
}

/* For a new process in `place`; there are always enough. */
static struct er_worker *take_vacant(struct er_group *g, int place)
{
    for (int i = 0; i < g->pool_n; i++) {
        struct er_worker *w = &g->pool[i];

        if (er_worker_fsm_alive(&w->fsm) || is_listed(g, w))
            continue;
        er_worker_done(w);
        er_worker_vacate(w, g, place);
        return w;
    }
    assert(!"every place has two");
    return NULL;
}

static int start_beside(struct er_group *g, struct er_worker *w, struct er_error *err)
{
    struct er_assignment a;
    int rc;

    guess(g, &a);
    w->joins = true;
    rc = er_group_prepare_worker(g, w, &a, w->place, err);
    if (!rc) /* who cannot be run ends at once; the code tells why */
        rc = er_group_spawn_worker(g, w, g->ctx->null_fd, err);
    if (!rc) {
        er_worker_launched(w);
        rc = er_group_watch_worker(g, w, err);
    }
    return rc;
}

int er_group_add(struct er_group *g, struct er_error *err)
{
    struct er_worker *w;
    int rc, place = 0;

    while (place < g->places_n && in_place(g, place))
        place++;
    if (place == g->places_n)
        return 1;
    w = take_vacant(g, place);
    er_group_forget_paths(g);
    rc = start_beside(g, w, err);
    if (rc && w->pid > 0) {
        er_group_step_worker(g, w, ER_WORKER_EV_KILL, 0, 0);
    } else if (rc) {
        er_worker_done(w);
        er_worker_vacate(w, g, place);
    }
    return rc;
}

/* Its connection has ended, and with it its chance to learn of the generation. */
static void on_hello_gone(struct er_ticket *ticket)
{
    struct er_worker *w = ER_LIST_ITEM(ticket, struct er_worker, left);

    w->has_left = false;
    er_group_step_worker(w->group, w, ER_WORKER_EV_KILL, 0, 0);
}

void er_group_hello(struct er_group *g, struct er_worker *w, struct er_ctlconn *conn, uint32_t seq)
{
    if (w->has_left) {
        er_ctlconn_status(conn, seq, -EALREADY, NULL);
        return;
    }
    er_ticket_init(&w->left, conn, seq, on_hello_gone);
    w->has_left = true;
    er_group_step_worker(g, w, ER_WORKER_EV_EXECED, 0, 0);
}

struct er_group_next er_group_next(const struct er_group *g)
{
    struct er_group_next next = {0};

    for (int i = 0; i < g->pool_n; i++) {
        const struct er_worker *w = &g->pool[i];

        if (!er_worker_fsm_alive(&w->fsm) || w->fsm.state == ER_WORKER_KILLING)
            continue;
        next.left += !w->joins && w->has_left;
        next.up += w->joins && w->has_left;
        next.coming += w->joins && !w->has_left;
    }
    return next;
}

void er_group_drop_joining(struct er_group *g)
{
    for (int i = 0; i < g->pool_n; i++) {
        struct er_worker *w = &g->pool[i];

        if (w->joins && er_worker_fsm_alive(&w->fsm))
            er_group_step_worker(g, w, ER_WORKER_EV_KILL, 0, 0);
    }
}

void er_group_join_ended(struct er_group *g, struct er_worker *w)
{
    if (w->has_left)
        er_group_turn_away(w);
    if (g->callbacks.unjoined && !g->stopping && g->alive_n > 0)
        g->callbacks.unjoined(g->user, w);
}

static uint64_t up_until(const struct er_group *g, const struct er_worker *w)
{
    if (!w->joins || w->has_left || !er_worker_fsm_alive(&w->fsm) ||
        w->fsm.state == ER_WORKER_KILLING)
        return ER_FOREVER;
    return er_deadline_in(w->started_us, g->ctx->config->hang.startup_us);
}

void er_group_step_joining(struct er_group *g, uint64_t now_us)
{
    for (int i = 0; i < g->pool_n; i++) {
        struct er_worker *w = &g->pool[i];

        if (now_us >= up_until(g, w))
            er_group_step_worker(g, w, ER_WORKER_EV_KILL, now_us, 0);
    }
}

uint64_t er_group_join_deadline(const struct er_group *g)
{
    uint64_t deadline_us = ER_FOREVER;

    for (int i = 0; i < g->pool_n; i++) {
        uint64_t at = up_until(g, &g->pool[i]);

        deadline_us = at < deadline_us ? at : deadline_us;
    }
    return deadline_us;
}

/* ---- who is in the next generation ---- */

/* How much a place has to offer: who has left has its memory, who is up its start behind it. */
static unsigned worth(const struct er_worker *w)
{
    if (!w)
        return 1;
    if (w->fsm.state == ER_WORKER_KILLING)
        return 0;
    return !w->joins ? 4 : w->has_left ? 3 : 2;
}

#define WORTH_MAX 4

/* How many places of each worth are among the best `n`. */
static void count_best(struct er_group *g, int n, int ret[WORTH_MAX + 1])
{
    int have[WORTH_MAX + 1] = {0};

    for (int place = 0; place < g->places_n; place++)
        have[worth(in_place(g, place))]++;
    for (int value = WORTH_MAX; value >= 0; value--) {
        ret[value] = have[value] < n ? have[value] : n;
        n -= ret[value];
    }
}

/* The best `n` places, the first ones of equal worth, in their order. */
static void choose(struct er_group *g, int n)
{
    int best[WORTH_MAX + 1];

    count_best(g, n, best);
    g->n = 0;
    for (int place = 0; place < g->places_n; place++) {
        struct er_worker *w = in_place(g, place);

        if (best[worth(w)] == 0)
            continue;
        best[worth(w)]--;
        g->workers[g->n] = w ? w : take_vacant(g, place);
        g->n++;
    }
}

/* Who is being killed fails in the generation: too late for another one to be had. */
static void take_over(struct er_group *g, struct er_worker *w, uint64_t now_us)
{
    struct er_cgroup *cgroup = g->ctx->cgroup;

    if (w->joins) {
        g->alive_n++;
        w->fsm.stopped_by_us = false;
    } else {
        er_group_step_worker(g, w, ER_WORKER_EV_REJOIN, 0, 0);
    }
    w->oom_seen = cgroup->ops->oom_kills(cgroup, w->place);
    er_worker_adopt(w, g->ctx, &g->a, now_us);
}

int er_group_seat(struct er_group *g, const struct er_assignment *a, struct er_error *err)
{
    uint64_t now_us = er_now_us();
    int rc = 0;

    g->a = *a;
    for (int i = 0; i < g->pool_n; i++) {
        if (!er_worker_fsm_alive(&g->pool[i].fsm)) {
            er_worker_done(&g->pool[i]);
            er_worker_vacate(&g->pool[i], g, i);
        }
    }
    choose(g, a->local_size);
    for (int i = 0; !rc && i < g->n; i++) {
        struct er_worker *w = g->workers[i];

        w->local_rank = i;
        if (er_worker_fsm_alive(&w->fsm))
            take_over(g, w, now_us);
        else
            rc = er_group_prepare_worker(g, w, a, i, err);
    }
    return rc;
}
