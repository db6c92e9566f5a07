/* A generation ends, and workers that can live on leave it for the next one. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/group_internal.h"
#include "agent/helper.h"
#include "agent/orphan.h"
#include "base/cleanup.h"

void er_group_turn_away(struct er_worker *w)
{
    struct er_ctl_msg over = {.status = 1};

    if (w->has_left)
        er_ticket_answer(&w->left, &over);
    w->has_left = false;
}

static bool any_lives_on(const struct er_group *g)
{
    bool any = false;

    for (int i = 0; i < g->n; i++)
        any |= er_worker_rejoins(g->workers[i]) && er_worker_fsm_alive(&g->workers[i]->fsm);
    return any && !g->stopping && g->n == g->a.local_size;
}

bool er_group_starts(const struct er_group *g)
{
    bool any = false;

    for (int i = 0; i < g->n; i++) {
        const struct er_worker *w = g->workers[i];

        any |= w->fsm.state < ER_WORKER_READY && w->spoke;
    }
    return any;
}

/* From now on the generation is being left; who has left already waits for the next one. */
static void begin_leaving(struct er_group *g, uint64_t now_us, uint64_t grace_us)
{
    g->leaving = true;
    g->leave_end_us = er_deadline_in(now_us, grace_us);
    for (int i = 0; i < g->n; i++) {
        if (g->workers[i]->has_left)
            er_group_step_worker(g, g->workers[i], ER_WORKER_EV_LEFT, now_us, 0);
    }
}

bool er_group_ask(struct er_group *g, uint64_t now_us, uint64_t grace_us, bool save_first)
{
    if (g->leaving || !any_lives_on(g) || !er_group_all_spoke(g))
        return false;
    for (int i = 0; i < g->n; i++) {
        g->workers[i]->save_first = save_first;
        er_group_step_worker(g, g->workers[i], ER_WORKER_EV_ASK, now_us, grace_us);
    }
    begin_leaving(g, now_us, grace_us);
    return true;
}

bool er_group_leave(struct er_group *g, uint64_t now_us, uint64_t grace_us)
{
    if (!any_lives_on(g))
        return false;
    for (int i = 0; i < g->n; i++) {
        struct er_worker *w = g->workers[i];

        if (!g->leaving || !w->has_left)
            er_group_step_worker(g, w,
                                 er_worker_rejoins(w) ? ER_WORKER_EV_LEAVE : ER_WORKER_EV_STOP,
                                 now_us, grace_us);
    }
    begin_leaving(g, now_us, grace_us);
    return true;
}

void er_group_dismiss(struct er_group *g, uint64_t now_us, uint64_t grace_us)
{
    g->stopping = true;
    g->leaving = g->parted = false;
    g->grace_end_us = er_deadline_in(now_us, grace_us);
    er_group_drop_joining(g);
    er_group_step_all(g, ER_WORKER_EV_HURRY, now_us, grace_us);
    for (int i = 0; i < g->n; i++)
        er_group_turn_away(g->workers[i]);
}

/* The worker's connection has ended: mostly because it has. One that lives can be told nothing any
 * more. */
static void on_left_gone(struct er_ticket *ticket)
{
    struct er_worker *w = ER_LIST_ITEM(ticket, struct er_worker, left);

    w->has_left = false;
    er_group_step_worker(w->group, w, ER_WORKER_EV_HURRY, er_now_us(), 0);
}

void er_group_left(struct er_group *g, struct er_worker *w, struct er_ctlconn *conn, uint32_t seq,
                   uint64_t now_us)
{
    if (w->has_left) {
        er_ctlconn_status(conn, seq, -EALREADY, NULL);
        return;
    }
    /* A child of a worker that is dead, over its connection: the place is about to be filled anew,
     * and what is owed to it is not looked at any more. */
    if (!er_worker_fsm_alive(&w->fsm)) {
        er_ctlconn_status(conn, seq, ER_E_STALE, NULL);
        return;
    }
    er_ticket_init(&w->left, conn, seq, on_left_gone);
    w->has_left = w->rejoins = true;
    w->left_us = now_us;
    if (g->stopping) /* it came too late to go on */
        er_group_turn_away(w);
    else
        er_group_step_worker(g, w, ER_WORKER_EV_LEFT, now_us, 0);
}

