/*
 * Training with parameter servers: in lock-step the same bits as DDP, whoever computes which part;
 * every bound learns; a run goes on from its checkpoint. With ER_TEST_ENGINE=gpu workers compute on
 * GPUs.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/gpu_side.h"
#include "tests/lib/ranks.h"
#include "tests/lib/small_net.h"
#include "tests/lib/tap.h"
#include "tests/lib/tempdir.h"
#include "trainer/engine.h"
#include "trainer/matmul.h"
#include "trainer/ops/ops.h"
#include "trainer/ps.h"

enum { IN = 12, OUT = 5, PARAMS = 2, BATCH = 24, SAMPLES = 100, EPOCHS = 3, ELEMENTS_MAX = 256 };

struct test {
    bool ddp;
    struct er_ps_opts opts;
    char dir[ER_TEST_PATH_MAX];
    int rcs[8];
    char text[ER_ERROR_TEXT_MAX];
    uint64_t resumed_from, steps, epochs_ended;
    uint64_t lost_at; /* who has the first part of this step dies; 0: nobody */
    int differs;      /* 1 + the rank with other options; 0: none */
    double first_loss, last_loss;
    float values[ELEMENTS_MAX];
    _Atomic uint64_t parts_seen;
};

static struct test *test; /* shared by the ranks */

struct model {
    struct er_engine *engine;
    void *memory;
    struct er_flat_param table[PARAMS];
    struct er_flat flat;
    struct er_span spans[PARAMS];
    struct er_slice slices[3 * PARAMS];
    struct er_tape *tape;
    float images[BATCH * IN];
    int32_t labels[BATCH];
};

static void open_model(struct model *m, int rank)
{
    const struct er_device_opts device = er_test_device(rank);
    float matrix_values[OUT * IN];
    struct er_shape matrix = er_shape_2d(OUT, IN), vector = er_shape_1d(OUT);
    struct er_error err = ER_ERROR_INIT;

    er_tap_require(er_matmul_setup(&err) == 0);
    er_tap_require(er_engine_open(&m->engine, &device, &err) == 0);
    er_flat_init(&m->flat, m->table, PARAMS, er_optim_state_names(ER_OPTIM_ADAMW), 2);
    er_tap_require(er_flat_add(&m->flat, "w", &matrix, NULL, &err) == 0);
    er_tap_require(er_flat_add(&m->flat, "b", &vector, NULL, &err) == 0);
    er_tap_require(er_engine_alloc(m->engine, er_flat_bytes(&m->flat), &m->memory, &err) == 0);
    er_flat_place(&m->flat, m->memory);
    er_flat_spans(&m->flat, ER_FLAT_GRAD, m->spans);
    er_flat_slices(&m->flat, m->slices);
    er_tap_require(er_tape_new_on(&m->tape, &m->flat, 0, m->engine, &err) == 0);
    for (size_t i = 0; i < m->table[0].count; i++)
        matrix_values[i] = 0.3f * er_test_noise(0, 1, i);
    er_tap_require(er_engine_put(m->engine, er_flat_at(&m->flat, ER_FLAT_VALUE, 0), matrix_values,
                                 sizeof(matrix_values), &err) == 0);
}

static int grads(void *user, const struct er_step *step, struct er_loss *ret, struct er_error *err)
{
    struct model *m = user;
    uint64_t count = step->range.count;
    struct er_shape shape = er_shape_2d(count, IN);
    struct er_tensor *x, *total;
    int rc = er_tape_begin(m->tape, err);

    test->parts_seen++;
    if (test->lost_at == step->step && step->range.first == step->range.step_first)
        raise(SIGKILL); /* its server dies with it */
    *ret = (struct er_loss){.weight = (double)count};
    if (rc < 0 || count == 0)
        return rc;
    for (uint64_t s = 0; s < count; s++) {
        uint64_t sample = step->range.first + s;
        float sum = 0;

        for (uint64_t i = 0; i < IN; i++)
            sum += m->images[s * IN + i] = er_test_noise(sample, 2, i);
        m->labels[s] = sum > 1 ? 2 : sum < -1 ? 0 : 1;
    }
    rc = er_tape_input(m->tape, "images", &shape, m->images, &x, err);
    if (rc == 0)
        rc = er_linear(m->tape, x, er_tape_param(m->tape, 0), er_tape_param(m->tape, 1), &x, err);
    if (rc == 0)
        rc = er_cross_entropy(m->tape, x, m->labels, &ret->sum, &total, err);
    return rc < 0 ? rc : er_tape_backward(m->tape, total, err);
}

