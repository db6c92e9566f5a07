#include "agent/console.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"

#define IDLE_US     (2 * ER_US_PER_S)
#define FLUSH_US    (30 * ER_US_PER_S)
#define PIECE_BYTES 4096
#define HURRY_US    (500 * ER_US_PER_MS)

void er_console_init(struct er_console *console, struct er_loop *loop)
{
    console->loop = loop;
    for (int i = 0; i < 2; i++) {
        int fd = er_fd_own_output(i + 1);

        console->streams[i] =
            (struct er_console_stream){.fd = fd, .broken = fd < 0, .console = console};
        er_buf_init(&console->streams[i].queue, ER_CONSOLE_MAX);
    }
}

static bool waits(const struct er_console_stream *s)
{
    return s->queue.len > s->sent;
}

/* Returns false when nothing more can go now; with `wait_us` that is for so long. */
static bool push(struct er_console_stream *s, uint64_t wait_us)
{
    size_t left = s->queue.len - s->sent;
    /* Not all at once where we wait: each piece that goes starts the wait anew. */
    size_t n = wait_us > 0 && left > PIECE_BYTES ? PIECE_BYTES : left;
    ssize_t done = n > 0 ? er_write_some(s->fd, s->queue.data + s->sent, n, wait_us) : 0;

    if (done == 0)
        return false;
    if (done < 0) {
        s->broken = true;
        er_buf_clear(&s->queue);
        s->sent = 0;
        return false;
    }
    s->sent += (size_t)done;
    /* Not with each piece: what waits would be moved a thousand times. */
    if (s->sent > s->queue.len / 2) {
        er_buf_consume(&s->queue, s->sent);
        s->sent = 0;
    }
    return true;
}

static void on_writable(void *user, uint32_t events)
{
    struct er_console_stream *s = user;

    while (push(s, 0))
        ;
    if (!waits(s)) {
        er_loop_source_free(s->source);
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
    if (waits(s) && !s->source)
        (void)er_loop_io(console->loop, s->fd, EPOLLOUT, ER_PRIORITY_IO, on_writable, s, &s->source,
                         NULL);
    return true;
}

bool er_console_closed(const struct er_console *console, int stream)
{
    return console->streams[stream].broken;
}

bool er_console_is_full(const struct er_console *console, int stream, size_t n)
{
    const struct er_console_stream *s = &console->streams[stream];

    return s->broken || s->queue.len + n > s->queue.max;
}

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
    bool lost = false;

    for (int i = 0; i < 2; i++) {
        struct er_console_stream *s = &console->streams[i];

        flush(s, end_us);
        ret_lines[i] = 0;
        ret_bytes[i] = s->queue.len - s->sent;
        for (size_t at = s->sent; at < s->queue.len; at++)
            ret_lines[i] += s->queue.data[at] == '\n';
        s->stalled = ret_bytes[i] > 0;
        lost |= s->stalled;
        er_buf_clear(&s->queue);
        s->sent = 0;
    }
    return lost;
}

size_t er_console_done(struct er_console *console, bool hurry)
{
    size_t lost = 0;
    uint64_t end_us = er_now_us() + (hurry ? HURRY_US : FLUSH_US);

    for (int i = 0; i < 2; i++) {
        struct er_console_stream *s = &console->streams[i];

        flush(s, end_us);
        lost += s->queue.len - s->sent;
        er_loop_source_free(s->source);
        s->source = NULL;
        er_buf_done(&s->queue);
        er_cleanup_fd(&s->fd);
    }
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
