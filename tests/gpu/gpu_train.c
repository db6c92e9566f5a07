/* Items of the trainer: what a GPU computes is what the CPU computes, DDP with it, its speed. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "tests/gpu/gpu_check.h"
#include "trainer/engine.h"
#include "trainer/matmul.h"
#include "trainer/ops/ops.h"
#include "trainer/sampler.h"

/* A block of a GPT: table, norm, qkv, projection, norm, up, down, and the table again for logits.
 */
enum { TABLE, NORM_1, NORM_1B, QKV, OUT, NORM_2, NORM_2B, UP, UP_B, DOWN, PARAMS };
enum { HEADS = 4, STEPS = 20, RANKS = 2 };

struct size {
    size_t vocabulary, width, positions, batch;
};

struct net {
    struct size size;
    struct er_engine *engine;
    struct er_flat_param table[PARAMS];
    struct er_flat flat;
    struct er_span spans[PARAMS];
    struct er_tape *tape;
    struct er_optim optim;
    void *memory;
    int32_t *ids, *labels;
    struct er_ddp *ddp;
};

static _Atomic uint32_t *bits; /* of the ranks' parameters: shared */

static const struct size small = {61, 32, 16, 8};

static float noise(uint64_t a, uint64_t i)
{
    return (float)((double)(er_rng(7, a, 1, i) >> 11) * 0x1p-52 - 1.0);
}

static void *ordinary(size_t bytes)
{
    void *p = calloc(1, bytes);

    RANK_REQUIRE(p);
    return p;
}

static void fill_params(struct net *n)
{
    struct er_error err = ER_ERROR_INIT;

    for (size_t p = 0; p < PARAMS; p++) {
        size_t count = n->table[p].count;
        float *x = ordinary(count * sizeof(*x));
        bool is_gain = p == NORM_1 || p == NORM_2;

        for (size_t i = 0; i < count; i++)
            x[i] = is_gain ? 1.0f : n->table[p].shape.ndim == 2 ? 0.1f * noise(p, i) : 0.0f;
        RANK_OK(er_engine_put(n->engine, er_flat_at(&n->flat, ER_FLAT_VALUE, p), x,
                              count * sizeof(*x), &err),
                err);
        free(x);
    }
}

static struct net *open_net(struct er_engine *engine, const struct size *size)
{
    static const char *const names[PARAMS] = {"table", "n1",  "n1b", "qkv", "out",
                                              "n2",    "n2b", "up",  "upb", "down"};
    struct net *n = ordinary(sizeof(*n));
    size_t c = size->width, rows = size->batch * size->positions;
    const struct er_shape shapes[PARAMS] = {er_shape_2d(size->vocabulary, c),
                                            er_shape_1d(c),
                                            er_shape_1d(c),
                                            er_shape_2d(3 * c, c),
                                            er_shape_2d(c, c),
                                            er_shape_1d(c),
                                            er_shape_1d(c),
                                            er_shape_2d(4 * c, c),
                                            er_shape_1d(4 * c),
                                            er_shape_2d(c, 4 * c)};
    struct er_error err = ER_ERROR_INIT;

    n->size = *size;
    n->engine = engine;
    n->optim = er_optim_adamw();
    n->ids = ordinary(rows * sizeof(*n->ids));
    n->labels = ordinary(rows * sizeof(*n->labels));
    er_flat_init(&n->flat, n->table, PARAMS, er_optim_state_names(n->optim.kind), 2);
    for (size_t p = 0; p < PARAMS; p++)
        RANK_OK(er_flat_add(&n->flat, names[p], &shapes[p], NULL, &err), err);
    RANK_OK(er_engine_alloc(engine, er_flat_bytes(&n->flat), &n->memory, &err), err);
    er_flat_place(&n->flat, n->memory);
    er_flat_spans(&n->flat, ER_FLAT_GRAD, n->spans);
    fill_params(n);
    RANK_OK(er_tape_new_on(&n->tape, &n->flat, 0, engine, &err), err);
    return n;
}

static void close_net(struct net *n)
{
    er_tape_free(n->tape);
    er_engine_free(n->engine, n->memory);
    free(n->ids);
    free(n->labels);
    free(n);
}

static struct er_tensor *param(struct net *n, size_t p)
{
    return er_tape_param(n->tape, p);
}

