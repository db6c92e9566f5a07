/* The event file's lines: what the driver notes, workers' starts and ends, recoveries, the verdict.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/parse.h"
#include "rendezvous/codec.h"

#define MS(us) ((double)(us) / 1e3)

typedef void (*note_fn)(struct er_agent *agent, const struct er_note *n);

static void on_forming(struct er_agent *agent, const struct er_note *n)
{
    er_event(&agent->events, "generation_forming", ER_SEVERITY_INFO, n->generation,
             "A generation is being formed.", ER_STR("reason", n->reason), ER_UINT("have", n->have),
             ER_UINT("min", n->min), ER_UINT("max", n->max), ER_JSON("missing", "[]"));
}

static void on_sealed(struct er_agent *agent, const struct er_note *n)
{
    er_event(&agent->events, "generation_sealed", ER_SEVERITY_INFO, n->generation,
             "A generation's members and ranks are fixed.", ER_STR("reason", n->reason),
             ER_UINT("world_size", n->world_size), ER_UINT("nnodes", n->nnodes),
             ER_JSON("added", "[]"), ER_JSON("removed", "[]"), ER_STR("master_addr", n->address),
             ER_INT("master_port", n->port), ER_NUM("duration_ms", MS(n->duration_us)));
}

/* With as many nodes as the job may have, a newcomer waits for a place. */
static bool is_full(const struct er_agent *agent)
{
    struct er_look look;

    er_driver_look(agent->driver, &look);
    return strcmp(er_driver_phase(agent->driver), "forming") != 0 && look.nnodes >= look.max;
}

static void on_joined(struct er_agent *agent, const struct er_note *n)
{
    er_event(&agent->events, "node_joined", ER_SEVERITY_INFO, n->generation, "A node joined.",
             ER_STR("node", n->node), ER_STR("address", n->address), ER_UINT("slots", n->slots),
             ER_STR("as", is_full(agent) ? "spare" : "member"));
}

static void on_left(struct er_agent *agent, const struct er_note *n)
{
    er_event(&agent->events, "node_left", ER_SEVERITY_INFO, n->generation, "A node left.",
             ER_STR("node", n->node), ER_STR("reason", n->reason));
}

static void on_lost(struct er_agent *agent, const struct er_note *n)
{
    er_agent_say(agent, "node '%s' was lost (%s)", n->node,
                 strcmp(n->reason, "agent_died") == 0 ? "its agent died" : "its lease expired");
    er_event(&agent->events, "node_lost", ER_SEVERITY_WARNING, n->generation, "A node was lost.",
             ER_STR("node", n->node), ER_STR("reason", n->reason),
             ER_NUM("detect_ms", MS(n->duration_us)));
}

/* A limit of UINT32_MAX or for ever is null in JSON. */
static struct er_field limit_field(const char *key, bool none, uint64_t value)
{
    return none ? ER_JSON(key, "null") : ER_UINT(key, value);
}

static void restart_event(struct er_agent *agent, const struct er_note *n, const char *name,
                          const char *msg)
{
    int rank = n->cause ? n->cause->rank : -1;
    char what[ER_EXIT_TEXT_MAX] = "unknown";

    if (n->cause)
        er_exit_text(n->cause->kind, n->cause->code, n->cause->signal, what);
    er_event(&agent->events, name, ER_SEVERITY_WARNING, n->generation, msg,
             ER_UINT("used", n->used), limit_field("max", n->budget == UINT32_MAX, n->budget),
             limit_field("window_s", n->window_us == ER_FOREVER, n->window_us / ER_US_PER_S),
             ER_INT("cause_rank", rank), ER_STR("cause", what), ER_STR("reason", n->reason));
    if (n->kind == ER_NOTE_RESTART_DENIED)
        return; /* the summary tells it */
    er_log(ER_LOG_WARNING, msg, ER_UINT("used", n->used),
           limit_field("max", n->budget == UINT32_MAX, n->budget), ER_INT("rank", rank),
           ER_STR("cause", what));
}

static void on_counted(struct er_agent *agent, const struct er_note *n)
{
    restart_event(agent, n, "restart_counted", "workers are restarted");
}

static void on_denied(struct er_agent *agent, const struct er_note *n)
{
    restart_event(agent, n, "restart_denied", "workers are not restarted");
}

static void on_aside(struct er_agent *agent, const struct er_note *n)
{
    char until[ER_RFC3339_MAX], time[ER_UNIT_TEXT_MAX];

    er_rfc3339(er_wall_us() + n->window_us, until);
    er_format_duration(n->window_us, time);
    er_event(&agent->events, "node_set_aside", ER_SEVERITY_WARNING, n->generation,
             "A node is kept out of the job for a while.", ER_STR("node", n->node),
             ER_STR("reason", n->reason), ER_STR("until_ts", until));
    er_log(ER_LOG_WARNING, "a node is set aside", ER_STR("node", n->node),
           ER_STR("reason", n->reason), ER_STR("for", time));
}

