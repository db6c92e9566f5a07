#include "agent/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/cgroup.h"
#include "agent/goodbye.h"
#include "agent/orphan.h"
#include "agent/statedir.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/parse.h"

#define SUSPEND_LOOKS   400 /* an agent that does not stop is not waited for longer than 2 s */
#define SUSPEND_LOOK_NS (5 * 1000 * 1000)
#define DEATH_OFFSET    1 /* from SIGRTMIN: a signal that nobody sends by hand */
#define PATH_BYTES      400
#define STOPS_ENOUGH    3 /* signals to stop: then a deaf agent is killed */
#define DEAF_US         (3 * ER_US_PER_S)
#define ABORT_US        (2 * ER_US_PER_S) /* for the agent to leave a core */
#define SAY_WAIT_US     (2 * ER_US_PER_S)
#define GOODBYE_US      (3 * ER_US_PER_S)

#define KEPT_MAX  16 /* newest ones */
#define OWNED_MAX 8  /* folders and cgroups of one agent: a handful */

enum owned_kind { OWNED_DIR, OWNED_CGROUP, OWNED_LEAF, OWNED_LOGS, OWNED_GOODBYE, OWNED_KEPT };

/* A process that is to stay, with all that it started. */
struct kept {
    pid_t pid;
    uint64_t started; /* of er_orphan_started() */
};

/* One record is one packet of the pair: the guard reads them only when the agent has gone. */
struct owned {
    enum owned_kind kind;
    struct kept kept;
    char path[PATH_BYTES];
};

/* All that the agent has told. */
struct told {
    struct owned owned[OWNED_MAX];
    int fds[OWNED_MAX];
    size_t n;
    struct kept kept[KEPT_MAX];
    size_t kept_n;         /* ever told */
    char logs[PATH_BYTES]; /* stay; "": none */
    int goodbye;           /* what the store is to be told, -1: nothing */
};

/* The guard's view of the agent. */
struct guarded {
    pid_t agent;
    int fd; /* of the pair */
    sigset_t set;
    unsigned stops;
    int first_stop;
    uint64_t look_us; /* whether it still looks at its signals; ER_FOREVER: not asked for */
    bool killed;
    bool aborted; /* the service manager missed its signs of life */
};

