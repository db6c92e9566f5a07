#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "base/cleanup.h"
#include "base/clock.h"

#define PLAIN_MAX     200 /* the store's keys are shorter than the workers' may be */
#define STORED_MAX    (PLAIN_MAX + 8)
#define PATH_BYTES    1024
#define DIGEST_BYTES  64
#define SOURCE_BYTES  32
#define SKIPPED_BYTES 8192
#define MESSAGE_MAX   4096 /* of a worker's last words */
#define COUNTER_BYTES 20   /* a 64-bit number as text */

static_assert(STORED_MAX <= ER_BARRIER_NAME_MAX, "a stored name fits a barrier");

/* A request whose answer the driver owes. */
struct request {
    struct er_ticket ticket;
    struct er_list node; /* in the agent's list */
    struct er_agent *agent;
    uint64_t wait_id; /* of a waiting get, 0: none */
    enum er_ctl_type type;
    uint64_t generation, step, bytes, written_bytes, pause_us, duration_us; /* COMMIT */
    char path[PATH_BYTES], digest[DIGEST_BYTES];
};

typedef void (*handler_fn)(struct er_agent *agent, struct er_worker *w, struct er_ctlconn *conn,
                           const struct er_ctl_msg *m);

static void free_request(struct request *r)
{
    er_list_remove(&r->node);
    free(r);
}

static void on_gone(struct er_ticket *ticket)
{
    struct request *r = ER_LIST_ITEM(ticket, struct request, ticket);

    if (!r->wait_id)
        return; /* the driver's callback frees it */
    er_driver_kv_cancel(r->agent->driver, r->wait_id);
    free_request(r);
}

/* NULL: answered already. */
static struct request *new_request(struct er_agent *agent, struct er_ctlconn *conn,
                                   const struct er_ctl_msg *m)
{
    struct request *r = calloc(1, sizeof(*r));

    if (!r) {
        er_ctlconn_status(conn, m->seq, -ENOMEM, NULL);
        return NULL;
    }
    er_list_init(&r->node);
    er_list_push_back(&agent->requests, &r->node);
    r->agent = agent;
    r->type = m->type;
    er_ticket_init(&r->ticket, conn, m->seq, on_gone);
    return r;
}

bool er_agent_waits_in_store(const struct er_agent *agent, int local_rank)
{
    er_list_for_each (node, &agent->requests) {
        const struct request *r = ER_LIST_ITEM(node, struct request, node);

        if (r->wait_id && r->ticket.conn &&
            er_ctlconn_peer(r->ticket.conn)->local_rank == local_rank)
            return true;
    }
    return er_barriers_has(agent->barriers, local_rank);
}

void er_agent_drop_requests(struct er_agent *agent)
{
    while (!er_list_empty(&agent->requests))
        free_request(ER_LIST_ITEM(agent->requests.next, struct request, node));
}

static void event_commit(const struct request *r)
{
    struct er_agent *a = r->agent;

    er_event(&a->events, "checkpoint_committed", ER_SEVERITY_INFO, r->generation,
             "A checkpoint was committed.", ER_UINT("step", r->step), ER_UINT("bytes", r->bytes),
             ER_UINT("written_bytes", r->written_bytes),
             ER_NUM("pause_ms", (double)r->pause_us / 1e3),
             ER_NUM("duration_ms", (double)r->duration_us / 1e3), ER_STR("digest", r->digest),
             ER_STR("path", r->path));
}

static void on_driver(void *user, int rc, const void *value, size_t n)
{
    struct request *r = user;
    struct er_ctl_msg reply = {.status = rc};
    char text[32];

    r->wait_id = 0;
    if (rc == -ETIMEDOUT && r->type == ER_CTL_KV_GET)
        reply.status = rc = 1; /* not there in time */
    if (rc == 0 && r->type == ER_CTL_COMMIT) {
        r->agent->checkpoint_failures = 0;
        event_commit(r);
    }
    if (rc < 0) {
        er_ctl_str(&reply, er_error_name(rc));
    } else if (rc == 0 && r->type == ER_CTL_KV_GET) {
        er_ctl_bytes(&reply, value, n);
    } else if (rc == 0 && r->type == ER_CTL_KV_ADD) {
        snprintf(text, sizeof(text), "%.*s", (int)n, value ? (const char *)value : "");
        er_ctl_num(&reply, (uint64_t)strtoll(text, NULL, 10));
    }
    er_ticket_answer(&r->ticket, &reply);
    free_request(r);
}

/* "51,77" */
static void list_skips(const struct er_skips *skips, char ret[ER_SKIPS_TEXT])
{
    size_t n = 0;

    ret[0] = '\0';
    for (uint32_t i = 0; i < skips->n; i++)
        n += (size_t)snprintf(ret + n, ER_SKIPS_TEXT - n, "%s%" PRIu64, i ? "," : "",
                              skips->steps[i]);
}

