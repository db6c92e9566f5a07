/*
 * Trains a classifier of Fashion-MNIST, 784-256-128-10 with ReLU, by AdamW, on any number of
 * workers. Everything elastic is in er_train_run(): this program says how a gradient is made, how a
 * step is applied, what the state is, and how well it does.
 *
 *     elastic-run examples/fashion_mnist.yaml
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "base/pool.h"
#include "examples/cli.h"
#include "examples/fashion_data.h"
#include "trainer/exact.h"
#include "trainer/matmul.h"
#include "trainer/ops/ops.h"
#include "trainer/optim.h"
#include "trainer/ps.h"
#include "trainer/schedule.h"

enum { STALENESS_NONE = 1000000 }; /* from there on there is no bound */
enum { LAYERS_N = 3, PARAMS_N = 2 * LAYERS_N, SLICES_N = 3 * PARAMS_N, EVAL_ROWS = 500 };

static const size_t widths[LAYERS_N + 1] = {FASHION_PIXELS, 256, 128, FASHION_CLASSES};

struct options {
    const char *data_dir, *cache_dir; /* NULL: the default */
    uint64_t epochs, batch, seed, checkpoint_steps, log_steps;
    uint64_t staleness;
    double lr;
    bool ps, exact, exact_log, json, help;
};

struct app {
    struct options options;
    struct er_ctx *ctx;
    struct fashion_data data;
    struct er_pool *pool; /* parameters, gradients, optimizer state, labels */
    struct er_flat_param table[PARAMS_N];
    struct er_flat flat;
    struct er_span spans[PARAMS_N];
    struct er_slice slices[SLICES_N];
    struct er_tape *tape;
    struct er_optim optim;
    struct er_schedule schedule;
    struct er_plan plan;
    struct er_order order; /* of the epoch it was last made for */
    struct er_ddp *ddp;    /* of the pass that runs; NULL: not the step's last */
    struct er_exact exact; /* with --exact: sums of the gradients, in int64 */
    uint64_t outside;      /* gradient elements of this step that do not fit them */
    int32_t *labels;       /* of the batch that runs */
    float grey[256];       /* pixel -> input */
    double test_loss, test_accuracy;
    bool running; /* in er_train_run() */
};

/* ---- the model ---- */

/* Uniform in [-1, 1), from sample- and rank-independent counters: every rank starts equal. */
static float noise(uint64_t seed, size_t param, size_t i)
{
    return (float)((double)(er_rng(seed, param, 0, i) >> 11) * 0x1p-52 - 1.0);
}

/* He et al., Delving Deep into Rectifiers, ICCV 2015: weights of variance 2 / inputs; biases 0. */
static void init_values(struct app *app)
{
    for (size_t layer = 0; layer < LAYERS_N; layer++) {
        float *weight = er_flat_at(&app->flat, ER_FLAT_VALUE, 2 * layer);
        float bound = (float)sqrt(6.0 / (double)widths[layer]);

        for (size_t i = 0; i < app->table[2 * layer].count; i++)
            weight[i] = bound * noise(app->options.seed, 2 * layer, i);
    }
}

