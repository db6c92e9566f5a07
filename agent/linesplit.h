#pragma once
/*
 * A stream of bytes into lines, as they come: a line ends with `\n`, `\r` or `\r\n`, the two of
 * which may come apart. Pure; the part of a line that waits for its end is bounded.
 *
 * Where nobody wants the lines for a while, er_linesplit_skip() takes the bytes instead, at the
 * speed of memory, and er_linesplit_resume() finds where a line begins again.
 */
#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

#define ER_LINE_MAX (64u * 1024) /* a longer line is given in pieces of this size */

struct er_linesplit {
    struct er_buf part; /* the line that waits for its end */
    bool after_cr;      /* the last line ended in '\r': a '\n' right behind it belongs to it */
    bool mid;           /* what was skipped last was no end of a line */
};

/* `end` is "\n", "\r", "\r\n" or, where a long line was cut, "". A lone '\n' behind a '\r' that was
 * given already comes as a line with `text` NULL. Where `text` was not put together from several
 * pieces, `end` lies right behind it. */
typedef void (*er_line_fn)(void *user, const char *text, size_t n, const char *end, size_t end_n);

void er_linesplit_init(struct er_linesplit *s);
void er_linesplit_done(struct er_linesplit *s);
/* Gives every line that `data` ends. -ENOMEM: the rest of `data` was not taken. */
int er_linesplit_feed(struct er_linesplit *s, const char *data, size_t n, er_line_fn fn,
                      void *user);
/* Gives the unfinished line with the end "", if there is one. */
void er_linesplit_finish(struct er_linesplit *s, er_line_fn fn, void *user);

/* Takes `data` without giving lines, and forgets the unfinished line, whose bytes it returns. */
size_t er_linesplit_skip(struct er_linesplit *s, const char *data, size_t n);
/* Behind what was skipped (or fed): how many bytes of `data` belong to a line that began earlier,
 * and are to be skipped before the rest may be fed; n where no line begins. */
size_t er_linesplit_resume(const struct er_linesplit *s, const char *data, size_t n);
/* How many '\n' there are. */
size_t er_linesplit_count(const char *data, size_t n);
