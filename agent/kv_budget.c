#include "agent/kv_budget.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"

#define FIRST_CAP 64 /* a power of two, as all */

/* Open addressing; a digest of 0, 0 is a free place. */
struct er_kv_budget_entry {
    struct er_digest key;
    uint64_t value_bytes;
};

void er_kv_budget_done(struct er_kv_budget *b)
{
    free(b->entries);
    *b = (struct er_kv_budget){0};
}

static struct er_kv_budget_entry *place_of(struct er_kv_budget_entry *entries, size_t cap,
                                           const struct er_digest *key)
{
    size_t i = (size_t)key->lo & (cap - 1);

    while ((entries[i].key.lo || entries[i].key.hi) &&
           (entries[i].key.lo != key->lo || entries[i].key.hi != key->hi))
        i = (i + 1) & (cap - 1);
    return &entries[i];
}

static int make_room(struct er_kv_budget *b)
{
    size_t cap = b->cap ? 2 * b->cap : FIRST_CAP;
    struct er_kv_budget_entry *entries;

    if (4 * (b->n + 1) <= 3 * b->cap)
        return 0;
    entries = calloc(cap, sizeof(*entries));
    if (!entries)
        return -ENOMEM;
    for (size_t i = 0; i < b->cap; i++) {
        if (b->entries[i].key.lo || b->entries[i].key.hi)
            *place_of(entries, cap, &b->entries[i].key) = b->entries[i];
    }
    free(b->entries);
    b->entries = entries;
    b->cap = cap;
    return 0;
}

int er_kv_budget_take(struct er_kv_budget *b, uint64_t generation, const char *key,
                      size_t value_bytes)
{
    size_t key_bytes = strlen(key);
    struct er_digest digest = er_hash(key, key_bytes);
    struct er_kv_budget_entry *e;
    uint64_t bytes;

    if (generation != b->generation)
        er_kv_budget_done(b);
    b->generation = generation;
    if (make_room(b))
        return -ENOMEM;
    e = place_of(b->entries, b->cap, &digest);
    if (e->key.lo || e->key.hi)
        bytes = b->bytes - e->value_bytes + value_bytes;
    else
        bytes = b->bytes + ER_KV_BUDGET_KEY + key_bytes + value_bytes;
    if (bytes > ER_KV_BUDGET_MAX)
        return ER_E_LIMIT;
    b->n += !e->key.lo && !e->key.hi;
    *e = (struct er_kv_budget_entry){.key = digest, .value_bytes = value_bytes};
    b->bytes = bytes;
    return 0;
}
