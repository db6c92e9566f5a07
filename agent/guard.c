#include "agent/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/cgroup.h"
#include "agent/exit_codes.h"
#include "agent/orphan.h"
#include "agent/statedir.h"
#include "base/cleanup.h"
#include "base/parse.h"

#define SUSPEND_LOOKS   400 /* an agent that does not stop is not waited for longer than 2 s */
#define SUSPEND_LOOK_NS (5 * 1000 * 1000)
#define DEATH_OFFSET    1 /* from SIGRTMIN: a signal that nobody sends by hand */

enum owned_kind { OWNED_DIR, OWNED_CGROUP, OWNED_LOGS };

/* One record is one packet of the pair: the guard reads them only when the agent has gone. */
struct owned {
    enum owned_kind kind;
    char path[400];
};

static const int PASSED_ON[] = {SIGTERM, SIGINT,  SIGHUP,  SIGQUIT, SIGUSR1,
                                SIGUSR2, SIGALRM, SIGTSTP, SIGCONT};

void er_guard_signals(sigset_t *ret_set)
{
    sigemptyset(ret_set);
    for (size_t i = 0; i < ER_ARRAY_N(PASSED_ON); i++)
        sigaddset(ret_set, PASSED_ON[i]);
}

int er_guard_death_signal(void)
{
    return SIGRTMIN + DEATH_OFFSET;
}

/* Logs stay: where they are comes back, "" when there are none. */
static void remove_owned(int fd, char ret_logs[400])
{
    struct owned owned;

    ret_logs[0] = '\0';

    while (recv(fd, &owned, sizeof(owned), MSG_DONTWAIT) == (ssize_t)sizeof(owned)) {
        owned.path[sizeof(owned.path) - 1] = '\0';
        if (owned.kind == OWNED_CGROUP)
            er_cgroup_destroy(owned.path);
        else if (owned.kind == OWNED_LOGS)
            memcpy(ret_logs, owned.path, sizeof(owned.path));
        else
            er_statedir_remove(owned.path);
    }
}

/* The agent has gone: nothing that it started may stay. */
static _Noreturn void finish(int status, int fd)
{
    char logs[400];

    er_orphan_kill_all();
    remove_owned(fd, logs);
    if (WIFEXITED(status))
        _exit(WEXITSTATUS(status));
    dprintf(2,
            "elastic-run: the agent died by signal %d (%s); its workers were killed and its files "
            "in use removed\n",
            WTERMSIG(status), er_signal_name(WTERMSIG(status)));
    if (logs[0])
        dprintf(2, "  logs        %s\n", logs);
    dprintf(2,
            "  next        run the same command again: it goes on from the newest checkpoint, if "
            "it has any\n");
    _exit(ER_CODE_SOFTWARE);
}

static void reap(pid_t agent, int fd)
{
    int status = 0;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == agent)
            finish(status, fd);
    }
}

/* The agent stops its workers and itself; then this process, for which the shell waits. */
static void suspend(pid_t agent, int fd)
{
    for (int i = 0; i < SUSPEND_LOOKS; i++) {
        int status = 0;

        if (waitpid(agent, &status, WNOHANG | WUNTRACED) == agent) {
            if (!WIFSTOPPED(status))
                finish(status, fd);
            break;
        }
        nanosleep(&(struct timespec){.tv_nsec = SUSPEND_LOOK_NS}, NULL);
    }
    raise(SIGSTOP);
}

static _Noreturn void guard_main(pid_t agent, int fd, const sigset_t *set)
{
    for (;;) {
        siginfo_t info;
        int sig = sigwaitinfo(set, &info);

        if (sig == SIGCHLD)
            reap(agent, fd);
        else if (sig > 0)
            kill(agent, sig);
        if (sig == SIGTSTP)
            suspend(agent, fd);
    }
}

/* A tie both ways: the agent hears of the guard's death, also of one that came before this call. */
static void become_agent(pid_t guard)
{
    int sig = er_guard_death_signal();

    setsid();
    prctl(PR_SET_PDEATHSIG, sig);
    if (getppid() != guard)
        raise(sig);
}

int er_guard_start(struct er_guard *ret, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int agent_end = -1;
    ER_CLEANUP(er_cleanup_fd) int guard_end = -1;
    pid_t guard = getpid(), agent;
    int pair[2];
    sigset_t set;

    er_guard_signals(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, er_guard_death_signal());
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
        return er_error_errno(err, "block signals");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return er_error_errno(err, "make the guard's socket pair");
    agent_end = pair[0];
    guard_end = pair[1];
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        return er_error_errno(err, "become a subreaper");
    agent = fork();
    if (agent < 0)
        return er_error_errno(err, "fork");
    if (agent > 0) {
        close(ER_TAKE_FD(agent_end));
        guard_main(agent, ER_TAKE_FD(guard_end), &set);
    }
    become_agent(guard);
    ret->fd = ER_TAKE_FD(agent_end);
    return 0;
}

static int tell(struct er_guard *guard, enum owned_kind kind, const char *path)
{
    struct owned owned = {.kind = kind};

    if (strlen(path) >= sizeof(owned.path))
        return -ENAMETOOLONG;
    strcpy(owned.path, path);
    if (send(guard->fd, &owned, sizeof(owned), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return -errno;
    return 0;
}

int er_guard_owns_dir(struct er_guard *guard, const char *path)
{
    return tell(guard, OWNED_DIR, path);
}

int er_guard_knows_logs(struct er_guard *guard, const char *path)
{
    return tell(guard, OWNED_LOGS, path);
}

int er_guard_owns_cgroup(struct er_guard *guard, const char *path)
{
    return tell(guard, OWNED_CGROUP, path);
}
