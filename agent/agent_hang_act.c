/* What is done about a rank of this node that hangs: its state, perhaps its stack, the event, the
 * end of its process. And what is said about the ranks that others have. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_hang.h"
#include "agent/agent_internal.h"
#include "agent/words.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/parse.h"

#define STACK_US  (10 * ER_US_PER_S)
#define STACK_MAX (16u * 1024) /* of an event of 64 KiB */
#define SAY_MAX   512

/* ---- words ---- */

static void seconds(uint64_t us, char ret[ER_UNIT_TEXT_MAX])
{
    snprintf(ret, ER_UNIT_TEXT_MAX, "%.1fs", (double)us / 1e6);
}

static void add_where(char *text, size_t cap, const struct er_hang_fact *f)
{
    char still[ER_UNIT_TEXT_MAX];

    seconds(f->still_us, still);
    er_words_add(text, cap, "%s after step %llu, without moving for %s", er_phase_name(f->phase),
                 (unsigned long long)f->step, still);
}

static void describe(const struct er_hang_report *r, char *text, size_t cap)
{
    char limit[ER_UNIT_TEXT_MAX];

    text[0] = '\0';
    er_words_add(text, cap, "hung in ");
    add_where(text, cap, &r->fact);
    if (r->limit_us != ER_FOREVER) {
        seconds(r->limit_us, limit);
        er_words_add(text, cap, " (limit %s)", limit);
    }
    if (r->process.state[0])
        er_words_add(text, cap, "; state %s", r->process.state);
    if (r->process.wchan[0])
        er_words_add(text, cap, " in %s", r->process.wchan);
    if (r->why == ER_HANG_WHY_ALIKE && r->waiting_all > 0)
        er_words_add(text, cap, "; nothing tells it from the others, which stand still as well: ");
    else if (r->waiting_all > 0)
        er_words_add(text, cap, "; waiting for it: ");
    if (r->waiting_all > 0)
        er_words_list(text, cap, "rank", r->waiting, r->waiting_n, r->waiting_all);
}

/* ---- the end of it ---- */

static void write_event(struct er_agent *agent, const struct er_hang_report *r, const char *stack)
{
    ER_CLEANUP(er_buf_done) struct er_buf waiting;
    ER_CLEANUP(er_cleanup_free) char *cut = stack ? strndup(stack, STACK_MAX) : NULL;
    int rc;

    er_buf_init(&waiting, 4096);
    rc = er_buf_add_str(&waiting, "[");
    for (int i = 0; !rc && i < r->waiting_n; i++)
        rc = er_buf_printf(&waiting, "%s%d", i ? "," : "", r->waiting[i]);
    if (!rc)
        rc = er_buf_add_str(&waiting, "]");
    er_event(&agent->events, "worker_hung", ER_SEVERITY_ERROR, r->generation,
             "A worker does not move any more.", ER_INT("rank", r->rank), ER_INT("pid", r->pid),
             ER_STR("phase", er_phase_name(r->fact.phase)), ER_UINT("step", r->fact.step),
             ER_UINT("collective_seq", r->fact.collective),
             ER_NUM("deadline_ms", r->limit_us == ER_FOREVER ? 0 : (double)r->limit_us / 1e3),
             ER_NUM("still_ms", (double)r->fact.still_us / 1e3),
             ER_STR("state", r->process.state[0] ? r->process.state : NULL),
             ER_STR("wchan", r->process.wchan[0] ? r->process.wchan : NULL),
             ER_JSON("waiting_ranks", rc ? "[]" : er_buf_str(&waiting)),
             ER_INT("waiting_n", r->waiting_all), ER_STR("stack", cut));
}

/* Without the store nothing could follow. */
static bool store_answers(const struct er_agent *agent)
{
    struct er_etcd_status s = {.connected = true};

    if (agent->store.etcd)
        agent->store.etcd->status(agent->store.store, &s);
    return s.connected;
}

/* NULL: it is to be killed. */
static const char *why_not_killed(const struct er_agent *agent, const struct er_hang_report *r)
{
    if (agent->config->hang.action == ER_HANG_REPORT)
        return "hang.action is report: it is left alone";
    if (r->process.traced)
        return "a debugger holds it: it is left alone";
    return store_answers(agent) ? NULL : "the store is away: it is left alone for now";
}

/* The worker of a report, if it is still the one. */
static struct er_worker *worker_of(struct er_agent *agent, const struct er_hang_report *r)
{
    struct er_worker *w;

    if (!agent->group || er_group_assignment(agent->group)->generation != r->generation ||
        r->local_rank >= er_group_size(agent->group))
        return NULL;
    w = er_group_worker(agent->group, r->local_rank);
    return er_worker_fsm_alive(&w->fsm) && !w->fsm.stopped_by_us ? w : NULL;
}

static void finish(struct er_agent *agent, const struct er_hang_report *r, const char *stack)
{
    struct er_worker *w = worker_of(agent, r);
    const char *why_not = why_not_killed(agent, r);
    char text[SAY_MAX];

    if (!w || w->hung)
        return;
    describe(r, text, sizeof(text));
    write_event(agent, r, stack);
    er_agent_say(agent, "rank %d (pid %d) %s; %s", r->rank, (int)r->pid, text,
                 why_not ? why_not : "it is killed, and counts as failed");
    if (why_not)
        return;
    w->hung = true;
    w->hung_us = r->since_us;
    w->hung_killed_us = er_now_us();
    w->hung_text = strdup(text);
    kill(-w->pid, SIGKILL);
}

