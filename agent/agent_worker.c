/* What the driver wants of the workers, and what their ends mean for it. */
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/agent_hang.h"
#include "agent/agent_internal.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/parse.h"

#define DROPS_EVERY_US (60 * ER_US_PER_S)
#define PORT_TRIES     64

/* Bound but not listening: nobody else gets it by chance, and the worker of rank 0, which binds
 * with SO_REUSEADDR or after the release at spawn, does. On all addresses of the family that peers
 * use; with IPv6 also IPv4's. 0: taken. */
static int hold_port(struct er_agent *agent, unsigned port)
{
    bool v6 = strchr(agent->address, ':') != NULL;
    ER_CLEANUP(er_cleanup_fd)
    int fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in addr4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 addr6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr *addr = v6 ? (struct sockaddr *)&addr6 : (struct sockaddr *)&addr4;
    socklen_t n = v6 ? sizeof(addr6) : sizeof(addr4);
    int one = 1, zero = 0;

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
        (v6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero)) < 0) ||
        bind(fd, addr, n) < 0 || getsockname(fd, addr, &n) < 0)
        return -errno;
    agent->port_fd = ER_TAKE_FD(fd);
    agent->port = ntohs(v6 ? addr6.sin6_port : addr4.sin_port);
    return 0;
}

/* master_port is auto | N | LOW-HIGH, checked by the configuration. */
void er_agent_take_port(struct er_agent *agent)
{
    const char *text = agent->config->master_port;
    char *end = NULL;
    unsigned long low = text ? strtoul(text, &end, 10) : 0, high = low, start = er_now_us();

    er_cleanup_fd(&agent->port_fd);
    if (end && *end == '-')
        high = strtoul(end + 1, NULL, 10);
    /* A range is walked from a different place each time, so that a stale client of the last
     * generation meets nobody. */
    for (unsigned long i = 0, span = high - low + 1; i < span && i < PORT_TRIES; i++) {
        unsigned long port = low ? low + (start + i) % span : 0;

        if (hold_port(agent, (unsigned)port) == 0)
            break;
    }
    if (agent->port_fd < 0 && low && !agent->port_told)
        er_log(ER_LOG_WARNING, "master_port is in use: rank 0 may not be able to bind it",
               ER_STR("master_port", text));
    agent->port_told |= agent->port_fd < 0;
    if (agent->port_fd < 0)
        agent->port = low ? (int)low : 0; /* taken: the worker's own bind will say so */
    er_driver_port(agent->driver, agent->port);
}

void er_agent_fail(struct er_agent *agent, int code, const struct er_error *err)
{
    if (agent->own_exit_code)
        return;
    agent->own_exit_code = code;
    agent->own_error = *err;
    er_driver_leave(agent->driver, code, err->text);
}

void er_agent_say_left(struct er_agent *agent)
{
    uint64_t generation = er_group_assignment(agent->group)->generation, now_us = er_now_us();

    if (agent->left_said)
        return;
    er_agent_refill_left(agent, now_us);
    agent->left_fit = agent->left_fit || !er_health_again(agent, now_us);
    if (!agent->left_fit || er_agent_refill_waits(agent, now_us))
        return;
    agent->left_said = true;
    er_agent_take_port(agent);
    er_driver_slots(agent->driver, er_agent_next_slots(agent));
    er_driver_left(agent->driver, generation);
}

static void remember_failure(struct er_agent *agent, struct er_worker *w)
{
    const char *tail = w->traceback ? w->traceback : er_worker_tail(w);

    er_cleanup_free(&agent->tail);
    er_cleanup_free(&agent->cause_log);
    agent->tail = strdup(tail);
    agent->tail_is_traceback = w->traceback != NULL;
    /* The folder, when stderr went elsewhere. */
    if (w->log_dir &&
        asprintf(&agent->cause_log, "%s%s", w->log_dir, w->logs[1] ? "/stderr.log" : "") < 0)
        agent->cause_log = NULL;
    er_rfc3339(er_wall_us(), agent->failed_ts);
}

/* Where it was: in the step after the last one that it finished. Failures of start-up and of the
 * disk have nothing to do with the step. */
