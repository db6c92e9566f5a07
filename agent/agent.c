#include "agent/agent.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "agent/agent_hang.h"
#include "agent/agent_internal.h"
#include "agent/ckptlock.h"
#include "agent/errorfile.h"
#include "agent/findings.h"
#include "agent/logruns.h"
#include "agent/orphan.h"
#include "agent/spawn.h"
#include "agent/startkind.h"
#include "agent/unit_node.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/fence.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "rendezvous/codec.h"

#define CONNS_A_WORKER 4 /* a worker's own, its helpers' and some that linger */
#define CONNS_BASE     64
#define LAST_SWEEP_US  (60 * ER_US_PER_S)
#define DROPS_FIRST_US (1 * ER_US_PER_S)

static void close_console(struct er_agent *agent)
{
    size_t lost = er_console_done(&agent->console, agent->stop_signals > 2);

    if (lost > 0)
        er_log(ER_LOG_WARNING, "the console did not take the last output in time",
               ER_UINT("bytes", lost), ER_STR("logs", agent->log_dir));
}

static void agent_done(struct er_agent *agent)
{
    er_agent_unit_close(agent);
    er_agent_http_close(agent);
    er_agent_metrics_close(agent);
    er_ctlserver_free(agent->workers_server);
    er_ctlserver_free(agent->status_server);
    er_agent_drop_requests(agent);
    er_agent_drop_sets(agent);
    er_kv_budget_done(&agent->kv_budget);
    er_agent_hang_close(agent);
    er_barriers_free(agent->barriers);
    er_group_free(agent->group);
    er_logpump_free(agent->logpump);
    er_errands_close(agent);
    er_agent_address_close(agent);
    er_loop_source_free(agent->driver_source);
    er_driver_free(agent->driver);
    er_store_close(&agent->store);
    er_goodbye_free(agent->goodbye);
    er_managed_etcd_free(agent->managed);
    if (agent->loop)
        close_console(agent);
    er_loop_free(agent->loop);
    er_events_close(&agent->events);
    er_statedir_close(&agent->state, agent->state_shared && er_guard_lives(agent->guard));
    er_cleanup_fd(&agent->port_fd);
    er_cleanup_fd(&agent->null_fd);
    er_cleanup_fd(&agent->ckpt_fd);
    free(agent->log_dir);
    free(agent->tail);
    free(agent->cause_log);
}

static int open_logs(struct er_agent *agent, struct er_error *err)
{
    const struct er_config *c = agent->config;
    char path[4096];
    int rc;

    if (!c->log.dir)
        return 0;
    if (asprintf(&agent->log_dir, "%s/%s", c->log.dir, c->name) < 0) {
        agent->log_dir = NULL;
        return er_error_set(err, -ENOMEM, "log.dir: out of memory");
    }
    rc = er_mkdir_all_own(agent->log_dir, 0755, err);
    /* On several nodes the others' generations are in it as well. */
    if (!rc && c->nnodes_max == 1 && er_events_path(agent->log_dir, c->node.id, path))
        rc = er_logruns_move_aside(agent->log_dir, path, err);
    if (!rc)
        rc = er_events_open(&agent->events, agent->log_dir, c->name, c->node.id, agent->hostname,
                            err);
    return rc ? er_error_wrap(err, rc, "log.dir") : 0;
}

int er_agent_hold_checkpoints(struct er_agent *agent, struct er_error *err)
{
    const struct er_config *c = agent->config;

    if (!c->checkpoint.dir)
        return 0;
    er_cleanup_fd(&agent->ckpt_fd);
    return er_ckptlock_take(c->checkpoint.dir, c->name, &agent->ckpt_fd, err);
}

