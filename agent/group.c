#include "agent/group.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/env.h"
#include "agent/group_internal.h"
#include "agent/helper.h"
#include "agent/orphan.h"
#include "agent/spawn.h"
#include "base/cleanup.h"
#include "base/fd.h"

#define FREE_WAIT_US (10 * ER_US_PER_S)
#define REAPED_MAX   10000 /* in one go */
#define PARENTS_MAX  32    /* shells and launchers between a worker and who speaks for it */

void er_group_step_worker(struct er_group *g, struct er_worker *w, enum er_worker_event_kind kind,
                          uint64_t now_us, uint64_t grace_us)
{
    const struct er_worker_event event = {.kind = kind, .now_us = now_us, .grace_us = grace_us};

    er_worker_act(w, er_worker_fsm_step(&w->fsm, &event), g->ctx->config->stop.signal);
}

void er_group_step_all(struct er_group *g, enum er_worker_event_kind kind, uint64_t now_us,
                       uint64_t grace_us)
{
    for (int i = 0; i < g->n; i++)
        er_group_step_worker(g, &g->workers[i], kind, now_us, grace_us);
}

static void note_failure(struct er_group *g, const struct er_spawn_failure *failure)
{
    struct er_worker *w;
    char *text;

    if (failure->index < 0 || failure->index >= g->n)
        return;
    w = &g->workers[failure->index];
    w->exec_errno = failure->error ? failure->error : EIO;
    w->exec_step = failure->step;
    if (asprintf(&text, "cannot %s '%s': %s", er_spawn_step_text(failure->step),
                 failure->step == ER_SPAWN_WORKDIR ? g->ctx->config->workdir
                                                   : g->ctx->config->command.items[0],
                 er_error_name(-w->exec_errno)) < 0)
        return;
    free(w->message);
    w->message = text;
}

/* End of file: every child has exec'ed or ended. */
static void read_report(struct er_group *g)
{
    struct er_spawn_failure failure;
    ssize_t n;

    if (g->report_fd < 0)
        return;
    while ((n = read(g->report_fd, &failure, sizeof(failure))) == (ssize_t)sizeof(failure))
        note_failure(g, &failure);
    if (n < 0)
        return; /* EAGAIN: some are still on their way */
    er_loop_source_free(g->report);
    g->report = NULL;
    er_cleanup_fd(&g->report_fd);
    for (int i = 0; i < g->n; i++) {
        if (!g->workers[i].exec_errno)
            er_group_step_worker(g, &g->workers[i], ER_WORKER_EV_EXECED, 0, 0);
    }
}

static void on_report(void *user, uint32_t events)
{
    read_report(user);
}

/* A death by memory belongs to who is found dead first, where it cannot be told whose it was. */
static bool killed_for_memory(struct er_group *g, struct er_worker *w)
{
    struct er_cgroup *cgroup = g->ctx->cgroup;
    uint64_t oom = cgroup->ops->oom_kills(cgroup, w->local_rank);
    bool is_oom = oom > w->oom_seen;

    for (int i = 0; is_oom && !cgroup->limited && i < g->n; i++)
        g->workers[i].oom_seen = oom;
    return is_oom;
}

/* A worker that failed on its own takes its children along at once: they hold ports and devices.
 * One that is being stopped leaves them the rest of the grace. */
