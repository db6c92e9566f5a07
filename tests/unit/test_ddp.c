/* The reducer against a communicator that only remembers: what leaves, when, in which order. */
#include <criterion/criterion.h>

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "tests/lib/fake_comm.h"
#include "trainer/ddp.h"

#define SPAN_N 4
#define EACH   10
#define SIZE   3

struct fixture {
    float memory[SPAN_N * EACH];
    struct er_span spans[SPAN_N];
    struct er_comm *comm;
    struct er_ddp *ddp;
    const struct er_fake_call *calls;
};

/* Four gradients of ten elements, buckets of one gradient each: departure order d c b a. */
static void set_up_new_order(struct fixture *f, struct er_ddp_opts opts)
{
    static const char *const names[SPAN_N] = {"a", "b", "c", "d"};
    struct er_error err = ER_ERROR_INIT;

    for (size_t i = 0; i < SPAN_N; i++)
        f->spans[i] = (struct er_span){names[i], f->memory + i * EACH, EACH};
    for (size_t i = 0; i < SPAN_N * EACH; i++)
        f->memory[i] = (float)i;
    f->comm = er_fake_comm_new(1, SIZE);
    if (!opts.bucket_bytes)
        opts.first_bucket_bytes = opts.bucket_bytes = EACH * sizeof(float);
    cr_assert_eq(er_ddp_open(&f->ddp, f->comm, f->spans, SPAN_N, &opts, &err), 0, "%s", err.text);
}

/* Buckets stay as they are: nothing but them and the vote is sent. */
static void set_up(struct fixture *f, struct er_ddp_opts opts)
{
    opts.keep_order = true;
    set_up_new_order(f, opts);
}

static void tear_down(struct fixture *f)
{
    er_ddp_close(f->ddp);
    er_comm_abort(f->comm);
}

static size_t begun(struct fixture *f)
{
    return er_fake_calls(f->comm, &f->calls);
}

static int finish(struct fixture *f, struct er_error *err)
{
    struct er_vote vote = {.step = 1, .weight = 2};

    return er_ddp_finish(f->ddp, &vote, err);
}

Test(ddp, buckets_leave_while_backward_goes_on)
{
    struct fixture f;

    set_up(&f, (struct er_ddp_opts){0});
    er_ddp_ready(f.ddp, 3);
    cr_expect_eq(begun(&f), 1);
    er_ddp_ready(f.ddp, 2);
    cr_expect_eq(begun(&f), 2);
    cr_expect_eq(f.calls[0].buf, f.spans[3].ptr);
    cr_expect_eq(f.calls[1].buf, f.spans[2].ptr);
    cr_expect_not(f.calls[0].done); /* nothing waited for it */
    tear_down(&f);
}

Test(ddp, a_full_bucket_waits_for_the_one_before_it)
{
    struct fixture f;

    set_up(&f, (struct er_ddp_opts){0});
    er_ddp_ready(f.ddp, 0);
    er_ddp_ready(f.ddp, 2);
    cr_expect_eq(begun(&f), 0);
    er_ddp_ready(f.ddp, 3);
    cr_expect_eq(begun(&f), 2); /* d, c */
    er_ddp_ready(f.ddp, 1);
    cr_expect_eq(begun(&f), 4); /* b, a */
    cr_expect_eq(f.calls[3].buf, f.spans[0].ptr);
    tear_down(&f);
}

Test(ddp, finish_completes_everything_and_then_votes)
{
    struct fixture f;
    struct er_error err = ER_ERROR_INIT;

    set_up(&f, (struct er_ddp_opts){0});
    er_ddp_ready(f.ddp, 3);
    cr_expect_eq(finish(&f, &err), 0, "%s", err.text);
    cr_expect_eq(begun(&f), SPAN_N + 1);
    for (size_t i = 0; i < SPAN_N; i++) {
        cr_expect_eq(f.calls[i].kind, ER_FAKE_REDUCE);
        cr_expect_eq(f.calls[i].buf, f.spans[SPAN_N - 1 - i].ptr);
    }
    cr_expect_eq(f.calls[SPAN_N].kind, ER_FAKE_VOTE);
    for (size_t i = 0; i < SPAN_N * EACH; i++)
        cr_expect_eq(f.memory[i], SIZE * (float)i); /* summed once, never zeroed */
    tear_down(&f);
}

