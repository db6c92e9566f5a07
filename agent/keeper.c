#include "agent/keeper.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/cgroup.h"
#include "agent/keeper_argv.h"
#include "agent/keeper_child.h"
#include "agent/keeper_clients.h"
#include "agent/keeper_home.h"
#include "agent/keeper_ports.h"
#include "agent/keeper_tls.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/fd.h"
#include "base/parse.h"

#define AGENTS_MAX     64
#define PORT_WAIT_US   (3 * ER_US_PER_S) /* the port of an etcd that just died */
#define STOP_US        (5 * ER_US_PER_S) /* from TERM to KILL */
#define LOOK_US        (1 * ER_US_PER_S)
#define TRIM_US        (60 * ER_US_PER_S)
#define QUICK_US       (10 * ER_US_PER_S) /* who dies sooner did not start */
#define QUICK_MAX      3
#define AGAIN_FIRST_US (200 * ER_US_PER_MS)

struct keeper {
    const struct er_keeper_opts *opts;
    struct er_managed_plan plan;
    struct er_managed_listen listen;
    struct er_keeper_home home;
    struct er_keeper_argv argv;
    int signal_fd, listen_fd;
    int agents[AGENTS_MAX];
    size_t agents_n;

    pid_t etcd; /* 0: does not run */
    int etcd_fd;
    uint64_t started_us;
    unsigned quick; /* deaths in a row, each soon after its start */

    uint64_t again_us, kill_us, look_us, trim_us; /* when to; ER_FOREVER: never */
    uint64_t alone_us; /* since when nobody is connected; 0: somebody is */
    bool told;         /* by a signal: to end when nobody needs it any more */
    bool stopping, ended;
};

static void send_word(int fd, const char *word, const char *text)
{
    char packet[ER_KEEPER_WORD_MAX];
    int n = snprintf(packet, sizeof(packet), "%s%s%s", word, text[0] ? " " : "", text);

    if ((size_t)n >= sizeof(packet))
        n = sizeof(packet) - 1;
    if (fd >= 0)
        (void)send(fd, packet, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void tell_all(struct keeper *k, const char *word, const char *text)
{
    for (size_t i = 0; i < k->agents_n; i++)
        send_word(k->agents[i], word, text);
}

static void add_agent(struct keeper *k, int fd)
{
    char pid[16];

    if (fd < 0)
        return;
    if (k->agents_n == AGENTS_MAX || !er_fd_peer_is_own(fd)) {
        close(fd);
        return;
    }
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    send_word(fd, "ok", pid);
    k->agents[k->agents_n++] = fd;
    k->alone_us = 0;
    k->look_us = ER_FOREVER;
}

static int open_socket(struct keeper *k, struct er_error *err)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};

    snprintf(at.sun_path, sizeof(at.sun_path), "%.*s/" ER_KEEPER_SOCKET, ER_KEEPER_HOME_MAX - 1,
             k->home.path);
    k->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (k->listen_fd < 0 || bind(k->listen_fd, (struct sockaddr *)&at, sizeof(at)) < 0 ||
        listen(k->listen_fd, AGENTS_MAX) < 0)
        return er_error_errno(err, "listen on '%s'", at.sun_path);
    return 0;
}

static int open_signals(struct keeper *k, struct er_error *err)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_SETMASK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    k->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return k->signal_fd < 0 ? er_error_errno(err, "watch signals") : 0;
}

static int start_etcd(struct keeper *k, struct er_error *err)
{
    int rc = er_keeper_ports_free(&k->plan, k->opts->index, &k->listen, PORT_WAIT_US, err);

    if (!rc)
        rc = er_keeper_etcd_start(&k->argv, k->home.path, &k->etcd, &k->etcd_fd, err);
    if (rc)
        return rc;
    k->started_us = er_now_us();
    k->again_us = ER_FOREVER;
    return er_keeper_home_tell(&k->home, k->opts, getpid(), k->etcd, err);
}

