#include "ckpt/manifest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/slices.h"

void er_manifest_init(struct er_manifest *m)
{
    memset(m, 0, sizeof(*m));
}

void er_manifest_done(struct er_manifest *m)
{
    free(m->chain);
    free(m->shards);
    free(m->tensors);
    free(m->slices);
    er_manifest_init(m);
}

void er_manifest_shard_name(uint32_t shard, uint32_t shards, char *ret_name, size_t cap)
{
    snprintf(ret_name, cap, "shard-%u-of-%u.safetensors", shard, shards);
}

int er_manifest_shards(struct er_manifest *m, uint32_t shards, struct er_error *err)
{
    if (shards == 0 || shards > ER_MANIFEST_SHARDS_MAX)
        return er_error_set(err, ER_E_CORRUPT, "%u shards: 1 to %u are allowed", shards,
                            ER_MANIFEST_SHARDS_MAX);
    m->shards = calloc(shards, sizeof(*m->shards));
    if (!m->shards)
        return er_error_set(err, -ENOMEM, "manifest: no memory");
    m->shard_n = shards;
    for (uint32_t i = 0; i < shards; i++)
        er_manifest_shard_name(i, shards, m->shards[i].name, sizeof(m->shards[i].name));
    return 0;
}

int er_manifest_set_chain(struct er_manifest *m, const struct er_chain_link *chain, size_t n,
                          struct er_error *err)
{
    size_t drop = n > ER_MANIFEST_CHAIN_MAX - 1 ? n - (ER_MANIFEST_CHAIN_MAX - 1) : 0;
    struct er_chain_link *copy = calloc(n - drop + 1, sizeof(*copy));
    if (!copy)
        return er_error_set(err, -ENOMEM, "manifest: no memory");
    if (n > drop)
        memcpy(copy, chain + drop, (n - drop) * sizeof(*copy));
    free(m->chain);
    m->chain = copy;
    m->chain_n = n - drop;
    return 0;
}

/* Digits without a leading zero, at most ten (a step: twelve); NULL when there are none. */
static const char *skip_number(const char *p, size_t digits_max)
{
    size_t n = strspn(p, "0123456789");
    return n == 0 || n > digits_max || (p[0] == '0' && n > 1) ? NULL : p + n;
}

static const char *skip_text(const char *p, const char *text)
{
    size_t n = strlen(text);
    return p && strncmp(p, text, n) == 0 ? p + n : NULL;
}

bool er_manifest_shard_name_ok(const char *name)
{
    const char *p = skip_text(name, "shard-"), *from;
    p = p ? skip_number(p, 10) : NULL;
    p = skip_text(p, "-of-");
    p = p ? skip_number(p, 10) : NULL;
    from = skip_text(p, ".from-");
    p = from ? skip_number(from, 12) : p;
    p = skip_text(p, ".safetensors");
    return p && *p == 0 && strlen(name) < ER_MANIFEST_NAME_MAX;
}

static int grow(void **items, size_t *cap, size_t n, size_t max, size_t size, const char *what,
                struct er_error *err)
{
    if (n < *cap)
        return 0;
    if (n >= max)
        return er_error_set(err, ER_E_LIMIT, "manifest: more than %zu %s", max, what);
    size_t wanted = *cap ? *cap * 2 : 64;
    void *p = reallocarray(*items, wanted, size);
    if (!p)
        return er_error_set(err, -ENOMEM, "manifest: no memory");
    *items = p;
    *cap = wanted;
    return 0;
}

static bool same_tensor(const struct er_manifest_tensor *t, const struct er_slice *s)
{
    return t->dtype == s->dtype && t->ndim == s->ndim &&
           memcmp(t->shape, s->shape, s->ndim * sizeof(*s->shape)) == 0;
}

/* While a manifest is being built. Slices of one tensor come together, and the tensors of each rank
 * in the same order: the one found last, or the one behind it, is the most likely. */
static long find_unsorted(struct er_manifest *m, const char *name)
{
    for (size_t i = 0; i < m->tensor_n; i++) {
        size_t at = (m->hint + i) % m->tensor_n;
        if (strcmp(m->tensors[at].name, name) == 0) {
            m->hint = at;
            return (long)at;
        }
    }
    return -1;
}

