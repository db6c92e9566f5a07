#include "agent/logpump.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/list.h"

#define STACK_BYTES (256u * 1024)
#define SIDE_BYTES  (1024 * 1024)

struct er_logpump_stream {
    struct er_list node; /* in the pump's `live` or `spare` */
    struct er_logpump *pump;
    int fd;
    er_logpump_fn fn;
    void *user;
    bool live, busy, held, ended; /* busy: a thread is in fn */
};

struct worker {
    struct er_logpump *pump;
    pthread_t thread;
    struct er_logpump_desk desk;
};

struct er_logpump {
    pthread_mutex_t lock; /* of the streams' state */
    pthread_cond_t left;  /* a thread has left a stream that is held */
    int epoll_fd, stop_fd;
    size_t streams_n, workers_n;
    struct worker workers[ER_LOGPUMP_THREADS];
    struct er_logpump_desk own; /* of the loop's thread */
    /* A stream's memory stays with the pump: an event that a thread has just been given may name
     * one that has been removed since. */
    struct er_list live, spare;
};

static void desk_done(struct er_logpump_desk *desk)
{
    er_cleanup_free(&desk->in);
    er_cleanup_free(&desk->out);
    er_cleanup_fd(&desk->side[0]);
    er_cleanup_fd(&desk->side[1]);
}

static int desk_init(struct er_logpump_desk *desk)
{
    desk->in = malloc(ER_LOGPUMP_IN);
    desk->out = malloc(ER_LOGPUMP_OUT);
    if (pipe2(desk->side, O_CLOEXEC) < 0)
        desk->side[0] = desk->side[1] = -1;
    else
        (void)fcntl(desk->side[0], F_SETPIPE_SZ, SIDE_BYTES); /* as it is where the user has many */
    if (desk->in && desk->out)
        return 0;
    desk_done(desk);
    return -ENOMEM;
}

/* What has been added cannot fail to be watched again. */
static int watch(struct er_logpump_stream *s, int how)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.ptr = s};

    return epoll_ctl(s->pump->epoll_fd, how, s->fd, &event) < 0 ? -errno : 0;
}

static bool enter(struct er_logpump *pump, struct er_logpump_stream *s)
{
    bool mine;

    pthread_mutex_lock(&pump->lock);
    mine = s->live && !s->busy && !s->held && !s->ended;
    if (mine)
        s->busy = true;
    pthread_mutex_unlock(&pump->lock);
    return mine;
}

static void leave(struct er_logpump *pump, struct er_logpump_stream *s, bool more)
{
    pthread_mutex_lock(&pump->lock);
    s->busy = false;
    s->ended = !more;
    if (s->held)
        pthread_cond_signal(&pump->left);
    else if (more)
        watch(s, EPOLL_CTL_MOD);
    pthread_mutex_unlock(&pump->lock);
}

static void *run(void *user)
{
    struct worker *w = user;
    struct epoll_event event;

    for (;;) {
        int n = epoll_wait(w->pump->epoll_fd, &event, 1, -1);
        struct er_logpump_stream *s = n == 1 ? event.data.ptr : NULL;

        if (n == 1 && !s)
            return NULL; /* stop_fd, which stays readable for the others */
        if (n == 1 && enter(w->pump, s))
            leave(w->pump, s, s->fn(s->user, &w->desk));
    }
}

/* Signals stay with the loop's thread. */
static int start_thread(struct er_logpump *pump)
{
    struct worker *w = &pump->workers[pump->workers_n];
    pthread_attr_t attr;
    sigset_t all, before;
    int rc = desk_init(&w->desk);

    if (rc)
        return rc;
    w->pump = pump;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = -pthread_create(&w->thread, &attr, run, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (rc) {
        desk_done(&w->desk);
        return rc;
    }
    pthread_setname_np(w->thread, "er-logpump");
    pump->workers_n++;
    return 0;
}

int er_logpump_new(struct er_logpump **ret, struct er_error *err)
{
    struct er_logpump *pump = calloc(1, sizeof(*pump));

    if (!pump)
        return er_error_set(err, -ENOMEM, "log threads: out of memory");
    pump->epoll_fd = pump->stop_fd = pump->own.side[0] = pump->own.side[1] = -1;
    pthread_mutex_init(&pump->lock, NULL);
    pthread_cond_init(&pump->left, NULL);
    er_list_init(&pump->live);
    er_list_init(&pump->spare);
    *ret = pump;
    return 0;
}

/* With the first stream: a job without any pays for nothing. */
static int open_pump(struct er_logpump *pump, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int epoll_fd = -1;
    ER_CLEANUP(er_cleanup_fd) int stop_fd = -1;
    struct epoll_event stop = {.events = EPOLLIN};

    if (pump->epoll_fd >= 0)
        return 0;
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (epoll_fd < 0 || stop_fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, stop_fd, &stop) < 0)
        return er_error_errno(err, "make descriptors for the log threads");
    if (desk_init(&pump->own))
        return er_error_set(err, -ENOMEM, "log threads: out of memory");
    pump->epoll_fd = ER_TAKE_FD(epoll_fd);
    pump->stop_fd = ER_TAKE_FD(stop_fd);
    return 0;
}

