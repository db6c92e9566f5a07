#include "trainer/fsdp.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hash.h"
#include "trainer/fsdp_internal.h"
#include "trainer/sync.h"
#include "trainer/vote.h"

#define LAYOUT_MAX_BYTES (1 << 20)
#define FLOATS_A_SUM     (sizeof(int64_t) / sizeof(float)) /* memory is counted in floats */

static size_t blocks_n(const struct er_fsdp *f)
{
    return ER_FLAT_STATE + f->plan.flat->states_n;
}

/* ---- memory ---- */

static int make_plan(struct er_fsdp *f, const struct er_flat *flat,
                     const struct er_fsdp_unit *units, size_t n, struct er_error *err)
{
    struct er_fsdp_unit *copy = calloc(n + 1, sizeof(*copy));

    f->plan = (struct er_fsdp_plan){
        .flat = flat, .units = copy, .units_n = n, .size = er_comm_size(f->comm)};
    f->units = calloc(n + 1, sizeof(*f->units));
    f->ring = calloc(n + 1, sizeof(*f->ring));
    f->place = calloc(n + 1, sizeof(*f->place));
    f->unit_of = calloc(flat->params_n + 1, sizeof(*f->unit_of));
    if (!copy || !f->units || !f->ring || !f->place || !f->unit_of)
        return er_error_set(err, -ENOMEM, "plan of %zu units", n);
    for (size_t u = 0; u < n; u++) {
        copy[u] = units[u];
        f->place[u] = units[u].keep ? SIZE_MAX : f->ring_n;
        if (!units[u].keep)
            f->ring[f->ring_n++] = u;
    }
    return er_fsdp_plan_make(&f->plan, err);
}

/* Elements of the two memories that units of the ring share in turn. */
static void ring_counts(const struct er_fsdp *f, size_t ret[2])
{
    ret[0] = ret[1] = 0;
    for (size_t i = 0; i < f->ring_n; i++) {
        size_t count = f->plan.units[f->ring[i]].count;

        if (count > ret[i % 2])
            ret[i % 2] = count;
    }
}

static bool shares_value(const struct er_fsdp *f, size_t unit)
{
    return f->place[unit] != SIZE_MAX && f->opts.strategy == ER_FSDP_FULL;
}

static size_t elements_of(const struct er_fsdp *f)
{
    size_t ring[2], sum;

    ring_counts(f, ring);
    sum = blocks_n(f) * f->plan.total + ring[0] + ring[1];
    if (f->opts.strategy == ER_FSDP_FULL)
        sum += ring[0] + ring[1];
    if (f->opts.exact_shards > 0)
        sum += FLOATS_A_SUM * (f->plan.total + ring[0] + ring[1]);
    for (size_t u = 0; u < f->plan.units_n; u++) {
        size_t count = f->plan.units[u].count;

        sum += shares_value(f, u) ? 0 : count;
        if (f->place[u] == SIZE_MAX)
            sum += count * (f->opts.exact_shards > 0 ? 1 + FLOATS_A_SUM : 1);
    }
    return sum;
}

/* Every count is a whole number of cache lines, so what is taken is what elements_of() says. */
static float *take(struct er_fsdp *f, size_t elements)
{
    return er_pool_alloc(f->pool, elements * sizeof(float), ER_FLAT_ALIGN);
}

static int64_t *take_sums(struct er_fsdp *f, size_t elements)
{
    return f->opts.exact_shards > 0 ? (int64_t *)(void *)take(f, FLOATS_A_SUM * elements) : NULL;
}

static int take_memory(struct er_fsdp *f, struct er_error *err)
{
    float *value[2] = {NULL, NULL}, *grad[2];
    int64_t *sums[2];
    size_t ring[2];
    int rc;

    f->bytes = elements_of(f) * sizeof(float);
    rc = er_pool_new(&f->pool, f->bytes, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "sharded parameters");
    for (size_t i = 0; i < blocks_n(f); i++)
        f->block[i] = take(f, f->plan.total);
    f->sums = take_sums(f, f->plan.total);
    ring_counts(f, ring);
    for (int i = 0; i < 2; i++) {
        grad[i] = take(f, ring[i]);
        sums[i] = take_sums(f, ring[i]);
        if (f->opts.strategy == ER_FSDP_FULL)
            value[i] = take(f, ring[i]);
    }
    for (size_t u = 0; u < f->plan.units_n; u++) {
        size_t place = f->place[u], count = f->plan.units[u].count;

        f->units[u].value = shares_value(f, u) ? value[place % 2] : take(f, count);
        f->units[u].grad = place == SIZE_MAX ? take(f, count) : grad[place % 2];
        f->units[u].sums = place == SIZE_MAX ? take_sums(f, count) : sums[place % 2];
    }
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
    f->rank = er_comm_rank(comm);
    f->opts = opts ? *opts : (struct er_fsdp_opts){0};
    rc = check_exact(f, err);
    f->opts.passes = f->opts.passes ? f->opts.passes : 1;
    if (rc == 0)
        rc = make_plan(f, flat, units, n, err);
    if (rc == 0)
        rc = take_memory(f, err);
    if (rc == 0)
        rc = describe(f, err);
    if (rc < 0)
        return rc;
    for (size_t p = 0; p < flat->params_n; p++)
        f->unit_of[p] = (uint32_t)er_fsdp_unit_of(&f->plan, p);
    er_fsdp_forget(f);
    *ret = ER_TAKE(f);
    return 0;
}

