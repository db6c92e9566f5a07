/* The training loop on a GPU, on the double of CUDA, cuBLAS and NCCL: what DDP computes there is
 * what the CPU computes; checkpoints go from one to the other; what is not offered is refused. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/lib/ranks.h"
#include "tests/lib/small_net.h"
#include "tests/lib/tap.h"
#include "tests/lib/tempdir.h"
#include "trainer/compress.h"
#include "trainer/engine.h"
#include "trainer/matmul.h"
#include "trainer/ops/ops.h"
#include "trainer/train.h"

enum {
    WIDTH = 10,
    HIDDEN = 17,
    PARAMS = 6,
    RANKS_MAX = 4,
    BATCH = 24,
    SAMPLES = 100, /* the last step of an epoch has 4 samples */
    ELEMENTS_MAX = 2048
};

struct test {
    bool gpu;
    enum er_optim_kind optim;
    uint64_t epochs, checkpoint_steps;
    uint64_t bad_step; /* whose loss is not finite; 0: none */
    int dies;          /* this rank does, in step 5; -1: none */
    bool compress;
    struct er_train_opts opts; /* what else is asked for */
    char dir[ER_TEST_PATH_MAX];
    int rcs[RANKS_MAX];
    char text[ER_ERROR_TEXT_MAX]; /* of rank 0 */
    uint64_t resumed_from, skipped, saved_n;
    double loss, norm2;
    float values[ELEMENTS_MAX];
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
    struct er_compress *compress;
    struct er_optim optim;
    struct er_ddp *ddp;
    int rank;
    float x[BATCH * WIDTH];
    int32_t labels[BATCH];
};

static void on_gradient(void *user, size_t param)
{
    struct model *m = user;

    er_ddp_ready(m->ddp, param);
}

static int open_model(struct model *m, int rank, struct er_error *err)
{
    static const char *const names[PARAMS] = {"w1", "b1", "norm.w", "norm.b", "w2", "b2"};
    const struct er_shape shapes[PARAMS] = {er_shape_2d(HIDDEN, WIDTH), er_shape_1d(HIDDEN),
                                            er_shape_1d(HIDDEN),        er_shape_1d(HIDDEN),
                                            er_shape_2d(4, HIDDEN),     er_shape_1d(4)};
    struct er_device_opts device = {.kind = test->gpu ? ER_DEVICE_CUDA : ER_DEVICE_CPU,
                                    .index = test->gpu ? rank : 0};
    float initial[HIDDEN * WIDTH];
    int rc = er_matmul_setup(err);

    m->rank = rank;
    m->optim.kind = test->optim;
    m->optim = test->optim == ER_OPTIM_SGD ? er_optim_sgd() : er_optim_adamw();
    if (rc == 0)
        rc = er_engine_open(&m->engine, &device, err);
    er_flat_init(&m->flat, m->table, PARAMS, er_optim_state_names(m->optim.kind),
                 er_optim_states_n(m->optim.kind));
    for (size_t p = 0; p < PARAMS && rc == 0; p++)
        rc = er_flat_add(&m->flat, names[p], &shapes[p], NULL, err);
    if (rc == 0)
        rc = er_engine_alloc(m->engine, er_flat_bytes(&m->flat), &m->memory, err);
    if (rc < 0)
        return rc;
    er_flat_place(&m->flat, m->memory);
    er_flat_spans(&m->flat, ER_FLAT_GRAD, m->spans);
    er_flat_slices(&m->flat, m->slices);
    for (size_t p = 0; p < PARAMS && rc == 0; p++) {
        for (size_t i = 0; i < m->table[p].count; i++) /* each rank its own: rank 0's counts */
            initial[i] = 0.5f * er_test_noise(p, 1 + (uint32_t)rank, i);
        rc = er_engine_put(m->engine, er_flat_at(&m->flat, ER_FLAT_VALUE, p), initial,
                           m->table[p].count * sizeof(float), err);
    }
    if (rc == 0)
        rc = er_tape_new_on(&m->tape, &m->flat, 0, m->engine, err);
    if (rc == 0)
        er_tape_hook(m->tape, on_gradient, m);
    return rc;
}

static void close_model(struct model *m)
{
    er_tape_free(m->tape);
    er_compress_close(m->compress);
    if (m->engine)
        er_engine_free(m->engine, m->memory);
    er_engine_close(m->engine);
}

