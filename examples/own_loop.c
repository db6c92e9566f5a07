/*
 * Your own loop, your own gradients: only the reducer is the library's. A network x -> tanh -> y is
 * fitted by hand-written backward and plain SGD; each rank takes its share of the samples, and
 * er_ddp_ready() sends a layer's gradients while the next layer's are made.
 *
 *     build/elastic-run --nproc-per-node 2 build/examples/own_loop
 *     build/elastic-run examples/own_loop.yaml
 *
 * Five calls are all there is: er_ddp_open, er_ddp_sync_state, er_ddp_ready, er_ddp_finish, close.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "trainer/ddp.h"

enum { HIDDEN = 16, SAMPLES = 256, STEPS = 400 };

/* Parameters and their gradients, one array each, in forward order. */
struct net {
    float w1[HIDDEN], b1[HIDDEN], w2[HIDDEN], b2[1];
};

enum { W1, B1, W2, B2, SPANS };

static void list(struct net *net, struct er_span *ret)
{
    ret[W1] = (struct er_span){"w1", net->w1, HIDDEN};
    ret[B1] = (struct er_span){"b1", net->b1, HIDDEN};
    ret[W2] = (struct er_span){"w2", net->w2, HIDDEN};
    ret[B2] = (struct er_span){"b2", net->b2, 1};
}

/* Sums of squared errors and of gradients over samples [first, end): y = sin x on [-3, 3]. */
static double backward(const struct net *net, struct net *grad, int first, int end,
                       struct er_ddp *ddp)
{
    static float hidden[SAMPLES][HIDDEN], slope[SAMPLES];
    double loss = 0;

    for (int s = first; s < end; s++) {
        float x = 6.0f * (float)s / (SAMPLES - 1) - 3.0f, y = net->b2[0];

        for (int i = 0; i < HIDDEN; i++) {
            hidden[s][i] = tanhf(net->w1[i] * x + net->b1[i]);
            y += net->w2[i] * hidden[s][i];
        }
        slope[s] = 2.0f * (y - sinf(x));
        loss += (double)(y - sinf(x)) * (double)(y - sinf(x));
        grad->b2[0] += slope[s];
        for (int i = 0; i < HIDDEN; i++)
            grad->w2[i] += slope[s] * hidden[s][i];
    }
    er_ddp_ready(ddp, B2); /* the last layer's leave here ... */
    er_ddp_ready(ddp, W2);
    for (int s = first; s < end; s++) {
        float x = 6.0f * (float)s / (SAMPLES - 1) - 3.0f;

        for (int i = 0; i < HIDDEN; i++) {
            float g = slope[s] * net->w2[i] * (1.0f - hidden[s][i] * hidden[s][i]);

            grad->w1[i] += g * x;
            grad->b1[i] += g;
        }
    }
    er_ddp_ready(ddp, B1); /* ... beside the work on the first */
    er_ddp_ready(ddp, W1);
    return loss;
}

static void update(struct er_span *params, struct er_span *grads, double weight)
{
    for (int i = 0; i < SPANS; i++) {
        for (size_t k = 0; k < params[i].count; k++)
            params[i].ptr[k] -= 0.05f * grads[i].ptr[k] / (float)weight;
        memset(grads[i].ptr, 0, grads[i].count * sizeof(float));
    }
}

static int train(struct er_comm *comm, struct er_error *err)
{
    static struct net net, grad;
    int rank = er_comm_rank(comm), size = er_comm_size(comm);
    int first = SAMPLES * rank / size, end = SAMPLES * (rank + 1) / size;
    struct er_span params[SPANS], grads[SPANS];
    struct er_ddp *ddp = NULL;
    struct er_vote vote = {0};
    int rc;

    for (int i = 0; i < HIDDEN; i++) {
        net.w1[i] = sinf(1.0f + 3.0f * (float)i);
        net.w2[i] = 0.3f * cosf(2.0f * (float)i);
    }
    list(&net, params);
    list(&grad, grads);
    rc = er_ddp_open(&ddp, comm, grads, SPANS, NULL, err);
    if (rc == 0)
        rc = er_ddp_sync_state(ddp, params, SPANS, err);
    for (uint64_t step = 1; step <= STEPS && rc == 0; step++) {
        double loss = backward(&net, &grad, first, end, ddp);

        vote = (struct er_vote){.step = step, .loss = loss, .weight = end - first};
        rc = er_ddp_finish(ddp, &vote, err);
        if (rc == 0)
            update(params, grads, vote.weight);
        if (rc == 0 && rank == 0 && (step == 1 || step % 100 == 0))
            printf("step=%llu loss=%.6f\n", (unsigned long long)step, vote.loss / vote.weight);
    }
    er_ddp_close(ddp);
    return rc;
}

int main(void)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_ctx *ctx = NULL;
    struct er_comm *comm = NULL;
    int rc = er_open(&ctx, &err);

    if (rc == 0)
        rc = er_comm_open(&comm, ctx, NULL, &err);
    if (rc == 0)
        rc = er_comm_wait_ready(comm, &err);
    if (rc == 0)
        rc = train(comm, &err);
    if (rc < 0) {
        fprintf(stderr, "own_loop: %s\n", err.text);
        /* A lost peer is its own root cause, not this worker's failure. */
        if (rc != ER_E_PEER_LOST && rc != ER_E_ABORTED)
            er_fail(ctx, "%s", err.text);
    }
    er_comm_abort(comm);
    er_close(ctx);
    return rc < 0;
}
