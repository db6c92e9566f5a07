#pragma once
/*
 * One output stream of one worker: pipe -> file (rotated) and console (whole lines behind a
 * prefix), carried by the threads of agent/logpump.h. The file gets the bytes as they come, `\r`
 * and all; the console gets a line when it is finished by `\n` or `\r` (agent/linesplit.h), the
 * unfinished last one at the end. Never blocks the worker or the loop for long: what cannot be
 * written (disk full, console reader too slow) is dropped and counted.
 *
 * The least is done that the stream asks for:
 *
 *   file alone, no tail               bytes go from pipe to file unread (er_logfile_splice)
 *   console that takes nothing        one copy to the file, ends of lines counted
 *   console                           lines put behind their prefix, one write a chunk
 *   filters                           every line looked at
 */
#include <stdbool.h>
#include <stdint.h>

#include "agent/config.h"
#include "agent/console.h"
#include "agent/logfile.h"
#include "agent/logpump.h"

#define ER_LOGFWD_TAIL_MAX   4096u /* kept for the summary */
#define ER_LOGFWD_TAIL_LINES 20

struct er_logfwd_opts {
    const char *path;           /* log file; NULL: none */
    uint64_t max_size;          /* rotate there; UINT64_MAX: never */
    uint32_t max_files;         /* per stream, the current one included */
    struct er_console *console; /* NULL: not to the console */
    int stream;                 /* 0 stdout, 1 stderr */
    const char *prefix;         /* copied */
    bool timestamps;
    bool tail; /* keep the last lines for er_logfwd_tail() */
    /* Where every line is counted, from any thread, which costs a look at every byte; NULL: not. */
    _Atomic uint64_t *lines;
    /* Lines with one of the `filters` in them are copied there, with their prefix; NULL: none.
     * Borrowed for the stream's life. */
    struct er_logfile *filtered;
    const struct er_strlist *filters;
};

struct er_logfwd;

/* Makes the pipe; its write end, for the child, is returned through ret_fd and belongs to the
 * caller. A log file that cannot be opened loses lines as a full disk does. */
int er_logfwd_new(struct er_logfwd **ret, int *ret_fd, struct er_logpump *pump,
                  const struct er_logfwd_opts *opts, struct er_error *err);
/* Reads what is there, writes the unfinished line, closes. NULL is fine. */
void er_logfwd_free(struct er_logfwd *fwd);
/* Reads what is there now, so that the tail is complete when a worker has ended. */
void er_logfwd_drain(struct er_logfwd *fwd);
/* The same when nobody writes any more: an unfinished line is a line, too. */
void er_logfwd_end(struct er_logfwd *fwd);
/* From here on the console gets the lines, or (NULL) does not; the first one may lack its
 * beginning.
 */
void er_logfwd_show(struct er_logfwd *fwd, struct er_console *console, bool timestamps);
/* Last lines, at most ER_LOGFWD_TAIL_LINES, of what was read until the last er_logfwd_drain();
 * valid until the next call on `fwd`; "" when none. */
const char *er_logfwd_tail(struct er_logfwd *fwd);
/* The log file; NULL: none. */
const char *er_logfwd_path(const struct er_logfwd *fwd);
/* What was dropped since the last call; nothing yet of a stream whose file is being written to. */
struct er_log_drops er_logfwd_take_drops(struct er_logfwd *fwd);