static void fill_world(struct er_agent *agent, const struct er_worker *w, struct er_ctl_msg *ret)
{
    const struct er_assignment *a = er_group_assignment(agent->group);
    const char *dir = agent->config->checkpoint.dir;

    list_skips(&a->skips, agent->skips_text);
    ret->type = ER_CTL_WORLD;
    er_ctl_num(ret, (uint64_t)w->rank);
    er_ctl_num(ret, (uint64_t)a->world_size);
    er_ctl_num(ret, (uint64_t)w->local_rank);
    er_ctl_num(ret, (uint64_t)a->local_size);
    er_ctl_num(ret, (uint64_t)a->node_rank);
    er_ctl_num(ret, (uint64_t)a->nnodes);
    er_ctl_num(ret, a->generation);
    er_ctl_num(ret, a->restarts);
    er_ctl_num(ret, agent->warming);
    er_ctl_str(ret, agent->config->name);
    er_ctl_str(ret, a->run);
    er_ctl_str(ret, agent->config->node.id);
    er_ctl_str(ret, dir ? dir : "");
    er_ctl_str(ret, agent->skips_text);
}

void er_agent_send_world(struct er_agent *agent, struct er_worker *w)
{
    struct er_ctl_msg reply = {0};

    w->spoke_us = er_now_us();
    w->has_left = false;
    fill_world(agent, w, &reply);
    er_ticket_answer(&w->left, &reply);
}

static void on_hello(struct er_agent *agent, struct er_worker *w, struct er_ctlconn *conn,
                     const struct er_ctl_msg *m)
{
    struct er_ctl_msg reply = {0};

    if (m->num[0] != ER_CTL_PROTOCOL) {
        char text[96];

        snprintf(text, sizeof(text), "the worker speaks protocol %llu, this agent %d",
                 (unsigned long long)m->num[0], ER_CTL_PROTOCOL);
        er_ctlconn_status(conn, m->seq, ER_E_PROTOCOL, text);
        return;
    }
    if (!w->spoke)
        w->spoke_us = er_now_us();
    w->spoke = true;
    w->speaker = er_ctlconn_peer(conn)->pid;
    if (w->joins) {
        er_group_hello(agent->group, w, conn, m->seq);
        return;
    }
    fill_world(agent, w, &reply);
    er_ctlconn_answer(conn, m->seq, &reply);
}

/* Of its process, or of the generation into which it came alive. */
static uint64_t start_of(const struct er_worker *w)
{
    return w->kept_us ? w->kept_us : w->started_us;
}

static void on_ready(struct er_agent *agent, struct er_worker *w, struct er_ctlconn *conn,
                     const struct er_ctl_msg *m)
{
    uint64_t now_us = er_now_us();

    w->rejoins |= m->num_n > 1 && (m->num[1] & ER_CTL_REJOINS);
    if (w->rejoins && !agent->told_warm) {
        agent->told_warm = true;
        er_driver_warm(agent->driver, true);
    }
    if (er_group_ready(agent->group, w, now_us)) {
        w->ready_us = now_us;
        er_event(&agent->events, "worker_ready", ER_SEVERITY_INFO, w->generation,
                 "A worker is set up.", ER_INT("rank", w->rank),
                 ER_NUM("start_ms", (double)(now_us - start_of(w)) / 1e3));
    }
    er_ctlconn_status(conn, m->seq, 0, NULL);
}

/* What a worker names, as it stands in the store: behind `plain`, or when it is long, by its digest
 * behind `hashed`. False: answered. */
static bool stored_name(struct er_ctlconn *conn, const struct er_ctl_msg *m, const char *plain,
                        const char *hashed, char ret[STORED_MAX])
{
    char name[ER_CTL_KEY_MAX + 1], hex[ER_DIGEST_HEX_MAX];

    if (m->str[0].len == 0 || er_ctl_copy(m->str[0], name, sizeof(name)) < 0) {
        er_ctlconn_status(conn, m->seq, -EINVAL, "a name has 1 to 512 bytes and no NUL");
        return false;
    }
    if (m->str[0].len <= PLAIN_MAX) {
        snprintf(ret, STORED_MAX, "%s%.*s", plain, PLAIN_MAX, name);
    } else {
        er_digest_format(er_hash(name, m->str[0].len), hex);
        snprintf(ret, STORED_MAX, "%s%s", hashed, hex);
    }
    return true;
}

/* Workers' keys live below "u/" and "h/", the agents' own below "b/". */
static bool key_of(struct er_ctlconn *conn, const struct er_ctl_msg *m, char key[STORED_MAX])
{
    return stored_name(conn, m, "u/", "h/", key);
}