static int open_checkpoint_dir(struct er_agent *agent, struct er_error *err)
{
    const char *dir = agent->config->checkpoint.dir;
    char moved[PATH_MAX] = "";
    int rc = er_agent_hold_checkpoints(agent, err); /* before --fresh moves anything */

    if (rc)
        return er_error_wrap(err, rc, "checkpoint.dir");
    rc = er_config_keeps_record(agent->config) ? er_startkind_check(agent->config, err)
                                               : er_startkind_apply(agent->config, moved, err);
    if (rc || !dir)
        return rc;
    if (moved[0])
        er_agent_say(agent, "--fresh: the checkpoints that were there are now in %s", moved);
    if (moved[0])
        er_cleanup_fd(&agent->ckpt_fd);
    rc = er_mkdir_all_own(dir, 0755, err);
    if (!rc && access(dir, W_OK | X_OK) < 0)
        rc = er_error_errno(err, "write to '%s'", dir);
    if (!rc && agent->ckpt_fd < 0) /* it was not there */
        rc = er_agent_hold_checkpoints(agent, err);
    if (!rc)
        rc = er_fence_newest(dir, &agent->first_generation, err);
    if (!rc && agent->first_generation >= ER_GEN_MAX / 2)
        rc = er_error_set(err, ER_E_CONFIG,
                          "'%s/.fence-g%llu' is of no generation that ever began: remove that file",
                          dir, (unsigned long long)agent->first_generation);
    return rc ? er_error_wrap(err, rc, "checkpoint.dir") : 0;
}

/* A folder that is still there: guard and agent of the last run died together, and nobody was left
 * to end what their workers had started. It is known by the socket in its environment. */
static void kill_leftovers(struct er_agent *agent)
{
    char socket[ER_STATE_PATH_MAX], entry[ER_STATE_PATH_MAX + 32];
    int n;

    if (access(agent->state.path, F_OK) < 0 ||
        er_statedir_socket(&agent->state, "workers.sock", socket, NULL))
        return;
    snprintf(entry, sizeof(entry), "ELASTIC_SOCKET=%s", socket);
    n = er_orphan_kill_marked(entry);
    if (n > 0)
        er_log(ER_LOG_WARNING, "killed what a run that crashed had left", ER_INT("processes", n));
}

/* Folders and files. The state folder's lock comes first: a job of this name that runs keeps its
 * logs and checkpoints where they are. */
static int open_files(struct er_agent *agent, struct er_error *err)
{
    int rc = er_agent_claim_node(agent, err);

    if (!rc) {
        agent->state_shared =
            er_guard_owns_dir(agent->guard, agent->state.path, agent->state.lock_fd) == 0;
        if (!agent->state_shared)
            er_log(ER_LOG_WARNING, "the guard cannot be told of the state folder",
                   ER_STR("path", agent->state.path));
        kill_leftovers(agent);
        rc = er_statedir_make(&agent->state, err);
    }
    if (!rc)
        rc = open_checkpoint_dir(agent, err);
    if (!rc)
        rc = open_logs(agent, err);
    return rc ? rc : er_statedir_socket(&agent->state, "workers.sock", agent->socket, err);
}

static int open_servers(struct er_agent *agent, struct er_error *err)
{
    unsigned conns = CONNS_BASE + CONNS_A_WORKER * agent->config->nproc;
    char path[ER_STATE_PATH_MAX];
    int rc = er_statedir_socket(&agent->state, "agent.sock", path, err);

    if (!rc)
        rc = er_ctlserver_new(&agent->workers_server, agent->loop, agent->socket, conns,
                              er_agent_on_request, agent, err);
    if (!rc)
        rc = er_ctlserver_new(&agent->status_server, agent->loop, path, CONNS_BASE,
                              er_agent_on_status, agent, err);
    return rc;
}

static int open_loop(struct er_agent *agent, struct er_error *err)
{
    agent->null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (agent->null_fd < 0)
        return er_error_errno(err, "open /dev/null");
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        return er_error_errno(err, "become a subreaper");
    return er_agent_watch_signals(agent, err);
}

void er_agent_on_verdict(void *user, const struct er_verdict *verdict)
{
    struct er_agent *agent = user;

    agent->verdict = *verdict;
    agent->done = true;
    er_agent_goodput_enter(agent, ER_TIME_IDLE, er_now_us());
    er_loop_source_free(agent->driver_source); /* nobody reads it any more */
    agent->driver_source = NULL;
    agent->duration_us = er_now_us() - agent->started_us;
}

static int files_code(const struct er_error *err)
{
    return err->code == -ENOMEM       ? ER_CODE_OSERR
           : err->code == ER_E_CONFIG ? ER_CODE_CONFIG
                                      : ER_CODE_CANTCREAT;
}