/* Samples [first, first + count) of the step's batch. */
static double pass(struct net *n, uint64_t step, size_t first, size_t count)
{
    struct er_shape shape = er_shape_2d(count, n->size.positions);
    struct er_tensor *x, *h, *loss;
    struct er_error err = ER_ERROR_INIT;
    double sum = 0;

    for (size_t i = 0; i < count * n->size.positions; i++) {
        uint64_t at = step << 32 | (first * n->size.positions + i);

        n->ids[i] = (int32_t)(er_rng(1, at, 2, 0) % n->size.vocabulary);
        n->labels[i] = (int32_t)((uint64_t)(n->ids[i] * 3 + 1) % n->size.vocabulary);
    }
    RANK_OK(er_tape_begin(n->tape, &err), err);
    RANK_OK(er_embedding(n->tape, param(n, TABLE), n->ids, &shape, &x, &err), err);
    RANK_OK(er_layer_norm(n->tape, x, param(n, NORM_1), param(n, NORM_1B), 1e-5f, &h, &err), err);
    RANK_OK(er_linear(n->tape, h, param(n, QKV), NULL, &h, &err), err);
    RANK_OK(er_attention(n->tape, h, HEADS, &h, &err), err);
    RANK_OK(er_linear(n->tape, h, param(n, OUT), NULL, &h, &err), err);
    RANK_OK(er_add(n->tape, x, h, &x, &err), err);
    RANK_OK(er_layer_norm(n->tape, x, param(n, NORM_2), param(n, NORM_2B), 1e-5f, &h, &err), err);
    RANK_OK(er_linear(n->tape, h, param(n, UP), param(n, UP_B), &h, &err), err);
    RANK_OK(er_gelu(n->tape, h, &h, &err), err);
    RANK_OK(er_linear(n->tape, h, param(n, DOWN), NULL, &h, &err), err);
    RANK_OK(er_add(n->tape, x, h, &x, &err), err);
    RANK_OK(er_linear(n->tape, x, param(n, TABLE), NULL, &x, &err), err);
    RANK_OK(er_cross_entropy(n->tape, x, n->labels, &sum, &loss, &err), err);
    RANK_OK(er_tape_backward(n->tape, loss, &err), err);
    return sum;
}

static void apply(struct net *n, uint64_t step, double weight)
{
    struct er_optim_view view = er_optim_view_flat(&n->flat);
    struct er_error err = ER_ERROR_INIT;

    RANK_OK(er_engine_apply(n->engine, &n->optim, &view, step, 0.01, 1 / weight, &err), err);
}

static struct er_engine *first_gpu(void)
{
    struct er_device_opts opts = {.kind = ER_DEVICE_CUDA};
    struct er_error err = ER_ERROR_INIT;
    struct er_engine *engine = NULL;

    RANK_OK(er_engine_open(&engine, &opts, &err), err);
    return engine;
}

static uint32_t hash_of(struct net *n)
{
    float *x = ordinary(n->flat.total * sizeof(*x));
    struct er_error err = ER_ERROR_INIT;
    uint32_t hash = 0, word;

    RANK_OK(er_engine_get(n->engine, x, n->memory, n->flat.total * sizeof(*x), &err), err);
    for (size_t i = 0; i < n->flat.total; i++) {
        memcpy(&word, &x[i], sizeof(word));
        hash = hash * 31 + word;
    }
    free(x);
    return hash;
}

/* Losses of STEPS steps; the parameters' bits at the end. */
static uint32_t run(struct er_engine *engine, double *losses)
{
    struct net *n = open_net(engine, &small);
    uint32_t hash;

    for (uint64_t step = 1; step <= STEPS; step++) {
        losses[step - 1] = pass(n, step, 0, small.batch);
        apply(n, step, (double)(small.batch * small.positions));
    }
    hash = hash_of(n);
    close_net(n);
    return hash;
}

void item_train(void)
{
    double cpu[STEPS], gpu[STEPS], again[STEPS], off = 0;
    struct er_error err = ER_ERROR_INIT;
    struct er_engine *engine = first_gpu();
    uint32_t hash;

    RANK_OK(er_matmul_setup(&err), err);
    say_text("engine", er_engine_describe(engine));
    run(er_engine_cpu(), cpu);
    hash = run(engine, gpu);
    RANK_REQUIRE(run(engine, again) == hash);
    for (int i = 0; i < STEPS; i++)
        off = fmax(off, fabs(gpu[i] / cpu[i] - 1));
    say("loss_first", gpu[0]);
    say("loss_last", gpu[STEPS - 1]);
    say("loss_off_cpu", off);
    RANK_REQUIRE(off < 1e-3 && gpu[STEPS - 1] < gpu[0]);
    er_engine_close(engine);
}

/* ---- DDP of two ranks is one process ---- */

static void on_gradient(void *user, size_t param_index)
{
    struct net *n = user;

    er_ddp_ready(n->ddp, param_index);
}

