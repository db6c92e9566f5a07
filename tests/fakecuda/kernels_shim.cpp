/* The product's kernels as plain C++: every line of them runs in the tests. */
#include "runtime/kernels/all.cu"

#include <stdlib.h>

thread_local struct er_shim_place er_shim;
const bool er_shim_backwards = getenv("ER_SHIM_BACKWARDS") != nullptr;