void er_fsdp_close(struct er_fsdp *f)
{
    int saved = errno;

    if (f) {
        er_pool_free(f->pool);
        free(f->plan.units);
        free(f->units);
        free(f->ring);
        free(f->place);
        free(f->unit_of);
        free(f->layout);
        free(f);
    }
    errno = saved;
}

void er_fsdp_attach(struct er_fsdp *f, struct er_tape *tape)
{
    f->tape = tape;
    /* An operation is recorded when an input has a gradient: the place does not matter yet. */
    for (size_t p = 0; p < f->plan.flat->params_n; p++)
        er_tape_param(tape, p)->grad = f->units[f->unit_of[p]].grad;
    er_tape_use_hook(tape, er_fsdp_use, f);
}

static int fill_unit(struct er_fsdp *f, size_t unit, er_fsdp_fill_fn fill, void *user,
                     struct er_error *err)
{
    const struct er_fsdp_unit *plan = &f->plan.units[unit];
    float *whole = f->units[unit].value;
    const struct er_sync_part part = {plan->name, whole, plan->count * sizeof(float)};
    int rc;

    memset(whole, 0, plan->count * sizeof(float));
    for (size_t p = plan->first; p < plan->first + plan->params_n; p++)
        fill(user, p, whole + er_fsdp_param_at(&f->plan, p));
    rc = er_sync_parts(f->comm, &part, 1, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "first values of unit '%s'", plan->name);
    memcpy(f->block[ER_FLAT_VALUE] + plan->mine, whole + plan->shard * (size_t)f->rank,
           plan->shard * sizeof(float));
    return 0;
}

int er_fsdp_fill(struct er_fsdp *f, er_fsdp_fill_fn fill, void *user, struct er_error *err)
{
    int rc = 0;

    for (size_t u = 0; u < f->plan.units_n && rc == 0; u++)
        rc = fill_unit(f, u, fill, user, err);
    er_fsdp_forget(f);
    return rc;
}

/* ---- steps ---- */

void er_fsdp_eval(struct er_fsdp *f, bool on)
{
    f->evaluating = on;
    f->in_pass = false;
}

static uint64_t count_nonfinite(const struct er_fsdp *f)
{
    uint64_t n = 0;

    for (size_t i = 0; i < f->plan.total; i++)
        n += isfinite(f->block[ER_FLAT_GRAD][i]) ? 0 : 1;
    return n;
}

/* Exact mode: of all ranks' sums; rank 0 puts it into the vote. A sum of floats would depend on how
 * many ranks there are. */
static int exact_norm2(struct er_fsdp *f, double *ret, struct er_error *err)
{
    size_t size = (size_t)er_comm_size(f->comm);
    ER_CLEANUP(er_cleanup_free) struct er_exact_norm *all = calloc(size, sizeof(*all));
    struct er_exact_norm mine = er_exact_norm_of(&f->scale, f->sums, f->plan.total);
    int rc;

    if (!all)
        return er_error_set(err, -ENOMEM, "norms of %zu ranks", size);
    rc = er_sync_gather(f->comm, &mine, sizeof(mine), all, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "norm of the gradients");
    for (size_t rank = 1; rank < size; rank++)
        er_exact_norm_add(&all[0], &all[rank]);
    *ret = f->rank == 0 ? er_exact_norm_value(&f->scale, &all[0]) : 0;
    return 0;
}

/* What this rank adds to the vote. */
static int look_at_sums(struct er_fsdp *f, struct er_vote *vote, struct er_error *err)
{
    double norm2 = 0;
    int rc = 0;

    if (f->sums) {
        vote->nonfinite += f->outside;
        f->outside = 0;
    } else if (f->opts.count_nonfinite) {
        vote->nonfinite += count_nonfinite(f);
    }
    if (f->opts.norm2 && f->sums)
        rc = exact_norm2(f, &norm2, err);
    else if (f->opts.norm2)
        norm2 = er_optim_norm2(f->block[ER_FLAT_GRAD], f->plan.total);
    vote->norm2 += norm2;
    return rc;
}

int er_fsdp_finish(struct er_fsdp *f, struct er_vote *vote, struct er_error *err)
{
    const struct er_error misuse = ER_ERROR_INIT;
    uint64_t reduced_us;
    int rc = er_fsdp_complete(f, err);

    if (rc < 0)
        return rc;
    reduced_us = er_now_us();
    rc = look_at_sums(f, vote, err);
    if (rc < 0)
        return rc;
    f->times = (struct er_ddp_times){.comm_us = reduced_us - f->first_us,
                                     .exposed_us = f->exposed_us,
                                     .buckets = f->plan.units_n};
    vote->order_hash = f->order_hash;
    er_fsdp_forget(f);
    f->first_us = f->exposed_us = 0;
    rc = er_vote_hold(f->comm, vote, &misuse, err);
    f->times.vote_us = er_now_us() - reduced_us;
    return rc;
}

void er_fsdp_drop(struct er_fsdp *f)
{
    memset(f->block[ER_FLAT_GRAD], 0, f->plan.total * sizeof(float));
    if (f->sums)
        memset(f->sums, 0, f->plan.total * sizeof(*f->sums));
}

void er_fsdp_take(struct er_fsdp *f, double weight)
{
    if (f->sums)
        er_exact_mean(&f->scale, f->sums, f->block[ER_FLAT_GRAD], f->plan.total, weight);
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

size_t er_fsdp_slices(const struct er_fsdp *f, struct er_slice *ret)
{
    const struct er_flat *flat = f->plan.flat;
    size_t n = 0;

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
    return f->bytes;
}

struct er_ddp_times er_fsdp_last_times(const struct er_fsdp *f)
{
    return f->times;
}