/* End a program that says nothing else. */
static const int STOPS[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
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

bool er_guard_lives(const struct er_guard *guard)
{
    return getppid() == guard->pid;
}

static bool is_stop(int sig)
{
    for (size_t i = 0; i < ER_ARRAY_N(STOPS); i++) {
        if (STOPS[i] == sig)
            return true;
    }
    return false;
}

static int stop_code(int sig)
{
    return sig == SIGINT ? ER_CODE_INTERRUPTED : ER_CODE_TEMPFAIL;
}

/* A packet with the descriptor that may come along, -1: none. False: no more packets. */
static bool receive(int sock, struct owned *ret, int *ret_fd)
{
    union {
        struct cmsghdr header;
        char room[CMSG_LEN(sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = ret, .iov_len = sizeof(*ret)};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = control.room,
                         .msg_controllen = sizeof(control.room)};
    struct cmsghdr *header;

    *ret_fd = -1;
    if (recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != (ssize_t)sizeof(*ret))
        return false;
    ret->path[sizeof(ret->path) - 1] = '\0';
    header = CMSG_FIRSTHDR(&msg);
    if (header && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(ret_fd, CMSG_DATA(header), sizeof(int));
    return true;
}

static void hear(int sock, struct told *told)
{
    struct owned owned;
    int fd;

    told->goodbye = -1;
    while (receive(sock, &owned, &fd)) {
        if (owned.kind == OWNED_KEPT) {
            told->kept[told->kept_n++ % KEPT_MAX] = owned.kept;
        } else if (owned.kind == OWNED_LOGS) {
            memcpy(told->logs, owned.path, sizeof(owned.path));
        } else if (owned.kind == OWNED_GOODBYE) {
            er_cleanup_fd(&told->goodbye);
            told->goodbye = ER_TAKE_FD(fd);
        } else if (told->n < OWNED_MAX) {
            told->fds[told->n] = ER_TAKE_FD(fd);
            told->owned[told->n++] = owned;
        }
        er_cleanup_fd(&fd);
    }
}

static void kill_all_but_kept(const struct told *told)
{
    size_t n = told->kept_n < KEPT_MAX ? told->kept_n : KEPT_MAX, spared_n = 0;
    pid_t spared[KEPT_MAX];

    for (size_t i = 0; i < n; i++) {
        if (told->kept[i].started && er_orphan_started(told->kept[i].pid) == told->kept[i].started)
            spared[spared_n++] = told->kept[i].pid;
    }
    er_orphan_kill_all(spared, spared_n);
}

static void remove_owned(struct told *told)
{
    for (size_t i = 0; i < told->n; i++) {
        const struct owned *owned = &told->owned[i];

        if (owned->kind == OWNED_CGROUP)
            er_cgroup_destroy(owned->path);
        else if (owned->kind == OWNED_LEAF)
            er_cgroup_leave(owned->path);
        else if (told->fds[i] >= 0) /* without its lock the folder may be another job's by now */
            er_statedir_remove(owned->path);
        er_cleanup_fd(&told->fds[i]);
    }
}

/* To a reader who may never read. */
static void say(const char *text)
{
    ER_CLEANUP(er_cleanup_fd) int fd = er_fd_own_output(2);

    if (fd >= 0)
        (void)er_write_some(fd, text, strlen(text), SAY_WAIT_US);
}

static void say_died(const struct guarded *g, int sig, const char *logs)
{
    const char *how = "died by signal";
    char text[1024], where[PATH_BYTES + 32] = "";

    if (g->aborted)
        how = "gave no sign of life to the service manager's watchdog and was ended by signal";
    else if (g->killed)
        how = "did not look at its signals and was killed by signal";
    if (logs[0])
        snprintf(where, sizeof(where), "  logs        %s\n", logs);
    snprintf(text, sizeof(text),
             "elastic-run: the agent %s %d (%s); its workers were killed and its files in use "
             "removed\n%s  next        run the same command again: it goes on from the newest "
             "checkpoint, if it has any\n",
             how, sig, er_signal_name(sig), where);
    say(text);
}

/* In a process of its own: what it loads is not this one's business, nor how it fails. */
static pid_t begin_goodbye(int fd)
{
    pid_t pid = fd < 0 ? -1 : fork();

    if (pid == 0)
        _exit(er_goodbye_say(fd, GOODBYE_US) ? 1 : 0);
    return pid;
}

static void end_goodbye(pid_t pid)
{
    uint64_t until_us = er_deadline_in(er_now_us(), GOODBYE_US + ER_US_PER_S);

    while (pid > 0 && waitpid(pid, NULL, WNOHANG) == 0) {
        if (er_now_us() >= until_us)
            kill(pid, SIGKILL);
        nanosleep(&(struct timespec){.tv_nsec = SUSPEND_LOOK_NS}, NULL);
    }
}

/* The agent has gone: nothing that it started may stay but what it said may. */
static _Noreturn void finish(const struct guarded *g, int status)
{
    static struct told told;
    pid_t goodbye;

    hear(g->fd, &told);
    kill_all_but_kept(&told);
    goodbye = WIFEXITED(status) ? -1 : begin_goodbye(told.goodbye);
    end_goodbye(goodbye); /* its certificates may be in the folder */
    remove_owned(&told);
    if (WIFEXITED(status))
        _exit(WEXITSTATUS(status));
    say_died(g, WTERMSIG(status), told.logs);
    _exit(g->killed ? stop_code(g->first_stop) : ER_CODE_SOFTWARE);
}

static void reap(const struct guarded *g)
{
    int status = 0;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == g->agent)
            finish(g, status);
    }
}

/* The agent stops its workers and itself; then this process, for which the shell waits. */
static void suspend(const struct guarded *g)
{
    for (int i = 0; i < SUSPEND_LOOKS; i++) {
        int status = 0;

        if (waitpid(g->agent, &status, WNOHANG | WUNTRACED) == g->agent) {
            if (!WIFSTOPPED(status))
                finish(g, status);
            break;
        }
        nanosleep(&(struct timespec){.tv_nsec = SUSPEND_LOOK_NS}, NULL);
    }
    raise(SIGSTOP);
}

/* A signal that stops stays pending in an agent that reads none. Source: proc(5), "ShdPnd". */
static bool is_deaf(pid_t agent)
{
    char path[64];
    struct er_buf text;
    const char *at;
    uint64_t pending = 0, stops = 0;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)agent);
    er_buf_init(&text, 16384);
    at = er_file_read(path, &text, NULL) ? NULL : strstr(er_buf_str(&text), "\nShdPnd:");
    if (at)
        pending = strtoull(at + strlen("\nShdPnd:"), NULL, 16);
    er_buf_done(&text);
    for (size_t i = 0; i < ER_ARRAY_N(STOPS); i++)
        stops |= 1ull << (STOPS[i] - 1);
    return (pending & stops) != 0;
}

static void pass_on(struct guarded *g, int sig)
{
    sigset_t term;

    /* Of two that wait at once TERM is the first, whatever their numbers: "run me again" is what
     * a scheduler's stop means. */
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    if (sig == SIGINT && sigtimedwait(&term, NULL, &(struct timespec){0}) == SIGTERM)
        pass_on(g, SIGTERM);
    kill(g->agent, sig);
    if (is_stop(sig)) {
        if (g->stops == 0)
            g->first_stop = sig;
        if (++g->stops >= STOPS_ENOUGH)
            g->look_us = er_deadline_in(er_now_us(), DEAF_US);
    }
    if (sig == SIGTSTP)
        suspend(g);
}

/* WatchdogSignal= of systemd: a core of where the agent hangs, if it still can; then no mercy. */
static void abort_agent(struct guarded *g)
{
    g->aborted = true;
    kill(g->agent, SIGABRT);
    kill(g->agent, SIGCONT); /* who is stopped dies when it goes on */
    g->look_us = er_deadline_in(er_now_us(), ABORT_US);
}

