#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "trainer/matmul.h"

static void fill(float *x, size_t n, uint64_t seed)
{
    struct er_rand r;

    er_rand_init(&r, seed);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)er_rand_below(&r, 2001) / 1000.0f - 1.0f;
}

static double at(const float *x, size_t rows, size_t cols, bool transposed, size_t i, size_t j)
{
    return (double)(transposed ? x[j * rows + i] : x[i * cols + j]);
}

static void check_product(size_t m, size_t n, size_t k, bool ta, bool tb, float beta)
{
    float *a = malloc(m * k * sizeof(float)), *b = malloc(k * n * sizeof(float));
    float *c = malloc(m * n * sizeof(float)), *old = malloc(m * n * sizeof(float));

    fill(a, m * k, 1);
    fill(b, k * n, 2);
    fill(c, m * n, 3);
    memcpy(old, c, m * n * sizeof(float));
    er_matmul(&(struct er_matmul){.m = m,
                                  .n = n,
                                  .k = k,
                                  .a = a,
                                  .b = b,
                                  .c = c,
                                  .transpose_a = ta,
                                  .transpose_b = tb,
                                  .beta = beta});
    for (size_t i = 0; i < m; i++) {
        for (size_t j = 0; j < n; j++) {
            double want = (double)(beta * old[i * n + j]);

            for (size_t l = 0; l < k; l++)
                want += at(a, m, k, ta, i, l) * at(b, k, n, tb, l, j);
            cr_assert_lt(fabs((double)c[i * n + j] - want), 1e-5 * (double)(k + 1),
                         "%zux%zux%zu at %zu, %zu", m, n, k, i, j);
        }
    }
    free(a);
    free(b);
    free(c);
    free(old);
}

Test(matmul, products_equal_the_sums_they_stand_for)
{
    struct er_error err = ER_ERROR_INIT;

    cr_assert_eq(er_matmul_setup(&err), 0, "%s", err.text);
    for (int i = 0; i < 4; i++) {
        for (int beta = 0; beta < 2; beta++) {
            check_product(1, 1, 1, i & 1, i & 2, (float)beta);
            check_product(3, 5, 7, i & 1, i & 2, (float)beta);
            check_product(17, 33, 65, i & 1, i & 2, (float)beta);
            check_product(64, 10, 128, i & 1, i & 2, (float)beta);
        }
    }
}

Test(matmul, without_beta_the_result_is_not_read)
{
    float a = 2, b = 3, c = NAN;

    cr_assert_eq(er_matmul_setup(NULL), 0);
    er_matmul(&(struct er_matmul){.m = 1, .n = 1, .k = 1, .a = &a, .b = &b, .c = &c});
    cr_assert_eq(c, 6.0f);
}

Test(matmul, equal_shapes_give_equal_bits)
{
    enum { M = 48, N = 96, K = 200 };
    static float a[M * K + 16], b[K * N], c[2][M * N];

    cr_assert_eq(er_matmul_setup(NULL), 0);
    fill(b, K * N, 2);
    for (size_t shift = 0; shift < 16; shift += 3) {
        /* also where the operands start at another alignment */
        fill(a + shift, M * K, 1);
        er_matmul(&(struct er_matmul){
            .m = M, .n = N, .k = K, .a = a + shift, .b = b, .c = c[shift != 0]});
        cr_assert_eq(memcmp(c[0], c[shift != 0], sizeof(c[0])), 0);
    }
}

Test(matmul, core_type_follows_cpu_features)
{
    static const struct {
        struct er_cpu cpu;
        const char *name;
    } table[] = {
        {{.avx2 = true, .fma = true, .avx512 = true, .amd = true}, "SkylakeX"},
        {{.avx2 = true, .fma = true, .avx512 = true}, "SkylakeX"},
        {{.avx2 = true, .fma = true, .amd = true}, "Zen"},
        {{.avx2 = true, .fma = true}, "Haswell"},
        {{.avx2 = true}, NULL},
        {{.amd = true}, NULL},
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const char *name = er_matmul_core_type(&table[i].cpu);

        cr_assert(name == table[i].name || (name && table[i].name && !strcmp(name, table[i].name)),
                  "row %zu: %s", i, name ? name : "none");
    }
}

Test(matmul, one_thread_unless_the_user_says_otherwise)
{
    unsetenv("OPENBLAS_CORETYPE");
    unsetenv("OPENBLAS_NUM_THREADS");
    cr_assert_str_eq(er_matmul_describe(), "");
    cr_assert_eq(er_matmul_setup(NULL), 0);
    cr_assert_str_eq(getenv("OPENBLAS_NUM_THREADS"), "1");
    cr_assert_eq(strncmp(er_matmul_describe(), "openblas ", 9), 0);
    cr_assert_not_null(strstr(er_matmul_describe(), " 1 thread"));
}

Test(matmul, what_the_user_set_stays)
{
    setenv("OPENBLAS_CORETYPE", "Prescott", 1);
    setenv("OPENBLAS_NUM_THREADS", "2", 1);
    cr_assert_eq(er_matmul_setup(NULL), 0);
    cr_assert_str_eq(getenv("OPENBLAS_CORETYPE"), "Prescott");
    cr_assert_str_eq(getenv("OPENBLAS_NUM_THREADS"), "2");
}