static int build_flat(struct app *app, struct er_error *err)
{
    static const char *const names[PARAMS_N] = {"fc1.weight", "fc1.bias",   "fc2.weight",
                                                "fc2.bias",   "fc3.weight", "fc3.bias"};
    size_t rows = app->options.batch > EVAL_ROWS ? app->options.batch : EVAL_ROWS;
    size_t label_bytes = rows * sizeof(*app->labels), sums_bytes;
    int rc = 0;

    er_flat_init(&app->flat, app->table, PARAMS_N, er_optim_state_names(app->optim.kind),
                 er_optim_states_n(app->optim.kind));
    for (size_t i = 0; i < LAYERS_N && rc == 0; i++) {
        struct er_shape weight = er_shape_2d(widths[i + 1], widths[i]);
        struct er_shape bias = er_shape_1d(widths[i + 1]);

        rc = er_flat_add(&app->flat, names[2 * i], &weight, NULL, err);
        if (rc == 0)
            rc = er_flat_add(&app->flat, names[2 * i + 1], &bias, NULL, err);
    }
    sums_bytes = app->options.exact ? er_exact_bytes(&app->flat) + ER_FLAT_ALIGN : 0;
    if (rc == 0)
        rc = er_pool_new(&app->pool, er_flat_bytes(&app->flat) + label_bytes + sums_bytes, err);
    if (rc < 0)
        return rc;
    er_flat_bind(&app->flat, er_pool_alloc(app->pool, er_flat_bytes(&app->flat), ER_FLAT_ALIGN));
    app->labels = er_pool_alloc(app->pool, label_bytes, sizeof(*app->labels));
    er_flat_spans(&app->flat, ER_FLAT_GRAD, app->spans);
    er_flat_slices(&app->flat, app->slices);
    if (!app->options.exact)
        return 0;
    rc = er_exact_bind(&app->exact, &app->flat, ER_EXACT_SHARDS, app->options.batch,
                       er_pool_alloc(app->pool, er_exact_bytes(&app->flat), ER_FLAT_ALIGN), err);
    if (rc == 0)
        er_exact_spans(&app->exact, &app->flat, app->spans);
    return rc;
}

static void on_gradient(void *user, size_t param)
{
    struct app *app = user;

    if (app->options.exact)
        app->outside += er_exact_fold(&app->exact, &app->flat, param);
    if (app->ddp)
        er_ddp_ready(app->ddp, param);
}

static int build_model(struct app *app, struct er_error *err)
{
    int rc = er_matmul_setup(err);

    app->optim = er_optim_adamw();
    if (rc == 0)
        rc = build_flat(app, err);
    if (rc == 0)
        rc = er_tape_new(&app->tape, &app->flat, 0, err);
    if (rc < 0)
        return rc;
    er_tape_hook(app->tape, on_gradient, app);
    er_tape_renew(app->tape, app->options.exact);
    init_values(app);
    return 0;
}

/* images (B, 784) -> loss (1); the classes' scores (B, 10) in *ret_scores. */
static int forward(struct app *app, struct er_tensor *x, double *ret_sum,
                   struct er_tensor **ret_scores, struct er_tensor **ret_loss, struct er_error *err)
{
    int rc = 0;

    for (size_t i = 0; i < LAYERS_N && rc == 0; i++) {
        if (i > 0)
            rc = er_relu(app->tape, x, &x, err);
        if (rc == 0)
            rc = er_linear(app->tape, x, er_tape_param(app->tape, 2 * i),
                           er_tape_param(app->tape, 2 * i + 1), &x, err);
    }
    if (rc == 0)
        rc = er_cross_entropy(app->tape, x, app->labels, ret_sum, ret_loss, err);
    *ret_scores = x;
    return rc;
}

/* ---- training: the four functions of er_train_ops ---- */

static void put_sample(struct app *app, const struct fashion_part *part, uint64_t sample,
                       float *row, int32_t *label)
{
    const uint8_t *image = part->images + sample * FASHION_PIXELS;

    for (size_t i = 0; i < FASHION_PIXELS; i++)
        row[i] = app->grey[image[i]];
    *label = part->labels[sample];
}

static int begin_batch(struct app *app, size_t rows, struct er_tensor **ret, struct er_error *err)
{
    struct er_shape shape = er_shape_2d(rows, FASHION_PIXELS);
    int rc = er_tape_begin(app->tape, err);

    return rc < 0 ? rc : er_tape_buffer(app->tape, "images", &shape, ret, err);
}

/* Forward and backward of these positions. */
static int pass(struct app *app, const struct er_step *step, const struct er_range *range,
                struct er_loss *ret, struct er_error *err)
{
    struct er_tensor *x, *scores, *loss;
    double sum;
    int rc;

