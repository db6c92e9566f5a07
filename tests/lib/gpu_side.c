#include "tests/lib/gpu_side.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/tap.h"

bool er_test_on_gpu(void)
{
    const char *engine = getenv("ER_TEST_ENGINE");

    return engine && strcmp(engine, "gpu") == 0;
}

struct er_device_opts er_test_device(int rank)
{
    bool on_gpu = er_test_on_gpu();

    return (struct er_device_opts){.kind = on_gpu ? ER_DEVICE_CUDA : ER_DEVICE_CPU,
                                   .index = on_gpu ? rank : 0};
}

void er_test_step(bool begins)
{
    void *handle = er_test_on_gpu() ? dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD) : NULL;
    void (*fn)(void) = NULL;

    if (!er_test_on_gpu())
        return;
    if (handle)
        *(void **)&fn = dlsym(handle, begins ? "fake_cuda_step_begin" : "fake_cuda_step_end");
    er_tap_require(fn);
    fn();
}
