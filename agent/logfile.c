#include "agent/logfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

void er_log_drop(struct er_log_drops *drops, const char *data, size_t n, int error)
{
    for (size_t i = 0; i < n; i++)
        drops->lines += data[i] == '\n';
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
    f->size = fstat(f->fd, &st) == 0 ? (uint64_t)st.st_size : 0;
    return 0;
}

int er_logfile_init(struct er_logfile *f, const char *path, uint64_t max_size, uint32_t max_files)
{
    *f = (struct er_logfile){.fd = -1, .max_size = max_size, .max_files = max_files};
    f->path = path ? strdup(path) : NULL;
    if (path && !f->path)
        return -ENOMEM;
    if (f->path)
        (void)open_file(f); /* tried again, and what is lost counted, with every write */
    return 0;
}

void er_logfile_done(struct er_logfile *f)
{
    if (f->path)
        er_cleanup_fd(&f->fd);
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
    }
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
    return f->size ? 0 : (size_t)room; /* a line longer than a file is cut */
}

void er_logfile_write(struct er_logfile *f, const char *data, size_t n, struct er_log_drops *drops)
{
    while (f->path && n > 0) {
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
