#include "base/clock.h"
#include "trainer/shadow.h"

static const char *name_of(const struct er_fsdp *f, size_t unit)
{
    return f->plan.units[unit].name;
}

/* A communicator that has failed stays so: every later use says why. */
static int fail(struct er_fsdp *f, int rc, const char *what, size_t unit, struct er_error *err)
{
    if (!f->failure.code) {
        if (err)
            f->failure = *err;
        er_error_wrap(&f->failure, rc, "%s of unit '%s'", what, name_of(f, unit));
    }
    return er_error_set(err, f->failure.code, "%s", f->failure.text);
}

static const char gathering[] = "gathering", reducing[] = "reducing the gradients",
                  forwarding[] = "forwarding the gradients";

static int wait_op(struct er_fsdp *f, struct er_op *op, size_t unit, const char *what,
                   struct er_error *err)
{
    uint64_t begun_us = er_now_us();
    int rc = er_op_wait(op, UINT64_MAX, err);

    f->exposed_us += er_now_us() - begun_us;
    return rc < 0 ? fail(f, rc, what, unit, err) : 0;
}

static int wait_oldest(struct er_fsdp *f, struct er_error *err)
{
    const struct er_fsdp_flight *oldest = &f->flight[f->flight_done++ % ER_FSDP_FLIGHT_MAX];

    return wait_op(f, oldest->op, oldest->unit, oldest->what, err);
}

int er_fsdp_arrived(void *user, struct er_error *err)
{
    struct er_fsdp *f = user;
    int rc = f->failure.code ? er_error_set(err, f->failure.code, "%s", f->failure.text) : 0;

    while (rc == 0 && f->flight_done < f->flight_begun)
        rc = wait_oldest(f, err);
    return rc;
}

/* What is issued from now on has the operation's result: the host waits for it, or a GPU's stream,
 * and the host asks later whether it was one. */
static int use_result(struct er_fsdp *f, struct er_op *op, size_t unit, const char *what,
                      struct er_error *err)
{
    int rc = 0;

    if (!f->engine->device)
        return wait_op(f, op, unit, what, err);
    if (f->flight_begun - f->flight_done == ER_FSDP_FLIGHT_MAX)
        rc = wait_oldest(f, err);
    if (rc < 0)
        return rc;
    rc = er_op_before(op, f->engine->stream, err);
    if (rc < 0)
        return fail(f, rc, what, unit, err);
    f->flight[f->flight_begun++ % ER_FSDP_FLIGHT_MAX] = (struct er_fsdp_flight){op, unit, what};
    return 0;
}

/* Operations begun from now on find what was issued so far. */
static int after_work(struct er_fsdp *f, size_t unit, const char *what, struct er_error *err)
{
    int rc = f->engine->stream ? er_comm_after(f->comm, f->engine->stream, err) : 0;

    return rc < 0 ? fail(f, rc, what, unit, err) : 0;
}

static int await_gather(struct er_fsdp *f, size_t unit, struct er_error *err)
{
    struct er_fsdp_gathered *u = &f->units[unit];
    int rc;

    if (u->state != ER_FSDP_GATHERING)
        return 0;
    rc = use_result(f, u->gather, unit, gathering, err);
    if (rc == 0)
        u->state = ER_FSDP_HERE;
    return rc;
}

/* Whoever is in the memory that `unit` needs goes. */
static int make_room(struct er_fsdp *f, size_t unit, struct er_error *err)
{
    size_t *owner = &f->owner[f->place[unit] % 2];
    int rc = 0;

    if (f->opts.strategy != ER_FSDP_FULL || f->place[unit] == SIZE_MAX)
        return 0;
    if (*owner != SIZE_MAX && *owner != unit) {
        rc = await_gather(f, *owner, err);
        f->units[*owner].state = ER_FSDP_AWAY;
    }
    *owner = unit;
    return rc;
}

