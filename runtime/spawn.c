#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "runtime/runtime_internal.h"
#include "runtime/spawn_hub.h"

#define TERM_AFTER_US (2 * ER_US_PER_S)
#define KILL_AFTER_US (7 * ER_US_PER_S)
#define GENERATION    1

struct rank {
    pid_t pid; /* 0: not started, or waited for */
    int pidfd, sock;
    struct er_page *page;
};

struct spawn {
    int n, alive;
    struct rank *ranks;
    struct pollfd *polls; /* 2 n: sockets, then processes */
    struct er_hub hub;
    int failed, status; /* first rank that failed, and how; -1: none */
    uint64_t term_us, kill_us;
    unsigned char packet[ER_CTL_PACKET_MAX];
};

/* ---- a rank ---- */

static void set_number(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", value);
    setenv(name, text, 1);
}

static void set_environment(const struct spawn *s, int rank)
{
    set_number("RANK", rank);
    set_number("LOCAL_RANK", rank);
    set_number("WORLD_SIZE", s->n);
    set_number("LOCAL_WORLD_SIZE", s->n);
    /* Those would lead er_open() to somebody else. */
    unsetenv("ELASTIC_SOCKET");
    unsetenv("ELASTIC_PAGE_FD");
}

_Noreturn static void run_rank(struct spawn *s, int rank, pid_t parent, int sock, er_main_fn main,
                               void *arg)
{
    struct er_page *page = s->ranks[rank].page;
    struct er_error err = ER_ERROR_INIT;
    struct er_ctx *ctx;
    int rc;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    for (int i = 0; i <= rank; i++) {
        er_cleanup_fd(&s->ranks[i].sock);
        er_cleanup_fd(&s->ranks[i].pidfd);
    }
    set_environment(s, rank);
    rc = er_ctx_adopt(&ctx, sock, page, &err);
    if (rc < 0) {
        fprintf(stderr, "rank %d: %s\n", rank, err.text);
        _exit(1);
    }
    rc = main(ctx, arg);
    er_close(ctx);
    fflush(NULL);
    _exit(rc < 0 ? 1 : rc);
}

