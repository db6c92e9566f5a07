#include "agent/console.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/linesplit.h"
#include "agent/statusline.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"

#define IDLE_US     (2 * ER_US_PER_S)
#define FLUSH_US    (30 * ER_US_PER_S)
#define PIECE_BYTES 4096
#define HURRY_US    (500 * ER_US_PER_MS)

static bool is_direct(int fd)
{
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return false;
    return S_ISREG(st.st_mode) || (!S_ISSOCK(st.st_mode) && fcntl(fd, F_GETFL) & O_NONBLOCK);
}

static bool waits(const struct er_console_stream *s)
{
    return s->queue.len > s->sent;
}

static ssize_t write_direct(int fd, const char *text, size_t n)
{
    ssize_t done;

    do {
        done = write(fd, text, n);
    } while (done < 0 && errno == EINTR);
    if (done < 0)
        return errno == EAGAIN ? 0 : -errno;
    return done;
}

/* Bytes written, 0 when it takes nothing now, -errno. */
static ssize_t write_out(struct er_console_stream *s, const char *text, size_t n, uint64_t wait_us)
{
    ssize_t done = !s->direct || wait_us > 0 ? er_write_some(s->fd, text, n, wait_us)
                                             : write_direct(s->fd, text, n);

    if (done > 0)
        s->open_line = text[done - 1] != '\n';
    return done;
}

static void break_off(struct er_console_stream *s)
{
    s->broken = true;
    er_buf_clear(&s->queue);
    s->sent = 0;
}

/* Returns false when nothing more can go now; with `wait_us` that is for so long. */
static bool push(struct er_console_stream *s, uint64_t wait_us)
{
    size_t left = s->queue.len - s->sent;
    /* Not all at once where we wait: each piece that goes starts the wait anew. */
    size_t n = wait_us > 0 && left > PIECE_BYTES ? PIECE_BYTES : left;
    ssize_t done = n > 0 ? write_out(s, s->queue.data + s->sent, n, wait_us) : 0;

    if (done < 0)
        break_off(s);
    if (done <= 0)
        return false;
    s->sent += (size_t)done;
    /* Not with each piece: what waits would be moved a thousand times. */
    if (s->sent > s->queue.len / 2) {
        er_buf_consume(&s->queue, s->sent);
        s->sent = 0;
    }
    return true;
}

static struct er_console_stream *other(struct er_console_stream *s)
{
    return &s->console->streams[s == s->console->streams];
}

/* To write there. Takes the lock; false: the line at the bottom of the terminal is in the way, or
 * half a line of the other stream, and nothing can go. */
static bool enter(struct er_console_stream *s)
{
    bool is_free = !s->terminal || er_statusline_begin();

    pthread_mutex_lock(&s->lock);
    return is_free && !(s->shared && other(s)->halfway);
}

static void leave(struct er_console_stream *s)
{
    bool complete = !s->open_line && !(s->shared && other(s)->halfway);

    s->halfway = s->open_line && waits(s);
    pthread_mutex_unlock(&s->lock);
    if (s->terminal)
        er_statusline_end(complete);
}

static void on_writable(void *user, uint32_t events)
{
    struct er_console_stream *s = user;
    bool is_free = enter(s);

    while (is_free && push(s, 0))
        ;
    if (!waits(s)) {
        er_loop_source_free(s->source);
        s->source = NULL;
    }
    leave(s);
}

/* A regular file cannot be watched (-EPERM), but then nothing is ever left to wait. */
static void on_wake(void *user, uint32_t events)
{
    struct er_console *console = user;
    eventfd_t count;

    (void)eventfd_read(console->wake_fd, &count);
    for (int i = 0; i < 2; i++) {
        struct er_console_stream *s = &console->streams[i];

        pthread_mutex_lock(&s->lock);
        s->asked = false;
        if (waits(s) && !s->source)
            (void)er_loop_io(console->loop, s->fd, EPOLLOUT, ER_PRIORITY_IO, on_writable, s,
                             &s->source, NULL);
        pthread_mutex_unlock(&s->lock);
    }
}

static bool same_terminal(int one, int two)
{
    struct stat a, b;

    return one >= 0 && two >= 0 && isatty(one) && isatty(two) && fstat(one, &a) == 0 &&
           fstat(two, &b) == 0 && a.st_rdev == b.st_rdev;
}

int er_console_init(struct er_console *console, struct er_loop *loop, struct er_error *err)
{
    console->loop = loop;
    console->wake = NULL;
    for (int i = 0; i < 2; i++) {
        int fd = er_fd_own_output(i + 1);

        console->streams[i] = (struct er_console_stream){.fd = fd,
                                                         .terminal = fd >= 0 && isatty(fd),
                                                         .direct = is_direct(fd),
                                                         .broken = fd < 0,
                                                         .console = console};
        pthread_mutex_init(&console->streams[i].lock, NULL);
        er_buf_init(&console->streams[i].queue, ER_CONSOLE_MAX);
    }
    console->streams[0].shared = console->streams[1].shared =
        same_terminal(console->streams[0].fd, console->streams[1].fd);
    console->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (console->wake_fd < 0)
        return er_error_errno(err, "make an eventfd for the console");
    return er_loop_io(loop, console->wake_fd, EPOLLIN, ER_PRIORITY_IO, on_wake, console,
                      &console->wake, err);
}

