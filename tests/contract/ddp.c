/* The reducer with real ranks on the real communicator: W ranks are one process on the whole batch,
 * the same bits every time, and no rank is ever left waiting. */
#include "trainer/ddp.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "tests/lib/ranks.h"
#include "tests/lib/tap.h"
#include "tests/lib/toy_model.h"

#define RANKS_MAX  4
#define STEPS      12
#define PARAMS_MAX 1024
#define FOUR_WAYS  4 /* world sizes 1 to 4 */

enum { BEFORE_VOTE = 4, BEFORE_APPLY, PLACES_N };

/* What each rank is to do. */
struct scenario {
    size_t hidden;
    uint64_t global_batch;
    size_t bucket_bytes[RANKS_MAX];
    int micro_steps[RANKS_MAX];
    size_t skip_span; /* + 1; 0: none */
    int skip_rank;    /* -1: all */
    int kill_rank, twice_rank, renamed_rank;
    size_t kill_place; /* before this span is marked, or BEFORE_VOTE or BEFORE_APPLY */
    uint64_t at_step;  /* of what happens to that rank */
};

/* What each rank saw; in memory shared with the test. */
struct outcome {
    int rc;
    char text[ER_ERROR_TEXT_MAX];
    uint64_t steps, weight[STEPS + 1];
    double losses[STEPS + 1];
    float params[PARAMS_MAX];
};

struct test {
    struct scenario scenario;
    struct outcome outcomes[RANKS_MAX];
};

static const struct scenario plain = {
    .hidden = 16,
    .global_batch = 60,
    .skip_rank = -1,
    .kill_rank = -1,
    .twice_rank = -1,
    .renamed_rank = -1,
};

static void die_at(const struct er_toy *toy, uint64_t step, size_t place)
{
    const struct scenario *scenario = toy->test;

    if (step == scenario->at_step && place == scenario->kill_place)
        raise(SIGKILL);
}

static void die_before_ready(struct er_toy *toy, const struct er_step *step, size_t span)
{
    die_at(toy, step->step, span);
}

static int die_before_vote(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    die_at(toy, step->step, BEFORE_VOTE);
    return 0;
}

static void die_before_apply(struct er_toy *toy, uint64_t step, const struct er_vote *vote)
{
    die_at(toy, step, BEFORE_APPLY);
}

static void arm(const struct scenario *scenario, int rank, struct er_toy *toy)
{
    toy->test = (void *)scenario;
    toy->micro_steps = scenario->micro_steps[rank];
    if (scenario->skip_span && (scenario->skip_rank < 0 || scenario->skip_rank == rank))
        toy->skip_span = scenario->skip_span - 1;
    if (scenario->kill_rank == rank) {
        toy->before_ready = die_before_ready;
        toy->after_backward = die_before_vote;
        toy->before_apply = die_before_apply;
    }
    if (scenario->renamed_rank == rank)
        toy->spans[0].name = "w1.other";
}

/* The loop that a program without er_train_run() writes. */
static int steps_by_hand(const struct scenario *scenario, struct er_toy *toy, struct er_ddp *ddp,
                         struct er_comm *comm, struct outcome *out, struct er_error *err)
{
    int rank = er_comm_rank(comm), rc = 0;

    for (uint64_t s = 1; rc == 0 && s <= STEPS; s++) {
        struct er_range range = er_batch(&toy->plan, s, rank, er_comm_size(comm));
        struct er_step step = {.step = s, .range = range, .ddp = ddp};
        struct er_vote vote = {.step = s};
        struct er_loss loss;

        toy->mark_twice = scenario->twice_rank == rank && scenario->at_step == s;
        rc = er_toy_grads(toy, &step, &loss, err);
        vote.loss = loss.sum;
        vote.weight = loss.weight;
        if (rc == 0)
            rc = er_ddp_finish(ddp, &vote, err);
        if (rc == 0)
            rc = er_toy_apply(toy, s, &vote, err);
        if (rc == 0) {
            out->steps = s;
            out->weight[s] = (uint64_t)vote.weight;
        }
    }
    return rc;
}

