/* The product's kernels as plain C++: every line of them runs in the tests. */
#include "runtime/kernels/all.cu"

thread_local struct er_shim_place er_shim;
