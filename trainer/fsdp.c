#include "trainer/fsdp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hash.h"
#include "trainer/shadow.h"
#include "trainer/sync.h"
#include "trainer/vote.h"

#define LAYOUT_MAX_BYTES (1 << 20)

static bool is_mixed(const struct er_fsdp_opts *opts)
{
    return opts->param_dtype != ER_F32 || opts->reduce_dtype != ER_F32;
}

static int check_types(const struct er_fsdp *f, struct er_error *err)
{
    const struct er_fsdp_opts *opts = &f->opts;

    if (!er_tensor_dtype_ok(opts->param_dtype) || !er_tensor_dtype_ok(opts->reduce_dtype))
        return er_error_set(err, ER_E_UNSUPPORTED,
                            "param_dtype %s, reduce_dtype %s: float32, float16 and bfloat16 are "
                            "offered",
                            er_dtype_name(opts->param_dtype), er_dtype_name(opts->reduce_dtype));
    if (is_mixed(opts) && opts->exact_shards > 0)
        return er_error_set(err, ER_E_USAGE,
                            "exact mode with param_dtype %s and reduce_dtype %s: its sums are of "
                            "float32 gradients, both must be float32",
                            er_dtype_name(opts->param_dtype), er_dtype_name(opts->reduce_dtype));
    return 0;
}

/* What must be the same on all ranks, and stands in a checkpoint: "name:elements|...". */
static int describe(struct er_fsdp *f, struct er_error *err)
{
    struct er_buf text;
    int rc = 0;

    er_buf_init(&text, LAYOUT_MAX_BYTES);
    if (f->opts.exact_shards > 0)
        rc = er_buf_printf(&text, "exact %u ", f->opts.exact_shards);
    if (is_mixed(&f->opts))
        rc = er_buf_printf(&text, "%s %s ", er_dtype_name(f->opts.param_dtype),
                           er_dtype_name(f->opts.reduce_dtype));
    for (size_t u = 0; u < f->plan.units_n && rc == 0; u++)
        rc = er_buf_printf(&text, "%s%s:%zu", u ? "|" : "fsdp ", f->plan.units[u].name,
                           f->plan.units[u].count);
    if (rc == 0)
        f->layout = strdup(er_buf_str(&text));
    er_buf_done(&text);
    if (!f->layout)
        return er_error_set(err, rc < 0 ? rc : -ENOMEM, "names of %zu units", f->plan.units_n);
    f->order_hash = er_hash(f->layout, strlen(f->layout)).lo;
    return 0;
}

static int check_engine(const struct er_fsdp *f, struct er_error *err)
{
    if (er_comm_device(f->comm) == f->engine->device)
        return 0;
    return er_error_set(err, ER_E_USAGE,
                        "communicator '%s' does not carry the memory of engine '%s' "
                        "(er_fsdp_opts.engine)",
                        er_comm_describe(f->comm), er_engine_describe(f->engine));
}

static int check_exact(struct er_fsdp *f, struct er_error *err)
{
    uint32_t shards = f->opts.exact_shards, size = (uint32_t)er_comm_size(f->comm);

    if (shards == 0)
        return 0;
    if (f->opts.passes > 0)
        return er_error_set(err, ER_E_USAGE,
                            "exact mode: %u passes of a step were asked for, each shard is one",
                            f->opts.passes);
    if (size > shards)
        return er_error_set(err, ER_E_USAGE, "exact mode: %u ranks for %u shards", size, shards);
    f->opts.passes = (shards + size - 1) / size;
    return er_exact_scale(&f->scale, shards, f->opts.exact_weight_max, err);
}

ER_CLEANUP_FOR(er_fsdp_close, struct er_fsdp)

int er_fsdp_open(struct er_fsdp **ret, struct er_comm *comm, const struct er_flat *flat,
                 const struct er_fsdp_unit *units, size_t n, const struct er_fsdp_opts *opts,
                 struct er_error *err)
{
    ER_CLEANUP(er_fsdp_close_cleanup) struct er_fsdp *f = calloc(1, sizeof(*f));
    int rc;