static int open_reducer(const struct scenario *scenario, struct er_toy *toy, struct er_comm *comm,
                        struct er_ddp **ret, struct er_error *err)
{
    size_t bytes = scenario->bucket_bytes[er_comm_rank(comm)];
    struct er_ddp_opts opts = {.first_bucket_bytes = bytes, .bucket_bytes = bytes};
    struct er_span state = {"params", toy->params, toy->params_n};
    int rc = er_comm_wait_ready(comm, err);

    if (rc == 0)
        rc = er_ddp_open(ret, comm, toy->spans, toy->spans_n, &opts, err);
    return rc == 0 ? er_ddp_sync_state(*ret, &state, 1, err) : rc;
}

static int rank_main(struct er_ctx *ctx, void *user)
{
    struct test *test = user;
    int rank = er_world(ctx)->rank;
    struct outcome *out = &test->outcomes[rank];
    struct er_plan plan = {.samples = 300, .global_batch = test->scenario.global_batch, .seed = 7};
    /* Each rank begins elsewhere: sync_state has something to do. */
    struct er_toy *toy = er_toy_new(test->scenario.hidden, &plan, 40 + (uint64_t)rank);
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;
    struct er_ddp *ddp = NULL;
    int rc = er_comm_open(&comm, ctx, NULL, &err);

    arm(&test->scenario, rank, toy);
    if (rc == 0)
        rc = open_reducer(&test->scenario, toy, comm, &ddp, &err);
    if (rc == 0)
        rc = steps_by_hand(&test->scenario, toy, ddp, comm, out, &err);
    out->rc = rc;
    memcpy(out->text, err.text, sizeof(out->text));
    memcpy(out->losses, toy->losses, sizeof(out->losses));
    memcpy(out->params, toy->params, toy->params_n * sizeof(float));
    er_ddp_close(ddp);
    er_comm_abort(comm);
    er_toy_free(toy);
    return 0;
}

static struct test *run(int size, const struct scenario *scenario)
{
    struct test *test = er_ranks_shared(sizeof(*test));

    test->scenario = *scenario;
    for (int rank = 0; rank < RANKS_MAX; rank++)
        test->outcomes[rank].rc = -ECANCELED; /* it never came so far */
    er_ranks_run(size, rank_main, test, NULL);
    return test;
}

static void expect_success(const struct test *test, int size)
{
    for (int rank = 0; rank < size; rank++) {
        if (!er_tap_check(test->outcomes[rank].rc == 0))
            er_tap_note("rank %d of %d: %s", rank, size, test->outcomes[rank].text);
        er_tap_check(test->outcomes[rank].steps == STEPS);
    }
}

static bool same_bits(const struct outcome *a, const struct outcome *b)
{
    return memcmp(a->losses, b->losses, sizeof(a->losses)) == 0 &&
           memcmp(a->params, b->params, sizeof(a->params)) == 0;
}

/* Relative to the largest number: single elements may be close to zero. */
static bool nearly(const struct outcome *a, const struct outcome *b)
{
    double largest = 0, off = 0;

    for (size_t i = 0; i < PARAMS_MAX; i++) {
        largest = fmax(largest, fabs((double)a->params[i]));
        off = fmax(off, fabs((double)a->params[i] - (double)b->params[i]));
    }
    for (size_t s = 1; s <= STEPS; s++) {
        if (fabs(a->losses[s] - b->losses[s]) > 1e-5 * fabs(a->losses[s]))
            return false;
    }
    return largest > 0 && off <= 1e-5 * largest;
}

static void expect_ranks_agree(const struct test *test, int size)
{
    for (int rank = 1; rank < size; rank++)
        er_tap_check(same_bits(&test->outcomes[0], &test->outcomes[rank]));
}