static bool has_logs(const struct er_config *c)
{
    return c->log.dir || c->log.tee.all || c->log.tee.n;
}

/* 0, or the exit code with the text in `err`. */
static int agent_open(struct er_agent *agent, char **environ_, struct er_error *err)
{
    const struct er_config *c = agent->config;
    const struct er_limits limits = {c->limits.memory, c->limits.cpus, c->limits.pids};

    er_spawn_lift_limits();
    if (er_loop_new(&agent->loop, err) || er_console_init(&agent->console, agent->loop, err) ||
        er_logpump_new(&agent->logpump, err))
        return ER_CODE_OSERR;
    if (gethostname(agent->hostname, sizeof(agent->hostname) - 1) < 0)
        strcpy(agent->hostname, "localhost");
    if (er_agent_open_address(agent, err))
        return ER_CODE_CONFIG;
    if (open_files(agent, err))
        return files_code(err);
    if (c->node.id_is_unit)
        er_unit_node_keep(environ_, c->node.id);
    if (open_loop(agent, err) || open_servers(agent, err) || er_errands_open(agent, environ_, err))
        return ER_CODE_OSERR;
    if (er_agent_metrics_open(agent, err))
        return ER_CODE_OSERR;
    if (er_agent_http_open(agent, err))
        return err->code == ER_E_CONFIG || err->code == ER_E_UNSUPPORTED ? ER_CODE_CONFIG
                                                                         : ER_CODE_OSERR;
    if (er_agent_open_driver(agent, err))
        return err->code == -EACCES                                        ? ER_CODE_NOPERM
               : err->code == ER_E_CONFIG || err->code == ER_E_UNSUPPORTED ? ER_CODE_CONFIG
                                                                           : ER_CODE_OSERR;
    if (agent->log_dir)
        (void)er_guard_knows_logs(agent->guard, agent->log_dir);
    if (er_cgroup_init(&agent->cgroup, &limits, err))
        return ER_CODE_CONFIG;
    if (agent->cgroup.path[0] &&
        er_guard_owns_cgroup(agent->guard, agent->cgroup.path, agent->cgroup.leaf) < 0)
        er_log(ER_LOG_WARNING, "the guard cannot be told of the cgroup",
               ER_STR("path", agent->cgroup.path));
    if (has_logs(c))
        agent->drops_us = er_now_us() + DROPS_FIRST_US;
    agent->group_ctx = (struct er_group_context){
        .config = c,
        .loop = agent->loop,
        .cgroup = &agent->cgroup,
        .console = &agent->console,
        .logpump = agent->logpump,
        .log_lines = agent->metrics ? agent->log_lines : NULL,
        .helpers = agent->errands.helpers,
        .state_dir = agent->state.path,
        .log_dir = agent->log_dir,
        .socket = agent->socket,
        .hostname = agent->hostname,
        .inherited_env = (const char *const *)environ_,
        .null_fd = agent->null_fd,
    };
    return 0;
}

void er_agent_step_recovery(struct er_agent *agent, uint64_t now_us)
{
    if (!agent->recovery.active || !agent->group ||
        !er_recovery_step(&agent->recovery, agent->group, now_us))
        return;
    er_agent_event_recovered(agent);
    if (agent->recovery.first_step_us)
        er_driver_progress(agent->driver, er_group_assignment(agent->group)->generation);
}

