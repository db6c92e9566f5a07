#include "runtime/localkv.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"
#include "runtime/elastic.h"

struct item {
    struct er_list node;
    char *key;
    void *value;
    size_t n;
};

static size_t size_of(const struct item *item)
{
    return strlen(item->key) + item->n;
}

static void free_item(struct item *item)
{
    er_list_remove(&item->node);
    free(item->key);
    free(item->value);
    free(item);
}

static struct item *find(const struct er_local_kv *kv, const char *key)
{
    er_list_for_each (node, &kv->items) {
        struct item *item = ER_LIST_ITEM(node, struct item, node);
        if (strcmp(item->key, key) == 0)
            return item;
    }
    return NULL;
}

void er_local_kv_init(struct er_local_kv *kv)
{
    er_list_init(&kv->items);
    kv->items_n = kv->bytes = 0;
}

void er_local_kv_done(struct er_local_kv *kv)
{
    er_list_for_each_safe (node, &kv->items)
        free_item(ER_LIST_ITEM(node, struct item, node));
}

int er_local_kv_put(struct er_local_kv *kv, const char *key, const void *value, size_t n)
{
    struct item *old = find(kv, key);
    size_t items_n = kv->items_n + (old ? 0 : 1);
    size_t bytes = kv->bytes - (old ? size_of(old) : 0) + strlen(key) + n;
    if (items_n > ER_LOCAL_KEYS_MAX || bytes > ER_LOCAL_BYTES_MAX)
        return ER_E_LIMIT;
    struct item *item = calloc(1, sizeof(*item));
    if (!item)
        return -ENOMEM;
    er_list_init(&item->node);
    item->key = strdup(key);
    item->value = malloc(n ? n : 1);
    item->n = n;
    if (!item->key || !item->value) {
        free_item(item);
        return -ENOMEM;
    }
    if (n)
        memcpy(item->value, value, n);
    if (old)
        free_item(old);
    er_list_push_back(&kv->items, &item->node);
    kv->items_n = items_n;
    kv->bytes = bytes;
    return 0;
}

int er_local_kv_get(const struct er_local_kv *kv, const char *key, const void **ret_value,
                    size_t *ret_n)
{
    const struct item *item = find(kv, key);
    if (!item)
        return 1;
    *ret_value = item->value;
    *ret_n = item->n;
    return 0;
}

int er_local_kv_add(struct er_local_kv *kv, const char *key, int64_t delta, int64_t *ret,
                    struct er_error *err)
{
    const void *value;
    size_t n;
    int64_t now = 0;
    char text[32] = "";
    if (er_local_kv_get(kv, key, &value, &n) == 0) {
        if (n >= sizeof(text))
            return er_error_set(err, -EINVAL, "add '%s': not a counter", key);
        memcpy(text, value, n);
        if (er_parse_i64(text, INT64_MIN, INT64_MAX, &now, NULL) < 0)
            return er_error_set(err, -EINVAL, "add '%s': not a counter", key);
    }
    if (__builtin_add_overflow(now, delta, &now))
        return er_error_set(err, -ERANGE, "add '%s': overflow", key);
    int len = snprintf(text, sizeof(text), "%lld", (long long)now);
    int rc = er_local_kv_put(kv, key, text, (size_t)len);
    if (rc < 0)
        return er_error_set(err, rc, "add '%s': %s", key, er_error_name(rc));
    *ret = now;
    return 0;
}
