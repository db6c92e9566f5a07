/*
 * The communicator: right results, one error everywhere, never stuck. Ranks are forked processes on
 * the double of libelastic; W >= 3 wherever something fails, since two ranks hide the worst bugs.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/rand.h"
#include "runtime/comm.h"
#include "tests/lib/comm_ranks.h"
#include "tests/lib/tap.h"

/* ---- results ---- */

static const size_t sizes[] = {0, 1, 1001, 65537, 300007};

enum { COUNT_MAX = 300007 };

/* Values whose float sums depend on the order. */
static void fill(void *buf, size_t n, enum er_dtype dtype, int rank, uint64_t salt)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t x = er_rand_mix(salt ^ ((uint64_t)rank << 40) ^ i);
        double scale = (double)(1ull << (x >> 59));

        switch (dtype) {
        case ER_F32:
            ((float *)buf)[i] = (float)((double)(int32_t)x * 1e-6 * scale);
            break;
        case ER_F64:
            ((double *)buf)[i] = (double)(int64_t)x * 1e-9 * scale;
            break;
        case ER_I32:
            ((uint32_t *)buf)[i] = (uint32_t)x;
            break;
        case ER_I64:
            ((uint64_t *)buf)[i] = x;
            break;
        case ER_U8:
        case ER_DTYPE_COUNT:
            ((uint8_t *)buf)[i] = (uint8_t)x;
            break;
        }
    }
}

#define COMBINE(type, sum_type)                                                                    \
    for (size_t i = 0; i < n; i++) {                                                               \
        type x = ((type *)into)[i], y = ((const type *)from)[i];                                   \
        ((type *)into)[i] = reduce == ER_SUM   ? (type)((sum_type)x + (sum_type)y)                 \
                            : reduce == ER_MIN ? (x < y ? x : y)                                   \
                                               : (x > y ? x : y);                                  \
    }

static void combine(void *into, const void *from, size_t n, enum er_dtype dtype,
                    enum er_reduce reduce)
{
    switch (dtype) {
    case ER_F32:
        COMBINE(float, float)
        break;
    case ER_F64:
        COMBINE(double, double)
        break;
    case ER_I32:
        COMBINE(int32_t, uint32_t)
        break;
    case ER_I64:
        COMBINE(int64_t, uint64_t)
        break;
    case ER_U8:
    case ER_DTYPE_COUNT:
        COMBINE(uint8_t, uint8_t)
        break;
    }
}

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

    fill(b->want, n, dtype, 0, salt);
    for (int r = 1; r < er_comm_size(comm); r++) {
        fill(b->other, n, dtype, r, salt);
        combine(b->want, b->other, n, dtype, reduce);
    }
    fill(b->got, n, dtype, er_comm_rank(comm), salt);
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
        fill(x, N, ER_F32, r, 99);
        for (int i = 0; i < N; i++) {
            want[i] += (double)x[i];
            magnitude[i] += x[i] < 0 ? -(double)x[i] : (double)x[i];
        }
    }
    fill(x, N, ER_F32, er_comm_rank(comm), 99);
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

    fill(b->want, n, dtype, root, n + 5);
    fill(b->got, n, dtype, er_comm_rank(comm), n + 5);
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
        fill(b->want + n * (size_t)r, n, ER_U8, r, n + 6);
    memset(b->got, 0, n * (size_t)er_comm_size(comm));
    fill(mine, n, ER_U8, er_comm_rank(comm), n + 6);
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

/* ---- order, limits, two at once ---- */

/* Rank 0 fills its ring before anybody else starts, so that nothing can finish meanwhile. */
static void overfill(struct rank *r, struct er_comm *comm, float *x)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_vote vote = {.ok = 1};
    struct er_op *over = NULL;

    RANK_REQUIRE(er_all_reduce(comm, x, 1, ER_F32, ER_SUM, &over, &err) == -EAGAIN);
    RANK_REQUIRE(er_vote(comm, &vote, &err) == -EBUSY);
    rank_meet(r, "full");
}