static int forward(struct model *m, size_t n, double *sum, struct er_tensor **ret,
                   struct er_error *err)
{
    struct er_tensor *x, *p[PARAMS];
    struct er_shape shape = er_shape_2d(n, WIDTH);
    int rc = er_tape_begin(m->tape, err);

    for (size_t i = 0; i < PARAMS; i++)
        p[i] = er_tape_param(m->tape, i);
    if (rc == 0)
        rc = er_tape_input(m->tape, "x", &shape, m->x, &x, err);
    if (rc == 0)
        rc = er_linear(m->tape, x, p[0], p[1], &x, err);
    if (rc == 0)
        rc = er_gelu(m->tape, x, &x, err);
    if (rc == 0)
        rc = er_layer_norm(m->tape, x, p[2], p[3], 1e-5f, &x, err);
    if (rc == 0)
        rc = er_linear(m->tape, x, p[4], p[5], &x, err);
    return rc ? rc : er_cross_entropy(m->tape, x, m->labels, sum, ret, err);
}

static int grads(void *user, const struct er_step *step, struct er_loss *ret, struct er_error *err)
{
    struct model *m = user;
    struct er_order order;
    struct er_tensor *loss;
    double sum = 0;
    int rc;

    if (step->step == 5 && m->rank == test->dies)
        kill(getpid(), SIGKILL);
    m->ddp = step->ddp;
    er_order_init(&order, SAMPLES, 3, step->range.epoch);
    for (size_t i = 0; i < step->range.count; i++) {
        uint64_t sample = er_order_at(&order, step->range.first + i);

        m->labels[i] = (int32_t)(sample % 4);
        for (size_t j = 0; j < WIDTH; j++)
            m->x[i * WIDTH + j] = er_test_noise(sample, 9, j) + (float)(j == sample % 4);
        if (step->step == test->bad_step && i == 0 && m->rank == 0)
            m->x[0] = NAN;
    }
    if (step->range.count == 0)
        return 0;
    rc = forward(m, step->range.count, &sum, &loss, err);
    if (rc == 0)
        rc = er_tape_backward(m->tape, loss, err);
    *ret = (struct er_loss){.sum = sum, .weight = (double)step->range.count};
    return rc;
}

static int apply(void *user, uint64_t step, const struct er_vote *vote, struct er_error *err)
{
    struct model *m = user;
    struct er_optim_view view = er_optim_view_flat(&m->flat);

    test->norm2 = vote->norm2;
    return er_engine_apply(m->engine, &m->optim, &view, step, 0.01,
                           er_optim_clip(vote->norm2, vote->weight, 1.0), err);
}

static void spans(void *user, const struct er_span **ret, size_t *ret_n)
{
    *ret = ((struct model *)user)->spans;
    *ret_n = PARAMS;
}

static void state(void *user, const struct er_slice **ret, size_t *ret_n)
{
    struct model *m = user;

    *ret = m->slices;
    *ret_n = er_flat_slices_n(&m->flat);
}

static void log_line(void *user, const struct er_train_line *line)
{
    if (line->event == ER_TRAIN_SAVED)
        test->saved_n++;
}

static int rank_main(struct er_ctx *ctx, void *user)
{
    const struct er_train_ops ops = {
        .grads = grads, .apply = apply, .spans = spans, .state = state};
    int rank = er_world(ctx)->rank;
    struct er_train_opts opts = test->opts;
    struct er_train_result result = {0};
    struct er_error err = ER_ERROR_INIT;
    struct model m = {0};
    int rc = open_model(&m, rank, &err);

    opts.plan.samples = SAMPLES;
    opts.plan.global_batch = BATCH;
    opts.plan.seed = 3;
    opts.epochs = test->epochs;
    opts.checkpoint_dir = test->dir;
    opts.checkpoint_steps = test->checkpoint_steps;
    opts.engine = m.engine;
    opts.ddp.norm2 = true;
    opts.ddp.first_bucket_bytes = opts.ddp.bucket_bytes = 512;
    opts.log = log_line;
    if (rc == 0 && test->compress) {
        rc = er_compress_open_on(&m.compress, m.engine, m.spans, PARAMS, &err);
        opts.ddp.hook = er_compress_hook(m.compress);
    }
    if (rc == 0)
        rc = er_train_run(ctx, &ops, &m, &opts, &result, &err);
    if (rc == 0 && rank == 0)
        rc = er_engine_get(m.engine, test->values, m.memory, m.flat.total * sizeof(float), &err);
    test->rcs[rank] = rc;
    if (rank == 0) {
        snprintf(test->text, sizeof(test->text), "%s", err.text);
        test->resumed_from = result.resumed_from;
        test->skipped = result.skipped;
        test->loss = result.loss;
    }
    close_model(&m);
    return 0;
}

