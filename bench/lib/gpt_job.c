#include "bench/lib/gpt_job.h"

#include "bench/lib/bench.h"
#include "trainer/sampler.h"

static const struct gpt_shape shape = {
    .vocab = 256, .context = GPT_JOB_LENGTH, .layers = 4, .heads = 8, .width = 256};

static void must(int rc, const struct er_error *err)
{
    if (rc != 0)
        bench_fail("%s", err->text);
}

static void on_gradient(void *user, size_t param)
{
    struct gpt_job *job = user;

    if (job->ddp && job->mode == GPT_JOB_OVERLAP)
        er_ddp_ready(job->ddp, param);
}

void gpt_job_open(struct gpt_job *job, struct er_comm *comm, bool sharded,
                  const struct er_ddp_opts *opts)
{
    uint64_t rank = (uint64_t)er_comm_rank(comm);
    struct er_error err = ER_ERROR_INIT;

    job->optim = er_optim_adamw();
    must(gpt_open(&job->gpt, &shape, &job->optim, 1, sharded, &err), &err);
    for (size_t i = 0; i < GPT_JOB_TOKENS; i++) {
        job->tokens[i] = (int32_t)(er_rng(3, rank, 0, i) % shape.vocab);
        job->labels[i] = (int32_t)(er_rng(3, rank, 0, i + 1) % shape.vocab);
    }
    er_tape_hook(job->gpt.tape, on_gradient, job);
    if (sharded)
        must(gpt_shard(&job->gpt, comm, NULL, &err), &err);
    else
        must(er_ddp_open(&job->ddp, comm, job->gpt.spans, job->gpt.flat.params_n, opts, &err),
             &err);
}

static void compute(struct gpt_job *job, double *ret_loss)
{
    const struct gpt_batch batch = {.rows = GPT_JOB_ROWS,
                                    .length = GPT_JOB_LENGTH,
                                    .tokens = job->tokens,
                                    .labels = job->labels};
    struct er_error err = ER_ERROR_INIT;
    struct er_tensor *logits, *loss;

    must(er_tape_begin(job->gpt.tape, &err), &err);
    must(gpt_forward(&job->gpt, &batch, &logits, &loss, ret_loss, &err), &err);
    must(er_tape_backward(job->gpt.tape, loss, &err), &err);
}

static void apply(struct gpt_job *job, double weight)
{
    struct er_error err = ER_ERROR_INIT;

    must(gpt_apply(&job->gpt, &job->optim, job->step, 1e-4, 1.0 / weight, &err), &err);
}

void gpt_job_step(struct gpt_job *job)
{
    struct er_vote vote = {.step = ++job->step, .weight = GPT_JOB_TOKENS};
    struct er_error err = ER_ERROR_INIT;

    if (job->mode != GPT_JOB_COMM)
        compute(job, &vote.loss);
    if (job->mode != GPT_JOB_COMPUTE)
        must(job->ddp ? er_ddp_finish(job->ddp, &vote, &err)
                      : er_fsdp_finish(job->gpt.fsdp, &vote, &err),
             &err);
    if (job->mode != GPT_JOB_COMM)
        apply(job, vote.weight);
    if (job->mode != GPT_JOB_COMM && job->gpt.fsdp && er_fsdp_turn(job->gpt.fsdp)) {
        apply(job, vote.weight);
        er_fsdp_turn(job->gpt.fsdp);
    }
}

void gpt_job_close(struct gpt_job *job)
{
    er_ddp_close(job->ddp);
    gpt_close(&job->gpt);
}