static uint64_t failed_in(const struct er_worker *w)
{
    uint64_t phase = w->page ? atomic_load(&w->page->from_worker.phase) : ER_PHASE_STARTUP;
    uint64_t step = w->page ? atomic_load(&w->page->from_worker.step) : 0;

    if (phase == ER_PHASE_STARTUP || phase == ER_PHASE_CHECKPOINT || step >= UINT64_MAX / 2)
        return 0;
    return step + 1;
}

static void fill_cause(const struct er_agent *agent, struct er_worker *w, struct er_cause *cause)
{
    *cause = (struct er_cause){
        .generation = w->generation,
        .rank = w->rank,
        .local_rank = w->local_rank,
        .pid = (int)w->pid,
        .kind = w->exit.kind,
        .code = w->exit.code,
        .signal = w->exit.signal,
        .fatal = w->judgement.fatal,
        .uncounted = w->judgement.uncounted,
        .step = w->page ? atomic_load(&w->page->from_worker.step) : 0,
        .in_step = failed_in(w),
    };
    snprintf(cause->node_id, sizeof(cause->node_id), "%s", agent->config->node.id);
    snprintf(cause->host, sizeof(cause->host), "%s", agent->hostname);
    snprintf(cause->message, sizeof(cause->message), "%s", er_worker_message(w));
}

static void say_result(struct er_agent *agent, const struct er_cause *cause)
{
    if (agent->result_said)
        return;
    agent->result_said = true;
    er_driver_result(agent->driver, er_group_assignment(agent->group)->generation, cause);
}

static bool has_progress(struct er_group *group)
{
    for (int i = 0; i < er_group_size(group); i++) {
        struct er_page *page = er_group_worker(group, i)->page;

        if (page && atomic_load(&page->from_worker.step) > 0)
            return true;
    }
    return false;
}

static void judge(struct er_agent *agent, struct er_worker *w, bool progress)
{
    const struct er_config *c = agent->config;
    const struct er_policy_input in = {
        .exit = w->exit,
        .stopped_by_us = w->fsm.stopped_by_us || agent->draining,
        .unexplained = agent->peers_lost && !agent->draining && !w->fsm.signaled,
        .agent_signal = agent->stop_signal,
        .agent_signal_us = agent->stop_signal_us,
        .now_us = w->exited_us,
        .grace_us = c->stop.grace_us,
        .progress = progress,
        .message = w->exit.kind == ER_EXIT_EXITED ? er_worker_message(w) : NULL,
        .checkpoints = c->checkpoint.dir != NULL,
        .fatal_codes = (const char *const *)c->restart.fatal_exit_codes.items,
        .fatal_n = c->restart.fatal_exit_codes.n,
    };

    w->judgement = er_agent_policy_judge(&in);
}

/* One that hung had failed before it was killed. */
static uint64_t failed_us(const struct er_worker *w)
{
    return w->hung && w->hung_us < w->exited_us ? w->hung_us : w->exited_us;
}

static void on_failed(struct er_agent *agent, struct er_worker *w, bool progress)
{
    struct er_cause cause;

    if (agent->result_said)
        return;
    w->root_cause = true;
    remember_failure(agent, w);
    if (progress)
        er_driver_progress(agent->driver, w->generation);
    fill_cause(agent, w, &cause);
    say_result(agent, &cause);
    agent->refill.failed |= cause.fatal;
    er_agent_step_recovery(agent, er_now_us()); /* of the failure before: it may be just over */
    er_recovery_failed(&agent->recovery, failed_us(w), er_now_us());
    er_agent_goodput_enter(agent, ER_TIME_DETECT, failed_us(w));
    er_agent_goodput_enter(agent, ER_TIME_STOP, er_now_us());
}

void er_agent_worker_hung(struct er_agent *agent, struct er_worker *w)
{
    w->exit = (struct er_exit){.kind = ER_EXIT_HUNG};
    w->judgement = (struct er_policy_result){.outcome = ER_OUTCOME_FAILED};
    on_failed(agent, w, has_progress(agent->group));
}

static bool all_ok(struct er_group *group)
{
    for (int i = 0; i < er_group_size(group); i++) {
        struct er_worker *w = er_group_worker(group, i);

        if (er_worker_fsm_alive(&w->fsm) || w->judgement.outcome != ER_OUTCOME_OK)
            return false;
    }
    return true;
}

/* A program that ends with 0 by a signal that hit all processes, as Slurm's notice does, has not
 * finished: it has saved, perhaps. */
