#include "tests/contract/on_gpu.h"

#include <dlfcn.h>
#include <sys/wait.h>

void on_gpu_call_double(const char *name)
{
    void *handle = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
    void (*fn)(void);

    RANK_REQUIRE(handle);
    *(void **)&fn = dlsym(handle, name);
    RANK_REQUIRE(fn);
    fn();
}

struct on_gpu on_gpu_open(struct rank *r, const struct er_comm_opts *opts)
{
    struct on_gpu g = {.device = rank_device(r)};
    struct er_comm_opts mine = opts ? *opts : (struct er_comm_opts){0};
    struct er_error err = ER_ERROR_INIT;
    size_t bytes = ON_GPU_N * sizeof(float);

    mine.backend = ER_COMM_NCCL;
    mine.device = g.device;
    g.comm = rank_open(r, &mine);
    RANK_OK(er_stream_new(&g.compute, g.device, ER_STREAM_NORMAL, &err), err);
    RANK_OK(er_event_new(&g.event, g.device, false, &err), err);
    RANK_OK(er_device_alloc(g.device, ER_MEMORY_DEVICE, bytes, (void **)&g.param, &err), err);
    RANK_OK(er_device_alloc(g.device, ER_MEMORY_DEVICE, bytes, (void **)&g.grad, &err), err);
    RANK_OK(er_device_alloc(g.device, ER_MEMORY_PINNED, bytes, (void **)&g.host, &err), err);
    return g;
}

void on_gpu_close(struct on_gpu *g)
{
    er_comm_abort(g->comm);
    er_device_free(g->device, ER_MEMORY_DEVICE, g->param);
    er_device_free(g->device, ER_MEMORY_DEVICE, g->grad);
    er_device_free(g->device, ER_MEMORY_PINNED, g->host);
    er_event_free(g->event);
    er_stream_free(g->compute);
}

void on_gpu_launch(struct on_gpu *g, enum er_kernel kernel, const struct er_kernel_args *args)
{
    struct er_launch l = {.kernel = kernel,
                          .blocks = ON_GPU_BLOCKS,
                          .threads = ER_KERNEL_THREADS,
                          .args = args,
                          .args_bytes = sizeof(*args)};
    struct er_error err = ER_ERROR_INIT;

    RANK_OK(er_stream_launch(g->compute, &l, &err), err);
}

void on_gpu_fill(struct on_gpu *g, float *at, float value)
{
    struct er_error err = ER_ERROR_INIT;

    for (int i = 0; i < ON_GPU_N; i++)
        g->host[i] = value + (float)(i % 7);
    RANK_OK(
        er_stream_copy(g->compute, at, g->host, ON_GPU_N * sizeof(float), ER_COPY_TO_DEVICE, &err),
        err);
    RANK_OK(er_stream_sync(g->compute, &err), err);
}

void on_gpu_fetch(struct on_gpu *g, const float *at)
{
    struct er_error err = ER_ERROR_INIT;

    RANK_OK(
        er_stream_copy(g->compute, g->host, at, ON_GPU_N * sizeof(float), ER_COPY_TO_HOST, &err),
        err);
    RANK_OK(er_stream_sync(g->compute, &err), err);
}

void on_gpu_ends_with(rank_fn fn, int code, int signal_number)
{
    struct er_fake_world *world = er_fake_world_new();
    int status = 0;
    pid_t pid = fork_rank(world, &(struct ranks){.size_n = 1}, 0, fn);

    waitpid(pid, &status, 0);
    if (!er_tap_check(signal_number ? WIFSIGNALED(status) && WTERMSIG(status) == signal_number
                                    : WIFEXITED(status) && WEXITSTATUS(status) == code))
        er_tap_note("ended with status 0x%x", (unsigned)status);
    er_fake_world_free(world);
}
