#include "trainer/matmul.h"

#include <assert.h>
#include <cblas.h> /* defines `I` through complex.h: in no header, and in no other file */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

#define LIBRARY "libopenblas.so.0"
#define PACKAGE "libopenblas0-pthread"

static struct {
    pthread_once_t once;
    struct er_error error; /* of the first setup */
    char describe[128];
    __typeof__(cblas_sgemm) *sgemm;
    __typeof__(openblas_get_config) *config;
    __typeof__(openblas_get_corename) *core_name;
    __typeof__(openblas_get_num_threads) *threads;
} blas = {.once = PTHREAD_ONCE_INIT};

const char *er_matmul_core_type(const struct er_cpu *cpu)
{
    /* First match. SkylakeX kernels need just these five extensions; OpenBLAS's Zen kernels are
     * Haswell's with block sizes for AMD's caches. */
    static const struct {
        bool avx512, avx2, amd;
        const char *name;
    } table[] = {
        {.avx512 = true, .avx2 = true, .name = "SkylakeX"},
        {.avx2 = true, .amd = true, .name = "Zen"},
        {.avx2 = true, .name = "Haswell"},
    };
    bool avx2 = cpu->avx2 && cpu->fma;

    for (size_t i = 0; i < ER_ARRAY_N(table); i++) {
        if (table[i].avx512 <= cpu->avx512 && table[i].avx2 <= avx2 && table[i].amd <= cpu->amd)
            return table[i].name;
    }
    return NULL;
}

/* The compiler's built-ins ask cpuid and xgetbv: what the kernel does not save is not there. */
static struct er_cpu detect_cpu(void)
{
    struct er_cpu cpu = {0};

#if defined(__x86_64__)
    __builtin_cpu_init();
    cpu.avx2 = __builtin_cpu_supports("avx2") != 0;
    cpu.fma = __builtin_cpu_supports("fma") != 0;
    cpu.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512cd");
    cpu.amd = __builtin_cpu_is("amd") != 0;
#endif
    return cpu;
}

static int find_functions(void *library, struct er_error *err)
{
    const struct {
        const char *name;
        void **to;
    } table[] = {
        {"cblas_sgemm", (void **)&blas.sgemm},
        {"openblas_get_config", (void **)&blas.config},
        {"openblas_get_corename", (void **)&blas.core_name},
        {"openblas_get_num_threads", (void **)&blas.threads},
    };

    for (size_t i = 0; i < ER_ARRAY_N(table); i++) {
        *table[i].to = dlsym(library, table[i].name);
        if (!*table[i].to)
            return er_error_set(err, ER_E_UNSUPPORTED, LIBRARY " has no %s(): is it OpenBLAS?",
                                table[i].name);
    }
    return 0;
}

static void describe(void)
{
    char version[32] = "?";
    int threads = blas.threads();

    sscanf(blas.config(), "OpenBLAS %31s", version);
    snprintf(blas.describe, sizeof(blas.describe), "openblas %s %s %d thread%s", version,
             blas.core_name(), threads, threads == 1 ? "" : "s");
}

static void setup_once(void)
{
    struct er_cpu cpu = detect_cpu();
    const char *core = er_matmul_core_type(&cpu);
    void *library;

    /* The library reads both when it is loaded; what the user has set stays. */
    if (core)
        setenv("OPENBLAS_CORETYPE", core, 0);
    setenv("OPENBLAS_NUM_THREADS", "1", 0);
    library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        er_error_set(&blas.error, ER_E_UNSUPPORTED,
                     "matrix products need OpenBLAS (Debian package " PACKAGE "): %s", dlerror());
        return;
    }
    /* Never closed: its threads and buffers live as long as the process. */
    if (find_functions(library, &blas.error) == 0)
        describe();
}

int er_matmul_setup(struct er_error *err)
{
    pthread_once(&blas.once, setup_once);
    if (blas.error.code)
        return er_error_set(err, blas.error.code, "%s", blas.error.text);
    return 0;
}

const char *er_matmul_describe(void)
{
    return blas.describe;
}

void er_matmul(const struct er_matmul *p)
{
    size_t lda = p->lda ? p->lda : p->transpose_a ? p->m : p->k;
    size_t ldb = p->ldb ? p->ldb : p->transpose_b ? p->k : p->n;

    assert(blas.sgemm && "er_matmul_setup() comes first");
    assert(p->a_type == ER_F32 && p->b_type == ER_F32 && p->c_type == ER_F32);
    blas.sgemm(CblasRowMajor, p->transpose_a ? CblasTrans : CblasNoTrans,
               p->transpose_b ? CblasTrans : CblasNoTrans, (int)p->m, (int)p->n, (int)p->k, 1.0f,
               p->a, (int)lda, p->b, (int)ldb, p->beta, p->c, (int)(p->ldc ? p->ldc : p->n));
}
