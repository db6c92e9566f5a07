/*
 * Trains a small GPT on a text, byte by byte, by AdamW with clipped gradients, on any number of
 * workers; then writes some text of its own. The same four functions as in fashion_mnist.c; new are
 * micro-steps (a step's samples in several forward and backward passes) and the clipped norm.
 *
 *     elastic-run examples/gpt.yaml
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "examples/cli.h"
#include "examples/gpt_model.h"
#include "examples/text_data.h"
#include "trainer/scaler.h"
#include "trainer/schedule.h"
#include "trainer/train.h"

enum { VOCAB = 256, HELD_OUT = 20 /* one window in so many is for evaluation, the last ones */ };

struct options {
    const char *text, *prompt, *dtype;
    uint64_t layers, width, heads, context, epochs, batch, micro, seed, checkpoint_steps, log_steps,
        generate;
    double lr, decay, clip, dropout, temperature;
    bool fsdp, shadow, gpu, bfloat16, exact_log, help;
};

struct app {
    struct options options;
    struct er_ctx *ctx;
    struct text text;
    struct er_engine *engine; /* NULL: the CPU */
    struct gpt gpt;
    struct er_optim optim;
    struct er_schedule schedule;
    struct er_scaler scaler; /* 1 where losses are not scaled */
    struct er_plan plan;
    struct er_order order;    /* of the epoch it was last made for */
    struct er_ddp *ddp;       /* of the pass that runs */
    int32_t *tokens, *labels; /* (micro, context) */
    uint64_t *samples;        /* (micro) */
    size_t windows;           /* of the whole text */
    double held_out_loss;
    bool running; /* training has begun */
};

/* ---- batches: sample i is the window of bytes [i T, (i + 1) T], the last only as a label ---- */

static void put_window(struct app *app, size_t row, uint64_t window)
{
    size_t length = app->options.context;
    const uint8_t *bytes = app->text.bytes + window * length;

    for (size_t i = 0; i < length; i++) {
        app->tokens[row * length + i] = bytes[i];
        app->labels[row * length + i] = bytes[i + 1];
    }
    app->samples[row] = window;
}

/* Forward of the rows that have been put; adds to *sum. */
static int forward(struct app *app, size_t rows, bool training, uint64_t step, double *sum,
                   struct er_tensor **ret_loss, struct er_error *err)
{
    const struct gpt_batch batch = {.rows = rows,
                                    .length = app->options.context,
                                    .tokens = app->tokens,
                                    .labels = app->labels,
                                    .samples = training ? app->samples : NULL,
                                    .seed = app->options.seed + step};
    struct er_tensor *logits;
    double loss = 0;
    int rc = er_tape_begin(app->gpt.tape, err);

    er_tape_scale(app->gpt.tape, er_scaler_scale(&app->scaler));
    if (rc == 0)
        rc = gpt_forward(&app->gpt, &batch, &logits, ret_loss, &loss, err);
    *sum += loss;
    return rc;
}

static void on_gradient(void *user, size_t param)
{
    struct app *app = user;

    if (app->ddp)
        er_ddp_ready(app->ddp, param);
}

/* ---- training: the four functions of er_train_ops ---- */

/* One pass over up to `micro` samples from position `first` on. */
static int micro_step(struct app *app, const struct er_step *step, uint64_t first, size_t rows,
                      double *sum, struct er_error *err)
{
    struct er_tensor *loss;
    int rc;

    er_step_phase(step, ER_PHASE_DATA);
    for (size_t row = 0; row < rows; row++)
        put_window(app, row, er_order_at(&app->order, first + row));
    er_step_phase(step, ER_PHASE_FORWARD);
    rc = forward(app, rows, true, step->step, sum, &loss, err);
    er_step_phase(step, ER_PHASE_BACKWARD);
    return rc < 0 ? rc : er_tape_backward(app->gpt.tape, loss, err);
}

/* Passes of one step or evaluation over `samples`, on the rank that has most of them. */
static uint64_t passes_of(const struct app *app, uint64_t samples, size_t size)
{
    uint64_t most = (samples + size - 1) / size;

    return (most + app->options.micro - 1) / app->options.micro;
}