static int start_rank(struct spawn *s, int rank, er_main_fn main, void *arg, struct er_error *err)
{
    struct rank *r = &s->ranks[rank];
    pid_t parent = getpid();
    int pair[2];

    r->page = mmap(NULL, ER_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (r->page == MAP_FAILED) {
        r->page = NULL;
        return er_error_errno(err, "page of rank %d", rank);
    }
    r->page->magic = ER_PAGE_MAGIC;
    r->page->version = ER_PAGE_VERSION;
    atomic_store(&r->page->to_worker.word, (uint64_t)GENERATION << 8);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return er_error_errno(err, "socket of rank %d", rank);
    r->sock = pair[0];
    r->pid = fork();
    if (r->pid == 0)
        run_rank(s, rank, parent, pair[1], main, arg);
    close(pair[1]);
    if (r->pid < 0) {
        r->pid = 0;
        return er_error_errno(err, "start rank %d", rank);
    }
    r->pidfd = pidfd_open(r->pid, 0);
    if (r->pidfd < 0) {
        int rc = er_error_errno(err, "watch rank %d", rank);

        kill(r->pid, SIGKILL);
        waitpid(r->pid, NULL, 0);
        r->pid = 0;
        return rc;
    }
    s->alive++;
    return 0;
}

/* ---- the parent ---- */

static void hang_up(struct spawn *s, int rank)
{
    er_cleanup_fd(&s->ranks[rank].sock);
    er_hub_gone(&s->hub, rank);
}

/* A rank waits for each answer: one whose socket is full does not read them. */
static void send_to(void *user, int rank, const struct er_ctl_msg *msg)
{
    struct spawn *s = user;
    unsigned char packet[ER_CTL_PACKET_MAX];
    int n = er_ctl_encode(msg, packet, sizeof(packet));

    if (n > 0 && s->ranks[rank].sock >= 0 &&
        send(s->ranks[rank].sock, packet, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        shutdown(s->ranks[rank].sock, SHUT_RDWR);
}

static void hear(struct spawn *s, int rank)
{
    struct er_ctl_msg msg;
    ssize_t n = recv(s->ranks[rank].sock, s->packet, sizeof(s->packet), MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0 || er_ctl_decode(&msg, s->packet, (size_t)n, NULL) < 0)
        hang_up(s, rank);
    else
        er_hub_request(&s->hub, rank, &msg, er_now_us());
}

static void signal_all(struct spawn *s, int sig)
{
    for (int i = 0; i < s->n; i++) {
        if (s->ranks[i].pid > 0)
            kill(s->ranks[i].pid, sig);
    }
}

/* The first failure ends the others, those in the middle of a collective at once. */
static void begin_stop(struct spawn *s, uint64_t now_us)
{
    for (int i = 0; i < s->n; i++) {
        if (s->ranks[i].page)
            atomic_store(&s->ranks[i].page->to_worker.word,
                         (uint64_t)GENERATION << 8 | ER_NOTICE_STOP);
    }
    s->term_us = now_us + TERM_AFTER_US;
    s->kill_us = now_us + KILL_AFTER_US;
}

static void reap(struct spawn *s, int rank)
{
    struct rank *r = &s->ranks[rank];
    int status;

    if (waitpid(r->pid, &status, WNOHANG) != r->pid)
        return;
    while (r->sock >= 0 && recv(r->sock, s->packet, 1, MSG_DONTWAIT | MSG_PEEK) > 0)
        hear(s, rank); /* its last words */
    hang_up(s, rank);
    er_cleanup_fd(&r->pidfd);
    r->pid = 0;
    s->alive--;
    if (status != 0 && s->failed < 0) {
        s->failed = rank;
        s->status = status;
        begin_stop(s, er_now_us());
    }
}

static void step_ladder(struct spawn *s, uint64_t now_us)
{
    if (now_us >= s->term_us) {
        signal_all(s, SIGTERM);
        s->term_us = ER_FOREVER;
    }
    if (now_us >= s->kill_us) {
        signal_all(s, SIGKILL);
        s->kill_us = ER_FOREVER;
    }
}

static void supervise_once(struct spawn *s)
{
    uint64_t until_us = er_hub_deadline(&s->hub);

    until_us = s->term_us < until_us ? s->term_us : until_us;
    until_us = s->kill_us < until_us ? s->kill_us : until_us;
    for (int i = 0; i < s->n; i++) {
        s->polls[i] = (struct pollfd){.fd = s->ranks[i].sock, .events = POLLIN};
        s->polls[s->n + i] = (struct pollfd){.fd = s->ranks[i].pidfd, .events = POLLIN};
    }
    if (poll(s->polls, 2 * (nfds_t)s->n, er_poll_ms(er_now_us(), until_us)) > 0) {
        for (int i = 0; i < s->n; i++) {
            if (s->polls[i].revents)
                hear(s, i);
        }
        for (int i = 0; i < s->n; i++) {
            if (s->polls[s->n + i].revents)
                reap(s, i);
        }
    }
    er_hub_step(&s->hub, er_now_us());
    step_ladder(s, er_now_us());
}

static int tell_failure(const struct spawn *s, struct er_error *err)
{
    bool has_words = s->hub.fail[0] && s->hub.fail_rank == s->failed;
    const char *colon = has_words ? ": " : "", *words = has_words ? s->hub.fail : "";

    if (WIFSIGNALED(s->status))
        return er_error_set(err, -ECHILD, "rank %d was ended by signal %d (%s)%s%s", s->failed,
                            WTERMSIG(s->status), strsignal(WTERMSIG(s->status)), colon, words);
    return er_error_set(err, -ECHILD, "rank %d ended with exit code %d%s%s", s->failed,
                        WEXITSTATUS(s->status), colon, words);
}

static void release(struct spawn *s)
{
    for (int i = 0; s->ranks && i < s->n; i++) {
        er_cleanup_fd(&s->ranks[i].sock);
        er_cleanup_fd(&s->ranks[i].pidfd);
        if (s->ranks[i].page)
            munmap(s->ranks[i].page, ER_PAGE_BYTES);
    }
    er_hub_done(&s->hub);
    free(s->ranks);
    free(s->polls);
    free(s);
}

int er_spawn(er_main_fn main, void *arg, int n, struct er_error *err)
{
    const char *dir = getenv("ELASTIC_CHECKPOINT_DIR");
    struct spawn *s;
    int rc = 0;

    if (n < 1 || n > ER_SPAWN_MAX)
        return er_error_set(err, ER_E_USAGE, "%d ranks: 1 to %d can be started", n, ER_SPAWN_MAX);
    s = calloc(1, sizeof(*s));
    if (!s)
        return er_error_set(err, -ENOMEM, "ranks: out of memory");
    s->n = n;
    s->failed = -1;
    s->term_us = s->kill_us = ER_FOREVER;
    er_hub_init(&s->hub, n, "", dir ? dir : "", send_to, s);
    s->ranks = calloc((size_t)n, sizeof(*s->ranks));
    s->polls = calloc(2 * (size_t)n, sizeof(*s->polls));
    if (!s->ranks || !s->polls) {
        release(s);
        return er_error_set(err, -ENOMEM, "ranks: out of memory");
    }
    for (int i = 0; i < n; i++)
        s->ranks[i].sock = s->ranks[i].pidfd = -1;
    fflush(NULL); /* or each rank would write what is buffered here */
    for (int i = 0; i < n && rc == 0; i++)
        rc = start_rank(s, i, main, arg, err);
    if (rc < 0)
        signal_all(s, SIGKILL);
    while (s->alive > 0)
        supervise_once(s);
    if (rc == 0 && s->failed >= 0)
        rc = tell_failure(s, err);
    release(s);
    return rc;
}
