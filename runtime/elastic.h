#pragma once
/*
 * libelastic: what a worker started by elastic-run sees of its job. Depends on the C library only.
 *
 * One handle per process and one thread per handle, except er_notice(), er_progress() and
 * er_progress_figures(), which any thread may call. What they are about, enum er_notice and enum
 * er_phase, is in base/notice.h. Without an agent (a program run by hand) er_open() gives a world
 * of one and everything still works. Results: 0 done, positive as documented, negative failed
 * (-errno or ER_E_*) with the text in `err`.
 */
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/notice.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ER_API __attribute__((visibility("default")))

struct er_ctx; /* opaque */

/* The world of the current generation. Strings are owned by the context and valid until er_close().
 */
struct er_world {
    int rank, size;             /* 0 .. size-1; contiguous per node */
    int local_rank, local_size; /* on this node */
    int node_rank, nnodes;
    uint64_t generation; /* only grows within a job; 0 without an agent */
    uint32_t restarts;   /* counted restarts of the whole job */
    const char *job, *run, *node_id;
    const char *checkpoint_dir; /* "" when the job has none */
    /* Steps whose samples the job leaves out, ascending: workers have failed in them again and
     * again (restart.poison_step). The same on all ranks; grows from generation to generation. */
    const uint64_t *skip_steps;
    size_t skip_steps_n;
};

/* Exit codes of a worker that its agent understands; any other is a failure that a restart may
 * mend. */
enum er_worker_exit {
    ER_WORKER_EXIT_CHECKPOINTS = 74, /* checkpoints failed too often: the job ends, run it again */
    ER_WORKER_EXIT_DEVICE_LOST = 85, /* the GPU's context is gone (runtime/device.h) */
    ER_WORKER_EXIT_STUCK = 86,       /* aborting a GPU communicator did not end in time */
    ER_WORKER_EXIT_FATAL = 93 /* restarting cannot help (restart.fatal_exit_codes' default) */
};

/* Join the agent named by the environment. Blocks for at most 10 s: then -ETIMEDOUT. A set but
 * unreachable ELASTIC_SOCKET is an error, never silently a world of one. ER_E_PROTOCOL: the agent
 * speaks another version. */
ER_API int er_open(struct er_ctx **ret, struct er_error *err);
/* Take leave of the agent and free the context, which must not be used again; NULL is fine. */
ER_API void er_close(struct er_ctx *ctx);
/* Valid until er_close(); er_rejoin() changes what it holds. */
ER_API const struct er_world *er_world(const struct er_ctx *ctx);

#define ER_KEY_MAX         512         /* bytes of a key or the name of a barrier */
#define ER_VALUE_MAX       (48 * 1024) /* bytes of a value */
#define ER_BARRIERS_MAX    1024        /* names of barriers in one generation, on each node */
#define ER_LOCAL_KEYS_MAX  16384       /* without an agent: keys, ... */
#define ER_LOCAL_BYTES_MAX (64u << 20) /* ... and bytes of keys and values */

/* Key-value store of the job's workers, fenced to the generation: keys of another generation are
 * never seen, writes of a superseded one fail with ER_E_STALE. Keys: 1..ER_KEY_MAX bytes without
 * NUL (else -EINVAL); values at most ER_VALUE_MAX bytes (else -EMSGSIZE). ER_E_LIMIT: the store is
 * full; ER_E_PEER_LOST: the agent is gone; -ETIMEDOUT: it does not answer. */
ER_API int er_kv_put(struct er_ctx *ctx, const char *key, const void *value, size_t n,
                     struct er_error *err);
/* Waits until the key is there, at most `timeout_us` (0: do not wait; UINT64_MAX: no limit). 1 =
 * not there in time. A value longer than `cap` is -ENOSPC and *ret_n says its length. */
ER_API int er_kv_get(struct er_ctx *ctx, const char *key, void *ret_value, size_t cap,
                     size_t *ret_n, uint64_t timeout_us, struct er_error *err);
/* Atomic add on a decimal counter (missing = 0); *ret is the value after it. -EINVAL: the key holds
 * something else; -ERANGE: overflow. */
ER_API int er_kv_add(struct er_ctx *ctx, const char *key, int64_t delta, int64_t *ret,
                     struct er_error *err);
/* All ranks of the generation arrive. A name (as a key) may be used again: uses are counted.
 * -ETIMEDOUT after the time. Names are kept until the generation ends: more than ER_BARRIERS_MAX
 * different ones are ER_E_LIMIT, so use one name again and again rather than "epoch-1", "epoch-2"
 * ... */
ER_API int er_barrier(struct er_ctx *ctx, const char *name, uint64_t timeout_us,
                      struct er_error *err);

/* What this worker is told. One load, no system call. A hint until the ranks have agreed on it (the
 * step vote does). */
ER_API enum er_notice er_notice(const struct er_ctx *ctx);

/* With the notice REJOIN: whether the state is to be on disk before the ranks leave. */
ER_API int er_notice_saves(const struct er_ctx *ctx);

/* Tell the agent where this worker is: a few stores into the shared page. `step` is the last
 * finished step (0: none). During ER_PHASE_STARTUP it says where the work begins (what a checkpoint
 * brought), and is not counted as a step finished by this process; call it so before another thread
 * reports steps. */
ER_API void er_progress(struct er_ctx *ctx, enum er_phase phase, uint64_t step);
/* Where the steps of this process spent their time until now, all together, and how fast all ranks
 * are; 0: not known. `communicate_us`: what of communication was not hidden, and votes. */
