/* The reducer with real ranks, call by call: reduction during backward, agreement on state. */
#include "trainer/ddp.h"

#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "tests/lib/ranks.h"
#include "tests/lib/tap.h"
#include "tests/lib/wait.h"
#include "trainer/compress.h"

#define RANKS_MAX 4

struct overlap {
    float *first_bucket;
    float expected;
};

static bool summed(void *user)
{
    const struct overlap *overlap = user;

    return *(volatile float *)overlap->first_bucket == overlap->expected;
}

/* The first bucket is reduced everywhere while no rank has marked its last gradient yet. */
static int overlap_main(struct er_ctx *ctx, void *user)
{
    int *good = user, rank = er_world(ctx)->rank, size = er_world(ctx)->size;
    float grads[2][256];
    const struct er_span spans[2] = {{"early", grads[0], 256}, {"late", grads[1], 256}};
    const struct er_ddp_opts opts = {.first_bucket_bytes = 1024, .bucket_bytes = 1024};
    struct overlap overlap = {&grads[1][255], (float)(size * (size + 1)) / 2};
    struct er_error err = ER_ERROR_INIT;
    struct er_vote vote = {.step = 1, .weight = 1};
    struct er_comm *comm = NULL;
    struct er_ddp *ddp = NULL;
    int rc = er_comm_open(&comm, ctx, NULL, &err);

    for (size_t i = 0; i < 512; i++)
        grads[i / 256][i % 256] = (float)(rank + 1);
    if (rc == 0)
        rc = er_comm_wait_ready(comm, &err);
    if (rc == 0)
        rc = er_ddp_open(&ddp, comm, spans, 2, &opts, &err);
    if (rc == 0) {
        er_ddp_ready(ddp, 1);
        good[rank] = er_test_wait_until(summed, &overlap, ER_TEST_DEADLINE_MS);
        er_ddp_ready(ddp, 0);
        rc = er_ddp_finish(ddp, &vote, &err);
    }
    good[rank] += rc == 0 && grads[0][0] == overlap.expected &&
                  er_ddp_last_times(ddp).comm_us >= er_ddp_last_times(ddp).exposed_us;
    er_ddp_close(ddp);
    er_comm_abort(comm);
    return 0;
}

static void the_first_bucket_is_reduced_during_backward(void)
{
    for (int size = 1; size <= RANKS_MAX; size++) {
        int *good = er_ranks_shared(RANKS_MAX * sizeof(*good));

        er_ranks_run(size, overlap_main, good, NULL);
        for (int rank = 0; rank < size; rank++)
            er_tap_check(good[rank] == 2);
    }
}

enum { LAYERS = 4, EACH = 256, STEPS_N = 3 };

/* What a rank did: the layouts of steps 1 and 2, and the last sums. */
struct in_order {
    char layout[2][32];
    float sums[LAYERS * EACH];
    int rc, reduced_early;
    size_t buckets;
};

struct in_order_test {
    bool keep_order, compress;
    struct in_order ranks[RANKS_MAX];
};

/* Gradients that come in the order of use (a model that is not the usual one): w0 first. Behind the
 * first step each leaves at once, so w0 is reduced before w3 is marked. */
static int steps_in_order(struct er_ddp *ddp, const struct in_order_test *test, int rank, int size,
                          float *grads, struct in_order *out, struct er_error *err)
{
    int rc = 0;

    for (uint64_t step = 1; rc == 0 && step <= STEPS_N; step++) {
        struct overlap overlap = {&grads[EACH - 1], (float)(size * (size + 1)) / 2};
        struct er_vote vote = {.step = step, .weight = 1};

        for (size_t i = 0; i < LAYERS * EACH; i++)
            grads[i] = (float)(rank + 1);
        for (size_t span = 0; span < LAYERS; span++) {
            /* Compressed gradients come back with a later call of the reducer. */
            if (span == LAYERS - 1 && step > 1 && !test->keep_order && !test->compress)
                out->reduced_early += er_test_wait_until(summed, &overlap, ER_TEST_DEADLINE_MS);
            er_ddp_ready(ddp, span);
        }
        rc = er_ddp_finish(ddp, &vote, err);
        snprintf(out->layout[step > 1], sizeof(out->layout[0]), "%s", er_ddp_layout(ddp));
        out->buckets = er_ddp_last_times(ddp).buckets;
    }
    memcpy(out->sums, grads, sizeof(out->sums));
    return rc;
}

