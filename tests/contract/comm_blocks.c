/*
 * Operations that give or take a block per rank, and those with separate input and output: every
 * type and reduction, even and uneven counts, in place and not, bit for bit against a plain loop.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "tests/lib/comm_ranks.h"
#include "tests/lib/comm_reference.h"
#include "tests/lib/tap.h"

enum { COUNT_MAX = 70001, GUARD_BYTES = 64, GUARD = 0x5a };

static const size_t sizes[] = {0, 1, 67, 4099, 70001};

/* Three arrays of up to `size` blocks of COUNT_MAX elements. */
struct arrays {
    char *in, *out, *want;
    size_t bytes;
};

static struct arrays make_arrays(int size)
{
    size_t bytes = ((size_t)COUNT_MAX + 4) * 8 * (size_t)size + GUARD_BYTES;
    struct arrays a = {malloc(bytes), malloc(bytes), malloc(bytes), bytes};

    RANK_REQUIRE(a.in && a.out && a.want);
    return a;
}

static void free_arrays(struct arrays *a)
{
    free(a->in);
    free(a->out);
    free(a->want);
}

static void wait_for(struct er_op *op)
{
    struct er_error err = ER_ERROR_INIT;

    RANK_OK(er_op_wait(op, ER_FOREVER, &err), err);
}

/* The first `bytes` at `got` are as wanted and what follows is untouched. */
static void require_equal(const char *got, const char *want, size_t bytes)
{
    RANK_REQUIRE(memcmp(got, want, bytes) == 0);
    for (size_t i = 0; i < GUARD_BYTES; i++)
        RANK_REQUIRE(got[bytes + i] == GUARD);
}

static void check_reduce_scatter(struct er_comm *comm, struct arrays *a, size_t n,
                                 enum er_dtype dtype, enum er_reduce reduce)
{
    int size = er_comm_size(comm), rank = er_comm_rank(comm);
    size_t width = er_dtype_size(dtype), block = n * width;
    uint64_t salt = n * 3 + (uint64_t)dtype * 11 + (uint64_t)reduce;
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;

    reference_reduce(a->want, n * (size_t)size, dtype, reduce, size, salt);
    reference_fill(a->in, n * (size_t)size, dtype, rank, salt);
    memset(a->out, GUARD, block + GUARD_BYTES);
    RANK_OK(er_reduce_scatter(comm, a->in, a->out, n, dtype, reduce, &op, &err), err);
    wait_for(op);
    require_equal(a->out, a->want + block * (size_t)rank, block);
    RANK_OK(
        er_reduce_scatter(comm, a->in, a->in + block * (size_t)rank, n, dtype, reduce, &op, &err),
        err);
    wait_for(op);
    RANK_REQUIRE(memcmp(a->in + block * (size_t)rank, a->want + block * (size_t)rank, block) == 0);
}

static void check_reduce(struct er_comm *comm, struct arrays *a, size_t n, enum er_dtype dtype,
                         enum er_reduce reduce, int root)
{
    int size = er_comm_size(comm), rank = er_comm_rank(comm);
    size_t bytes = n * er_dtype_size(dtype);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;

    reference_reduce(a->want, n, dtype, reduce, size, n);
    reference_fill(a->in, n, dtype, rank, n);
    memset(a->out, GUARD, bytes + GUARD_BYTES);
    RANK_OK(er_all_reduce_to(comm, a->in, a->out, n, dtype, reduce, &op, &err), err);
    wait_for(op);
    require_equal(a->out, a->want, bytes);
    memset(a->out, GUARD, bytes + GUARD_BYTES);
    RANK_OK(
        er_reduce_to(comm, a->in, rank == root ? a->out : NULL, n, dtype, reduce, root, &op, &err),
        err);
    wait_for(op);
    require_equal(a->out, a->want, rank == root ? bytes : 0);
    RANK_OK(er_reduce_to(comm, a->in, a->in, n, dtype, reduce, root, &op, &err), err);
    wait_for(op);
    reference_fill(a->out, n, dtype, rank, n);
    RANK_REQUIRE(memcmp(a->in, rank == root ? a->want : a->out, bytes) == 0);
}

