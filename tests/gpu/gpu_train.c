/* Items of the trainer on one GPU: what it computes is what the CPU computes; its speed. */
#include <math.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "tests/gpu/gpu_net.h"
#include "trainer/matmul.h"

enum { STEPS = 20 };

/* Losses of STEPS steps, with parameters and activations stored as `type`; the parameters' bits at
 * the end. */
static uint32_t run(struct er_engine *engine, enum er_dtype type, double *losses)
{
    struct net *n = net_open(engine, &net_small, false);
    struct er_error err = ER_ERROR_INIT;
    float *values = net_memory(n->flat.total * sizeof(*values));
    uint32_t hash;

    RANK_OK(er_tape_store(n->tape, type, &err), err);
    for (uint64_t step = 1; step <= STEPS; step++) {
        losses[step - 1] = net_pass(n, step, 0, net_small.batch);
        net_apply(n, step, (double)(net_small.batch * net_small.positions));
    }
    net_values(n, values);
    hash = net_hash(values, n->flat.total);
    free(values);
    net_close(n);
    return hash;
}

/* The GPU's losses as the CPU's, and the same bits twice. */
static void compare(struct er_engine *engine, enum er_dtype type, const char *name, double most)
{
    double cpu[STEPS], gpu[STEPS], again[STEPS], off = 0;
    uint32_t hash;

    run(er_engine_cpu(), type, cpu);
    hash = run(engine, type, gpu);
    RANK_REQUIRE(run(engine, type, again) == hash);
    for (int i = 0; i < STEPS; i++)
        off = fmax(off, fabs(gpu[i] / cpu[i] - 1));
    if (type == ER_F32) {
        say("loss_first", gpu[0]);
        say("loss_last", gpu[STEPS - 1]);
    }
    say(name, off);
    RANK_REQUIRE(off < most && gpu[STEPS - 1] < gpu[0]);
}

void item_train(void)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_engine *engine = net_gpu(0);

    RANK_OK(er_matmul_setup(&err), err);
    say_text("engine", er_engine_describe(engine));
    compare(engine, ER_F32, "loss_off_cpu", 1e-3);
    compare(engine, ER_BF16, "loss_off_cpu_bf16", 1e-1);
    compare(engine, ER_F16, "loss_off_cpu_f16", 3e-2);
    er_engine_close(engine);
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
    net_pass(l->net, step, 0, l->net->size.batch);
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
    const struct net_size large = {8192, 2048, 512, 8};
    struct er_engine *engine = net_gpu(0);
    struct link l = {.net = net_open(engine, gpu_facts()->is_double ? &net_small : &large, false)};
    struct er_device *d = er_engine_device(engine);
    struct er_error err = ER_ERROR_INIT;
    double compute = 1e30, copies = 1e30, both = 1e30, half = 1e30, stored = 1e30, optimizer;
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
    net_apply(l.net, 1, 1);
    RANK_OK(er_engine_wait(engine, &err), err);
    optimizer = (double)(er_now_us() - began_us);
    RANK_OK(er_engine_products(engine, ER_BF16, &err), err);
    for (uint64_t i = 8; i < 12; i++)
        half = fmin(half, step_us(&l, i, false));
    RANK_OK(er_tape_store(l.net->tape, ER_BF16, &err), err);
    for (uint64_t i = 12; i < 16; i++)
        stored = fmin(stored, step_us(&l, i, false));
    say("params", (double)l.net->flat.total);
    say("forward_backward_us", compute);
    say("copies_us", copies);
    say("both_us", both);
    say("hidden", (compute + copies - both) / fmin(compute, copies));
    say("optimizer_us", optimizer);
    say("bfloat16_us", half);
    say("bfloat16_stored_us", stored);
    er_event_free(l.ready);
    er_stream_free(l.stream);
    er_device_free(d, ER_MEMORY_PINNED, l.host);
    net_close(l.net);
    er_engine_close(engine);
}
