#include "agent/logfwd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/linesplit.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"

#define PIPE_BYTES (512u * 1024)
#define TURN_MAX   8  /* chunks in a row, then the others */
#define DRAIN_MAX  64 /* chunks: a writer that never stops must not hold us */

/* Lines on their way to the console, in the memory of whose turn it is. */
struct batch {
    char *data;
    size_t len, room;              /* room: what the console has promised, at most ER_LOGPUMP_OUT */
    char time[ER_RFC3339_MAX + 1]; /* one for all of the batch's chunk; "": not needed yet */
};

struct er_logfwd {
    int fd;
    struct er_logpump_stream *stream;
    struct er_logfwd_opts opts;
    char *prefix; /* owned */
    size_t prefix_n;
    struct er_logfile file;
    struct er_linesplit lines; /* for the console and the filters */
    bool skipping;             /* the console takes nothing: lines are counted, no more */
    bool ended;
    struct batch batch;
    struct er_buf tail;
    char *tail_text; /* owned; what er_logfwd_tail() gave */
    struct er_log_drops drops;
};

static bool is_wanted(const struct er_logfwd *f, const char *text, size_t n)
{
    for (size_t i = 0; f->opts.filtered && text && i < f->opts.filters->n; i++) {
        const char *filter = f->opts.filters->items[i];

        if (memmem(text, n, filter, strlen(filter)))
            return true;
    }
    return false;
}

static void flush(struct er_logfwd *f)
{
    struct batch *b = &f->batch;

    if (b->room > 0 &&
        !er_console_commit(f->opts.console, f->opts.stream, b->data, b->len, b->room))
        er_log_drop(&f->drops, b->data, b->len, 0);
    b->len = b->room = 0;
}

/* Does the console take `n` bytes more? */
static bool has_room(struct er_logfwd *f, size_t n)
{
    struct batch *b = &f->batch;

    if (!f->opts.console)
        return false;
    if (b->len + n > b->room) {
        flush(f);
        b->room = er_console_reserve(f->opts.console, f->opts.stream, ER_LOGPUMP_OUT);
    }
    return b->len + n <= b->room;
}

static size_t put(char *at, const char *data, size_t n)
{
    if (n)
        memcpy(at, data, n);
    return n;
}

/* Time, prefix, text, end. A progress bar starts with a bare '\r': nothing to put a prefix to. */
static size_t format_line(struct er_logfwd *f, char *at, const char *text, size_t n,
                          const char *end, size_t end_n)
{
    size_t used = 0;

    if (text && (n || end[0] != '\r')) {
        if (f->opts.timestamps && !f->batch.time[0]) {
            er_rfc3339(er_wall_us(), f->batch.time);
            strcat(f->batch.time, " ");
        }
        used += put(at, f->batch.time, strlen(f->batch.time));
        used += put(at + used, f->prefix, f->prefix_n);
        used += put(at + used, text, n);
    }
    return used + put(at + used, end, end_n);
}

static void on_line(void *user, const char *text, size_t n, const char *end, size_t end_n)
{
    struct er_logfwd *f = user;
    size_t most = sizeof(f->batch.time) + f->prefix_n + n + end_n + 1, used;
    bool wanted = is_wanted(f, text, n), shown;

    if (most > ER_LOGPUMP_OUT) { /* no prefix is as long as that */
        er_log_drop(&f->drops, text, n, ENOBUFS);
        return;
    }
    shown = has_room(f, most);
    if (!shown && f->opts.console) {
        f->skipping = true;
        f->drops.lines += end_n > 0 && end[end_n - 1] == '\n';
        f->drops.bytes += n + end_n;
    }
    if (!shown && !wanted)
        return;
    used = format_line(f, f->batch.data + f->batch.len, text, n, end_n ? end : "\n",
                       end_n ? end_n : 1);
    if (wanted)
        er_logfile_write(f->opts.filtered, f->batch.data + f->batch.len, used, &f->drops);
    if (shown)
        f->batch.len += used;
}