static bool ended_by_notice(const struct er_agent *agent, const struct er_worker *w)
{
    return agent->config->nnodes_max > 1 && agent->stop_signal &&
           w->exited_us - agent->stop_signal_us <= agent->config->stop.grace_us;
}

static void on_exited(void *user, struct er_worker *w)
{
    struct er_agent *agent = user;
    bool progress = has_progress(agent->group);

    er_agent_hang_exited(agent, w);
    judge(agent, w, progress);
    if (w->judgement.outcome == ER_OUTCOME_FAILED)
        on_failed(agent, w, progress);
    else if (w->judgement.outcome == ER_OUTCOME_STOPPED)
        w->exit.kind = ER_EXIT_STOPPED;
    er_agent_event_worker(agent, w);
    er_agent_metrics_worker(agent, w);
    er_gpu_wait_exited(agent, w->pid);
    /* Who leaves on our word has not finished. */
    if (agent->draining || er_group_alive(agent->group) > 0 || !all_ok(agent->group))
        return;
    if (ended_by_notice(agent, w))
        er_driver_leave(agent->driver, ER_CODE_TEMPFAIL, "its workers ended by the signal");
    else
        say_result(agent, NULL);
}

/* Nobody acts in the generation any more: its workers are gone, or wait for the next one. */
static void on_gone(void *user)
{
    struct er_agent *agent = user;

    if (agent->left_said)
        return; /* who waited has ended as well */
    er_recovery_gone(&agent->recovery, agent->group, er_now_us());
    er_agent_goodput_enter(agent, ER_TIME_RENDEZVOUS, er_now_us());
    er_agent_report_drops(agent, er_now_us());
    agent->ladder_us = agent->waiting_us = ER_FOREVER;
    er_gpu_wait_gone(agent, er_now_us());
    if (agent->stop_wanted)
        er_agent_say_left(agent);
}

/* The store has said nothing of a loss: it may still, and then that is the cause. Until then, all
 * go on with what they hold. */
static void on_deserted(void *user)
{
    struct er_agent *agent = user;

    er_group_child(agent->group); /* who has died is the cause */
    er_agent_lead_out(agent, er_group_deserter(agent->group), er_now_us());
}

/* The node is not fit for another generation: what the stuck one holds is not free. */
static void on_stuck(void *user, const char *who)
{
    struct er_agent *agent = user;
    struct er_error err = ER_ERROR_INIT;

    er_error_set(&err, -EBUSY, "killed, but it does not end: %s; this node leaves the job", who);
    er_log(ER_LOG_ERROR, err.text);
    er_agent_fail(agent, ER_CODE_OSERR, &err);
}

/* The program cannot be run: a failure of the job, though no process ever was. */
static void cannot_run(struct er_agent *agent, const struct er_assignment *a,
                       const struct er_error *err)
{
    struct er_worker none = {
        .rank = a->first_rank,
        .generation = a->generation,
        .exit = {.kind = ER_EXIT_EXEC_FAILED, .code = er_exit_exec_code(-err->code)},
        .judgement = {.outcome = ER_OUTCOME_FAILED, .fatal = true},
        .root_cause = true,
        .message = strdup(err->text),
    };
    struct er_cause cause;

    remember_failure(agent, &none);
    fill_cause(agent, &none, &cause);
    er_agent_event_worker(agent, &none);
    say_result(agent, &cause);
    free(none.message);
}

static void start_failed(struct er_agent *agent, const struct er_assignment *a, int rc,
                         struct er_error *err)
{
    if (rc == ER_GROUP_NO_PROGRAM)
        cannot_run(agent, a, err);
    else
        er_agent_fail(agent, rc == ER_E_CONFIG ? ER_CODE_CONFIG : ER_CODE_OSERR, err);
}

static void say_generation(struct er_agent *agent, const struct er_assignment *a)
{
    char why[64] = "";

    if (agent->config->nnodes_max == 1)
        return;
    if (strcmp(a->reason, "formed") != 0)
        snprintf(why, sizeof(why), " (%s)", a->reason);
    er_agent_say(agent, "generation %llu%s: %d node%s, %d rank%s; here node %d with ranks %d to %d",
                 (unsigned long long)a->generation, why, a->nnodes, a->nnodes == 1 ? "" : "s",
                 a->world_size, a->world_size == 1 ? "" : "s", a->node_rank, a->first_rank,
                 a->first_rank + a->local_size - 1);
}

