#pragma once
/* The double of NCCL: what its entry points (fake_nccl_ops.c) need of it (fake_nccl.c). */
#include <nccl.h>

#include "tests/fakecuda/fake_ring.h"

/* One operation, in the open group or alone. */
ncclResult_t fake_nccl_add(const struct ring_op *op, ncclComm_t comm, cudaStream_t stream);
