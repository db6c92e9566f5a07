#pragma once
/*
 * One line at the bottom of the terminal that says how the job does, below the workers' lines and
 * ours. There is one a process, as there is one terminal. Whoever writes to the terminal does it
 * between begin and end, so that the line is out of the way meanwhile; it is not drawn while an
 * unfinished line (a progress bar) stands there, nor while another job of the shell's has the
 * terminal (`elastic-run ... &`, Ctrl-Z and bg).
 *
 * Only on stderr, when that is a terminal that can do it; without colour where NO_COLOR is set.
 * What it says: agent_statusline.c.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define ER_STATUSLINE_MAX 256

/* How fast steps are made, and when the line is due again. */
struct er_statusline_pace {
    uint64_t next_us;        /* ER_FOREVER: there is no line */
    uint64_t since_us, step; /* counted from there; 0: not yet */
    double rate;             /* steps a second; 0: not known */
};

/* False: no such terminal (not one, TERM unset or dumb), and nothing else here does anything.
 * `job`: the process of which the terminal's shell knows. */
bool er_statusline_open(int fd, pid_t job);
/* Erased for good. */
void er_statusline_close(void);
/* What it says from now on; "": nothing. Control characters are left out. */
void er_statusline_set(const char *text);

/* Any thread. False: the terminal takes nothing, and the line stands where something would be
 * written now; end is owed all the same. `line_is_complete`: what was written, up to now, ends one.
 */
bool er_statusline_begin(void);
void er_statusline_end(bool line_is_complete);
/* er_statusline_begin() for er_log_around(): a line of the log is written in any case. */
void er_statusline_around_log(void);