static void on_request(struct er_agent *agent, const struct er_note *n)
{
    er_log(ER_LOG_WARNING, "a request is carried out", ER_STR("request", n->reason),
           ER_STR("node", n->node));
    if (strcmp(n->node, ER_ASK_ALL_NODES) == 0)
        er_agent_ask_each(agent, n);
}

static uint64_t newest_step(struct er_group *group)
{
    uint64_t newest = 0;

    for (int i = 0; group && i < er_group_size(group); i++) {
        struct er_worker *w = er_group_worker(group, i);
        uint64_t step = w->page ? atomic_load(&w->page->from_worker.step) : 0;

        newest = step > newest ? step : newest;
    }
    return newest;
}

static void on_skip(struct er_agent *agent, const struct er_note *n)
{
    er_log(ER_LOG_WARNING, "a step is left out from now on: workers keep failing in it",
           ER_UINT("step", n->step), ER_UINT("failures", n->used));
}

/* Until its workers have agreed on it, the step is the first one that it can be. */
static struct er_field first_boundary(struct er_agent *agent)
{
    uint64_t step = newest_step(agent->group);

    if (agent->config->resize.at != ER_RESIZE_STEP || step == 0)
        return ER_JSON("at_step", "null");
    return ER_UINT("at_step", step + 1);
}

static const char *change_name(const char *reason)
{
    static const char *const NAMES[][2] = {{"node_joined", "join"},
                                           {"drained", "drain"},
                                           {"preempted", "preempt"},
                                           {"scaled", "scale"}};

    for (size_t i = 0; i < ER_ARRAY_N(NAMES); i++) {
        if (strcmp(NAMES[i][0], reason) == 0)
            return NAMES[i][1];
    }
    return reason;
}

static void on_resize(struct er_agent *agent, const struct er_note *n)
{
    char until[ER_RFC3339_MAX];

    er_rfc3339(er_wall_us() + n->duration_us, until);
    er_event(&agent->events, "resize_announced", ER_SEVERITY_INFO, n->generation,
             "The members of the generation are to leave it for another one.",
             ER_UINT("from", n->world_size), ER_UINT("to", n->next_size), first_boundary(agent),
             ER_STR("reason", change_name(n->reason)), ER_STR("deadline_ts", until));
}

void er_agent_on_note(void *user, const struct er_note *note)
{
    static const note_fn HANDLERS[] = {
        [ER_NOTE_FORMING] = on_forming,       [ER_NOTE_SEALED] = on_sealed,
        [ER_NOTE_NODE_JOINED] = on_joined,    [ER_NOTE_NODE_LEFT] = on_left,
        [ER_NOTE_NODE_LOST] = on_lost,        [ER_NOTE_RESTART_COUNTED] = on_counted,
        [ER_NOTE_RESTART_DENIED] = on_denied, [ER_NOTE_NODE_ASIDE] = on_aside,
        [ER_NOTE_STEP_SKIPPED] = on_skip,     [ER_NOTE_REQUEST] = on_request,
        [ER_NOTE_RESIZE] = on_resize,
    };
    struct er_agent *agent = user;

    er_agent_follow_run(agent);
    if (!agent->events.run[0])
        snprintf(agent->events.run, sizeof(agent->events.run), "%s", er_driver_run(agent->driver));
    HANDLERS[note->kind](agent, note);
}

void er_agent_event_worker(struct er_agent *agent, struct er_worker *w)
{
    struct er_buf tail;
    bool bad = w->judgement.outcome == ER_OUTCOME_FAILED;

    if (!er_events_wanted(&agent->events))
        return;
    er_buf_init(&tail, ER_EVENT_MAX / 2);
    er_agent_tail_json(&tail, er_worker_tail(w));
    er_event(&agent->events, "worker_exited", bad ? ER_SEVERITY_ERROR : ER_SEVERITY_INFO,
             w->generation, "A worker ended.", ER_INT("rank", w->rank),
             ER_INT("local_rank", w->local_rank), ER_INT("pid", w->pid),
             ER_STR("kind", er_exit_kind_name(w->exit.kind)), ER_INT("code", w->exit.code),
             ER_INT("signal", w->exit.signal), ER_BOOL("core", w->exit.core),
             ER_UINT("step", w->page ? atomic_load(&w->page->from_worker.step) : 0),
             ER_NUM("runtime_ms", MS(w->exited_us - w->started_us)),
             ER_STR("error_file", w->error_file),
             ER_STR("message", bad ? er_worker_message(w) : w->message),
             ER_JSON("stderr_tail", er_buf_str(&tail)), ER_BOOL("root_cause", w->root_cause));
    er_buf_done(&tail);
}