static int intern(struct er_manifest *m, const struct er_slice *slice, uint32_t *ret,
                  struct er_error *err)
{
    long at = find_unsorted(m, slice->name);
    if (at >= 0 && !same_tensor(&m->tensors[at], slice))
        return er_error_set(err, ER_E_MISMATCH,
                            "tensor '%s' has another shape or type on another rank", slice->name);
    if (at < 0) {
        int rc = grow((void **)&m->tensors, &m->tensor_cap, m->tensor_n, ER_MANIFEST_TENSORS_MAX,
                      sizeof(*m->tensors), "tensors", err);
        if (rc < 0)
            return rc;
        struct er_manifest_tensor *t = &m->tensors[m->tensor_n];
        *t = (struct er_manifest_tensor){.dtype = slice->dtype, .ndim = slice->ndim};
        memcpy(t->name, slice->name, strlen(slice->name) + 1);
        memcpy(t->shape, slice->shape, slice->ndim * sizeof(*slice->shape));
        at = (long)m->tensor_n++;
    }
    *ret = (uint32_t)at;
    return 0;
}

int er_manifest_add(struct er_manifest *m, const struct er_slice *slice, uint32_t shard,
                    uint64_t at, struct er_digest digest, struct er_error *err)
{
    uint32_t tensor = 0;
    int rc = er_slice_check(slice, err);
    if (rc == 0)
        rc = intern(m, slice, &tensor, err);
    if (rc == 0)
        rc = grow((void **)&m->slices, &m->slice_cap, m->slice_n, ER_MANIFEST_SLICES_MAX,
                  sizeof(*m->slices), "slices", err);
    if (rc < 0)
        return rc;
    m->slices[m->slice_n++] = (struct er_manifest_slice){.tensor = tensor,
                                                         .shard = shard,
                                                         .offset = slice->offset,
                                                         .count = slice->count,
                                                         .at = at,
                                                         .digest = digest};
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct er_manifest_tensor *)a)->name,
                  ((const struct er_manifest_tensor *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const struct er_manifest_slice *x = a, *y = b;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Sort tensors by name and renumber the slices' references. */
static int sort_tensors(struct er_manifest *m, struct er_error *err)
{
    char(*names)[ER_CKPT_NAME_MAX] = calloc(m->tensor_n + 1, sizeof(*names));
    if (!names)
        return er_error_set(err, -ENOMEM, "manifest: no memory");
    for (size_t i = 0; i < m->tensor_n; i++)
        memcpy(names[i], m->tensors[i].name, sizeof(names[i]));
    if (m->tensor_n > 0)
        qsort(m->tensors, m->tensor_n, sizeof(*m->tensors), by_name);
    for (size_t i = 0; i < m->slice_n; i++)
        m->slices[i].tensor = (uint32_t)er_manifest_find(m, names[m->slices[i].tensor]);
    free(names);
    if (m->slice_n > 0)
        qsort(m->slices, m->slice_n, sizeof(*m->slices), by_place);
    return 0;
}

static int check_coverage(const struct er_manifest *m, size_t tensor, struct er_error *err)
{
    const struct er_manifest_tensor *t = &m->tensors[tensor];
    size_t first, n = er_manifest_slices_of(m, tensor, &first);
    uint64_t at = 0, size = er_ckpt_dtype_size(t->dtype);
    for (size_t i = first; i < first + n; i++) {
        const struct er_manifest_slice *s = &m->slices[i];
        if (s->offset != at)
            return er_error_set(err, ER_E_CORRUPT,
                                "tensor '%s': slices overlap or leave a hole at element %llu",
                                t->name, (unsigned long long)at);
        if (s->shard >= m->shard_n || s->at > m->shards[s->shard].bytes ||
            s->count * size > m->shards[s->shard].bytes - s->at)
            return er_error_set(err, ER_E_CORRUPT, "tensor '%s': a slice lies outside its shard",
                                t->name);
        at += s->count;
    }
    if (at != er_ckpt_elements(t->ndim, t->shape))
        return er_error_set(err, ER_E_CORRUPT, "tensor '%s': %llu of its %llu elements are covered",
                            t->name, (unsigned long long)at,
                            (unsigned long long)er_ckpt_elements(t->ndim, t->shape));
    return 0;
}

int er_manifest_finish(struct er_manifest *m, struct er_error *err)
{
    int rc = sort_tensors(m, err);
    for (size_t i = 0; rc == 0 && i < m->tensor_n; i++)
        rc = check_coverage(m, i, err);
    return rc;
}

long er_manifest_find(const struct er_manifest *m, const char *name)
{
    size_t lo = 0, hi = m->tensor_n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(m->tensors[mid].name, name);
        if (c == 0)
            return (long)mid;
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return -1;
}

size_t er_manifest_slices_of(const struct er_manifest *m, size_t tensor, size_t *ret_first)
{
    size_t lo = 0, hi = m->slice_n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (m->slices[mid].tensor < tensor)
            lo = mid + 1;
        else
            hi = mid;
    }
    *ret_first = lo;
    size_t end = lo;
    while (end < m->slice_n && m->slices[end].tensor == tensor)
        end++;
    return end - lo;
}