static void end_worker(struct er_group *g, struct er_worker *w)
{
    uint64_t now_us = er_now_us();
    siginfo_t info = {0};
    int status = 0;

    read_report(g);
    if (!g->stopping && waitid(P_PID, (id_t)w->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
        info.si_pid == w->pid && (info.si_code != CLD_EXITED || info.si_status != 0))
        kill(-w->pid, SIGKILL);
    if (waitpid(w->pid, &status, WNOHANG) != w->pid)
        return;
    er_group_step_worker(g, w, ER_WORKER_EV_EXITED, now_us, 0);
    er_worker_ended(w, status, killed_for_memory(g, w), now_us);
    g->alive_n--;
    er_group_turn_away(w);
    g->callbacks.exited(g->user, w);
}

static struct er_worker *worker_with_pid(struct er_group *g, pid_t pid)
{
    for (int i = 0; i < g->n; i++) {
        if (g->workers[i].pid == pid && er_worker_fsm_alive(&g->workers[i].fsm))
            return &g->workers[i];
    }
    return NULL;
}

struct er_worker *er_group_worker_of(struct er_group *g, pid_t pid)
{
    struct er_worker *w = NULL;

    for (int up = 0; !w && up < PARENTS_MAX && pid > 1; up++) {
        w = worker_with_pid(g, pid);
        pid = er_orphan_parent(pid);
    }
    return w;
}

/* Readable, but not to be reaped: a debugger has it. SIGCHLD comes when that lets go. */
static void on_pidfd(void *user, uint32_t events)
{
    struct er_worker *w = user;

    er_group_child(w->group);
    if (er_worker_fsm_alive(&w->fsm)) {
        er_loop_source_free(w->source);
        w->source = NULL;
    }
}

/* Bounded, for the sake of the loop, should somebody make children faster than they are reaped:
 * more signals will come then. */
void er_group_child(struct er_group *g)
{
    for (int i = 0; i < REAPED_MAX; i++) {
        siginfo_t info = {0};
        struct er_worker *w;

        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0) {
            g->childless = errno == ECHILD;
            return;
        }
        if (info.si_pid == 0)
            return;
        w = worker_with_pid(g, info.si_pid);
        if (w)
            end_worker(g, w);
        else if (!er_helpers_reap(g->ctx->helpers, info.si_pid))
            waitpid(info.si_pid, NULL, WNOHANG);
    }
}

static int stdin_for(const struct er_group *g)
{
    switch (g->ctx->config->stdin_mode) {
    case ER_STDIN_INHERIT:
        return 0;
    case ER_STDIN_AUTO:
        return g->a.local_size == 1 && isatty(0) ? 0 : g->ctx->null_fd;
    case ER_STDIN_NONE:
        break;
    }
    return g->ctx->null_fd;
}

/* PATH as the worker will see it. */
static const char *worker_path(const struct er_group_context *ctx)
{
    const struct er_envlist *env = &ctx->config->env;

    for (size_t i = env->n; i > 0; i--) {
        if (strcmp(env->names[i - 1], "PATH") == 0)
            return env->values[i - 1];
    }
    return er_env_get(ctx->inherited_env, "PATH");
}

/* Where the program of this worker lies: as for the one before, unless its name differs. */
static int find_program(struct er_group *g, const char *name, struct er_error *err)
{
    char *path = NULL;
    int rc = 0;

    if (g->path_n > 0 && strcmp(g->program, name) == 0)
        return 0;
    rc = er_spawn_find(name, worker_path(g->ctx), g->ctx->config->workdir, &path, err);
    if (rc)
        return rc == -ENOENT || rc == -EACCES ? ER_GROUP_NO_PROGRAM : rc;
    free(g->program);
    g->program = strdup(name);
    if (!g->program) {
        free(path);
        return er_error_set(err, -ENOMEM, "command: out of memory");
    }
    g->paths[g->path_n++] = path;
    return 0;
}

int er_group_prepare_worker(struct er_group *g, int i, struct er_error *err)
{
    struct er_worker *w = &g->workers[i];
    char **argv = NULL;
    int rc;

    w->local_rank = i;
    w->group = g;
    w->pidfd = -1;
    for (int s = 0; s < 2; s++)
        w->filtered[s] = g->filtered[s].path ? &g->filtered[s] : NULL;
    rc = er_worker_argv(g->ctx, &g->a, i, &argv, err);
    if (!rc && (rc = find_program(g, argv[0], err)))
        er_worker_argv_free(argv);
    if (!rc) {
        g->prepared_n = i < g->prepared_n ? g->prepared_n : i + 1;
        rc = er_worker_prepare(w, g->ctx, &g->a, g->paths[g->path_n - 1], argv, stdin_for(g), err);
    }
    return rc;
}