Test(ddp, vote_carries_the_callers_part_and_the_reducers)
{
    struct fixture f;
    struct er_vote vote = {.step = 7, .loss = 2, .weight = 5, .notice = 1};
    struct er_error err = ER_ERROR_INIT;

    set_up(&f, (struct er_ddp_opts){.count_nonfinite = true});
    f.memory[3] = NAN;
    f.memory[33] = INFINITY;
    cr_expect_eq(er_ddp_finish(f.ddp, &vote, &err), 0, "%s", err.text);
    cr_expect_eq(vote.step, 7);
    cr_expect_eq(vote.ok, SIZE);
    cr_expect_eq(vote.loss, 2 * SIZE);
    cr_expect_eq(vote.nonfinite, 2 * SIZE);
    cr_expect_neq(vote.order_hash, 0);
    tear_down(&f);
}

Test(ddp, each_step_starts_over)
{
    struct fixture f;
    struct er_error err = ER_ERROR_INIT;

    set_up(&f, (struct er_ddp_opts){0});
    for (size_t step = 0; step < 3; step++) {
        for (size_t i = SPAN_N; i-- > 0;)
            er_ddp_ready(f.ddp, i);
        cr_expect_eq(begun(&f), step * (SPAN_N + 1) + SPAN_N);
        cr_expect_eq(finish(&f, &err), 0, "%s", err.text);
    }
    cr_expect_eq(er_ddp_last_times(f.ddp).buckets, SPAN_N);
    tear_down(&f);
}

Test(ddp, accumulate_holds_everything_back)
{
    struct fixture f;
    struct er_error err = ER_ERROR_INIT;

    set_up(&f, (struct er_ddp_opts){0});
    er_ddp_accumulate(f.ddp, true);
    for (size_t micro = 0; micro < 2; micro++) {
        for (size_t i = SPAN_N; i-- > 0;)
            er_ddp_ready(f.ddp, i);
    }
    cr_expect_eq(begun(&f), 0);
    er_ddp_accumulate(f.ddp, false);
    er_ddp_ready(f.ddp, 3);
    cr_expect_eq(begun(&f), 1);
    cr_expect_eq(finish(&f, &err), 0, "%s", err.text);
    tear_down(&f);
}

Test(ddp, a_gradient_marked_twice_is_an_error_that_names_it)
{
    struct fixture f;
    struct er_error err = ER_ERROR_INIT;
    size_t calls;

    set_up(&f, (struct er_ddp_opts){0});
    er_ddp_ready(f.ddp, 3);
    er_ddp_ready(f.ddp, 3);
    er_fake_refusals(f.comm, 0);
    cr_expect_eq(finish(&f, &err), ER_E_USAGE);
    cr_expect(strstr(err.text, "'d' marked ready twice"), "%s", err.text);
    calls = begun(&f);
    cr_expect_eq(f.calls[calls - 1].kind, ER_FAKE_VOTE); /* the others were told */
    cr_expect_eq(finish(&f, &err), 0, "%s", err.text);
    tear_down(&f);
}

Test(ddp, a_gradient_that_does_not_exist_is_an_error)
{
    struct fixture f;
    struct er_error err = ER_ERROR_INIT;

    set_up(&f, (struct er_ddp_opts){0});
    er_ddp_ready(f.ddp, SPAN_N);
    cr_expect_eq(finish(&f, &err), ER_E_USAGE);
    tear_down(&f);
}