static int keeper_open(struct keeper *k, struct er_error *err)
{
    const struct er_keeper_opts *o = k->opts;
    int rc = er_keeper_opts_plan(o, &k->plan, &k->listen, err);

    if (!rc)
        rc = open_signals(k, err);
    if (!rc)
        rc = er_keeper_home_open(&k->home, o, err);
    if (!rc && o->secret[0])
        rc = er_keeper_tls_write(o->secret, &k->plan, k->home.path, err);
    if (!rc)
        rc = er_keeper_argv_make(&k->argv, o, &k->plan, &k->listen, err);
    if (!rc)
        rc = open_socket(k, err);
    return rc ? rc : start_etcd(k, err);
}

static void begin_stop(struct keeper *k)
{
    if (k->stopping)
        return;
    k->stopping = true;
    k->again_us = ER_FOREVER;
    if (!k->etcd) {
        k->ended = true;
        return;
    }
    kill(k->etcd, SIGTERM);
    k->kill_us = er_deadline_in(er_now_us(), STOP_US);
}

static void how_it_ended(int status, char *ret, size_t room)
{
    if (WIFSIGNALED(status))
        snprintf(ret, room, "died by %s", er_signal_name(WTERMSIG(status)));
    else
        snprintf(ret, room, "ended with exit code %d", WEXITSTATUS(status));
}

static void on_death(struct keeper *k, int status)
{
    uint64_t now_us = er_now_us();
    char how[64], member[ER_ETCD_ENDPOINT_TEXT_MAX];
    struct er_buf text;

    er_buf_init(&text, ER_KEEPER_WORD_MAX - 16);
    k->quick = now_us - k->started_us < QUICK_US ? k->quick + 1 : 0;
    how_it_ended(status, how, sizeof(how));
    er_etcd_endpoint_format(&k->plan.members[k->opts->index].at, member);
    (void)er_buf_printf(&text, "etcd at %s %s", member, how);
    if (k->quick < QUICK_MAX) {
        (void)er_buf_add_str(&text, "; it is started again with its data");
        tell_all(k, "warn", er_buf_str(&text));
        k->again_us = er_deadline_in(now_us, AGAIN_FIRST_US << k->quick);
    } else {
        (void)er_buf_printf(&text, ", %d times soon after its start; it said last:\n", QUICK_MAX);
        er_keeper_log_tail(k->home.path, &text);
        tell_all(k, "failed", er_buf_str(&text));
        k->ended = true;
    }
    er_buf_done(&text);
}

static void reap(struct keeper *k)
{
    int status = 0;

    if (!k->etcd || waitpid(k->etcd, &status, WNOHANG) != k->etcd)
        return;
    k->etcd = 0;
    er_cleanup_fd(&k->etcd_fd);
    if (k->stopping)
        k->ended = true;
    else
        on_death(k, status);
}

/* False: the agent has gone. */
static bool read_agent(struct keeper *k, int fd)
{
    char word[16];
    ssize_t n = recv(fd, word, sizeof(word) - 1, MSG_DONTWAIT);

    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    if (n == 0)
        return false;
    word[n] = '\0';
    if (strcmp(word, "stop") == 0)
        begin_stop(k);
    return true;
}

static void read_agents(struct keeper *k, const struct pollfd *fds)
{
    size_t kept = 0, n = k->agents_n;

    for (size_t i = 0; i < n; i++) {
        if (fds[i].revents && !read_agent(k, k->agents[i]))
            close(k->agents[i]);
        else
            k->agents[kept++] = k->agents[i];
    }
    k->agents_n = kept;
    if (n && !kept)
        k->look_us = er_now_us();
}

/* Other nodes' agents hold connections of etcd's own. */
static void look_around(struct keeper *k, uint64_t now_us)
{
    uint64_t linger_us = k->told ? 0 : k->opts->linger_ms * ER_US_PER_MS;

    k->look_us = er_deadline_in(now_us, LOOK_US);
    if (er_keeper_clients(k->plan.members[k->opts->index].at.port) > 0)
        k->alone_us = 0;
    else if (!k->alone_us)
        k->alone_us = now_us;
    else if (now_us - k->alone_us >= linger_us)
        begin_stop(k);
}

/* A signal to everybody (Slurm's notice, the stop of a unit) comes here, too, while the agents
 * still need the store to leave in order. etcd itself ends by it, and is started again. */
