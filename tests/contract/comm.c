/*
 * The communicator's results: every operation, type, reduction and several sizes for 1 to 5 ranks
 * on both transports, bit for bit as a loop in rank order computes them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "runtime/comm.h"
#include "tests/lib/comm_ranks.h"
#include "tests/lib/comm_reference.h"
#include "tests/lib/tap.h"

/* ---- results ---- */

static const size_t sizes[] = {0, 1, 1001, 65537, 200007};

enum { COUNT_MAX = 200007 };

struct buffers {
    char *got, *want, *other;
};

static struct buffers make_buffers(int size)
{
    size_t bytes = ((size_t)COUNT_MAX + 8) * 8 * (size_t)size;
    struct buffers b = {malloc(bytes), malloc(bytes), malloc(bytes)};

    RANK_REQUIRE(b.got && b.want && b.other);
    return b;
}

static void check_all_reduce(struct er_comm *comm, struct buffers *b, size_t n, enum er_dtype dtype,
                             enum er_reduce reduce)
{
    size_t bytes = n * er_dtype_size(dtype);
    uint64_t salt = n * 31 + (uint64_t)dtype * 7 + (uint64_t)reduce;
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;

    reference_reduce(b->want, n, dtype, reduce, er_comm_size(comm), salt);
    reference_fill(b->got, n, dtype, er_comm_rank(comm), salt);
    RANK_OK(er_all_reduce(comm, b->got, n, dtype, reduce, &op, &err), err);
    RANK_OK(er_op_wait(op, ER_FOREVER, &err), err);
    RANK_REQUIRE(memcmp(b->got, b->want, bytes) == 0);
}

/* In float64, the float32 sum is near: what "sum" means, not only that all agree. */
static void check_near_f64(struct er_comm *comm)
{
    enum { N = 4099 };
    static float x[N];
    static double want[N], magnitude[N];
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;

    for (int r = 0; r < er_comm_size(comm); r++) {
        reference_fill(x, N, ER_F32, r, 99);
        for (int i = 0; i < N; i++) {
            want[i] += (double)x[i];
            magnitude[i] += x[i] < 0 ? -(double)x[i] : (double)x[i];
        }
    }
    reference_fill(x, N, ER_F32, er_comm_rank(comm), 99);
    RANK_OK(er_all_reduce(comm, x, N, ER_F32, ER_SUM, &op, &err), err);
    RANK_OK(er_op_wait(op, ER_FOREVER, &err), err);
    for (int i = 0; i < N; i++) {
        double off = (double)x[i] - want[i];

        RANK_REQUIRE((off < 0 ? -off : off) <= magnitude[i] * 1e-6);
    }
}

static void check_broadcast(struct er_comm *comm, struct buffers *b, size_t n, enum er_dtype dtype,
                            int root)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;

    reference_fill(b->want, n, dtype, root, n + 5);
    reference_fill(b->got, n, dtype, er_comm_rank(comm), n + 5);
    RANK_OK(er_broadcast(comm, b->got, n, dtype, root, &op, &err), err);
    RANK_OK(er_op_wait(op, ER_FOREVER, &err), err);
    RANK_REQUIRE(memcmp(b->got, b->want, n * er_dtype_size(dtype)) == 0);
}

static void check_all_gather(struct er_comm *comm, struct buffers *b, size_t n, bool in_place)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    char *mine = in_place ? b->got + n * (size_t)er_comm_rank(comm) : b->other;

    for (int r = 0; r < er_comm_size(comm); r++)
        reference_fill(b->want + n * (size_t)r, n, ER_U8, r, n + 6);
    memset(b->got, 0, n * (size_t)er_comm_size(comm));
    reference_fill(mine, n, ER_U8, er_comm_rank(comm), n + 6);
    RANK_OK(er_all_gather(comm, mine, n, b->got, &op, &err), err);
    RANK_OK(er_op_wait(op, ER_FOREVER, &err), err);
    RANK_REQUIRE(memcmp(b->got, b->want, n * (size_t)er_comm_size(comm)) == 0);
}

