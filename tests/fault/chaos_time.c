/* Clocks of a node that are wrong, for its agent and workers: the wall clock, which goes anywhere;
 * and the monotonic one, which runs too slow or too fast, and with it whatever the C library waits
 * by it: poll, epoll, select, sleeps, timerfd, conditions, semaphores, futexes, signals.
 *
 * Left out: what the kernel times by itself (TCP, SO_RCVTIMEO, alarm(2)), waits until an instant of
 * the wall clock, and programs that read the time stamp counter. */
#undef _FILE_OFFSET_BITS
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "tests/fault/chaos_shim.h"

#define US       1000000ll
#define NS       1000000000ll
#define LONG_NS  (1000000 * NS) /* for ever */
#define OLD_WALL 1000000000     /* seconds: an instant later than that is of the wall clock */

/* The C library's own functions; one line each. */
#define REAL(X)                                                                                    \
    X(int, clock_gettime, (clockid_t, struct timespec *))                                          \
    X(int, poll, (struct pollfd *, nfds_t, int))                                                   \
    X(int, ppoll, (struct pollfd *, nfds_t, const struct timespec *, const sigset_t *))            \
    X(int, epoll_wait, (int, struct epoll_event *, int, int))                                      \
    X(int, epoll_pwait, (int, struct epoll_event *, int, int, const sigset_t *))                   \
    X(int, epoll_pwait2,                                                                           \
      (int, struct epoll_event *, int, const struct timespec *, const sigset_t *))                 \
    X(int, select, (int, fd_set *, fd_set *, fd_set *, struct timeval *))                          \
    X(int, clock_nanosleep, (clockid_t, int, const struct timespec *, struct timespec *))          \
    X(int, timerfd_settime, (int, int, const struct itimerspec *, struct itimerspec *))            \
    X(int, sigtimedwait, (const sigset_t *, siginfo_t *, const struct timespec *))                 \
    X(int, pthread_cond_timedwait, (pthread_cond_t *, pthread_mutex_t *, const struct timespec *)) \
    X(int, pthread_cond_clockwait,                                                                 \
      (pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *))                   \
    X(int, sem_clockwait, (sem_t *, clockid_t, const struct timespec *))                           \
    X(long, syscall, (long, ...))

#define DECLARE(type, name, args) static type(*real_##name) args;
REAL(DECLARE)

/* The clock first: a sanitizer's malloc(), of which the linker may be in need here, reads it. */
void chaos_time_init(void)
{
    void *found;

#define RESOLVE(type, name, args) real_##name = (type(*) args)dlsym(RTLD_NEXT, #name);
    REAL(RESOLVE)
    /* There are two of that name, and programs are not linked with the older one. */
    found = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (found)
        real_pthread_cond_timedwait =
            (int (*)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *))found;
}

/* ---- the wall clock ---- */

static void disturb(struct timespec *ts)
{
    uint32_t node;
    struct chaos_orders *orders = chaos_orders_of(&node);
    struct chaos_clock *c = orders ? &orders->clocks[node] : NULL;
    int64_t us, shift;

    if (!c || (c->offset_us == 0 && c->rate_ppm == 0))
        return;
    us = ts->tv_sec * US + ts->tv_nsec / 1000;
    shift = c->offset_us + (us - c->since_us) / 1000 * c->rate_ppm / 1000;
    __atomic_fetch_add(&c->reads, 1, __ATOMIC_RELAXED);
    us += shift;
    ts->tv_sec = us / US;
    ts->tv_nsec = us % US * 1000 + ts->tv_nsec % 1000;
}

/* ---- the monotonic clock ---- */

/* What it is made from, whole; NULL: it is right. */
static struct chaos_monotonic *law(struct chaos_monotonic *ret)
{
    uint32_t node;
    struct chaos_orders *orders = chaos_orders_of(&node);
    struct chaos_monotonic *m = orders ? &orders->monotonic[node] : NULL;
    uint64_t seq;

