#include "agent/console.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"

#define FLUSH_MS 5000

void er_console_init(struct er_console *console, struct er_loop *loop)
{
    console->loop = loop;
    for (int i = 0; i < 2; i++) {
        console->streams[i] = (struct er_console_stream){.fd = i + 1, .console = console};
        er_buf_init(&console->streams[i].queue, ER_CONSOLE_MAX);
    }
}

/* The descriptor is shared with our caller, so it cannot be made non-blocking; but a write of at
 * most PIPE_BUF bytes after POLLOUT does not wait. Returns false when nothing more can go now. */
static bool push(struct er_console_stream *s, int wait_ms)
{
    struct pollfd p = {.fd = s->fd, .events = POLLOUT};
    size_t n = s->queue.len < PIPE_BUF ? s->queue.len : PIPE_BUF;
    ssize_t done;

    if (n == 0 || poll(&p, 1, wait_ms) != 1)
        return false;
    done = write(s->fd, s->queue.data, n);
    if (done < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (done < 0) {
        s->broken = true;
        er_buf_clear(&s->queue);
        return false;
    }
    er_buf_consume(&s->queue, (size_t)done);
    return true;
}

static void on_writable(void *user, uint32_t events)
{
    struct er_console_stream *s = user;

    while (push(s, 0))
        ;
    if (s->queue.len == 0) {
        er_source_free(s->source);
        s->source = NULL;
    }
}

bool er_console_write(struct er_console *console, int stream, const char *text, size_t n)
{
    struct er_console_stream *s = &console->streams[stream];

    if (s->broken || er_buf_add(&s->queue, text, n))
        return false;
    while (push(s, 0))
        ;
    /* A regular file cannot be watched (-EPERM), but then push() never leaves anything. */
    if (s->queue.len > 0 && !s->source)
        (void)er_loop_io(console->loop, s->fd, EPOLLOUT, ER_PRIORITY_IO, on_writable, s, &s->source,
                         NULL);
    return true;
}

void er_console_done(struct er_console *console)
{
    uint64_t deadline_us = er_now_us() + FLUSH_MS * ER_US_PER_MS;

    for (int i = 0; i < 2; i++) {
        struct er_console_stream *s = &console->streams[i];

        while (s->queue.len > 0 && push(s, er_poll_ms(er_now_us(), deadline_us)))
            ;
        er_source_free(s->source);
        s->source = NULL;
        er_buf_done(&s->queue);
    }
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