Test(ddp, a_step_refused_by_another_rank_is_not_applied)
{
    struct fixture f;
    struct er_error err = ER_ERROR_INIT;

    set_up(&f, (struct er_ddp_opts){0});
    er_fake_refusals(f.comm, 1);
    cr_expect_eq(finish(&f, &err), ER_E_ABORTED);
    cr_expect(strstr(err.text, "1 of 3 ranks"), "%s", err.text);
    tear_down(&f);
}

Test(ddp, a_failed_bucket_ends_the_step_without_a_vote)
{
    struct fixture f;
    struct er_error err = ER_ERROR_INIT;

    set_up(&f, (struct er_ddp_opts){0});
    er_fake_fail(f.comm, 1, ER_E_PEER_LOST);
    for (size_t i = SPAN_N; i-- > 0;)
        er_ddp_ready(f.ddp, i);
    cr_expect_eq(finish(&f, &err), ER_E_PEER_LOST);
    cr_expect(strstr(err.text, "bucket 1"), "%s", err.text);
    cr_expect_eq(finish(&f, &err), ER_E_PEER_LOST); /* for good */
    for (size_t i = 0; i < begun(&f); i++)
        cr_expect_neq(f.calls[i].kind, ER_FAKE_VOTE);
    tear_down(&f);
}

Test(ddp, a_full_ring_delays_departure_and_loses_nothing)
{
    struct fixture f;
    struct er_error err = ER_ERROR_INIT;

    set_up(&f, (struct er_ddp_opts){0});
    er_fake_ring(f.comm, 1);
    er_ddp_ready(f.ddp, 3);
    er_ddp_ready(f.ddp, 2);
    cr_expect_eq(begun(&f), 1);
    er_fake_complete_one(f.comm);
    er_ddp_ready(f.ddp, 1);
    cr_expect_eq(begun(&f), 2); /* c: it had waited */
    cr_expect_eq(finish(&f, &err), 0, "%s", err.text);
    for (size_t i = 0; i < SPAN_N * EACH; i++)
        cr_expect_eq(f.memory[i], SIZE * (float)i);
    tear_down(&f);
}

Test(ddp, hundreds_of_buckets_are_fine)
{
    enum { MANY = 400 };
    static float memory[2 * MANY];
    static struct er_span spans[MANY];
    static char names[MANY][8];
    struct er_comm *comm = er_fake_comm_new(0, 2);
    struct er_error err = ER_ERROR_INIT;
    struct er_vote vote = {.step = 1};
    struct er_ddp *ddp;

    for (size_t i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof(names[i]), "g%zu", i);
        spans[i] = (struct er_span){names[i], memory + 2 * i, 1}; /* holes: no two share a bucket */
        memory[2 * i] = 1;
    }
    cr_assert_eq(er_ddp_open(&ddp, comm, spans, MANY, NULL, &err), 0, "%s", err.text);
    for (size_t i = MANY; i-- > 0;)
        er_ddp_ready(ddp, i);
    cr_expect_eq(er_ddp_finish(ddp, &vote, &err), 0, "%s", err.text);
    for (size_t i = 0; i < 2 * MANY; i++)
        cr_expect_eq(memory[i], i % 2 ? 0 : 2);
    er_ddp_close(ddp);
    er_comm_abort(comm);
}

/* Three ranks of the same gradients: the parts that they vote add up to the norm of the whole. */
Test(ddp, ranks_divide_the_norm_of_the_reduced_gradients)
{
    double parts = 0, whole = 0;

    for (int rank = 0; rank < SIZE; rank++) {
        struct er_vote vote = {.step = 1, .weight = 2};
        struct er_error err = ER_ERROR_INIT;
        struct fixture f;

        set_up(&f, (struct er_ddp_opts){.norm2 = true});
        er_fake_be(f.comm, rank);
        cr_assert_eq(er_ddp_finish(f.ddp, &vote, &err), 0, "%s", err.text);
        parts += vote.norm2; /* the double leaves it as this rank gave it */
        whole = 0;
        for (size_t i = 0; i < SPAN_N * EACH; i++)
            whole += (double)f.memory[i] * (double)f.memory[i];
        tear_down(&f);
    }
    cr_assert_gt(whole, 0);
    cr_assert_float_eq(parts, whole, 1e-9 * whole);
}