static struct er_logpump_stream *take_stream(struct er_logpump *pump)
{
    struct er_logpump_stream *s;

    if (er_list_empty(&pump->spare)) {
        s = calloc(1, sizeof(*s));
        if (s)
            er_list_init(&s->node);
        return s;
    }
    s = ER_LIST_ITEM(pump->spare.next, struct er_logpump_stream, node);
    er_list_remove(&s->node);
    return s;
}

int er_logpump_add(struct er_logpump *pump, int fd, er_logpump_fn fn, void *user,
                   struct er_logpump_stream **ret, struct er_error *err)
{
    struct er_logpump_stream *s;
    int rc = pump->workers_n ? 0 : open_pump(pump, err);

    if (rc)
        return rc;
    if (pump->workers_n < ER_LOGPUMP_THREADS && pump->workers_n <= pump->streams_n)
        rc = start_thread(pump);
    if (rc && !pump->workers_n)
        return er_error_set(err, rc, "start a thread for logs: %s", er_error_name(rc));
    s = take_stream(pump);
    if (!s)
        return er_error_set(err, -ENOMEM, "log stream: out of memory");
    pthread_mutex_lock(&pump->lock);
    s->pump = pump;
    s->fd = fd;
    s->fn = fn;
    s->user = user;
    s->live = true;
    s->busy = s->held = s->ended = false;
    er_list_push_back(&pump->live, &s->node);
    pump->streams_n++;
    rc = watch(s, EPOLL_CTL_ADD);
    pthread_mutex_unlock(&pump->lock);
    if (rc) {
        er_logpump_remove(s);
        return er_error_set(err, rc, "watch a worker's output: %s", er_error_name(rc));
    }
    *ret = s;
    return 0;
}

struct er_logpump_desk *er_logpump_hold(struct er_logpump_stream *s)
{
    struct er_logpump *pump = s->pump;

    pthread_mutex_lock(&pump->lock);
    s->held = true;
    while (s->busy)
        pthread_cond_wait(&pump->left, &pump->lock);
    pthread_mutex_unlock(&pump->lock);
    return &pump->own;
}

bool er_logpump_try_hold(struct er_logpump_stream *s)
{
    pthread_mutex_lock(&s->pump->lock);
    s->held = !s->busy;
    pthread_mutex_unlock(&s->pump->lock);
    return s->held;
}

void er_logpump_release(struct er_logpump_stream *s)
{
    pthread_mutex_lock(&s->pump->lock);
    s->held = false;
    if (!s->ended)
        watch(s, EPOLL_CTL_MOD);
    pthread_mutex_unlock(&s->pump->lock);
}

void er_logpump_remove(struct er_logpump_stream *s)
{
    struct er_logpump *pump = s->pump;

    pthread_mutex_lock(&pump->lock);
    (void)epoll_ctl(pump->epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
    s->live = s->held = false;
    er_list_remove(&s->node);
    er_list_push_back(&pump->spare, &s->node);
    pump->streams_n--;
    pthread_mutex_unlock(&pump->lock);
}

static void free_all(struct er_list *list)
{
    er_list_for_each_safe (node, list) {
        er_list_remove(node);
        free(ER_LIST_ITEM(node, struct er_logpump_stream, node));
    }
}

void er_logpump_free(struct er_logpump *pump)
{
    if (!pump)
        return;
    if (pump->stop_fd >= 0)
        (void)eventfd_write(pump->stop_fd, 1);
    for (size_t i = 0; i < pump->workers_n; i++) {
        pthread_join(pump->workers[i].thread, NULL);
        desk_done(&pump->workers[i].desk);
    }
    free_all(&pump->live);
    free_all(&pump->spare);
    desk_done(&pump->own);
    er_cleanup_fd(&pump->epoll_fd);
    er_cleanup_fd(&pump->stop_fd);
    pthread_cond_destroy(&pump->left);
    pthread_mutex_destroy(&pump->lock);
    free(pump);
}