    if (!f)
        return er_error_set(err, -ENOMEM, "sharded parameters");
    f->comm = comm;
    f->engine = opts && opts->engine ? opts->engine : er_engine_cpu();
    f->rank = er_comm_rank(comm);
    f->opts = f->asked = opts ? *opts : (struct er_fsdp_opts){0};
    rc = check_engine(f, err);
    if (rc == 0)
        rc = check_types(f, err);
    if (rc == 0)
        rc = check_exact(f, err);
    f->opts.passes = f->opts.passes ? f->opts.passes : 1;
    if (rc == 0)
        rc = er_fsdp_make_plan(f, flat, units, n, err);
    if (rc == 0)
        rc = er_fsdp_take_memory(f, err);
    if (rc == 0)
        rc = describe(f, err);
    if (rc < 0)
        return rc;
    for (size_t p = 0; p < flat->params_n; p++)
        f->unit_of[p] = (uint32_t)er_fsdp_unit_of(&f->plan, p);
    er_fsdp_forget(f);
    f->guard = (struct er_engine_guard){.arrived = er_fsdp_arrived, .user = f};
    if (f->engine->device)
        er_engine_guard_add(f->engine, &f->guard);
    *ret = ER_TAKE(f);
    return 0;
}

void er_fsdp_close(struct er_fsdp *f)
{
    int saved = errno;

    if (f) {
        er_fsdp_abandon(f);
        er_shadow_free(f->shadow);
        er_fsdp_free_memory(f);
        free(f->layout);
        free(f);
    }
    errno = saved;
}

void er_fsdp_attach(struct er_fsdp *f, struct er_tape *tape)
{
    f->tape = tape;
    /* An operation is recorded when an input has a gradient: the place does not matter yet. */
    for (size_t p = 0; p < f->plan.flat->params_n; p++) {
        struct er_tensor *leaf = er_tape_param(tape, p);

        leaf->grad = f->units[f->unit_of[p]].grad;
        leaf->dtype = f->opts.param_dtype;
        leaf->grad_dtype = f->opts.reduce_dtype;
    }
    er_tape_use_hook(tape, er_fsdp_use, f);
}

void er_fsdp_abandon(struct er_fsdp *f)
{
    f->flight_done = f->flight_begun;
    f->engine->ops->forget(f->engine);
    er_engine_guard_remove(f->engine, &f->guard);
}

/* This rank's first values of a unit, in ordinary memory, then in the engine's. */
static int first_values(struct er_fsdp *f, size_t unit, er_fsdp_fill_fn fill, void *user, float *to,
                        struct er_error *err)
{
    const struct er_fsdp_unit *plan = &f->plan.units[unit];
    ER_CLEANUP(er_cleanup_free) float *whole = calloc(plan->count, sizeof(*whole));

    if (!whole)
        return er_error_set(err, -ENOMEM, "first values of unit '%s'", plan->name);
    for (size_t p = plan->first; p < plan->first + plan->params_n; p++)
        fill(user, p, whole + er_fsdp_param_at(&f->plan, p));
    return er_engine_put(f->engine, to, whole, plan->count * sizeof(float), err);
}

static struct er_sync_place place_of(const struct er_fsdp *f)
{
    return (struct er_sync_place){.engine = f->engine,
                                  .wire = f->comm,
                                  .control = f->engine->device ? NULL : f->comm,
                                  .notes = f->notes};
}

/* `whole`: room for the unit in float32. */
static int fill_at(struct er_fsdp *f, size_t unit, er_fsdp_fill_fn fill, void *user, float *whole,
                   struct er_error *err)
{
    const struct er_fsdp_unit *plan = &f->plan.units[unit];
    const struct er_sync_part part = {plan->name, whole, plan->count * sizeof(float)};
    const struct er_sync_place place = place_of(f);
    int rc = first_values(f, unit, fill, user, whole, err);

    if (rc == 0)
        rc = er_sync_parts_at(&place, &part, 1, err);
    if (rc == 0)
        rc = f->engine->ops->copy(f->engine, f->block[ER_FLAT_VALUE] + plan->mine,
                                  whole + plan->shard * (size_t)f->rank,
                                  plan->shard * sizeof(float), err);
    return rc;
}

