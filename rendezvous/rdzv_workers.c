#include "rendezvous/rdzv_internal.h"

#include <string.h>

#include "base/exit_codes.h"

/* The workers of this node: prepared ahead of a seal, started by it, told of the next change,
 * stopped. */

#define ASSIGN_LAG_US                                                                              \
    500000ull /* an assignment that was written before the word to go shows by then */

static bool superseded(const struct er_rdzv *c)
{
    const struct er_job_record *w = &c->world;

    if (!c->k_world.present)
        return false;
    if (c->preparing && w->next != c->run_generation &&
        !(w->phase == ER_WORLD_SEALED && w->generation == c->run_generation))
        return true;
    /* A record made anew, in a store that has lost the old one: what runs is not of it. */
    if (strcmp(w->run, c->assignment.run) != 0)
        return true;
    return rdzv_terminal(w) || w->generation > c->run_generation;
}

/* A planned change lets the workers of a leaving node go on till then. */
static bool leaving_now(struct er_rdzv *c)
{
    return c->leaving && rdzv_due(c, c->leave_until_us);
}

static const char *stop_reason(const struct er_rdzv *c)
{
    if (rdzv_job_over(c))
        return c->world.phase == ER_WORLD_DONE ? "job succeeded" : "job failed";
    if (superseded(c))
        return er_reason_name(c->world.reason);
    return c->leaving ? c->leave_reason : "the store is out of reach";
}

void rdzv_stop_workers(struct er_rdzv *c)
{
    struct er_rdzv_action *a = rdzv_act(c, ER_ACT_STOP);

    if (rdzv_job_over(c) && c->world.stop_us && !c->deadline_us)
        c->deadline_us = er_deadline_in(c->now_us, c->world.stop_us);
    if (er_bug(LEFT_WITHOUT_STOP))
        c->left = c->run_generation;
    a->generation = c->run_generation;
    a->reason = stop_reason(c);
    c->prepare_failed = false;
    rdzv_set_run(c, ER_RUN_STOPPING);
}

static bool assigned(const struct er_rdzv *c)
{
    const struct er_assign *a = &c->assign;

    return c->k_world.present && c->k_assign.present && c->world.phase == ER_WORLD_SEALED &&
           ((a->generation == c->world.generation && a->nonce == c->world.nonce &&
             a->incarnation == c->opts.incarnation) ||
            (a->prev_generation == c->world.generation && a->prev_nonce == c->world.nonce &&
             a->prev_incarnation == c->opts.incarnation) ||
            (er_bug(INCARNATION_IGNORED) && a->generation == c->world.generation &&
             a->nonce == c->world.nonce));
}

/* Assigned to a generation that is claimed, while another one is sealed. */
static bool wanted_ahead(const struct er_rdzv *c)
{
    const struct er_job_record *w = &c->world;

    return c->k_world.present && c->k_assign.present && w->phase == ER_WORLD_SEALED && w->next &&
           c->assign.generation == w->next && c->assign.nonce == w->next_nonce &&
           c->assign.incarnation == c->opts.incarnation;
}

/* Two records, of which others can have written either: whoever starts workers counts on these
 * bounds. */
static bool makes_sense(const struct er_assignment *s)
{
    return s->nnodes > 0 && s->nnodes <= (int)ER_NODES_MAX && s->node_rank >= 0 &&
           s->node_rank < s->nnodes && s->first_rank >= 0 && s->first_rank < s->world_size &&
           s->world_size <= INT32_MAX - s->local_size;
}

static void refuse_start(struct er_rdzv *c)
{
    rdzv_leave(c, ER_CODE_PROTOCOL,
               "the store gives this node ranks that are none of the generation's: its record was "
               "damaged, or changed by hand",
               0);
}

