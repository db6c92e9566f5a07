#pragma once
/*
 * What the kernels are written in: the part of CUDA C++ that is plain C++ too. nvcc sees CUDA; any
 * other compiler gets stand-ins, and each block runs as loops over its threads, so that the tests
 * execute every line of every kernel without a GPU (tests/fakecuda/).
 *
 * A kernel is a row of phases. ER_THREADS { ... } is done by each thread of the block; ER_TOGETHER
 * stands between phases where threads need each other's results. What outlives a phase is in shared
 * memory: ER_SHARED.
 */
#include "runtime/kernels.h"

#if defined(__CUDACC__)

#define ER_KERNEL(name, args_type)                                                                 \
    extern "C" __global__ void __launch_bounds__(ER_KERNEL_THREADS)                                \
        er_k_##name(const __grid_constant__ args_type a)
#define ER_INLINE    static __device__ __forceinline__
#define ER_SHARED    __shared__
#define ER_THREADS   for (unsigned er_once = 1, tid = threadIdx.x; er_once; er_once = 0, (void)tid)
#define ER_TOGETHER  __syncthreads()
#define ER_BLOCK     blockIdx.x
#define ER_BLOCKS    gridDim.x
#define ER_BLOCK_DIM blockDim.x
/* IEEE operations, never contracted: the same bits as the loops on the CPU. */
#define ER_ADD(x, y) __fadd_rn(x, y)
#define ER_MUL(x, y) __fmul_rn(x, y)
#define ER_DIV(x, y) __fdiv_rn(x, y)
#define ER_SQRT(x)   __fsqrt_rn(x)
#define ER_RINT(x)   rint(x)
#define ER_DMUL(x, y) __dmul_rn(x, y)
#define ER_DDIV(x, y) __ddiv_rn(x, y)
/* Of integers alone: any order gives the same. */
#define ER_COUNT(at, n) atomicAdd((unsigned long long *)(at), n)

#else

#include <math.h>

struct er_shim_place {
    unsigned block, blocks, block_dim;
};
extern thread_local struct er_shim_place er_shim;
/* The threads of a phase in the other order: what depends on it is a race on a GPU. */
extern const bool er_shim_backwards;

static inline unsigned er_shim_thread(unsigned i)
{
    return er_shim_backwards ? er_shim.block_dim - 1 - i : i;
}

#define ER_KERNEL(name, args_type)                                                                 \
    static void er_k_##name(const args_type &a);                                                   \
    extern "C" void er_shim_##name(const void *args, unsigned blocks, unsigned threads);           \
    extern "C" void er_shim_##name(const void *args, unsigned blocks, unsigned threads)            \
    {                                                                                              \
        for (unsigned b = 0; b < blocks; b++) {                                                    \
            er_shim = {b, blocks, threads};                                                        \
            er_k_##name(*static_cast<const args_type *>(args));                                    \
        }                                                                                          \
    }                                                                                              \
    static void er_k_##name(const args_type &a)
#define ER_INLINE     static inline
#define ER_SHARED     static thread_local
#define ER_THREADS                                                                                 \
    for (unsigned er_i = 0, tid = er_shim_thread(0); er_i < er_shim.block_dim;                     \
         tid = er_shim_thread(++er_i))
#define ER_TOGETHER   ((void)0)
#define ER_BLOCK      er_shim.block
#define ER_BLOCKS     er_shim.blocks
#define ER_BLOCK_DIM  er_shim.block_dim
#define ER_ADD(x, y)  ((float)(x) + (float)(y)) /* compiled with -ffp-contract=off */
#define ER_MUL(x, y)  ((float)(x) * (float)(y))
#define ER_DIV(x, y)  ((float)(x) / (float)(y))
#define ER_SQRT(x)    sqrtf(x)
#define ER_RINT(x)    rint(x)
#define ER_DMUL(x, y) ((double)(x) * (double)(y))
#define ER_DDIV(x, y) ((double)(x) / (double)(y))
#define ER_COUNT(at, n) (*(at) += (n))

#endif

/* This thread's elements of n, each in one thread of the grid. */
#define ER_EACH(i, n)                                                                              \
    for (uint64_t i = (uint64_t)ER_BLOCK * ER_BLOCK_DIM + tid; i < (n);                            \
         i += (uint64_t)ER_BLOCKS * ER_BLOCK_DIM)