/* Where it is gathered; of 16 bits that is too small. */
static int fill_unit(struct er_fsdp *f, size_t unit, er_fsdp_fill_fn fill, void *user,
                     struct er_error *err)
{
    const struct er_fsdp_unit *plan = &f->plan.units[unit];
    void *whole = f->units[unit].value, *room = NULL;
    int rc = 0;

    if (f->opts.param_dtype != ER_F32) {
        rc = er_engine_alloc(f->engine, plan->count * sizeof(float), &room, err);
        whole = room;
    }
    if (rc == 0)
        rc = fill_at(f, unit, fill, user, whole, err);
    er_engine_free(f->engine, room);
    return rc < 0 ? er_error_wrap(err, rc, "first values of unit '%s'", plan->name) : 0;
}

int er_fsdp_fill_units(struct er_fsdp *f, struct er_error *err)
{
    int rc = 0;

    for (size_t u = 0; u < f->plan.units_n && rc == 0; u++)
        rc = fill_unit(f, u, f->fill, f->fill_user, err);
    er_fsdp_forget(f);
    return rc;
}

/* ---- steps ---- */

void er_fsdp_eval(struct er_fsdp *f, bool on)
{
    f->evaluating = on;
    f->in_pass = false;
}

void er_fsdp_passes(struct er_fsdp *f, uint32_t passes)
{
    if (f->opts.exact_shards == 0)
        f->opts.passes = f->asked.passes = passes > 0 ? passes : 1;
}

/* What this rank adds to the vote, of float32 sums. */
static int look_at_sums(struct er_fsdp *f, struct er_vote *vote, struct er_error *err)
{
    const float *sums = f->block[ER_FLAT_GRAD];
    double norm2 = 0;
    uint64_t bad = 0;
    int rc = 0, waited;

    if (f->opts.count_nonfinite)
        rc = f->engine->ops->count_bad(f->engine, sums, f->plan.total, &bad, err);
    if (rc == 0 && f->opts.norm2)
        rc = f->engine->ops->norm2(f->engine, sums, f->plan.total, &norm2, err);
    /* In any case: for numbers of ours. */
    waited = er_engine_wait(f->engine, rc ? NULL : err);
    vote->nonfinite += bad;
    vote->norm2 += norm2;
    return rc ? rc : waited;
}

/* Exact mode: of all ranks' sums; rank 0 puts it into the vote. A sum of floats would depend on how
 * many ranks there are. */
static int exact_norm2(struct er_fsdp *f, struct er_exact_norm mine, double *ret,
                       struct er_error *err)
{
    const struct er_sync_place place = place_of(f);
    size_t size = (size_t)er_comm_size(f->comm);
    ER_CLEANUP(er_cleanup_free) struct er_exact_norm *all = calloc(size, sizeof(*all));
    int rc;

    if (!all)
        return er_error_set(err, -ENOMEM, "norms of %zu ranks", size);
    rc = er_sync_gather_at(&place, &mine, sizeof(mine), all, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "norm of the gradients");
    for (size_t rank = 1; rank < size; rank++)
        er_exact_norm_add(&all[0], &all[rank]);
    *ret = f->rank == 0 ? er_exact_norm_value(&f->scale, &all[0]) : 0;
    return 0;
}

/* The same of exact mode. */
static int look_at_exact(struct er_fsdp *f, struct er_vote *vote, struct er_error *err)
{
    uint64_t words[ER_EXACT_WORDS] = {0};
    double norm2 = 0;
    int rc = 0, waited;

    if (f->opts.norm2)
        rc = f->engine->ops->exact_norm(f->engine, &f->scale, f->sums, f->plan.total, words, err);
    waited = er_engine_wait(f->engine, rc ? NULL : err); /* and for those outside */
    rc = rc ? rc : waited;
    if (rc == 0 && f->opts.norm2)
        rc = exact_norm2(f, er_exact_norm_join(words), &norm2, err);
    vote->nonfinite += f->outside;
    vote->norm2 += norm2;
    f->outside = 0;
    return rc;
}

