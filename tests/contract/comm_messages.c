/*
 * Messages between pairs of ranks, and groups: order, exchange without deadlock, mistakes that name
 * both sides. W >= 3.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "tests/lib/comm_ranks.h"
#include "tests/lib/comm_reference.h"
#include "tests/lib/tap.h"

/* On a machine that is busy with other things; the deadlines that must not be what ends a wait are
 * five minutes. */
enum { LARGE = 300007, BOUND_US = 30000000 };

static void wait_for(struct er_op *op)
{
    struct er_error err = ER_ERROR_INIT;

    RANK_OK(er_op_wait(op, ER_FOREVER, &err), err);
}

static void send_array(struct er_comm *comm, const void *buf, size_t n, enum er_dtype dtype, int to)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;

    RANK_OK(er_send(comm, buf, n, dtype, to, &op, &err), err);
    wait_for(op);
}

static void recv_array(struct er_comm *comm, void *buf, size_t n, enum er_dtype dtype, int from)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;

    RANK_OK(er_recv(comm, buf, n, dtype, from, &op, &err), err);
    wait_for(op);
}

/* Every type and several sizes from each rank to the next, and collectives between. */
static void pass_on(struct rank *r)
{
    static const size_t counts[] = {0, 1, 67, LARGE};
    struct er_comm *comm = rank_open(r, NULL);
    char *buf = malloc(LARGE * 8), *want = malloc(LARGE * 8);
    int next = (r->rank + 1) % r->size, before = (r->rank + r->size - 1) % r->size;

    RANK_REQUIRE(buf && want);
    for (size_t s = 0; s < ER_ARRAY_N(counts); s++)
        for (int d = 0; d < ER_DTYPE_COUNT; d++) {
            enum er_dtype dtype = (enum er_dtype)d;
            size_t bytes = counts[s] * er_dtype_size(dtype);

            reference_fill(want, counts[s], dtype, 0, s);
            if (r->rank == 0) {
                memcpy(buf, want, bytes);
                send_array(comm, buf, counts[s], dtype, next);
                memset(buf, 0, bytes);
                recv_array(comm, buf, counts[s], dtype, before);
            } else {
                recv_array(comm, buf, counts[s], dtype, before);
                send_array(comm, buf, counts[s], dtype, next);
            }
            RANK_REQUIRE(memcmp(buf, want, bytes) == 0);
            if (d % 3 == 0)
                rank_verify(comm);
        }
    er_comm_abort(comm);
    free(buf);
    free(want);
}

static void around(void)
{
    run_both(3, pass_on);
    run_both(4, pass_on);
}

/* Everybody to everybody, several messages a pair, receives first: only a group can do it. */
static void exchange(struct rank *r)
{
    enum { MESSAGES = 5, N = 60000 };
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    int32_t *in = calloc((size_t)r->size * MESSAGES * N, 4), sum = 1;
    int32_t *out = calloc((size_t)r->size * MESSAGES * N, 4);

    RANK_REQUIRE(in && out);
    for (int i = 0; i < r->size * MESSAGES; i++)
        out[(size_t)i * N + N - 1] = r->rank * 1000 + i;
    RANK_OK(er_group_begin(comm, &err), err);
    RANK_REQUIRE(er_group_begin(comm, &err) == ER_E_USAGE);
    for (int i = 0; i < r->size * MESSAGES; i++)
        if (i / MESSAGES != r->rank)
            RANK_OK(er_recv(comm, in + (size_t)i * N, N, ER_I32, i / MESSAGES, &op, &err), err);
    RANK_OK(er_all_reduce(comm, &sum, 1, ER_I32, ER_SUM, &op, &err), err);
    for (int i = 0; i < r->size * MESSAGES; i++)
        if (i / MESSAGES != r->rank)
            RANK_OK(er_send(comm, out + (size_t)i * N, N, ER_I32, i / MESSAGES, &op, &err), err);
    RANK_REQUIRE(er_op_test(op, &err) == ER_IN_PROGRESS);
    RANK_REQUIRE(er_op_wait(op, ER_FOREVER, &err) == ER_E_USAGE);
    RANK_REQUIRE(er_comm_barrier(comm, &err) == ER_E_USAGE);
    RANK_OK(er_group_end(comm, &err), err);
    RANK_REQUIRE(er_group_end(comm, &err) == ER_E_USAGE);
    wait_for(op);
    RANK_REQUIRE(sum == r->size);
    for (int i = 0; i < r->size * MESSAGES; i++)
        if (i / MESSAGES != r->rank)
            RANK_REQUIRE(in[(size_t)i * N + N - 1] ==
                         i / MESSAGES * 1000 + r->rank * MESSAGES + i % MESSAGES);
    RANK_OK(er_group_begin(comm, &err), err); /* an empty group is none */
    RANK_OK(er_group_end(comm, &err), err);
    rank_verify(comm);
    er_comm_abort(comm);
    free(in);
    free(out);
}