static void check_votes(struct er_comm *comm)
{
    struct er_error err = ER_ERROR_INIT;
    int rank = er_comm_rank(comm), size = er_comm_size(comm);
    double loss = 0;

    for (uint64_t step = 1; step <= 20; step++) {
        struct er_vote v = {.step = step,
                            .order_hash = 42,
                            .ok = 1,
                            .notice = rank == 0 ? 2 : 0,
                            .target = (uint64_t)rank,
                            .loss = 0.1 * (rank + 1),
                            .weight = 2,
                            .norm2 = 1,
                            .nonfinite = (uint64_t)rank,
                            .durable = rank == 0,
                            .flags = 1u << rank,
                            .user = {7, (uint64_t)rank}};

        RANK_OK(er_vote(comm, &v, &err), err);
        loss = 0.1;
        for (int r = 1; r < size; r++)
            loss += 0.1 * (r + 1);
        RANK_REQUIRE(v.step == step && v.order_hash == 42 && v.ok == (uint32_t)size);
        RANK_REQUIRE(v.notice == 2 && v.target == (uint64_t)size - 1 && v.loss == loss);
        RANK_REQUIRE(v.weight == 2.0 * size && v.norm2 == size && v.user[0] == 7);
        RANK_REQUIRE(v.nonfinite == (uint64_t)(size * (size - 1) / 2));
        RANK_REQUIRE(v.durable == (size == 1) && v.flags == (1u << size) - 1);
        RANK_REQUIRE(v.user[1] == (uint64_t)size - 1);
    }
}

static void every_operation(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    struct buffers b = make_buffers(r->size);

    for (size_t s = 0; s < ER_ARRAY_N(sizes); s++) {
        for (int d = 0; d < ER_DTYPE_COUNT; d++) {
            for (int op = 0; op < ER_REDUCE_COUNT; op++)
                check_all_reduce(comm, &b, sizes[s], (enum er_dtype)d, (enum er_reduce)op);
            check_broadcast(comm, &b, sizes[s], (enum er_dtype)d, d % r->size);
        }
        check_all_gather(comm, &b, sizes[s], false);
        check_all_gather(comm, &b, sizes[s], true);
        RANK_OK(er_comm_barrier(comm, &err), err);
    }
    check_near_f64(comm);
    check_votes(comm);
    er_comm_abort(comm);
    free(b.got);
    free(b.want);
    free(b.other);
}

#define RESULTS_CASE(name, transport, size)                                                        \
    static void name(void)                                                                         \
    {                                                                                              \
        run_ranks(&(struct ranks){.size_n = (size), .transport_of = (transport)},                  \
                  every_operation);                                                                \
    }

RESULTS_CASE(self_1, ER_TRANSPORT_AUTO, 1)
RESULTS_CASE(shm_2, ER_TRANSPORT_SHM, 2)
RESULTS_CASE(shm_3, ER_TRANSPORT_SHM, 3)
RESULTS_CASE(shm_4, ER_TRANSPORT_SHM, 4)
RESULTS_CASE(shm_5, ER_TRANSPORT_SHM, 5)
RESULTS_CASE(tcp_2, ER_TRANSPORT_TCP, 2)
RESULTS_CASE(tcp_3, ER_TRANSPORT_TCP, 3)
RESULTS_CASE(tcp_4, ER_TRANSPORT_TCP, 4)
RESULTS_CASE(tcp_5, ER_TRANSPORT_TCP, 5)
RESULTS_CASE(shm_8, ER_TRANSPORT_SHM, 8)
RESULTS_CASE(tcp_8, ER_TRANSPORT_TCP, 8)

/* Where shared memory goes another way: with the mail, past the cache, in several pieces, past the
 * cache at home. Also not in place, where the input must stay as it was. */