static int in_order_main(struct er_ctx *ctx, void *user)
{
    struct in_order_test *test = user;
    int rank = er_world(ctx)->rank;
    struct in_order *out = &test->ranks[rank];
    float grads[LAYERS * EACH];
    const struct er_span spans[LAYERS] = {{"w0", grads, EACH},
                                          {"w1", grads + EACH, EACH},
                                          {"w2", grads + 2 * EACH, EACH},
                                          {"w3", grads + 3 * EACH, EACH}};
    struct er_ddp_opts opts = {
        .first_bucket_bytes = 1024, .bucket_bytes = 2048, .keep_order = test->keep_order};
    struct er_compress *compress = NULL;
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;
    struct er_ddp *ddp = NULL;
    int rc = er_comm_open(&comm, ctx, NULL, &err);

    if (rc == 0)
        rc = er_comm_wait_ready(comm, &err);
    if (rc == 0 && test->compress)
        rc = er_compress_open(&compress, spans, LAYERS, &err);
    if (rc == 0 && compress)
        opts.hook = er_compress_hook(compress);
    if (rc == 0)
        rc = er_ddp_open(&ddp, comm, spans, LAYERS, &opts, &err);
    if (rc == 0)
        rc = steps_in_order(ddp, test, rank, er_world(ctx)->size, grads, out, &err);
    out->rc = rc;
    er_ddp_close(ddp);
    er_compress_close(compress);
    er_comm_abort(comm);
    return 0;
}

static struct in_order_test *run_in_order(int size, bool keep_order, bool compress)
{
    struct in_order_test *test = er_ranks_shared(sizeof(*test));

    *test = (struct in_order_test){.keep_order = keep_order, .compress = compress};
    for (int rank = 0; rank < size; rank++)
        test->ranks[rank].rc = -1;
    er_ranks_run(size, in_order_main, test, NULL);
    for (int rank = 0; rank < size; rank++)
        er_tap_check(test->ranks[rank].rc == 0);
    return test;
}

static void buckets_follow_the_order_of_the_first_step(void)
{
    for (int size = 1; size <= RANKS_MAX; size++) {
        struct in_order_test *test = run_in_order(size, false, false);
        struct in_order_test *kept = run_in_order(size, true, false);

        for (int rank = 0; rank < size; rank++) {
            const struct in_order *out = &test->ranks[rank];

            er_tap_check(strcmp(out->layout[0], "w0|w1+w2|w3") == 0);
            er_tap_check(strcmp(out->layout[1], "w0|w1+w2|w3") == 0);
            er_tap_check(out->reduced_early == STEPS_N - 1);
            er_tap_check(strcmp(kept->ranks[rank].layout[1], "w3|w1+w2|w0") == 0);
            er_tap_check(memcmp(out->sums, kept->ranks[rank].sums, sizeof(out->sums)) == 0);
        }
    }
}

/* Small whole numbers survive 8 bits: the sums are those of float32. */
static void compressed_gradients_are_summed(void)
{
    for (int size = 1; size <= RANKS_MAX; size++) {
        struct in_order_test *test = run_in_order(size, false, true);

        for (int rank = 0; rank < size; rank++) {
            for (size_t i = 0; i < LAYERS * EACH; i++)
                er_tap_check(test->ranks[rank].sums[i] == (float)(size * (size + 1)) / 2);
        }
    }
}

/* What rank 1 has otherwise: a size, a name, one gradient less, another size of buckets. */
enum difference { NONE, SIZE, NAME, FEWER, BUCKETS, DIFFERENCES_N };

struct check_test {
    enum difference difference;
    struct er_error err[RANKS_MAX];
    int rc[RANKS_MAX], still_good[RANKS_MAX];
};

