#include "tests/lib/elastic_ps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trainer/ps.h"

static struct {
    struct er_flat flat;
    struct er_flat_param table[1];
} model;

void er_elastic_ps_init(size_t n, float **ret_params, float **ret_grads)
{
    struct er_shape shape = er_shape_1d(n);
    size_t bytes;
    void *memory;

    er_flat_init(&model.flat, model.table, 1, er_optim_state_names(ER_OPTIM_SGD), 1);
    if (er_flat_add(&model.flat, "w", &shape, NULL, NULL) < 0)
        _exit(89);
    bytes = er_flat_bytes(&model.flat);
    memory =
        aligned_alloc(ER_FLAT_ALIGN, (bytes + ER_FLAT_ALIGN - 1) / ER_FLAT_ALIGN * ER_FLAT_ALIGN);
    if (!memory)
        _exit(89);
    er_flat_bind(&model.flat, memory);
    *ret_params = model.flat.block[ER_FLAT_VALUE];
    *ret_grads = model.flat.block[ER_FLAT_GRAD];
}

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text ? strtoull(text, NULL, 10) : otherwise;
}

bool er_elastic_ps_dies(const char *place, uint64_t step, int point)
{
    const char *list = getenv("WORKER_KILL");
    char entry[160];
    unsigned long from;
    int where;

    snprintf(entry, sizeof(entry), " %s:", place);
    list = list ? strstr(list, entry) : NULL;
    return list && sscanf(list + strlen(entry), "%lu:%d", &from, &where) == 2 && step >= from &&
           where == point;
}

int er_elastic_ps_run(struct er_ctx *ctx, const struct er_train_ops *ops, void *user,
                      const struct er_train_opts *opts, double rate, double momentum,
                      struct er_train_result *ret, struct er_error *err)
{
    bool apart = number("WORKER_PS", 0) > 1;
    const struct er_ps_opts ps = {
        .plan = opts->plan,
        .epochs = opts->epochs,
        .parts = (uint32_t)number("WORKER_PARTS", 4),
        .servers = (int)number("WORKER_SERVERS", 0),
        .staleness = apart ? number("WORKER_STALENESS", 2) : 0,
        .optim = {.kind = ER_OPTIM_SGD, .momentum = apart ? 0 : (float)momentum},
        .schedule = {.kind = ER_SCHEDULE_CONSTANT, .lr = apart ? 1 : rate},
        .checkpoint_steps = opts->checkpoint_steps,
        .log = opts->log,
    };

    return er_ps_run(ctx, &model.flat, ops, user, &ps, ret, err);
}
