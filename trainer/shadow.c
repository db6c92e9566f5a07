#include "trainer/shadow.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

#define FLOATS_A_SUM (sizeof(int64_t) / sizeof(float)) /* memory is counted in floats */

size_t er_shard_at(const struct er_fsdp *f, struct er_shard shard, size_t unit)
{
    size_t at = 0;

    for (size_t u = 0; u < unit; u++)
        at += er_shard_elements(f->plan.units[u].elements, shard.size);
    return at;
}

size_t er_shard_blocks(const struct er_fsdp *f, size_t ret[ER_FLAT_BLOCK_MAX])
{
    size_t n = 0;

    ret[n++] = ER_FLAT_VALUE;
    for (size_t i = 0; i < f->plan.flat->states_n; i++)
        ret[n++] = ER_FLAT_STATE + i;
    return n;
}

/* ---- memory ---- */

ER_CLEANUP_FOR(er_shard_copy_free, struct er_shard_copy)

/* One piece, of huge pages on the host. */
static int take_whole(struct er_shard_copy *copy, char **ret, struct er_error *err)
{
    int rc;

    if (copy->engine->device) {
        rc = er_engine_alloc(copy->engine, copy->bytes, &copy->memory, err);
        *ret = copy->memory;
        return rc;
    }
    rc = er_pool_new(&copy->pool, copy->bytes, err);
    *ret = rc == 0 ? er_pool_alloc(copy->pool, copy->bytes, ER_FLAT_ALIGN) : NULL;
    return rc;
}

/* Blocks are whole cache lines, as shards are. */
static void *take(char **next, size_t bytes)
{
    void *at = *next;

    *next += bytes;
    return at;
}

int er_shard_copy_new(struct er_shard_copy **ret, const struct er_fsdp *f, struct er_shard shard,
                      bool live, struct er_error *err)
{
    ER_CLEANUP(er_shard_copy_free_cleanup) struct er_shard_copy *copy = calloc(1, sizeof(*copy));
    size_t blocks[ER_FLAT_BLOCK_MAX], n = er_shard_blocks(f, blocks), each;
    size_t sums = live && f->sums ? FLOATS_A_SUM : 0;
    char *next = NULL;
    int rc;

    if (!copy)
        return er_error_set(err, -ENOMEM, "copy of a shard");
    copy->shard = shard;
    copy->total = er_shard_at(f, shard, f->plan.units_n);
    each = copy->total * sizeof(float);
    copy->engine = f->engine;
    copy->bytes = (n + (live ? 1 : 0) + sums) * each;
    rc = take_whole(copy, &next, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "copy of shard %u of %u", shard.index, shard.size);
    for (size_t i = 0; i < n; i++)
        copy->block[blocks[i]] = take(&next, each);
    if (live)
        copy->block[ER_FLAT_GRAD] = take(&next, each);
    if (sums > 0)
        copy->sums = take(&next, sums * each);
    *ret = ER_TAKE(copy);
    return 0;
}

void er_shard_copy_free(struct er_shard_copy *copy)
{
    if (copy) {
        er_pool_free(copy->pool);
        if (copy->memory)
            er_engine_free(copy->engine, copy->memory);
    }
    free(copy);
}

int er_shadow_set(struct er_fsdp *f, struct er_shard_copy *copy, int shift, struct er_error *err)
{
    struct er_shadow *shadow = calloc(1, sizeof(*shadow));

    if (!shadow) {
        er_shard_copy_free(copy);
        return er_error_set(err, -ENOMEM, "shadow");
    }
    er_shadow_free(f->shadow);
    shadow->copy = copy;
    shadow->shift = shift;
    shadow->owner = (f->rank + shift) % f->plan.size;
    shadow->keeper = (f->rank + f->plan.size - shift) % f->plan.size;
    f->shadow = shadow;
    return 0;
}

void er_shadow_free(struct er_shadow *shadow)
{
    if (shadow)
        er_shard_copy_free(shadow->copy);
    free(shadow);
}

/* ---- a step ---- */

static int await_one(struct er_shadow *s, struct er_error *err)
{
    int rc = er_op_wait(s->flight[s->waited++ % ER_SHADOW_FLIGHTS], UINT64_MAX, err);

    return rc < 0 ? er_error_wrap(err, rc, "gradients of rank %d's shard", s->owner) : 0;
}

/* To the keeper and from the owner side by side. */
static int exchange(struct er_fsdp *f, size_t at, size_t n, struct er_op **ret,
                    struct er_error *err)
{
    struct er_shadow *s = f->shadow;
    enum er_dtype dtype = f->sums ? ER_I64 : ER_F32;
    const void *mine = f->sums ? (const void *)(f->sums + at) : f->block[ER_FLAT_GRAD] + at;
    void *theirs = f->sums ? (void *)(s->copy->sums + at) : s->copy->block[ER_FLAT_GRAD] + at;
    struct er_op *sent;
    int rc = f->engine->stream ? er_comm_after(f->comm, f->engine->stream, err) : 0, end;

    if (rc == 0)
        rc = er_group_begin(f->comm, err);
    if (rc < 0)
        return rc;
    rc = er_send(f->comm, mine, n, dtype, s->keeper, &sent, err);
    if (rc == 0)
        rc = er_recv(f->comm, theirs, n, dtype, s->owner, ret, err);
    end = er_group_end(f->comm, rc < 0 ? NULL : err);
    return rc < 0 ? rc : end;
}

int er_shadow_forward(struct er_fsdp *f, size_t unit, struct er_error *err)
{
    const struct er_fsdp_unit *plan = &f->plan.units[unit];
    struct er_shadow *s = f->shadow;
    int rc = 0;

    if (!s)
        return 0;
    if (s->begun - s->waited == ER_SHADOW_FLIGHTS)
        rc = await_one(s, err);
    if (rc == 0)
        rc = exchange(f, plan->mine, plan->shard, &s->flight[s->begun % ER_SHADOW_FLIGHTS], err);
    if (rc < 0)
        return rc;
    s->begun++;
    return 0;
}

int er_shadow_await(struct er_fsdp *f, struct er_error *err)
{
    struct er_shadow *s = f->shadow;
    int rc = 0;

    while (s && rc == 0 && s->waited < s->begun)
        rc = await_one(s, err);
    return rc;
}

void er_shadow_forget(struct er_fsdp *f)
{
    if (f->shadow)
        f->shadow->begun = f->shadow->waited = 0;
}

/* ---- updates ---- */

bool er_fsdp_turn(struct er_fsdp *f)
{
    struct er_shadow *s = f->shadow;
    int64_t *sums = f->sums;
    float *block;

    if (!s)
        return false;
    for (size_t i = 0; i < ER_FLAT_BLOCK_MAX; i++) {
        block = f->block[i];
        f->block[i] = s->copy->block[i];
        s->copy->block[i] = block;
    }
    f->sums = s->copy->sums;
    s->copy->sums = sums;
    f->rank = f->turned ? (f->rank + f->plan.size - s->shift) % f->plan.size
                        : (f->rank + s->shift) % f->plan.size;
    f->turned = !f->turned;
    return true;
}
