#pragma once
/*
 * The ledger: which generation used which steps, and so which samples, of a training run. A file of
 * lines in the folder of checkpoints; rank 0 writes one when a generation begins, durable before
 * the first step of it is applied anywhere, and one when it ends in order:
 *
 *     begin g=3 step=120 world=3 samples=4800 batch=48 seed=7 shards=0 from=memory run=8f...
 *     skip g=3 step=131
 *     skip g=3 step=240 why=poison
 *     end g=3 step=300 total=300
 *
 * `step`: steps contained in the parameters then (skip: the step whose gradients were dropped; with
 * why=poison, told at the beginning: the step whose samples the generation leaves out).
 * Which samples a step uses is a pure function of the plan, whatever the world size; so generation
 * i used the steps from its beginning to where the next one began, and a beginning that lies before
 * what its predecessor had reached *is* the way back: those steps are computed twice, and count
 * once.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define ER_LEDGER_LINE_MAX     320 /* with the line's end and a NUL */
#define ER_LEDGER_RUN_MAX      40
#define ER_LEDGER_LEFT_OUT_MAX 16

/* X(ENUM, "text") */
#define ER_LEDGER_KINDS(X)                                                                         \
    X(BEGIN, "begin")                                                                              \
    X(SKIP, "skip")                                                                                \
    X(END, "end")
enum er_ledger_kind {
#define ER_LEDGER_ENUM(name, text) ER_LEDGER_##name,
    ER_LEDGER_KINDS(ER_LEDGER_ENUM)
#undef ER_LEDGER_ENUM
        ER_LEDGER_KIND_COUNT
};

/* Where a generation's state came from. */
#define ER_LEDGER_SOURCES(X)                                                                       \
    X(START, "start")                                                                              \
    X(MEMORY, "memory")                                                                            \
    X(CHECKPOINT, "checkpoint")
enum er_ledger_source {
#define ER_LEDGER_FROM_ENUM(name, text) ER_LEDGER_FROM_##name,
    ER_LEDGER_SOURCES(ER_LEDGER_FROM_ENUM)
#undef ER_LEDGER_FROM_ENUM
        ER_LEDGER_SOURCE_COUNT
};

struct er_ledger_plan {
    uint64_t samples, batch, seed, shards;
};

struct er_ledger_entry {
    enum er_ledger_kind kind;
    uint64_t generation, step;
    uint64_t world;             /* BEGIN */
    struct er_ledger_plan plan; /* BEGIN */
    enum er_ledger_source from; /* BEGIN */
    uint64_t total;             /* END: steps that the run wants */
    bool poison;                /* SKIP: samples that are left out (restart.poison_step) */
    char run[ER_LEDGER_RUN_MAX];
};

/* Pure. The line's length; and back: -EINVAL for a line that is none. */
size_t er_ledger_format(const struct er_ledger_entry *entry, char ret[ER_LEDGER_LINE_MAX]);
int er_ledger_parse(const char *line, struct er_ledger_entry *ret);

/* A stretch of the steps that made the final parameters: first + 1 .. last. */
struct er_ledger_part {
    uint64_t generation, first, last, world;
    enum er_ledger_source from;
};

struct er_ledger_audit {
    bool ok;
    char problem[256]; /* !ok: the first one */
    struct er_ledger_plan plan;
    uint64_t steps, total; /* in the final parameters; wanted, 0: the run has not ended */
    uint64_t generations;  /* that began */
    uint64_t repeated;     /* steps known to have been computed again after a way back */
    uint64_t skipped;      /* steps in the lineage whose gradients were dropped */
    uint64_t left_out;     /* and those that the job has left out ... */
    uint64_t left_out_steps[ER_LEDGER_LEFT_OUT_MAX]; /* ... the first of them */
    size_t parts_n;                                  /* of the caller's list */
};

/*
 * Pure. Whether every sample of every epoch up to `saved` (newest step known to be on disk) or the
 * last ending was used exactly once, but for those that were left out and told. Sorts `entries` by
 * generation. `parts` has room for n.
 */
void er_ledger_audit(struct er_ledger_entry *entries, size_t n, uint64_t saved,
                     struct er_ledger_part *parts, struct er_ledger_audit *ret);

/* Appends a line, durably. ER_E_STALE: a newer generation has begun here (see folder.h). */
int er_ledger_append(const char *dir, const struct er_ledger_entry *entry, struct er_error *err);
/* All lines, in order; *ret is the caller's. A last line without an end was being written when its
 * writer died, and is left out. -ENOENT: there is none; ER_E_CORRUPT: names the line. */
int er_ledger_read(const char *dir, struct er_ledger_entry **ret, size_t *ret_n,
                   struct er_error *err);