static void boundaries(struct rank *r)
{
    static const size_t counts[] = {243, 244, 245, 2047, 2049, 131071, 131073, 2300007};
    enum { MOST = 2300007 };
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    float *in = malloc(MOST * sizeof(*in)), *out = malloc(MOST * sizeof(*out));
    float *want = malloc(MOST * sizeof(*want));
    struct er_op *op = NULL;

    RANK_REQUIRE(in && out && want);
    for (size_t i = 0; i < ER_ARRAY_N(counts); i++) {
        size_t n = counts[i], block = n / (size_t)r->size;
        float *mine = out + block * (size_t)r->rank;

        reference_reduce(want, n, ER_F32, ER_SUM, r->size, n);
        reference_fill(in, n, ER_F32, r->rank, n);
        RANK_OK(er_all_reduce_to(comm, in, out, n, ER_F32, ER_SUM, &op, &err), err);
        RANK_OK(er_op_wait(op, ER_FOREVER, &err), err);
        RANK_REQUIRE(memcmp(out, want, n * sizeof(*out)) == 0);
        memset(out, 0, n * sizeof(*out));
        RANK_OK(er_reduce_scatter(comm, in, mine, block, ER_F32, ER_SUM, &op, &err), err);
        RANK_OK(er_op_wait(op, ER_FOREVER, &err), err);
        RANK_OK(er_all_gather_to(comm, mine, out, block, ER_F32, &op, &err), err);
        RANK_OK(er_op_wait(op, ER_FOREVER, &err), err);
        RANK_REQUIRE(memcmp(out, want, block * (size_t)r->size * sizeof(*out)) == 0);
        RANK_OK(er_all_reduce(comm, in, n, ER_F32, ER_SUM, &op, &err), err);
        RANK_OK(er_op_wait(op, ER_FOREVER, &err), err);
        RANK_REQUIRE(memcmp(in, want, n * sizeof(*in)) == 0);
    }
    er_comm_abort(comm);
    free(in);
    free(out);
    free(want);
}

static void boundaries_2(void)
{
    run_both(2, boundaries);
}

static void boundaries_3(void)
{
    run_both(3, boundaries);
}

/* The host backend also serves a world of one. */
static void host_of_one(struct rank *r)
{
    struct er_comm_opts opts = {.backend = ER_COMM_HOST};
    struct er_comm *comm = rank_open(r, &opts);

    RANK_REQUIRE(strcmp(er_comm_describe(comm), r->transport == ER_TRANSPORT_SHM
                                                    ? "host/shm 1 ranks"
                                                    : "host/tcp 1 ranks") == 0);
    check_votes(comm);
    check_near_f64(comm);
    er_comm_abort(comm);
}

static void few_sums(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);

    check_near_f64(comm);
    check_votes(comm);
    er_comm_abort(comm);
}

static void host_1(void)
{
    run_both(1, host_of_one);
}

static void ranks_16(void)
{
    run_both(16, few_sums);
}

/* One rank a node: as between hosts, all interfaces are listened on. */
static void nodes_3(void)
{
    run_ranks(&(struct ranks){.size_n = 3, .nodes_apart = true}, few_sums);
}

static void ipv6_ranks(struct rank *r)
{
    struct er_comm_opts opts = {.address = "::1"};
    struct er_comm *comm = rank_open(r, &opts);

    check_near_f64(comm);
    er_comm_abort(comm);
}

static void ipv6(void)
{
    if (access("/proc/net/if_inet6", F_OK) != 0)
        er_tap_skip("this kernel has no IPv6");
    run_ranks(&(struct ranks){.size_n = 3, .transport_of = ER_TRANSPORT_TCP}, ipv6_ranks);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"self_1", self_1, 0},
        {"shm_2", shm_2, 0},
        {"shm_3", shm_3, 0},
        {"shm_4", shm_4, 0},
        {"shm_5", shm_5, 0},
        {"tcp_2", tcp_2, 0},
        {"tcp_3", tcp_3, 0},
        {"tcp_4", tcp_4, 0},
        {"tcp_5", tcp_5, 0},
        {"host_of_one", host_1, 0},
        {"ranks_16", ranks_16, 0},
        {"nodes_3", nodes_3, 0},
        {"ipv6", ipv6, 0},
        {"shm_8", shm_8, 0},
        {"tcp_8", tcp_8, 0},
        {"boundaries_2", boundaries_2, 0},
        {"boundaries_3", boundaries_3, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
