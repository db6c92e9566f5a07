#include "bench/lib/elastic_job.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/pool.h"
#include "bench/lib/bench.h"
#include "trainer/train.h"

#define PARAMS (ELASTIC_JOB_STATE_BYTES / 2 / sizeof(float))
#define MOVING 65536 /* parameters that have gradients: the reduction is not what is measured */
#define STEPS  1000000000u

static struct {
    struct er_ctx *ctx;
    int fd;
    float *params, *momentum, *grads;
    struct er_span span;
    struct er_slice slices[2];
} job;

static int grads(void *user, const struct er_step *step, struct er_loss *ret, struct er_error *err)
{
    const struct timespec pace = {.tv_nsec = ELASTIC_JOB_PACE_US * 1000};

    nanosleep(&pace, NULL);
    for (size_t i = 0; i < MOVING; i++)
        job.grads[i] = (float)step->range.count;
    *ret = (struct er_loss){.sum = 1, .weight = (double)step->range.count};
    er_ddp_ready(step->ddp, 0);
    return 0;
}

static int apply(void *user, uint64_t step, const struct er_vote *vote, struct er_error *err)
{
    const struct er_world *w = er_world(job.ctx);
    struct elastic_job_step said = {.step = step,
                                    .generation = w->generation,
                                    .rank = w->rank,
                                    .size = w->size,
                                    .pid = getpid()};

    for (size_t i = 0; i < MOVING; i++) {
        job.momentum[i] = 0.9f * job.momentum[i] + job.grads[i] / (float)vote->weight;
        job.params[i] -= 0.01f * job.momentum[i];
        job.grads[i] = 0;
    }
    said.at_ms = bench_now_ms();
    return write(job.fd, &said, sizeof(said)) == (ssize_t)sizeof(said) ? 0 : -1;
}

static void spans(void *user, const struct er_span **ret, size_t *ret_n)
{
    *ret = &job.span;
    *ret_n = 1;
}

static void state(void *user, const struct er_slice **ret, size_t *ret_n)
{
    *ret = job.slices;
    *ret_n = 2;
}

static struct er_slice slice_of(const char *name, float *data)
{
    return (struct er_slice){.name = name,
                             .dtype = ER_CKPT_F32,
                             .ndim = 1,
                             .shape = {PARAMS},
                             .count = PARAMS,
                             .data = data,
                             .replicated = true};
}

static int make_model(struct er_error *err)
{
    size_t bytes = PARAMS * sizeof(float), least = MOVING * sizeof(float);
    struct er_pool *pool = NULL;
    int rc = er_pool_new(&pool, 2 * bytes + least + 3 * 4096, err);

    if (rc < 0)
        return rc;
    job.params = er_pool_alloc(pool, bytes, 4096);
    job.momentum = er_pool_alloc(pool, bytes, 4096);
    job.grads = er_pool_alloc(pool, least, 4096);
    job.span = (struct er_span){"w", job.grads, MOVING};
    job.slices[0] = slice_of("w", job.params);
    job.slices[1] = slice_of("w.momentum", job.momentum);
    return 0;
}

static enum er_train_newcomers policy_of(const char *text)
{
    if (strcmp(text, "copy") == 0)
        return ER_NEWCOMERS_COPY;
    return strcmp(text, "slices") == 0 ? ER_NEWCOMERS_CATCH_UP : ER_NEWCOMERS_AUTO;
}

int elastic_job_worker(const char *fifo, const char *newcomers)
{
    static const struct er_train_ops OPS = {
        .grads = grads, .apply = apply, .spans = spans, .state = state};
    const struct er_train_opts opts = {.plan = {.samples = STEPS, .global_batch = 48, .seed = 1},
                                       .epochs = 1,
                                       .newcomers = policy_of(newcomers)};
    struct er_train_result result;
    struct er_error err = ER_ERROR_INIT;
    int rc = er_open(&job.ctx, &err);

    job.fd = open(fifo, O_WRONLY | O_CLOEXEC);
    if (rc == 0)
        rc = make_model(&err);
    if (rc == 0)
        rc = er_train_run(job.ctx, &OPS, NULL, &opts, &result, &err);
    if (rc < 0)
        fprintf(stderr, "worker: %s\n", err.text);
    er_close(job.ctx);
    return rc < 0;
}
