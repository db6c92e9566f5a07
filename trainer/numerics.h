#pragma once
/* What the bits of a result depend on besides its inputs: build, OpenBLAS version, core type and
 * threads; on a GPU its model and number of processors, cuBLAS and the type of products. Exact mode
 * needs the same on all ranks. */
#include "trainer/engine.h"

#define ER_NUMERICS_TEXT_MAX 320

/* "elastic-train gcc 12.2.0, openblas 0.3.21 SkylakeX 1 thread", or for a GPU "..., NVIDIA H200,
 * 132 processors, cublas 130100, compute 9.0, cuda 13000, products float32". */
void er_numerics_describe(const struct er_engine *engine, char ret_text[ER_NUMERICS_TEXT_MAX]);
/* Collective. ER_E_MISMATCH, on every rank, names the first rank that differs from rank 0 and both
 * descriptions. Needs er_matmul_setup(). */
int er_numerics_agree(struct er_comm *comm, const struct er_engine *engine, struct er_error *err);