static int grads(void *user, const struct er_step *step, struct er_loss *ret, struct er_error *err)
{
    struct app *app = user;
    const struct er_range *range = &step->range;
    uint64_t end = range->first + range->count, micro = app->options.micro;
    int rc = 0;

    *ret = (struct er_loss){.weight = (double)(range->count * app->options.context)};
    if (app->order.n == 0 || app->order.epoch != range->epoch)
        er_order_init(&app->order, app->plan.samples, app->plan.seed, range->epoch);
    if (app->gpt.fsdp) /* ranks come and go */
        er_fsdp_passes(app->gpt.fsdp, (uint32_t)passes_of(app, app->plan.global_batch,
                                                          (size_t)er_world(app->ctx)->size));
    /* Gradients add up over the passes; with the last one they leave. */
    for (uint64_t at = range->first; at < end && rc == 0; at += micro) {
        bool last = end - at <= micro;

        app->ddp = last ? step->ddp : NULL;
        rc = micro_step(app, step, at, (size_t)(last ? end - at : micro), &ret->sum, err);
    }
    return rc;
}

static int apply(void *user, uint64_t step, const struct er_vote *vote, struct er_error *err)
{
    struct app *app = user;

    return gpt_apply(&app->gpt, &app->optim, step, er_schedule_lr(&app->schedule, step),
                     er_scaler_clip(&app->scaler, vote->norm2, vote->weight, app->options.clip),
                     err);
}

static void spans(void *user, const struct er_span **ret, size_t *ret_n)
{
    struct app *app = user;

    *ret = app->gpt.spans;
    *ret_n = app->gpt.flat.params_n;
}

static void state(void *user, const struct er_slice **ret, size_t *ret_n)
{
    struct app *app = user;

    if (app->gpt.fsdp)
        app->gpt.slices_n = er_fsdp_slices(app->gpt.fsdp, app->gpt.slices);
    *ret = app->gpt.slices;
    *ret_n = app->gpt.slices_n;
}

static int shard(void *user, struct er_comm *comm, struct er_fsdp **ret, struct er_error *err)
{
    struct app *app = user;
    const struct er_fsdp_opts opts = {
        .norm2 = app->options.clip > 0,
        .count_nonfinite = app->gpt.dtype == ER_F16,
        .param_dtype = app->gpt.dtype,
        .reduce_dtype = app->gpt.dtype,
        .engine = app->engine,
    };
    int rc = gpt_shard(&app->gpt, comm, &opts, err);

    *ret = app->gpt.fsdp;
    return rc;
}

static void begin_evaluation(struct app *app, bool on)
{
    er_tape_grad(app->gpt.tape, !on);
    if (app->gpt.fsdp)
        er_fsdp_eval(app->gpt.fsdp, on);
}

/* This rank's share of the windows held out, then the mean over all of them. Sharded parameters
 * come to all ranks at once, so all make as many passes; one without windows looks at any. */
static int evaluate(struct app *app, struct er_comm *comm, struct er_error *err)
{
    size_t rank = (size_t)er_comm_rank(comm), size = (size_t)er_comm_size(comm);
    size_t first = app->plan.samples, all = app->windows - first;
    size_t at = first + all * rank / size, end = first + all * (rank + 1) / size;
    double sum = 0, unused = 0;
    struct er_tensor *loss;
    struct er_op *op;
    int rc = 0;

    begin_evaluation(app, true);
    for (uint64_t i = 0; i < passes_of(app, all, size) && rc == 0; i++) {
        size_t rows = end - at < app->options.micro ? end - at : app->options.micro;

        for (size_t row = 0; row < rows || row == 0; row++)
            put_window(app, row, rows ? at + row : first);
        if (rows || app->gpt.fsdp)
            rc = forward(app, rows ? rows : 1, false, 0, rows ? &sum : &unused, &loss, err);
        at += rows;
    }
    begin_evaluation(app, false);
    if (rc == 0)
        rc = er_all_reduce(comm, &sum, 1, ER_F64, ER_SUM, &op, err);
    if (rc == 0)
        rc = er_op_wait(op, UINT64_MAX, err);
    app->held_out_loss = sum / (double)(all * app->options.context);
    return rc;
}

/* ---- writing text ---- */

/* One of the bytes, by their probabilities at this temperature (0: the likeliest). */
static int32_t choose(const struct options *options, const float *logits, uint64_t place)
{
    double sum = 0, draw = (double)(er_rng(options->seed, place, 1, 0) >> 11) * 0x1p-53;
    int32_t best = 0;

    for (int32_t i = 1; i < VOCAB; i++)
        best = logits[i] > logits[best] ? i : best;
    if (options->temperature == 0)
        return best;
    for (int32_t i = 0; i < VOCAB; i++)
        sum += exp(((double)logits[i] - (double)logits[best]) / options->temperature);
    for (int32_t i = 0; i < VOCAB; i++) {
        draw -= exp(((double)logits[i] - (double)logits[best]) / options->temperature) / sum;
        if (draw < 0)
            return i;
    }
    return best;
}

