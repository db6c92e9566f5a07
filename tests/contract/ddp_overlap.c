/* The reducer with real ranks, call by call: reduction during backward, agreement on state. */
#include "trainer/ddp.h"

#include "base/cleanup.h"
#include "tests/lib/ranks.h"
#include "tests/lib/tap.h"
#include "tests/lib/wait.h"

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
        {"state_of_another_shape_is_refused_everywhere",
         state_of_another_shape_is_refused_everywhere, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