size_t er_console_reserve(struct er_console *console, int stream, size_t n)
{
    struct er_console_stream *s = &console->streams[stream];
    size_t room;

    pthread_mutex_lock(&s->lock);
    room = s->broken ? 0 : s->queue.max - s->queue.len - s->promised;
    n = n < room ? n : room;
    s->promised += n;
    pthread_mutex_unlock(&s->lock);
    return n;
}

/* Straight from the caller's memory when nothing waits before it. */
static bool add(struct er_console_stream *s, const char *text, size_t n, bool is_free)
{
    ssize_t done = is_free && !s->broken && !waits(s) ? write_out(s, text, n, 0) : 0;

    if (done < 0)
        break_off(s);
    if (s->broken)
        return false;
    if ((size_t)done < n && er_buf_add(&s->queue, text + done, n - (size_t)done))
        return false;
    while (is_free && waits(s) && push(s, 0))
        ;
    if (waits(s) && !s->source && !s->asked)
        s->asked = eventfd_write(s->console->wake_fd, 1) == 0;
    return true;
}

bool er_console_commit(struct er_console *console, int stream, const char *text, size_t n,
                       size_t promised)
{
    struct er_console_stream *s = &console->streams[stream];
    bool kept = true;

    if (n > 0) {
        bool is_free = enter(s);

        s->promised -= promised;
        kept = add(s, text, n, is_free);
        leave(s);
    } else {
        pthread_mutex_lock(&s->lock);
        s->promised -= promised;
        pthread_mutex_unlock(&s->lock);
    }
    return kept;
}

bool er_console_write(struct er_console *console, int stream, const char *text, size_t n)
{
    size_t promised = er_console_reserve(console, stream, n);

    return er_console_commit(console, stream, text, promised == n ? n : 0, promised) &&
           promised == n;
}

bool er_console_closed(struct er_console *console, int stream)
{
    struct er_console_stream *s = &console->streams[stream];
    bool closed;

    pthread_mutex_lock(&s->lock);
    closed = s->broken;
    pthread_mutex_unlock(&s->lock);
    return closed;
}

/* Locked. */
static void flush(struct er_console_stream *s, uint64_t end_us)
{
    while (waits(s)) {
        uint64_t now_us = er_now_us(), left_us = end_us > now_us ? end_us - now_us : 0;
        uint64_t idle_us = s->stalled ? HURRY_US : IDLE_US;

        if (!push(s, left_us < idle_us ? left_us : idle_us))
            break;
    }
}

bool er_console_settle(struct er_console *console, bool hurry, uint64_t ret_lines[2],
                       uint64_t ret_bytes[2])
{
    uint64_t end_us = er_now_us() + (hurry ? HURRY_US : FLUSH_US);
    int first = console->streams[1].halfway; /* the rest of its line */
    bool lost = false;

    for (int k = 0; k < 2; k++) {
        int i = k ^ first;
        struct er_console_stream *s = &console->streams[i];

        pthread_mutex_lock(&s->lock);
        flush(s, end_us);
        ret_bytes[i] = s->queue.len - s->sent;
        ret_lines[i] = ret_bytes[i] ? er_linesplit_count(s->queue.data + s->sent, ret_bytes[i]) : 0;
        s->stalled = ret_bytes[i] > 0;
        lost |= s->stalled;
        er_buf_clear(&s->queue);
        s->sent = 0;
        s->halfway = false;
        pthread_mutex_unlock(&s->lock);
    }
    return lost;
}

size_t er_console_done(struct er_console *console, bool hurry)
{
    size_t lost = 0;
    uint64_t end_us = er_now_us() + (hurry ? HURRY_US : FLUSH_US);
    int first = console->streams[1].halfway;

    for (int k = 0; k < 2; k++) {
        struct er_console_stream *s = &console->streams[k ^ first];

        flush(s, end_us);
        lost += s->queue.len - s->sent;
        er_loop_source_free(s->source);
        s->source = NULL;
        er_buf_done(&s->queue);
        er_cleanup_fd(&s->fd);
        pthread_mutex_destroy(&s->lock);
    }
    er_loop_source_free(console->wake);
    er_cleanup_fd(&console->wake_fd);
    return lost;
}

bool er_console_shows(const char *filter, int rank, int local_rank)
{
    const char *at = filter;
    long wanted = rank;

    if (!filter || strcmp(filter, "all") == 0)
        return true;
    if (strncmp(at, "local:", strlen("local:")) == 0) {
        at += strlen("local:");
        wanted = local_rank;
    }
    while (*at) {
        char *end;
        long low = strtol(at, &end, 10), high = low;

        if (end == at)
            return false; /* "none"; the configuration has refused anything else */
        if (*end == '-')
            high = strtol(end + 1, &end, 10);
        if (wanted >= low && wanted <= high)
            return true;
        at = *end == ',' ? end + 1 : end + strlen(end);
    }
    return false;
}