struct er_pace {
    uint64_t tokens, samples_per_s, tokens_per_s;
    uint64_t data_us, forward_us, backward_us, communicate_us, optimizer_us;
    uint64_t
        median_busy_us; /* of all ranks: the four but communicate_us, added up in the same way */
};
/* For metrics, beside er_progress_figures(). */
ER_API void er_progress_pace(struct er_ctx *ctx, const struct er_pace *pace);
/* Optional figures for status and metrics; `total_steps` 0 = unknown. */
ER_API void er_progress_figures(struct er_ctx *ctx, uint64_t samples, double loss,
                                uint64_t total_steps);
/* Ready to work: start-up is over (model built, communicator open). */
ER_API int er_ready(struct er_ctx *ctx, struct er_error *err);

/*
 * Staying alive when the generation ends because somebody was lost, or because the membership
 * changes. A process that offers it, before er_ready(), is not stopped by signal from then on, in
 * its start-up neither: offer it where the notice is looked for. A loss: it is told by the notice
 * STOP (which ends its waits in communicators), or learns of it from an operation that fails with
 * ER_E_PEER_LOST or ER_E_ABORTED. A change: it is told by the notice REJOIN, or DRAIN when it is
 * not to come back, and finishes the step; the ranks leave at the first boundary at which all of
 * them have been told (the step vote says so). Then it aborts its communicators, touches nothing
 * that others see, and calls er_rejoin(), or ends. Who does not come within stop.grace, or
 * resize.grace, is killed and started anew.
 */
ER_API void er_rejoin_offer(struct er_ctx *ctx);

#define ER_REJOIN_DONE 1

/*
 * Leave this generation, with all communicators aborted, and wait for the next one: lost workers
 * are started anew there, and ranks may differ. 0: er_world() is that of the next generation, and
 * every key, barrier and communicator is one of it; say er_ready() again. ER_REJOIN_DONE: the job
 * is over, or goes on without this process: exit. ER_E_UNSUPPORTED: nobody can be rejoined (no
 * agent, or an old one), exit non-zero; ER_E_PEER_LOST: the agent is gone; -ETIMEDOUT: no
 * generation within `timeout_us` (UINT64_MAX: the agent decides how long to wait), exit.
 */
ER_API int er_rejoin(struct er_ctx *ctx, uint64_t timeout_us, struct er_error *err);

/* A published checkpoint for the job's record; the fenced commit. ER_E_STALE: this generation may
 * not commit any more. */
struct er_commit {
    uint64_t step, bytes, written_bytes, pause_us, duration_us;
    int error;          /* 0: committed; -errno: the write failed, tell the operator */
    const char *path;   /* folder, or what failed */
    const char *digest; /* hex digest of the manifest; "" when it failed */
};
ER_API int er_commit(struct er_ctx *ctx, const struct er_commit *commit, struct er_error *err);
/*
 * The same in two parts, for loops that are not to stand still while the store does not answer: it
 * is asked for, and its outcome is told later. The agent asks the store until it has an answer, or
 * the generation is over; nothing lands after that. One at a time: of an earlier one that was not
 * answered nobody hears any more. Both return within what the agent takes to read a request.
 */
ER_API int er_commit_begin(struct er_ctx *ctx, const struct er_commit *commit,
                           struct er_error *err);
#define ER_COMMIT_OPEN 1
/* 0 or negative as er_commit(); ER_COMMIT_OPEN: not known after `wait_us`. */
ER_API int er_commit_end(struct er_ctx *ctx, uint64_t wait_us, struct er_error *err);
/* A loaded checkpoint: `source` store | disk | peer | local; `skipped` a JSON list of {step, why},
 * or "". */
ER_API int er_loaded(struct er_ctx *ctx, uint64_t step, const char *path, const char *source,
                     const char *skipped, struct er_error *err);

/* The reason of this worker's failure (at most 1023 bytes), for the job's summary; then exit with a
 * code of your own. Or why it leaves its generation, before er_rejoin(). `ctx` may be NULL: nobody
 * is told. */
ER_API int er_fail(struct er_ctx *ctx, const char *fmt, ...) ER_PRINTF(2, 3);

#define ER_SPAWN_MAX 1024 /* ranks */

/* A rank's program. 0: done; anything else: failed, the exit status's low byte. */
typedef int (*er_main_fn)(struct er_ctx *ctx, void *arg);
/*
 * Starts `n` ranks of this program on this host, without a launcher: each a child process that runs
 * main(ctx, arg) in a world of n and ends. Waits for all. When one fails, the others are told (the
 * notice STOP, TERM after 2 s, KILL after 7 s), and -ECHILD names it: first in time, with the words
 * it gave er_fail(). `ctx` is the ranks' own and closed for them; memory is as fork(2) leaves it,
 * so call this before any thread is started or device opened. RANK, LOCAL_RANK, WORLD_SIZE and
 * LOCAL_WORLD_SIZE are set for them. No restarts and no checkpoints' commits: that is elastic-run's
 * work, and the same `main` serves both. ER_E_USAGE: n is not 1 to ER_SPAWN_MAX; -EAGAIN, -ENOMEM,
 * -EMFILE: the system refused a process or descriptor.
 */
ER_API int er_spawn(er_main_fn main, void *arg, int n, struct er_error *err);

#ifdef __cplusplus
}
#endif