    do {
        seq = m ? __atomic_load_n(&m->seq, __ATOMIC_ACQUIRE) : 0;
        if (seq == 0)
            return NULL;
        *ret = *m;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
    } while (seq % 2 || seq != __atomic_load_n(&m->seq, __ATOMIC_RELAXED));
    return m;
}

static int64_t to_ns(const struct timespec *ts)
{
    return ts->tv_sec > LONG_NS / NS ? LONG_NS : ts->tv_sec * NS + ts->tv_nsec;
}

static struct timespec to_ts(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / NS, .tv_nsec = ns % NS};
}

static void slip(struct timespec *ts)
{
    struct chaos_monotonic l, *m = law(&l);
    int64_t passed = m ? to_ns(ts) - l.since_ns : 0;

    if (!m)
        return;
    __atomic_fetch_add(&m->reads, 1, __ATOMIC_RELAXED);
    *ts = to_ts(l.own_ns + passed + passed * l.rate_ppm / US);
}

/* How long a time by the node's clock takes. */
static int64_t stretched(const struct chaos_monotonic *l, int64_t ns)
{
    return ns <= 0 || ns >= LONG_NS ? ns
                                    : (int64_t)((double)ns / (1 + (double)l->rate_ppm / US)) + 1;
}

static int64_t stretch(int64_t ns)
{
    struct chaos_monotonic l, *m = ns > 0 ? law(&l) : NULL;

    if (!m)
        return ns;
    __atomic_fetch_add(&m->waits, 1, __ATOMIC_RELAXED);
    return stretched(&l, ns);
}

/* A time limit; NULL: there is none. */
static const struct timespec *limit(const struct timespec *ts, struct timespec *room)
{
    if (!ts)
        return NULL;
    *room = to_ts(stretch(to_ns(ts)));
    return room;
}

/* The real clock at an instant of the node's. */
static const struct timespec *instant(const struct timespec *ts, struct timespec *room)
{
    struct chaos_monotonic l, *m = ts ? law(&l) : NULL;
    int64_t ns = ts ? to_ns(ts) : 0;

    if (!m || ns == 0 || ns >= LONG_NS) /* 0: a timer that is turned off */
        return ts;
    __atomic_fetch_add(&m->waits, 1, __ATOMIC_RELAXED);
    *room = to_ts(ns <= l.own_ns ? l.since_ns : l.since_ns + stretched(&l, ns - l.own_ns));
    return room;
}

static int limit_ms(int ms)
{
    int64_t ns = ms > 0 ? stretch(ms * US) : 0;

    return ms <= 0 ? ms : (int)((ns + US - 1) / US);
}

static bool is_monotonic(clockid_t id)
{
    return id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE || id == CLOCK_MONOTONIC_RAW ||
           id == CLOCK_BOOTTIME;
}

EXPORT int clock_gettime(clockid_t id, struct timespec *ret)
{
    uint32_t node;
    int rc;

    chaos_orders_of(&node);
    rc = real_clock_gettime(id, ret);
    if (rc == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        disturb(ret);
    else if (rc == 0 && is_monotonic(id))
        slip(ret);
    return rc;
}

EXPORT int gettimeofday(struct timeval *restrict ret, void *restrict zone)
{
    struct timespec ts;

    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &ts) < 0)
        return -1;
    *ret = (struct timeval){.tv_sec = ts.tv_sec, .tv_usec = ts.tv_nsec / 1000};
    return 0;
}

EXPORT time_t time(time_t *ret)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    if (ret)
        *ret = ts.tv_sec;
    return ts.tv_sec;
}

/* ---- waits ---- */

/* Every wait begins with it: it may be the first call of all. */
static void begin(void)
{
    uint32_t node;

    chaos_orders_of(&node);
}

EXPORT int poll(struct pollfd *fds, nfds_t n, int ms)
{
    begin();
    return real_poll(fds, n, limit_ms(ms));
}

EXPORT int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *ts, const sigset_t *mask)
{
    struct timespec room;

    begin();
    return real_ppoll(fds, n, limit(ts, &room), mask);
}

EXPORT int epoll_wait(int fd, struct epoll_event *events, int n, int ms)
{
    begin();
    return real_epoll_wait(fd, events, n, limit_ms(ms));
}

