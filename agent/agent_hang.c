/* Ranks that stand still: looked at, judged with the other nodes, told. */
#include "agent/agent_hang.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "agent/agent_internal.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/parse.h"

#define UNKILLED_US (5 * ER_US_PER_S) /* who was killed has ended by then, or never will */

static struct er_hang_limits limits_of(const struct er_config *c)
{
    return (struct er_hang_limits){.floor_us = c->hang.floor_us,
                                   .startup_us = c->hang.startup_us,
                                   .checkpoint_us = c->hang.checkpoint_us,
                                   .evaluation_us = c->hang.evaluation_us,
                                   .factor = c->hang.factor};
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Workers that leave, or are told to, have other deadlines. */
static bool is_wanted(const struct er_worker *w)
{
    return w->page && !w->has_left && !w->hung && w->fsm.state <= ER_WORKER_READY;
}

static struct er_hang_sample sample(struct er_agent_hang *h, const struct er_worker *w)
{
    const struct er_page_progress *p = &w->page->from_worker;
    struct er_hang_sample s = {
        .first_us = atomic_load(&p->first_step_us),
        .first_step = atomic_load(&p->first_step),
        .phase = atomic_load(&p->phase),
        .step = atomic_load(&p->step),
        .collective = atomic_load(&p->collective),
        .reported_us = atomic_load(&p->step_us),
        .begun_us = later(later(w->started_us, w->kept_us), h->begun_us),
    };

    h->ever_reported |= s.reported_us > 0;
    s.reports = is_wanted(w) && h->ever_reported;
    return s;
}

/* Somebody else says when this generation ends, or has. */
static bool is_watched(const struct er_agent *agent)
{
    return agent->group && !er_group_gone(agent->group) && !agent->warming && !agent->draining &&
           !agent->stop_wanted && !agent->result_said && !agent->done;
}

/* The ranks that are looked at are those that run: between two steps of the agent there may be
 * others already. */
static bool is_current(const struct er_agent *agent)
{
    const struct er_agent_hang *h = agent->hang;

    return h->n > 0 && is_watched(agent) &&
           h->generation == er_group_assignment(agent->group)->generation;
}

static void look_at(struct er_agent *agent, int i, uint64_t now_us)
{
    struct er_agent_hang *h = agent->hang;
    const struct er_worker *w = er_group_worker(agent->group, i);
    struct er_hang_sample s = {0};

    if (w->page)
        s = sample(h, w);
    er_hang_look(&h->clocks, &h->ranks[i], &s, now_us);
}

static void look(struct er_agent *agent, uint64_t now_us)
{
    struct er_agent_hang *h = agent->hang;
    uint64_t slept_us = er_hang_awake(&h->clocks, h->ranks, h->n, now_us);
    char time[ER_UNIT_TEXT_MAX];

    if (slept_us > ER_US_PER_S) {
        er_format_duration(slept_us / ER_US_PER_MS * ER_US_PER_MS, time);
        er_log(ER_LOG_WARNING, "this agent did not run for a while; that time counts for nobody",
               ER_STR("time", time));
    }
    h->clocks.limits = limits_of(agent->config);
    h->still = h->late = false;
    for (int i = 0; i < h->n; i++) {
        look_at(agent, i, now_us);
        h->still |= er_hang_state(&h->clocks, &h->ranks[i], now_us) >= ER_HANG_STILL;
        h->late |= er_hang_alarms(&h->clocks, &h->ranks[i], now_us);
    }
    er_hang_looked(&h->clocks, h->ranks, h->n, now_us);
}

static const struct er_hang_process *process_of(struct er_agent_hang *h, int i,
                                                const struct er_worker *w, uint64_t now_us,
                                                uint64_t stale_us)
{
    struct er_hang_process *p = &h->processes[i];
    pid_t pid = w->speaker ? w->speaker : w->pid;
    struct er_procinfo info;

    if (p->read_us && p->pid == pid && now_us < p->read_us + stale_us)
        return p;
    er_procinfo_read(pid, &info);
    *p = (struct er_hang_process){
        .read_us = now_us, .pid = pid, .stopped = info.stopped, .traced = info.traced};
    return p;
}

bool er_agent_hang_fact(struct er_agent *agent, int i, uint64_t now_us, uint64_t stale_us,
                        struct er_hang_fact *ret)
{
    struct er_agent_hang *h = agent->hang;
    const struct er_worker *w;
    const struct er_hang_process *process;
    uint64_t limit, still;

