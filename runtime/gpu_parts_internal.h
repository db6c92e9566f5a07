#pragma once
/* What the parts of er_nccl.so know of each other. No header of CUDA: every header compiles alone.
 */
#include <stddef.h>

#include "runtime/gpu_module.h"

extern const struct er_device_ops er_device_cuda_ops;
extern const struct er_nccl_ops er_nccl_calls_ops;
extern const struct er_blas_ops
    er_blas_calls_ops; /* blas_calls.c, or blas_none.c without cublas_v2.h */

/* The kernels for all architectures; 0 bytes: built without nvcc. */
extern const unsigned char er_kernels_image[];
extern const size_t er_kernels_bytes;
