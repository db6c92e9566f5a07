/*
 * Backend nccl and the device layer, with arrays in device memory, on the double of CUDA and NCCL:
 * order between streams, and what goes wrong on a GPU.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/contract/on_gpu.h"

/* ---- a step ---- */

/* Gradients are computed, reduced, voted on and applied; the host waits for nothing but the vote.
 */
static void one_step(struct on_gpu *g, uint64_t step)
{
    struct er_kernel_args grads = {.y = g->grad, .n = ON_GPU_N, .a = 2};
    struct er_kernel_args apply = {
        .y = g->param, .x = g->grad, .n = ON_GPU_N, .a = 0.5f, .b = 0.25f};
    struct er_error err = ER_ERROR_INIT;
    struct er_vote vote = {.step = step, .ok = 1};
    struct er_op *op = NULL;

    on_gpu_call_double("fake_cuda_step_begin");
    on_gpu_launch(g, ER_KERNEL_scale_f32, &grads);
    RANK_OK(er_comm_after(g->comm, g->compute, &err), err);
    RANK_OK(er_all_reduce(g->comm, g->grad, ON_GPU_N, ER_F32, ER_SUM, &op, &err), err);
    RANK_OK(er_op_wait(op, RANK_WAIT_US, &err), err);
    RANK_OK(er_vote(g->comm, &vote, &err), err);
    RANK_REQUIRE(vote.ok == (uint32_t)er_comm_size(g->comm));
    RANK_OK(er_op_before(op, g->compute, &err), err);
    on_gpu_launch(g, ER_KERNEL_sgd_f32, &apply);
    on_gpu_call_double("fake_cuda_step_end");
}

static void steps(struct rank *r)
{
    struct on_gpu g = on_gpu_open(r, NULL);
    float want[7], grad[7];

    on_gpu_fill(&g, g.param, 1);
    on_gpu_fill(&g, g.grad, (float)r->rank);
    for (int k = 0; k < 7; k++) {
        want[k] = 1 + (float)k;
        grad[k] = 0;
        for (int i = 0; i < r->size; i++)
            grad[k] += 2 * ((float)i + (float)k);
    }
    for (uint64_t step = 1; step <= 4; step++) {
        one_step(&g, step);
        for (int k = 0; k < 7; k++) {
            want[k] -= 0.5f * (grad[k] * 0.25f);
            grad[k] *= 2 * (float)r->size; /* all have the sum now */
        }
    }
    on_gpu_fetch(&g, g.param);
    for (int i = 0; i < ON_GPU_N; i++)
        RANK_REQUIRE(g.host[i] == want[i % 7]);
    RANK_REQUIRE(strncmp(er_comm_describe(g.comm), "nccl ", 5) == 0);
    on_gpu_close(&g);
}

static void steps_on_device(void)
{
    run_both(1, steps);
    run_both(3, steps);
}

/* ---- what goes wrong ---- */

/* Rank 1's second operation hangs; the others' with it. All abort, and go on with a new one. */
static void hang_and_recover(struct rank *r)
{
    struct er_comm_opts opts = {.op_timeout_us = 300000};
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    struct on_gpu g;

    if (r->rank == 1)
        setenv("FAKE_NCCL_OP_HANGS", "2", 1);
    g = on_gpu_open(r, &opts);
    on_gpu_fill(&g, g.grad, 1);
    for (int i = 0; i < 2; i++)
        RANK_OK(er_all_reduce(g.comm, g.grad, ON_GPU_N, ER_F32, ER_SUM, &op, &err), err);
    RANK_REQUIRE(er_op_wait(op, RANK_WAIT_US, &err) == -ETIMEDOUT);
    RANK_REQUIRE(strstr(err.text, "all-reduce #2") && strstr(err.text, "made no progress"));
    rank_meet(r, "stuck");
    unsetenv("FAKE_NCCL_OP_HANGS");
    er_comm_abort(g.comm);
    RANK_OK(er_stream_sync(g.compute, &err), err);
    rank_next_generation(r);
    g.comm = rank_open(r, &(struct er_comm_opts){.backend = ER_COMM_NCCL, .device = g.device});
    on_gpu_fill(&g, g.grad, 1);
    RANK_OK(er_all_reduce(g.comm, g.grad, ON_GPU_N, ER_F32, ER_SUM, &op, &err), err);
    RANK_OK(er_op_wait(op, RANK_WAIT_US, &err), err);
    rank_meet(r, "verified");
    on_gpu_fetch(&g, g.grad);
    for (int i = 0; i < ON_GPU_N; i++)
        RANK_REQUIRE(g.host[i] == (float)r->size * (1 + (float)(i % 7)));
    on_gpu_close(&g);
}