/* What workers keep in the store is bounded; false: answered. */
static bool has_room(struct er_agent *agent, const struct er_worker *w, struct er_ctlconn *conn,
                     uint32_t seq, const char *key, size_t n)
{
    int rc = er_kv_budget_take(&agent->kv_budget, w->generation, key, n);
    char text[96];

    if (rc == 0)
        return true;
    snprintf(text, sizeof(text), "the keys and values of a generation have at most %u MiB",
             ER_KV_BUDGET_MAX >> 20);
    er_ctlconn_status(conn, seq, rc, rc == ER_E_LIMIT ? text : NULL);
    return false;
}

static void on_put(struct er_agent *agent, struct er_worker *w, struct er_ctlconn *conn,
                   const struct er_ctl_msg *m)
{
    char key[STORED_MAX];
    struct request *r;

    if (m->str[1].len > ER_CTL_VALUE_MAX)
        er_ctlconn_status(conn, m->seq, -EMSGSIZE, NULL);
    else if (key_of(conn, m, key) && has_room(agent, w, conn, m->seq, key, m->str[1].len) &&
             (r = new_request(agent, conn, m)))
        er_driver_kv_put(agent->driver, w->generation, key, m->str[1].data, m->str[1].len,
                         on_driver, r);
}

static void on_get(struct er_agent *agent, struct er_worker *w, struct er_ctlconn *conn,
                   const struct er_ctl_msg *m)
{
    uint64_t deadline_us = m->num[1] ? er_deadline_in(er_now_us(), m->num[1]) : 0;
    char key[STORED_MAX];
    struct request *r;

    if (key_of(conn, m, key) && (r = new_request(agent, conn, m)))
        r->wait_id = er_driver_kv_get(agent->driver, w->generation, key, deadline_us, on_driver, r);
}

static void on_add(struct er_agent *agent, struct er_worker *w, struct er_ctlconn *conn,
                   const struct er_ctl_msg *m)
{
    char key[STORED_MAX];
    struct request *r;

    if (key_of(conn, m, key) && has_room(agent, w, conn, m->seq, key, COUNTER_BYTES) &&
        (r = new_request(agent, conn, m)))
        er_driver_kv_add(agent->driver, w->generation, key, (int64_t)m->num[1], on_driver, r);
}

static void on_barrier(struct er_agent *agent, struct er_worker *w, struct er_ctlconn *conn,
                       const struct er_ctl_msg *m)
{
    char name[STORED_MAX];

    if (stored_name(conn, m, ":", "#", name))
        er_barriers_arrive(agent->barriers, conn, m->seq, w->local_rank, name,
                           er_deadline_in(er_now_us(), m->num[1]));
}

/* A worker's -errno or code of ours; what is none becomes -EIO. */
static int error_of(uint64_t num)
{
    int64_t error = (int64_t)num;

    return error < 0 && error >= -INT_MAX ? (int)error : -EIO;
}

static void commit_failed(struct er_agent *agent, struct er_worker *w, struct er_ctlconn *conn,
                          const struct er_ctl_msg *m, const char *path)
{
    int error = error_of(m->num[6]);

    er_event(&agent->events, "checkpoint_failed", ER_SEVERITY_WARNING, w->generation,
             "A checkpoint could not be written.", ER_UINT("step", m->num[1]),
             ER_INT("errno", -error), ER_STR("message", path[0] ? path : er_error_name(error)),
             ER_UINT("failures", ++agent->checkpoint_failures));
    er_ctlconn_status(conn, m->seq, 0, NULL);
}

static void on_commit(struct er_agent *agent, struct er_worker *w, struct er_ctlconn *conn,
                      const struct er_ctl_msg *m)
{
    char path[PATH_BYTES], digest[DIGEST_BYTES];
    struct request *r;

    if (er_ctl_copy(m->str[0], path, sizeof(path)) < 0 ||
        er_ctl_copy(m->str[1], digest, sizeof(digest)) < 0) {
        er_ctlconn_status(conn, m->seq, -EINVAL, "path or digest is too long");
        return;
    }
    if (m->num[6]) {
        commit_failed(agent, w, conn, m, path);
        return;
    }
    r = new_request(agent, conn, m);
    if (!r)
        return;
    r->generation = w->generation;
    r->step = m->num[1];
    r->bytes = m->num[2];
    r->written_bytes = m->num[3];
    r->pause_us = m->num[4];
    r->duration_us = m->num[5];
    memcpy(r->path, path, sizeof(path));
    memcpy(r->digest, digest, sizeof(digest));
    er_driver_commit(agent->driver, w->generation, r->step, r->digest, r->path, on_driver, r);
}

/* A worker's text goes into the event only when it is JSON. */
static bool is_json(const char *text)
{
    json_t *value = json_loads(text, 0, NULL);
    bool ok = value != NULL;

    json_decref(value);
    return ok;
}