static void run(bool gpu, int ranks)
{
    int status[RANKS_MAX];

    test->gpu = gpu;
    er_ranks_run(ranks, rank_main, NULL, status);
}

static void run_well(bool gpu, int ranks)
{
    run(gpu, ranks);
    for (int i = 0; i < ranks; i++) {
        if (!er_tap_check(test->rcs[i] == 0))
            er_tap_note("rank %d: %d (rank 0: %s)", i, test->rcs[i], test->text);
    }
}

static void begin(void)
{
    test = er_ranks_shared(sizeof(*test));
    *test = (struct test){.epochs = 2, .optim = ER_OPTIM_ADAMW, .dies = -1};
}

static bool near(const float *want, float off)
{
    for (size_t i = 0; i < ELEMENTS_MAX; i++) {
        if (!(fabsf(test->values[i] - want[i]) <= off * (1.0f + fabsf(want[i])))) {
            er_tap_note("element %zu: %g, want %g", i, (double)test->values[i], (double)want[i]);
            return false;
        }
    }
    return true;
}

static bool same_as(const float *want)
{
    return near(want, 2e-5f);
}

static void ddp_computes_what_one_cpu_does(void)
{
    static float want[ELEMENTS_MAX];
    double norm2, loss;

    begin();
    run_well(false, 1);
    memcpy(want, test->values, sizeof(want));
    norm2 = test->norm2;
    loss = test->loss;
    for (int ranks = 1; ranks <= 3; ranks++) {
        run_well(true, ranks);
        er_tap_check(same_as(want));
        er_tap_check(fabs(test->norm2 - norm2) < 1e-4 * norm2);
        er_tap_check(fabs(test->loss - loss) < 1e-5 * loss);
    }
}

static void a_second_run_has_the_same_bits(void)
{
    static float first[ELEMENTS_MAX];

    begin();
    test->optim = ER_OPTIM_SGD;
    run_well(true, 2);
    memcpy(first, test->values, sizeof(first));
    run_well(true, 2);
    er_tap_check(memcmp(first, test->values, sizeof(first)) == 0);
}

/* Half the bytes on the wire, and 8 bits of each gradient; all ranks agree (the vote's hash and the
 * next step's losses would tell). */
static void a_hook_compresses_gradients_on_the_gpu(void)
{
    static float whole[ELEMENTS_MAX], want[ELEMENTS_MAX];

    begin();
    test->optim = ER_OPTIM_SGD;
    run_well(true, 3);
    memcpy(whole, test->values, sizeof(whole));
    test->compress = true;
    run_well(false, 3);
    memcpy(want, test->values, sizeof(want));
    run_well(true, 3);
    er_tap_check(near(want, 2e-3f));
    er_tap_check(memcmp(whole, test->values, sizeof(whole)) != 0);
}