static void expect_like_one_process(struct scenario scenario)
{
    struct test *one = run(1, &scenario);

    expect_success(one, 1);
    for (int size = 2; size <= FOUR_WAYS; size++) {
        struct test *many = run(size, &scenario);

        expect_success(many, size);
        expect_ranks_agree(many, size);
        er_tap_check(nearly(&one->outcomes[0], &many->outcomes[0]));
    }
}

static void linear_ranks_are_like_one_process(void)
{
    struct scenario scenario = plain;

    scenario.hidden = 0;
    expect_like_one_process(scenario);
}

static void two_layer_ranks_are_like_one_process(void)
{
    expect_like_one_process(plain);
}

/* Batches of 61 samples: uneven over any number of ranks, with a tail of 56. */
static void uneven_batches_are_like_one_process(void)
{
    struct scenario scenario = plain;

    scenario.global_batch = 61;
    expect_like_one_process(scenario);
}

static void ranks_without_samples_take_part(void)
{
    struct scenario scenario = plain;

    scenario.global_batch = 2;
    expect_like_one_process(scenario);
}

static void an_unused_parameter_is_sent_all_the_same(void)
{
    struct scenario scenario = plain;

    scenario.skip_span = 1 + 1;
    expect_like_one_process(scenario);
    scenario.skip_rank = 1; /* only one rank does not mark it */
    expect_like_one_process(scenario);
}

static void accumulation_is_one_larger_batch(void)
{
    struct scenario scenario = plain;
    struct test *whole = run(3, &scenario), *parts, *mixed;

    scenario.micro_steps[0] = scenario.micro_steps[1] = scenario.micro_steps[2] = 4;
    parts = run(3, &scenario);
    scenario.micro_steps[1] = 1; /* the number of micro-steps is each rank's own */
    mixed = run(3, &scenario);
    expect_success(parts, 3);
    expect_success(mixed, 3);
    er_tap_check(nearly(&whole->outcomes[0], &parts->outcomes[0]));
    er_tap_check(nearly(&whole->outcomes[0], &mixed->outcomes[0]));
}

static void two_runs_have_the_same_bits(void)
{
    for (int size = 1; size <= FOUR_WAYS; size++) {
        struct test *a = run(size, &plain), *b = run(size, &plain);

        expect_success(a, size);
        er_tap_check(same_bits(&a->outcomes[0], &b->outcomes[0]));
    }
}

static void bucket_sizes_do_not_change_a_bit(void)
{
    static const size_t sizes[] = {4, 100, 1000};

    for (int size = 2; size <= FOUR_WAYS; size++) {
        struct test *a = run(size, &plain);

        for (size_t i = 0; i < ER_ARRAY_N(sizes); i++) {
            struct scenario scenario = plain;
            struct test *b;

            for (int rank = 0; rank < RANKS_MAX; rank++)
                scenario.bucket_bytes[rank] = sizes[i];
            b = run(size, &scenario);
            expect_success(b, size);
            er_tap_check(same_bits(&a->outcomes[0], &b->outcomes[0]));
        }
    }
}

static void the_transport_does_not_change_a_bit(void)
{
    for (int size = 2; size <= FOUR_WAYS; size++) {
        struct test *shm, *tcp;

        setenv("ELASTIC_COMM_TRANSPORT", "shm", 1);
        shm = run(size, &plain);
        setenv("ELASTIC_COMM_TRANSPORT", "tcp", 1);
        tcp = run(size, &plain);
        expect_success(tcp, size);
        er_tap_check(same_bits(&shm->outcomes[0], &tcp->outcomes[0]));
    }
}

static void the_weight_is_the_whole_batch(void)
{
    struct test *test = run(3, &plain);

    for (uint64_t s = 1; s <= STEPS; s++)
        er_tap_check(test->outcomes[2].weight[s] == 60);
}