static void on_loaded(struct er_agent *agent, struct er_worker *w, struct er_ctlconn *conn,
                      const struct er_ctl_msg *m)
{
    char path[PATH_BYTES], source[SOURCE_BYTES], skipped[SKIPPED_BYTES];

    if (er_ctl_copy(m->str[0], path, sizeof(path)) < 0 ||
        er_ctl_copy(m->str[1], source, sizeof(source)) < 0) {
        er_ctlconn_status(conn, m->seq, -EINVAL, "path or source is too long");
        return;
    }
    if (er_ctl_copy(m->str[2], skipped, sizeof(skipped)) < 0 || !is_json(skipped))
        strcpy(skipped, "[]");
    w->loaded_us = er_now_us();
    if (m->num[1] > agent->recovery.loaded_step)
        agent->recovery.loaded_step = m->num[1];
    /* Every rank loads; one line a node tells it. */
    if (w->local_rank == 0)
        er_event(&agent->events, "checkpoint_loaded", ER_SEVERITY_INFO, w->generation,
                 "A checkpoint was loaded.", ER_UINT("step", m->num[1]), ER_STR("path", path),
                 ER_STR("source", source), ER_JSON("skipped", skipped));
    er_ctlconn_status(conn, m->seq, 0, NULL);
}

static void on_fail(struct er_agent *agent, struct er_worker *w, struct er_ctlconn *conn,
                    const struct er_ctl_msg *m)
{
    size_t n = m->str[0].len < MESSAGE_MAX ? m->str[0].len : MESSAGE_MAX;

    free(w->message);
    w->message = calloc(n + 1, 1); /* no strndup(): a packet need not end with a NUL */
    if (w->message && n)
        memcpy(w->message, m->str[0].data, n);
    er_ctlconn_status(conn, m->seq, 0, NULL);
}

static void on_left(struct er_agent *agent, struct er_worker *w, struct er_ctlconn *conn,
                    const struct er_ctl_msg *m)
{
    er_group_left(agent->group, w, conn, m->seq, er_now_us());
}

static void on_nothing(struct er_agent *agent, struct er_worker *w, struct er_ctlconn *conn,
                       const struct er_ctl_msg *m)
{
    er_ctlconn_status(conn, m->seq, 0, NULL);
}

/* `fenced`: only in the worker's own generation. */
static const struct {
    handler_fn handle;
    bool fenced;
} HANDLERS[ER_CTL_TYPE_COUNT] = {
    [ER_CTL_HELLO] = {on_hello, false},  [ER_CTL_READY] = {on_ready, true},
    [ER_CTL_KV_PUT] = {on_put, true},    [ER_CTL_KV_GET] = {on_get, true},
    [ER_CTL_KV_ADD] = {on_add, true},    [ER_CTL_BARRIER] = {on_barrier, true},
    [ER_CTL_COMMIT] = {on_commit, true}, [ER_CTL_LOADED] = {on_loaded, true},
    [ER_CTL_LEFT] = {on_left, true},     [ER_CTL_FAIL] = {on_fail, false},
    [ER_CTL_BYE] = {on_nothing, false},
};

/* The worker that speaks: found by its process once in a generation, then remembered. NULL: it is
 * none of the running generation. */
static struct er_worker *speaker(struct er_agent *agent, struct er_ctlconn *conn)
{
    struct er_ctl_peer *peer = er_ctlconn_peer(conn);
    uint64_t generation = agent->group ? er_group_assignment(agent->group)->generation : 0;
    struct er_worker *w;

    if (!agent->group)
        return NULL;
    if (peer->local_rank >= 0 && peer->generation == generation)
        return er_group_worker(agent->group, peer->local_rank);
    w = er_group_worker_of(agent->group, peer->pid);
    if (w && !w->joins) {
        peer->generation = generation;
        peer->local_rank = w->local_rank;
    }
    return w;
}

void er_agent_on_request(void *user, struct er_ctlconn *conn, const struct er_ctl_msg *m)
{
    struct er_agent *agent = user;
    handler_fn handle = m->type < ER_CTL_TYPE_COUNT ? HANDLERS[m->type].handle : NULL;
    struct er_worker *w;

    if (!handle) {
        er_ctlconn_status(conn, m->seq, ER_E_PROTOCOL, "unknown request");
        return;
    }
    w = speaker(agent, conn);
    if (!w)
        er_ctlconn_status(conn, m->seq, ER_E_STALE, "not a worker of the running generation");
    else if (HANDLERS[m->type].fenced && (w->joins || m->num[0] != w->generation))
        er_ctlconn_status(conn, m->seq, ER_E_STALE, NULL);
    else {
        w->at_door |= HANDLERS[m->type].fenced;
        handle(agent, w, conn, m);
    }
}
