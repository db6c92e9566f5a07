#pragma once
/* XXH3-128 digests (xxHash library). Pure. Source: xxHash specification, XXH3. */
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define ER_DIGEST_HEX_MAX 33

struct er_digest {
    uint64_t lo, hi;
};

struct er_digest er_hash(const void *data, size_t n);
int er_digest_equal(struct er_digest a, struct er_digest b);
void er_digest_format(struct er_digest d, char ret_hex[ER_DIGEST_HEX_MAX]);
/* 32 lower-case hex digits; anything else is ER_E_CORRUPT. */
int er_digest_parse(const char *hex, struct er_digest *ret, struct er_error *err);

/* Streaming form. */
struct er_hasher;                      /* heap */
struct er_hasher *er_hasher_new(void); /* NULL: out of memory */
/* As new. */
void er_hasher_reset(struct er_hasher *h);
void er_hasher_add(struct er_hasher *h, const void *data, size_t n);
struct er_digest er_hasher_get(const struct er_hasher *h);
void er_hasher_free(struct er_hasher *h);