int er_fsdp_finish(struct er_fsdp *f, struct er_vote *vote, struct er_error *err)
{
    const struct er_error misuse = ER_ERROR_INIT;
    uint64_t reduced_us;
    int rc;

    f->reduced = false;
    rc = er_fsdp_complete(f, err);
    if (rc < 0)
        return rc;
    f->reduced = true;
    reduced_us = er_now_us();
    rc = f->sums ? look_at_exact(f, vote, err) : look_at_sums(f, vote, err);
    if (rc < 0)
        return rc;
    f->times = (struct er_ddp_times){.comm_us = reduced_us - f->first_us,
                                     .exposed_us = f->exposed_us,
                                     .buckets = f->plan.units_n,
                                     .bytes = f->wire_bytes};
    vote->order_hash = f->order_hash;
    er_fsdp_forget(f);
    f->first_us = f->exposed_us = f->wire_bytes = 0;
    rc = er_vote_hold(f->comm, vote, &misuse, err);
    f->times.vote_us = er_now_us() - reduced_us;
    return rc;
}

void er_fsdp_drop(struct er_fsdp *f)
{
    size_t floats = f->plan.total * sizeof(*f->sums) / sizeof(float);

    f->engine->ops->fill(f->engine, f->block[ER_FLAT_GRAD], 0.0f, f->plan.total, NULL);
    if (f->sums)
        f->engine->ops->fill(f->engine, (float *)(void *)f->sums, 0.0f, floats, NULL);
    f->outside = 0;
}

int er_fsdp_take(struct er_fsdp *f, double weight, struct er_error *err)
{
    if (!f->sums)
        return 0;
    return f->engine->ops->exact_take(f->engine, &f->scale, f->sums, f->block[ER_FLAT_GRAD],
                                      f->plan.total, weight, err);
}

struct er_engine *er_fsdp_engine(const struct er_fsdp *f)
{
    return f->engine;
}

bool er_fsdp_counts_nonfinite(const struct er_fsdp *f)
{
    return f->sums || f->opts.count_nonfinite;
}

uint32_t er_fsdp_exact_shards(const struct er_fsdp *f)
{
    return f->opts.exact_shards;
}

/* ---- what a rank holds ---- */

static struct er_optim_view view_of(const struct er_fsdp *f, size_t first, size_t count)
{
    struct er_optim_view view = {.value = f->block[ER_FLAT_VALUE] + first,
                                 .grad = f->block[ER_FLAT_GRAD] + first,
                                 .count = count};

    for (size_t i = 0; i < f->plan.flat->states_n; i++)
        view.state[i] = f->block[ER_FLAT_STATE + i] + first;
    return view;
}

struct er_optim_view er_fsdp_view(const struct er_fsdp *f)
{
    return view_of(f, 0, f->plan.total);
}

struct er_optim_view er_fsdp_view_param(const struct er_fsdp *f, size_t param)
{
    struct er_fsdp_piece piece = er_fsdp_piece_of(&f->plan, param, f->rank);

    return view_of(f, piece.mine, piece.count);
}

size_t er_fsdp_slices(struct er_fsdp *f, struct er_slice *ret)
{
    const struct er_flat *flat = f->plan.flat;
    size_t n = 0;

    f->listed = true;

    for (size_t s = 0; s < 1 + flat->states_n; s++) {
        const float *block = f->block[s == 0 ? ER_FLAT_VALUE : ER_FLAT_STATE + s - 1];

        for (size_t p = 0; p < flat->params_n; p++) {
            struct er_fsdp_piece piece = er_fsdp_piece_of(&f->plan, p, f->rank);

            if (piece.count > 0)
                ret[n++] = er_flat_piece(flat, s, p, piece.offset, piece.count,
                                         (float *)(uintptr_t)block + piece.mine);
        }
    }
    return n;
}

const char *er_fsdp_layout(const struct er_fsdp *f)
{
    return f->layout;
}

size_t er_fsdp_bytes(const struct er_fsdp *f)
{
    return f->bytes + (f->shadow ? f->shadow->copy->bytes : 0);
}

struct er_ddp_times er_fsdp_last_times(const struct er_fsdp *f)
{
    return f->times;
}
