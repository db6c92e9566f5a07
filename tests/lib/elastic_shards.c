#include "tests/lib/elastic_shards.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "trainer/fsdp_internal.h"

#define UNITS 5

static struct {
    size_t n, first[UNITS + 1]; /* of each unit's elements */
    struct er_flat flat;
    struct er_flat_param table[UNITS];
    struct er_fsdp *fsdp;
    struct er_slice slices[2 * UNITS];
} model;

void er_elastic_shards_init(size_t n)
{
    static const char *const states[] = {"momentum"};
    static char names[UNITS][8];

    model.n = n;
    er_flat_init(&model.flat, model.table, UNITS, states, 1);
    for (size_t u = 0; u < UNITS; u++) {
        model.first[u + 1] = n * (u + 1) / UNITS;
        struct er_shape shape = er_shape_1d(model.first[u + 1] - model.first[u]);

        snprintf(names[u], sizeof(names[u]), "w%zu", u);
        if (er_flat_add(&model.flat, names[u], &shape, NULL, NULL) < 0)
            _exit(89);
    }
}

static void no_values(void *user, size_t param, float *value)
{
    memset(value, 0, model.table[param].count * sizeof(float));
}

int er_elastic_shards_open(void *user, struct er_comm *comm, struct er_fsdp **ret,
                           struct er_error *err)
{
    struct er_fsdp_unit units[UNITS];
    int rc;

    for (size_t u = 0; u < UNITS; u++)
        units[u] = (struct er_fsdp_unit){
            .name = model.table[u].name, .first = u, .params_n = 1, .keep = u == 1};
    rc = er_fsdp_open(&model.fsdp, comm, &model.flat, units, UNITS, NULL, err);
    if (rc < 0)
        return rc;
    *ret = model.fsdp;
    return er_fsdp_fill(model.fsdp, no_values, NULL, err);
}

void er_elastic_shards_state(void *user, const struct er_slice **ret, size_t *ret_n)
{
    *ret = model.slices;
    *ret_n = er_fsdp_slices(model.fsdp, model.slices);
}

static void look_at(size_t unit, uint64_t id, double *loss)
{
    const float *value = model.fsdp->units[unit].value;
    size_t at = (size_t)(id % model.n);

    if (at >= model.first[unit] && at < model.first[unit + 1])
        *loss += fabs(rintf(value[at - model.first[unit]] * 1024.0f) / 1024.0f);
}

int er_elastic_shards_pass(const struct er_order *order, const struct er_range *range,
                           er_elastic_part_fn part, double *loss, struct er_error *err)
{
    const struct er_fsdp *f = model.fsdp;
    int rc = 0;

    for (size_t u = 0; u < UNITS && rc == 0; u++) {
        rc = er_fsdp_use(model.fsdp, u, false, err);
        for (uint64_t s = 0; s < range->count && rc == 0; s++)
            look_at(u, er_order_at(order, range->first + s), loss);
    }
    for (size_t u = UNITS; u-- > 0 && rc == 0;) {
        rc = er_fsdp_use(model.fsdp, u, true, err);
        for (uint64_t s = 0; s < range->count && rc == 0; s++)
            part(f->units[u].grad, f->units[u].value, model.first[u],
                 model.first[u + 1] - model.first[u], er_order_at(order, range->first + s));
    }
    return rc;
}

bool er_elastic_shards_update(double weight, float rate, float momentum)
{
    struct er_optim_view view = er_fsdp_view(model.fsdp);
    float scale = (float)(1.0 / weight);

    for (size_t i = 0; i < view.count; i++) {
        view.state[0][i] = momentum * view.state[0][i] + view.grad[i] * scale;
        view.value[i] -= rate * view.state[0][i];
        view.grad[i] = 0;
    }
    return !model.fsdp->turned;
}

/* One block, unit by unit. */
static int gather_block(struct er_comm *comm, size_t block, float *ret, struct er_error *err)
{
    const struct er_fsdp *f = model.fsdp;
    int rc = 0;

    for (size_t u = 0; u < UNITS && rc == 0; u++) {
        const struct er_fsdp_unit *unit = &f->plan.units[u];
        ER_CLEANUP(er_cleanup_free) float *whole = calloc(unit->count, sizeof(*whole));
        struct er_op *op;

        if (!whole)
            return er_error_set(err, -ENOMEM, "unit %zu", u);
        rc = er_all_gather_to(comm, f->block[block] + unit->mine, whole, unit->shard, ER_F32, &op,
                              err);
        if (rc == 0)
            rc = er_op_wait(op, UINT64_MAX, err);
        memcpy(ret + model.first[u], whole, (model.first[u + 1] - model.first[u]) * sizeof(float));
    }
    return rc;
}

int er_elastic_shards_gather(struct er_comm *comm, float *ret, struct er_error *err)
{
    int rc = gather_block(comm, ER_FLAT_VALUE, ret, err);

    return rc < 0 ? rc : gather_block(comm, ER_FLAT_STATE, ret + model.n, err);
}