static int spawn_worker(struct er_group *g, int i, int report_fd, struct er_error *err)
{
    struct er_cgroup *cgroup = g->ctx->cgroup;
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    int rc;

    g->workers[i].oom_seen = cgroup->ops->oom_kills(cgroup, i); /* an older one's */
    rc = cgroup->ops->worker(cgroup, i, &fd, err);
    if (!rc)
        rc = er_worker_spawn(&g->workers[i], g->ctx, fd, report_fd, err);
    if (!rc) {
        g->n = i < g->n ? g->n : i + 1;
        g->alive_n++;
    }
    return rc;
}

/* SIGCHLD would do; the pidfd tells without the detour and cannot be lost. */
static int watch_worker(struct er_group *g, int i, struct er_error *err)
{
    return er_loop_io(g->ctx->loop, g->workers[i].pidfd, EPOLLIN, ER_PRIORITY_CHILD, on_pidfd,
                      &g->workers[i], &g->workers[i].source, err);
}

/* Workers that are prepared and have no process yet. */
int er_group_launch(struct er_group *g, struct er_error *err)
{
    int pair[2], rc;

    if (pipe2(pair, O_CLOEXEC) < 0)
        return er_error_errno(err, "make a pipe");
    g->report_fd = pair[0];
    rc = er_fd_nonblock(pair[0]);
    if (rc)
        er_error_set(err, rc, "make a pipe non-blocking: %s", er_error_name(rc));
    for (int i = 0; !rc && i < g->a.local_size; i++)
        rc = g->workers[i].launch ? spawn_worker(g, i, pair[1], err) : 0;
    close(pair[1]);
    for (int i = 0; i < g->prepared_n; i++) {
        if (!g->workers[i].launch)
            continue;
        er_worker_launched(&g->workers[i]);
        if (!rc)
            rc = watch_worker(g, i, err);
    }
    if (!rc)
        rc = er_loop_io(g->ctx->loop, g->report_fd, EPOLLIN, ER_PRIORITY_CHILD, on_report, g,
                        &g->report, err);
    return rc;
}

static int allocate(struct er_group *g, size_t n)
{
    g->workers = calloc(n, sizeof(*g->workers));
    g->paths = calloc(n, sizeof(*g->paths));
    g->spared = calloc(n + ER_HELPERS_MAX, sizeof(*g->spared));
    return g->workers && g->paths && g->spared ? 0 : -ENOMEM;
}

static void free_arrays(struct er_group *g)
{
    free(g->workers);
    free(g->paths);
    free(g->spared);
}

int er_group_start(struct er_group **ret, const struct er_group_context *ctx,
                   const struct er_assignment *a, const struct er_group_callbacks *callbacks,
                   void *user, struct er_error *err)
{
    struct er_group *g = calloc(1, sizeof(*g));
    int rc;

    if (!g || allocate(g, (size_t)a->local_size) < 0) {
        if (g)
            free_arrays(g);
        free(g);
        return er_error_set(err, -ENOMEM, "workers: out of memory");
    }
    g->ctx = ctx;
    g->a = *a;
    g->callbacks = *callbacks;
    g->user = user;
    g->report_fd = -1;
    g->grace_end_us = ER_FOREVER;
    g->unasked_us = er_config_lease_ttl(ctx->config) + ER_GROUP_UNASKED_US;
    *ret = g;
    rc = er_worker_open_filtered(g->filtered, g->ctx, &g->a, err);
    for (int i = 0; !rc && i < a->local_size; i++)
        rc = er_group_prepare_worker(g, i, err);
    if (!rc)
        rc = ctx->cgroup->ops->begin(ctx->cgroup, err);
    if (rc)
        return rc;
    rc = er_group_launch(g, err);
    if (rc)
        er_group_stop(g, er_now_us(), 0);
    return rc;
}