static void exchange_in_group(void)
{
    run_both(3, exchange);
    run_both(5, exchange);
}

/* Collectives of one group are one after another; all handles are done together. */
static void collect(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op[50];
    int64_t x[50];

    for (int round = 0; round < 20; round++) {
        RANK_OK(er_group_begin(comm, &err), err);
        for (int i = 0; i < 50; i++) {
            x[i] = i + r->rank;
            RANK_OK(er_all_reduce(comm, &x[i], 1, ER_I64, ER_MAX, &op[i], &err), err);
        }
        RANK_OK(er_group_end(comm, &err), err);
        wait_for(op[0]);
        for (int i = 0; i < 50; i++) {
            RANK_OK(er_op_wait(op[i], ER_FOREVER, &err), err);
            RANK_REQUIRE(x[i] == i + r->size - 1);
        }
    }
    er_comm_abort(comm);
}

static void group_of_collectives(void)
{
    run_ranks(&(struct ranks){.size_n = 1}, collect);
    run_both(3, collect);
}

/* ---- mistakes ---- */

static void require_mismatch(struct er_comm *comm, struct er_op *op, const char *one,
                             const char *other)
{
    struct er_error err = ER_ERROR_INIT;
    uint64_t began_us = er_now_us();
    int rc = er_op_wait(op, ER_FOREVER, &err);

    if (rc != ER_E_MISMATCH || !strstr(err.text, one) || !strstr(err.text, other))
        printf("# rank %d: %d: %s\n", er_comm_rank(comm), rc, err.text);
    RANK_REQUIRE(rc == ER_E_MISMATCH && strstr(err.text, one) && strstr(err.text, other));
    RANK_REQUIRE(er_now_us() - began_us < BOUND_US);
    er_comm_abort(comm);
}

static void wrong_count(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    static float x[LARGE];

    rank_meet(r, "open");
    RANK_OK(er_group_begin(comm, &err), err);
    if (r->rank == 0) /* may be through before anybody looks at it: the group is not */
        RANK_OK(er_send(comm, x, LARGE, ER_F32, 1, &op, &err), err);
    if (r->rank == 1)
        RANK_OK(er_recv(comm, x, LARGE - 1, ER_F32, 0, &op, &err), err);
    else
        RANK_OK(er_all_reduce(comm, x, 1, ER_F32, ER_SUM, &op, &err), err);
    RANK_OK(er_group_end(comm, &err), err);
    require_mismatch(comm, op, "send #1 to rank 1", "recv #1 from rank 0");
}

static void wrong_kind(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    float x = 0;

    rank_meet(r, "open");
    if (r->rank == 0)
        RANK_OK(er_recv(comm, &x, 1, ER_F32, 1, &op, &err), err);
    else
        RANK_OK(er_all_reduce(comm, &x, 1, ER_F32, ER_SUM, &op, &err), err);
    require_mismatch(comm, op, "recv #1 from rank 1", "all-reduce #1");
}

