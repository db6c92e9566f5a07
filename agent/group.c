#include "agent/group.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/env.h"
#include "agent/group_internal.h"
#include "agent/helper.h"
#include "agent/spawn.h"
#include "base/cleanup.h"
#include "base/fd.h"

#define FREE_WAIT_US (10 * ER_US_PER_S)

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
        er_group_step_worker(g, g->workers[i], kind, now_us, grace_us);
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

int er_group_prepare_worker(struct er_group *g, struct er_worker *w, const struct er_assignment *a,
                            int local_rank, struct er_error *err)
{
    char **argv = NULL;
    int rc;

    w->local_rank = local_rank;
    for (int s = 0; s < 2; s++)
        w->filtered[s] = g->filtered[s].path ? &g->filtered[s] : NULL;
    rc = er_worker_argv(g->ctx, a, local_rank, &argv, err);
    if (!rc && (rc = find_program(g, argv[0], err)))
        er_worker_argv_free(argv);
    if (!rc)
        rc = er_worker_prepare(w, g->ctx, a, g->paths[g->path_n - 1], argv, stdin_for(g), err);
    return rc;
}

void er_group_forget_paths(struct er_group *g)
{
    while (g->path_n > 0)
        free(g->paths[--g->path_n]);
}

int er_group_spawn_worker(struct er_group *g, struct er_worker *w, int report_fd,
                          struct er_error *err)
{
    struct er_cgroup *cgroup = g->ctx->cgroup;
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    int rc;

    w->oom_seen = cgroup->ops->oom_kills(cgroup, w->place); /* an older one's */
    rc = cgroup->ops->worker(cgroup, w->place, &fd, err);
    return rc ? rc : er_worker_spawn(w, g->ctx, fd, report_fd, err);
}

static int spawn_worker(struct er_group *g, int i, int report_fd, struct er_error *err)
{
    int rc = er_group_spawn_worker(g, g->workers[i], report_fd, err);

    if (!rc) {
        g->n = i < g->n ? g->n : i + 1;
        g->alive_n++;
    }
    return rc;
}

/* SIGCHLD would do; the pidfd tells without the detour and cannot be lost. */
int er_group_watch_worker(struct er_group *g, struct er_worker *w, struct er_error *err)
{
    return er_loop_io(g->ctx->loop, w->pidfd, EPOLLIN, ER_PRIORITY_CHILD, er_group_on_pidfd, w,
                      &w->source, err);
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
        rc = g->workers[i]->launch ? spawn_worker(g, i, pair[1], err) : 0;
    close(pair[1]);
    for (int i = 0; i < g->a.local_size; i++) {
        struct er_worker *w = g->workers[i];

        if (!w->launch)
            continue;
        er_worker_launched(w);
        if (!rc)
            rc = er_group_watch_worker(g, w, err);
    }
    if (!rc)
        rc = er_loop_io(g->ctx->loop, g->report_fd, EPOLLIN, ER_PRIORITY_CHILD, er_group_on_report,
                        g, &g->report, err);
    return rc;
}

/* Who has ended keeps what is known of it while its successor comes up: two for each place. */
static int allocate(struct er_group *g, size_t n)
{
    g->pool = calloc(2 * n, sizeof(*g->pool));
    g->workers = calloc(n, sizeof(struct er_worker *));
    g->paths = calloc(n, sizeof(*g->paths));
    g->spared = calloc(2 * n + ER_HELPERS_MAX, sizeof(*g->spared));
    if (!g->pool || !g->workers || !g->paths || !g->spared)
        return -ENOMEM;
    g->places_n = (int)n;
    g->pool_n = 2 * (int)n;
    for (int i = 0; i < g->pool_n; i++)
        er_worker_vacate(&g->pool[i], g, i);
    for (int i = 0; i < g->places_n; i++)
        g->workers[i] = &g->pool[i];
    return 0;
}

static void free_arrays(struct er_group *g)
{
    free(g->pool);
    free(g->workers);
    free(g->paths);
    free(g->spared);
}

int er_group_start(struct er_group **ret, const struct er_group_context *ctx,
                   const struct er_assignment *a, const struct er_group_callbacks *callbacks,
                   void *user, struct er_error *err)
{
    struct er_group *g = calloc(1, sizeof(*g));
    int rc, places = (int)ctx->config->nproc;

    if (!g || allocate(g, (size_t)(a->local_size > places ? a->local_size : places)) < 0) {
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
        rc = er_group_prepare_worker(g, g->workers[i], a, i, err);
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
    er_group_drop_joining(g);
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
        er_group_turn_away(g->workers[i]);
}

bool er_group_all_spoke(const struct er_group *g)
{
    bool all = true;

    for (int i = 0; i < g->n; i++)
        all = all && (g->workers[i]->spoke || !er_worker_fsm_alive(&g->workers[i]->fsm));
    return all;
}

bool er_group_drain(struct er_group *g, int notice_signal)
{
    if (g->leaving)
        return false;
    if (!notice_signal && !er_group_all_spoke(g))
        return false;
    for (int i = 0; i < g->n; i++) {
        struct er_worker *w = g->workers[i];

        er_worker_drain(w);
        if (er_worker_fsm_alive(&w->fsm) && !w->spoke)
            kill(w->pid, notice_signal);
    }
    return g->alive_n > 0;
}

uint64_t er_group_kill_at(const struct er_group *g)
{
    return g->leaving ? g->leave_end_us : g->grace_end_us;
}

void er_group_signal(struct er_group *g, int sig)
{
    for (int i = 0; i < g->n; i++) {
        if (er_worker_fsm_alive(&g->workers[i]->fsm))
            kill(-g->workers[i]->pid, sig);
    }
}

bool er_group_gone(const struct er_group *g)
{
    return g->gone;
}

/* Whoever is being killed; true: some are not gone yet. */
static bool reap_left(struct er_group *g)
{
    bool any = false;

    for (int i = 0; i < g->pool_n; i++) {
        struct er_worker *w = &g->pool[i];

        if (!er_worker_fsm_alive(&w->fsm) || w->pid == 0)
            continue;
        if (waitpid(w->pid, NULL, WNOHANG) == 0) {
            any = true;
            continue;
        }
        er_group_step_worker(g, w, ER_WORKER_EV_EXITED, 0, 0);
        g->alive_n -= !w->joins;
    }
    return any;
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
    while (reap_left(g) && er_now_us() < give_up_us)
        nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
    er_loop_source_free(g->report);
    er_cleanup_fd(&g->report_fd);
    for (int i = 0; i < g->pool_n; i++) {
        er_group_turn_away(&g->pool[i]);
        er_worker_done(&g->pool[i]);
    }
    er_logfile_done(&g->filtered[0]);
    er_logfile_done(&g->filtered[1]);
    er_group_forget_paths(g);
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

int er_group_places(const struct er_group *g)
{
    return g->places_n;
}

int er_group_alive(const struct er_group *g)
{
    return g->alive_n;
}

struct er_worker *er_group_worker(struct er_group *g, int local_rank)
{
    return g->workers[local_rank];
}

bool er_group_ready(struct er_group *g, struct er_worker *w, uint64_t now_us)
{
    enum er_worker_state before = w->fsm.state;

    er_group_step_worker(g, w, ER_WORKER_EV_READY, now_us, 0);
    return before != w->fsm.state;
}
