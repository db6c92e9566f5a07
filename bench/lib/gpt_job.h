#pragma once
/* The GPT of the training benchmarks on one rank: 4 layers, 256 channels, 8 heads, 4 rows of 256
 * bytes, AdamW; gradients reduced, or everything sharded. Failures end the program. */
#include "examples/gpt_model.h"
#include "trainer/ddp.h"

enum { GPT_JOB_ROWS = 4, GPT_JOB_LENGTH = 256, GPT_JOB_TOKENS = GPT_JOB_ROWS * GPT_JOB_LENGTH };

struct gpt_job {
    struct gpt gpt;
    struct er_optim optim;
    struct er_ddp *ddp; /* NULL: sharded */
    int32_t tokens[GPT_JOB_TOKENS], labels[GPT_JOB_TOKENS];
    uint64_t step;
};

/* `comm` is borrowed. Zeroed memory. */
void gpt_job_open(struct gpt_job *job, struct er_comm *comm, bool sharded);
/* Forward, backward, reduction, vote and optimizer. */
void gpt_job_step(struct gpt_job *job);
void gpt_job_close(struct gpt_job *job);