static int begin_gather(struct er_fsdp *f, size_t unit, struct er_error *err)
{
    const struct er_fsdp_unit *plan = &f->plan.units[unit];
    struct er_fsdp_gathered *u = &f->units[unit];
    const enum er_dtype type = f->opts.param_dtype;
    void *mine = f->block[ER_FLAT_VALUE] + plan->mine;
    int rc;

    if (u->state != ER_FSDP_AWAY)
        return 0;
    rc = make_room(f, unit, err);
    if (rc == 0 &&
        type != ER_F32) { /* to this rank's block of what is gathered, from where it goes */
        mine = er_fsdp_at(u->value, type, plan->shard * (size_t)f->rank);
        rc = f->engine->ops->convert(f->engine, f->block[ER_FLAT_VALUE] + plan->mine, ER_F32, mine,
                                     type, plan->shard, err);
    }
    if (rc == 0)
        rc = after_work(f, unit, gathering, err);
    if (rc < 0)
        return rc;
    rc = er_all_gather_to(f->comm, mine, u->value, plan->shard, type, &u->gather, err);
    if (rc < 0)
        return fail(f, rc, gathering, unit, err);
    f->wire_bytes += plan->count * er_dtype_size(type);
    if (!f->first_us)
        f->first_us = er_now_us();
    u->state = ER_FSDP_GATHERING;
    return 0;
}

/* Sums arrive in the shard at once. */
static bool is_direct(const struct er_fsdp *f)
{
    return f->opts.passes == 1 && f->opts.reduce_dtype == ER_F32;
}

/* Where the sums arrive: in the shard; of several passes, or of 16 bits, in place, in this rank's
 * block of the gathered gradients, from where they are added. */
static void *reduced_of(const struct er_fsdp *f, size_t unit)
{
    const struct er_fsdp_unit *plan = &f->plan.units[unit];

    if (is_direct(f))
        return f->block[ER_FLAT_GRAD] + plan->mine;
    return er_fsdp_at(f->units[unit].grad, f->opts.reduce_dtype, plan->shard * (size_t)f->rank);
}

/* The same of exact mode, always in place: sums are of several passes. */
static int64_t *exact_reduced_of(const struct er_fsdp *f, size_t unit)
{
    return f->units[unit].sums + f->plan.units[unit].shard * (size_t)f->rank;
}

static int begin_scatter(struct er_fsdp *f, size_t unit, struct er_error *err)
{
    const struct er_fsdp_unit *plan = &f->plan.units[unit];
    struct er_fsdp_gathered *u = &f->units[unit];
    int rc = 0;

    u->pass = f->passes;
    if (f->sums)
        rc = f->engine->ops->exact_put(f->engine, &f->scale, u->sums, u->grad, plan->count, false,
                                       &f->outside, err);
    if (rc == 0)
        rc = after_work(f, unit, reducing, err);
    if (rc < 0)
        return rc;
    rc = f->sums ? er_reduce_scatter(f->comm, u->sums, exact_reduced_of(f, unit), plan->shard,
                                     ER_I64, ER_SUM, &u->scatter, err)
                 : er_reduce_scatter(f->comm, u->grad, reduced_of(f, unit), plan->shard,
                                     f->opts.reduce_dtype, ER_SUM, &u->scatter, err);
    f->wire_bytes +=
        plan->count * (f->sums ? sizeof(*f->sums) : er_dtype_size(f->opts.reduce_dtype));
    return rc < 0 ? fail(f, rc, reducing, unit, err) : 0;
}

/* What a pass left of a unit, to the shard's sums. */
static int add_reduced(struct er_fsdp *f, size_t unit, struct er_error *err)
{
    const struct er_fsdp_unit *plan = &f->plan.units[unit];

    if (f->sums)
        return f->engine->ops->exact_sum(f->engine, f->sums + plan->mine, exact_reduced_of(f, unit),
                                         plan->shard, err);
    if (is_direct(f))
        return 0;
    return f->engine->ops->add(f->engine, f->block[ER_FLAT_GRAD] + plan->mine, reduced_of(f, unit),
                               f->opts.reduce_dtype, plan->shard, err);
}