    if (i >= h->n || !is_current(agent))
        return false;
    w = er_group_worker(agent->group, i);
    look_at(agent, i, now_us);
    if (!h->ranks[i].known)
        return false;
    process = process_of(h, i, w, now_us, stale_us);
    limit = er_hang_limit(&h->clocks, &h->ranks[i]);
    still = er_hang_still_us(&h->ranks[i], now_us);
    *ret = (struct er_hang_fact){
        .rank = w->rank,
        .node_rank = er_group_assignment(agent->group)->node_rank,
        .state = er_hang_state(&h->clocks, &h->ranks[i], now_us),
        .stopped = process->stopped,
        .traced = process->traced,
        .waits = er_agent_waits_in_store(agent, w->local_rank),
        .phase =
            h->ranks[i].phase <= ER_PHASE_IDLE ? (enum er_phase)h->ranks[i].phase : ER_PHASE_IDLE,
        .step = h->ranks[i].step,
        .collective = h->ranks[i].collective,
        .still_us = still,
        .left_us = limit == ER_FOREVER ? ER_FOREVER
                   : limit > still     ? limit - still
                                       : 0,
    };
    return true;
}

size_t er_agent_hang_facts(struct er_agent *agent, struct er_hang_fact *ret)
{
    uint64_t now_us = er_now_us();
    size_t n = 0;

    if (!is_current(agent))
        return 0;
    look(agent, now_us); /* first of all, whether the agent has slept */
    for (int i = 0; i < agent->hang->n && n < ER_HANG_FACTS_MAX; i++)
        n += er_agent_hang_fact(agent, i, now_us, 0, &ret[n]);
    return n;
}

static size_t facts(void *user, struct er_hang_fact *ret)
{
    return er_agent_hang_facts(user, ret);
}

/* It has not moved since it was judged. */
static bool is_as_judged(const struct er_hang_fact *was, const struct er_hang_fact *now)
{
    return now->state != ER_HANG_MOVING && now->phase == was->phase && now->step == was->step &&
           now->collective == was->collective;
}

static void decided(void *user, const struct er_hang_verdict *verdict)
{
    struct er_agent *agent = user;
    struct er_agent_hang *h = agent->hang;
    uint64_t now_us = er_now_us();

    if (!is_current(agent))
        return;
    look(agent, now_us);
    h->verdict = *verdict;
    h->verdict_us = now_us;
    h->still = h->late = false;
    for (int i = 0; i < h->n; i++) {
        if (er_hang_state(&h->clocks, &h->ranks[i], now_us) >= ER_HANG_STILL)
            h->ranks[i].told_us = now_us; /* the next time after as long again */
    }
    er_agent_hang_say(agent, verdict);
    for (int v = 0; v < verdict->n && er_hang_is_hang(verdict); v++) {
        int i = verdict->who[v].rank - er_group_assignment(agent->group)->first_rank;
        struct er_hang_fact now;

        if (i >= 0 && i < h->n && er_agent_hang_fact(agent, i, now_us, 0, &now) &&
            is_as_judged(&verdict->who[v], &now))
            er_agent_hang_act(agent, &now, i, verdict, now_us);
    }
}

/* A killed process that does not end (it sleeps in the kernel): the others do not wait for it. */
static void see_to_unkilled(struct er_agent *agent, uint64_t now_us)
{
    for (int i = 0; i < er_group_size(agent->group); i++) {
        struct er_worker *w = er_group_worker(agent->group, i);

        if (!w->hung || !er_worker_fsm_alive(&w->fsm) || now_us < w->hung_killed_us + UNKILLED_US)
            continue;
        w->hung_killed_us = ER_FOREVER - UNKILLED_US; /* once */
        w->exited_us = now_us;
        er_agent_worker_hung(agent, w);
    }
}

static void begin(struct er_agent *agent, uint64_t now_us)
{
    const struct er_assignment *a = er_group_assignment(agent->group);
    struct er_agent_hang *h = agent->hang;

    h->generation = a->generation;
    h->begun_us = now_us;
    h->verdict_us = 0;
    free(h->ranks);
    h->ranks = calloc((size_t)a->local_size, sizeof(*h->ranks));
    free(h->processes);
    h->processes = calloc((size_t)a->local_size, sizeof(*h->processes));
    h->n = h->ranks && h->processes ? er_group_size(agent->group) : 0;
    er_hang_begin(&h->clocks, now_us);
    er_hang_round_begin(h->round, a->generation, a->node_rank, a->nnodes);
    (void)er_agent_straggler_begin(agent);
}

void er_agent_hang_step(struct er_agent *agent, uint64_t now_us)
{
    struct er_agent_hang *h = agent->hang;

    if (agent->group && !er_group_gone(agent->group))
        see_to_unkilled(agent, now_us);
    if (!is_watched(agent)) {
        h->n = 0;
        h->generation = 0;
        return;
    }
    if (h->generation != er_group_assignment(agent->group)->generation)
        begin(agent, now_us);
    if (now_us >= h->clocks.due_us)
        look(agent, now_us);
    er_hang_round_step(h->round, h->still, h->late, now_us);
    er_agent_straggler_step(agent, now_us);
}

uint64_t er_agent_hang_deadline(const struct er_agent *agent)
{
    const struct er_agent_hang *h = agent->hang;
    uint64_t at = h->clocks.due_us, round = er_hang_round_deadline(h->round);
    uint64_t slow = h->slow ? er_straggler_due(&h->straggler, at) : ER_FOREVER;

    if (!is_watched(agent))
        return ER_FOREVER;
    at = round < at ? round : at;
    return slow < at ? slow : at;
}

void er_agent_hang_exited(struct er_agent *agent, struct er_worker *w)
{
    /* It may have come and gone between two looks; its successor's silence means something then. */
    if (w->page && agent->hang)
        agent->hang->ever_reported |= atomic_load(&w->page->from_worker.step_us) > 0;
    if (!w->hung || w->exit.kind != ER_EXIT_SIGNALED || w->exit.signal != SIGKILL)
        return;
    w->exit = (struct er_exit){.kind = ER_EXIT_HUNG};
    if (!w->hung_text)
        return;
    free(w->message);
    w->message = w->hung_text;
    w->hung_text = NULL;
}

int er_agent_hang_open(struct er_agent *agent, struct er_error *err)
{
    static const struct er_hang_round_ops OPS = {.facts = facts, .decided = decided};

    agent->hang = calloc(1, sizeof(*agent->hang));
    if (!agent->hang)
        return er_error_set(err, -ENOMEM, "watch for hangs: out of memory");
    agent->hang->clocks.due_us = ER_FOREVER;
    return er_hang_round_new(&agent->hang->round, agent->driver, &OPS, agent, err);
}

void er_agent_hang_close(struct er_agent *agent)
{
    if (!agent->hang)
        return;
    er_agent_straggler_end(agent);
    er_hang_round_free(agent->hang->round);
    free(agent->hang->ranks);
    free(agent->hang->processes);
    free(agent->hang);
    agent->hang = NULL;
}
