#include "runtime/watchdog.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

enum { STACK_BYTES = 256 << 10 };

struct er_watchdog {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    uint64_t deadline_us; /* ER_FOREVER: disarmed */
    int code;
    const char *what;
    bool stop;
};

static _Noreturn void bite(const struct er_watchdog *dog)
{
    struct iovec line[3] = {
        {(char *)"elastic: ", 9}, {(char *)dog->what, strlen(dog->what)}, {(char *)"\n", 1}};

    if (writev(STDERR_FILENO, line, 3) < 0)
        _exit(dog->code);
    _exit(dog->code);
}

static void *guard(void *arg)
{
    struct er_watchdog *dog = arg;

    pthread_mutex_lock(&dog->lock);
    while (!dog->stop) {
        struct timespec until = {.tv_sec = (time_t)(dog->deadline_us / ER_US_PER_S),
                                 .tv_nsec = (long)(dog->deadline_us % ER_US_PER_S) * 1000};

        if (dog->deadline_us == ER_FOREVER)
            pthread_cond_wait(&dog->changed, &dog->lock);
        else if (er_now_us() >= dog->deadline_us)
            bite(dog);
        else
            pthread_cond_timedwait(&dog->changed, &dog->lock, &until);
    }
    pthread_mutex_unlock(&dog->lock);
    return NULL;
}

static int start(struct er_watchdog *dog)
{
    pthread_attr_t attr;
    sigset_t all, before;
    int rc;

    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&dog->thread, &attr, guard, dog);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (rc == 0)
        pthread_setname_np(dog->thread, "er-watchdog");
    return rc;
}

int er_watchdog_new(struct er_watchdog **ret, struct er_error *err)
{
    struct er_watchdog *dog = calloc(1, sizeof(*dog));
    pthread_condattr_t attr;
    int rc;

    if (!dog)
        return er_error_set(err, -ENOMEM, "watchdog: out of memory");
    dog->deadline_us = ER_FOREVER;
    pthread_mutex_init(&dog->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&dog->changed, &attr);
    pthread_condattr_destroy(&attr);
    rc = start(dog);
    if (rc) {
        free(dog);
        return er_error_set(err, -rc, "start the watchdog: %s", er_error_name(-rc));
    }
    *ret = dog;
    return 0;
}

static void change(struct er_watchdog *dog, uint64_t deadline_us, bool stop)
{
    pthread_mutex_lock(&dog->lock);
    dog->deadline_us = deadline_us;
    dog->stop = stop;
    pthread_cond_signal(&dog->changed);
    pthread_mutex_unlock(&dog->lock);
}

void er_watchdog_arm(struct er_watchdog *dog, uint64_t timeout_us, int code, const char *what)
{
    pthread_mutex_lock(&dog->lock);
    dog->code = code;
    dog->what = what;
    pthread_mutex_unlock(&dog->lock);
    change(dog, er_deadline_in(er_now_us(), timeout_us), false);
}

void er_watchdog_disarm(struct er_watchdog *dog)
{
    change(dog, ER_FOREVER, false);
}

void er_watchdog_free(struct er_watchdog *dog)
{
    if (!dog)
        return;
    change(dog, ER_FOREVER, true);
    pthread_join(dog->thread, NULL);
    pthread_cond_destroy(&dog->changed);
    pthread_mutex_destroy(&dog->lock);
    free(dog);
}