static void hanging_operation(void)
{
    run_both(3, hang_and_recover);
}

/* NCCL fails on one rank: all are told, and by whom. */
static void fail_async(struct rank *r)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    struct on_gpu g;

    if (r->rank == 2)
        setenv("FAKE_NCCL_OP_FAILS", "1", 1);
    g = on_gpu_open(r, NULL);
    on_gpu_fill(&g, g.grad, 1);
    RANK_OK(er_all_reduce(g.comm, g.grad, ON_GPU_N, ER_F32, ER_SUM, &op, &err), err);
    RANK_REQUIRE(er_op_wait(op, RANK_WAIT_US, &err) == ER_E_PEER_LOST);
    RANK_REQUIRE(strstr(err.text, "all-reduce #1") && strstr(err.text, "NCCL"));
    RANK_REQUIRE(r->rank == 2 || strstr(err.text, "told by rank "));
    on_gpu_close(&g);
}

static void asynchronous_error(void)
{
    run_both(3, fail_async);
}

static int try_open(struct rank *r, struct er_comm_opts opts, struct er_error *err)
{
    struct er_comm *comm = NULL;
    int rc;

    opts.backend = ER_COMM_NCCL;
    opts.transport = r->transport;
    opts.device = rank_device(r);
    rc = er_comm_open(&comm, r->ctx, &opts, err);
    if (rc == 0)
        rc = er_comm_wait_ready(comm, err);
    er_comm_abort(comm);
    return rc;
}

static void require_text(int rc, int want, const struct er_error *err, const char *text)
{
    if (rc != want || !strstr(err->text, text))
        printf("# %d: %s\n", rc, err->text);
    RANK_REQUIRE(rc == want && strstr(err->text, text));
}

static void open_badly(struct rank *r)
{
    struct er_comm_opts opts = {.open_timeout_us = 300000};
    struct er_error err = ER_ERROR_INIT;

    if (r->rank == 1)
        setenv("FAKE_NCCL_VERSION", "22703", 1);
    require_text(try_open(r, opts, &err), ER_E_MISMATCH, &err, "rank 1 has NCCL 2.27.3");
    unsetenv("FAKE_NCCL_VERSION");
    rank_next_generation(r);
    if (r->rank == 1)
        setenv("FAKE_NCCL_INIT_HANGS", "1", 1);
    require_text(try_open(r, opts, &err), -ETIMEDOUT, &err, "NCCL has not connected");
    unsetenv("FAKE_NCCL_INIT_HANGS");
    rank_next_generation(r);
    if (r->rank == 1)
        setenv("FAKE_NCCL_INIT_FAILS", "1", 1);
    require_text(try_open(r, (struct er_comm_opts){0}, &err), ER_E_PEER_LOST, &err, "NCCL");
    unsetenv("FAKE_NCCL_INIT_FAILS");
    rank_next_generation(r);
    if (r->rank == 1)
        setenv("FAKE_NCCL_INIT_DELAY_MS", "300", 1);
    RANK_OK(try_open(r, (struct er_comm_opts){0}, &err), err);
}

static void opening(void)
{
    run_both(3, open_badly);
}

static void share_gpu(struct rank *r)
{
    struct er_device_opts opts = {.kind = ER_DEVICE_CUDA, .index = r->rank == 2 ? 1 : r->rank};
    struct er_error err = ER_ERROR_INIT;

    RANK_OK(er_device_open(&r->device, &opts, &err), err);
    require_text(try_open(r, (struct er_comm_opts){0}, &err), ER_E_CONFIG, &err,
                 "ranks 1 and 2 use the same GPU");
    rank_next_generation(r);
    setenv("NCCL_HOSTID", r->rank == 2 ? "b" : "a", 1);
    RANK_OK(try_open(r, (struct er_comm_opts){0}, &err), err);
}

static void same_gpu(void)
{
    run_both(3, share_gpu);
}