/* A reader that stands still must not cost the workers the formatting. Returns the bytes that were
 * counted as dropped: all, or up to where a line begins once there is room again. */
static size_t skip(struct er_logfwd *f, const char *data, size_t n)
{
    size_t skipped = has_room(f, ER_LOGPUMP_OUT) ? er_linesplit_resume(&f->lines, data, n) : n;

    if (skipped > 0) {
        f->drops.bytes += er_linesplit_skip(&f->lines, data, skipped) + skipped;
        f->drops.lines += er_linesplit_count(data, skipped);
    }
    f->skipping = skipped == n;
    return skipped;
}

static void split(struct er_logfwd *f, char *out, const char *data, size_t n)
{
    size_t skipped = 0;

    if (!f->opts.console && !f->opts.filtered)
        return;
    f->batch = (struct batch){.data = out};
    if (f->skipping && !f->opts.filtered)
        skipped = skip(f, data, n);
    if (er_linesplit_feed(&f->lines, data + skipped, n - skipped, on_line, f))
        er_log_drop(&f->drops, data + skipped, n - skipped, ENOMEM);
    flush(f);
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

static ssize_t copy_chunk(struct er_logfwd *f, struct er_logpump_desk *desk)
{
    ssize_t n = read(f->fd, desk->in, ER_LOGPUMP_IN);

    if (n > 0) {
        if (f->opts.lines)
            atomic_fetch_add(f->opts.lines, er_linesplit_count(desk->in, (size_t)n));
        er_logfile_write(&f->file, desk->in, (size_t)n, &f->drops);
        split(f, desk->out, desk->in, (size_t)n);
        if (f->opts.tail)
            keep_tail(f, desk->in, (size_t)n);
    }
    return n < 0 ? -errno : n;
}

/* Bytes taken; 0 at end of file, -EAGAIN when nothing is there. */
static ssize_t take_chunk(struct er_logfwd *f, struct er_logpump_desk *desk)
{
    ssize_t n = -EOPNOTSUPP;

    if (f->ended)
        return 0;
    if (!f->opts.console && !f->opts.filtered && !f->opts.tail && !f->opts.lines)
        n = er_logfile_splice(&f->file, f->fd, desk->side, &f->drops);
    if (n == -EOPNOTSUPP)
        n = copy_chunk(f, desk);
    f->ended = n == 0;
    return n;
}

static bool on_readable(void *user, struct er_logpump_desk *desk)
{
    struct er_logfwd *f = user;

    for (int i = 0; i < TURN_MAX && take_chunk(f, desk) > 0; i++)
        ;
    return !f->ended;
}

static int open_pipe(struct er_logfwd *f, int *ret_write_end, struct er_error *err)
{
    int pair[2], rc;

    if (pipe2(pair, O_CLOEXEC) < 0)
        return er_error_errno(err, "make a pipe for a log");
    f->fd = pair[0];
    *ret_write_end = pair[1];
    /* Fewer turns between writer and us. Where the user's pipes are many it stays as it is. */
    (void)fcntl(f->fd, F_SETPIPE_SZ, PIPE_BYTES);
    rc = er_fd_nonblock(f->fd);
    return rc ? er_error_set(err, rc, "make a pipe non-blocking: %s", er_error_name(rc)) : 0;
}

int er_logfwd_new(struct er_logfwd **ret, int *ret_fd, struct er_logpump *pump,
                  const struct er_logfwd_opts *opts, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int write_end = -1;
    struct er_logfwd *f = calloc(1, sizeof(*f));
    int rc = 0;

    if (!f)
        return er_error_set(err, -ENOMEM, "log stream: out of memory");
    f->fd = -1;
    f->opts = *opts;
    er_linesplit_init(&f->lines);
    er_buf_init(&f->tail, ER_LOGFWD_TAIL_MAX);
    f->prefix = strdup(opts->prefix ? opts->prefix : "");
    if (er_logfile_init(&f->file, opts->path, opts->max_size, opts->max_files) || !f->prefix)
        rc = er_error_set(err, -ENOMEM, "log stream: out of memory");
    if (!rc) {
        f->prefix_n = strlen(f->prefix);
        rc = open_pipe(f, &write_end, err);
    }
    if (!rc)
        rc = er_logpump_add(pump, f->fd, on_readable, f, &f->stream, err);
    if (rc) {
        er_logfwd_free(f);
        return rc;
    }
    *ret_fd = ER_TAKE_FD(write_end);
    *ret = f;
    return 0;
}

static void drain_held(struct er_logfwd *f, struct er_logpump_desk *desk)
{
    for (int i = 0; i < DRAIN_MAX && take_chunk(f, desk) > 0; i++)
        ;
}

void er_logfwd_drain(struct er_logfwd *f)
{
    if (!f)
        return;
    drain_held(f, er_logpump_hold(f->stream));
    er_logpump_release(f->stream);
}

static void end_held(struct er_logfwd *f, struct er_logpump_desk *desk)
{
    drain_held(f, desk);
    f->batch = (struct batch){.data = desk->out};
    er_linesplit_finish(&f->lines, on_line, f);
    flush(f);
}

void er_logfwd_end(struct er_logfwd *f)
{
    if (!f)
        return;
    end_held(f, er_logpump_hold(f->stream));
    er_logpump_release(f->stream);
}

void er_logfwd_show(struct er_logfwd *f, struct er_console *console, bool timestamps)
{
    if (!f)
        return;
    er_logpump_hold(f->stream);
    if (!f->opts.console && console && !f->opts.filtered) { /* what was there went by unread */
        er_linesplit_done(&f->lines);
        er_linesplit_init(&f->lines);
        f->skipping = false;
    }
    f->opts.console = console;
    f->opts.timestamps = timestamps;
    er_logpump_release(f->stream);
}

static void finish(struct er_logfwd *f)
{
    end_held(f, er_logpump_hold(f->stream));
    er_logpump_remove(f->stream);
}

void er_logfwd_free(struct er_logfwd *f)
{
    if (!f)
        return;
    if (f->stream)
        finish(f);
    er_cleanup_fd(&f->fd);
    er_logfile_done(&f->file);
    er_linesplit_done(&f->lines);
    er_buf_done(&f->tail);
    free(f->tail_text);
    free(f->prefix);
    free(f);
}

/* The last lines of `tail`. */
static const char *last_lines(const struct er_buf *tail)
{
    const char *text = er_buf_str(tail), *at = text + tail->len;
    int lines = 0;

    if (at > text && at[-1] == '\n')
        at--;
    for (; at > text; at--) {
        if (at[-1] == '\n' && ++lines == ER_LOGFWD_TAIL_LINES)
            break;
    }
    /* The oldest line may have lost its beginning when the buffer overflowed. */
    if (at == text && tail->len == ER_LOGFWD_TAIL_MAX && strchr(at, '\n'))
        at = strchr(at, '\n') + 1;
    return at;
}

const char *er_logfwd_tail(struct er_logfwd *f)
{
    er_logpump_hold(f->stream);
    free(f->tail_text);
    f->tail_text = strdup(last_lines(&f->tail));
    er_logpump_release(f->stream);
    return f->tail_text ? f->tail_text : "";
}

struct er_log_drops er_logfwd_take_drops(struct er_logfwd *f)
{
    struct er_log_drops drops;

    if (!er_logpump_try_hold(f->stream))
        return (struct er_log_drops){0};
    drops = f->drops;
    f->drops = (struct er_log_drops){0};
    er_logpump_release(f->stream);
    return drops;
}

const char *er_logfwd_path(const struct er_logfwd *f)
{
    return f->file.path;
}
