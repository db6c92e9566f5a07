/* What er_nccl.so exports. */
#include "runtime/gpu_module.h"

#include "runtime/gpu_parts_internal.h"

__attribute__((visibility("default"))) extern const struct er_gpu_module er_gpu_module;
const struct er_gpu_module er_gpu_module = {
    .version = ER_GPU_MODULE_VERSION,
    .device = &er_device_cuda_ops,
    .nccl = &er_nccl_calls_ops,
    .blas = &er_blas_calls_ops,
};