static void many_in_flight(struct rank *r)
{
    enum { N = 777 };
    static float x[ER_COMM_OPS_MAX][N];
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op[ER_COMM_OPS_MAX];
    struct er_vote vote = {.ok = 1};

    for (int round = 0; round < 3; round++) {
        if (r->rank != 0 && round == 0)
            rank_meet(r, "full");
        for (int i = 0; i < ER_COMM_OPS_MAX; i++) {
            for (int k = 0; k < N; k++)
                x[i][k] = (float)(i + k + r->rank);
            RANK_OK(er_all_reduce(comm, x[i], N, ER_F32, ER_SUM, &op[i], &err), err);
        }
        if (r->rank == 0 && round == 0)
            overfill(r, comm, x[0]);
        for (int i = ER_COMM_OPS_MAX - 1; i >= 0; i--) {
            RANK_OK(er_op_wait(op[i], ER_FOREVER, &err), err);
            RANK_REQUIRE(er_op_test(op[i], &err) == 0);
            for (int k = 0; k < N; k++)
                RANK_REQUIRE(x[i][k] == (float)((i + k) * r->size + r->size * (r->size - 1) / 2));
        }
    }
    RANK_OK(er_vote(comm, &vote, &err), err);
    er_comm_abort(comm);
}

static void ring_of_operations(void)
{
    run_both(3, many_in_flight);
}

/* Nobody waits: the progress thread does it all. */
static void only_test(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    uint64_t deadline_us = er_now_us() + RANK_WAIT_US;
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    static int32_t x[300000];

    for (int i = 0; i < 20; i++) {
        x[299999] = r->rank + i;
        RANK_OK(er_all_reduce(comm, x, 300000, ER_I32, ER_MAX, &op, &err), err);
        while (er_op_test(op, &err) == ER_IN_PROGRESS && er_now_us() < deadline_us)
            rank_pause_us(100);
        RANK_OK(er_op_test(op, &err), err);
        RANK_REQUIRE(x[299999] == r->size - 1 + i);
    }
    RANK_REQUIRE(atomic_load(&er_fake_page(r->world, r->rank)->from_worker.collective) == 20);
    er_comm_abort(comm);
}

static void beside_the_caller(void)
{
    run_both(3, only_test);
}

static void wait_gives_up(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    float x = 1;

    if (r->rank == 0) {
        RANK_OK(er_all_reduce(comm, &x, 1, ER_F32, ER_SUM, &op, &err), err);
        RANK_REQUIRE(er_op_wait(op, 2000, &err) == -ETIMEDOUT && strstr(err.text, "all-reduce #1"));
        RANK_REQUIRE(er_op_test(op, &err) == ER_IN_PROGRESS);
        rank_meet(r, "gave-up");
    } else {
        rank_meet(r, "gave-up");
        RANK_OK(er_all_reduce(comm, &x, 1, ER_F32, ER_SUM, &op, &err), err);
    }
    RANK_OK(er_op_wait(op, ER_FOREVER, &err), err);
    RANK_REQUIRE(x == (float)r->size);
    er_comm_abort(comm);
}

static void wait_deadline(void)
{
    run_both(3, wait_gives_up);
}

static void two_communicators(struct rank *r)
{
    struct er_comm_opts first = {.name = "first"}, second = {.name = "second"};
    struct er_comm *a = rank_open(r, &first), *b = rank_open(r, &second);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *x = NULL, *y = NULL;
    int64_t u = 1, v = r->rank;

    /* Different orders on different ranks: the communicators are independent. */
    if (r->rank % 2) {
        RANK_OK(er_all_reduce(b, &v, 1, ER_I64, ER_MAX, &y, &err), err);
        RANK_OK(er_all_reduce(a, &u, 1, ER_I64, ER_SUM, &x, &err), err);
    } else {
        RANK_OK(er_all_reduce(a, &u, 1, ER_I64, ER_SUM, &x, &err), err);
        RANK_OK(er_all_reduce(b, &v, 1, ER_I64, ER_MAX, &y, &err), err);
    }
    RANK_OK(er_op_wait(x, ER_FOREVER, &err), err);
    RANK_OK(er_op_wait(y, ER_FOREVER, &err), err);
    RANK_REQUIRE(u == r->size && v == r->size - 1);
    er_comm_abort(a);
    er_comm_abort(b);
}

static void two_at_once(void)
{
    run_both(3, two_communicators);
}

/* A rank that leaves as soon as its vote is done disturbs nobody's vote. */
static void polite_leave(struct rank *r)
{
    for (int round = 0; round < 60; round++) {
        struct er_comm *comm = rank_open(r, NULL);
        struct er_error err = ER_ERROR_INIT;
        struct er_vote v = {.step = (uint64_t)round, .ok = 1};
        struct er_op *op = NULL;
        float x[5000] = {0};

        RANK_OK(er_all_reduce(comm, x, 5000, ER_F32, ER_SUM, &op, &err), err);
        RANK_OK(er_op_wait(op, ER_FOREVER, &err), err);
        RANK_OK(er_vote(comm, &v, &err), err);
        er_comm_abort(comm);
        er_fake_move(r->ctx, r->rank, r->size, er_world(r->ctx)->generation + 1);
    }
}