static int check_main(struct er_ctx *ctx, void *user)
{
    static float grads[100 * 8];
    static char names[100][8];
    struct check_test *test = user;
    int rank = er_world(ctx)->rank;
    enum difference difference = rank == 1 ? test->difference : NONE;
    struct er_ddp_opts opts = {.bucket_bytes = difference == BUCKETS ? 64 : 128};
    struct er_span spans[100];
    struct er_error *err = &test->err[rank];
    struct er_comm *comm = NULL;
    struct er_ddp *ddp = NULL;
    int rc = er_comm_open(&comm, ctx, NULL, err);

    opts.first_bucket_bytes = opts.bucket_bytes;
    for (size_t i = 0; i < 100; i++) {
        snprintf(names[i], sizeof(names[i]), "g%zu", i);
        spans[i] = (struct er_span){names[i], grads + 8 * i, 8};
    }
    if (difference == SIZE)
        spans[70].count = 7;
    if (difference == NAME)
        spans[70].name = "other";
    if (rc == 0)
        rc = er_comm_wait_ready(comm, err);
    if (rc == 0)
        rc = er_ddp_open(&ddp, comm, spans, difference == FEWER ? 90 : 100, &opts, err);
    if (rc == 0)
        rc = er_ddp_check(ddp, err);
    test->rc[rank] = rc;
    test->still_good[rank] = er_comm_barrier(comm, NULL) == 0;
    er_ddp_close(ddp);
    er_comm_abort(comm);
    return 0;
}

static void other_gradients_are_named_before_the_first_step(void)
{
    static const char *const texts[DIFFERENCES_N] = {
        [NONE] = "",
        [SIZE] = "gradient 70 is 'g70' with 8 elements on rank 0, 'g70' with 7 on rank 1",
        [NAME] = "gradient 70 is 'g70' with 8 elements on rank 0, 'other' with 8 on rank 1",
        [FEWER] = "rank 0 has 100 gradients, rank 1 has 90",
        [BUCKETS] = "rank 1 puts the gradients into other buckets than rank 0",
    };

    for (enum difference difference = NONE; difference < DIFFERENCES_N; difference++) {
        struct check_test *test = er_ranks_shared(sizeof(*test));

        test->difference = difference;
        er_ranks_run(3, check_main, test, NULL);
        for (int rank = 0; rank < 3; rank++) {
            er_tap_check(test->rc[rank] == (difference == NONE ? 0 : ER_E_MISMATCH));
            if (!er_tap_check(strstr(test->err[rank].text, texts[difference]) != NULL))
                er_tap_note("%s", test->err[rank].text);
            er_tap_check(test->still_good[rank]);
        }
    }
}

static int other_shape_main(struct er_ctx *ctx, void *user)
{
    int *rcs = user, rank = er_world(ctx)->rank;
    float memory[8] = {0};
    const struct er_span state = {"weights", memory, rank == 1 ? 7 : 8};
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;
    struct er_ddp *ddp = NULL;
    int rc = er_comm_open(&comm, ctx, NULL, &err);

    if (rc == 0)
        rc = er_comm_wait_ready(comm, &err);
    if (rc == 0)
        rc = er_ddp_open(&ddp, comm, NULL, 0, NULL, &err);
    rcs[rank] = rc == 0 ? er_ddp_sync_state(ddp, &state, 1, &err) : rc;
    er_ddp_close(ddp);
    er_comm_abort(comm);
    return 0;
}

static void state_of_another_shape_is_refused_everywhere(void)
{
    int *rcs = er_ranks_shared(RANKS_MAX * sizeof(*rcs));

    er_ranks_run(3, other_shape_main, rcs, NULL);
    for (int rank = 0; rank < 3; rank++)
        er_tap_check(rcs[rank] == ER_E_MISMATCH);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"the_first_bucket_is_reduced_during_backward", the_first_bucket_is_reduced_during_backward,
         0},
        {"buckets_follow_the_order_of_the_first_step", buckets_follow_the_order_of_the_first_step,
         0},
        {"compressed_gradients_are_summed", compressed_gradients_are_summed, 0},
        {"other_gradients_are_named_before_the_first_step",
         other_gradients_are_named_before_the_first_step, 0},
        {"state_of_another_shape_is_refused_everywhere",
         state_of_another_shape_is_refused_everywhere, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