/* Rank 2 of 4 goes; the others make the new communicator from the old one. */
static void shrink_once(struct rank *r, bool fails)
{
    struct on_gpu g = on_gpu_open(r, NULL);
    struct er_comm_opts opts = {.backend = ER_COMM_NCCL, .device = g.device};
    struct er_comm *old = g.comm;
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;

    if (r->rank == 1 && fails)
        setenv("FAKE_NCCL_SHRINK_FAILS", "1", 1);
    rank_meet(r, "open");
    if (r->rank == 2) {
        on_gpu_close(&g);
        return;
    }
    er_fake_move(r->ctx, r->rank - (r->rank > 2), 3, 2);
    opts.shrink_from = old;
    g.comm = rank_open(r, &opts);
    er_comm_abort_all(&old, 1);
    RANK_REQUIRE((strstr(er_comm_describe(g.comm), "shrunk") == NULL) == fails);
    on_gpu_fill(&g, g.grad, 1);
    RANK_OK(er_all_reduce(g.comm, g.grad, ON_GPU_N, ER_F32, ER_SUM, &op, &err), err);
    RANK_OK(er_op_wait(op, RANK_WAIT_US, &err), err);
    on_gpu_fetch(&g, g.grad);
    RANK_REQUIRE(g.host[0] == 3);
    rank_meet(r, "verified");
    on_gpu_close(&g);
}

static void shrink_ranks(struct rank *r)
{
    shrink_once(r, false);
}

static void shrink_falls_back(struct rank *r)
{
    shrink_once(r, true);
}

static void shrink(void)
{
    run_both(4, shrink_ranks);
    run_both(4, shrink_falls_back);
}

/* ---- the process ends, or says no ---- */

static void lose_device(struct rank *r)
{
    struct er_error err = ER_ERROR_INIT;
    struct on_gpu g;

    setenv("FAKE_CUDA_STICKY", "2", 1);
    g = on_gpu_open(r, NULL);
    on_gpu_fill(&g, g.grad, 1);
    for (int i = 0; i < 2; i++)
        on_gpu_launch(&g, ER_KERNEL_scale_f32,
                      &(struct er_kernel_args){.y = g.grad, .n = ON_GPU_N, .a = 1});
    er_stream_sync(g.compute, &err);
}

static void abort_for_ever(struct rank *r)
{
    struct er_comm_opts opts = {.abort_timeout_us = 100000};
    struct on_gpu g = on_gpu_open(r, &opts);

    setenv("FAKE_NCCL_ABORT_HANGS", "1", 1);
    er_comm_abort(g.comm);
}

static void exit_codes(void)
{
    on_gpu_ends_with(lose_device, ER_WORKER_EXIT_DEVICE_LOST, 0);
    on_gpu_ends_with(abort_for_ever, ER_WORKER_EXIT_STUCK, 0);
}

static void refuse(struct rank *r)
{
    struct er_device_opts opts = {.kind = ER_DEVICE_CUDA, .index = 70};
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;
    struct er_device *device = NULL;
    struct er_event *event = NULL;
    struct er_stream *stream = NULL;
    void *p = NULL;

    require_text(er_device_open(&device, &opts, &err), ER_E_UNSUPPORTED, &err, "64 visible GPUs");
    setenv("FAKE_CUDA_DEVICES", "0", 1);
    require_text(er_device_open(&device, &opts, &err), ER_E_UNSUPPORTED, &err, "no CUDA-capable");
    unsetenv("FAKE_CUDA_DEVICES");
    setenv("FAKE_CUDA_MEM", "1000000", 1);
    require_text(er_device_alloc(rank_device(r), ER_MEMORY_DEVICE, 2000000, &p, &err), -ENOMEM,
                 &err, "2000000 bytes of device memory");
    RANK_OK(er_stream_new(&stream, rank_device(r), ER_STREAM_NORMAL, &err), err);
    RANK_OK(er_event_new(&event, rank_device(r), false, &err), err);
    require_text(er_stream_wait(stream, event, &err), ER_E_USAGE, &err, "never recorded");
    er_event_free(event);
    er_stream_free(stream);
    require_text(er_comm_open(&comm, r->ctx, &(struct er_comm_opts){.backend = ER_COMM_NCCL}, &err),
                 ER_E_USAGE, &err, "needs a GPU");
}

static void no_module(struct rank *r)
{
    struct er_device_opts opts = {.kind = ER_DEVICE_CUDA};
    struct er_error err = ER_ERROR_INIT;
    struct er_device *device = NULL;

    setenv("ELASTIC_MODULE_DIR", "/nowhere", 1);
    require_text(er_device_open(&device, &opts, &err), ER_E_UNSUPPORTED, &err, "no er_nccl.so");
}

static void refusals(void)
{
    run_ranks(&(struct ranks){.size_n = 1}, refuse);
    run_ranks(&(struct ranks){.size_n = 1}, no_module);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"steps_on_device", steps_on_device, 0},
        {"hanging_operation", hanging_operation, 0},
        {"asynchronous_error", asynchronous_error, 0},
        {"opening", opening, 0},
        {"same_gpu", same_gpu, 0},
        {"shrink", shrink, 0},
        {"exit_codes", exit_codes, 0},
        {"refusals", refusals, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
