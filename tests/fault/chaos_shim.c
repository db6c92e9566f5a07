/* Preloaded into agents and workers of the fault-injection suite: calls of the C library that fail,
 * are late, hang, write a half, or are the last ones of their process; and clocks that are wrong
 * (chaos_time.c). Which ones is said in CHAOS_ORDERS (chaos_orders.h), by node (CHAOS_NODE=job/N)
 * and by role: a process with LOCAL_RANK is a worker, elastic-run an agent, all others are left
 * alone. */
#undef _FILE_OFFSET_BITS /* open() and open64() are two names here, of which programs use either   \
                          */
#include "tests/fault/chaos_shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define POLL_NS 2000000l

static struct chaos_orders *orders; /* NULL: nothing is done */
static uint32_t role, node;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread bool initializing; /* what that needs comes here, too */

/* The C library's own functions; one line each. */
#define REAL(X)                                                                                    \
    X(int, open64, (const char *, int, ...))                                                       \
    X(int, openat64, (int, const char *, int, ...))                                                \
    X(ssize_t, read, (int, void *, size_t))                                                        \
    X(ssize_t, pread64, (int, void *, size_t, off64_t))                                            \
    X(ssize_t, write, (int, const void *, size_t))                                                 \
    X(ssize_t, pwrite64, (int, const void *, size_t, off64_t))                                     \
    X(int, fsync, (int))                                                                           \
    X(int, fdatasync, (int))                                                                       \
    X(int, rename, (const char *, const char *))                                                   \
    X(int, renameat, (int, const char *, int, const char *))                                       \
    X(int, renameat2, (int, const char *, int, const char *, unsigned))                            \
    X(int, listen, (int, int))

#define DECLARE(type, name, args) static type(*real_##name) args;
REAL(DECLARE)

static bool is_program(const char *name)
{
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    const char *last;

    if (n < 0)
        return false;
    path[n] = '\0';
    last = strrchr(path, '/');
    return last && strncmp(last + 1, name, strlen(name)) == 0;
}

static void find_orders(void)
{
    const char *path = getenv("CHAOS_ORDERS"), *who = getenv("CHAOS_NODE");
    const char *number = who ? strrchr(who, '/') : NULL;
    struct chaos_orders *o;
    int fd;

    role = getenv("LOCAL_RANK") ? CHAOS_WORKER : is_program("elastic-run") ? CHAOS_AGENT : 0;
    if (!role || !path || !number)
        return;
    node = (uint32_t)strtoul(number + 1, NULL, 10);
    fd = real_open64(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || node >= CHAOS_NODES)
        return;
    o = mmap(NULL, sizeof(*o), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (o != MAP_FAILED && o->magic == CHAOS_MAGIC)
        orders = o;
}

static void init(void)
{
    initializing = true;
#define RESOLVE(type, name, args) real_##name = (type(*) args)dlsym(RTLD_NEXT, #name);
    REAL(RESOLVE)
    chaos_time_init();
    find_orders();
    initializing = false;
}

struct chaos_orders *chaos_orders_of(uint32_t *ret_node)
{
    if (!initializing)
        pthread_once(&once, init);
    *ret_node = node;
    return orders;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_once(&once, init);
}

/* ---- rules ---- */

static bool concerns(const struct chaos_rule *r, enum chaos_op op)
{
    return __atomic_load_n(&r->op, __ATOMIC_ACQUIRE) == (uint32_t)op && (r->roles & role) &&
           (r->nodes & (1u << node));
}

static bool any(enum chaos_op op)
{
    pthread_once(&once, init);
    for (int i = 0; orders && i < CHAOS_RULES; i++) {
        if (concerns(&orders->rules[i], op))
            return true;
    }
    return false;
}

/* The rule that acts on this call, counted; NULL: none. */
static struct chaos_rule *acting(enum chaos_op op, const char *path)
{
    for (int i = 0; i < CHAOS_RULES; i++) {
        struct chaos_rule *r = &orders->rules[i];
        uint32_t before;

        if (!concerns(r, op) || (r->path[0] && !strstr(path, r->path)))
            continue;
        before = __atomic_fetch_add(&r->calls, 1, __ATOMIC_ACQ_REL);
        if (before < r->skip || (r->times && before >= r->skip + r->times))
            continue;
        __atomic_fetch_add(&r->hits, 1, __ATOMIC_ACQ_REL);
        return r;
    }
    return NULL;
}

static void wait_ns(long ns)
{
    struct timespec left = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};

    while (nanosleep(&left, &left) < 0 && errno == EINTR)
        ;
}

/* Before the call: 0: it goes on, -1: it has failed, errno says how. */
static int suffer(struct chaos_rule *r)
{
    uint32_t op = r->op;

    switch ((enum chaos_action)r->action) {
    case CHAOS_FAIL:
        errno = r->error;
        return -1;
    case CHAOS_DELAY:
        wait_ns((long)r->delay_us * 1000);
        return 0;
    case CHAOS_HANG:
        while (__atomic_load_n(&r->op, __ATOMIC_ACQUIRE) == op)
            wait_ns(POLL_NS);
        return 0;
    case CHAOS_KILL:
        kill(getpid(), SIGKILL);
        return 0;
    case CHAOS_TEAR:
    case CHAOS_TEAR_KILL:
        return 0;
    }
    return 0;
}