/* The one step: whatever happened, everybody gets the time and does what is due. */
static void step(struct er_agent *agent)
{
    uint64_t now_us = er_now_us();

    er_errands_step(agent, now_us);
    er_agent_address_step(agent, now_us);
    er_agent_stop_step(agent, now_us);
    if (agent->group)
        er_group_step(agent->group, now_us);
    er_barriers_step(agent->barriers, now_us);
    er_ctlserver_step(agent->workers_server, now_us);
    er_ctlserver_step(agent->status_server, now_us);
    er_agent_step_recovery(agent, now_us);
    if (agent->group && now_us >= agent->drops_us)
        er_agent_report_drops(agent, now_us);
    er_agent_warm_step(agent);
    er_agent_refill_step(agent, now_us);
    if (!er_health_holds(agent))
        er_agent_step_driver(agent, now_us);
    if (agent->group) /* a checkpoint was committed, perhaps */
        er_agent_change_step(agent, now_us);
    er_agent_hang_step(agent, now_us);
    er_agent_managed_step(agent, now_us);
    er_agent_metrics_step(agent, now_us);
    er_agent_http_step(agent, now_us);
    er_agent_wait_step(agent, now_us);
    er_agent_unit_step(agent, now_us);
    er_agent_statusline_step(agent, now_us);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t next_deadline(const struct er_agent *agent, uint64_t now_us)
{
    bool held = er_health_holds(agent);
    uint64_t at = held ? ER_FOREVER : er_driver_deadline(agent->driver);

    if (!held && er_driver_pending(agent->driver))
        return now_us;
    at = earlier(at, er_errands_deadline(agent));
    at = earlier(at, er_barriers_deadline(agent->barriers));
    at = earlier(at, er_agent_refill_deadline(agent));
    at = earlier(at, agent->done ? ER_FOREVER : agent->own.check_us);
    at = earlier(at, er_agent_wait_deadline(agent));
    at = earlier(at, er_agent_hang_deadline(agent));
    at = earlier(at, er_agent_managed_deadline(agent));
    at = earlier(at, er_agent_unit_deadline(agent));
    at = earlier(at, agent->textfile_us);
    at = earlier(at, agent->statusline.next_us);
    at = earlier(at, er_agent_http_deadline(agent));
    at = earlier(at, er_ctlserver_deadline(agent->workers_server));
    at = earlier(at, er_ctlserver_deadline(agent->status_server));
    at = earlier(at, agent->group ? er_agent_stop_deadline(agent) : ER_FOREVER);
    at = earlier(at, agent->group ? agent->drops_us : ER_FOREVER);
    at = earlier(at, agent->group ? er_group_deadline(agent->group) : ER_FOREVER);
    return earlier(at, er_recovery_deadline(&agent->recovery, now_us));
}

static int run_until(struct er_agent *agent, uint64_t give_up_us, struct er_error *err)
{
    uint64_t now_us = er_now_us();

    return er_loop_run(agent->loop, now_us, earlier(next_deadline(agent, now_us), give_up_us), err);
}

/* Until the verdict, and then until the last generation has gone. */
static int agent_loop(struct er_agent *agent, struct er_error *err)
{
    uint64_t give_up_us = ER_FOREVER;
    int rc = 0;

    er_health_first(agent, er_now_us());
    step(agent);
    while (!rc && !agent->done) {
        rc = run_until(agent, ER_FOREVER, err);
        step(agent);
    }
    if (!rc && agent->group && !er_group_gone(agent->group)) {
        er_group_stop(agent->group, er_now_us(), er_agent_grace(agent));
        give_up_us = er_deadline_in(er_now_us(), agent->config->stop.grace_us + LAST_SWEEP_US);
    }
    while (!rc && agent->group && !er_group_gone(agent->group) && er_now_us() < give_up_us) {
        rc = run_until(agent, give_up_us, err);
        er_group_step(agent->group, er_now_us());
        er_agent_unit_step(agent, er_now_us());
    }
    return rc;
}

static void say_started(struct er_agent *agent, int argc, char **argv)
{
    struct er_buf list;
    int rc;

    if (!er_events_wanted(&agent->events))
        return;
    er_buf_init(&list, ER_EVENT_MAX / 2);
    rc = er_buf_add_str(&list, "[");
    for (int i = 0; !rc && i < argc; i++) {
        rc = i ? er_buf_add_str(&list, ",") : 0;
        if (!rc)
            rc = er_json_quote(&list, argv[i], strlen(argv[i]));
    }
    if (rc || er_buf_add_str(&list, "]"))
        er_buf_clear(&list);
    er_event(&agent->events, "agent_started", ER_SEVERITY_INFO, 0, "The agent starts.",
             ER_STR("version", ER_VERSION), ER_INT("pid", getpid()),
             ER_JSON("argv", list.len ? er_buf_str(&list) : "[]"),
             ER_STR("config_digest", agent->config_digest));
    er_buf_done(&list);
}

/* A cause of another node has its words there. */
static bool cause_has_traceback(const struct er_agent *agent)
{
    return agent->tail_is_traceback &&
           strcmp(agent->verdict.cause.node_id, agent->config->node.id) == 0;
}

/* We may be a worker of another launcher. */
static void write_error_file(struct er_agent *agent)
{
    const char *path = getenv("TORCHELASTIC_ERROR_FILE");
    struct er_error err = ER_ERROR_INIT;

    if (agent->verdict.kind == ER_VERDICT_FAILED && path && path[0] &&
        er_errorfile_write(path, &agent->verdict, cause_has_traceback(agent) ? agent->tail : NULL,
                           &err))
        er_log(ER_LOG_WARNING, "cannot pass the root cause on", ER_STR("reason", err.text));
}

/* What the console's reader did not take to the end, whoever's it was. */
static void tell_unread(struct er_agent *agent)
{
    static const char *const STREAMS[] = {"stdout", "stderr"};
    uint64_t lines[2], bytes[2];

    if (!er_console_settle(&agent->console, agent->stop_signals > 2, lines, bytes))
        return;
    for (int i = 0; i < 2; i++) {
        if (bytes[i] == 0)
            continue;
        er_event(&agent->events, "log_dropped", ER_SEVERITY_WARNING,
                 er_driver_generation(agent->driver), "Output of workers was not read to the end.",
                 ER_JSON("rank", "null"), ER_STR("stream", STREAMS[i]), ER_UINT("lines", lines[i]),
                 ER_UINT("bytes", bytes[i]), ER_STR("reason", "console too slow"));
        er_log(ER_LOG_WARNING, "the console did not take the last output in time",
               ER_UINT("bytes", bytes[i]), ER_STR("logs", agent->log_dir));
    }
}

static int finish(struct er_agent *agent, int rc, const struct er_error *err)
{
    int code = agent->verdict.exit_code;

    if (rc) {
        er_statusline_close();
        er_log(ER_LOG_ERROR, err->text);
        return ER_CODE_SOFTWARE;
    }
    if (agent->own_exit_code && agent->verdict.kind == ER_VERDICT_STOPPED)
        code = agent->own_exit_code;
    er_agent_unit_ending(agent);
    er_statusline_close();
    tell_unread(agent);
    er_agent_event_end(agent, code);
    er_agent_report(agent);
    write_error_file(agent);
    er_errands_finish(agent);
    er_agent_status_end(agent, code);
    return code;
}

int er_agent_run(struct er_config *config, struct er_guard *guard, int argc, char **argv,
                 char **environ_)
{
    struct er_agent agent = {
        .config = config,
        .guard = guard,
        .argc = argc,
        .argv = argv,
        .environ_ = environ_,
        .started_us = er_now_us(),
        .events.fd = -1,
        .state.lock_fd = -1,
        .null_fd = -1,
        .port_fd = -1,
        .ckpt_fd = -1,
        .own = {.fd = -1, .check_us = ER_FOREVER},
        .drops_us = ER_FOREVER,
        .textfile_us = ER_FOREVER,
        .statusline.next_us = ER_FOREVER,
        .ladder_us = ER_FOREVER,
        .drained_us = ER_FOREVER,
        .deadline_us = ER_FOREVER,
        .waiting_us = ER_FOREVER,
    };
    struct er_error err = ER_ERROR_INIT;
    int code;

    er_agent_unit_open(&agent);
    er_list_init(&agent.requests);
    er_list_init(&agent.sets);
    er_goodput_init(&agent.goodput, agent.started_us);
    er_rfc3339(er_wall_us(), agent.started_ts);
    code = agent_open(&agent, environ_, &err);
    if (code) {
        er_findings_tell("elastic-run", err.text);
    } else {
        say_started(&agent, argc, argv);
        er_agent_say_start(&agent, environ_);
        er_agent_statusline_open(&agent);
        code = finish(&agent, agent_loop(&agent, &err), &err);
        er_agent_end_managed(&agent);
    }
    agent_done(&agent);
    return code;
}