/* Each rank begins with values of its own, and ends with rank 0's. */
static int share_main(struct er_ctx *ctx, void *user)
{
    int rank = er_world(ctx)->rank;
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comms[2] = {NULL, NULL};
    struct er_span values[PARAMS];
    struct er_ddp *ddp = NULL;
    struct model m = {0};
    float got[ELEMENTS_MAX] = {0};
    int rc = open_model(&m, rank, &err);

    er_tap_require(rc == 0);
    er_flat_spans(&m.flat, ER_FLAT_VALUE, values);
    er_tap_require(er_comm_open(&comms[0], ctx, &(struct er_comm_opts){.name = "control"}, &err) ==
                   0);
    er_tap_require(er_comm_wait_ready(comms[0], &err) == 0);
    er_tap_require(er_comm_open(&comms[1], ctx,
                                &(struct er_comm_opts){.backend = ER_COMM_NCCL,
                                                       .device = er_engine_device(m.engine)},
                                &err) == 0);
    er_tap_require(er_comm_wait_ready(comms[1], &err) == 0);
    er_tap_require(er_ddp_open(&ddp, comms[1], m.spans, PARAMS,
                               &(struct er_ddp_opts){.engine = m.engine, .control = comms[0]},
                               &err) == 0);
    rc = er_ddp_sync_state(ddp, values, PARAMS, &err);
    if (rc < 0)
        er_tap_note("rank %d: %s", rank, err.text);
    er_tap_require(er_engine_get(m.engine, got, m.memory, m.flat.total * sizeof(float), &err) == 0);
    if (rank == 0)
        memcpy(test->values, got, sizeof(got));
    er_tap_require(er_comm_barrier(comms[0], &err) == 0);
    rc = rc ? rc : memcmp(test->values, got, sizeof(got));
    /* Not the same parts: nothing is sent. */
    values[2].count -= rank == 1 ? 1 : 0;
    if (er_ddp_sync_state(ddp, values, PARAMS, &err) != ER_E_MISMATCH)
        rc = -1;
    er_tap_require(er_comm_barrier(comms[0], &err) == 0);
    er_ddp_close(ddp);
    er_comm_abort_all(comms, 2);
    close_model(&m);
    return rc != 0;
}

static void state_in_the_memory_of_gpus_is_shared(void)
{
    int status[RANKS_MAX];

    begin();
    test->gpu = true;
    er_ranks_run(3, share_main, NULL, status);
    for (int i = 0; i < 3; i++)
        er_tap_check(status[i] == 0);
}

/* Two epochs on GPUs, two more on the CPU, from its checkpoint; and the other way round. */
static void checkpoints_go_from_gpu_to_cpu_and_back(void)
{
    static float want[ELEMENTS_MAX];

    begin();
    test->epochs = 4;
    run_well(false, 2);
    memcpy(want, test->values, sizeof(want));
    for (int gpu_first = 0; gpu_first < 2; gpu_first++) {
        er_test_tempdir(test->dir);
        test->epochs = 2;
        test->checkpoint_steps = 3;
        test->saved_n = 0;
        run_well(gpu_first == 1, 2);
        er_tap_check(test->saved_n >= 2);
        test->epochs = 4;
        run_well(gpu_first == 0, 3);
        er_tap_check(test->resumed_from == 10);
        er_tap_check(same_as(want));
        er_test_rmtree(test->dir);
    }
}

static void a_step_that_is_not_finite_is_skipped(void)
{
    static float want[ELEMENTS_MAX];

    begin();
    test->opts.nonfinite = ER_NONFINITE_SKIP;
    test->bad_step = 4;
    run_well(false, 2);
    memcpy(want, test->values, sizeof(want));
    run_well(true, 2);
    er_tap_check(test->skipped == 1);
    er_tap_check(same_as(want));
}

static void a_lost_rank_ends_the_generation(void)
{
    begin();
    test->dies = 1;
    test->opts.restart_on_loss = true;
    run(true, 3);
    er_tap_check(test->rcs[0] == ER_E_PEER_LOST && test->rcs[2] == ER_E_PEER_LOST);
    er_tap_check(strstr(test->text, "rank 1") != NULL);
}

static void what_is_not_offered_is_refused(void)
{
    begin();
    test->opts.comm.backend = ER_COMM_HOST;
    run(true, 1);
    er_tap_check(test->rcs[0] == ER_E_USAGE && strstr(test->text, "nccl"));
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"ddp_computes_what_one_cpu_does", ddp_computes_what_one_cpu_does, 0},
        {"a_second_run_has_the_same_bits", a_second_run_has_the_same_bits, 0},
        {"a_hook_compresses_gradients_on_the_gpu", a_hook_compresses_gradients_on_the_gpu, 0},
        {"state_in_the_memory_of_gpus_is_shared", state_in_the_memory_of_gpus_is_shared, 0},
        {"checkpoints_go_from_gpu_to_cpu_and_back", checkpoints_go_from_gpu_to_cpu_and_back, 0},
        {"a_step_that_is_not_finite_is_skipped", a_step_that_is_not_finite_is_skipped, 0},
        {"a_lost_rank_ends_the_generation", a_lost_rank_ends_the_generation, 0},
        {"what_is_not_offered_is_refused", what_is_not_offered_is_refused, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