static void leave_after_vote(void)
{
    run_both(4, polite_leave);
}

/* ---- mistakes ---- */

enum mistake { WRONG_COUNT, WRONG_DTYPE, WRONG_KIND, WRONG_ROOT, WRONG_REDUCE, MISTAKE_COUNT };

static int start_op(struct er_comm *comm, enum mistake mistake, bool wrong, void *buf,
                    struct er_op **op, struct er_error *err)
{
    size_t n = mistake == WRONG_COUNT && wrong ? 90001 : 90000;
    enum er_dtype dtype = mistake == WRONG_DTYPE && wrong ? ER_I32 : ER_F32;

    if (mistake == WRONG_ROOT || (mistake == WRONG_KIND && wrong))
        return er_broadcast(comm, buf, n, dtype, wrong, op, err);
    return er_all_reduce(comm, buf, n, dtype, mistake == WRONG_REDUCE && wrong ? ER_MIN : ER_SUM,
                         op, err);
}

static void disagree(struct rank *r)
{
    static float x[90001];

    for (int m = 0; m < MISTAKE_COUNT; m++) {
        struct er_comm *comm = rank_open(r, NULL);
        struct er_error err = ER_ERROR_INIT;
        struct er_op *op = NULL;
        uint64_t began_us;

        rank_meet(r, "open"); /* else who still connects is told there */
        began_us = er_now_us();
        RANK_OK(start_op(comm, (enum mistake)m, r->rank == 1, x, &op, &err), err);
        RANK_REQUIRE(er_op_wait(op, ER_FOREVER, &err) == ER_E_MISMATCH);
        RANK_REQUIRE(er_now_us() - began_us < 1000000);
        RANK_REQUIRE(strstr(err.text, "rank 1 ") && strstr(err.text, "#1"));
        RANK_REQUIRE(er_all_reduce(comm, x, 1, ER_F32, ER_SUM, &op, &err) == ER_E_MISMATCH);
        RANK_REQUIRE(er_comm_status(comm, &err) == ER_E_MISMATCH);
        er_comm_abort(comm);
        rank_next_generation(r);
    }
}

static void mismatch(void)
{
    run_both(3, disagree);
}

static void vote_apart(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    struct er_vote v = {.step = r->rank == 2 ? 8 : 7, .ok = 1};

    RANK_REQUIRE(er_vote(comm, &v, &err) == ER_E_MISMATCH);
    RANK_REQUIRE(strstr(err.text, "rank 2") && strstr(err.text, "8"));
    er_comm_abort(comm);
}

static void vote_mismatch(void)
{
    run_both(3, vote_apart);
}

static void misuse(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    float x[4] = {0};

    RANK_REQUIRE(er_all_reduce(comm, NULL, 4, ER_F32, ER_SUM, &op, &err) == ER_E_USAGE);
    RANK_REQUIRE(er_all_reduce(comm, x, 4, (enum er_dtype)99, ER_SUM, &op, &err) == ER_E_USAGE);
    RANK_REQUIRE(er_all_reduce(comm, x, 4, ER_F32, (enum er_reduce)9, &op, &err) == ER_E_USAGE);
    RANK_REQUIRE(er_all_reduce(comm, x, SIZE_MAX / 4, ER_F32, ER_SUM, &op, &err) == ER_E_USAGE);
    RANK_REQUIRE(er_all_reduce(comm, (char *)x + 1, 1, ER_F32, ER_SUM, &op, &err) == ER_E_USAGE);
    RANK_REQUIRE(er_all_reduce(comm, x, 4, ER_F32, ER_SUM, NULL, &err) == ER_E_USAGE);
    RANK_REQUIRE(er_broadcast(comm, x, 4, ER_F32, r->size, &op, &err) == ER_E_USAGE);
    RANK_OK(er_comm_barrier(comm, &err), err); /* none of this has harmed it */
    er_comm_abort(comm);
}

static void wrong_arguments(void)
{
    run_both(2, misuse);
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
        {"ring_of_operations", ring_of_operations, 0},
        {"beside_the_caller", beside_the_caller, 0},
        {"wait_deadline", wait_deadline, 0},
        {"two_at_once", two_at_once, 0},
        {"leave_after_vote", leave_after_vote, 0},
        {"mismatch", mismatch, 0},
        {"vote_mismatch", vote_mismatch, 0},
        {"wrong_arguments", wrong_arguments, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
