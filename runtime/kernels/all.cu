/* All kernels of runtime/kernels.h, in one image. */
#include "runtime/kernels/kernels.cu"
#include "runtime/kernels/elements.cu"
#include "runtime/kernels/exact.cu"
#include "runtime/kernels/rows.cu"
