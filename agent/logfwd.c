#include "agent/logfwd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "agent/linesplit.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"

#define CHUNK      (128u * 1024)
#define PIPE_BYTES (512u * 1024)
#define PREFIX_MAX 256                      /* about: what a line gets in front */
#define OUT_MAX    (2 * ER_LINE_MAX + 8192) /* two lines with a prefix each */
#define DRAIN_MAX  64                       /* chunks: a writer that never stops must not hold us */

struct er_logfwd {
    int fd;
    struct er_loop_source *source;
    struct er_logfwd_opts opts;
    char *prefix; /* owned */
    struct er_logfile file;
    struct er_linesplit lines; /* for the console and the filters */
    struct er_buf out;         /* lines on their way to the console */
    struct er_buf tail;
    struct er_log_drops drops;
};

static bool is_wanted(const struct er_logfwd *f, const char *text, size_t n)
{
    for (size_t i = 0; f->opts.filtered && i < f->opts.filters->n; i++) {
        const char *filter = f->opts.filters->items[i];

        if (memmem(text, n, filter, strlen(filter)))
            return true;
    }
    return false;
}

static void flush_console(struct er_logfwd *f)
{
    if (f->out.len && !er_console_write(f->opts.console, f->opts.stream, f->out.data, f->out.len))
        er_log_drop(&f->drops, f->out.data, f->out.len, 0);
    er_buf_clear(&f->out);
}

/* Prefix, text, end: appended to `out`. */
static int format_line(struct er_logfwd *f, const char *text, size_t n, const char *end,
                       size_t end_n)
{
    char ts[ER_RFC3339_MAX];
    int rc = 0;

    /* A progress bar starts with a bare '\r': nothing to put a prefix to. */
    if (text && (n || end[0] != '\r')) {
        if (f->opts.timestamps) {
            er_rfc3339(er_wall_us(), ts);
            rc = er_buf_printf(&f->out, "%s ", ts);
        }
        if (!rc)
            rc = er_buf_add_str(&f->out, f->prefix);
        if (!rc)
            rc = er_buf_add(&f->out, text, n);
    }
    return rc ? rc : er_buf_add(&f->out, end, end_n);
}

static void on_line(void *user, const char *text, size_t n, const char *end, size_t end_n)
{
    struct er_logfwd *f = user;
    bool wanted = text && is_wanted(f, text, n);
    size_t begin;

    if (!f->opts.console && !wanted)
        return;
    if (f->out.len + n > ER_LINE_MAX)
        flush_console(f);
    /* A reader that stands still must not cost the workers the formatting. */
    if (!wanted &&
        er_console_is_full(f->opts.console, f->opts.stream, f->out.len + n + PREFIX_MAX)) {
        f->drops.lines += memchr(end, '\n', end_n) != NULL;
        f->drops.bytes += n + end_n;
        return;
    }
    begin = f->out.len;
    if (format_line(f, text, n, end_n ? end : "\n", end_n ? end_n : 1)) {
        f->out.len = begin;
        er_log_drop(&f->drops, text, n, ENOMEM);
        return;
    }
    if (wanted)
        er_logfile_write(f->opts.filtered, f->out.data + begin, f->out.len - begin, &f->drops);
    if (!f->opts.console)
        er_buf_clear(&f->out);
}

static void split(struct er_logfwd *f, const char *data, size_t n)
{
    if (!f->opts.console && !f->opts.filtered)
        return;
    if (er_linesplit_feed(&f->lines, data, n, on_line, f))
        er_log_drop(&f->drops, data, n, ENOMEM);
    flush_console(f);
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
        er_logfile_write(&f->file, chunk, (size_t)n, &f->drops);
        split(f, chunk, (size_t)n);
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
    f->fd = -1;
    f->opts = *opts;
    er_linesplit_init(&f->lines);
    er_buf_init(&f->out, OUT_MAX);
    er_buf_init(&f->tail, ER_LOGFWD_TAIL_MAX);
    f->prefix = strdup(opts->prefix ? opts->prefix : "");
    if (er_logfile_init(&f->file, opts->path, opts->max_size, opts->max_files) || !f->prefix)
        rc = er_error_set(err, -ENOMEM, "log stream: out of memory");
    if (!rc && pipe2(pair, O_CLOEXEC) < 0)
        rc = er_error_errno(err, "make a pipe for a log");
    if (!rc) {
        f->fd = pair[0];
        write_end = pair[1];
        /* Fewer turns between writer and us. Where the user's pipes are many it stays as it is. */
        (void)fcntl(f->fd, F_SETPIPE_SZ, PIPE_BYTES);
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
    er_linesplit_finish(&f->lines, on_line, f);
    flush_console(f);
    close_pipe(f);
    er_logfile_done(&f->file);
    er_linesplit_done(&f->lines);
    er_buf_done(&f->out);
    er_buf_done(&f->tail);
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

struct er_log_drops er_logfwd_take_drops(struct er_logfwd *f)
{
    struct er_log_drops drops = f->drops;

    f->drops = (struct er_log_drops){0};
    return drops;
}

const char *er_logfwd_path(const struct er_logfwd *f)
{
    return f->file.path;
}
