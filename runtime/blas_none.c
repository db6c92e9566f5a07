/* The GPU module where cuBLAS's header was not found: matrix products are refused. */
#include "runtime/gpu_parts_internal.h"

static int open_blas(void **ret, struct er_device *device, void *stream, struct er_error *err)
{
    return er_error_set(err, ER_E_UNSUPPORTED,
                        "the GPU module was built without cuBLAS (cublas_v2.h of CUDA 13): there "
                        "are no matrix products");
}

const struct er_blas_ops er_blas_calls_ops = {.open = open_blas};
