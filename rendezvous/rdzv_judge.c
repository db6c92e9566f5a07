#include "rendezvous/rdzv_internal.h"

#include <string.h>

/* Cause, cost and verdict of a generation that ended. The cause is fixed by the seal or the verdict
 * only, when every member has left or is lost: a dead node makes its peers' workers fail first, and
 * a victim is never the cause. */

#define POISON_CODE 93  /* restarting cannot help */
#define HUNG_CODE   124 /* as timeout(1) */
#define OOM_CODE    137 /* SIGKILL */

static uint64_t elapsed(const struct er_rdzv *c)
{
    return c->now_us > c->view.world_us ? c->now_us - c->view.world_us : 0;
}

uint32_t rdzv_budget_used(const struct er_rdzv *c)
{
    const struct er_job_record *w = &c->view.world;
    uint64_t window = c->opts.restart_window_us;
    uint32_t used = 0;

    if (window == ER_FOREVER)
        return w->restarts;
    for (uint32_t i = 0; i < w->age_n; i++) {
        if (er_deadline_in(w->ages[i].age_us, elapsed(c)) <= window)
            used += w->ages[i].count;
    }
    return used;
}

void rdzv_budget_advance(const struct er_rdzv *c, struct er_job_record *w)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < w->age_n; i++) {
        struct er_budget_age a = w->ages[i];

        a.age_us = er_deadline_in(a.age_us, elapsed(c));
        if (a.age_us <= c->opts.restart_window_us)
            w->ages[n++] = a;
    }
    w->age_n = n;
}

/* Oldest first. No room: the two nearest in age become one bucket of the younger age. */
void rdzv_budget_add(struct er_job_record *w)
{
    if (w->age_n == ER_BUDGET_AGES) {
        uint32_t best = 0;

        for (uint32_t i = 1; i + 1 < w->age_n; i++) {
            if (w->ages[i].age_us - w->ages[i + 1].age_us <
                w->ages[best].age_us - w->ages[best + 1].age_us)
                best = i;
        }
        w->ages[best + 1].count += w->ages[best].count;
        memmove(&w->ages[best], &w->ages[best + 1], (w->age_n - best - 1) * sizeof(w->ages[0]));
        w->age_n--;
    }
    w->ages[w->age_n++] = (struct er_budget_age){.age_us = 0, .count = 1};
    w->restarts++;
}

uint64_t rdzv_backoff(const struct er_rdzv *c, uint32_t early_row)
{
    uint64_t wait = c->opts.backoff_initial_us;

    for (uint32_t i = 1; i < early_row && wait && wait < c->opts.backoff_max_us; i++)
        wait *= 2;
    return wait < c->opts.backoff_max_us ? wait : c->opts.backoff_max_us;
}

static int exit_code_of(const struct er_cause *cause)
{
    switch (cause->kind) {
    case ER_EXIT_SIGNALED:
        return 128 + cause->signal;
    case ER_EXIT_OOM:
        return OOM_CODE;
    case ER_EXIT_HUNG:
        return HUNG_CODE;
    case ER_EXIT_EXITED:
    case ER_EXIT_EXEC_FAILED:
    case ER_EXIT_OK:
    case ER_EXIT_LOST:
    case ER_EXIT_STOPPED:
    case ER_EXIT_KIND_COUNT:
        break;
    }
    return cause->code > 0 && cause->code < 256 ? cause->code : 1;
}

static void add_duration(struct er_text *t, uint64_t us)
{
    static const struct {
        uint64_t us;
        const char *name;
    } units[] = {{3600000000ull, "h"}, {60000000ull, "m"}, {1000000ull, "s"}, {1000ull, "ms"}};

    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (us && us % units[i].us == 0) {
            er_text_u64(t, us / units[i].us);
            er_text_add(t, units[i].name);
            return;
        }
    }
    er_text_u64(t, us);
    er_text_add(t, "us");
}

static void say_fatal(const struct er_cause *cause, struct er_text *t)
{
    if (cause->kind == ER_EXIT_EXEC_FAILED) {
        er_text_add(t, "the program cannot be started");
        return;
    }
    er_text_add(t, "exit code ");
    er_text_u64(t, (uint64_t)exit_code_of(cause));
    er_text_add(t, " is fatal");
}

static void say_spent(const struct er_rdzv *c, uint32_t used, struct er_text *t)
{
    if (c->opts.restart_max == 0) {
        er_text_add(t, "no restarts allowed");
        return;
    }
    er_text_add(t, "budget spent (");
    er_text_u64(t, used);
    er_text_add(t, " of ");
    er_text_u64(t, c->opts.restart_max);
    if (c->opts.restart_window_us != ER_FOREVER) {
        er_text_add(t, " in ");
        add_duration(t, c->opts.restart_window_us);
    }
    er_text_add(t, ")");
}

