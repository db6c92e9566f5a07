/* The job's own etcd: its keepers started and looked after, and ended when the last node has left.
 */
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "agent/agent_internal.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "rendezvous/codec.h"

#define LOOK_US (100 * ER_US_PER_MS) /* at who is still there */
#define SETTLE_US                                                                                  \
    (500 * ER_US_PER_MS)               /* so that all members' hosts have seen that all have left  \
                                        */
#define OTHERS_US   (15 * ER_US_PER_S) /* beside stop.grace: what leaving may take them */
#define LEAVING_US  (3 * ER_US_PER_S)  /* when only this node is known to leave */
#define ANSWER_US   (6 * ER_US_PER_S)
#define STOP_US     (8 * ER_US_PER_S)
#define SAY_US      (2 * ER_US_PER_S)
#define KEYS_A_LOOK 1000

/* A question to the store: how many nodes are registered? */
struct others {
    bool answered;
    int rc;
    size_t n;
};

static void on_spawned(void *user, pid_t keeper)
{
    struct er_agent *agent = user;

    if (er_guard_keeps(agent->guard, keeper) < 0)
        er_log(ER_LOG_WARNING, "the guard cannot be told of the managed etcd",
               ER_INT("pid", keeper));
}

static void on_warn(void *user, const char *text)
{
    er_agent_say(user, "%s", text);
}

static void on_failed(void *user, const struct er_error *err)
{
    er_agent_fail(user, ER_CODE_UNAVAILABLE, err);
}

int er_agent_open_managed(struct er_agent *agent, struct er_error *err)
{
    const struct er_config *c = agent->config;
    const struct er_managed_opts opts = {
        .name = c->name,
        .endpoints = (const char *const *)c->rendezvous.endpoints.items,
        .endpoints_n = c->rendezvous.endpoints.n,
        .peer_port = (uint16_t)c->rendezvous.managed.peer_port,
        .etcd = c->rendezvous.managed.etcd,
        .data_dir = strcmp(c->rendezvous.managed.data_dir, "auto") == 0
                        ? NULL
                        : c->rendezvous.managed.data_dir,
        .secret_file = c->rendezvous.managed.secret_file,
        .insecure = c->rendezvous.managed.insecure,
        .tls_dir = agent->state.path,
        .spawned = on_spawned,
        .warn = on_warn,
        .failed = on_failed,
        .user = agent,
    };

    return er_managed_etcd_open(&agent->managed, agent->loop, &opts, err);
}

void er_agent_managed_access(struct er_agent *agent, struct er_store_access *ret)
{
    struct er_managed_store store;

    er_managed_etcd_store(agent->managed, &store);
    agent->managed_endpoints = store.endpoints;
    *ret = (struct er_store_access){
        .endpoints = &agent->managed_endpoints,
        .endpoint_n = 1,
        .ca = store.ca,
        .cert = store.cert,
        .key = store.key,
        .server_name = store.server_name,
    };
}

void er_agent_managed_step(struct er_agent *agent, uint64_t now_us)
{
    if (agent->managed)
        er_managed_etcd_step(agent->managed, now_us);
}

uint64_t er_agent_managed_deadline(const struct er_agent *agent)
{
    return agent->managed ? er_managed_etcd_deadline(agent->managed) : ER_FOREVER;
}

/* ---- the end ---- */

static void on_others(void *user, int rc, const struct er_store_reply *reply)
{
    struct others *o = user;

    o->answered = true;
    o->rc = rc;
    o->n = reply ? reply->kv_n : 0;
}

static void on_store_readable(void *user, uint32_t events) {}

static void run_until(struct er_agent *agent, uint64_t until_us)
{
    uint64_t now_us = er_now_us(), at = er_driver_deadline(agent->driver);

    if (er_driver_pending(agent->driver))
        at = now_us;
    if (er_loop_run(agent->loop, now_us, at < until_us ? at : until_us, NULL))
        return;
    er_driver_dispatch(agent->driver, er_now_us());
}