/* Those that waited for it are in the generation; the others' successors have been started. */
static void say_kept(struct er_agent *agent, const struct er_assignment *a)
{
    int n = er_group_size(agent->group), kept = 0, joined = 0;
    char text[32] = "";

    for (int i = 0; i < n; i++) {
        const struct er_worker *w = er_group_worker(agent->group, i);

        kept += w->kept_us && w->told;
        joined += w->kept_us && !w->told && !agent->refill.until_us; /* else: a successor */
    }
    if (joined > 0)
        snprintf(text, sizeof(text), ", %d joined", joined);
    er_agent_say(agent,
                 "generation %llu (%s): %d of %d worker%s kept their memory, %d started anew%s",
                 (unsigned long long)a->generation, a->reason, kept, n, n == 1 ? "" : "s",
                 n - kept - joined, text);
}

static int go_on_with_group(struct er_agent *agent, const struct er_assignment *a,
                            struct er_error *err)
{
    int rc = er_group_rejoin(agent->group, a, err);

    if (rc)
        return rc;
    say_kept(agent, a);
    for (int i = 0; i < er_group_size(agent->group); i++) {
        struct er_worker *w = er_group_worker(agent->group, i);

        if (w->has_left)
            er_agent_send_world(agent, w);
    }
    return 0;
}

/* Those that wait have a place there, each of them. */
static bool goes_on(const struct er_agent *agent, const struct er_assignment *a)
{
    return agent->group && er_group_parted(agent->group) &&
           er_group_next(agent->group).left <= a->local_size;
}

static int start_group(struct er_agent *agent, const struct er_assignment *a, struct er_error *err)
{
    static const struct er_group_callbacks CALLBACKS = {
        .exited = on_exited,
        .gone = on_gone,
        .parted = on_gone,
        .deserted = on_deserted,
        .stuck = on_stuck,
        .unjoined = er_agent_on_unjoined,
    };
    bool anew = !goes_on(agent, a);
    int rc;

    if (anew) {
        er_group_free(agent->group);
        agent->group = NULL;
        rc = er_group_start(&agent->group, &agent->group_ctx, a, &CALLBACKS, agent, err);
    } else {
        rc = go_on_with_group(agent, a, err);
    }
    if (agent->group)
        er_agent_refill_begin(agent, a, anew);
    return rc;
}

static void event_started(struct er_agent *agent, const struct er_assignment *a)
{
    for (int i = 0; agent->group && i < er_group_size(agent->group); i++) {
        struct er_worker *w = er_group_worker(agent->group, i);

        if (w->told)
            continue;
        w->told = true;
        er_event(&agent->events, "worker_started", ER_SEVERITY_INFO, a->generation,
                 "A worker was started.", ER_INT("rank", w->rank),
                 ER_INT("local_rank", w->local_rank), ER_INT("pid", w->pid));
    }
}

static void count_generation(struct er_agent *agent, const struct er_assignment *a, uint64_t now_us)
{
    if (agent->metrics) {
        er_metrics_add(agent->metrics, ER_METRIC_ID_GENERATIONS, a->reason, 1);
        er_metrics_add(agent->metrics, ER_METRIC_ID_RENDEZVOUS, "",
                       (double)(now_us - agent->goodput.since_us) / 1e6);
    }
    er_agent_goodput_enter(agent, ER_TIME_START, now_us);
}

static void begin(struct er_agent *agent, const struct er_assignment *a)
{
    agent->stop_wanted = agent->peers_lost = agent->left_said = agent->left_fit =
        agent->result_said = agent->draining = false;
    snprintf(agent->events.run, sizeof(agent->events.run), "%s", a->run);
    er_barriers_begin(agent->barriers, a);
    agent->ever_started = true;
}

/* Workers that can wait for the seal come up while the others train on; the rest could do nothing
 * before it, and has no master yet. */