    if (range->count == 0) /* more ranks than samples: zeros travel, and this rank votes */
        return 0;
    if (app->order.n == 0 || app->order.epoch != range->epoch)
        er_order_init(&app->order, app->plan.samples, app->plan.seed, range->epoch);
    er_step_phase(step, ER_PHASE_DATA);
    rc = begin_batch(app, range->count, &x, err);
    if (rc < 0)
        return rc;
    for (uint64_t i = 0; i < range->count; i++)
        put_sample(app, &app->data.train, er_order_at(&app->order, range->first + i),
                   x->value + i * FASHION_PIXELS, &app->labels[i]);
    er_step_phase(step, ER_PHASE_FORWARD);
    rc = forward(app, x, &sum, &scores, &loss, err);
    if (rc < 0)
        return rc;
    er_step_phase(step, ER_PHASE_BACKWARD);
    rc = er_tape_backward(app->tape, loss, err);
    ret->sum += sum;
    ret->weight += (double)range->count;
    return rc;
}

static int grads(void *user, const struct er_step *step, struct er_loss *ret, struct er_error *err)
{
    struct app *app = user;
    int rc = 0;

    *ret = (struct er_loss){0};
    app->ddp = step->ddp;
    if (!app->options.exact)
        return pass(app, step, &step->range, ret, err);
    /* Each shard by itself, as any other rank would compute it; with the last one sums leave. */
    app->outside = 0;
    for (uint32_t i = 0; i < step->range.shards_n && rc == 0; i++) {
        struct er_range shard = er_batch_shard(&app->plan, step->step, step->range.first_shard + i);

        app->ddp = i + 1 == step->range.shards_n ? step->ddp : NULL;
        rc = pass(app, step, &shard, ret, err);
    }
    ret->nonfinite = app->outside;
    return rc;
}

static int apply(void *user, uint64_t step, const struct er_vote *vote, struct er_error *err)
{
    struct app *app = user;
    struct er_optim_view view = er_optim_view_flat(&app->flat);

    if (app->options.exact)
        er_exact_take(&app->exact, &app->flat, vote->weight);
    er_optim_apply(&app->optim, &view, step, er_schedule_lr(&app->schedule, step),
                   app->options.exact ? 1.0 : 1.0 / vote->weight);
    return 0;
}

static void spans(void *user, const struct er_span **ret, size_t *ret_n)
{
    struct app *app = user;

    *ret = app->spans;
    *ret_n = PARAMS_N;
}

static void state(void *user, const struct er_slice **ret, size_t *ret_n)
{
    struct app *app = user;

    *ret = app->slices;
    *ret_n = SLICES_N;
}

/* ---- evaluation ---- */

static size_t best_class(const float *scores)
{
    size_t best = 0;

    for (size_t i = 1; i < FASHION_CLASSES; i++)
        best = scores[i] > scores[best] ? i : best;
    return best;
}

/* Adds the losses and the right answers of test images [first, first + rows). */
static int evaluate_batch(struct app *app, size_t first, size_t rows, double *loss_sum,
                          double *right, struct er_error *err)
{
    struct er_tensor *x, *scores, *loss;
    double sum = 0;
    int rc = begin_batch(app, rows, &x, err);

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < rows; i++)
        put_sample(app, &app->data.test, first + i, x->value + i * FASHION_PIXELS, &app->labels[i]);
    rc = forward(app, x, &sum, &scores, &loss, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < rows; i++)
        *right += best_class(scores->value + i * FASHION_CLASSES) == (size_t)app->labels[i];
    *loss_sum += sum;
    return 0;
}

/* This rank's share of the test set, then the sum over all ranks. */
static int evaluate(struct app *app, struct er_comm *comm, struct er_error *err)
{
    size_t rank = (size_t)er_comm_rank(comm), size = (size_t)er_comm_size(comm);
    size_t all = app->data.test.count, at = all * rank / size, end = all * (rank + 1) / size;
    double sums[2] = {0};
    struct er_op *op;
    int rc = 0;

    er_tape_grad(app->tape, false);
    for (size_t rows; at < end && rc == 0; at += rows) {
        rows = end - at < EVAL_ROWS ? end - at : EVAL_ROWS;
        rc = evaluate_batch(app, at, rows, &sums[0], &sums[1], err);
    }
    er_tape_grad(app->tape, true);
    if (rc == 0)
        rc = er_all_reduce(comm, sums, 2, ER_F64, ER_SUM, &op, err);
    if (rc == 0)
        rc = er_op_wait(op, UINT64_MAX, err);
    app->test_loss = sums[0] / (double)all;
    app->test_accuracy = sums[1] / (double)all;
    return rc;
}