static void check_moves(struct er_comm *comm, struct arrays *a, size_t n, enum er_dtype dtype)
{
    int size = er_comm_size(comm), rank = er_comm_rank(comm);
    size_t block = n * er_dtype_size(dtype), all = block * (size_t)size;
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;

    for (int r = 0; r < size; r++)
        reference_fill(a->want + block * (size_t)r, n, dtype, r, n + 1);
    reference_fill(a->in, n, dtype, rank, n + 1);
    memset(a->out, GUARD, all + GUARD_BYTES);
    RANK_OK(er_all_gather_to(comm, a->in, a->out, n, dtype, &op, &err), err);
    wait_for(op);
    require_equal(a->out, a->want, all);

    /* Block s of rank r is filled as by rank s for destination r. */
    for (int r = 0; r < size; r++) {
        reference_fill(a->in + block * (size_t)r, n, dtype, rank, n + 100 + (uint64_t)r);
        reference_fill(a->want + block * (size_t)r, n, dtype, r, n + 100 + (uint64_t)rank);
    }
    memset(a->out, GUARD, all + GUARD_BYTES);
    RANK_OK(er_all_to_all(comm, a->in, a->out, n, dtype, &op, &err), err);
    wait_for(op);
    require_equal(a->out, a->want, all);

    reference_fill(a->want, n, dtype, size - 1, n + 7);
    reference_fill(a->in, n, dtype, rank, n + 7);
    memset(a->out, GUARD, block + GUARD_BYTES);
    RANK_OK(er_broadcast_to(comm, a->in, a->out, n, dtype, size - 1, &op, &err), err);
    wait_for(op);
    require_equal(a->out, a->want, block);
}

/* Of one rank much, of one nothing, the rest in between. */
static size_t uneven(int r, size_t n)
{
    return r == 1 ? 0 : n * (size_t)(r + 1) / 2;
}

static void check_uneven(struct er_comm *comm, struct arrays *a, size_t n, enum er_dtype dtype)
{
    int size = er_comm_size(comm), rank = er_comm_rank(comm);
    size_t width = er_dtype_size(dtype), total = 0, before = 0, counts[8], mine;
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;

    for (int r = 0; r < size; r++) {
        counts[r] = uneven(r, n / (size_t)size);
        before = r == rank ? total : before;
        reference_fill(a->want + total * width, counts[r], dtype, r, n);
        total += counts[r];
    }
    mine = counts[rank];
    reference_fill(a->in, mine, dtype, rank, n);
    memset(a->out, GUARD, total * width + GUARD_BYTES);
    RANK_OK(er_all_gather_v(comm, a->in, a->out, counts, dtype, &op, &err), err);
    memset(counts, 0, sizeof(counts)); /* they are copied */
    wait_for(op);
    require_equal(a->out, a->want, total * width);
    for (int r = 0; r < size; r++)
        counts[r] = uneven(r, n / (size_t)size);
    reference_reduce(a->want, total, dtype, ER_SUM, size, n + 1);
    reference_fill(a->in, total, dtype, rank, n + 1);
    memset(a->out, GUARD, mine * width + GUARD_BYTES);
    RANK_OK(er_reduce_scatter_v(comm, a->in, a->out, counts, dtype, ER_SUM, &op, &err), err);
    wait_for(op);
    require_equal(a->out, a->want + before * width, mine * width);
}

static void every_block_operation(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    struct arrays a = make_arrays(r->size);

    for (size_t s = 0; s < ER_ARRAY_N(sizes); s++)
        for (int d = 0; d < ER_DTYPE_COUNT; d++) {
            enum er_dtype dtype = (enum er_dtype)d;

            for (int k = 0; k < ER_REDUCE_COUNT; k++) {
                if (sizes[s] > 5000 && k != (d + (int)s) % ER_REDUCE_COUNT)
                    continue; /* all reductions where it is cheap */
                check_reduce_scatter(comm, &a, sizes[s], dtype, (enum er_reduce)k);
                check_reduce(comm, &a, sizes[s], dtype, (enum er_reduce)k, (d + k) % r->size);
            }
            check_moves(comm, &a, sizes[s], dtype);
            check_uneven(comm, &a, sizes[s], dtype);
        }
    er_comm_abort(comm);
    free_arrays(&a);
}

#define BLOCKS_CASE(name, transport, size)                                                         \
    static void name(void)                                                                         \
    {                                                                                              \
        run_ranks(&(struct ranks){.size_n = (size), .transport_of = (transport)},                  \
                  every_block_operation);                                                          \
    }

