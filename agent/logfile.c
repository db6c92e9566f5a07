#include "agent/logfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/linesplit.h"
#include "base/cleanup.h"

#define SPLICE_MAX (1024u * 1024)
/* A line that began in a file may end that far beyond its size, and a quarter of it at most. */
#define LINE_OVER (64u * 1024)

void er_log_drop(struct er_log_drops *drops, const char *data, size_t n, int error)
{
    drops->lines += er_linesplit_count(data, n);
    drops->bytes += n;
    if (error)
        drops->error = error;
}

static int open_file(struct er_logfile *f)
{
    struct stat st;

    f->fd = open(f->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (f->fd < 0)
        return -errno;
    f->splices = fstat(f->fd, &st) == 0 && S_ISREG(st.st_mode);
    f->size = f->splices ? (uint64_t)st.st_size : 0;
    return 0;
}

int er_logfile_init(struct er_logfile *f, const char *path, uint64_t max_size, uint32_t max_files)
{
    *f = (struct er_logfile){.fd = -1, .max_size = max_size, .max_files = max_files};
    f->path = path ? strdup(path) : NULL;
    if (path && !f->path)
        return -ENOMEM;
    pthread_mutex_init(&f->lock, NULL);
    if (f->path)
        (void)open_file(f); /* tried again, and what is lost counted, with every write */
    return 0;
}

void er_logfile_done(struct er_logfile *f)
{
    if (f->path) {
        er_cleanup_fd(&f->fd);
        pthread_mutex_destroy(&f->lock);
    }
    er_cleanup_free(&f->path);
}

/* A failed rename leaves the file growing. */
static void rotate(struct er_logfile *f)
{
    char from[4096 + 16], to[4096 + 16];

    for (uint32_t i = f->max_files > 1 ? f->max_files - 1 : 1; i > 0; i--) {
        snprintf(to, sizeof(to), "%s.%u", f->path, i);
        if (i > 1)
            snprintf(from, sizeof(from), "%s.%u", f->path, i - 1);
        else
            snprintf(from, sizeof(from), "%s", f->path);
        (void)rename(from, to);
    }
    if (f->max_files == 1) {
        snprintf(to, sizeof(to), "%s.1", f->path);
        (void)unlink(to);
    }
    er_cleanup_fd(&f->fd);
    (void)open_file(f);
}

static void write_all(struct er_logfile *f, const char *data, size_t n, struct er_log_drops *drops)
{
    if (f->fd < 0 && open_file(f)) {
        er_log_drop(drops, data, n, errno);
        return;
    }
    while (n > 0) {
        ssize_t done = write(f->fd, data, n);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0) {
            er_log_drop(drops, data, n, done < 0 ? errno : EIO);
            return;
        }
        f->size += (uint64_t)done;
        data += done;
        n -= (size_t)done;
        f->in_line = data[-1] != '\n';
    }
}

/* Of a line that began in this file, and of which `data` is more: its end belongs here, too. */
static size_t rest_of_line(const struct er_logfile *f, const char *data, size_t n)
{
    uint64_t over = f->max_size / 4 < LINE_OVER ? f->max_size / 4 : LINE_OVER;
    uint64_t limit = f->max_size + over, room = limit > f->size ? limit - f->size : 0;
    size_t look = n < room ? n : (size_t)room;
    const char *end = memchr(data, '\n', look);

    return end ? (size_t)(end - data) + 1 : look;
}

/* How much of `data` still goes into this file: whole lines; 0: none. */
static size_t fitting(const struct er_logfile *f, const char *data, size_t n)
{
    uint64_t room = f->max_size > f->size ? f->max_size - f->size : 0;
    const char *end;

    if (n <= room)
        return n;
    end = memrchr(data, '\n', (size_t)room);
    if (end)
        return (size_t)(end - data) + 1;
    if (f->in_line && f->size)
        return rest_of_line(f, data, n);
    return f->size ? 0 : (size_t)room; /* a line longer than a file is cut */
}

static void write_locked(struct er_logfile *f, const char *data, size_t n,
                         struct er_log_drops *drops)
{
    while (n > 0) {
        size_t now = fitting(f, data, n);

        if (now == 0) {
            uint64_t size = f->size;

            rotate(f);
            if (f->fd < 0 || f->size >= size) /* could not be opened, or not be renamed */
                now = n;
        }
        write_all(f, data, now, drops);
        data += now;
        n -= now;
    }
}

void er_logfile_write(struct er_logfile *f, const char *data, size_t n, struct er_log_drops *drops)
{
    if (!f->path)
        return;
    pthread_mutex_lock(&f->lock);
    write_locked(f, data, n, drops);
    pthread_mutex_unlock(&f->lock);
}

/* One splice(2) to the end of the file, for which it may not be in append mode. */
static ssize_t splice_out(struct er_logfile *f, int from, size_t n)
{
    ssize_t done = -1;
    int error;

    if (fcntl(f->fd, F_SETFL, 0) == 0 && lseek(f->fd, 0, SEEK_END) >= 0)
        done = splice(from, NULL, f->fd, NULL, n, SPLICE_F_MOVE);
    error = errno;
    (void)fcntl(f->fd, F_SETFL, O_APPEND);
    errno = error;
    return done;
}

/* All `n` bytes of the pipe `from`; the rest as ever when the file does not take them. */
static void move_out(struct er_logfile *f, int from, size_t n, struct er_log_drops *drops)
{
    char rest[16 * 1024];

    while (n > 0 && f->splices) {
        ssize_t done = splice_out(f, from, n);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0) {
            f->splices = done < 0 && errno == ENOSPC;
            break;
        }
        f->size += (uint64_t)done;
        n -= (size_t)done;
        f->in_line = true; /* nobody has seen how it ends */
    }
    while (n > 0) {
        ssize_t got = read(from, rest, n < sizeof(rest) ? n : sizeof(rest));

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return; /* the pipe is ours, and has n bytes */
        write_locked(f, rest, (size_t)got, drops);
        n -= (size_t)got;
    }
}

ssize_t er_logfile_splice(struct er_logfile *f, int fd, const int side[2],
                          struct er_log_drops *drops)
{
    ssize_t n = -1;
    int error = EOPNOTSUPP;

    if (!f->path)
        return -EOPNOTSUPP;
    pthread_mutex_lock(&f->lock);
    /* The last stretch is left to who finds an end of line to rotate at. */
    if (side[0] >= 0 && f->fd >= 0 && f->splices && f->max_size > f->size &&
        f->max_size - f->size >= 2 * SPLICE_MAX) {
        n = splice(fd, NULL, side[1], NULL, SPLICE_MAX, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
        error = n < 0 ? errno : 0;
        if (n > 0)
            move_out(f, side[0], (size_t)n, drops);
    }
    pthread_mutex_unlock(&f->lock);
    return n < 0 ? -error : n;
}
