#include "ckpt/worker.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

struct work {
    er_work_fn fn;
    void *arg;
};

struct er_ckpt_worker {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    struct work queue[ER_WORKER_QUEUE_MAX];
    unsigned first, n;
    bool running, quit, left_behind;
    int nice_by;
};

static void destroy(struct er_ckpt_worker *w)
{
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static void *work(void *arg)
{
    struct er_ckpt_worker *w = arg;
    bool alone;

    if (w->nice_by) /* of this thread alone, as Linux has it */
        (void)!nice(w->nice_by);
    pthread_mutex_lock(&w->lock);
    for (;;) {
        struct work item;

        while (w->n == 0 && !w->quit)
            pthread_cond_wait(&w->changed, &w->lock);
        if (w->n == 0)
            break;
        item = w->queue[w->first];
        w->first = (w->first + 1) % ER_WORKER_QUEUE_MAX;
        w->n--;
        w->running = true;
        pthread_mutex_unlock(&w->lock);
        item.fn(item.arg);
        pthread_mutex_lock(&w->lock);
        w->running = false;
        pthread_cond_broadcast(&w->changed);
    }
    alone = w->left_behind;
    pthread_mutex_unlock(&w->lock);
    if (alone)
        destroy(w);
    return NULL;
}

static int start(struct er_ckpt_worker *w)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&w->thread, NULL, work, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

int er_ckpt_worker_new(struct er_ckpt_worker **ret, const char *name, int nice_by,
                       struct er_error *err)
{
    struct er_ckpt_worker *w = calloc(1, sizeof(*w));
    pthread_condattr_t attr;
    int rc;

    if (!w)
        return er_error_set(err, -ENOMEM, "thread '%s': no memory", name);
    w->nice_by = nice_by;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &attr);
    pthread_condattr_destroy(&attr);
    rc = start(w);
    if (rc) {
        destroy(w);
        return er_error_set(err, -rc, "thread '%s': %s", name, er_error_name(-rc));
    }
    pthread_setname_np(w->thread, name);
    *ret = w;
    return 0;
}

int er_ckpt_worker_run(struct er_ckpt_worker *w, er_work_fn fn, void *arg)
{
    int rc = -EAGAIN;

    pthread_mutex_lock(&w->lock);
    if (w->n < ER_WORKER_QUEUE_MAX) {
        w->queue[(w->first + w->n++) % ER_WORKER_QUEUE_MAX] = (struct work){fn, arg};
        pthread_cond_broadcast(&w->changed);
        rc = 0;
    }
    pthread_mutex_unlock(&w->lock);
    return rc;
}

static bool wait_idle(struct er_ckpt_worker *w, uint64_t deadline_us)
{
    struct timespec until = {.tv_sec = (time_t)(deadline_us / ER_US_PER_S),
                             .tv_nsec = (long)(deadline_us % ER_US_PER_S) * 1000};
    int rc = 0;

    while (rc == 0 && (w->running || w->n > 0))
        rc = deadline_us == ER_FOREVER ? pthread_cond_wait(&w->changed, &w->lock)
                                       : pthread_cond_timedwait(&w->changed, &w->lock, &until);
    return !w->running && w->n == 0;
}

bool er_ckpt_worker_wait(struct er_ckpt_worker *w, uint64_t deadline_us)
{
    bool idle;

    pthread_mutex_lock(&w->lock);
    idle = wait_idle(w, deadline_us);
    pthread_mutex_unlock(&w->lock);
    return idle;
}

bool er_ckpt_worker_free(struct er_ckpt_worker *w, uint64_t deadline_us)
{
    bool idle;

    if (!w)
        return true;
    pthread_mutex_lock(&w->lock);
    idle = wait_idle(w, deadline_us);
    w->quit = true;
    w->left_behind = !idle;
    if (!idle)
        pthread_detach(w->thread); /* before it can see `quit` and end */
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (idle) {
        pthread_join(w->thread, NULL);
        destroy(w);
    }
    return idle;
}
