#pragma once
/*
 * A GPT-2 shaped language model on the tape: token and position embeddings, layers of causal
 * attention and a GELU network with layer norms in front, output weights tied to the token
 * embedding. Source: A. Radford et al., "Language Models are Unsupervised Multitask Learners",
 * 2019, section 2.3.
 */
#include "base/pool.h"
#include "trainer/engine.h"
#include "trainer/fsdp.h"
#include "trainer/ops/ops.h"

enum { GPT_LAYERS_MAX = 24, GPT_LAYER_PARAMS = 12, GPT_OTHER_PARAMS = 4 };
#define GPT_PARAMS_MAX (GPT_LAYERS_MAX * GPT_LAYER_PARAMS + GPT_OTHER_PARAMS)

struct gpt_shape {
    size_t vocab, context, layers, heads, width; /* V, T at most, L, H, C; C a multiple of H */
    float dropout;                               /* behind embeddings and both parts of a layer */
};

struct gpt {
    struct gpt_shape shape;
    uint64_t seed;            /* of the first values */
    struct er_engine *engine; /* who computes, set before gpt_open(); NULL: the CPU. Borrowed */
    enum er_dtype dtype;      /* the program's: what parameters and activations are stored as */
    void *memory;             /* of a GPU's: everything but positions */
    struct er_pool *pool;
    struct er_flat_param table[GPT_PARAMS_MAX];
    struct er_flat flat;
    struct er_span spans[GPT_PARAMS_MAX];
    struct er_slice slices[3 * GPT_PARAMS_MAX];
    size_t slices_n;
    struct er_tape *tape;
    struct er_fsdp *fsdp; /* NULL: not sharded, or not yet */
    char unit_names[GPT_LAYERS_MAX][32];
    int32_t *positions; /* 0, 1, ... (T) */
};

/* Builds and initialises it: the same values for the same seed. -EINVAL names what is wrong with
 * the shape. After a failure gpt_close() takes what is there. `sharded`: gpt_shard() gives it its
 * memory, and before that there are neither spans nor slices. */
int gpt_open(struct gpt *gpt, const struct gpt_shape *shape, const struct er_optim *optim,
             uint64_t seed, bool sharded, struct er_error *err);
/* Collective: this rank's shard of it. */
int gpt_shard(struct gpt *gpt, struct er_comm *comm, const struct er_fsdp_opts *opts,
              struct er_error *err);
void gpt_close(struct gpt *gpt);

/* `rows` sequences of `length` tokens. */
struct gpt_batch {
    size_t rows, length;
    const int32_t *tokens;   /* (B, T), borrowed until backward */
    const int32_t *labels;   /* (B, T) what comes next, borrowed until backward; NULL: no loss */
    const uint64_t *samples; /* (B) global sample indices, for dropout; NULL: none */
    uint64_t seed;           /* of dropout in this step */
};

/* Forward from er_tape_begin() on. *ret_logits (B, T, V), of float32 without labels; *ret_loss (1),
 * a sum over tokens, and *ret_sum the same in double precision. */
int gpt_forward(struct gpt *gpt, const struct gpt_batch *batch, struct er_tensor **ret_logits,
                struct er_tensor **ret_loss, double *ret_sum, struct er_error *err);

/* One optimizer step on everything, decay on matrices only; `optim->weight_decay` is theirs. */
int gpt_apply(struct gpt *gpt, const struct er_optim *optim, uint64_t step, double lr, double scale,
              struct er_error *err);