Test(ddp, layout_names_buckets_in_order_of_departure)
{
    struct fixture f;
    struct er_vote one = {.step = 1}, other = {.step = 1};
    struct er_error err = ER_ERROR_INIT;

    set_up(&f, (struct er_ddp_opts){.first_bucket_bytes = 40, .bucket_bytes = 80});
    cr_expect_str_eq(er_ddp_layout(f.ddp), "d|b+c|a");
    cr_expect_eq(er_ddp_finish(f.ddp, &one, &err), 0);
    tear_down(&f);
    set_up(&f, (struct er_ddp_opts){.first_bucket_bytes = 40, .bucket_bytes = 120});
    cr_expect_str_eq(er_ddp_layout(f.ddp), "d|a+b+c");
    cr_expect_eq(er_ddp_finish(f.ddp, &other, &err), 0);
    cr_expect_neq(one.order_hash, other.order_hash);
    tear_down(&f);
}

/* Gradients come a, b, c, d; the first step's buckets wait for d. */
Test(ddp, buckets_follow_the_order_that_the_first_step_shows)
{
    struct er_vote first = {.step = 1, .weight = 2}, second = {.step = 2, .weight = 2};
    struct er_error err = ER_ERROR_INIT;
    struct fixture f;

    set_up_new_order(&f, (struct er_ddp_opts){0});
    for (size_t i = 0; i < SPAN_N - 1; i++)
        er_ddp_ready(f.ddp, i);
    cr_expect_eq(begun(&f), 0);
    er_ddp_ready(f.ddp, SPAN_N - 1);
    cr_expect_eq(begun(&f), SPAN_N);
    cr_expect_str_eq(er_ddp_layout(f.ddp), "d|c|b|a");
    cr_expect_eq(er_ddp_finish(f.ddp, &first, &err), 0, "%s", err.text);
    cr_expect_str_eq(er_ddp_layout(f.ddp), "a|b|c|d");
    cr_expect_eq(begun(&f), SPAN_N + 2);
    cr_expect_eq(f.calls[SPAN_N].kind, ER_FAKE_BROADCAST);
    cr_expect_eq(f.calls[SPAN_N + 1].kind, ER_FAKE_VOTE);
    for (size_t i = 0; i < SPAN_N; i++) {
        er_ddp_ready(f.ddp, i);
        cr_expect_eq(begun(&f), SPAN_N + 2 + i + 1); /* at once */
    }
    cr_expect_eq(er_ddp_finish(f.ddp, &second, &err), 0, "%s", err.text);
    cr_expect_eq(begun(&f), 2 * SPAN_N + 3); /* no second order */
    cr_expect_neq(first.order_hash, second.order_hash);
    for (size_t i = 0; i < SPAN_N * EACH; i++)
        cr_expect_eq(f.memory[i], SIZE * SIZE * (float)i);
    tear_down(&f);
}

Test(ddp, gradients_that_did_not_come_are_behind_the_others)
{
    struct er_error err = ER_ERROR_INIT;
    struct fixture f;

    set_up_new_order(&f, (struct er_ddp_opts){0});
    er_ddp_ready(f.ddp, 1);
    er_ddp_ready(f.ddp, 3);
    cr_expect_eq(finish(&f, &err), 0, "%s", err.text);
    cr_expect_str_eq(er_ddp_layout(f.ddp), "b|d|c|a");
    tear_down(&f);
}

