#include "agent/logfwd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"

#define CHUNK     (64u * 1024)
#define DRAIN_MAX 64 /* chunks: a writer that never stops must not hold us */

struct er_logfwd {
    int fd, file_fd;
    struct er_loop_source *source;
    struct er_logfwd_opts opts;
    char *path, *prefix; /* owned */
    uint64_t size;       /* of the file */
    struct er_buf line;  /* unfinished, for the console */
    struct er_buf tail;
    bool after_cr; /* the console line ended in '\r': a '\n' right behind it belongs to it */
    struct er_logfwd_drops drops;
};

static uint64_t count_lines(const char *data, size_t n)
{
    uint64_t lines = 0;

    for (size_t i = 0; i < n; i++)
        lines += data[i] == '\n';
    return lines;
}

static void drop(struct er_logfwd *f, const char *data, size_t n, int error)
{
    f->drops.lines += count_lines(data, n);
    f->drops.bytes += n;
    if (error)
        f->drops.error = error;
}

static int open_file(struct er_logfwd *f)
{
    struct stat st;

    f->file_fd = open(f->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (f->file_fd < 0)
        return -errno;
    f->size = fstat(f->file_fd, &st) == 0 ? (uint64_t)st.st_size : 0;
    return 0;
}

/* stdout.log -> stdout.log.1 -> ... ; the oldest goes. A failed rename leaves the file growing. */
static void rotate(struct er_logfwd *f)
{
    char from[4096 + 16], to[4096 + 16];

    for (uint32_t i = f->opts.max_files > 1 ? f->opts.max_files - 1 : 1; i > 0; i--) {
        snprintf(to, sizeof(to), "%s.%u", f->path, i);
        if (i > 1)
            snprintf(from, sizeof(from), "%s.%u", f->path, i - 1);
        else
            snprintf(from, sizeof(from), "%s", f->path);
        (void)rename(from, to);
    }
    if (f->opts.max_files == 1) {
        snprintf(to, sizeof(to), "%s.1", f->path);
        (void)unlink(to);
    }
    er_cleanup_fd(&f->file_fd);
    (void)open_file(f);
}

static void write_file(struct er_logfwd *f, const char *data, size_t n)
{
    if (!f->path)
        return;
    if (f->size > 0 && f->size + n > f->opts.max_size)
        rotate(f);
    if (f->file_fd < 0 && open_file(f)) {
        drop(f, data, n, errno);
        return;
    }
    while (n > 0) {
        ssize_t done = write(f->file_fd, data, n);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0) {
            drop(f, data, n, errno);
            return;
        }
        f->size += (uint64_t)done;
        data += done;
        n -= (size_t)done;
    }
}

/* One console line: prefix, text, terminator. */
static void emit(struct er_logfwd *f, const char *end, size_t end_n)
{
    struct er_buf out;
    char ts[ER_RFC3339_MAX];
    int rc = 0;

    er_buf_init(&out, ER_LOGFWD_LINE_MAX + 1024);
    /* A progress bar starts with a bare '\r': nothing to put a prefix to. */
    if (f->line.len > 0 || end[0] != '\r') {
        if (f->opts.timestamps) {
            er_rfc3339(er_wall_us(), ts);
            rc = er_buf_printf(&out, "%s ", ts);
        }
        if (!rc)
            rc = er_buf_add_str(&out, f->prefix);
        if (!rc)
            rc = er_buf_add(&out, f->line.data, f->line.len);
    }
    if (!rc)
        rc = er_buf_add(&out, end, end_n);
    if (rc || !er_console_write(f->opts.console, f->opts.stream, out.data, out.len))
        drop(f, out.data ? out.data : "", out.len, 0);
    er_buf_clear(&f->line);
    er_buf_done(&out);
}

static void to_console(struct er_logfwd *f, const char *data, size_t n)
{
    if (!f->opts.console)
        return;
    if (f->after_cr && n > 0) {
        f->after_cr = false;
        if (data[0] == '\n') {
            (void)er_console_write(f->opts.console, f->opts.stream, "\n", 1);
            data++;
            n--;
        }
    }
    while (n > 0) {
        size_t run = 0;

        while (run < n && data[run] != '\n' && data[run] != '\r' &&
               f->line.len + run < ER_LOGFWD_LINE_MAX)
            run++;
        if (er_buf_add(&f->line, data, run))
            drop(f, data, run, ENOMEM);
        data += run;
        n -= run;
        if (n == 0)
            return;
        if (data[0] != '\n' && data[0] != '\r') {
            emit(f, "\n", 1); /* line too long */
            continue;
        }
        size_t end_n = data[0] == '\r' && n > 1 && data[1] == '\n' ? 2 : 1;

        emit(f, data, end_n);
        f->after_cr = data[0] == '\r' && n == 1;
        data += end_n;
        n -= end_n;
    }
}