static int next_signal(const struct guarded *g)
{
    uint64_t now_us = er_now_us(), left_us = g->look_us > now_us ? g->look_us - now_us : 0;
    struct timespec wait = {.tv_sec = (time_t)(left_us / ER_US_PER_S),
                            .tv_nsec = (long)(left_us % ER_US_PER_S) * 1000};

    return g->look_us == ER_FOREVER ? sigwaitinfo(&g->set, NULL)
                                    : sigtimedwait(&g->set, NULL, &wait);
}

static _Noreturn void guard_main(struct guarded *g)
{
    for (;;) {
        int sig = next_signal(g);

        if (sig == SIGCHLD)
            reap(g);
        else if (sig == SIGABRT)
            abort_agent(g);
        else if (sig > 0)
            pass_on(g, sig);
        if (er_now_us() >= g->look_us) {
            g->look_us = ER_FOREVER;
            g->killed = !g->aborted && is_deaf(g->agent);
            if (g->killed || g->aborted)
                kill(g->agent, SIGKILL);
        }
    }
}

static void on_early_stop(int sig)
{
    _exit(stop_code(sig));
}

/* Reading a spec may take for ever (a pipe, a dead file system). */
static void end_at_stops(void)
{
    struct sigaction end = {.sa_handler = on_early_stop}, now;
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, er_guard_death_signal()); /* as by default: ends the process */
    sigaddset(&set, SIGABRT);
    for (size_t i = 0; i < ER_ARRAY_N(STOPS); i++) {
        /* nohup(1) and its like have said that the terminal's end is not ours. */
        if (STOPS[i] == SIGHUP && sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler == SIG_IGN)
            continue;
        sigaction(STOPS[i], &end, NULL);
        sigaddset(&set, STOPS[i]);
    }
    sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static void all_signals(sigset_t *ret_set)
{
    er_guard_signals(ret_set);
    sigaddset(ret_set, SIGCHLD);
    sigaddset(ret_set, er_guard_death_signal());
}

void er_guard_hold_signals(void)
{
    const struct sigaction plain = {.sa_handler = SIG_DFL};
    struct sigaction now;
    sigset_t set;

    all_signals(&set);
    sigprocmask(SIG_BLOCK, &set, NULL);
    for (size_t i = 0; i < ER_ARRAY_N(STOPS); i++) {
        if (sigaction(STOPS[i], NULL, &now) == 0 && now.sa_handler == on_early_stop)
            sigaction(STOPS[i], &plain, NULL);
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
    struct guarded g = {.look_us = ER_FOREVER};
    pid_t guard = getpid();
    int pair[2];

    all_signals(&g.set);
    sigaddset(&g.set, SIGABRT);
    if (sigprocmask(SIG_BLOCK, &g.set, NULL) < 0)
        return er_error_errno(err, "block signals");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return er_error_errno(err, "make the guard's socket pair");
    agent_end = pair[0];
    guard_end = pair[1];
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
        return er_error_errno(err, "become a subreaper");
    g.agent = fork();
    if (g.agent < 0)
        return er_error_errno(err, "fork");
    if (g.agent > 0) {
        close(ER_TAKE_FD(agent_end));
        g.fd = ER_TAKE_FD(guard_end);
        guard_main(&g);
    }
    become_agent(guard);
    end_at_stops();
    ret->fd = ER_TAKE_FD(agent_end);
    ret->pid = guard;
    return 0;
}

/* `fd` goes along, -1: none. */
static int tell_owned(struct er_guard *guard, struct owned *owned, int fd)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = owned, .iov_len = sizeof(*owned)};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (fd >= 0) {
        msg.msg_control = control.room;
        msg.msg_controllen = sizeof(control.room);
        *CMSG_FIRSTHDR(&msg) = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&msg)), &fd, sizeof(int));
    }
    return sendmsg(guard->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

static int tell(struct er_guard *guard, enum owned_kind kind, const char *path, int fd)
{
    struct owned owned = {.kind = kind};

    if (strlen(path) >= sizeof(owned.path))
        return -ENAMETOOLONG;
    strcpy(owned.path, path);
    return tell_owned(guard, &owned, fd);
}

int er_guard_keeps(struct er_guard *guard, pid_t pid)
{
    struct owned owned = {.kind = OWNED_KEPT, .kept = {pid, er_orphan_started(pid)}};

    return tell_owned(guard, &owned, -1);
}

int er_guard_owns_dir(struct er_guard *guard, const char *path, int lock_fd)
{
    return tell(guard, OWNED_DIR, path, lock_fd);
}

int er_guard_owes_goodbye(struct er_guard *guard, int fd)
{
    return tell(guard, OWNED_GOODBYE, "", fd);
}

int er_guard_knows_logs(struct er_guard *guard, const char *path)
{
    return tell(guard, OWNED_LOGS, path, -1);
}

int er_guard_owns_cgroup(struct er_guard *guard, const char *path, const char *leaf)
{
    int rc = tell(guard, OWNED_CGROUP, path, -1);

    return rc || !leaf[0] ? rc : tell(guard, OWNED_LEAF, leaf, -1);
}
