#pragma once
/*
 * Where training goes on after a membership change, and what each rank does to get there. Pure:
 * every rank feeds the same gathered records and gets the same plan.
 *
 * apply(t) on any rank means that the vote of t completed there, so every rank had begun its vote,
 * so every rank had all reduced gradients of t, complete and with the same bits. A rank that has
 * not applied t has not begun the backward pass of t + 1, so its gradients are those of t still.
 * Therefore T is the newest step that any rank holds; who is one behind applies it now, from its
 * own gradients; no step is undone and none is lost.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "trainer/reshard.h"

/* What a rank brings along. */
struct er_resume_record {
    bool has_state;    /* parameters and optimizer state of `applied`, whole */
    uint64_t applied;  /* optimizer steps in them; 0: the first values */
    uint64_t grads_of; /* step whose gradients it holds, reduced and complete; 0: none */
};

enum er_resume_action {
    ER_RESUME_KEEP,         /* the state is there */
    ER_RESUME_ROLL_FORWARD, /* apply step T from the gradients at hand, with the source's vote */
    ER_RESUME_FETCH,        /* take the state of T from `from` */
    ER_RESUME_LOAD          /* nobody has a state: newest checkpoint, or the first values */
};

struct er_resume_step {
    enum er_resume_action action;
    int from; /* FETCH: a rank that holds T before anybody fetches; -1 otherwise */
};

struct er_resume_plan {
    uint64_t applied; /* T; 0 with LOAD */
    int source;       /* lowest rank that keeps T, -1 with LOAD: everybody loads */
};

/* `steps`: one for each of the `n` records, in rank order. Those who fetch are spread over all who
 * hold T. */
struct er_resume_plan er_resume_plan(const struct er_resume_record *records, int n,
                                     struct er_resume_step *steps);

/*
 * The same where every rank has shards of the state (FSDP): `has_state` says that it has those of
 * `held`, of which the first `held_live` come with gradients, as parameters do above. T is the same
 * T, but everybody loads unless the shards of those who reach it, that is of all who keep or roll
 * forward, are the whole state; what they hold then is in `reach` (n), for er_reshard_init(): the
 * live shards alone of who rolls forward, none of who fetches (`from` means nothing). `memory`: as
 * er_reshard_memory_n() of `held` asks.
 */
struct er_resume_shards {
    struct er_reshard_units units;
    const struct er_reshard_held *held; /* (n) */
    const uint32_t *held_live;          /* (n) */
    struct er_reshard_held *reach;      /* (n) */
    int32_t *memory;
};
struct er_resume_plan er_resume_plan_shards(const struct er_resume_record *records, int n,
                                            const struct er_resume_shards *shards,
                                            struct er_resume_step *steps);
