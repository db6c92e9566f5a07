#pragma once
/*
 * The agent's event loop: sd-event behind a few functions; nothing else in the tree knows it. One
 * thread. Deadlines are not sources: the owner asks its parts for the next one and gives it to
 * er_loop_run().
 */
#include <signal.h>
#include <stdint.h>

#include "base/error.h"

struct er_loop;
struct er_loop_source;

/* Lower runs first: a signal that the agent got is seen before the deaths it may have caused. */
enum er_priority { ER_PRIORITY_SIGNAL = -10, ER_PRIORITY_CHILD = -5, ER_PRIORITY_IO = 0 };

typedef void (*er_io_fn)(void *user, uint32_t epoll_events);
typedef void (*er_signal_fn)(void *user, int sig);

int er_loop_new(struct er_loop **ret, struct er_error *err);
void er_loop_free(struct er_loop *loop);

/* Level-triggered. The descriptor stays the caller's, who frees the source before closing it.
 * -EPERM: the descriptor cannot be polled (a regular file). */
int er_loop_io(struct er_loop *loop, int fd, uint32_t epoll_events, enum er_priority priority,
               er_io_fn fn, void *user, struct er_loop_source **ret, struct er_error *err);
int er_loop_source_set_events(struct er_loop_source *source, uint32_t epoll_events);
void er_loop_source_free(
    struct er_loop_source *source); /* NULL is fine; also from its own callback */
/* The signal must be blocked. The source lives as long as the loop. */
int er_loop_signal(struct er_loop *loop, int sig, er_signal_fn fn, void *user,
                   struct er_error *err);

/* Waits for one event until `deadline_us` (ER_FOREVER: no limit) and dispatches it. */
int er_loop_run(struct er_loop *loop, uint64_t now_us, uint64_t deadline_us, struct er_error *err);
