/* One process, several devices: what one thread computes on the whole batch, the same bits every
 * time, and what the primary moves against the others. */
#include "trainer/dp.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "tests/lib/tap.h"
#include "trainer/matmul.h"
#include "trainer/ops/ops.h"
#include "trainer/optim.h"
#include "trainer/sampler.h"

enum { INPUTS = 20, HIDDEN = 33, CLASSES = 5, PARAMS = 4, SAMPLES = 61, STEPS = 12, DEVICES = 5 };

struct model {
    struct er_flat_param table[PARAMS];
    struct er_flat flat;
    void *memory;
    float x[SAMPLES * INPUTS];
    int32_t y[SAMPLES];
    unsigned bad_device; /* + 1; 0: none */
    size_t seen[DEVICES];
};

static void fill(struct model *model)
{
    for (size_t i = 0; i < SAMPLES * INPUTS; i++)
        model->x[i] = (float)(er_rng(1, i, 0, 0) >> 40) * 0x1p-24f;
    for (size_t i = 0; i < SAMPLES; i++)
        model->y[i] = (int32_t)(er_rng(1, i, 1, 0) % CLASSES);
    for (size_t p = 0; p < PARAMS; p += 2) {
        for (size_t i = 0; i < model->table[p].count; i++)
            er_flat_at(&model->flat, ER_FLAT_VALUE, p)[i] =
                0.3f * ((float)(er_rng(2, i, (uint32_t)p, 0) >> 40) * 0x1p-23f - 1);
    }
}

static struct model *new_model(void)
{
    static const char *const names[PARAMS] = {"w1", "b1", "w2", "b2"};
    const struct er_shape shapes[PARAMS] = {er_shape_2d(HIDDEN, INPUTS), er_shape_1d(HIDDEN),
                                            er_shape_2d(CLASSES, HIDDEN), er_shape_1d(CLASSES)};
    struct model *model = calloc(1, sizeof(*model));

    er_tap_require(model && er_matmul_setup(NULL) == 0);
    er_flat_init(&model->flat, model->table, PARAMS, er_optim_state_names(ER_OPTIM_SGD),
                 er_optim_states_n(ER_OPTIM_SGD));
    for (size_t p = 0; p < PARAMS; p++)
        er_tap_require(er_flat_add(&model->flat, names[p], &shapes[p], NULL, NULL) == 0);
    model->memory = aligned_alloc(ER_FLAT_ALIGN, er_flat_bytes(&model->flat));
    er_tap_require(model->memory != NULL);
    er_flat_bind(&model->flat, model->memory);
    fill(model);
    return model;
}

static void free_model(struct model *model)
{
    free(model->memory);
    free(model);
}

static int forward_backward(void *user, const struct er_dp_part *part, struct er_loss *ret,
                            struct er_error *err)
{
    struct model *model = user;
    struct er_shape shape = er_shape_2d(part->samples, INPUTS);
    struct er_tape *tape = part->tape;
    struct er_tensor *x, *loss;
    int rc;

    model->seen[part->device] += part->samples;
    if (part->device + 1 == model->bad_device)
        return er_error_set(err, -EIO, "the device is gone");
    rc = er_tape_begin(tape, err);
    if (rc == 0)
        rc = er_tape_input(tape, "x", &shape, part->in[0], &x, err);
    if (rc == 0)
        rc = er_linear(tape, x, er_tape_param(tape, 0), er_tape_param(tape, 1), &x, err);
    if (rc == 0)
        rc = er_relu(tape, x, &x, err);
    if (rc == 0)
        rc = er_linear(tape, x, er_tape_param(tape, 2), er_tape_param(tape, 3), &x, err);
    if (rc == 0)
        rc = er_cross_entropy(tape, x, part->in[1], &ret->sum, &loss, err);
    ret->weight = (double)part->samples;
    return rc == 0 ? er_tape_backward(tape, loss, err) : rc;
}

static int step(struct er_dp *dp, struct model *model, size_t samples, struct er_loss *ret,
                struct er_error *err)
{
    const struct er_dp_input in[] = {{model->x, INPUTS * sizeof(float)},
                                     {model->y, sizeof(int32_t)}};

    return er_dp_step(dp, in, ER_ARRAY_N(in), samples, forward_backward, model, ret, err);
}

static struct er_dp *open_dp(const struct model *model, unsigned devices)
{
    struct er_dp *dp = NULL;

    er_tap_require(er_dp_open(&dp, &model->flat, &(struct er_dp_opts){.devices = devices}, NULL) ==
                   0);
    return dp;
}

/* Trains on batches of the given sizes in turn; returns the model, and the last loss. */
static struct model *train(unsigned devices, const size_t *sizes, size_t sizes_n, double *ret_loss)
{
    const struct er_optim optim = er_optim_sgd();
    struct model *model = new_model();
    struct er_optim_view view = er_optim_view_flat(&model->flat);
    struct er_dp *dp = open_dp(model, devices);

    for (uint64_t s = 1; s <= STEPS; s++) {
        struct er_error err = ER_ERROR_INIT;
        struct er_loss loss;

        if (!er_tap_check(step(dp, model, sizes[s % sizes_n], &loss, &err) == 0))
            er_tap_note("%s", err.text);
        er_tap_check(loss.weight == (double)sizes[s % sizes_n]);
        er_optim_apply(&optim, &view, s, 0.1, 1 / loss.weight);
        *ret_loss = loss.sum / loss.weight;
    }
    er_dp_close(dp);
    return model;
}

