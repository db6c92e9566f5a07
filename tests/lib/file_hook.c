#include "tests/lib/file_hook.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int (*_Atomic er_file_before)(const struct er_file_op *op, size_t *ret_n);
void (*_Atomic er_file_after)(const struct er_file_op *op);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The real ones. */
int __real_open64(const char *path, int flags, ...);
int __real_openat64(int dir, const char *path, int flags, ...);
ssize_t __real_pwrite64(int fd, const void *data, size_t n, off_t at);
ssize_t __real_write(int fd, const void *data, size_t n);
int __real_fsync(int fd);
int __real_ftruncate64(int fd, off_t n);
int __real_fallocate64(int fd, int mode, off_t at, off_t n);
int __real_mkdir(const char *path, mode_t mode);
int __real_rename(const char *from, const char *to);
int __real_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __real_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int __real_unlink(const char *path);
int __real_unlinkat(int dir, const char *path, int flags);
int __real_rmdir(const char *path);

/* And what the linker puts in their place. */
int __wrap_open64(const char *path, int flags, ...);
int __wrap_openat64(int dir, const char *path, int flags, ...);
ssize_t __wrap_pwrite64(int fd, const void *data, size_t n, off_t at);
ssize_t __wrap_write(int fd, const void *data, size_t n);
int __wrap_fsync(int fd);
int __wrap_ftruncate64(int fd, off_t n);
int __wrap_fallocate64(int fd, int mode, off_t at, off_t n);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_rename(const char *from, const char *to);
int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int __wrap_unlink(const char *path);
int __wrap_unlinkat(int dir, const char *path, int flags);
int __wrap_rmdir(const char *path);

/* Of an open file or folder. */
static void path_of(int fd, char ret[PATH_MAX])
{
    char link[64];
    ssize_t n;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, ret, PATH_MAX - 1);
    ret[n > 0 ? n : 0] = 0;
}

static void path_at(int dir, const char *name, char ret[PATH_MAX])
{
    char folder[PATH_MAX];

    if (name[0] == '/' || dir == AT_FDCWD) {
        snprintf(ret, PATH_MAX, "%s", name);
        return;
    }
    path_of(dir, folder);
    if (snprintf(ret, PATH_MAX, "%s/%s", folder, name) >= PATH_MAX)
        ret[0] = 0;
}

static bool active(void)
{
    return er_file_before || er_file_after;
}

/* 0, or the failure that the test wants. */
static int ask(const struct er_file_op *op, size_t *n)
{
    int (*before)(const struct er_file_op *, size_t *) = er_file_before;
    size_t unused = 0;
    int rc = before ? before(op, n ? n : &unused) : 0;

    if (rc < 0)
        errno = -rc;
    return rc < 0 ? -1 : 0;
}

static void enter(void)
{
    pthread_mutex_lock(&lock);
}

static void leave(const struct er_file_op *op, bool done)
{
    void (*after)(const struct er_file_op *) = er_file_after;
    int saved = errno;

    if (after && done)
        after(op);
    pthread_mutex_unlock(&lock);
    errno = saved;
}

static int open_hooked(int dir, const char *path, int flags, mode_t mode)
{
    char full[PATH_MAX];
    struct er_file_op op = {.kind = ER_FILE_CREATE, .path = full};
    bool made;
    int fd;

    path_at(dir, path, full);
    made = active() && (flags & O_CREAT) && access(full, F_OK) != 0;
    if (made && ask(&op, NULL) < 0)
        return -1;
    if (!made)
        return __real_openat64(dir, path, flags, mode);
    enter();
    fd = __real_openat64(dir, path, flags, mode);
    leave(&op, fd >= 0);
    return fd;
}

int __wrap_open64(const char *path, int flags, ...)
{
    va_list args;
    mode_t mode = 0;

    va_start(args, flags);
    if (flags & O_CREAT)
        mode = va_arg(args, mode_t);
    va_end(args);
    return open_hooked(AT_FDCWD, path, flags, mode);
}

int __wrap_openat64(int dir, const char *path, int flags, ...)
{
    va_list args;
    mode_t mode = 0;

    va_start(args, flags);
    if (flags & O_CREAT)
        mode = va_arg(args, mode_t);
    va_end(args);
    return open_hooked(dir, path, flags, mode);
}