static int on_path(enum chaos_op op, const char *path)
{
    struct chaos_rule *r = any(op) ? acting(op, path) : NULL;

    return r ? suffer(r) : 0;
}

static struct chaos_rule *on_fd(enum chaos_op op, int fd)
{
    char name[64], path[PATH_MAX];
    ssize_t n;

    if (!any(op))
        return NULL;
    snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    n = readlink(name, path, sizeof(path) - 1);
    if (n < 0)
        return NULL;
    path[n] = '\0';
    return acting(op, path);
}

/* How much of n bytes is to be written, with what after it: n where nothing is torn. */
static size_t torn(const struct chaos_rule *r, size_t n)
{
    return r && (r->action == CHAOS_TEAR || r->action == CHAOS_TEAR_KILL) ? n / 2 : n;
}

static ssize_t after_tear(const struct chaos_rule *r)
{
    if (r->action == CHAOS_TEAR_KILL)
        kill(getpid(), SIGKILL);
    errno = r->error;
    return -1;
}

/* ---- files ---- */

#define MODE(flags)                                                                                \
    mode_t mode = 0;                                                                               \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                       \
        va_list list;                                                                              \
        va_start(list, flags);                                                                     \
        mode = va_arg(list, mode_t);                                                               \
        va_end(list);                                                                              \
    }

EXPORT int open64(const char *path, int flags, ...)
{
    MODE(flags)
    return on_path(CHAOS_OPEN, path) ? -1 : real_open64(path, flags, mode);
}

EXPORT int open(const char *path, int flags, ...)
{
    MODE(flags)
    return on_path(CHAOS_OPEN, path) ? -1 : real_open64(path, flags, mode);
}

EXPORT int openat64(int dir, const char *path, int flags, ...)
{
    MODE(flags)
    return on_path(CHAOS_OPEN, path) ? -1 : real_openat64(dir, path, flags, mode);
}

EXPORT int openat(int dir, const char *path, int flags, ...)
{
    MODE(flags)
    return on_path(CHAOS_OPEN, path) ? -1 : real_openat64(dir, path, flags, mode);
}

EXPORT ssize_t read(int fd, void *data, size_t n)
{
    struct chaos_rule *r = on_fd(CHAOS_READ, fd);

    return r && suffer(r) ? -1 : real_read(fd, data, n);
}

EXPORT ssize_t pread64(int fd, void *data, size_t n, off64_t at)
{
    struct chaos_rule *r = on_fd(CHAOS_READ, fd);

    return r && suffer(r) ? -1 : real_pread64(fd, data, n, at);
}

EXPORT ssize_t pread(int fd, void *data, size_t n, off_t at)
{
    return pread64(fd, data, n, at);
}

EXPORT ssize_t write(int fd, const void *data, size_t n)
{
    struct chaos_rule *r = on_fd(CHAOS_WRITE, fd);
    size_t part = torn(r, n);
    ssize_t done;

    if (r && suffer(r))
        return -1;
    done = real_write(fd, data, part);
    return part == n ? done : after_tear(r);
}

EXPORT ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at)
{
    struct chaos_rule *r = on_fd(CHAOS_WRITE, fd);
    size_t part = torn(r, n);
    ssize_t done;

    if (r && suffer(r))
        return -1;
    done = real_pwrite64(fd, data, part, at);
    return part == n ? done : after_tear(r);
}

EXPORT ssize_t pwrite(int fd, const void *data, size_t n, off_t at)
{
    return pwrite64(fd, data, n, at);
}

EXPORT int fsync(int fd)
{
    struct chaos_rule *r = on_fd(CHAOS_SYNC, fd);

    return r && suffer(r) ? -1 : real_fsync(fd);
}

EXPORT int fdatasync(int fd)
{
    struct chaos_rule *r = on_fd(CHAOS_SYNC, fd);

    return r && suffer(r) ? -1 : real_fdatasync(fd);
}

EXPORT int rename(const char *from, const char *to)
{
    return on_path(CHAOS_RENAME, to) ? -1 : real_rename(from, to);
}

EXPORT int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    return on_path(CHAOS_RENAME, to) ? -1 : real_renameat(from_dir, from, to_dir, to);
}

EXPORT int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    return on_path(CHAOS_RENAME, to) ? -1 : real_renameat2(from_dir, from, to_dir, to, flags);
}

EXPORT int listen(int fd, int backlog)
{
    int family = AF_UNSPEC;
    socklen_t size = sizeof(family);

    if (any(CHAOS_LISTEN) && getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0 &&
        family != AF_UNIX && on_path(CHAOS_LISTEN, ""))
        return -1;
    return real_listen(fd, backlog);
}