static int next_byte(struct app *app, size_t length, uint64_t place, int32_t *ret,
                     struct er_error *err)
{
    const struct gpt_batch batch = {.rows = 1, .length = length, .tokens = app->tokens};
    struct er_tensor *logits, *loss;
    float last[VOCAB];
    double sum;
    int rc = er_tape_begin(app->gpt.tape, err);

    if (rc == 0)
        rc = gpt_forward(&app->gpt, &batch, &logits, &loss, &sum, err);
    if (rc == 0)
        rc = er_engine_get(er_tape_engine(app->gpt.tape), last,
                           logits->value + (length - 1) * VOCAB, sizeof(last), err);
    if (rc == 0)
        *ret = choose(&app->options, last, place);
    return rc;
}

/* The prompt, and what the model goes on with; each byte sees the `context` before it. */
static int generate(struct app *app, bool shown, struct er_error *err)
{
    const char *prompt = app->options.prompt;
    size_t length = 0, most = app->options.context;
    int rc = 0;

    for (const char *c = prompt; *c; c++) {
        if (length == most)
            memmove(app->tokens, app->tokens + 1, --length * sizeof(*app->tokens));
        app->tokens[length++] = (unsigned char)*c;
    }
    if (shown)
        fputs(prompt, stdout);
    begin_evaluation(app, true);
    for (uint64_t i = 0; i < app->options.generate && rc == 0; i++) {
        int32_t byte = 0;

        rc = next_byte(app, length, i, &byte, err);
        if (shown)
            putchar(isprint(byte) || byte == '\n' || byte == '\t' || byte >= 128 ? byte : '?');
        if (length == most)
            memmove(app->tokens, app->tokens + 1, --length * sizeof(*app->tokens));
        app->tokens[length++] = byte;
    }
    if (shown)
        putchar('\n');
    fflush(stdout);
    begin_evaluation(app, false);
    return rc;
}

/* ---- between steps ---- */

static int epoch_end(void *user, uint64_t epoch, uint64_t step, struct er_comm *comm,
                     struct er_error *err)
{
    struct app *app = user;
    bool last = epoch + 1 == app->options.epochs;
    int rc = evaluate(app, comm, err);

    if (rc == 0 && er_comm_rank(comm) == 0) {
        printf("epoch=%llu step=%llu held_out_loss=%.4f bits_per_byte=%.4f\n",
               (unsigned long long)epoch + 1, (unsigned long long)step, app->held_out_loss,
               app->held_out_loss / log(2));
        fflush(stdout);
    }
    /* Whoever holds all parameters writes alone. */
    if (rc == 0 && last && app->options.generate > 0 && (er_comm_rank(comm) == 0 || app->gpt.fsdp))
        rc = generate(app, er_comm_rank(comm) == 0, err);
    return rc;
}

static void on_line(void *user, const struct er_train_line *line)
{
    struct app *app = user;

    if (line->event != ER_TRAIN_STEP) {
        er_train_log_stdout(user, line);
        return;
    }
    printf("step=%llu loss=%.6f tokens_per_s=%.0f", (unsigned long long)line->step, line->loss,
           line->tokens_per_s);
    if (app->options.exact_log)
        printf(" exact=%a", line->loss);
    putchar('\n');
    fflush(stdout);
}

/* ---- the program ---- */

static int train(struct app *app, struct er_error *err)
{
    const struct options *options = &app->options;
    const struct er_train_ops ops = {.grads = grads,
                                     .apply = apply,
                                     .spans = options->fsdp ? NULL : spans,
                                     .state = state,
                                     .epoch_end = epoch_end,
                                     .shard = options->fsdp ? shard : NULL};
    struct er_train_result result;
    uint64_t total = options->epochs * er_plan_steps(&app->plan);
    int rc;

    app->schedule = (struct er_schedule){.kind = ER_SCHEDULE_COSINE,
                                         .lr = options->lr,
                                         .lr_end = options->lr / 10,
                                         .warmup_steps = total / 20,
                                         .total_steps = total};
    app->running = true;
    rc = er_train_run(
        app->ctx, &ops, app,
        &(struct er_train_opts){.plan = app->plan,
                                .shadow = options->shadow,
                                .epochs = options->epochs,
                                .checkpoint_steps = options->checkpoint_steps,
                                .log_steps = options->log_steps,
                                .tokens_per_sample = options->context,
                                .ddp = {.norm2 = options->clip > 0},
                                .engine = app->engine,
                                .scaler = app->gpt.dtype == ER_F16 ? &app->scaler : NULL,
                                .log = on_line},
        &result, err);
    if (rc < 0 || result.stopped || er_world(app->ctx)->rank != 0)
        return rc;
    printf("held_out_loss=%.4f steps=%llu\n", app->held_out_loss, (unsigned long long)result.steps);
    return 0;
}

