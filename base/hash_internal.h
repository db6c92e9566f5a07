#pragma once
/* The hash compiled for each vector width: the same bits from each. For hash.c and its test. */
#include <stdbool.h>

#include "base/hash.h"

struct er_hash_width {
    const char *name;
    bool (*runs)(void); /* on this processor */
    struct er_digest (*hash)(const void *data, size_t n);
    void (*add)(void *state, const void *data, size_t n); /* to an XXH3_state_t */
};

/* Widest first, ends with a NULL name; the last one runs everywhere. */
extern const struct er_hash_width er_hash_widths[];

struct er_digest er_hash_avx2(const void *data, size_t n);
void er_hash_add_avx2(void *state, const void *data, size_t n);
