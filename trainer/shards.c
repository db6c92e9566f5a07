#include "trainer/shards.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "trainer/shards_wire.h"

static struct er_shard own_shard(const struct er_fsdp *f)
{
    return (struct er_shard){(uint32_t)f->plan.size, (uint32_t)f->rank};
}

static struct er_shard shard_of(const struct er_shards_spare *spare)
{
    return spare->handle ? own_shard(spare->handle) : spare->copy->shard;
}

static float *const *blocks_of(const struct er_shards_spare *spare)
{
    return spare->handle ? spare->handle->block : spare->copy->block;
}

static void free_spare(struct er_shards_spare *spare)
{
    er_fsdp_close(spare->handle);
    er_shard_copy_free(spare->copy);
    *spare = (struct er_shards_spare){0};
}

static void drop_spoilt(struct er_shards *s)
{
    for (size_t i = 0; i < ER_ARRAY_N(s->spoilt); i++)
        free_spare(&s->spoilt[i]);
}

struct er_reshard_held er_shards_list(const struct er_shards *s, uint32_t *ret_live)
{
    struct er_reshard_held held = {0};

    held.shards[held.n++] = own_shard(s->fsdp);
    if (s->fsdp->shadow)
        held.shards[held.n++] = s->fsdp->shadow->copy->shard;
    *ret_live = held.n;
    for (size_t i = 0; i < s->spares_n; i++)
        held.shards[held.n++] = shard_of(&s->spare[i]);
    return held;
}

int er_shards_units(const struct er_fsdp *f, struct er_reshard_units *ret, struct er_error *err)
{
    size_t *elements = calloc(f->plan.units_n + 1, sizeof(*elements));

    if (!elements)
        return er_error_set(err, -ENOMEM, "sizes of %zu units", f->plan.units_n);
    for (size_t u = 0; u < f->plan.units_n; u++)
        elements[u] = f->plan.units[u].elements;
    *ret = (struct er_reshard_units){elements, f->plan.units_n};
    return 0;
}

static void drop_spares(struct er_shards *s)
{
    drop_spoilt(s);
    while (s->spares_n > 0)
        free_spare(&s->spare[--s->spares_n]);
}

void er_shards_drop(struct er_shards *s)
{
    drop_spares(s);
    if (s->fsdp) {
        er_shadow_free(s->fsdp->shadow);
        s->fsdp->shadow = NULL;
    }
}

/* ---- bringing ---- */

/* Where a shard that is wanted comes to lie, and whether it was made for that. */
struct target {
    struct er_shard shard;
    float *const *block; /* NULL: nothing is wanted */
    struct er_shards_spare made;
};

struct bringing {
    struct er_shards *s;
    struct er_shards_wire *wire;
    struct target target[2]; /* as enum er_reshard_target */
    size_t blocks[ER_FLAT_BLOCK_MAX], blocks_n;
};

static struct er_shard wanted_own(const struct er_fsdp *f)
{
    return (struct er_shard){(uint32_t)er_comm_size(f->comm), (uint32_t)er_comm_rank(f->comm)};
}

static struct er_shard wanted_copy(const struct er_fsdp *f, int shift)
{
    int size = er_comm_size(f->comm);

    return (struct er_shard){(uint32_t)size, (uint32_t)((er_comm_rank(f->comm) + shift) % size)};
}

/* What a bringing that failed later has left. */
static struct er_shards_spare *find_handle(struct er_shards *s, struct er_shard shard)
{
    for (size_t i = 0; i < s->spares_n; i++) {
        if (s->spare[i].handle && er_shard_same(shard_of(&s->spare[i]), shard))
            return &s->spare[i];
    }
    return NULL;
}

static struct er_shards_spare *find_copy(struct er_shards *s, struct er_shard shard)
{
    for (size_t i = 0; i < s->spares_n; i++) {
        const struct er_shard_copy *copy = s->spare[i].copy;

        if (copy && copy->block[ER_FLAT_GRAD] && er_shard_same(copy->shard, shard))
            return &s->spare[i];
    }
    return NULL;
}

static int target_own(struct bringing *b, struct er_error *err)
{
    struct target *t = &b->target[ER_RESHARD_OWN];
    struct er_fsdp *f = b->s->fsdp;
    struct er_shards_spare *spare;
    int rc = 0;

    t->shard = wanted_own(f);
    if (er_fsdp_fits(f)) {
        t->block = f->block;
        return 0;
    }
    spare = find_handle(b->s, t->shard);
    if (!spare) {
        rc = er_fsdp_renew(&t->made.handle, f, err);
        spare = &t->made;
    }
    if (rc == 0)
        t->block = spare->handle->block;
    return rc;
}

static int target_copy(struct bringing *b, int shift, struct er_error *err)
{
    struct target *t = &b->target[ER_RESHARD_SHADOW];
    struct er_fsdp *f = b->s->fsdp;
    struct er_shards_spare *spare;
    int rc = 0;

    if (shift == 0)
        return 0;
    t->shard = wanted_copy(f, shift);
    if (f->shadow && er_shard_same(f->shadow->copy->shard, t->shard)) {
        t->block = f->shadow->copy->block;
        return 0;
    }
    spare = find_copy(b->s, t->shard);
    if (!spare) {
        rc = er_shard_copy_new(&t->made.copy, f, t->shard, true, err);
        spare = &t->made;
    }
    if (rc == 0)
        t->block = spare->copy->block;
    return rc;
}