static int epoch_end(void *user, uint64_t epoch, uint64_t step, struct er_comm *comm,
                     struct er_error *err)
{
    struct app *app = user;
    int rc = evaluate(app, comm, err);

    if (rc == 0 && er_comm_rank(comm) == 0) {
        printf("epoch=%llu step=%llu test_loss=%.4f test_accuracy=%.4f\n",
               (unsigned long long)epoch + 1, (unsigned long long)step, app->test_loss,
               app->test_accuracy);
        fflush(stdout);
    }
    return rc;
}

static void on_line(void *user, const struct er_train_line *line)
{
    struct app *app = user;

    if (app->options.json) {
        er_train_log_json(user, line);
        return;
    }
    if (line->event != ER_TRAIN_STEP || !app->options.exact_log) {
        er_train_log_stdout(user, line);
        return;
    }
    printf("step=%llu loss=%.6f exact=%a\n", (unsigned long long)line->step, line->loss,
           line->loss);
    fflush(stdout);
}

/* ---- the program ---- */

static const struct er_train_ops ops = {grads, apply, spans, state, epoch_end, NULL};

/* The same gradients, pushed to parameter servers: one beside each worker. */
static int train_with_servers(struct app *app, struct er_train_result *ret, struct er_error *err)
{
    const struct options *options = &app->options;
    const struct er_ps_opts opts = {
        .plan = app->plan,
        .epochs = options->epochs,
        .staleness = options->staleness >= STALENESS_NONE ? ER_PS_UNBOUNDED : options->staleness,
        .optim = app->optim,
        .schedule = app->schedule,
        .checkpoint_steps = options->checkpoint_steps,
        .log = options->log_steps > 0 ? on_line : NULL,
    };

    return er_ps_run(app->ctx, &app->flat, &ops, app, &opts, ret, err);
}

static int train(struct app *app, struct er_error *err)
{
    const struct options *options = &app->options;
    struct er_train_result result;
    uint64_t total;
    int rc;

    app->plan = (struct er_plan){.samples = app->data.train.count,
                                 .global_batch = options->batch,
                                 .seed = options->seed,
                                 .shards = options->exact ? ER_EXACT_SHARDS : 0};
    total = options->epochs * er_plan_steps(&app->plan);
    app->schedule = (struct er_schedule){.kind = ER_SCHEDULE_COSINE,
                                         .lr = options->lr,
                                         .warmup_steps = total / 20,
                                         .total_steps = total};
    app->running = true;
    if (options->ps)
        rc = train_with_servers(app, &result, err);
    else
        rc =
            er_train_run(app->ctx, &ops, app,
                         &(struct er_train_opts){.plan = app->plan,
                                                 .epochs = options->epochs,
                                                 .checkpoint_steps = options->checkpoint_steps,
                                                 .log_steps = options->log_steps,
                                                 /* fc3 and fc2 leave while fc1 is computed */
                                                 .ddp = {.first_bucket_bytes = 160 << 10,
                                                         .dtype = options->exact ? ER_I64 : ER_F32},
                                                 .log = on_line},
                         &result, err);
    if (rc == 0 && options->exact && er_world(app->ctx)->rank == 0)
        printf("parameters=%016llx\n", (unsigned long long)er_hash(app->flat.block[ER_FLAT_VALUE],
                                                                   app->flat.total * sizeof(float))
                                           .lo);
    if (rc == 0 && !result.stopped && er_world(app->ctx)->rank == 0)
        printf("accuracy=%.4f loss=%.4f steps=%llu\n", app->test_accuracy, app->test_loss,
               (unsigned long long)result.steps);
    return rc;
}

