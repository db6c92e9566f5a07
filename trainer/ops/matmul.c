/*
 * c (.., M, N) = a (.., M, K) b (.., K, N), the same leading dimensions; or b (K, N) for all
 *   da += dc b^T        db += a^T dc, summed over the leading dimensions that b does not have
 */
#include "trainer/matmul.h"

#include "trainer/ops/ops_internal.h"

enum { A, B, INPUTS_N };

static int infer(const struct er_node *node, struct er_shape *ret_out, size_t *ret_saved,
                 struct er_error *err)
{
    const struct er_shape *a = &node->in[A]->shape, *b = &node->in[B]->shape;
    bool fit = a->ndim >= 2 && b->ndim >= 2 && a->dim[a->ndim - 1] == b->dim[b->ndim - 2] &&
               (b->ndim == 2 || b->ndim == a->ndim);

    for (uint32_t i = 0; fit && b->ndim > 2 && i + 2 < a->ndim; i++)
        fit = a->dim[i] == b->dim[i];
    if (!fit || er_op_rows(node->in[A]) > ER_MATMUL_DIM_MAX ||
        er_op_rows(node->in[B]) > ER_MATMUL_DIM_MAX || er_op_cols(node->in[B]) > ER_MATMUL_DIM_MAX)
        return er_op_misfit(node, "(.., M, K) and (K, N) or (.., K, N), none above 2147483647",
                            err);
    *ret_out = *a;
    ret_out->dim[a->ndim - 1] = b->dim[b->ndim - 1];
    *ret_saved = 0;
    return 0;
}

/* `times` products of (m, k) by (k, n), one after another in memory. */
struct run {
    size_t times, m, n, k;
};

static struct run run_of(const struct er_node *node)
{
    const struct er_tensor *a = node->in[A], *b = node->in[B];
    struct run run = {.times = 1, .m = er_op_rows(a), .n = er_op_cols(b), .k = er_op_cols(a)};

    if (b->shape.ndim > 2) {
        run.m = a->shape.dim[a->shape.ndim - 2];
        run.times = er_op_rows(a) / run.m;
    }
    return run;
}

static void forward(const struct er_node *node)
{
    const struct run r = run_of(node);

    for (size_t i = 0; i < r.times; i++)
        er_matmul(&(struct er_matmul){.m = r.m,
                                      .n = r.n,
                                      .k = r.k,
                                      .a = node->in[A]->value + i * r.m * r.k,
                                      .b = node->in[B]->value + i * r.k * r.n,
                                      .c = node->out->value + i * r.m * r.n});
}

static void backward_a(const struct er_node *node, float beta)
{
    const struct run r = run_of(node);

    for (size_t i = 0; i < r.times; i++)
        er_matmul(&(struct er_matmul){.m = r.m,
                                      .n = r.k,
                                      .k = r.n,
                                      .a = node->out->grad + i * r.m * r.n,
                                      .b = node->in[B]->value + i * r.k * r.n,
                                      .c = node->in[A]->grad + i * r.m * r.k,
                                      .transpose_b = true,
                                      .beta = beta});
}

static void backward_b(const struct er_node *node, float beta)
{
    const struct run r = run_of(node);

    for (size_t i = 0; i < r.times; i++)
        er_matmul(&(struct er_matmul){.m = r.k,
                                      .n = r.n,
                                      .k = r.m,
                                      .a = node->in[A]->value + i * r.m * r.k,
                                      .b = node->out->grad + i * r.m * r.n,
                                      .c = node->in[B]->grad + i * r.k * r.n,
                                      .transpose_a = true,
                                      .beta = beta});
}

const struct er_tape_op er_op_matmul = {
    .name = "matmul",
    .inputs_n = INPUTS_N,
    .infer = infer,
    .forward = forward,
    .backward = {[A] = backward_a, [B] = backward_b},
};

int er_tensor_matmul(struct er_tape *tape, struct er_tensor *a, struct er_tensor *b,
                     struct er_tensor **ret, struct er_error *err)
{
    struct er_tensor *const in[INPUTS_N] = {[A] = a, [B] = b};

    return er_tape_apply(tape, &er_op_matmul, in, NULL, ret, err);
}
