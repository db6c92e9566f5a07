#pragma once
/* The GPT of the training benchmarks on one rank: 4 layers, 256 channels, 8 heads, 4 rows of 256
 * bytes, AdamW; gradients reduced, or everything sharded. Failures end the program. */
#include "examples/gpt_model.h"
#include "trainer/ddp.h"

enum { GPT_JOB_ROWS = 4, GPT_JOB_LENGTH = 256, GPT_JOB_TOKENS = GPT_JOB_ROWS * GPT_JOB_LENGTH };

/* What of a step is done, for benchmarks of overlap. */
enum gpt_job_mode {
    GPT_JOB_OVERLAP, /* buckets leave while backward goes on */
    GPT_JOB_SERIAL,  /* all buckets leave after backward */
    GPT_JOB_COMPUTE, /* nothing leaves, no vote */
    GPT_JOB_COMM     /* buckets and the vote alone */
};

struct gpt_job {
    enum gpt_job_mode mode; /* of the next steps; not with sharded parameters */
    struct gpt gpt;
    struct er_optim optim;
    struct er_ddp *ddp; /* NULL: sharded */
    int32_t tokens[GPT_JOB_TOKENS], labels[GPT_JOB_TOKENS];
    uint64_t step;
};

/* `comm` is borrowed, `opts` (NULL: defaults) copied. Zeroed memory. */
void gpt_job_open(struct gpt_job *job, struct er_comm *comm, bool sharded,
                  const struct er_ddp_opts *opts);
/* Forward, backward, reduction, vote and optimizer, which runs twice where there is a second copy
 * of shards (er_fsdp_shadow()). */
void gpt_job_step(struct gpt_job *job);
void gpt_job_close(struct gpt_job *job);
