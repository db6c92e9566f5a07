#pragma once
/*
 * A background thread with a short queue. What it does may hang in the kernel (storage that does
 * not answer): every wait has a deadline, and whoever is tired of waiting leaves it behind; the
 * thread then ends by itself when the kernel lets it go.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define ER_WORKER_QUEUE_MAX 4

typedef void (*er_work_fn)(void *arg);

struct er_ckpt_worker; /* opaque */

/* All signals are blocked in the thread: they belong to the program's own. `nice`: added to the
 * thread's niceness. */
int er_ckpt_worker_new(struct er_ckpt_worker **ret, const char *name, int nice,
                       struct er_error *err);
/* Runs fn(arg) after what waits already. -EAGAIN: ER_WORKER_QUEUE_MAX wait. */
int er_ckpt_worker_run(struct er_ckpt_worker *worker, er_work_fn fn, void *arg);
/* True: nothing runs and nothing waits. */
bool er_ckpt_worker_wait(struct er_ckpt_worker *worker, uint64_t deadline_us);
/* Waits for what is queued until the deadline; false: the thread was left behind (it still does
 * all that was queued, then frees itself). NULL is fine. */
bool er_ckpt_worker_free(struct er_ckpt_worker *worker, uint64_t deadline_us);