static int apply(void *user, uint64_t step, const struct er_vote *vote, struct er_error *err)
{
    struct model *m = user;
    struct er_optim_view view = er_optim_view_flat(&m->flat);

    return er_engine_apply(m->engine, &test->opts.optim, &view, step,
                           er_schedule_lr(&test->opts.schedule, step), 1.0 / vote->weight, err);
}

static void spans(void *user, const struct er_span **ret, size_t *ret_n)
{
    *ret = ((struct model *)user)->spans;
    *ret_n = PARAMS;
}

static void state(void *user, const struct er_slice **ret, size_t *ret_n)
{
    *ret = ((struct model *)user)->slices;
    *ret_n = 3 * PARAMS;
}

static int epoch_end(void *user, uint64_t epoch, uint64_t step, struct er_comm *comm,
                     struct er_error *err)
{
    struct model *m = user;

    if (er_comm_rank(comm) != 0)
        return 0;
    test->epochs_ended++;
    return er_engine_get(m->engine, test->values, m->flat.block[ER_FLAT_VALUE],
                         m->flat.total * sizeof(float), err);
}

static void on_line(void *user, const struct er_train_line *line)
{
    if (line->event != ER_TRAIN_STEP)
        return;
    if (line->epoch == 0)
        test->first_loss = line->loss;
    test->last_loss = line->loss;
}

static int rank_main(struct er_ctx *ctx, void *user)
{
    const struct er_train_ops ops = {
        .grads = grads, .apply = apply, .spans = spans, .state = state, .epoch_end = epoch_end};
    static struct model m;
    struct er_error err = ER_ERROR_INIT;
    struct er_train_result result = {0};
    int rank = er_world(ctx)->rank, rc;

    struct er_ps_opts opts = test->opts;

    open_model(&m, rank);
    opts.engine = m.engine;
    opts.staleness += test->differs && rank == test->differs - 1;
    if (test->ddp)
        rc = er_train_run(ctx, &ops, &m,
                          &(struct er_train_opts){.plan = test->opts.plan,
                                                  .epochs = test->opts.epochs,
                                                  .engine = m.engine,
                                                  .checkpoint_dir = ""},
                          &result, &err);
    else
        rc = er_ps_run(ctx, &m.flat, &ops, &m, &opts, &result, &err);
    test->rcs[rank] = rc;
    if (rc < 0)
        er_tap_note("rank %d: %s", rank, err.text);
    if (rank == 0) {
        test->resumed_from = result.resumed_from;
        test->steps = result.steps;
    }
    er_tape_free(m.tape);
    er_engine_free(m.engine, m.memory);
    er_engine_close(m.engine);
    return 0;
}

static void set_up(void)
{
    test = er_ranks_shared(sizeof(*test));
    test->opts = (struct er_ps_opts){
        .plan = {.samples = SAMPLES, .global_batch = BATCH, .seed = 1},
        .epochs = EPOCHS,
        .optim = er_optim_adamw(),
        .schedule = {.kind = ER_SCHEDULE_CONSTANT, .lr = 0.02},
        .checkpoint_dir = "",
        .log = on_line,
    };
}

static void go(int size, float *ret)
{
    test->epochs_ended = test->parts_seen = 0;
    er_ranks_run(size, rank_main, NULL, NULL);
    for (int rank = 0; rank < size; rank++)
        er_tap_check(test->rcs[rank] == 0);
    memcpy(ret, test->values, sizeof(test->values));
}

static void lock_step_is_synchronous_training_bit_for_bit(void)
{
    static float want[ELEMENTS_MAX], got[ELEMENTS_MAX];

    set_up();
    for (int size = 1; size <= 5; size++) {
        test->ddp = true;
        go(size, want);
        test->ddp = false;
        for (test->opts.servers = 0; test->opts.servers <= size; test->opts.servers++) {
            go(size, got);
            if (!er_tap_check(memcmp(want, got, sizeof(want)) == 0))
                er_tap_note("%d ranks, %d servers", size, test->opts.servers);
            er_tap_check(test->epochs_ended == EPOCHS);
        }
    }
}

