/* The driver and its store: opened, filled from the configuration, stepped. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>

#include "agent/agent_hang.h"
#include "agent/agent_internal.h"
#include "agent/node_address.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/parse.h"

#define CERT_SOON_US   (7 * 24 * 3600 * ER_US_PER_S)
#define CERT_UNIT_US   (60 * ER_US_PER_S) /* as exact as it is told */
#define DISPATCHES_MAX 10000 /* of the driver in one step: a bound for the case of our own bug */

static uint64_t boot_id_hash(void)
{
    struct er_buf text;
    struct er_digest digest = {0};

    er_buf_init(&text, 256);
    if (er_file_read("/proc/sys/kernel/random/boot_id", &text, NULL) == 0)
        digest = er_hash(text.data, text.len);
    er_buf_done(&text);
    return digest.lo;
}

static void on_driver_readable(void *user, uint32_t events)
{
    /* The step after every event dispatches the driver. */
}

/* Which programs speak libelastic is not known before they run: till then auto is the cautious
 * value (see er_driver_warm()), and a job of one node has nobody to wait for. */
static uint64_t replacement_wait_us(const struct er_config *c)
{
    if (c->rendezvous.replacement_wait_us != ER_FOREVER)
        return c->rendezvous.replacement_wait_us;
    return c->nnodes_max > 1 ? 3 * ER_US_PER_S : 0;
}

/* Scripts written for torchrun run the same name again and again; who writes a job file says so
 * when a finished job is to begin anew. */
static enum er_new_run new_run(const struct er_config *c)
{
    if (c->start_kind == ER_START_FRESH)
        return ER_NEW_RUN_FRESH;
    if (c->start_kind == ER_START_RESUME)
        return ER_NEW_RUN_RESUME;
    return c->program_form ? ER_NEW_RUN_AUTO : ER_NEW_RUN_NO;
}

void er_agent_tuning(const struct er_config *c, struct er_driver_tuning *ret)
{
    *ret = (struct er_driver_tuning){
        .restart_max = c->restart.max,
        .restart_window_us = c->restart.window_us,
        .backoff_initial_us = c->restart.backoff_initial_us,
        .backoff_max_us = c->restart.backoff_max_us,
        .strike_max = c->restart.node_strikes.max,
        .strike_window_us = c->restart.node_strikes.window_us,
        .strike_cooldown_us = c->restart.node_strikes.cooldown_us,
        .prepare_us = c->hang.startup_us, /* as long as a start may take at all */
        /* 0 means the default there. */
        .resize_settle_us = c->resize.settle_us ? c->resize.settle_us : 1,
        .resize_min_interval_us = c->resize.min_interval_us ? c->resize.min_interval_us : 1,
    };
}

static void fill_times(const struct er_config *c, struct er_driver_opts *o)
{
    struct er_driver_tuning tuning;

    er_agent_tuning(c, &tuning);
    er_driver_opts_tune(o, &tuning);
    o->join_timeout_us = c->rendezvous.join_timeout_us;
    o->last_call_us = c->rendezvous.last_call_timeout_us;
    o->exit_timeout_us = c->rendezvous.exit_timeout_us;
    o->lease_ttl_us = er_config_lease_ttl(c);
    o->death_grace_us = c->rendezvous.death_grace_us;
    o->replacement_wait_us = replacement_wait_us(c);
    o->replacement_auto = c->rendezvous.replacement_wait_us == ER_FOREVER;
    o->stop_grace_us = c->stop.grace_us;
    o->store_loss_limit_us =
        c->rendezvous.store_loss_limit_us == ER_FOREVER ? 0 : c->rendezvous.store_loss_limit_us;
    /* The embedded store ends with its agent. */
    if (er_config_keeps_record(c)) /* 0 means that nothing is done there */
        o->retention_us = c->rendezvous.retention_us ? c->rendezvous.retention_us : ER_US_PER_S;
    o->resize_grace_us = c->resize.grace_us;
}

static int fill(struct er_agent *agent, struct er_driver_opts *o, struct er_error *err)
{
    const struct er_config *c = agent->config;

    *o = (struct er_driver_opts){
        .slots = (int)c->nproc,
        .preferred_rank = c->node.rank,
        .min_nodes = c->nnodes_min,
        .max_nodes = c->nnodes_max,
        .role = er_role_id(c->role),
        .poison_max = c->restart.poison_step.failures,
        .poison_skip = c->restart.poison_step.action == ER_POISON_SKIP,
        .first_generation = agent->first_generation,
        .boot_id_hash = boot_id_hash(),
        .new_run = new_run(c),
        .below_min_stop = c->resize.below_min == ER_BELOW_MIN_STOP,
        .update_spec = c->update_spec,
        .store_loss_stop = strcmp(c->rendezvous.store_loss_policy, "stop") == 0,
        .now_us = er_now_us(),
    };
    o->roles_n = er_config_role_bounds(c, o->roles);
    snprintf(o->job, sizeof(o->job), "%s", c->name);
    snprintf(o->host, sizeof(o->host), "%s", agent->hostname);
    snprintf(o->address, sizeof(o->address), "%s", agent->address);
    if (snprintf(o->node_id, sizeof(o->node_id), "%s", c->node.id) >= (int)sizeof(o->node_id) ||
        snprintf(o->prefix, sizeof(o->prefix), "%s", c->rendezvous.prefix) >=
            (int)sizeof(o->prefix))
        return er_error_set(err, ER_E_CONFIG, "node.id or rendezvous.prefix is too long");
    fill_times(c, o);
    if (getrandom(&o->incarnation, sizeof(o->incarnation), 0) < 0 ||
        getrandom(&o->seed, sizeof(o->seed), 0) < 0)
        return er_error_errno(err, "get random numbers");
    o->incarnation |= 1; /* not 0 */
    return 0;
}

