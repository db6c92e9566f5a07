#pragma once
/* What the bits of a result depend on besides its inputs: build, OpenBLAS version, core type and
 * threads. Exact mode needs the same on all ranks. */
#include "runtime/comm.h"

#define ER_NUMERICS_TEXT_MAX 160

/* "elastic-train gcc 12.2.0, openblas 0.3.21 SkylakeX 1 thread" */
void er_numerics_describe(char ret_text[ER_NUMERICS_TEXT_MAX]);
/* Collective. ER_E_MISMATCH, on every rank, names the first rank that differs from rank 0 and both
 * descriptions. Needs er_matmul_setup(). */
int er_numerics_agree(struct er_comm *comm, struct er_error *err);
