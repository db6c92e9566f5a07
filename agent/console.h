#pragma once
/*
 * The agent's stdout and stderr as the place where workers' lines go: whole lines, never blocking
 * the loop, bounded; what does not fit is dropped and counted.
 */
#include <stdbool.h>
#include <stdint.h>

#include "agent/loop.h"
#include "base/buf.h"

#define ER_CONSOLE_MAX (4u * 1024 * 1024) /* bytes waiting for a slow reader, per stream */

struct er_console_stream {
    int fd;
    struct er_buf queue; /* `sent` bytes at its beginning have been written */
    size_t sent;
    struct er_loop_source *source; /* while something waits */
    bool broken;                   /* the reader has gone: everything is dropped */
    bool stalled;                  /* the reader took nothing for long: the last wait is short */
    struct er_console *console;
};

struct er_console {
    struct er_loop *loop;
    struct er_console_stream streams[2]; /* stdout, stderr */
};

void er_console_init(struct er_console *console, struct er_loop *loop);
/* What waits goes to a reader that still reads: 2 s without a byte, or 30 s in all, end it;
 * `hurry`: half a second. Returns the bytes that it did not take. */
size_t er_console_done(struct er_console *console, bool hurry);
/* The same wait before the last words, so that what is lost can be told: what was not taken is
 * dropped, and counted in lines and bytes of each stream. True: something was. */
bool er_console_settle(struct er_console *console, bool hurry, uint64_t ret_lines[2],
                       uint64_t ret_bytes[2]);
/* Would a text of `n` bytes be dropped? */
bool er_console_is_full(const struct er_console *console, int stream, size_t n);
/* `stream` 0 stdout, 1 stderr. False: dropped whole. */
bool er_console_write(struct er_console *console, int stream, const char *text, size_t n);
/* Has the reader gone? */
bool er_console_closed(const struct er_console *console, int stream);
/* Whether log.console (all | none | "0,8-15" | "local:0,2") shows this rank. */
bool er_console_shows(const char *filter, int rank, int local_rank);
