#pragma once
/*
 * The threads that carry workers' output: one for each stream, at most ER_LOGPUMP_THREADS (also on
 * one CPU: a file that stands still must not hold up all others), started as streams come. They
 * keep bulk copying, and a slow disk under it, away from the agent's one loop, and are all that
 * runs beside it.
 *
 * A stream belongs to one thread at a time: to one of the pump's while it is in the stream's
 * function, and to the loop's between er_logpump_hold() and er_logpump_release(). So what is in a
 * stream needs no lock; what several streams share (console, filtered log files) has its own.
 */
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

#define ER_LOGPUMP_THREADS 4
#define ER_LOGPUMP_IN      (128u * 1024)
#define ER_LOGPUMP_OUT     (256u * 1024)

/* What a thread works with; its content lasts for one call of a stream's function. */
struct er_logpump_desk {
    char *in, *out; /* ER_LOGPUMP_IN, ER_LOGPUMP_OUT bytes */
    int side[2];    /* an empty pipe, or -1 both where there are no more to be had */
};

struct er_logpump;
struct er_logpump_stream;

/* Takes some of what there is to read. False: that was all, it ended. */
typedef bool (*er_logpump_fn)(void *user, struct er_logpump_desk *desk);

/* Starts nothing yet. */
int er_logpump_new(struct er_logpump **ret, struct er_error *err);
/* Ends the threads. All streams have been removed. NULL is fine. */
void er_logpump_free(struct er_logpump *pump);

/* The functions below are for the loop's thread alone. `fd` stays the caller's, and open until
 * er_logpump_remove(). */
int er_logpump_add(struct er_logpump *pump, int fd, er_logpump_fn fn, void *user,
                   struct er_logpump_stream **ret, struct er_error *err);
/* Keeps the pump's threads out, waiting for the one that is in; returns the caller's own desk. */
struct er_logpump_desk *er_logpump_hold(struct er_logpump_stream *stream);
/* The same without waiting; false: a thread is in it, which may take as long as its file. */
bool er_logpump_try_hold(struct er_logpump_stream *stream);
void er_logpump_release(struct er_logpump_stream *stream);
/* Held. The stream is forgotten. */
void er_logpump_remove(struct er_logpump_stream *stream);
