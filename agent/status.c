#include "agent/status.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_hang.h"
#include "agent/agent_internal.h"
#include "agent/hang_judge.h"
#include "agent/overrides.h"
#include "base/cleanup.h"
#include "base/clock.h"

#define NODES_LISTED       32
#define NODES_TEXT_MAX     (12u * 1024)
#define DIAGNOSIS_TEXT_MAX (8u * 1024)
#define STORE_TEXT_MAX     (12u * 1024)
#define KEYS_TEXT_MAX      4096
#define OVERRIDES_TEXT_MAX (4u * 1024)

/* Without libelastic, or its like in another language, nobody reports. */
static bool reports(const struct er_worker *w)
{
    return w->spoke || atomic_load(&w->page->from_worker.step_us) > 0;
}

static struct er_field optional_uint(const char *key, bool known, uint64_t value)
{
    return known ? ER_UINT(key, value) : ER_JSON(key, "null");
}

static double loss_of(const struct er_page_progress *p)
{
    uint64_t bits = atomic_load(&p->loss_bits);
    double loss;

    memcpy(&loss, &bits, sizeof(loss));
    return loss;
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
        ER_STR("phase", reports(w) ? er_phase_name(atomic_load(&p->phase)) : NULL),
        optional_uint("step", reports(w), atomic_load(&p->step)),
        ER_UINT("total_steps", atomic_load(&p->total_steps)),
        optional_uint("samples", reports(w), atomic_load(&p->samples)),
        reports(w) ? ER_NUM("loss", loss_of(p)) : ER_JSON("loss", "null"),
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

/* What this agent knows of its store. */
static int store_json(const struct er_agent *agent, struct er_buf *buf)
{
    struct er_etcd_status s = {.connected = true};

    if (agent->store.etcd)
        agent->store.etcd->status(agent->store.store, &s);
    const struct er_field fields[] = {
        ER_STR("backend", agent->store.etcd ? "etcd" : "embedded"),
        ER_BOOL("connected", s.connected),
        ER_STR("endpoint", s.endpoint[0] ? s.endpoint : NULL),
        ER_NUM("down_ms", s.down_since_us ? (double)(er_now_us() - s.down_since_us) / 1e3 : 0),
        ER_STR("error", s.text[0] ? s.text : NULL),
    };
    int rc = er_buf_add_str(buf, "{");

    if (!rc)
        rc = er_fields_json(buf, fields, ER_ARRAY_N(fields));
    return rc ? rc : er_buf_add_str(buf, "}");
}

/* The leader's list, the first NODES_LISTED of it; empty on the others. */
static int nodes_json(const struct er_agent *agent, struct er_buf *buf)
{
    struct er_node_look list[NODES_LISTED];
    size_t n = er_driver_look_nodes(agent->driver, list, NODES_LISTED);
    int rc = er_buf_add_str(buf, "[");

    for (size_t i = 0; i < n && i < NODES_LISTED && !rc; i++) {
        const struct er_field fields[] = {
            ER_STR("node", list[i].id),         ER_STR("host", list[i].host),
            ER_STR("address", list[i].address), ER_STR("state", list[i].state),
            ER_INT("slots", list[i].slots),     ER_INT("node_rank", list[i].node_rank),
        };

        rc = er_buf_add_str(buf, i ? ",{" : "{");
        if (!rc)
            rc = er_fields_json(buf, fields, ER_ARRAY_N(fields));
        if (!rc)
            rc = er_buf_add_str(buf, "}");
    }
    return rc ? rc : er_buf_add_str(buf, "]");
}

int er_status_json(struct er_agent *agent, int exit_code, uint64_t stale_us, struct er_buf *buf)
{
    const struct er_config *c = agent->config;
    const struct er_assignment *a = agent->group ? er_group_assignment(agent->group) : NULL;
    bool over = exit_code >= 0;
    uint64_t latest = 0;
    bool has_latest = er_driver_latest(agent->driver, &latest);
    ER_CLEANUP(er_buf_done) struct er_buf store;
    ER_CLEANUP(er_buf_done) struct er_buf nodes;
    ER_CLEANUP(er_buf_done) struct er_buf diagnosis;
    ER_CLEANUP(er_buf_done) struct er_buf overrides;
    const struct er_overrides *set = er_driver_overrides(agent->driver);
    char sentence[ER_SENTENCE_MAX], set_ts[ER_RFC3339_MAX] = "";
    struct er_look look;

    er_agent_sentence(agent, sentence);
    er_buf_init(&store, STORE_TEXT_MAX);
    er_buf_init(&nodes, NODES_TEXT_MAX);
    er_buf_init(&diagnosis, DIAGNOSIS_TEXT_MAX);
    er_buf_init(&overrides, OVERRIDES_TEXT_MAX);
    if (set)
        er_rfc3339(set->wall_us, set_ts);
    er_driver_look(agent->driver, &look);
    er_agent_goodput_settle(agent, er_now_us());
    if (store_json(agent, &store) || nodes_json(agent, &nodes) ||
        er_agent_diagnosis_json(agent, exit_code, stale_us, &diagnosis) ||
        er_overrides_json(set, &overrides))
        return -ENOMEM;
    const struct er_field fields[] = {
        ER_INT("v", ER_STATUS_VERSION),
        ER_STR("job", c->name),
        ER_STR("run_id", er_driver_run(agent->driver)),
        ER_STR("node_id", c->node.id),
        ER_STR("host", agent->hostname),
        ER_INT("pid", getpid()),
        ER_STR("started_ts", agent->started_ts),
        ER_STR("phase", er_driver_phase(agent->driver)),
        ER_STR("sentence", sentence),
        ER_UINT("generation", look.generation),
        ER_STR("reason", a && a->generation == look.generation ? a->reason : NULL),
        ER_UINT("world_size", look.world_size),
        ER_UINT("nnodes", look.nnodes),
        ER_UINT("restarts", er_driver_restarts(agent->driver)),
        optional_uint("restart_max", c->restart.max != ER_NONE_U32, c->restart.max),
        optional_uint("checkpoint_step", has_latest, latest),
        ER_NUM("useful_ratio", er_goodput_ratio(&agent->goodput, er_now_us())),
        ER_STR("checkpoint_dir", c->checkpoint.dir),
        ER_STR("stand", er_stand_name(look.stand)),
        ER_STR("leader", look.leader[0] ? look.leader : NULL),
        ER_UINT("nnodes_min", look.min),
        ER_UINT("nnodes_max", look.max),
        ER_JSON("store", er_buf_str(&store)),
        ER_JSON("nodes", er_buf_str(&nodes)),
        ER_JSON("diagnosis", er_buf_str(&diagnosis)),
        ER_JSON("overrides", er_buf_str(&overrides)),
        ER_STR("overrides_by", set ? set->by : NULL),
        ER_STR("overrides_ts", set ? set_ts : NULL),
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

/* What is asked for beside the status. */
static int carry_out(struct er_agent *agent, const struct er_ctl_msg *m, struct er_error *err)
{
    char node[ER_NAME_TEXT_MAX] = "";

    if (m->type == ER_CTL_STOP)
        return er_agent_cancel(agent,
                               &(struct er_agent_stop){.preempt = m->num_n > 0 && m->num[0],
                                                       .time_us = m->num_n > 1 ? m->num[1] : 0},
                               err);
    if (m->type == ER_CTL_DRAIN && m->str_n > 0 && er_ctl_copy(m->str[0], node, sizeof(node)) < 0)
        return er_error_set(err, -EINVAL, "drain: this is no node id");
    else if (m->type == ER_CTL_DRAIN)
        return er_agent_ask_drain(agent, node, err);
    else if (m->type == ER_CTL_SCALE && m->num_n == 2)
        return er_agent_ask_scale(agent, m->num[0], m->num[1], err);
    else if (m->type != ER_CTL_STATUS)
        return er_error_set(err, ER_E_PROTOCOL, "unknown request");
    return 0;
}

static void on_reload(struct er_agent *agent, struct er_ctlconn *conn, uint32_t seq)
{
    struct er_ctl_msg reply = {.status = 0};
    struct er_error err = ER_ERROR_INIT;
    ER_CLEANUP(er_buf_done) struct er_buf text;
    ER_CLEANUP(er_buf_done) struct er_buf keys;
    int rc;

    er_buf_init(&keys, KEYS_TEXT_MAX);
    er_buf_init(&text, KEYS_TEXT_MAX);
    rc = er_agent_reload(agent, &keys, &err);
    if (!rc)
        rc = er_buf_printf(&text, "{\"changed\":%s}", er_buf_str(&keys));
    if (rc) {
        er_ctlconn_status(conn, seq, rc, err.text);
        return;
    }
    er_ctl_bytes(&reply, text.data, text.len);
    er_ctlconn_answer(conn, seq, &reply);
}

void er_agent_on_status(void *user, struct er_ctlconn *conn, const struct er_ctl_msg *request)
{
    struct er_ctl_msg reply = {.status = 0};
    struct er_error err = ER_ERROR_INIT;
    struct er_buf json;
    int rc;

    if (request->type == ER_CTL_RELOAD || request->type == ER_CTL_SET) {
        if (request->type == ER_CTL_SET)
            er_agent_on_set(user, conn, request);
        else
            on_reload(user, conn, request->seq);
        return;
    }
    rc = carry_out(user, request, &err);
    if (rc) {
        er_ctlconn_status(conn, request->seq, rc, err.text);
        return;
    }
    er_buf_init(&json, ER_STATUS_MAX);
    rc = er_status_json(user, -1, 0, &json);
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
    if (agent->status_server && er_status_json(agent, exit_code, 0, &json) == 0) {
        er_ctl_bytes(&msg, json.data, json.len);
        er_ctlserver_broadcast(agent->status_server, &msg);
    }
    er_buf_done(&json);
}
