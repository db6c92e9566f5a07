#pragma once
/*
 * How much the workers of this node keep in the store: bytes of keys and newest values of one
 * generation. A worker's mistake must not grow the agent without end.
 */
#include <stddef.h>
#include <stdint.h>

#define ER_KV_BUDGET_MAX (64u << 20) /* bytes, ER_KV_BUDGET_KEY a key included */
#define ER_KV_BUDGET_KEY 256u        /* what a key costs beside its own bytes */

struct er_kv_budget_entry;

/* All 0 is an empty one. */
struct er_kv_budget {
    struct er_kv_budget_entry *entries; /* owned */
    size_t cap, n;
    uint64_t generation, bytes;
};

void er_kv_budget_done(struct er_kv_budget *budget);
/* `key` gets a value of `value_bytes` in `generation` (a new one forgets the old one's).
 * ER_E_LIMIT: that would be too much, nothing is counted; -ENOMEM. */
int er_kv_budget_take(struct er_kv_budget *budget, uint64_t generation, const char *key,
                      size_t value_bytes);
