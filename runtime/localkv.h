#pragma once
/* The key-value store of a world of one without an agent: a small list in memory. */
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/list.h"

struct er_local_kv {
    struct er_list items;
    size_t items_n, bytes; /* keys, and bytes of keys and values */
};

void er_local_kv_init(struct er_local_kv *kv);
void er_local_kv_done(struct er_local_kv *kv);
/* 0, -ENOMEM, or ER_E_LIMIT beyond ER_LOCAL_KEYS_MAX or ER_LOCAL_BYTES_MAX of elastic.h; on failure
 * the key keeps its value. */
int er_local_kv_put(struct er_local_kv *kv, const char *key, const void *value, size_t n);
/* 0, or 1: not there. *ret_value stays valid until the key is put again. */
int er_local_kv_get(const struct er_local_kv *kv, const char *key, const void **ret_value,
                    size_t *ret_n);
/* As er_kv_add(). */
int er_local_kv_add(struct er_local_kv *kv, const char *key, int64_t delta, int64_t *ret,
                    struct er_error *err);