void er_group_stop(struct er_group *g, uint64_t now_us, uint64_t grace_us)
{
    uint64_t end_us = er_deadline_in(now_us, grace_us);

    g->stopping = true;
    g->leaving = g->parted = false;
    if (end_us < g->grace_end_us)
        g->grace_end_us = end_us;
    if (grace_us == 0) {
        er_group_step_all(g, ER_WORKER_EV_KILL, now_us, 0);
        g->ctx->cgroup->ops->kill(g->ctx->cgroup);
        return;
    }
    er_group_step_all(g, ER_WORKER_EV_STOP, now_us, grace_us);
    er_group_step_all(g, ER_WORKER_EV_HURRY, now_us, grace_us);
    for (int i = 0; i < g->n; i++)
        er_group_turn_away(&g->workers[i]);
}

bool er_group_drain(struct er_group *g)
{
    if (g->leaving)
        return false;
    for (int i = 0; i < g->n; i++) {
        if (er_worker_fsm_alive(&g->workers[i].fsm) && !g->workers[i].spoke)
            return false;
    }
    for (int i = 0; i < g->n; i++)
        er_worker_drain(&g->workers[i]);
    return g->alive_n > 0;
}

uint64_t er_group_kill_at(const struct er_group *g)
{
    return g->leaving ? g->leave_end_us : g->grace_end_us;
}