/* Where this rank holds it. The plan has only what er_shards_list() gave. */
static float *const *source_of(const struct er_shards *s, struct er_shard shard)
{
    const struct er_fsdp *f = s->fsdp;

    if (er_shard_same(own_shard(f), shard))
        return f->block;
    if (f->shadow && er_shard_same(f->shadow->copy->shard, shard))
        return f->shadow->copy->block;
    for (size_t i = 0; i < s->spares_n; i++) {
        if (er_shard_same(shard_of(&s->spare[i]), shard))
            return blocks_of(&s->spare[i]);
    }
    return NULL;
}

/* Element `first` of a unit in a block of `shard`. */
static float *place_in(const struct bringing *b, float *block, struct er_shard shard,
                       const struct er_reshard_move *move)
{
    const struct er_fsdp *f = b->s->fsdp;
    size_t first;

    (void)er_shard_range(f->plan.units[move->unit].elements, shard, &first);
    return block + er_shard_at(f, shard, move->unit) + (move->first - first);
}

static int carry(void *user, const struct er_reshard_move *move, struct er_error *err)
{
    struct bringing *b = user;
    const struct target *t = &b->target[move->target];
    int rank = er_comm_rank(b->s->fsdp->comm), rc = 0;
    size_t bytes = move->count * sizeof(float);
    float *const *source;

    if (move->from != rank && move->to != rank)
        return 0;
    source = move->from == rank ? source_of(b->s, move->shard) : NULL;
    if (source && move->to == rank && source == t->block)
        return 0;
    for (size_t i = 0; i < b->blocks_n && rc == 0; i++) {
        size_t block = b->blocks[i];
        float *from = source ? place_in(b, source[block], move->shard, move) : NULL;
        float *to = move->to == rank ? place_in(b, t->block[block], t->shard, move) : NULL;

        if (from && to)
            rc = b->s->fsdp->engine->ops->copy(b->s->fsdp->engine, to, from, bytes, err);
        else if (from)
            rc = er_shards_wire_send(b->wire, from, bytes, move->to, err);
        else
            rc = er_shards_wire_recv(b->wire, to, bytes, move->from, err);
    }
    return rc;
}

/* What has come is held from now on. */
static void keep_made(struct bringing *b)
{
    for (size_t i = 0; i < ER_ARRAY_N(b->target); i++) {
        struct er_shards_spare *made = &b->target[i].made;

        if (made->handle || made->copy)
            b->s->spare[b->s->spares_n++] = *made;
        *made = (struct er_shards_spare){0};
    }
}

int er_shards_bring(struct er_shards *s, const struct er_reshard *plan, int shift,
                    struct er_error *err)
{
    struct bringing b = {.s = s};
    int rc = 0;

    drop_spoilt(s);
    b.blocks_n = er_shard_blocks(s->fsdp, b.blocks);
    if (s->spares_n + ER_ARRAY_N(b.target) > ER_SHARDS_SPARES_MAX)
        rc = er_error_set(err, ER_E_LIMIT, "%zu shards are held from generations that failed",
                          s->spares_n);
    if (rc == 0)
        rc = target_own(&b, err);
    if (rc == 0)
        rc = target_copy(&b, shift, err);
    if (rc == 0)
        rc = er_shards_wire_open(&b.wire, s->fsdp->comm, s->fsdp->engine, err);
    if (rc == 0)
        rc = er_reshard_moves(plan, shift, carry, &b, err);
    if (rc == 0)
        rc = er_shards_wire_check(b.wire, err);
    if (rc == 0)
        keep_made(&b);
    er_shards_wire_close(b.wire);
    for (size_t i = 0; i < ER_ARRAY_N(b.target); i++)
        s->spoilt[i] = b.target[i].made;
    return rc < 0 ? er_error_wrap(err, rc, "moving shards") : 0;
}

/* ---- the new division ---- */

/* The copy that becomes the shadow, out of where it is held. */
static struct er_shard_copy *take_copy(struct er_shards *s, struct er_shard shard)
{
    struct er_shadow *shadow = s->fsdp->shadow;
    struct er_shards_spare *spare;
    struct er_shard_copy *copy = NULL;

    if (shadow && er_shard_same(shadow->copy->shard, shard)) {
        copy = shadow->copy;
        shadow->copy = NULL;
    } else if ((spare = find_copy(s, shard))) {
        copy = spare->copy;
        spare->copy = NULL;
        *spare = s->spare[--s->spares_n];
    }
    return copy;
}