/* Rank 0 has no samples, or a rank refused the step: the next one shows it, or one after. */
Test(ddp, steps_that_show_no_order_leave_buckets_as_they_are)
{
    struct er_error err = ER_ERROR_INIT;
    struct fixture f;
    size_t calls;

    set_up_new_order(&f, (struct er_ddp_opts){0});
    cr_expect_eq(finish(&f, &err), 0, "%s", err.text);
    cr_expect_str_eq(er_ddp_layout(f.ddp), "d|c|b|a");
    er_ddp_ready(f.ddp, 0);
    er_fake_refusals(f.comm, 1);
    cr_expect_eq(finish(&f, &err), ER_E_ABORTED);
    er_fake_refusals(f.comm, 0);
    cr_expect_str_eq(er_ddp_layout(f.ddp), "d|c|b|a");
    for (size_t step = 0; step < 4; step++)
        cr_expect_eq(finish(&f, &err), 0, "%s", err.text);
    calls = begun(&f);
    er_ddp_ready(f.ddp, 0);
    cr_expect_eq(finish(&f, &err), 0, "%s", err.text);
    cr_expect_eq(begun(&f), calls + SPAN_N + 1); /* given up */
    cr_expect_str_eq(er_ddp_layout(f.ddp), "d|c|b|a");
    tear_down(&f);
}

Test(ddp, an_order_that_does_not_arrive_ends_the_step_without_a_vote)
{
    struct er_error err = ER_ERROR_INIT;
    struct fixture f;

    set_up_new_order(&f, (struct er_ddp_opts){0});
    er_fake_fail(f.comm, SPAN_N, ER_E_PEER_LOST);
    cr_expect_eq(finish(&f, &err), ER_E_PEER_LOST);
    cr_expect(strstr(err.text, "order of gradients"), "%s", err.text);
    cr_expect_eq(finish(&f, &err), ER_E_PEER_LOST); /* for good */
    cr_expect_eq(begun(&f), SPAN_N + 1);
    tear_down(&f);
}

/* Halves: the wire has half as many elements, and the sums come back twice. */
struct halves {
    float wire[SPAN_N * EACH];
    size_t packed, unpacked;
    int fail;
};

static int pack_half(void *user, const struct er_ddp_bucket *bucket, struct er_ddp_wire *wire,
                     struct er_error *err)
{
    struct halves *halves = user;

    if (halves->fail)
        return er_error_set(err, halves->fail, "cannot pack");
    cr_expect_eq(wire->ptr, bucket->grads);
    cr_expect_eq(wire->count, bucket->count);
    for (size_t i = 0; i < bucket->count / 2; i++)
        halves->wire[bucket->first + i] = bucket->grads[2 * i];
    wire->ptr = halves->wire + bucket->first;
    wire->count = bucket->count / 2;
    halves->packed++;
    return 0;
}

static int unpack_half(void *user, const struct er_ddp_bucket *bucket,
                       const struct er_ddp_wire *wire, struct er_error *err)
{
    struct halves *halves = user;

    for (size_t i = 0; i < bucket->count; i++)
        bucket->grads[i] = ((float *)wire->ptr)[i / 2];
    halves->unpacked++;
    return 0;
}

Test(ddp, a_hook_decides_what_is_reduced)
{
    struct halves halves = {.fail = 0};
    struct er_error err = ER_ERROR_INIT;
    struct fixture f;

    set_up(&f, (struct er_ddp_opts){.hook = {&halves, pack_half, unpack_half}});
    er_fake_ring(f.comm, 1); /* a bucket that waits for room is packed once */
    er_ddp_ready(f.ddp, 3);
    er_ddp_ready(f.ddp, 2);
    er_ddp_ready(f.ddp, 1);
    cr_expect_eq(begun(&f), 1);
    cr_expect_eq(halves.packed, 2);
    cr_expect_eq(finish(&f, &err), 0, "%s", err.text);
    cr_expect_eq(halves.packed, SPAN_N);
    cr_expect_eq(halves.unpacked, SPAN_N);
    begun(&f);
    cr_expect_eq(f.calls[0].n, EACH / 2);
    for (size_t i = 0; i < SPAN_N * EACH; i++)
        cr_expect_eq(f.memory[i], SIZE * (float)(i / 2 * 2));
    tear_down(&f);
}

