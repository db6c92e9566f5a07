#pragma once
/* elastic-ckpt: what its verbs share. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Those of elastic-ctl, which hands its verb `ckpt` on to this program. */
enum {
    TOOL_OK = 0,
    TOOL_NO = 1, /* the answer is no */
    TOOL_USAGE = 64,
    TOOL_NO_SUCH = 66,
    TOOL_IO = 74,
};

struct tool_args {
    const char *dir, *out; /* out: export's second operand */
    uint64_t step;         /* with has_step */
    bool has_step, all, json, dry_run, more_is_better;
    uint32_t keep_last, keep_best;
    uint64_t keep_every, shard_bytes;
};

int tool_list(const struct tool_args *args);
int tool_verify(const struct tool_args *args);
int tool_inspect(const struct tool_args *args);
int tool_gc(const struct tool_args *args);
int tool_export(const struct tool_args *args);
int tool_audit(const struct tool_args *args);

/* Says what failed, on stderr; returns the exit status that fits. */
int tool_fail(int rc, const struct er_error *err);
/* The exit status of a result, nothing said. */
int tool_status(int rc);
/* Of text that a file of others may have put together, for a terminal and for JSON: what is not
 * printable ASCII becomes '?'. Cut off at the end of `ret`. Returns `ret`. */
const char *tool_plain(const char *text, char *ret, size_t cap);
/* The steps in the folder, ascending, *ret the caller's. 0, or the exit status (it has been
 * said). */
int tool_steps(const struct tool_args *args, uint64_t **ret, size_t *ret_n);
/* The step asked for, else the newest. 0, or the exit status (it has been said). */
int tool_step(const struct tool_args *args, uint64_t *ret_step);

/* A line on stderr that shows how far a long work is; nothing where stderr is not a terminal. */
struct tool_progress {
    const char *what;
    uint64_t step, shown_us;
};
void tool_progress(void *progress, uint64_t done_bytes, uint64_t total_bytes);
void tool_progress_end(struct tool_progress *progress);

/* The whole state of a checkpoint as one file (`out` ends in .safetensors), or as a folder of files
 * of about `shard_bytes` with model.safetensors.index.json. Every piece is verified on the way. */
int tool_export_step(const char *dir, uint64_t step, const char *out, uint64_t shard_bytes,
                     struct tool_progress *progress, size_t *ret_files, struct er_error *err);