int er_shards_switch(struct er_shards *s, int shift, struct er_error *err)
{
    struct er_fsdp *f = s->fsdp;
    struct er_shard_copy *copy = NULL;
    int rc = er_comm_barrier(f->comm, err);

    if (rc < 0)
        return er_error_wrap(err, rc, "moved shards");
    if (shift > 0)
        copy = take_copy(s, wanted_copy(f, shift));
    if (!er_fsdp_fits(f)) {
        struct er_shards_spare *spare = find_handle(s, wanted_own(f));

        assert(spare); /* er_shards_bring() made it, or had it */
        er_fsdp_replace(f, spare->handle);
        spare->handle = NULL;
    }
    er_shards_drop(s);
    return copy ? er_shadow_set(f, copy, shift, err) : 0;
}

int er_shards_empty(struct er_shards *s, struct er_error *err)
{
    struct er_fsdp *next;
    int rc;

    er_shards_drop(s); /* first: there may not be memory for both */
    if (er_fsdp_fits(s->fsdp))
        return 0;
    rc = er_fsdp_renew(&next, s->fsdp, err);
    if (rc == 0)
        er_fsdp_replace(s->fsdp, next);
    return rc;
}

int er_shards_shadow(struct er_shards *s, int shift, struct er_error *err)
{
    int size = er_comm_size(s->fsdp->comm), rc;
    ER_CLEANUP(er_cleanup_free) struct er_reshard_held *held = calloc((size_t)size, sizeof(*held));
    ER_CLEANUP(er_cleanup_free) int32_t *memory = NULL;
    struct er_reshard_units units = {0};
    struct er_reshard plan;

    er_shards_drop(s);
    if (shift == 0)
        return 0;
    for (int i = 0; held && i < size; i++)
        held[i] = (struct er_reshard_held){1, {{(uint32_t)size, (uint32_t)i}}};
    if (held)
        memory = calloc(er_reshard_memory_n(held, size), sizeof(*memory));
    if (!memory)
        return er_error_set(err, -ENOMEM, "shards of %d ranks", size);
    rc = er_shards_units(s->fsdp, &units, err);
    if (rc < 0)
        return rc;
    er_reshard_init(&plan, units, held, size, memory);
    rc = er_shards_bring(s, &plan, shift, err);
    free((void *)(uintptr_t)units.elements);
    return rc < 0 ? rc : er_shards_switch(s, shift, err);
}

int er_fsdp_shadow(struct er_fsdp *f, int shift, struct er_error *err)
{
    struct er_shards shards = {.fsdp = f};

    if (shift < 1 || shift >= f->plan.size)
        return er_error_set(err, ER_E_USAGE, "a copy of the shard of rank + %d, of %d ranks", shift,
                            f->plan.size);
    return er_shards_shadow(&shards, shift, err);
}

/* ---- handing over ---- */

static int give_own(struct er_shards *s, struct er_shards_wire *wire, int to, struct er_error *err)
{
    const struct er_fsdp *f = s->fsdp;
    size_t blocks[ER_FLAT_BLOCK_MAX], n = er_shard_blocks(f, blocks);
    int rc = 0;

    for (size_t i = 0; i < n && rc == 0; i++)
        rc = er_shards_wire_send(wire, f->block[blocks[i]], f->plan.total * sizeof(float), to, err);
    return rc;
}

static int take_other(struct er_shards *s, struct er_shards_wire *wire, int from,
                      struct er_shards_spare *ret, struct er_error *err)
{
    const struct er_fsdp *f = s->fsdp;
    size_t blocks[ER_FLAT_BLOCK_MAX], n = er_shard_blocks(f, blocks);
    const struct er_shard shard = {(uint32_t)f->plan.size, (uint32_t)from};
    int rc = er_shard_copy_new(&ret->copy, f, shard, false, err);

    for (size_t i = 0; i < n && rc == 0; i++)
        rc = er_shards_wire_recv(wire, ret->copy->block[blocks[i]],
                                 ret->copy->total * sizeof(float), from, err);
    return rc;
}

int er_shards_hand_over(struct er_shards *s, const int *from, const int *to, size_t n,
                        struct er_error *err)
{
    struct er_shards_spare *taken = s->spare + s->spares_n;
    struct er_shards_wire *wire = NULL;
    int rank = er_comm_rank(s->fsdp->comm), rc;
    size_t taken_n = 0;

    rc = er_shards_wire_open(&wire, s->fsdp->comm, s->fsdp->engine, err);
    for (size_t i = 0; i < n && rc == 0; i++) {
        if (from[i] == rank)
            rc = give_own(s, wire, to[i], err);
        else if (to[i] == rank && s->spares_n + taken_n == ER_SHARDS_SPARES_MAX)
            rc = er_error_set(err, ER_E_LIMIT, "more than %d shards are handed over",
                              ER_SHARDS_SPARES_MAX);
        else if (to[i] == rank)
            rc = take_other(s, wire, from[i], &taken[taken_n++], err);
    }
    if (rc == 0)
        rc = er_shards_wire_check(wire, err);
    if (rc == 0)
        rc = er_comm_barrier(s->fsdp->comm, err); /* who gives may leave behind it */
    er_shards_wire_close(wire);
    for (size_t i = 0; i < taken_n && rc < 0; i++)
        free_spare(&taken[i]);
    if (rc < 0)
        return er_error_wrap(err, rc, "shards of ranks that leave");
    s->spares_n += taken_n;
    return 0;
}
