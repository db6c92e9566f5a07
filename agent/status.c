#include "agent/status.h"

#include <stdatomic.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "base/cleanup.h"
#include "base/clock.h"

/* What the number in the page is called. */
static const char *phase_name(uint64_t phase)
{
    static const char *const NAMES[] = {
#define PHASE(name, text) text,
        ER_PHASES(PHASE)
#undef PHASE
    };
    return phase < ER_ARRAY_N(NAMES) ? NAMES[phase] : "unknown";
}

/* Without libelastic, or its like in another language, nobody reports. */
static bool reports(const struct er_worker *w)
{
    return w->spoke || atomic_load(&w->page->from_worker.step_us) > 0;
}

static struct er_field optional_uint(const char *key, bool known, uint64_t value)
{
    return known ? ER_UINT(key, value) : ER_JSON(key, "null");
}

static int add_worker(struct er_buf *buf, const struct er_worker *w, uint64_t now_us)
{
    const struct er_page_progress *p = &w->page->from_worker;
    uint64_t until_us = w->exited_us ? w->exited_us : now_us;
    bool over = w->fsm.state == ER_WORKER_EXITED;
    const struct er_field fields[] = {
        ER_INT("rank", w->rank),
        ER_INT("local_rank", w->local_rank),
        ER_INT("pid", w->pid),
        ER_STR("state", er_worker_state_name(w->fsm.state)),
        ER_STR("phase", reports(w) ? phase_name(atomic_load(&p->phase)) : NULL),
        optional_uint("step", reports(w), atomic_load(&p->step)),
        ER_UINT("total_steps", atomic_load(&p->total_steps)),
        ER_NUM("runtime_ms", (double)(until_us - w->started_us) / 1e3),
        ER_STR("kind", over ? er_exit_kind_name(w->exit.kind) : NULL),
        ER_INT("code", w->exit.code),
        ER_INT("signal", w->exit.signal),
    };
    int rc = er_buf_add_str(buf, "{");

    if (!rc)
        rc = er_fields_json(buf, fields, ER_ARRAY_N(fields));
    return rc ? rc : er_buf_add_str(buf, "}");
}

/* As many as fit: a node with hundreds of workers says how many it left out. */
static int add_workers(struct er_agent *agent, struct er_buf *buf, int *ret_left_out)
{
    int n = agent->group ? er_group_size(agent->group) : 0,
        rc = er_buf_add_str(buf, "\"workers\":[");
    uint64_t now_us = er_now_us();

    *ret_left_out = 0;
    for (int i = 0; !rc && i < n; i++) {
        if (buf->len > ER_STATUS_MAX - 1024) {
            *ret_left_out = n - i;
            break;
        }
        if (i > 0)
            rc = er_buf_add_str(buf, ",");
        if (!rc)
            rc = add_worker(buf, er_group_worker(agent->group, i), now_us);
    }
    return rc ? rc : er_buf_add_str(buf, "]");
}

int er_status_json(struct er_agent *agent, int exit_code, struct er_buf *buf)
{
    const struct er_config *c = agent->config;
    const struct er_assignment *a = agent->group ? er_group_assignment(agent->group) : NULL;
    bool over = exit_code >= 0;
    uint64_t latest = 0;
    bool has_latest = er_driver_latest(agent->driver, &latest);
    const struct er_field fields[] = {
        ER_INT("v", ER_STATUS_VERSION),
        ER_STR("job", c->name),
        ER_STR("run_id", er_driver_run(agent->driver)),
        ER_STR("node_id", c->node.id),
        ER_STR("host", agent->hostname),
        ER_INT("pid", getpid()),
        ER_STR("started_ts", agent->started_ts),
        ER_STR("phase", er_driver_phase(agent->driver)),
        ER_UINT("generation", er_driver_generation(agent->driver)),
        ER_INT("world_size", a ? a->world_size : 0),
        ER_INT("nnodes", a ? a->nnodes : 0),
        ER_UINT("restarts", er_driver_restarts(agent->driver)),
        optional_uint("restart_max", c->restart.max != ER_NONE_U32, c->restart.max),
        optional_uint("checkpoint_step", has_latest, latest),
        ER_STR("log_dir", agent->log_dir),
        ER_STR("outcome", over ? er_agent_outcome(agent) : NULL),
        optional_uint("exit_code", over, (uint64_t)exit_code),
    };
    int rc = er_buf_add_str(buf, "{"), left_out = 0;

    if (!rc)
        rc = er_fields_json(buf, fields, ER_ARRAY_N(fields));
    if (!rc)
        rc = er_buf_add_str(buf, ",");
    if (!rc)
        rc = add_workers(agent, buf, &left_out);
    return rc ? rc : er_buf_printf(buf, ",\"workers_left_out\":%d}", left_out);
}

void er_agent_on_status(void *user, struct er_ctlconn *conn, const struct er_ctl_msg *request)
{
    struct er_ctl_msg reply = {.status = 0};
    struct er_buf json;
    int rc;

    if (request->type == ER_CTL_STOP) {
        er_agent_cancel(user);
    } else if (request->type != ER_CTL_STATUS) {
        er_ctlconn_status(conn, request->seq, ER_E_PROTOCOL, "unknown request");
        return;
    }
    er_buf_init(&json, ER_STATUS_MAX);
    rc = er_status_json(user, -1, &json);
    if (rc) {
        er_ctlconn_status(conn, request->seq, rc, NULL);
    } else {
        er_ctl_bytes(&reply, json.data, json.len);
        er_ctlconn_answer(conn, request->seq, &reply);
    }
    er_buf_done(&json);
}

void er_agent_status_end(struct er_agent *agent, int exit_code)
{
    struct er_ctl_msg msg = {.type = ER_CTL_REPLY};
    struct er_buf json;

    er_buf_init(&json, ER_STATUS_MAX);
    if (agent->status_server && er_status_json(agent, exit_code, &json) == 0) {
        er_ctl_bytes(&msg, json.data, json.len);
        er_ctlserver_broadcast(agent->status_server, &msg);
    }
    er_buf_done(&json);
}