void er_group_signal(struct er_group *g, int sig)
{
    for (int i = 0; i < g->n; i++) {
        if (er_worker_fsm_alive(&g->workers[i].fsm))
            kill(-g->workers[i].pid, sig);
    }
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The first worker that is out of time: on the ladder, or because it left unasked. */
static uint64_t workers_deadline(const struct er_group *g)
{
    uint64_t deadline_us = ER_FOREVER;

    for (int i = 0; i < g->n; i++) {
        const struct er_worker *w = &g->workers[i];

        deadline_us = earlier(deadline_us, w->fsm.deadline_us);
        if (w->has_left && !g->leaving && !g->stopping)
            deadline_us = earlier(deadline_us, w->left_us + g->unasked_us);
    }
    return deadline_us;
}

uint64_t er_group_deadline(const struct er_group *g)
{
    uint64_t deadline_us = ER_FOREVER;

    if (g->gone)
        return ER_FOREVER;
    if (g->alive_n == 0)
        return g->sweep_us;
    if (g->kill_us)
        deadline_us = g->kill_us + er_orphan_patience_us();
    else if (g->stopping)
        deadline_us = g->grace_end_us;
    if (g->leaving && !g->parted && er_group_acting(g) == 0)
        deadline_us = earlier(deadline_us, g->sweep_us);
    return earlier(deadline_us, workers_deadline(g));
}

/* Somebody who got the stop signal along with a worker is still at it. */
static bool grace_in_use(const struct er_group *g, uint64_t now_us)
{
    if (!g->stopping || now_us >= g->grace_end_us)
        return false;
    for (int i = 0; i < g->n; i++) {
        if (kill(-g->workers[i].pid, 0) == 0)
            return true;
    }
    return false;
}

/* The pipes go last: what orphans wrote is in the logs. */
static void finish(struct er_group *g)
{
    g->gone = true;
    g->ctx->cgroup->ops->end(g->ctx->cgroup);
    for (int i = 0; i < g->n; i++) {
        for (int s = 0; s < 2; s++)
            er_logfwd_drain(g->workers[i].logs[s]);
    }
    g->callbacks.gone(g->user);
}

static void sweep(struct er_group *g, uint64_t now_us)
{
    pid_t helpers[ER_HELPERS_MAX];
    size_t helpers_n;

    if (!g->childless)
        er_group_child(g);
    helpers_n = er_helpers_pids(g->ctx->helpers, helpers);
    if (g->childless) {
        finish(g);
        return;
    }
    /* With helpers there are always children: then nobody may be left but them. */
    if (helpers_n > 0 && er_orphan_pass(0, helpers, helpers_n) == 0) {
        finish(g);
        return;
    }
    if (!grace_in_use(g, now_us)) {
        g->ctx->cgroup->ops->kill(g->ctx->cgroup);
        er_orphan_pass(SIGKILL, helpers, helpers_n);
        g->kill_us = g->kill_us ? g->kill_us : now_us;
    }
    g->sweep_us = now_us + ER_GROUP_SWEEP_US;
}

/* What was killed long ago and is still there runs no code of its own any more: the job goes on
 * without waiting for it. */
static void abandon(struct er_group *g)
{
    pid_t helpers[ER_HELPERS_MAX];
    size_t helpers_n = er_helpers_pids(g->ctx->helpers, helpers);
    pid_t pid = er_orphan_find(helpers, helpers_n);
    char who[256];

    for (int i = 0; i < g->n; i++) {
        struct er_worker *w = &g->workers[i];

        if (!er_worker_fsm_alive(&w->fsm))
            continue;
        pid = w->pid;
        er_group_step_worker(g, w, ER_WORKER_EV_EXITED, 0, 0);
        g->alive_n--;
    }
    er_orphan_describe(pid, who, sizeof(who));
    if (g->callbacks.stuck)
        g->callbacks.stuck(g->user, who);
    finish(g);
}

void er_group_step(struct er_group *g, uint64_t now_us)
{
    if (g->gone)
        return;
    if (g->stopping && now_us >= g->grace_end_us) {
        g->ctx->cgroup->ops->kill(g->ctx->cgroup);
        g->kill_us = g->kill_us ? g->kill_us : now_us;
    }
    if (g->stopping)
        er_group_step_all(g, ER_WORKER_EV_TIME, now_us, 0);
    else if (g->leaving)
        er_group_step_leaving(g, now_us);
    else
        er_group_kill_deserters(g, now_us);
    if (g->alive_n == 0)
        sweep(g, now_us);
    if (!g->gone && g->kill_us && now_us >= g->kill_us + er_orphan_patience_us())
        abandon(g);
}

bool er_group_gone(const struct er_group *g)
{
    return g->gone;
}

void er_group_free(struct er_group *g)
{
    uint64_t give_up_us = er_now_us() + FREE_WAIT_US;

    if (!g)
        return;
    if (!g->gone) {
        g->callbacks = (struct er_group_callbacks){0};
        er_group_stop(g, er_now_us(), 0);
    }
    while (g->alive_n > 0 && er_now_us() < give_up_us) {
        for (int i = 0; i < g->n; i++) {
            if (er_worker_fsm_alive(&g->workers[i].fsm) &&
                waitpid(g->workers[i].pid, NULL, WNOHANG) != 0) {
                er_group_step_worker(g, &g->workers[i], ER_WORKER_EV_EXITED, 0, 0);
                g->alive_n--;
            }
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    }
    er_loop_source_free(g->report);
    er_cleanup_fd(&g->report_fd);
    for (int i = 0; i < g->n; i++)
        er_group_turn_away(&g->workers[i]);
    for (int i = 0; i < g->prepared_n; i++)
        er_worker_done(&g->workers[i]);
    er_logfile_done(&g->filtered[0]);
    er_logfile_done(&g->filtered[1]);
    for (int i = 0; i < g->path_n; i++)
        free(g->paths[i]);
    free(g->program);
    g->ctx->cgroup->ops->end(g->ctx->cgroup);
    free_arrays(g);
    free(g);
}

const struct er_assignment *er_group_assignment(const struct er_group *g)
{
    return &g->a;
}

int er_group_size(const struct er_group *g)
{
    return g->n;
}

int er_group_alive(const struct er_group *g)
{
    return g->alive_n;
}

struct er_worker *er_group_worker(struct er_group *g, int local_rank)
{
    return &g->workers[local_rank];
}

bool er_group_ready(struct er_group *g, struct er_worker *w, uint64_t now_us)
{
    enum er_worker_state before = w->fsm.state;

    er_group_step_worker(g, w, ER_WORKER_EV_READY, now_us, 0);
    return before != w->fsm.state;
}