static ssize_t write_hooked(int fd, const void *data, size_t n, off_t at, bool positioned)
{
    char full[PATH_MAX];
    struct er_file_op op = {.kind = ER_FILE_WRITE, .path = full, .data = data, .n = n};
    ssize_t done;

    if (!active())
        return positioned ? __real_pwrite64(fd, data, n, at) : __real_write(fd, data, n);
    path_of(fd, full);
    op.offset = positioned ? (uint64_t)at : (uint64_t)lseek(fd, 0, SEEK_CUR);
    if (ask(&op, &n) < 0)
        return -1;
    enter();
    done = positioned ? __real_pwrite64(fd, data, n, at) : __real_write(fd, data, n);
    op.n = done > 0 ? (size_t)done : 0;
    leave(&op, done > 0);
    return done;
}

ssize_t __wrap_pwrite64(int fd, const void *data, size_t n, off_t at)
{
    return write_hooked(fd, data, n, at, true);
}

ssize_t __wrap_write(int fd, const void *data, size_t n)
{
    return write_hooked(fd, data, n, 0, false);
}

/* An operation on a descriptor (or, `fd` < 0, on paths): EXPR is the real call. Nothing else is
 * touched while no test looks: a sanitizer makes folders before its mutexes work. */
#define HOOKED(op, expr)                                                                           \
    ({                                                                                             \
        bool hooked_ = active();                                                                   \
        int rc_ = hooked_ ? ask(op, NULL) : (expr);                                                \
        if (hooked_ && rc_ == 0) {                                                                 \
            enter();                                                                               \
            rc_ = (expr);                                                                          \
            leave(op, rc_ == 0);                                                                   \
        }                                                                                          \
        rc_;                                                                                       \
    })

int __wrap_fsync(int fd)
{
    char full[PATH_MAX];
    const struct er_file_op op = {.kind = ER_FILE_FSYNC, .path = full};

    path_of(fd, full);
    return HOOKED(&op, __real_fsync(fd));
}

int __wrap_ftruncate64(int fd, off_t n)
{
    char full[PATH_MAX];
    const struct er_file_op op = {.kind = ER_FILE_TRUNCATE, .path = full, .n = (size_t)n};

    path_of(fd, full);
    return HOOKED(&op, __real_ftruncate64(fd, n));
}

int __wrap_fallocate64(int fd, int mode, off_t at, off_t n)
{
    char full[PATH_MAX];
    const struct er_file_op op = {.kind = ER_FILE_ALLOCATE, .path = full, .n = (size_t)(at + n)};

    path_of(fd, full);
    return HOOKED(&op, __real_fallocate64(fd, mode, at, n));
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    const struct er_file_op op = {.kind = ER_FILE_MKDIR, .path = path};

    return HOOKED(&op, __real_mkdir(path, mode));
}

int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    char full[PATH_MAX], full_to[PATH_MAX];
    const struct er_file_op op = {.kind =
                                      flags & RENAME_EXCHANGE ? ER_FILE_EXCHANGE : ER_FILE_RENAME,
                                  .path = full,
                                  .to = full_to};

    path_at(from_dir, from, full);
    path_at(to_dir, to, full_to);
    return HOOKED(&op, __real_renameat2(from_dir, from, to_dir, to, flags));
}

int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    return __wrap_renameat2(from_dir, from, to_dir, to, 0);
}

int __wrap_rename(const char *from, const char *to)
{
    return __wrap_renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int __wrap_unlinkat(int dir, const char *path, int flags)
{
    char full[PATH_MAX];
    const struct er_file_op op = {.kind = flags & AT_REMOVEDIR ? ER_FILE_RMDIR : ER_FILE_UNLINK,
                                  .path = full};

    path_at(dir, path, full);
    return HOOKED(&op, __real_unlinkat(dir, path, flags));
}

int __wrap_unlink(const char *path)
{
    return __wrap_unlinkat(AT_FDCWD, path, 0);
}

int __wrap_rmdir(const char *path)
{
    return __wrap_unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}