static int open_data(struct app *app, struct er_error *err)
{
    int rc = fashion_open(&app->data, app->options.data_dir, app->options.cache_dir, err);

    /* Mean and deviation of the training pixels. */
    for (int i = 0; i < 256; i++)
        app->grey[i] = ((float)i / 255.0f - 0.2860f) / 0.3530f;
    return rc;
}

static const struct cli_row rows[] = {
    {"data", "DIR", CLI_TEXT, offsetof(struct options, data_dir), 0, 0,
     "the data set (default " FASHION_DIR ")"},
    {"cache", "DIR", CLI_TEXT, offsetof(struct options, cache_dir), 0, 0,
     "where it is unpacked (default ~/.cache/elastic-run)"},
    {"epochs", "N", CLI_COUNT, offsetof(struct options, epochs), 1, 100000, "(default 5)"},
    {"batch", "N", CLI_COUNT, offsetof(struct options, batch), 1, 1u << 20,
     "samples of a step, over all workers (default 256)"},
    {"lr", "RATE", CLI_RATE, offsetof(struct options, lr), 0, 10,
     "highest learning rate (default 0.001)"},
    {"seed", "N", CLI_COUNT, offsetof(struct options, seed), 0, UINT64_MAX, "(default 1)"},
    {"checkpoint-steps", "N", CLI_COUNT, offsetof(struct options, checkpoint_steps), 0, UINT64_MAX,
     "save every N steps (default: as the job spec says)"},
    {"log-steps", "N", CLI_COUNT, offsetof(struct options, log_steps), 0, UINT64_MAX,
     "a line every N steps; 0: none (default 100)"},
    {"ps", NULL, CLI_FLAG, offsetof(struct options, ps), 0, 0,
     "train with parameter servers, one beside each worker"},
    {"staleness", "N", CLI_COUNT, offsetof(struct options, staleness), 0, UINT64_MAX,
     "with --ps: steps that a worker may run ahead; 1000000: any (default 0)"},
    {"exact", NULL, CLI_FLAG, offsetof(struct options, exact), 0, 0,
     "the same parameters bit for bit on any number of workers up to 12"},
    {"exact-log", NULL, CLI_FLAG, offsetof(struct options, exact_log), 0, 0,
     "print losses bit for bit too"},
    {"json", NULL, CLI_FLAG, offsetof(struct options, json), 0, 0,
     "JSON lines (docs/training-lines.md)"},
    {"help", NULL, CLI_FLAG, offsetof(struct options, help), 0, 0, ""},
};

static const struct options defaults = {
    .epochs = 5, .batch = 256, .seed = 1, .lr = 0.001, .log_steps = 100};

static int run(struct app *app, int argc, char **argv, struct er_error *err)
{
    int rc;

    app->options = defaults;
    rc = cli_parse(rows, ER_ARRAY_N(rows), &app->options, argc, argv, err);
    if (rc == 0 && app->options.help) {
        cli_help("fashion_mnist [options]: train a classifier of Fashion-MNIST on any number of "
                 "workers",
                 rows, ER_ARRAY_N(rows));
        return 0;
    }
    if (rc == 0)
        rc = open_data(app, err);
    if (rc == 0)
        rc = build_model(app, err);
    return rc < 0 ? rc : train(app, err);
}

int main(int argc, char **argv)
{
    static struct app app;
    struct er_error err = ER_ERROR_INIT;
    int rc = er_open(&app.ctx, &err);

    if (rc == 0)
        rc = run(&app, argc, argv, &err);
    if (rc < 0)
        fprintf(stderr, "fashion_mnist: %s\n", err.text);
    /* A lost peer is its own root cause, not this worker's failure. */
    if (rc < 0 && rc != ER_E_PEER_LOST && rc != ER_E_ABORTED && rc != ER_E_STALE)
        er_fail(app.ctx, "%s", err.text);
    er_tape_free(app.tape);
    er_pool_free(app.pool);
    fashion_close(&app.data);
    er_close(app.ctx);
    return cli_exit_code(rc, app.running);
}
