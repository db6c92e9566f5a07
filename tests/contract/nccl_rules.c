/* The double sees what a GPU would not tell: each broken rule ends the process. */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>

#include "tests/contract/on_gpu.h"

static void pageable_copy(struct rank *r)
{
    static float x[4];
    struct on_gpu g = on_gpu_open(r, NULL);

    er_stream_copy(g.compute, g.grad, x, sizeof(x), ER_COPY_TO_DEVICE, NULL);
}

static void allocation_in_step(struct rank *r)
{
    struct on_gpu g = on_gpu_open(r, NULL);
    void *p;

    on_gpu_call_double("fake_cuda_step_begin");
    er_device_alloc(g.device, ER_MEMORY_DEVICE, 4, &p, NULL);
}

static void event_of_earlier_step(struct rank *r)
{
    struct on_gpu g = on_gpu_open(r, NULL);

    on_gpu_call_double("fake_cuda_step_begin");
    er_event_record(g.event, g.compute, NULL);
    on_gpu_call_double("fake_cuda_step_begin");
    er_stream_wait(g.compute, g.event, NULL);
}

static void freed_memory(struct rank *r)
{
    struct on_gpu g = on_gpu_open(r, NULL);

    er_device_free(g.device, ER_MEMORY_DEVICE, g.grad);
    er_stream_fill(g.compute, g.grad, 0, 4, NULL);
}

static void host_memory_reduced(struct rank *r)
{
    struct on_gpu g = on_gpu_open(r, NULL);
    struct er_op *op;
    float x;

    er_all_reduce(g.comm, &x, 1, ER_F32, ER_SUM, &op, NULL);
}

static void no_order(struct rank *r)
{
    struct on_gpu g = on_gpu_open(r, NULL);
    struct er_op *op;

    er_stream_fill(g.compute, g.grad, 0, 4, NULL);
    er_all_reduce(g.comm, g.grad, 1, ER_F32, ER_SUM, &op, NULL); /* er_comm_after() is missing */
}

static void released_by_abort(struct rank *r)
{
    struct er_op *op;
    struct on_gpu g;

    setenv("FAKE_NCCL_OP_HANGS", "1", 1);
    g = on_gpu_open(r, NULL);
    er_all_reduce(g.comm, g.grad, ON_GPU_N, ER_F32, ER_SUM, &op, NULL);
    er_op_before(op, g.compute, NULL);
    on_gpu_launch(&g, ER_KERNEL_sgd_f32,
                  &(struct er_kernel_args){.y = g.param, .x = g.grad, .n = ON_GPU_N, .a = 1});
    er_comm_abort(g.comm);
    er_stream_sync(g.compute, NULL);
}

static void *ask_status(void *comm)
{
    return (void *)(intptr_t)er_comm_status(comm, NULL);
}

static void second_thread(struct rank *r)
{
    struct on_gpu g = on_gpu_open(r, NULL);
    pthread_t thread;

    pthread_create(&thread, NULL, ask_status, g.comm);
    pthread_join(thread, NULL);
}

static void broken_rules(void)
{
    static const rank_fn rules[] = {pageable_copy, allocation_in_step,  event_of_earlier_step,
                                    freed_memory,  host_memory_reduced, no_order,
                                    second_thread, released_by_abort};

    for (size_t i = 0; i < ER_ARRAY_N(rules); i++) {
        er_tap_note("rule %zu", i);
        on_gpu_ends_with(rules[i], 0, SIGABRT);
    }
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {{"broken_rules", broken_rules, 0}};

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
