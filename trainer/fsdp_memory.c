/* What a rank holds of a model: which units there are, and the memory of its shards and of the
 * units that are gathered. */
#include <errno.h>
#include <stdlib.h>

#include "trainer/fsdp_internal.h"
#include "trainer/sync.h"

#define FLOATS_A_SUM (sizeof(int64_t) / sizeof(float)) /* memory is counted in floats */

size_t er_fsdp_blocks_n(const struct er_fsdp *f)
{
    return ER_FLAT_STATE + f->plan.flat->states_n;
}

int er_fsdp_make_plan(struct er_fsdp *f, const struct er_flat *flat,
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

void *er_fsdp_at(void *array, enum er_dtype type, size_t at)
{
    return (char *)array + at * er_dtype_size(type);
}

/* What `elements` of a type take, as floats: whole cache lines. */
static size_t floats_of(enum er_dtype type, size_t elements)
{
    const size_t line = ER_FLAT_ALIGN;

    return (elements * er_dtype_size(type) + line - 1) / line * line / sizeof(float);
}

static size_t elements_of(const struct er_fsdp *f)
{
    const enum er_dtype value = f->opts.param_dtype, grad = f->opts.reduce_dtype;
    size_t ring[2], sum;

    ring_counts(f, ring);
    sum = er_fsdp_blocks_n(f) * f->plan.total + floats_of(grad, ring[0]) + floats_of(grad, ring[1]);
    if (f->opts.strategy == ER_FSDP_FULL)
        sum += floats_of(value, ring[0]) + floats_of(value, ring[1]);
    if (f->opts.exact_shards > 0)
        sum += FLOATS_A_SUM * (f->plan.total + ring[0] + ring[1]);
    for (size_t u = 0; u < f->plan.units_n; u++) {
        size_t count = f->plan.units[u].count;

        sum += shares_value(f, u) ? 0 : floats_of(value, count);
        if (f->place[u] == SIZE_MAX)
            sum += floats_of(grad, count) + (f->opts.exact_shards > 0 ? FLOATS_A_SUM * count : 0);
    }
    return sum;
}

/* One piece, of huge pages on the host. */
static int take_whole(struct er_fsdp *f, struct er_error *err)
{
    void *memory = NULL;
    int rc;

    if (f->engine->device) {
        rc = er_engine_alloc(f->engine, f->bytes, &memory, err);
    } else {
        rc = er_pool_new(&f->pool, f->bytes, err);
        memory = rc == 0 ? er_pool_alloc(f->pool, f->bytes, ER_FLAT_ALIGN) : NULL;
    }
    if (rc == 0 && f->engine->device)
        rc = er_device_alloc(f->engine->device, ER_MEMORY_PINNED, er_sync_notes_bytes(f->plan.size),
                             &f->notes, err);
    f->memory = f->next = memory;
    return rc < 0 ? er_error_wrap(err, rc, "sharded parameters") : 0;
}

/* Every count is a whole number of cache lines, so what is taken is what elements_of() says. */
static float *take(struct er_fsdp *f, size_t elements)
{
    float *at = f->next;

    f->next += elements;
    return at;
}

static int64_t *take_sums(struct er_fsdp *f, size_t elements)
{
    return f->opts.exact_shards > 0 ? (int64_t *)(void *)take(f, FLOATS_A_SUM * elements) : NULL;
}

int er_fsdp_take_memory(struct er_fsdp *f, struct er_error *err)
{
    const enum er_dtype value_type = f->opts.param_dtype, grad_type = f->opts.reduce_dtype;
    float *value[2] = {NULL, NULL}, *grad[2];
    int64_t *sums[2];
    size_t ring[2];
    int rc;

    f->bytes = elements_of(f) * sizeof(float);
    rc = take_whole(f, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < er_fsdp_blocks_n(f); i++)
        f->block[i] = take(f, f->plan.total);
    f->sums = take_sums(f, f->plan.total);
    ring_counts(f, ring);
    for (int i = 0; i < 2; i++) {
        grad[i] = take(f, floats_of(grad_type, ring[i]));
        sums[i] = take_sums(f, ring[i]);
        if (f->opts.strategy == ER_FSDP_FULL)
            value[i] = take(f, floats_of(value_type, ring[i]));
    }
    for (size_t u = 0; u < f->plan.units_n; u++) {
        size_t place = f->place[u], count = f->plan.units[u].count;

        f->units[u].value =
            shares_value(f, u) ? value[place % 2] : take(f, floats_of(value_type, count));
        f->units[u].grad =
            place == SIZE_MAX ? take(f, floats_of(grad_type, count)) : grad[place % 2];
        f->units[u].sums = place == SIZE_MAX ? take_sums(f, count) : sums[place % 2];
    }
    return 0;
}

void er_fsdp_free_memory(struct er_fsdp *f)
{
    if (f->engine->device) {
        er_engine_free(f->engine, f->memory);
        er_device_free(f->engine->device, ER_MEMORY_PINNED, f->notes);
    }
    er_pool_free(f->pool);
    free(f->plan.units);
    free(f->units);
    free(f->ring);
    free(f->place);
    free(f->unit_of);
}