static bool nearly(const struct model *a, const struct model *b)
{
    const float *x = a->flat.block[ER_FLAT_VALUE], *y = b->flat.block[ER_FLAT_VALUE];
    float largest = 0, off = 0;

    for (size_t i = 0; i < a->flat.total; i++) {
        largest = fmaxf(largest, fabsf(x[i]));
        off = fmaxf(off, fabsf(x[i] - y[i]));
    }
    return largest > 0 && off <= 1e-5f * largest;
}

/* Whole batches, uneven ones, and some with fewer samples than devices. */
static void devices_are_like_one_thread(void)
{
    static const size_t sizes[] = {SAMPLES, 60, 3, 1};
    double one_loss, loss;
    struct model *one = train(1, sizes, ER_ARRAY_N(sizes), &one_loss);

    for (unsigned devices = 2; devices <= DEVICES; devices++) {
        struct model *many = train(devices, sizes, ER_ARRAY_N(sizes), &loss);

        er_tap_check(nearly(one, many));
        er_tap_check(fabs(loss - one_loss) <= 1e-5 * fabs(one_loss));
        free_model(many);
    }
    free_model(one);
}

static void two_runs_have_the_same_bits(void)
{
    static const size_t sizes[] = {SAMPLES};
    double loss;
    struct model *a = train(4, sizes, 1, &loss), *b = train(4, sizes, 1, &loss);

    er_tap_check(memcmp(a->flat.block[ER_FLAT_VALUE], b->flat.block[ER_FLAT_VALUE],
                        a->flat.total * sizeof(float)) == 0);
    free_model(a);
    free_model(b);
}

static void micro_steps_add_up(void)
{
    struct model *twice = new_model(), *once = new_model();
    struct er_dp *dp = open_dp(twice, 3), *other = open_dp(once, 3);
    struct er_loss loss;

    er_tap_check(step(dp, twice, SAMPLES, &loss, NULL) == 0);
    er_tap_check(step(dp, twice, SAMPLES, &loss, NULL) == 0);
    er_tap_check(step(other, once, SAMPLES, &loss, NULL) == 0);
    for (size_t i = 0; i < once->flat.total; i++) {
        float sum = twice->flat.block[ER_FLAT_GRAD][i], one = once->flat.block[ER_FLAT_GRAD][i];

        er_tap_check(fabsf(sum - 2 * one) <= 1e-5f * fmaxf(1, fabsf(sum)));
    }
    er_dp_close(dp);
    er_dp_close(other);
    free_model(twice);
    free_model(once);
}

static void the_primary_moves_what_the_others_do_together(void)
{
    struct model *model = new_model();
    struct er_dp *dp = open_dp(model, 4);
    struct er_loss loss;
    uint64_t others = 0;

    er_tap_check(step(dp, model, 60, &loss, NULL) == 0);
    for (unsigned i = 1; i < 4; i++) {
        others += er_dp_use(dp, i).bytes;
        er_tap_check(er_dp_use(dp, i).bytes ==
                     2 * model->flat.total * sizeof(float) + 15 * (INPUTS + 1) * sizeof(float));
        er_tap_check(model->seen[i] == 15);
    }
    er_tap_check(er_dp_use(dp, 0).bytes == others);
    er_dp_close(dp);
    free_model(model);
}

static void a_device_that_fails_is_named(void)
{
    struct model *model = new_model();
    struct er_dp *dp = open_dp(model, 3);

    for (unsigned bad = 0; bad < 3; bad++) {
        struct er_error err = ER_ERROR_INIT;
        struct er_loss loss;
        char expected[64];

        snprintf(expected, sizeof(expected), "device %u: the device is gone", bad);
        model->bad_device = bad + 1;
        er_tap_check(step(dp, model, SAMPLES, &loss, &err) == -EIO);
        er_tap_check(strcmp(err.text, expected) == 0);
        model->bad_device = 0;
        er_tap_check(step(dp, model, SAMPLES, &loss, &err) == 0); /* they still work */
    }
    er_dp_close(dp);
    free_model(model);
}

static void wrong_numbers_are_refused(void)
{
    struct model *model = new_model();
    struct er_error err = ER_ERROR_INIT;
    struct er_dp *dp = NULL;

    er_tap_check(er_dp_open(&dp, &model->flat, &(struct er_dp_opts){0}, &err) == ER_E_USAGE);
    er_tap_check(er_dp_open(&dp, &model->flat,
                            &(struct er_dp_opts){.devices = ER_DP_DEVICES_MAX + 1},
                            &err) == ER_E_USAGE);
    er_tap_check(strstr(err.text, "65 devices") != NULL);
    free_model(model);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"devices_are_like_one_thread", devices_are_like_one_thread, 0},
        {"two_runs_have_the_same_bits", two_runs_have_the_same_bits, 0},
        {"micro_steps_add_up", micro_steps_add_up, 0},
        {"the_primary_moves_what_the_others_do_together",
         the_primary_moves_what_the_others_do_together, 0},
        {"a_device_that_fails_is_named", a_device_that_fails_is_named, 0},
        {"wrong_numbers_are_refused", wrong_numbers_are_refused, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
