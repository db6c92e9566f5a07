#include "trainer/fsdp_plan.h"

#include "trainer/reshard.h"

_Static_assert(ER_SHARD_LINE * sizeof(float) == ER_FLAT_ALIGN, "shards are whole cache lines");

int er_fsdp_plan_make(struct er_fsdp_plan *plan, struct er_error *err)
{
    const struct er_flat *flat = plan->flat;
    size_t next = 0;

    plan->total = 0;
    for (size_t u = 0; u < plan->units_n; u++) {
        struct er_fsdp_unit *unit = &plan->units[u];
        size_t end = unit->first + unit->params_n;

        if (!unit->name || !unit->name[0] || unit->params_n == 0)
            return er_error_set(err, ER_E_USAGE, "unit %zu: it needs a name and parameters", u);
        if (unit->first != next || unit->params_n > flat->params_n - next)
            return er_error_set(err, ER_E_USAGE,
                                "unit '%s': parameters %zu to %zu, the next one of the %zu is %zu",
                                unit->name, unit->first, end - 1, flat->params_n, next);
        next = end;
        unit->elements = (end < flat->params_n ? flat->params[end].first : flat->total) -
                         flat->params[unit->first].first;
        unit->shard = er_shard_elements(unit->elements, (uint32_t)plan->size);
        unit->count = unit->shard * (size_t)plan->size;
        unit->mine = plan->total;
        plan->total += unit->shard;
    }
    if (next != flat->params_n)
        return er_error_set(err, ER_E_USAGE, "parameter '%s' is in no unit",
                            flat->params[next].name);
    return 0;
}

size_t er_fsdp_unit_of(const struct er_fsdp_plan *plan, size_t param)
{
    size_t u = 0;

    while (u + 1 < plan->units_n && plan->units[u + 1].first <= param)
        u++;
    return u;
}

size_t er_fsdp_param_at(const struct er_fsdp_plan *plan, size_t param)
{
    const struct er_fsdp_unit *unit = &plan->units[er_fsdp_unit_of(plan, param)];

    return plan->flat->params[param].first - plan->flat->params[unit->first].first;
}

struct er_fsdp_piece er_fsdp_piece_of(const struct er_fsdp_plan *plan, size_t param, int rank)
{
    const struct er_fsdp_unit *unit = &plan->units[er_fsdp_unit_of(plan, param)];
    size_t at = er_fsdp_param_at(plan, param), end = at + plan->flat->params[param].count;
    size_t from = unit->shard * (size_t)rank, to = from + unit->shard;
    size_t first = at > from ? at : from, last = end < to ? end : to;

    if (first >= last)
        return (struct er_fsdp_piece){0};
    return (struct er_fsdp_piece){
        .offset = first - at, .count = last - first, .mine = unit->mine + (first - from)};
}