/* Both wait to receive: no group, so neither ever sends. */
static void both_receive(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    float x = 0;

    rank_meet(r, "open");
    if (r->rank < 2)
        RANK_OK(er_recv(comm, &x, 1, ER_F32, 1 - r->rank, &op, &err), err);
    else
        RANK_OK(er_all_reduce(comm, &x, 1, ER_F32, ER_SUM, &op, &err), err);
    require_mismatch(comm, op, "recv #1 from rank ", "recv #1 from rank ");
}

/* A send that does not fit any buffer, to a rank that is elsewhere. */
static void send_to_collective(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    size_t n = (size_t)64 << 20;
    char *x = calloc(1, n);

    RANK_REQUIRE(x);
    rank_meet(r, "open");
    if (r->rank == 0)
        RANK_OK(er_send(comm, x, n, ER_U8, 1, &op, &err), err);
    else
        RANK_OK(er_all_reduce(comm, x, 1, ER_U8, ER_SUM, &op, &err), err);
    require_mismatch(comm, op, "send #1 to rank 1", "all-reduce #1");
    free(x);
}

static void mismatch(void)
{
    run_both(3, wrong_count);
    run_both(3, wrong_kind);
    run_both(3, both_receive);
    run_both(3, send_to_collective);
}

/* Rank 1 is late, sends, goes on to a collective and receives only then: no mistake, although rank
 * 0 has said meanwhile to wait in both. */
static void late_exchange(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    int x = 5, y = 0;

    if (r->rank == 0) {
        RANK_OK(er_group_begin(comm, &err), err);
        RANK_OK(er_send(comm, &x, 1, ER_I32, 1, &op, &err), err);
        RANK_OK(er_recv(comm, &y, 1, ER_I32, 1, &op, &err), err);
        RANK_OK(er_group_end(comm, &err), err);
        wait_for(op);
    } else if (r->rank == 1) {
        for (int i = 0; i < 400; i++)
            rank_pause_us(1000);
        send_array(comm, &x, 1, ER_I32, 0);
        recv_array(comm, &y, 1, ER_I32, 0);
    }
    rank_verify(comm);
    RANK_REQUIRE(r->rank == 2 || y == 5);
    er_comm_abort(comm);
}

static void misuse(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    float x = 0;

    RANK_REQUIRE(er_send(comm, &x, 1, ER_F32, r->rank, &op, &err) == ER_E_USAGE);
    RANK_REQUIRE(er_send(comm, &x, 1, ER_F32, r->size, &op, &err) == ER_E_USAGE);
    RANK_REQUIRE(er_recv(comm, NULL, 1, ER_F32, 1 - r->rank, &op, &err) == ER_E_USAGE);
    RANK_REQUIRE(er_recv(comm, &x, 1, ER_F32, -1, &op, &err) == ER_E_USAGE);
    rank_verify(comm);
    er_comm_abort(comm);
}

static void wrong_arguments(void)
{
    run_both(2, misuse);
}

/* A slow receiver is no mistake, however long it takes. */
static void late_receiver(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    static char x[LARGE];

    if (r->rank == 0) {
        send_array(comm, x, LARGE, ER_U8, 1);
    } else if (r->rank == 1) {
        for (int i = 0; i < 600; i++)
            rank_pause_us(1000);
        recv_array(comm, x, LARGE, ER_U8, 0);
    }
    rank_verify(comm);
    er_comm_abort(comm);
}

static void late(void)
{
    run_both(3, late_receiver);
    run_both(3, late_exchange);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"around", around, 0},
        {"exchange_in_group", exchange_in_group, 0},
        {"group_of_collectives", group_of_collectives, 0},
        {"mismatch", mismatch, 0},
        {"wrong_arguments", wrong_arguments, 0},
        {"late_is_no_mistake", late, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