BLOCKS_CASE(self_1, ER_TRANSPORT_AUTO, 1)
BLOCKS_CASE(shm_2, ER_TRANSPORT_SHM, 2)
BLOCKS_CASE(shm_3, ER_TRANSPORT_SHM, 3)
BLOCKS_CASE(shm_4, ER_TRANSPORT_SHM, 4)
BLOCKS_CASE(shm_5, ER_TRANSPORT_SHM, 5)
BLOCKS_CASE(shm_8, ER_TRANSPORT_SHM, 8)
BLOCKS_CASE(tcp_2, ER_TRANSPORT_TCP, 2)
BLOCKS_CASE(tcp_3, ER_TRANSPORT_TCP, 3)
BLOCKS_CASE(tcp_4, ER_TRANSPORT_TCP, 4)
BLOCKS_CASE(tcp_5, ER_TRANSPORT_TCP, 5)
BLOCKS_CASE(tcp_8, ER_TRANSPORT_TCP, 8)

static void host_of_one(struct rank *r)
{
    struct er_comm_opts opts = {.backend = ER_COMM_HOST};
    struct er_comm *comm = rank_open(r, &opts);
    struct arrays a = make_arrays(1);

    check_reduce_scatter(comm, &a, 4099, ER_BF16, ER_AVG);
    check_reduce(comm, &a, 4099, ER_F32, ER_SUM, 0);
    check_moves(comm, &a, 70001, ER_I32);
    check_uneven(comm, &a, 4099, ER_F64);
    er_comm_abort(comm);
    free_arrays(&a);
}

static void host_1(void)
{
    run_both(1, host_of_one);
}

static void misuse(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    size_t huge[2] = {SIZE_MAX / 2, SIZE_MAX / 2};
    float x[8] = {0};

    RANK_REQUIRE(er_all_reduce_to(comm, x, x + 1, 4, ER_F32, ER_SUM, &op, &err) == ER_E_USAGE);
    RANK_REQUIRE(er_all_to_all(comm, x, x, 4, ER_F32, &op, &err) == ER_E_USAGE);
    RANK_REQUIRE(er_all_gather_to(comm, x + 1, x, 2, ER_F32, &op, &err) == ER_E_USAGE);
    RANK_REQUIRE(er_reduce_to(comm, x, x, 4, ER_F32, ER_SUM, 2, &op, &err) == ER_E_USAGE);
    RANK_REQUIRE(er_all_gather_v(comm, x, x + 4, NULL, ER_F32, &op, &err) == ER_E_USAGE);
    RANK_REQUIRE(er_all_gather_v(comm, x, x + 4, huge, ER_F32, &op, &err) == ER_E_USAGE);
    RANK_REQUIRE(er_reduce_scatter(comm, x, x + 4, 1, ER_F32, (enum er_reduce)9, &op, &err) ==
                 ER_E_USAGE);
    RANK_REQUIRE(er_all_to_all(comm, x, x + 4, SIZE_MAX / 2, ER_U8, &op, &err) == ER_E_USAGE);
    RANK_OK(er_comm_barrier(comm, &err), err);
    er_comm_abort(comm);
}

static void wrong_arguments(void)
{
    run_both(2, misuse);
}

/* Counts that differ between ranks, with the same sum. */
static void disagree(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    size_t counts[3] = {5, 7, 9}, other[3] = {7, 5, 9};
    float in[21] = {0}, out[21] = {0};

    rank_meet(r, "open");
    RANK_OK(er_all_gather_v(comm, in, out, r->rank == 1 ? other : counts, ER_F32, &op, &err), err);
    RANK_REQUIRE(er_op_wait(op, ER_FOREVER, &err) == ER_E_MISMATCH);
    RANK_REQUIRE(strstr(err.text, "rank 1 ") && strstr(err.text, "counts"));
    er_comm_abort(comm);
}

static void counts_mismatch(void)
{
    run_both(3, disagree);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"self_1", self_1, 0},
        {"shm_2", shm_2, 0},
        {"shm_3", shm_3, 0},
        {"shm_4", shm_4, 0},
        {"shm_5", shm_5, 0},
        {"shm_8", shm_8, 0},
        {"tcp_2", tcp_2, 0},
        {"tcp_3", tcp_3, 0},
        {"tcp_4", tcp_4, 0},
        {"tcp_5", tcp_5, 0},
        {"tcp_8", tcp_8, 0},
        {"host_of_one", host_1, 0},
        {"wrong_arguments", wrong_arguments, 0},
        {"counts_mismatch", counts_mismatch, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
