#pragma once
/*
 * A model of a folder on a disk that may lose power: records the operations of a run (through
 * tests/lib/file_hook), then makes the folder as it may look after a crash behind any of them.
 * Durable is what was fsync'ed; all else may be there or not, in any combination: data without
 * their names, names without their data, later operations without earlier ones, halves of a write.
 */
#include <stddef.h>
#include <stdint.h>

struct er_crash_model;

/* Takes what is in `dir` as durable. Ends the process on any trouble. */
struct er_crash_model *er_crash_new(const char *dir);
void er_crash_free(struct er_crash_model *model);
/* Between these two, operations below the folder are recorded. One model at a time. */
void er_crash_record(struct er_crash_model *model);
void er_crash_stop(void);
/* Operations so far; may be called while recording, also from an operation's thread. */
size_t er_crash_op_n(struct er_crash_model *model);

enum er_crash_kind {
    ER_CRASH_PROCESS,      /* only the process dies: everything is there */
    ER_CRASH_DURABLE_ONLY, /* nothing but what was fsync'ed */
    ER_CRASH_NAMES_FIRST,  /* all names, data only when fsync'ed */
    ER_CRASH_DATA_FIRST,   /* all data, names only when fsync'ed */
    ER_CRASH_TORN,         /* everything, but half of each write that was not fsync'ed */
    ER_CRASH_ANY           /* from here on: any combination, drawn by kind as seed */
};
/* The folder after the first `ops` operations and a crash, made at `to` (which must not exist;
 * NULL: not made). Returns a digest of it. */
uint64_t er_crash_make(const struct er_crash_model *model, size_t ops, unsigned kind,
                       const char *to);
/* "write step-../shard-0 ..." of operation i. Static storage. */
const char *er_crash_describe(const struct er_crash_model *model, size_t i);