/* ---- stacks ---- */

static void on_stack(void *user, const struct er_helper_end *end)
{
    struct er_hang_report *r = user;

    r->busy = false;
    finish(r->agent, r, end->text[0] ? end->text : end->trouble);
}

/* Whichever is installed, py-spy first for Python. */
static bool start_stack(struct er_agent *agent, struct er_hang_report *r, uint64_t now_us)
{
    char pid[16];
    char *py_spy[] = {"py-spy", "dump", "--pid", pid, NULL};
    char *gdb[] = {"gdb", "-nx", "-batch", "-ex", "thread apply all backtrace", "-p", pid, NULL};
    bool python = strncmp(r->process.name, "python", 6) == 0;
    struct er_helper_opts opts = {.timeout_us = STACK_US, .done = on_stack, .user = r};
    int rc = -ENOENT;

    snprintf(pid, sizeof(pid), "%d", (int)r->pid);
    if (python) {
        opts.argv = py_spy;
        rc = er_helper_start(agent->errands.helpers, &opts, now_us, NULL);
    }
    if (rc) {
        opts.argv = gdb;
        rc = er_helper_start(agent->errands.helpers, &opts, now_us, NULL);
    }
    return rc == 0;
}

/* A place for a report that waits for its stack; NULL: none is free. */
static struct er_hang_report *free_place(struct er_agent_hang *h)
{
    for (size_t i = 0; i < ER_ARRAY_N(h->reports); i++) {
        if (!h->reports[i].busy)
            return &h->reports[i];
    }
    return NULL;
}

static bool is_at_it(const struct er_agent_hang *h, uint64_t generation, int local_rank)
{
    for (size_t i = 0; i < ER_ARRAY_N(h->reports); i++) {
        const struct er_hang_report *r = &h->reports[i];

        if (r->busy && r->generation == generation && r->local_rank == local_rank)
            return true;
    }
    return false;
}

void er_agent_hang_act(struct er_agent *agent, const struct er_hang_fact *fact, int i,
                       const struct er_hang_verdict *verdict, uint64_t now_us)
{
    struct er_agent_hang *h = agent->hang;
    const struct er_worker *w = er_group_worker(agent->group, i);
    struct er_hang_report r = {
        .agent = agent,
        .local_rank = i,
        .rank = fact->rank,
        .generation = h->generation,
        .pid = w->speaker ? w->speaker : w->pid,
        .fact = *fact,
        .limit_us = er_hang_limit(&h->clocks, &h->ranks[i]),
        .since_us = h->ranks[i].since_us,
        .why = verdict->why,
        .waiting_n = verdict->waiting_n,
        .waiting_all = verdict->waiting_all,
    };
    struct er_hang_report *place = agent->config->hang.stacks ? free_place(h) : NULL;

    if (is_at_it(h, r.generation, i))
        return;
    memcpy(r.waiting, verdict->waiting, sizeof(r.waiting));
    er_procinfo_read(r.pid, &r.process);
    if (place) {
        *place = r;
        place->busy = start_stack(agent, place, now_us);
    }
    if (!place || !place->busy)
        finish(agent, &r, NULL);
}

/* ---- what others have ---- */

/* Ranks of this node hang: they are told of one by one. */
static bool is_ours(struct er_agent *agent, const struct er_hang_fact *f)
{
    return f->node_rank == er_group_assignment(agent->group)->node_rank;
}

void er_agent_hang_say(struct er_agent *agent, const struct er_hang_verdict *v)
{
    char text[SAY_MAX] = "", left[ER_UNIT_TEXT_MAX];
    const struct er_hang_fact *f = &v->who[0];

    if (v->why == ER_HANG_WHY_UNKNOWN) {
        er_words_list(text, sizeof(text), "rank", v->waiting, v->waiting_n, v->waiting_all);
        er_words_add(text, sizeof(text),
                     " stand still; who hangs cannot be told, since no word came from ");
        er_words_list(text, sizeof(text), "node", v->missing, v->missing_n, v->missing_n);
    } else if (v->n > 0 && v->why == ER_HANG_WHY_PATIENT) {
        er_words_list(text, sizeof(text), "rank", v->waiting, v->waiting_n, v->waiting_all);
        er_words_add(text, sizeof(text), " wait for rank %d, which is in ", f->rank);
        add_where(text, sizeof(text), f);
        seconds(f->left_us, left);
        if (f->left_us != ER_FOREVER)
            er_words_add(text, sizeof(text), "; it has %s more", left);
    } else if (v->n > 0 && er_hang_is_hang(v) && !is_ours(agent, f)) {
        er_words_list(text, sizeof(text), "rank", v->waiting, v->waiting_n, v->waiting_all);
        er_words_add(text, sizeof(text), " wait for rank %d of node %d, which hangs in ", f->rank,
                     f->node_rank);
        add_where(text, sizeof(text), f);
        if (f->stopped)
            er_words_add(text, sizeof(text), " (its process is stopped)");
    }
    if (text[0])
        er_agent_say(agent, "%s", text);
}