static int await_scatter(struct er_fsdp *f, size_t unit, struct er_error *err)
{
    struct er_fsdp_gathered *u = &f->units[unit];
    int rc;

    if (!u->scatter)
        return 0;
    rc = use_result(f, u->scatter, unit, reducing, err);
    u->scatter = NULL;
    if (rc == 0)
        rc = add_reduced(f, unit, err);
    if (rc < 0 || u->pass != f->opts.passes)
        return rc;
    rc = er_shadow_forward(f, unit, err);
    return rc < 0 ? fail(f, rc, forwarding, unit, err) : 0;
}

/* The tape's leaves of a unit are where it was gathered; their gradients begin at 0, padding and
 * parameters that get none included. */
static void point_leaves(struct er_fsdp *f, size_t unit)
{
    const struct er_fsdp_unit *plan = &f->plan.units[unit];
    struct er_fsdp_gathered *u = &f->units[unit];

    for (size_t p = plan->first; f->tape && p < plan->first + plan->params_n; p++) {
        struct er_tensor *leaf = er_tape_param(f->tape, p);
        size_t at = er_fsdp_param_at(&f->plan, p);

        leaf->value = er_fsdp_at(u->value, leaf->dtype, at);
        leaf->grad = er_fsdp_at(u->grad, leaf->grad_dtype, at);
    }
}

/* Whoever had this memory for gradients, in this pass or the one before, is done with it. */
static int begin_grads(struct er_fsdp *f, size_t unit, struct er_error *err)
{
    size_t bytes = f->plan.units[unit].count * er_dtype_size(f->opts.reduce_dtype);
    int rc = await_scatter(f, unit, err);

    for (size_t i = f->place[unit] % 2; f->place[unit] != SIZE_MAX && i < f->ring_n && rc == 0;
         i += 2)
        rc = await_scatter(f, f->ring[i], err);
    return rc ? rc
              : f->engine->ops->fill(f->engine, f->units[unit].grad, 0.0f, bytes / sizeof(float),
                                     err);
}

static bool is_backward(const struct er_fsdp *f, size_t position)
{
    return position >= f->ring_n;
}

static size_t unit_at(const struct er_fsdp *f, size_t position)
{
    return f->ring[is_backward(f, position) ? 2 * f->ring_n - 1 - position : position];
}

/* The unit of `position` comes, and behind it begins the next one. */
static int enter(struct er_fsdp *f, size_t position, struct er_error *err)
{
    size_t unit = unit_at(f, position);
    int rc = begin_gather(f, unit, err);

    if (rc == 0)
        rc = await_gather(f, unit, err);
    if (rc == 0 && is_backward(f, position))
        rc = begin_grads(f, unit, err);
    if (rc < 0)
        return rc;
    f->position = position;
    point_leaves(f, unit);
    return position + 1 < 2 * f->ring_n ? begin_gather(f, unit_at(f, position + 1), err) : 0;
}

static int leave(struct er_fsdp *f, struct er_error *err)
{
    if (!is_backward(f, f->position))
        return 0;
    return begin_scatter(f, unit_at(f, f->position), err);
}

static int advance(struct er_fsdp *f, size_t to, struct er_error *err)
{
    int rc = 0;

    while (rc == 0 && f->position < to) {
        rc = leave(f, err);
        if (rc == 0)
            rc = enter(f, f->position + 1, err);
    }
    return rc;
}

/* Units that stay come first and are reduced last. */
static int begin_kept(struct er_fsdp *f, struct er_error *err)
{
    int rc = 0;

    for (size_t u = 0; u < f->plan.units_n && rc == 0; u++) {
        if (f->place[u] == SIZE_MAX)
            rc = begin_gather(f, u, err);
    }
    for (size_t u = 0; u < f->plan.units_n && rc == 0; u++) {
        if (f->place[u] != SIZE_MAX)
            continue;
        rc = await_gather(f, u, err);
        if (rc == 0 && !f->evaluating)
            rc = begin_grads(f, u, err);
        point_leaves(f, u);
    }
    return rc;
}