static void access_of(struct er_agent *agent, struct er_store_access *ret)
{
    if (agent->managed)
        er_agent_managed_access(agent, ret);
    else
        er_store_access_from(agent->config, ret);
}

static int open_store(struct er_agent *agent, uint64_t seed, struct er_error *err)
{
    const struct er_config *c = agent->config;
    struct er_store_access access;
    int rc;

    if (!er_config_keeps_record(c))
        return er_store_open(&agent->store, NULL, c->rendezvous.prefix, c->name, seed, err);
    rc = c->rendezvous.backend == ER_BACKEND_MANAGED ? er_agent_open_managed(agent, err) : 0;
    if (rc)
        return rc;
    access_of(agent, &access);
    return er_store_open(&agent->store, &access, c->rendezvous.prefix, c->name, seed, err);
}

/* What a job that runs for weeks should know before: once it has ended, nobody connects again until
 * there is another one in its file. */
static void say_certificate_ends(struct er_agent *agent)
{
    struct er_etcd_status s = {.cert_until_us = 0};
    char time[ER_UNIT_TEXT_MAX];
    uint64_t now_us = er_wall_us();

    if (agent->store.etcd && agent->config->rendezvous.tls.cert)
        agent->store.etcd->status(agent->store.store, &s);
    if (!s.cert_until_us || s.cert_until_us > now_us + CERT_SOON_US)
        return;
    er_format_duration((s.cert_until_us - now_us) / CERT_UNIT_US * CERT_UNIT_US, time);
    er_agent_say(agent,
                 "warning: the certificate '%s' (rendezvous.tls.cert) expires in %s; after that "
                 "this agent can not connect to the store again until the file holds a new one",
                 agent->config->rendezvous.tls.cert, time);
}

int er_agent_open_address(struct er_agent *agent, struct er_error *err)
{
    const struct er_config *c = agent->config;
    bool far = er_config_keeps_record(c);

    return er_node_address_by(
        c->node.address, far ? (const char *const *)c->rendezvous.endpoints.items : NULL,
        far ? c->rendezvous.endpoints.n : 0, agent->address, &agent->own.route, err);
}

/* Without it the others wait for the end of the lease: no reason not to run. */
static void owe_goodbye(struct er_agent *agent, uint64_t incarnation)
{
    const struct er_config *c = agent->config;
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    struct er_error err = ER_ERROR_INIT;
    struct er_store_access access;
    int rc;

    if (!agent->store.etcd)
        return;
    access_of(agent, &access);
    rc = er_goodbye_new(&agent->goodbye, &fd, &access, c->rendezvous.prefix, c->name, c->node.id,
                        incarnation, &err);
    if (!rc)
        rc = er_guard_owes_goodbye(agent->guard, fd);
    if (rc)
        er_log(ER_LOG_WARNING, "the guard cannot tell the store of this agent's death",
               ER_STR("reason", err.code ? err.text : er_error_name(rc)));
}

int er_agent_open_driver(struct er_agent *agent, struct er_error *err)
{
    const struct er_driver_callbacks callbacks = {
        .start = er_agent_on_start,
        .stop = er_agent_on_stop,
        .verdict = er_agent_on_verdict,
        .note = er_agent_on_note,
        .prepare = er_agent_on_prepare,
        .notice = er_agent_on_notice,
        .query = er_agent_on_query,
        .overrides = er_agent_on_overrides,
    };
    ER_CLEANUP(er_cleanup_free) char *spec = NULL;
    struct er_driver_opts o;
    int rc = er_config_spec_text(agent->config, &spec, err);

    if (!rc)
        rc = fill(agent, &o, err);
    if (rc)
        return rc;
    o.spec = spec;
    rc = open_store(agent, o.seed, err);
    if (!rc)
        say_certificate_ends(agent);
    if (!rc)
        rc = er_driver_new(&agent->driver, agent->store.store, &o, &callbacks, agent, err);
    if (!rc)
        rc = er_barriers_new(&agent->barriers, agent->driver, err);
    if (!rc)
        rc = er_agent_hang_open(agent, err);
    if (!rc && er_driver_fd(agent->driver) >= 0)
        rc = er_loop_io(agent->loop, er_driver_fd(agent->driver), EPOLLIN, ER_PRIORITY_IO,
                        on_driver_readable, agent, &agent->driver_source, err);
    if (rc)
        return rc;
    owe_goodbye(agent, o.incarnation);
    er_agent_take_port(agent);
    er_agent_address_open(agent);
    er_driver_planned(agent->driver, agent->config->nnodes_max > 1);
    er_digest_format(er_hash(spec, strlen(spec)), agent->config_digest);
    return 0;
}

void er_agent_step_driver(struct er_agent *agent, uint64_t now_us)
{
    if (agent->driver_source || er_driver_deadline(agent->driver) <= now_us)
        er_driver_dispatch(agent->driver, now_us);
    for (int i = 0; i < DISPATCHES_MAX && er_driver_pending(agent->driver); i++)
        er_driver_dispatch(agent->driver, now_us);
    if (agent->goodbye) {
        struct er_look look;

        er_driver_look(agent->driver, &look);
        er_goodbye_update(agent->goodbye, look.lease, look.generation);
    }
}
