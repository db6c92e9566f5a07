#pragma once
/* Which checkpoints may go. Pure. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct er_retain_item {
    uint64_t step;
    uint32_t has_metric;
    double metric; /* finite */
};

/* A step stays when any rule wants it. */
struct er_retain_rules {
    uint32_t keep_last;  /* newest up to `current`, which counts; 0: all */
    uint64_t keep_every; /* the last up to each multiple of it; 0: none */
    uint32_t keep_best;  /* best by metric, the newer of equals; 0: none */
    bool more_is_better;
};

/*
 * `items` ascending by step; `current` has just been committed and verified. Writes to ret_remove
 * (room: n) the steps to remove, ascending: never `current` nor anything above it (newer ones that
 * did not verify are evidence, and cost nothing until `current` passes them).
 */
size_t er_retain_by(const struct er_retain_item *items, size_t n, uint64_t current,
                    const struct er_retain_rules *rules, uint64_t *ret_remove);
/* The same with keep_last alone. */
size_t er_retain(const uint64_t *steps, size_t n, uint64_t current, uint32_t keep_last,
                 uint64_t *ret_remove);
