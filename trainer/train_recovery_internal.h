#pragma once
/* What the ranks of a new generation tell each other, and what follows: train_recover.c for all
 * states, train_shards.c for those that are divided over the ranks. */
#include "trainer/resume.h"
#include "trainer/train_internal.h"

/* What every rank tells the others first. */
struct er_train_record {
    struct er_resume_record resume;
    uint64_t saved_step;
    struct er_vote vote;
    struct er_train_bad bad;
    bool owed;
    uint8_t newcomers; /* option */
    /* Of sharded states: */
    bool shadow;
    uint32_t node, held_live;
    uint64_t model; /* digest of units and names of states */
    struct er_reshard_held held;
};

/* Everybody's records, and the plan that follows from them. */
struct er_train_recovery {
    struct er_train *train;
    struct er_train_record *records; /* of each rank, owned, as everything here */
    struct er_resume_record *resume;
    struct er_resume_step *steps;
    struct er_sync_move *moves; /* of whole states; their number is that of newcomers */
    size_t moves_n;
    struct er_resume_plan plan;
    /* Of sharded states: what reaches the step of the plan. */
    struct er_reshard_held *reach;
    struct er_reshard_units units;
    int32_t *memory;
};

/* This rank's record of its shards. */
int er_train_shards_tell(const struct er_train *train, struct er_train_record *ret,
                         struct er_error *err);
/* The plan and the steps, once `records` and `resume` are there; who keeps copies for whom.
 * ER_E_MISMATCH: ranks have other models or options. */
int er_train_shards_plan(struct er_train_recovery *r, struct er_error *err);
/* Collective: every rank has its shard of the plan's step, and holds all that it had besides. */
int er_train_shards_bring(struct er_train_recovery *r, struct er_error *err);
/* Collective, behind it: this division is in force. */
int er_train_shards_switch(struct er_train *train, struct er_error *err);
