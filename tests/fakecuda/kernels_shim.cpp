/* The product's kernels as plain C++: every line of them runs in the tests. */
#include "runtime/kernels/kernels.cu"

thread_local struct er_shim_place er_shim;