static void keep_tail(struct er_logfwd *f, const char *data, size_t n)
{
    if (n >= ER_LOGFWD_TAIL_MAX) {
        data += n - ER_LOGFWD_TAIL_MAX;
        n = ER_LOGFWD_TAIL_MAX;
        er_buf_clear(&f->tail);
    }
    if (f->tail.len + n > ER_LOGFWD_TAIL_MAX)
        er_buf_consume(&f->tail, f->tail.len + n - ER_LOGFWD_TAIL_MAX);
    (void)er_buf_add(&f->tail, data, n);
}

/* Bytes read; 0 at end of file, -1 when nothing is there. */
static ssize_t read_chunk(struct er_logfwd *f)
{
    static char chunk[CHUNK]; /* one loop, one thread */
    ssize_t n = f->fd < 0 ? 0 : read(f->fd, chunk, sizeof(chunk));

    if (n > 0) {
        write_file(f, chunk, (size_t)n);
        to_console(f, chunk, (size_t)n);
        keep_tail(f, chunk, (size_t)n);
    }
    return n;
}

static void close_pipe(struct er_logfwd *f)
{
    er_loop_source_free(f->source);
    f->source = NULL;
    er_cleanup_fd(&f->fd);
}

static void on_readable(void *user, uint32_t events)
{
    struct er_logfwd *f = user;

    if (read_chunk(f) == 0)
        close_pipe(f);
}

int er_logfwd_new(struct er_logfwd **ret, int *ret_fd, struct er_loop *loop,
                  const struct er_logfwd_opts *opts, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int write_end = -1;
    struct er_logfwd *f = calloc(1, sizeof(*f));
    int pair[2], rc = 0;

    if (!f)
        return er_error_set(err, -ENOMEM, "log stream: out of memory");
    f->fd = f->file_fd = -1;
    f->opts = *opts;
    er_buf_init(&f->line, ER_LOGFWD_LINE_MAX);
    er_buf_init(&f->tail, ER_LOGFWD_TAIL_MAX);
    f->prefix = strdup(opts->prefix ? opts->prefix : "");
    f->path = opts->path ? strdup(opts->path) : NULL;
    if (!f->prefix || (opts->path && !f->path))
        rc = er_error_set(err, -ENOMEM, "log stream: out of memory");
    if (!rc && f->path)
        (void)open_file(f); /* tried again, and what is lost counted, with every write */
    if (!rc && pipe2(pair, O_CLOEXEC) < 0)
        rc = er_error_errno(err, "make a pipe for a log");
    if (!rc) {
        f->fd = pair[0];
        write_end = pair[1];
        rc = er_fd_nonblock(f->fd);
    }
    if (!rc)
        rc = er_loop_io(loop, f->fd, EPOLLIN, ER_PRIORITY_IO, on_readable, f, &f->source, err);
    if (rc) {
        er_logfwd_free(f);
        return rc;
    }
    *ret_fd = ER_TAKE_FD(write_end);
    *ret = f;
    return 0;
}

void er_logfwd_drain(struct er_logfwd *f)
{
    for (int i = 0; f && i < DRAIN_MAX && read_chunk(f) > 0; i++)
        ;
}

void er_logfwd_free(struct er_logfwd *f)
{
    if (!f)
        return;
    er_logfwd_drain(f);
    if (f->line.len > 0 && f->opts.console)
        emit(f, "\n", 1);
    close_pipe(f);
    er_cleanup_fd(&f->file_fd);
    er_buf_done(&f->line);
    er_buf_done(&f->tail);
    free(f->path);
    free(f->prefix);
    free(f);
}

const char *er_logfwd_tail(struct er_logfwd *f)
{
    const char *text = er_buf_str(&f->tail), *at = text + f->tail.len;
    int lines = 0;

    if (at > text && at[-1] == '\n')
        at--;
    for (; at > text; at--) {
        if (at[-1] == '\n' && ++lines == ER_LOGFWD_TAIL_LINES)
            break;
    }
    /* The oldest line may have lost its beginning when the buffer overflowed. */
    if (at == text && f->tail.len == ER_LOGFWD_TAIL_MAX && strchr(at, '\n'))
        at = strchr(at, '\n') + 1;
    return at;
}

struct er_logfwd_drops er_logfwd_take_drops(struct er_logfwd *f)
{
    struct er_logfwd_drops drops = f->drops;

    f->drops = (struct er_logfwd_drops){0};
    return drops;
}

const char *er_logfwd_path(const struct er_logfwd *f)
{
    return f->path;
}