/* Under which all nodes register; its length, 0: too long. */
static size_t nodes_prefix(const struct er_config *c, char ret[ER_KEY_MAX])
{
    const struct er_key any = {.kind = ER_KEY_NODE, .name = "x"};
    char root[ER_KEY_MAX];
    size_t n = 0;

    if (snprintf(root, sizeof(root), "%s/%s/", c->rendezvous.prefix, c->name) < (int)sizeof(root))
        n = er_key_format(root, &any, ret);
    return n ? n - 1 : 0;
}

/* The answer must have come when this returns, or the store must have been given up with it: it is
 * ours. */
static void ask(struct er_agent *agent, struct others *ret)
{
    static struct others answer; /* of a question that was given up, too */
    const struct er_config *c = agent->config;
    struct er_store *store = agent->store.store;
    uint64_t until_us = er_deadline_in(er_now_us(), ANSWER_US);
    char prefix[ER_KEY_MAX];
    size_t n = nodes_prefix(c, prefix);
    const struct er_store_op op = {.kind = ER_OP_RANGE,
                                   .key = {prefix, n},
                                   .prefix = true,
                                   .limit = KEYS_A_LOOK,
                                   .keys_only = true};
    const struct er_store_txn txn = {.then_ops = &op, .then_n = 1};

    answer = (struct others){.rc = -1};
    if (n && store->ops->txn(store, &txn, on_others, &answer) == 0) {
        while (!answer.answered && er_now_us() < until_us &&
               !er_managed_etcd_has_gone(agent->managed))
            run_until(agent, until_us);
    }
    *ret = answer;
}

static void wait_a_moment(struct er_agent *agent, uint64_t us)
{
    uint64_t until_us = er_deadline_in(er_now_us(), us);

    while (er_now_us() < until_us)
        run_until(agent, until_us);
}

static bool job_is_over(const struct er_agent *agent)
{
    return agent->verdict.kind != ER_VERDICT_STOPPED;
}

/* Does the store go with us? */
static bool nobody_needs_it(struct er_agent *agent)
{
    uint64_t begun_us = er_now_us();
    uint64_t until_us = er_deadline_in(
        begun_us, job_is_over(agent) ? agent->config->stop.grace_us + OTHERS_US : LEAVING_US);
    unsigned signals = agent->stop_signals;
    bool said = false;
    struct others o;

    while (!er_managed_etcd_has_gone(agent->managed)) {
        ask(agent, &o);
        if (o.rc)
            return job_is_over(agent); /* the other members have gone already, or never came */
        if (o.n == 0)
            return true;
        if (agent->stop_signals > signals)
            return false;
        if (er_now_us() >= until_us)
            return job_is_over(agent);
        if (!said && er_now_us() >= begun_us + SAY_US) {
            er_agent_say(agent, "waiting for %zu other node%s to leave before etcd is stopped", o.n,
                         o.n == 1 ? "" : "s");
            said = true;
        }
        wait_a_moment(agent, LOOK_US);
    }
    return true; /* another agent of this host was the last */
}

void er_agent_end_managed(struct er_agent *agent)
{
    struct er_loop_source *source = NULL;

    if (!agent->managed || !er_managed_etcd_is_here(agent->managed) || !agent->driver)
        return;
    if (er_driver_fd(agent->driver) >= 0)
        (void)er_loop_io(agent->loop, er_driver_fd(agent->driver), EPOLLIN, ER_PRIORITY_IO,
                         on_store_readable, agent, &source, NULL);
    if (!nobody_needs_it(agent)) {
        er_agent_say(agent,
                     "%s runs on for the other nodes; it ends by itself when nobody is "
                     "connected any more",
                     er_managed_etcd_text(agent->managed));
    } else {
        if (!er_managed_etcd_is_alone(agent->managed))
            wait_a_moment(agent, SETTLE_US);
        if (!er_managed_etcd_stop(agent->managed, STOP_US))
            er_agent_say(agent, "%s has not ended yet", er_managed_etcd_text(agent->managed));
    }
    er_loop_source_free(source);
}