static int open_data(struct app *app, struct er_error *err)
{
    uint64_t context = app->options.context;
    int rc = text_open(&app->text, app->options.text, err);

    if (rc < 0)
        return rc;
    app->windows = (app->text.n - 1) / context;
    if (app->windows < 2)
        return er_error_set(err, ER_E_USAGE, "a text of %zu bytes has no two windows of %llu",
                            app->text.n, (unsigned long long)context);
    app->plan = (struct er_plan){.samples = app->windows - (app->windows + HELD_OUT - 1) / HELD_OUT,
                                 .global_batch = app->options.batch,
                                 .seed = app->options.seed};
    app->tokens = calloc(app->options.micro * context, sizeof(*app->tokens));
    app->labels = calloc(app->options.micro * context, sizeof(*app->labels));
    app->samples = calloc(app->options.micro, sizeof(*app->samples));
    if (!app->tokens || !app->labels || !app->samples)
        return er_error_set(err, -ENOMEM, "a batch of %llu x %llu bytes",
                            (unsigned long long)app->options.micro, (unsigned long long)context);
    return 0;
}

static int open_engine(struct app *app, struct er_error *err)
{
    struct er_device_opts device = {.kind = ER_DEVICE_CUDA,
                                    .index = er_world(app->ctx)->local_rank};
    int rc = 0;

    if (app->options.gpu)
        rc = er_engine_open(&app->engine, &device, err);
    if (rc == 0 && app->options.bfloat16)
        rc = er_engine_products(app->engine ? app->engine : er_engine_cpu(), ER_BF16, err);
    app->gpt.engine = app->engine;
    return rc;
}

/* float16 needs scaled losses: without them gradients below 6e-8 are lost. */
static int choose_dtype(struct app *app, struct er_error *err)
{
    static const struct {
        const char *name;
        enum er_dtype dtype;
    } table[] = {{"float32", ER_F32}, {"bfloat16", ER_BF16}, {"float16", ER_F16}};

    for (size_t i = 0; i < ER_ARRAY_N(table); i++) {
        if (strcmp(app->options.dtype, table[i].name) == 0) {
            app->gpt.dtype = table[i].dtype;
            if (table[i].dtype == ER_F16)
                er_scaler_init(&app->scaler, (double)(app->options.batch * app->options.context));
            return 0;
        }
    }
    return er_error_set(err, ER_E_USAGE, "--dtype: '%s', expected float32, bfloat16 or float16",
                        app->options.dtype);
}

static int open_model(struct app *app, struct er_error *err)
{
    const struct options *o = &app->options;
    const struct gpt_shape shape = {.vocab = VOCAB,
                                    .context = o->context,
                                    .layers = o->layers,
                                    .heads = o->heads,
                                    .width = o->width,
                                    .dropout = (float)o->dropout};
    int rc;

    app->optim = er_optim_adamw();
    app->optim.beta2 = 0.95f;
    app->optim.weight_decay = (float)o->decay;
    rc = choose_dtype(app, err);
    if (rc == 0)
        rc = open_engine(app, err);
    if (rc == 0)
        rc = gpt_open(&app->gpt, &shape, &app->optim, o->seed, o->fsdp, err);
    if (rc == 0)
        er_tape_hook(app->gpt.tape, on_gradient, app);
    return rc;
}

static const struct options defaults = {.prompt = "\n",
                                        .dtype = "float32",
                                        .layers = 4,
                                        .width = 128,
                                        .heads = 4,
                                        .context = 128,
                                        .epochs = 3,
                                        .batch = 32,
                                        .micro = 16,
                                        .seed = 1,
                                        .log_steps = 20,
                                        .generate = 300,
                                        .lr = 0.002,
                                        .decay = 0.1,
                                        .clip = 1,
                                        .temperature = 0.8};

#define AT(field) offsetof(struct options, field)