static void ddp_rank(struct rank *r)
{
    struct er_comm_opts of_host = {.name = "control"};
    struct er_device_opts device = {.kind = ER_DEVICE_CUDA};
    struct er_error err = ER_ERROR_INIT;
    struct er_engine *engine = NULL;
    struct er_ddp_opts opts = {.first_bucket_bytes = 4096, .bucket_bytes = 16384};
    struct er_comm *comms[2] = {NULL, NULL};
    size_t share = small.batch / (size_t)r->size;
    struct net *n;

    gpu_pose(r); /* before CUDA's and NCCL's first call */
    device.index = gpu_index(r);
    RANK_OK(er_engine_open(&engine, &device, &err), err);
    n = open_net(engine, &small);
    comms[0] = rank_open(r, &of_host);
    comms[1] = rank_open(
        r, &(struct er_comm_opts){.backend = ER_COMM_NCCL, .device = er_engine_device(engine)});
    opts.engine = engine;
    opts.control = comms[0];
    RANK_OK(er_ddp_open(&n->ddp, comms[1], n->spans, PARAMS, &opts, &err), err);
    er_tape_hook(n->tape, on_gradient, n);
    for (uint64_t step = 1; step <= STEPS; step++) {
        struct er_vote vote = {.step = step, .weight = (double)(share * small.positions)};

        vote.loss = pass(n, step, share * (size_t)r->rank, share);
        RANK_OK(er_ddp_finish(n->ddp, &vote, &err), err);
        apply(n, step, vote.weight);
        if (r->rank == 0 && step == STEPS)
            atomic_store(&bits[RANKS], (uint32_t)(vote.loss / vote.weight * 1e5));
    }
    atomic_store(&bits[r->rank], hash_of(n));
    RANK_OK(er_comm_barrier(comms[0], &err), err);
    er_ddp_close(n->ddp);
    er_comm_abort_all(comms, 2);
    close_net(n);
    er_engine_close(engine);
}

void item_ddp(void)
{
    uint32_t loss;

    bits = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    RANK_REQUIRE(bits != MAP_FAILED);
    gpu_ranks(1, ddp_rank);
    loss = bits[RANKS];
    gpu_ranks(RANKS, ddp_rank);
    say("loss_one", loss * 1e-5);
    say("loss_two", bits[RANKS] * 1e-5);
    RANK_REQUIRE(bits[0] == bits[1]);
    RANK_REQUIRE(fabs((double)bits[RANKS] - (double)loss) <= 1e-3 * (double)loss + 2);
}

/* ---- speed: a step's parts, and copies to the host beside backward as a paced link ---- */

struct link {
    struct net *net;
    struct er_stream *stream;
    struct er_event *ready;
    char *host;
    bool on;
};

static void send_gradient(void *user, size_t param_index)
{
    struct link *l = user;
    struct er_error err = ER_ERROR_INIT;
    const struct er_span *span = &l->net->spans[param_index];

    if (!l->on)
        return;
    RANK_OK(er_event_record(l->ready, er_engine_stream(l->net->engine), &err), err);
    RANK_OK(er_stream_wait(l->stream, l->ready, &err), err);
    RANK_OK(er_stream_copy(l->stream, l->host, span->ptr, span->count * sizeof(float),
                           ER_COPY_TO_HOST, &err),
            err);
}

static double step_us(struct link *l, uint64_t step, bool link_on)
{
    uint64_t began_us = er_now_us();
    struct er_error err = ER_ERROR_INIT;

    l->on = link_on;
    pass(l->net, step, 0, l->net->size.batch);
    RANK_OK(er_stream_sync(l->stream, &err), err);
    return (double)(er_now_us() - began_us);
}

static double copies_us(struct link *l)
{
    uint64_t began_us = er_now_us();
    struct er_error err = ER_ERROR_INIT;

    l->on = true;
    for (size_t p = 0; p < PARAMS; p++)
        send_gradient(l, p);
    RANK_OK(er_stream_sync(l->stream, &err), err);
    return (double)(er_now_us() - began_us);
}

void item_overlap(void)
{
    const struct size large = {8192, 2048, 512, 8};
    struct er_engine *engine = first_gpu();
    struct link l = {.net = open_net(engine, gpu_facts()->is_double ? &small : &large)};
    struct er_device *d = er_engine_device(engine);
    struct er_error err = ER_ERROR_INIT;
    double compute = 1e30, copies = 1e30, both = 1e30, half = 1e30, optimizer;
    uint64_t began_us;

    l.host = gpu_alloc(d, ER_MEMORY_PINNED, l.net->flat.total * sizeof(float));
    RANK_OK(er_stream_new(&l.stream, d, ER_STREAM_HIGH, &err), err);
    RANK_OK(er_event_new(&l.ready, d, false, &err), err);
    er_tape_hook(l.net->tape, send_gradient, &l);
    step_us(&l, 1, false); /* the first allocates */
    step_us(&l, 2, true);
    for (uint64_t i = 3; i < 8; i++) { /* A B A B, the best of each */
        compute = fmin(compute, step_us(&l, i, false));
        copies = fmin(copies, copies_us(&l));
        both = fmin(both, step_us(&l, i, true));
    }
    began_us = er_now_us();
    apply(l.net, 1, 1);
    RANK_OK(er_engine_wait(engine, &err), err);
    optimizer = (double)(er_now_us() - began_us);
    RANK_OK(er_engine_products(engine, ER_BF16, &err), err);
    for (uint64_t i = 8; i < 12; i++)
        half = fmin(half, step_us(&l, i, false));
    say("params", (double)l.net->flat.total);
    say("forward_backward_us", compute);
    say("copies_us", copies);
    say("both_us", both);
    say("hidden", (compute + copies - both) / fmin(compute, copies));
    say("optimizer_us", optimizer);
    say("bfloat16_us", half);
    er_event_free(l.ready);
    er_stream_free(l.stream);
    er_device_free(d, ER_MEMORY_PINNED, l.host);
    close_net(l.net);
    er_engine_close(engine);
}
