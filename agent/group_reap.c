/* Workers' processes end, or never come to be: who it was, and why. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/group_internal.h"
#include "agent/helper.h"
#include "agent/orphan.h"
#include "agent/spawn.h"
#include "base/cleanup.h"

#define REAPED_MAX  10000 /* in one go */
#define PARENTS_MAX 32    /* shells and launchers between a worker and who speaks for it */

static void note_failure(struct er_group *g, const struct er_spawn_failure *failure)
{
    struct er_worker *w;
    char *text;

    if (failure->index < 0 || failure->index >= g->n)
        return;
    w = g->workers[failure->index];
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
        if (!g->workers[i]->exec_errno)
            er_group_step_worker(g, g->workers[i], ER_WORKER_EV_EXECED, 0, 0);
    }
}

void er_group_on_report(void *user, uint32_t events)
{
    read_report(user);
}

/* A death by memory belongs to who is found dead first, where it cannot be told whose it was. */
static bool killed_for_memory(struct er_group *g, struct er_worker *w)
{
    struct er_cgroup *cgroup = g->ctx->cgroup;
    uint64_t oom = cgroup->ops->oom_kills(cgroup, w->place);
    bool is_oom = oom > w->oom_seen;

    for (int i = 0; is_oom && !cgroup->limited && i < g->pool_n; i++)
        g->pool[i].oom_seen = oom;
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
    if (w->joins) {
        er_group_join_ended(g, w);
        return;
    }
    g->alive_n--;
    er_group_turn_away(w);
    g->callbacks.exited(g->user, w);
}

static struct er_worker *worker_with_pid(struct er_group *g, pid_t pid)
{
    for (int i = 0; i < g->pool_n; i++) {
        struct er_worker *w = &g->pool[i];

        if (w->pid == pid && er_worker_fsm_alive(&w->fsm))
            return w;
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
void er_group_on_pidfd(void *user, uint32_t events)
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