void er_agent_on_prepare(void *user, const struct er_assignment *a)
{
    struct er_agent *agent = user;
    struct er_error err = ER_ERROR_INIT;
    int rc;

    if (!a->warm || (agent->group && !er_group_gone(agent->group))) {
        er_driver_prepared(agent->driver, a->generation);
        return;
    }
    agent->warming = true;
    agent->warm_said = false;
    begin(agent, a);
    er_agent_say(agent, "the membership changes: starting %d worker%s for generation %llu",
                 a->local_size, a->local_size == 1 ? "" : "s", (unsigned long long)a->generation);
    rc = start_group(agent, a, &err);
    if (rc)
        start_failed(agent, a, rc, &err);
}

void er_agent_warm_step(struct er_agent *agent)
{
    if (!agent->warming || agent->warm_said || !agent->group)
        return;
    for (int i = 0; i < er_group_size(agent->group); i++) {
        const struct er_worker *w = er_group_worker(agent->group, i);

        if (er_worker_fsm_alive(&w->fsm) && !w->at_door)
            return;
    }
    agent->warm_said = true;
    er_driver_prepared(agent->driver, er_group_assignment(agent->group)->generation);
}

/* Nobody is started anew: what the dead ones held is of no matter yet. */
static bool has_enough(const struct er_agent *agent, const struct er_assignment *a)
{
    struct er_group_next next;

    if (!goes_on(agent, a))
        return false;
    next = er_group_next(agent->group);
    return next.left + next.up >= a->local_size;
}

void er_agent_on_start(void *user, const struct er_assignment *a)
{
    struct er_agent *agent = user;
    struct er_error err = ER_ERROR_INIT;
    bool warm = agent->warming && agent->group && er_group_confirm(agent->group, a);
    int rc = 0;

    if (!warm && !has_enough(agent, a) && er_gpu_wait_hold(agent, a))
        return;
    agent->warming = false;
    if (!warm)
        begin(agent, a);
    er_cleanup_fd(&agent->port_fd);
    er_recovery_started(&agent->recovery, a->reason, er_now_us());
    er_agent_note_faults(agent, a->reason, er_now_us());
    count_generation(agent, a, er_now_us());
    say_generation(agent, a);
    if (!warm)
        rc = start_group(agent, a, &err);
    event_started(agent, a);
    if (rc)
        start_failed(agent, a, rc, &err);
    else
        er_agent_address_started(agent, a);
}

static const char *drop_reason(struct er_agent *agent, int error, int stream)
{
    if (error)
        return er_error_name(-error);
    return er_console_closed(&agent->console, stream) ? "console closed" : "console too slow";
}

static void report_drop(struct er_agent *agent, const struct er_worker *w, int stream,
                        const struct er_log_drops *d)
{
    static const char *const STREAMS[] = {"stdout", "stderr"};
    const char *reason = drop_reason(agent, d->error, stream);
    const char *path = er_logfwd_path(w->logs[stream]);
    bool closed = !d->error && er_console_closed(&agent->console, stream);

    if (closed && agent->closed_told[stream])
        return;
    agent->closed_told[stream] |= closed;
    er_event(&agent->events, "log_dropped", ER_SEVERITY_WARNING, w->generation,
             "Output of a worker could not be kept.", ER_INT("rank", w->rank),
             ER_STR("stream", STREAMS[stream]), ER_UINT("lines", d->lines),
             ER_UINT("bytes", d->bytes), ER_STR("reason", reason));
    if (d->error || !path)
        er_log(ER_LOG_WARNING, "output of a worker was dropped", ER_INT("rank", w->rank),
               ER_STR("stream", STREAMS[stream]), ER_UINT("bytes", d->bytes),
               ER_STR("reason", reason));
    else
        er_log(ER_LOG_WARNING, "output of a worker was left out here", ER_INT("rank", w->rank),
               ER_STR("stream", STREAMS[stream]), ER_UINT("bytes", d->bytes),
               ER_STR("reason", reason), ER_STR("complete_in", path));
}

/* One event a stream and minute at most; a console that was closed is told of once. */
void er_agent_report_drops(struct er_agent *agent, uint64_t now_us)
{
    for (int i = 0; i < 2 * er_group_size(agent->group); i++) {
        struct er_worker *w = er_group_worker(agent->group, i / 2);
        struct er_log_drops d =
            w->logs[i % 2] ? er_logfwd_take_drops(w->logs[i % 2]) : (struct er_log_drops){0};

        if (d.bytes > 0)
            report_drop(agent, w, i % 2, &d);
    }
    agent->drops_us = now_us + DROPS_EVERY_US;
}