static const struct cli_row rows[] = {
    {"text", "PATH", CLI_TEXT, AT(text), 0, 0,
     "a file, or a folder of files (default " TEXT_DIR ")"},
    {"layers", "N", CLI_COUNT, AT(layers), 1, GPT_LAYERS_MAX, "(default 4)"},
    {"width", "N", CLI_COUNT, AT(width), 1, 1u << 16, "channels (default 128)"},
    {"heads", "N", CLI_COUNT, AT(heads), 1, 1u << 10, "of attention (default 4)"},
    {"context", "N", CLI_COUNT, AT(context), 1, 1u << 16, "bytes of a sample (default 128)"},
    {"dropout", "P", CLI_RATE, AT(dropout), 0, 1, "(default 0)"},
    {"epochs", "N", CLI_COUNT, AT(epochs), 1, 100000, "(default 3)"},
    {"batch", "N", CLI_COUNT, AT(batch), 1, 1u << 20,
     "samples of a step, over all workers (default 32)"},
    {"micro", "N", CLI_COUNT, AT(micro), 1, 1u << 12,
     "samples of one pass; more are several passes (default 16)"},
    {"lr", "RATE", CLI_RATE, AT(lr), 0, 10, "highest learning rate (default 0.002)"},
    {"decay", "RATE", CLI_RATE, AT(decay), 0, 10, "of weight matrices (default 0.1)"},
    {"clip", "NORM", CLI_RATE, AT(clip), 0, 1000000, "largest gradient norm, 0: any (default 1)"},
    {"seed", "N", CLI_COUNT, AT(seed), 0, UINT64_MAX, "(default 1)"},
    {"checkpoint-steps", "N", CLI_COUNT, AT(checkpoint_steps), 0, UINT64_MAX,
     "save every N steps (default: as the job spec says)"},
    {"log-steps", "N", CLI_COUNT, AT(log_steps), 0, UINT64_MAX,
     "a line every N steps; 0: none (default 20)"},
    {"generate", "N", CLI_COUNT, AT(generate), 0, 1u << 20,
     "bytes to write at the end (default 300)"},
    {"prompt", "TEXT", CLI_TEXT, AT(prompt), 0, 0, "what they follow (default a new line)"},
    {"temperature", "T", CLI_RATE, AT(temperature), 0, 100, "0: the likeliest byte (default 0.8)"},
    {"fsdp", NULL, CLI_FLAG, AT(fsdp), 0, 0,
     "divide parameters, gradients and optimizer state over the workers"},
    {"shadow", NULL, CLI_FLAG, AT(shadow), 0, 0,
     "with --fsdp: keep every part on a second worker, so that a lost one costs nothing"},
    {"dtype", "TYPE", CLI_TEXT, AT(dtype), 0, 0,
     "store parameters (but for master values) and activations as bfloat16 or float16 (default "
     "float32)"},
    {"gpu", NULL, CLI_FLAG, AT(gpu), 0, 0, "each worker on the GPU of its local rank"},
    {"bfloat16", NULL, CLI_FLAG, AT(bfloat16), 0, 0, "matrix products of bfloat16 (with --gpu)"},
    {"exact-log", NULL, CLI_FLAG, AT(exact_log), 0, 0, "print losses bit for bit too"},
    {"help", NULL, CLI_FLAG, AT(help), 0, 0, ""},
};

static int run(struct app *app, int argc, char **argv, struct er_error *err)
{
    int rc;

    app->options = defaults;
    rc = cli_parse(rows, ER_ARRAY_N(rows), &app->options, argc, argv, err);
    if (rc == 0 && app->options.help) {
        cli_help("gpt [options]: train a small GPT on a text, then let it write", rows,
                 ER_ARRAY_N(rows));
        return 0;
    }
    if (rc == 0 && app->options.prompt[0] == '\0')
        rc = er_error_set(err, ER_E_USAGE, "--prompt: at least one byte is needed");
    if (rc == 0)
        rc = open_data(app, err);
    if (rc == 0)
        rc = open_model(app, err);
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
        fprintf(stderr, "gpt: %s\n", err.text);
    /* A lost peer is its own root cause, not this worker's failure. */
    if (rc < 0 && rc != ER_E_PEER_LOST && rc != ER_E_ABORTED && rc != ER_E_STALE)
        er_fail(app.ctx, "%s", err.text);
    gpt_close(&app.gpt);
    er_engine_close(app.engine);
    text_close(&app.text);
    free(app.tokens);
    free(app.labels);
    free(app.samples);
    er_close(app.ctx);
    return cli_exit_code(rc, app.running);
}