static void on_signal(struct keeper *k)
{
    k->told = true;
    if (!k->agents_n)
        begin_stop(k);
}

static void step(struct keeper *k)
{
    struct er_error err = ER_ERROR_INIT;
    uint64_t now_us = er_now_us();

    reap(k);
    if (now_us >= k->again_us && !k->ended && start_etcd(k, &err)) {
        tell_all(k, "failed", err.text);
        k->ended = true;
    }
    if (now_us >= k->kill_us && k->etcd) {
        kill(k->etcd, SIGKILL);
        k->kill_us = ER_FOREVER;
    }
    if (!k->agents_n && now_us >= k->look_us && !k->stopping)
        look_around(k, now_us);
    if (now_us >= k->trim_us) {
        er_keeper_log_trim(k->home.path);
        k->trim_us = er_deadline_in(now_us, TRIM_US);
    }
}

static uint64_t next_deadline(const struct keeper *k)
{
    uint64_t at = k->again_us < k->kill_us ? k->again_us : k->kill_us;

    if (k->trim_us < at)
        at = k->trim_us;
    return !k->agents_n && k->look_us < at ? k->look_us : at;
}

static void wait_and_read(struct keeper *k)
{
    struct pollfd fds[AGENTS_MAX + 3];
    size_t n = k->agents_n;
    uint64_t now_us = er_now_us();

    for (size_t i = 0; i < n; i++)
        fds[i] = (struct pollfd){.fd = k->agents[i], .events = POLLIN};
    fds[n] = (struct pollfd){.fd = k->signal_fd, .events = POLLIN};
    fds[n + 1] = (struct pollfd){.fd = k->listen_fd, .events = POLLIN};
    fds[n + 2] = (struct pollfd){.fd = k->etcd_fd, .events = POLLIN};
    if (poll(fds, n + 3, er_poll_ms(now_us, next_deadline(k))) <= 0)
        return;
    read_agents(k, fds);
    if (fds[n].revents) {
        struct signalfd_siginfo info;

        if (read(k->signal_fd, &info, sizeof(info)) > 0)
            on_signal(k);
    }
    if (fds[n + 1].revents)
        add_agent(k, accept4(k->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

/* The files go before the last word: who hears it may look. */
static void keeper_close(struct keeper *k, const char *word, const char *text)
{
    if (k->etcd) {
        kill(k->etcd, SIGKILL);
        waitpid(k->etcd, NULL, 0);
    }
    er_keeper_home_close(&k->home, k->opts);
    er_cgroup_stand_back();
    tell_all(k, word, text);
    er_cleanup_fd(&k->listen_fd);
    er_cleanup_fd(&k->etcd_fd);
    er_cleanup_fd(&k->signal_fd);
    for (size_t i = 0; i < k->agents_n; i++)
        close(k->agents[i]);
}

int er_keeper_run(const struct er_keeper_opts *opts)
{
    struct keeper k = {
        .opts = opts,
        .home.fd = -1,
        .signal_fd = -1,
        .listen_fd = -1,
        .etcd_fd = -1,
        .again_us = ER_FOREVER,
        .kill_us = ER_FOREVER,
        .trim_us = er_now_us() + TRIM_US,
    };
    struct er_error err = ER_ERROR_INIT;
    int fd = opts->fd ? (int)opts->fd : -1;
    int rc = keeper_open(&k, &err);

    if (rc) {
        send_word(fd, rc == -EBUSY ? "busy" : "failed", rc == -EBUSY ? "" : err.text);
        if (fd < 0)
            fprintf(stderr, ER_KEEPER_PROGRAM ": %s\n", err.text);
        er_cleanup_fd(&fd);
        keeper_close(&k, "failed", err.text);
        return rc == -EBUSY ? ER_CODE_TEMPFAIL : ER_CODE_CONFIG;
    }
    add_agent(&k, fd);
    while (!k.ended) {
        wait_and_read(&k);
        step(&k);
    }
    keeper_close(&k, "stopped", "");
    return k.stopping ? 0 : ER_CODE_UNAVAILABLE;
}