/* What is claimed has no master yet: its port is chosen by the seal. */
static void prepare_workers(struct er_rdzv *c)
{
    struct er_assignment *s = &c->assignment;
    const struct er_job_record *w = &c->world;

    memset(s, 0, sizeof(*s));
    s->generation = w->next;
    s->nonce = w->next_nonce;
    memcpy(s->run, w->run, sizeof(s->run));
    s->node_rank = c->assign.group_rank;
    s->nnodes = (int)w->next_nnodes;
    s->first_rank = c->assign.first_rank;
    s->role_first = c->assign.role_first;
    s->role_size = c->assign.role_size;
    s->local_size = c->slots;
    s->world_size = (int)w->next_size;
    s->restarts = w->restarts;
    s->warm = w->next_warm;
    s->skips = w->skips;
    s->reason = er_reason_name(w->next_reason);
    if (!makes_sense(s)) {
        refuse_start(c);
        return;
    }
    c->run_generation = w->next;
    c->run_nonce = w->next_nonce;
    c->preparing = true;
    c->prepare_failed = false;
    rdzv_set_run(c, ER_RUN_UP);
    rdzv_act(c, ER_ACT_PREPARE)->start = s;
}

static void start_workers(struct er_rdzv *c)
{
    struct er_assignment *s = &c->assignment;
    const struct er_job_record *w = &c->world;
    bool now = c->assign.generation == w->generation;

    memset(s, 0, sizeof(*s));
    s->generation = w->generation;
    s->nonce = w->nonce;
    memcpy(s->run, w->run, sizeof(s->run));
    s->node_rank = now ? c->assign.group_rank : c->assign.prev_rank;
    s->nnodes = (int)w->nnodes;
    s->first_rank = now ? c->assign.first_rank : c->assign.prev_first;
    s->role_first = now ? c->assign.role_first : c->assign.prev_role_first;
    s->role_size = now ? c->assign.role_size : c->assign.prev_role_size;
    s->local_size = c->run_slots = c->offer = c->slots;
    s->world_size = (int)w->world_size;
    memcpy(s->master_addr, w->master_addr, sizeof(s->master_addr));
    s->master_port = w->master_port;
    s->restarts = w->restarts;
    s->skips = w->skips;
    s->reason = er_reason_name(w->reason);
    if (!makes_sense(s)) {
        refuse_start(c);
        return;
    }
    c->run_generation = w->generation;
    c->run_nonce = w->nonce;
    if (c->run == ER_RUN_IDLE)
        rdzv_set_run(c, ER_RUN_UP);
    c->preparing = false;
    rdzv_act(c, ER_ACT_START)->start = s;
}

/* The running workers are to leave for the next generation. Whether this node is in it shows in its
 * assignment, which was written before; the two are watched apart. */
static void notice_workers(struct er_rdzv *c)
{
    const struct er_job_record *w = &c->world;
    struct er_rdzv_action *a;

    if (c->run != ER_RUN_UP || c->preparing || !w->next_go || w->next == c->noticed ||
        w->generation != c->run_generation)
        return;
    if (c->go_for != w->next) {
        c->go_for = w->next;
        c->go_us = c->now_us;
    }
    if (!wanted_ahead(c) && !c->leaving && !rdzv_due(c, er_deadline_in(c->go_us, ASSIGN_LAG_US)))
        return;
    c->noticed = w->next;
    a = rdzv_act(c, ER_ACT_NOTICE);
    a->generation = w->next;
    a->stays = wanted_ahead(c) && !c->leaving;
}

void rdzv_workers_decide(struct er_rdzv *c)
{
    if (c->run == ER_RUN_UP && (superseded(c) || leaving_now(c) || c->prepare_failed))
        rdzv_stop_workers(c);
    if (c->run == ER_RUN_IDLE && c->state == ER_RDZV_IN && !c->leaving && assigned(c) &&
        ((c->world.generation > c->left && c->world.generation > c->run_generation) ||
         er_bug(START_AGAIN)))
        start_workers(c);
    if (c->run == ER_RUN_UP && c->preparing && c->world.phase == ER_WORLD_SEALED &&
        c->world.generation == c->run_generation && assigned(c))
        start_workers(c);
    if (c->run == ER_RUN_IDLE && c->state == ER_RDZV_IN && !c->leaving && c->planned &&
        wanted_ahead(c) && c->world.next > c->left && c->world.next > c->run_generation &&
        !assigned(c))
        prepare_workers(c);
    notice_workers(c);
    /* Assigned or not, what was never started here is as good as left. */
    if (c->run == ER_RUN_IDLE && c->k_world.present && c->world.phase == ER_WORLD_FORMING &&
        c->world.last_sealed > c->left)
        c->left = c->world.last_sealed;
}
