/*
 * The communicator's rules: order, limits, waiting, two at once, leaving, and what happens when
 * ranks do not do the same. W >= 3: two ranks hide the worst bugs.
 */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "runtime/runtime_internal.h"
#include "tests/lib/comm_ranks.h"
#include "tests/lib/tap.h"

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

/* An owner that always came at once to wait, which the progress thread gets used to, does not come
 * any more: the operation is carried on all the same, and so are later ones. */
static void trusted_then_gone(struct rank *r)
{
    enum { N = 70000, HABIT = 20 }; /* too large to be done at once when it is started */
    static float x[N];
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;

    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < HABIT; i++) {
            RANK_OK(er_all_reduce(comm, x, N, ER_F32, ER_MAX, &op, &err), err);
            RANK_OK(er_op_wait(op, ER_FOREVER, &err), err);
        }
        for (int i = 0; i < 2; i++) {
            uint64_t end_us = er_now_us() + 30 * ER_US_PER_S;
            int rc;

            RANK_OK(er_all_reduce(comm, x, N, ER_F32, ER_MAX, &op, &err), err);
            do {
                sched_yield();
                rc = er_op_test(op, &err);
            } while (rc == ER_IN_PROGRESS && er_now_us() < end_us);
            RANK_OK(rc, err);
        }
    }
    er_comm_abort(comm);
}

static void not_awaited(void)
{
    run_both(2, trusted_then_gone);
    run_both(3, trusted_then_gone);
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

/* When a communicator stands is told as long as no step was done with it. */
static void told_once(struct rank *r)
{
    struct er_page_progress *p = &er_ctx_page(r->ctx)->from_worker;
    struct er_comm_opts other = {.name = "other", .transport = r->transport};
    uint64_t before_us = er_now_us(), told_us;
    struct er_comm *comm, *second;

    RANK_REQUIRE(atomic_load(&p->connected_us) == 0);
    comm = rank_open(r, NULL);
    told_us = atomic_load(&p->connected_us);
    RANK_REQUIRE(told_us >= before_us && told_us <= er_now_us());
    atomic_store(&p->first_step_us, er_now_us());
    second = rank_open(r, &other);
    RANK_REQUIRE(atomic_load(&p->connected_us) == told_us);
    atomic_store(&p->first_step_us, 0);
    er_comm_abort(second);
    er_comm_abort(comm);
}

static void connection_is_told(void)
{
    run_both(2, told_once);
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
        RANK_REQUIRE(er_now_us() - began_us < 30000000);
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

    rank_meet(r, "open"); /* else who still connects is told there */
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
        {"ring_of_operations", ring_of_operations, 0},
        {"beside_the_caller", beside_the_caller, 0},
        {"connection_is_told", connection_is_told, 0},
        {"wait_deadline", wait_deadline, 0},
        {"two_at_once", two_at_once, 0},
        {"leave_after_vote", leave_after_vote, 0},
        {"mismatch", mismatch, 0},
        {"not_awaited", not_awaited, 0},
        {"vote_mismatch", vote_mismatch, 0},
        {"wrong_arguments", wrong_arguments, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