bool er_group_confirm(struct er_group *g, const struct er_assignment *a)
{
    if (g->gone || g->stopping || g->leaving || g->alive_n < g->n || g->n != a->local_size ||
        g->a.generation != a->generation)
        return false;
    g->a = *a;
    return true;
}

bool er_group_parted(const struct er_group *g)
{
    return g->parted && g->alive_n > 0;
}

int er_group_acting(const struct er_group *g)
{
    int n = 0;

    for (int i = 0; i < g->n; i++)
        n += er_worker_fsm_alive(&g->workers[i]->fsm) && !g->workers[i]->has_left;
    return n;
}

static int prepare_rejoin(struct er_group *g, const struct er_assignment *a, struct er_error *err)
{
    g->leaving = g->parted = g->childless = g->deserted = false;
    g->kill_us = g->sweep_us = 0;
    er_loop_source_free(g->report);
    g->report = NULL;
    er_cleanup_fd(&g->report_fd);
    er_group_forget_paths(g);
    return er_group_seat(g, a, err);
}

int er_group_rejoin(struct er_group *g, const struct er_assignment *a, struct er_error *err)
{
    int rc = prepare_rejoin(g, a, err);

    if (!rc)
        rc = er_group_launch(g, err);
    /* Whoever has no process is not to be killed. */
    for (int i = 0; rc && i < g->n; i++) {
        if (g->workers[i]->pid == 0)
            er_group_step_worker(g, g->workers[i], ER_WORKER_EV_EXITED, 0, 0);
    }
    if (rc)
        er_group_stop(g, er_now_us(), 0);
    return rc;
}

/* What the ended workers left behind is ended; then those who wait are all there is. */
static void sweep_around(struct er_group *g, uint64_t now_us)
{
    size_t n = er_helpers_pids(g->ctx->helpers, g->spared);

    er_group_child(g);
    for (int i = 0; i < g->pool_n; i++) {
        if (er_worker_fsm_alive(&g->pool[i].fsm))
            g->spared[n++] = g->pool[i].pid;
    }
    g->sweep_us = now_us + ER_GROUP_SWEEP_US;
    if (er_group_acting(g) > 0 || g->alive_n == 0 || er_orphan_pass(SIGKILL, g->spared, n) > 0)
        return;
    g->parted = true;
    g->callbacks.parted(g->user);
}

void er_group_step_leaving(struct er_group *g, uint64_t now_us)
{
    er_group_step_all(g, ER_WORKER_EV_TIME, now_us, 0);
    if (now_us >= g->leave_end_us && er_group_acting(g) > 0 && !g->kill_us)
        g->kill_us = now_us;
    if (!g->parted && g->alive_n > 0 && er_group_acting(g) == 0)
        sweep_around(g, now_us);
}

const struct er_worker *er_group_deserter(const struct er_group *g)
{
    const struct er_worker *first = NULL;

    for (int i = 0; i < g->n; i++) {
        const struct er_worker *w = g->workers[i];

        if (w->has_left && (!first || w->left_us < first->left_us))
            first = w;
    }
    return first;
}

/* Nobody was lost, as far as anybody knows, and the others wait for it: it has failed. */
static void kill_deserters(struct er_group *g, uint64_t now_us)
{
    for (int i = 0; i < g->n; i++) {
        struct er_worker *w = g->workers[i];
        char *text = NULL;

        if (!w->has_left || now_us < w->left_us + g->unasked_us)
            continue;
        if (asprintf(&text, "it left its generation%s%s%s, and nobody else was lost",
                     w->message ? " (" : "", w->message ? w->message : "",
                     w->message ? ")" : "") < 0)
            text = NULL;
        free(w->message);
        w->message = text;
        w->left_us = now_us; /* once */
        kill(-w->pid, SIGKILL);
    }
}

void er_group_step_deserted(struct er_group *g, uint64_t now_us)
{
    const struct er_worker *first = er_group_deserter(g);

    if (!first)
        return;
    if (!g->deserted && now_us >= first->left_us + ER_GROUP_DESERTED_US) {
        g->deserted = true;
        if (g->callbacks.deserted) /* not while it is being freed */
            g->callbacks.deserted(g->user);
    }
    if (!g->leaving && !g->stopping)
        kill_deserters(g, now_us);
}