static void a_gradient_marked_twice_is_told_to_all(void)
{
    struct scenario scenario = plain;
    struct test *test;

    scenario.twice_rank = 1;
    scenario.at_step = 5;
    test = run(3, &scenario);
    er_tap_check(test->outcomes[1].rc == ER_E_USAGE);
    er_tap_check(strstr(test->outcomes[1].text, "'w1' marked ready twice") != NULL);
    for (int rank = 0; rank < 3; rank++) {
        er_tap_check(test->outcomes[rank].steps == 4);
        er_tap_check(rank == 1 || test->outcomes[rank].rc == ER_E_ABORTED);
    }
}

/* Other operations on two ranks, or the same ones for other gradients: an error, never a hang. */
static void different_layouts_are_a_mismatch(void)
{
    struct scenario sizes = plain, names = plain;
    struct test *test;

    sizes.bucket_bytes[1] = 100;
    test = run(3, &sizes);
    for (int rank = 0; rank < 3; rank++)
        er_tap_check(test->outcomes[rank].rc == ER_E_MISMATCH);
    names.renamed_rank = 2;
    test = run(3, &names);
    for (int rank = 0; rank < 3; rank++)
        er_tap_check(test->outcomes[rank].rc == ER_E_MISMATCH);
    er_tap_note("%s", test->outcomes[0].text);
}

static void expect_survivors(const struct test *test, int size)
{
    const struct scenario *scenario = &test->scenario;
    /* Killed after the vote, the rank may take the others' last message with it or not. */
    uint64_t may_have = scenario->kill_place == BEFORE_APPLY ? 5 : 4;

    for (int rank = 0; rank < size; rank++) {
        const struct outcome *out = &test->outcomes[rank];

        if (rank == scenario->kill_rank)
            continue;
        if (!er_tap_check(out->rc == ER_E_PEER_LOST))
            er_tap_note("place %zu, rank %d of %d: %s", scenario->kill_place, rank, size,
                        out->text);
        er_tap_check(out->steps == 4 || out->steps == may_have);
    }
}

/* Each rank, at each place of step 5, with one bucket and with one per gradient. */
static void a_killed_rank_is_told_to_the_others(void)
{
    for (int size = 2; size <= FOUR_WAYS; size++) {
        for (size_t place = 0; place < PLACES_N; place++) {
            struct scenario scenario = plain;

            scenario.kill_rank = (int)place % size;
            scenario.kill_place = place;
            scenario.at_step = 5;
            expect_survivors(run(size, &scenario), size);
            for (int rank = 0; rank < RANKS_MAX; rank++)
                scenario.bucket_bytes[rank] = 4;
            scenario.kill_rank = size - 1;
            expect_survivors(run(size, &scenario), size);
        }
    }
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"linear_ranks_are_like_one_process", linear_ranks_are_like_one_process, 0},
        {"two_layer_ranks_are_like_one_process", two_layer_ranks_are_like_one_process, 0},
        {"uneven_batches_are_like_one_process", uneven_batches_are_like_one_process, 0},
        {"ranks_without_samples_take_part", ranks_without_samples_take_part, 0},
        {"an_unused_parameter_is_sent_all_the_same", an_unused_parameter_is_sent_all_the_same, 0},
        {"accumulation_is_one_larger_batch", accumulation_is_one_larger_batch, 0},
        {"two_runs_have_the_same_bits", two_runs_have_the_same_bits, 0},
        {"bucket_sizes_do_not_change_a_bit", bucket_sizes_do_not_change_a_bit, 0},
        {"the_transport_does_not_change_a_bit", the_transport_does_not_change_a_bit, 0},
        {"the_weight_is_the_whole_batch", the_weight_is_the_whole_batch, 0},
        {"a_gradient_marked_twice_is_told_to_all", a_gradient_marked_twice_is_told_to_all, 0},
        {"different_layouts_are_a_mismatch", different_layouts_are_a_mismatch, 0},
        {"a_killed_rank_is_told_to_the_others", a_killed_rank_is_told_to_the_others, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