Test(ddp, a_hook_that_fails_ends_the_step)
{
    struct halves halves = {.fail = -EIO};
    struct er_error err = ER_ERROR_INIT;
    struct fixture f;

    set_up(&f, (struct er_ddp_opts){.hook = {&halves, pack_half, unpack_half}});
    cr_expect_eq(finish(&f, &err), -EIO);
    cr_expect(strstr(err.text, "bucket 0 ('d'): cannot pack"), "%s", err.text);
    cr_expect_eq(begun(&f), 0);
    tear_down(&f);
}

Test(ddp, half_a_hook_and_one_for_integers_are_refused)
{
    const struct er_ddp_opts wrong[] = {
        {.hook = {.pack = pack_half}},
        {.hook = {NULL, pack_half, unpack_half}, .dtype = ER_I64},
    };

    for (size_t i = 0; i < ER_ARRAY_N(wrong); i++) {
        struct er_error err = ER_ERROR_INIT;
        struct er_ddp *ddp = NULL;

        cr_expect_eq(er_ddp_open(&ddp, NULL, NULL, 0, &wrong[i], &err), ER_E_USAGE);
        cr_expect(strstr(err.text, "hook"), "%s", err.text);
    }
}

Test(ddp, no_gradients_is_only_a_vote)
{
    struct er_comm *comm = er_fake_comm_new(0, 2);
    struct er_error err = ER_ERROR_INIT;
    struct er_vote vote = {.step = 1};
    struct er_ddp *ddp;

    cr_assert_eq(er_ddp_open(&ddp, comm, NULL, 0, NULL, &err), 0, "%s", err.text);
    cr_expect_eq(er_ddp_finish(ddp, &vote, &err), 0, "%s", err.text);
    er_ddp_close(ddp);
    er_comm_abort(comm);
}

Test(ddp, state_is_broadcast_between_two_comparisons)
{
    static const enum er_fake_kind expected[] = {
        ER_FAKE_GATHER,    ER_FAKE_BROADCAST, ER_FAKE_BROADCAST,
        ER_FAKE_BROADCAST, ER_FAKE_BROADCAST, ER_FAKE_GATHER,
    };
    struct fixture f;
    struct er_error err = ER_ERROR_INIT;

    set_up(&f, (struct er_ddp_opts){0});
    cr_expect_eq(er_ddp_sync_state(f.ddp, f.spans, SPAN_N, &err), 0, "%s", err.text);
    cr_assert_eq(begun(&f), ER_ARRAY_N(expected));
    for (size_t i = 0; i < ER_ARRAY_N(expected); i++)
        cr_expect_eq(f.calls[i].kind, expected[i]);
    tear_down(&f);
}

Test(ddp, state_of_another_shape_is_refused_before_anything_is_sent)
{
    struct fixture f;
    struct er_error err = ER_ERROR_INIT;

    set_up(&f, (struct er_ddp_opts){0});
    er_fake_spoil_gather(f.comm, 2);
    cr_expect_eq(er_ddp_sync_state(f.ddp, f.spans, SPAN_N, &err), ER_E_MISMATCH);
    cr_expect(strstr(err.text, "rank 2"), "%s", err.text);
    cr_expect_eq(begun(&f), 1);
    tear_down(&f);
}

Test(ddp, wrong_gradients_are_refused_at_open)
{
    float x[4];
    const struct er_span spans[] = {{"a", x, 4}, {"a", x, 4}};
    struct er_error err = ER_ERROR_INIT;
    struct er_ddp *ddp = NULL;

    cr_expect_eq(er_ddp_open(&ddp, NULL, spans, 2, NULL, &err), ER_E_USAGE);
    cr_expect_null(ddp);
}
