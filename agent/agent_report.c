/* The summary at the end, as text or, where the agent's lines are JSON, as one such line. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "agent/report.h"
#include "base/cleanup.h"
#include "base/clock.h"

void er_agent_tail_json(struct er_buf *buf, const char *tail)
{
    int rc = er_buf_add_str(buf, "[");

    for (bool first = true; !rc && *tail; first = false) {
        size_t n = strcspn(tail, "\n");

        if (!first)
            rc = er_buf_add_str(buf, ",");
        if (!rc)
            rc = er_json_quote(buf, tail, n);
        tail += n + (tail[n] == '\n');
    }
    if (rc || er_buf_add_str(buf, "]")) {
        er_buf_clear(buf);
        (void)er_buf_add_str(buf, "[]");
    }
}

void er_agent_cause_json(struct er_buf *buf, const struct er_cause *c)
{
    const struct er_field fields[] = {ER_STR("node_id", c->node_id),
                                      ER_STR("host", c->host),
                                      ER_INT("rank", c->rank),
                                      ER_INT("pid", c->pid),
                                      ER_STR("kind", er_exit_kind_name(c->kind)),
                                      ER_INT("code", c->code),
                                      ER_INT("signal", c->signal),
                                      ER_STR("message", c->message)};

    if (er_buf_add_str(buf, "{") || er_fields_json(buf, fields, ER_ARRAY_N(fields)) ||
        er_buf_add_str(buf, "}")) {
        er_buf_clear(buf);
        (void)er_buf_add_str(buf, "null");
    }
}

static void count_others(const struct er_agent *agent, struct er_report *report)
{
    for (int i = 0; agent->group && i < er_group_size(agent->group); i++) {
        const struct er_worker *w = er_group_worker(agent->group, i);

        if (w->root_cause)
            continue;
        report->others_ok += w->judgement.outcome == ER_OUTCOME_OK;
        report->others_failed += w->judgement.outcome == ER_OUTCOME_FAILED;
        report->others_stopped += w->judgement.outcome == ER_OUTCOME_STOPPED;
        report->others_killed += w->judgement.outcome == ER_OUTCOME_STOPPED && w->killed;
    }
}

static int report_json(struct er_buf *buf, const struct er_report *r)
{
    const struct er_verdict *v = r->verdict;
    bool failed = v->kind == ER_VERDICT_FAILED;
    ER_CLEANUP(er_buf_done) struct er_buf cause;
    ER_CLEANUP(er_buf_done) struct er_buf tail;
    char ts[ER_RFC3339_MAX];
    int rc;

    er_buf_init(&cause, ER_REPORT_MAX);
    er_buf_init(&tail, ER_REPORT_MAX);
    er_agent_cause_json(&cause, &v->cause);
    er_agent_tail_json(&tail, r->tail ? er_report_tail(r->tail) : "");
    er_rfc3339(er_wall_us(), ts);
    const struct er_field fields[] = {
        ER_STR("ts", ts),
        ER_STR("level", failed ? "error" : "info"),
        ER_STR("msg", "The job is over."),
        ER_STR("job", r->job),
        ER_STR("outcome", r->outcome),
        ER_INT("exit_code", v->exit_code),
        ER_NUM("duration_ms", (double)r->duration_us / 1e3),
        ER_UINT("generation", r->generation),
        ER_UINT("restarts", v->restarts),
        r->restart_max == UINT32_MAX ? ER_JSON("restart_max", "null")
                                     : ER_UINT("restart_max", r->restart_max),
        ER_STR("reason", r->reason ? r->reason : v->reason),
        ER_JSON("root_cause", failed ? er_buf_str(&cause) : "null"),
        ER_STR("failed_ts", failed ? r->when : NULL),
        ER_JSON(r->tail_is_traceback ? "traceback" : "stderr_tail", er_buf_str(&tail)),
        ER_UINT("others_ok", r->others_ok),
        ER_UINT("others_failed", r->others_failed),
        ER_UINT("others_stopped", r->others_stopped),
        ER_UINT("others_killed", r->others_killed),
        ER_STR("logs", r->logs),
        ER_STR("next", er_report_next(v, r->restart_max)),
    };
    rc = er_buf_add_str(buf, "{");
    if (!rc)
        rc = er_fields_json(buf, fields, ER_ARRAY_N(fields));
    return rc ? rc : er_buf_add_str(buf, "}\n");
}

/* The words that were kept are this node's, and the cause may be another's. */
static bool cause_is_here(const struct er_agent *agent)
{
    return agent->verdict.kind == ER_VERDICT_FAILED &&
           strcmp(agent->verdict.cause.node_id, agent->config->node.id) == 0;
}

/* The job's own end, and no worker was ever started here. */
static bool was_idle(const struct er_agent *agent)
{
    return !agent->ever_started && !agent->own_exit_code && agent->stop_signals == 0 &&
           er_config_keeps_record(agent->config) &&
           strcmp(er_driver_phase(agent->driver), "stopped") != 0;
}

/* One node of several goes, for a reason of its own: that says nothing about the job. */
static bool is_of_node(const struct er_agent *agent)
{
    return agent->config->nnodes_max > 1 && agent->verdict.kind == ER_VERDICT_STOPPED &&
           agent->verdict.exit_code != ER_CODE_CANCELED &&
           (agent->own_exit_code || agent->stop_signals > 0);
}

void er_agent_report(struct er_agent *agent)
{
    const struct er_config *c = agent->config;
    bool failed = cause_is_here(agent);
    struct er_report report = {
        .job = c->name,
        .verdict = &agent->verdict,
        .outcome = er_agent_outcome(agent),
        .node = is_of_node(agent) ? c->node.id : NULL,
        .detailed = !c->program_form,
        .reason = agent->own_exit_code ? agent->own_error.text : NULL,
        .idle = was_idle(agent),
        .joined = agent->was_registered,
        .when = failed && agent->failed_ts[0] ? agent->failed_ts : NULL,
        .duration_us = agent->duration_us,
        .generation = er_driver_generation(agent->driver),
        .restart_max = c->restart.max,
        .tail = failed ? agent->tail : NULL,
        .tail_is_traceback = failed && agent->tail_is_traceback,
        .logs = failed && agent->cause_log ? agent->cause_log : agent->log_dir,
    };
    struct er_buf text;
    int rc;

    count_others(agent, &report);
    if (agent->verdict.kind == ER_VERDICT_SUCCEEDED && !report.detailed && !report.idle)
        return;
    er_buf_init(&text, 4 * ER_REPORT_MAX);
    rc = er_config_json_log(c) ? report_json(&text, &report) : er_report_format(&text, &report);
    /* A text that did not fit is cut after a whole line; half a JSON object helps nobody. */
    if (text.len > 0 && (rc == 0 || !er_config_json_log(c)))
        (void)er_console_write(&agent->console, 1, text.data, text.len);
    er_buf_done(&text);
}