static void say_poison(const struct er_cause *cause, uint32_t failures, struct er_text *t)
{
    er_text_add(t, "step ");
    er_text_u64(t, cause->in_step);
    er_text_add(t, " has failed ");
    er_text_u64(t, failures);
    er_text_add(t, failures == 1 ? " time (restart.poison_step)" : " times (restart.poison_step)");
}

/* What fails in the same step again and again would do so for ever. Where it was always the same
 * node, and others are enough, they try first. */
static void judge_step(const struct er_rdzv *c, struct rdzv_judgement *j, struct er_text *why)
{
    const struct er_skips *skips = &c->view.world.skips;
    uint64_t step = j->cause.in_step;
    uint32_t failures;

    if (!step || !c->opts.poison_max)
        return;
    failures = rdzv_poison_add(&j->poison, step);
    if (failures < c->opts.poison_max || rdzv_blames_node(c, j))
        return;
    if (c->opts.poison_skip && skips->n < ER_SKIPS_MAX && !rdzv_skips_has(skips, step)) {
        j->skip = step;
        j->poison.steps[0].failures = 0;
        return;
    }
    j->fail = true;
    j->exit_code = POISON_CODE;
    say_poison(&j->cause, failures, why);
}

static void judge_failure(const struct er_rdzv *c, const struct er_cause *cause,
                          struct rdzv_judgement *j)
{
    struct er_text why = {j->verdict, sizeof(j->verdict), 0};
    uint32_t used = rdzv_budget_used(c);

    j->reason = cause->kind == ER_EXIT_HUNG ? ER_REASON_WORKER_HUNG : ER_REASON_WORKER_FAILED;
    j->has_cause = true;
    j->cause = *cause;
    j->early = !c->view.progressed;
    j->uncounted = cause->uncounted && c->view.world.uncounted_row < ER_RDZV_UNCOUNTED_MAX;
    j->charge = !j->uncounted;
    if (cause->fatal) {
        j->fail = true;
        say_fatal(cause, &why);
    } else {
        judge_step(c, j, &why);
    }
    if (!j->fail && j->charge && c->opts.restart_max != UINT32_MAX && used >= c->opts.restart_max) {
        j->fail = true;
        say_spent(c, used, &why);
    }
    if (j->fail) {
        j->charge = false;
        j->exit_code = j->exit_code ? j->exit_code : exit_code_of(cause);
    }
}

static void judge_loss(const struct er_view *v, const struct er_view_node *n,
                       struct rdzv_judgement *j)
{
    struct er_text message = {j->cause.message, sizeof(j->cause.message), 0};

    j->reason = ER_REASON_NODE_LOST;
    j->has_cause = true;
    j->cause.kind = ER_EXIT_LOST;
    j->cause.rank = j->cause.local_rank = -1;
    memcpy(j->cause.node_id, n->id, sizeof(j->cause.node_id));
    memcpy(j->cause.host, n->member.host, sizeof(j->cause.host));
    er_text_add(&message, !n->present                  ? "node lost"
                          : er_view_alive_member(v, n) ? "its workers did not stop in time, and it "
                                                         "has not said how they fared"
                                                       : "its agent died and came back");
}

/* At the seal, or the verdict: a member that has neither left nor said how it went. Whether its
 * node is dead and the store doesn't know yet, or it can't stop its workers: the others may well
 * have failed because of it. */
static bool silent(const struct er_view *v, const struct er_view_node *n)
{
    return er_view_alive_member(v, n) && !er_view_ready(v, n) &&
           n->result_generation != v->world.last_sealed;
}

void rdzv_judge(const struct er_rdzv *c, struct rdzv_judgement *ret)
{
    const struct er_view *v = &c->view;
    const struct er_view_node *lost = NULL, *departed = NULL;

    memset(ret, 0, sizeof(*ret));
    ret->reason = v->world.reason;
    ret->poison = v->world.poison;
    if (v->world.last_sealed == 0)
        return;
    for (size_t i = 0; i < v->n && !lost; i++) {
        const struct er_view_node *n = &v->nodes[i];

        if (er_view_departed(v, n) && er_view_lost_member(v, n))
            departed = n;
        else if (er_view_lost_member(v, n) || silent(v, n))
            lost = n;
    }
    if (er_bug(CHARGED_EARLY) && er_view_failed(v))
        judge_failure(c, er_view_failed(v), ret);
    else if (lost)
        judge_loss(v, lost, ret);
    else if (departed)
        ret->reason = er_reason_leaves(v->world.reason) ? v->world.reason : ER_REASON_DRAINED;
    else if (er_view_failed(v))
        judge_failure(c, er_view_failed(v), ret);
}