static int begin_pass(struct er_fsdp *f, struct er_error *err)
{
    int rc;

    if (!f->evaluating && f->passes == f->opts.passes)
        return er_error_set(err, ER_E_USAGE,
                            "forward pass %u of a step: er_fsdp_opts.passes says %u", f->passes + 1,
                            f->opts.passes);
    rc = begin_kept(f, err);
    if (rc < 0)
        return rc;
    f->in_pass = true;
    if (!f->evaluating)
        f->passes++;
    return f->ring_n > 0 ? enter(f, 0, err) : 0;
}

static int end_pass(struct er_fsdp *f, struct er_error *err)
{
    int rc = 0;

    f->in_pass = false;
    if (f->evaluating)
        return 0;
    if (f->ring_n > 0) {
        rc = advance(f, 2 * f->ring_n - 1, err);
        if (rc == 0)
            rc = leave(f, err);
    }
    for (size_t u = 0; u < f->plan.units_n && rc == 0; u++) {
        if (f->place[u] == SIZE_MAX)
            rc = begin_scatter(f, u, err);
    }
    return rc;
}

/* A use that the schedule has passed: the next pass begins, or the model does not keep to the order
 * of its units. */
static int go_back(struct er_fsdp *f, size_t unit, bool backward, struct er_error *err)
{
    bool over = f->evaluating ? f->place[unit] == 0 : is_backward(f, f->position);
    int rc;

    if (backward || !over)
        return er_error_set(err, ER_E_USAGE,
                            "unit '%s' is used after '%s': units are used one after another; one "
                            "that is used in several places is to be kept (er_fsdp_unit.keep)",
                            name_of(f, unit), name_of(f, unit_at(f, f->position)));
    rc = end_pass(f, err);
    if (rc == 0)
        rc = begin_pass(f, err);
    return rc < 0 ? rc : advance(f, f->place[unit], err);
}

int er_fsdp_use(void *user, size_t param, bool backward, struct er_error *err)
{
    struct er_fsdp *f = user;
    size_t unit = f->unit_of[param], to;
    int rc = 0;

    if (f->failure.code)
        return er_error_set(err, f->failure.code, "%s", f->failure.text);
    if (!f->in_pass)
        rc = begin_pass(f, err);
    if (rc < 0 || f->place[unit] == SIZE_MAX)
        return rc;
    to = backward ? 2 * f->ring_n - 1 - f->place[unit] : f->place[unit];
    return to < f->position ? go_back(f, unit, backward, err) : advance(f, to, err);
}

/* What this rank keeps for another one is here as well. */
static int await_shadow(struct er_fsdp *f, struct er_error *err)
{
    uint64_t begun_us = er_now_us();
    int rc = er_shadow_await(f, err);

    f->exposed_us += er_now_us() - begun_us;
    return rc < 0 ? fail(f, rc, forwarding, f->plan.units_n - 1, err) : 0;
}

int er_fsdp_complete(struct er_fsdp *f, struct er_error *err)
{
    uint64_t begun_us;
    int rc = f->failure.code ? er_error_set(err, f->failure.code, "%s", f->failure.text) : 0;

    if (rc == 0 && f->in_pass)
        rc = end_pass(f, err);
    while (rc == 0 && f->passes < f->opts.passes) {
        rc = begin_pass(f, err);
        if (rc == 0)
            rc = end_pass(f, err);
    }
    for (size_t u = f->plan.units_n; u-- > 0 && rc == 0;)
        rc = await_scatter(f, u, err);
    begun_us = er_now_us();
    if (rc == 0)
        rc = er_fsdp_arrived(f, err);
    if (f->engine->device) /* before, the host was ahead of the GPU's work */
        f->exposed_us = er_now_us() - begun_us;
    if (rc == 0)
        rc = await_shadow(f, err);
    return rc;
}

void er_fsdp_forget(struct er_fsdp *f)
{
    for (size_t u = 0; u < f->plan.units_n; u++)
        f->units[u].state = ER_FSDP_AWAY;
    f->owner[0] = f->owner[1] = SIZE_MAX;
    f->passes = 0;
}
