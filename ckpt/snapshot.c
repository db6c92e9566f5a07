#include "ckpt/snapshot.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "ckpt/slices.h"

static void describe(const struct er_slice *part, struct er_st_tensor *t, uint64_t begin)
{
    uint64_t total = er_ckpt_elements(part->ndim, part->shape);

    *t = (struct er_st_tensor){.dtype = part->dtype,
                               .begin = begin,
                               .end = begin + part->count * er_ckpt_dtype_size(part->dtype)};
    t->ndim = er_slice_shape(part, t->shape);
    if (part->count == total)
        snprintf(t->name, sizeof(t->name), "%s", part->name);
    else
        snprintf(t->name, sizeof(t->name), "%s@%llu", part->name, (unsigned long long)part->offset);
}

/* This rank's parts, those without elements left out. */
static int choose_parts(struct er_shard_plan *plan, const struct er_slice *slices, size_t n,
                        int rank, int size, bool spare, struct er_error *err)
{
    uint64_t at = 0;

    for (size_t i = 0; i < n; i++) {
        int rc = er_slice_check(&slices[i], err);
        struct er_slice part;

        if (rc < 0)
            return rc;
        part = er_slice_part(&slices[i], rank, size);
        if (part.count == 0 || (spare && !part.replicated))
            continue;
        plan->sole = plan->sole || !part.replicated;
        describe(&part, &plan->tensors[plan->n], at);
        at = plan->tensors[plan->n].end;
        part.name = strcpy(plan->names + plan->n * ER_CKPT_NAME_MAX, part.name);
        plan->piece_n += er_piece_n(part.count * er_ckpt_dtype_size(part.dtype));
        plan->parts[plan->n++] = part;
    }
    plan->bytes = at;
    return 0;
}

static int make_header(struct er_shard_plan *plan, struct er_error *err)
{
    ER_CLEANUP(er_buf_done) struct er_buf header;
    int rc;

    er_buf_init(&header, ER_ST_HEADER_MAX);
    rc = er_st_format(&header, plan->tensors, plan->n, "{\"format\":\"elastic-ckpt\"}", err);
    if (rc < 0)
        return rc;
    plan->header_bytes = header.len;
    plan->header = er_hash(header.data, header.len);
    plan->header_text = ER_TAKE(header.data);
    plan->bytes += plan->header_bytes;
    return 0;
}

int er_shard_plan_make(struct er_shard_plan *plan, const struct er_slice *slices, size_t n,
                       int rank, int size, bool spare, struct er_error *err)
{
    int rc;

    *plan = (struct er_shard_plan){0};
    plan->parts = calloc(n + 1, sizeof(*plan->parts));
    plan->tensors = calloc(n + 1, sizeof(*plan->tensors));
    plan->names = calloc(n + 1, ER_CKPT_NAME_MAX);
    if (!plan->parts || !plan->tensors || !plan->names)
        return er_error_set(err, -ENOMEM, "checkpoint: no memory");
    rc = choose_parts(plan, slices, n, rank, size, spare, err);
    if (rc == 0)
        rc = make_header(plan, err);
    if (rc < 0)
        return rc;
    plan->digests = calloc(plan->piece_n + 1, sizeof(*plan->digests));
    return plan->digests ? 0 : er_error_set(err, -ENOMEM, "checkpoint: no memory");
}

void er_shard_plan_done(struct er_shard_plan *plan)
{
    free(plan->parts);
    free(plan->tensors);
    free(plan->digests);
    free(plan->names);
    free(plan->header_text);
}

uint64_t er_shard_plan_at(const struct er_shard_plan *plan, size_t i)
{
    return plan->header_bytes + plan->tensors[i].begin;
}

struct er_snapshot {
    atomic_int refs;
    struct er_pool *pool;
    char *data;
    uint64_t room;
};

int er_snapshot_new(struct er_snapshot **ret, uint64_t bytes, struct er_error *err)
{
    uint64_t room = (bytes + ER_SNAPSHOT_ALIGN - 1) / ER_SNAPSHOT_ALIGN * ER_SNAPSHOT_ALIGN;
    struct er_snapshot *s = calloc(1, sizeof(*s));
    int rc;

    if (!s)
        return er_error_set(err, -ENOMEM, "checkpoint: no memory");
    rc = er_pool_map(&s->pool, (size_t)room, err);
    if (rc < 0) {
        free(s);
        return er_error_wrap(err, rc, "memory for the copy of the state");
    }
    atomic_init(&s->refs, 1);
    s->data = er_pool_alloc(s->pool, (size_t)room, ER_SNAPSHOT_ALIGN);
    s->room = room;
    *ret = s;
    return 0;
}

struct er_snapshot *er_snapshot_ref(struct er_snapshot *s)
{
    atomic_fetch_add(&s->refs, 1);
    return s;
}

void er_snapshot_unref(struct er_snapshot *s)
{
    if (!s || atomic_fetch_sub(&s->refs, 1) > 1)
        return;
    er_pool_free(s->pool);
    free(s);
}

bool er_snapshot_shared(const struct er_snapshot *s)
{
    return atomic_load(&s->refs) > 1;
}

char *er_snapshot_data(struct er_snapshot *s)
{
    return s->data;
}

uint64_t er_snapshot_room(const struct er_snapshot *s)
{
    return s->room;
}

void er_snapshot_populate(struct er_snapshot *s, uint64_t at, uint64_t n)
{
    (void)er_pool_populate(s->pool, (size_t)at, (size_t)n);
}