/* Microseconds from `from` to `to`, 0 when either has not been. */
static double span_ms(uint64_t from, uint64_t to)
{
    return from && to > from ? MS(to - from) : 0;
}

/* When the last of this node's workers had got so far since the generation began; 0: none has. */
struct milestones {
    uint64_t started_us, spoke_us, connected_us, settled_us;
};

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static struct milestones look(struct er_agent *agent)
{
    struct milestones m = {.started_us = agent->recovery.started_us};

    for (int i = 0; i < er_group_size(agent->group); i++) {
        struct er_worker *w = er_group_worker(agent->group, i);

        m.started_us = later(m.started_us, w->started_us);
        m.spoke_us = later(m.spoke_us, w->spoke_us);
        m.connected_us = later(m.connected_us, atomic_load(&w->page->from_worker.connected_us));
        m.settled_us = later(m.settled_us, later(w->loaded_us, w->ready_us));
    }
    return m;
}

void er_agent_event_recovered(struct er_agent *agent)
{
    const struct er_recovery *r = &agent->recovery;
    const struct milestones m = look(agent);
    uint64_t end_us = r->first_step_us ? r->first_step_us : m.started_us;
    uint64_t lost = r->old_step > r->resumed_step ? r->old_step - r->resumed_step : 0;

    er_event(
        &agent->events, "recovered", ER_SEVERITY_INFO,
        er_group_assignment(agent->group)->generation, "The job goes on.",
        ER_STR("reason", r->reason), ER_NUM("detect_ms", span_ms(r->failed_us, r->detected_us)),
        ER_NUM("stop_ms", span_ms(r->detected_us, r->gone_us)),
        ER_NUM("rendezvous_ms", span_ms(r->gone_us, r->started_us)),
        ER_NUM("start_ms", span_ms(r->started_us, m.spoke_us ? m.spoke_us : m.started_us)),
        ER_NUM("comm_init_ms", span_ms(m.spoke_us, m.connected_us)),
        ER_NUM("restore_ms", span_ms(later(m.spoke_us, m.connected_us), m.settled_us)),
        ER_NUM("replay_ms", MS(lost * r->step_us)),
        ER_NUM("total_ms", span_ms(r->failed_us, end_us)), ER_UINT("steps_lost", lost),
        ER_UINT("resumed_step", r->resumed_step), ER_UINT("first_step_mono_us", r->first_step_us));
}

const char *er_agent_outcome(const struct er_agent *agent)
{
    static const char *const NAMES[] = {[ER_VERDICT_SUCCEEDED] = "succeeded",
                                        [ER_VERDICT_FAILED] = "failed",
                                        [ER_VERDICT_STOPPED] = "stopped"};

    if (agent->verdict.kind == ER_VERDICT_STOPPED && agent->verdict.exit_code == ER_CODE_CANCELED)
        return "canceled";
    if (agent->verdict.kind == ER_VERDICT_STOPPED && !agent->own_exit_code &&
        agent->verdict.exit_code == 0)
        return "drained";
    if (agent->verdict.kind == ER_VERDICT_STOPPED && agent->preempted && !agent->own_exit_code)
        return "preempted";
    return agent->own_exit_code ? "error" : NAMES[agent->verdict.kind];
}

void er_agent_event_end(struct er_agent *agent, int exit_code)
{
    static const char *const NAMES[] = {[ER_VERDICT_SUCCEEDED] = "job_succeeded",
                                        [ER_VERDICT_FAILED] = "job_failed",
                                        [ER_VERDICT_STOPPED] = "job_stopped"};
    const struct er_verdict *v = &agent->verdict;
    bool failed = v->kind == ER_VERDICT_FAILED;
    enum er_severity severity = failed ? ER_SEVERITY_ERROR : ER_SEVERITY_INFO;
    uint64_t generation = er_driver_generation(agent->driver);
    struct er_buf cause;

    if (!er_events_wanted(&agent->events))
        return;
    er_buf_init(&cause, 8192);
    if (failed)
        er_agent_cause_json(&cause, &v->cause);
    er_event(&agent->events, NAMES[v->kind], severity, generation, "The job is over.",
             ER_INT("exit_code", exit_code),
             ER_JSON("root_cause", failed ? er_buf_str(&cause) : NULL),
             ER_UINT("steps", newest_step(agent->group)),
             ER_NUM("useful_ratio", er_goodput_ratio(&agent->goodput, er_now_us())),
             ER_UINT("restarts", v->restarts), ER_NUM("duration_ms", MS(agent->duration_us)),
             ER_STR("reason", v->reason));
    er_event(&agent->events, "agent_exited", severity, generation, "The agent ends.",
             ER_INT("exit_code", exit_code), ER_STR("outcome", er_agent_outcome(agent)),
             ER_STR("reason", agent->own_exit_code ? agent->own_error.text : v->reason));
    er_buf_done(&cause);
}