EXPORT int epoll_pwait(int fd, struct epoll_event *events, int n, int ms, const sigset_t *mask)
{
    begin();
    return real_epoll_pwait(fd, events, n, limit_ms(ms), mask);
}

EXPORT int epoll_pwait2(int fd, struct epoll_event *events, int n, const struct timespec *ts,
                        const sigset_t *mask)
{
    struct timespec room;

    begin();
    return real_epoll_pwait2(fd, events, n, limit(ts, &room), mask);
}

EXPORT int select(int n, fd_set *in, fd_set *out, fd_set *special, struct timeval *tv)
{
    struct timeval own;
    int64_t us;

    begin();
    if (!tv || tv->tv_sec > LONG_NS / NS)
        return real_select(n, in, out, special, tv);
    us = stretch((tv->tv_sec * US + tv->tv_usec) * 1000) / 1000;
    own = (struct timeval){.tv_sec = us / US, .tv_usec = us % US};
    return real_select(n, in, out, special, &own);
}

EXPORT int clock_nanosleep(clockid_t id, int flags, const struct timespec *ts,
                           struct timespec *left)
{
    struct timespec room;

    begin();
    if (!(flags & TIMER_ABSTIME))
        ts = limit(ts, &room);
    else if (is_monotonic(id))
        ts = instant(ts, &room);
    return real_clock_nanosleep(id, flags, ts, left);
}

EXPORT int nanosleep(const struct timespec *ts, struct timespec *left)
{
    int rc = clock_nanosleep(CLOCK_MONOTONIC, 0, ts, left);

    errno = rc ? rc : errno;
    return rc ? -1 : 0;
}

EXPORT int usleep(useconds_t us)
{
    const struct timespec ts = {.tv_sec = us / US, .tv_nsec = us % US * 1000};

    return nanosleep(&ts, NULL);
}

EXPORT int timerfd_settime(int fd, int flags, const struct itimerspec *to, struct itimerspec *old)
{
    struct itimerspec own = *to;

    begin();
    if (!(flags & TFD_TIMER_ABSTIME))
        limit(&to->it_value, &own.it_value);
    else if (to->it_value.tv_sec < OLD_WALL)
        own.it_value = *instant(&to->it_value, &own.it_value);
    limit(&to->it_interval, &own.it_interval);
    return real_timerfd_settime(fd, flags, &own, old);
}

EXPORT int sigtimedwait(const sigset_t *set, siginfo_t *info, const struct timespec *ts)
{
    struct timespec room;

    begin();
    return real_sigtimedwait(set, info, limit(ts, &room));
}

/* Of which clock a condition is cannot be asked. */
EXPORT int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock,
                                  const struct timespec *until)
{
    struct timespec room;

    begin();
    return real_pthread_cond_timedwait(condition, lock,
                                       until->tv_sec < OLD_WALL ? instant(until, &room) : until);
}

EXPORT int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *lock, clockid_t id,
                                  const struct timespec *until)
{
    struct timespec room;

    begin();
    return real_pthread_cond_clockwait(condition, lock, id,
                                       is_monotonic(id) ? instant(until, &room) : until);
}

EXPORT int sem_clockwait(sem_t *semaphore, clockid_t id, const struct timespec *until)
{
    struct timespec room;

    begin();
    return real_sem_clockwait(semaphore, id, is_monotonic(id) ? instant(until, &room) : until);
}

/* Of a futex's wait; others' fourth argument is something else. */
static const struct timespec *futex_limit(int op, const struct timespec *ts, struct timespec *room)
{
    if ((op & FUTEX_CMD_MASK) == FUTEX_WAIT)
        return limit(ts, room);
    if ((op & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET && !(op & FUTEX_CLOCK_REALTIME))
        return instant(ts, room);
    return ts;
}

EXPORT long syscall(long number, ...)
{
    struct timespec room;
    va_list list;
    long a[6];

    va_start(list, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    begin();
    if (number == SYS_futex)
        a[3] = (long)futex_limit((int)a[1], (const struct timespec *)a[3], &room);
    return real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
