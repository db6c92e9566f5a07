#pragma once
/*
 * The agent's stdout and stderr as the place where workers' lines go: whole lines, never blocking
 * the loop, bounded; what does not fit is dropped and counted. Any thread may write
 * (agent/logpump.h); the loop's own takes care of a reader that is slow.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/loop.h"
#include "base/buf.h"

#define ER_CONSOLE_MAX (4u * 1024 * 1024) /* bytes waiting for a slow reader, per stream */

struct er_console_stream {
    pthread_mutex_t lock; /* of all that follows */
    int fd;
    bool terminal;       /* er_statusline_begin() and _end() go around what is written */
    bool shared;         /* both streams are one terminal */
    atomic_bool halfway; /* a line of it is there in part, and the rest waits: the other stream's
                            lines do not go in between */
    bool open_line;      /* what was written last does not end a line */
    bool direct;         /* one write(2) will do: it cannot make us wait, or is a regular file */
    struct er_buf queue; /* `sent` bytes at its beginning have been written */
    size_t sent;
    size_t promised;               /* room in the queue that was reserved */
    struct er_loop_source *source; /* while something waits */
    bool asked;                    /* the loop was woken to make `source` */
    bool broken;                   /* the reader has gone: everything is dropped */
    bool stalled;                  /* the reader took nothing for long: the last wait is short */
    struct er_console *console;
};

struct er_console {
    struct er_loop *loop;
    int wake_fd; /* something waits in a stream that nobody watches */
    struct er_loop_source *wake;
    struct er_console_stream streams[2]; /* stdout, stderr */
};

/* On failure er_console_done() is owed all the same. */
int er_console_init(struct er_console *console, struct er_loop *loop, struct er_error *err);
/* What waits goes to a reader that still reads: 2 s without a byte, or 30 s in all, end it;
 * `hurry`: half a second. Returns the bytes that it did not take. */
size_t er_console_done(struct er_console *console, bool hurry);
/* The same wait before the last words, so that what is lost can be told: what was not taken is
 * dropped, and counted in lines and bytes of each stream. True: something was. */
bool er_console_settle(struct er_console *console, bool hurry, uint64_t ret_lines[2],
                       uint64_t ret_bytes[2]);
/* Promises room for up to `n` bytes, and returns for how many: 0 when the reader has gone. */
size_t er_console_reserve(struct er_console *console, int stream, size_t n);
/* Writes `n` bytes of what was promised, and gives the rest of it back; `stream` 0 stdout, 1
 * stderr. False: dropped, for the reader has gone. */
bool er_console_commit(struct er_console *console, int stream, const char *text, size_t n,
                       size_t promised);
/* Both in one. False: dropped whole. */
bool er_console_write(struct er_console *console, int stream, const char *text, size_t n);
/* Has the reader gone? */
bool er_console_closed(struct er_console *console, int stream);
/* Whether log.console (all | none | "0,8-15" | "local:0,2") shows this rank. */
bool er_console_shows(const char *filter, int rank, int local_rank);