/* The parts of a step are the plan's, not the ranks'. */
static void any_number_of_workers_gives_the_same_bits(void)
{
    static float want[ELEMENTS_MAX], got[ELEMENTS_MAX];

    set_up();
    test->opts.parts = 6;
    go(1, want);
    for (int size = 2; size <= 8; size += 2) { /* with 8 some have nothing to do */
        go(size, got);
        er_tap_check(memcmp(want, got, sizeof(want)) == 0);
    }
}

static void every_bound_learns_and_does_every_part_once(void)
{
    static const uint64_t bounds[] = {0, 1, 4, ER_PS_UNBOUNDED};
    static float got[ELEMENTS_MAX];

    set_up();
    test->opts.epochs = 8;
    test->opts.parts = 3;
    for (size_t i = 0; i < 2 * sizeof(bounds) / sizeof(bounds[0]); i++) {
        test->opts.staleness = bounds[i / 2];
        test->opts.staleness_aware = i % 2;
        go(3, got);
        er_tap_check(test->steps == 8 * 5);
        er_tap_check(test->parts_seen == 3 * 8 * 5);
        if (!er_tap_check(test->last_loss < 0.8 * test->first_loss))
            er_tap_note("bound %zu: loss %g, then %g", i / 2, test->first_loss, test->last_loss);
    }
}

static void a_run_goes_on_from_its_checkpoint(void)
{
    static float want[ELEMENTS_MAX], got[ELEMENTS_MAX];

    set_up();
    test->opts.parts = 4;
    go(2, want);
    er_test_tempdir(test->dir);
    test->opts.checkpoint_dir = test->dir;
    test->opts.checkpoint_steps = 4;
    test->opts.epochs = 1;
    go(3, got);
    test->opts.epochs = EPOCHS;
    test->opts.servers = 1;
    go(2, got);
    er_tap_check(test->resumed_from == 5);
    er_tap_check(memcmp(want, got, sizeof(want)) == 0);
    er_test_rmtree(test->dir);
}

/* Each of three ranks has a server, with a third of parameters and optimizer state. One dies: all
 * leave, and its third comes back from the newest checkpoint, with the bits of a run that lost
 * nobody. */
static void a_lost_server_comes_back_from_the_checkpoint(void)
{
    static float want[ELEMENTS_MAX], got[ELEMENTS_MAX];
    int status[3], lost = 0;

    set_up();
    go(3, want);
    er_test_tempdir(test->dir);
    test->opts.checkpoint_dir = test->dir;
    test->opts.checkpoint_steps = 4;
    test->lost_at = 8;
    er_ranks_run(3, rank_main, NULL, status);
    for (int rank = 0; rank < 3; rank++) {
        lost += status[rank] == 128 + SIGKILL;
        er_tap_check(status[rank] == 128 + SIGKILL || test->rcs[rank] < 0);
    }
    er_tap_check(lost == 1);
    test->lost_at = 0;
    go(3, got);
    if (!er_tap_check(test->resumed_from >= 4 && test->resumed_from < 8))
        er_tap_note("resumed from %lu", (unsigned long)test->resumed_from);
    er_tap_check(memcmp(want, got, sizeof(want)) == 0);
    er_test_rmtree(test->dir);
}

/* Whichever it is: who did not notice would go on without the one that did. */
static void all_ranks_are_told_that_one_has_other_options(void)
{
    set_up();
    for (test->differs = 1; test->differs <= 3; test->differs++) {
        er_ranks_run(3, rank_main, NULL, NULL);
        for (int rank = 0; rank < 3; rank++)
            er_tap_check(test->rcs[rank] == ER_E_MISMATCH);
    }
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"lock_step_is_synchronous_training_bit_for_bit",
         lock_step_is_synchronous_training_bit_for_bit, 0},
        {"any_number_of_workers_gives_the_same_bits", any_number_of_workers_gives_the_same_bits, 0},
        {"every_bound_learns_and_does_every_part_once", every_bound_learns_and_does_every_part_once,
         0},
        {"a_run_goes_on_from_its_checkpoint", a_run_goes_on_from_its_checkpoint, 0},
        {"a_lost_server_comes_back_from_the_checkpoint",
         a_lost_server_comes_back_from_the_checkpoint, 0},
        {"all_ranks_are_told_that_one_has_other_options",
         all_ranks_are_told_that_one_has_other_options, 0},
    };

    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
