/* A generation begins with what its ranks hold from the one before. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "trainer/resume.h"
#include "trainer/train_internal.h"

/* What every rank tells the others first. */
struct record {
    struct er_resume_record resume;
    uint64_t saved_step;
    struct er_vote vote;
    struct er_train_bad bad;
    bool owed;
};

/* What the generation before did not get to. */
static bool owes(const struct er_train *train)
{
    bool flies = train->ckpt && er_ckpt_in_flight(train->ckpt);

    return train->held.owed || train->policy.owed || (train->policy.flight_step > 0 && !flies);
}

/* Everybody's records, and the plan that follows from them. */
struct recovery {
    struct er_train *train;
    struct record *records; /* of each rank, owned */
    struct er_resume_step *steps;
    struct er_sync_move *moves;
    size_t moves_n;
    struct er_resume_plan plan;
};

static void recovery_done(struct recovery *r)
{
    free(r->records);
    free(r->steps);
    free(r->moves);
}

static int exchange(struct recovery *r, struct er_error *err)
{
    struct er_train *train = r->train;
    size_t n = (size_t)train->size;
    ER_CLEANUP(er_cleanup_free) struct er_resume_record *list = calloc(n, sizeof(*list));
    struct record mine = {
        .resume = {.has_state = train->held.state,
                   .applied = train->applied,
                   .grads_of = train->held.grads_of},
        .saved_step = train->held.saved_step,
        .vote = train->held.vote,
        .bad = train->bad,
        .owed = owes(train),
    };
    int rc;

    r->records = calloc(n, sizeof(*r->records));
    r->steps = calloc(n, sizeof(*r->steps));
    r->moves = calloc(n, sizeof(*r->moves));
    if (!list || !r->records || !r->steps || !r->moves)
        return er_error_set(err, -ENOMEM, "records of %d ranks", train->size);
    rc = er_sync_gather(train->comm, &mine, sizeof(mine), r->records, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "what the ranks hold");
    for (size_t i = 0; i < n; i++)
        list[i] = r->records[i].resume;
    r->plan = er_resume_plan(list, train->size, r->steps);
    for (int i = 0; i < train->size; i++) {
        if (r->steps[i].action == ER_RESUME_FETCH)
            r->moves[r->moves_n++] = (struct er_sync_move){.from = r->steps[i].from, .to = i};
    }
    return 0;
}

/* One step behind: it was voted good, and all its gradients are here. */
static int roll_forward(struct er_train *train, const struct er_vote *vote, struct er_error *err)
{
    int rc;

    if (vote->step != train->applied + 1)
        return er_error_set(err, ER_E_CORRUPT, "step %lu: its vote is not known",
                            (unsigned long)train->applied + 1);
    rc = er_train_apply(train, vote, err);
    return rc < 0 ? er_error_wrap(err, rc, "roll forward") : 0;
}

static int bring_together(struct recovery *r, struct er_error *err)
{
    struct er_train *train = r->train;
    ER_CLEANUP(er_cleanup_free) struct er_sync_part *parts = NULL;
    size_t n = 0;
    int rc = er_train_parts(train, &parts, &n, err);

    if (rc < 0)
        return rc;
    if (r->steps[train->rank].action == ER_RESUME_FETCH)
        train->held.state = false; /* until it is whole */
    rc = er_train_pull(train, err);
    if (rc == 0)
        rc = er_sync_moves(train->comm, parts, n, r->moves, r->moves_n, err);
    if (rc == 0)
        rc = er_train_push(train, err);
    return rc < 0 ? er_error_wrap(err, rc, "state of step %lu", (unsigned long)r->plan.applied) : 0;
}

static bool is_owed(const struct recovery *r)
{
    bool owed = false;

    for (int i = 0; i < r->train->size; i++)
        owed = owed || r->records[i].owed;
    return owed;
}

/* What all ranks know now, whether they were there or not. */
static void take_over(struct recovery *r)
{
    const struct record *source = &r->records[r->plan.source];
    struct er_train *train = r->train;

    train->applied = r->plan.applied;
    train->held = (struct er_train_held){
        .state = true,
        .saved_step = source->saved_step,
        .vote = source->vote,
        .owed = is_owed(r),
    };
    train->bad = source->bad;
    if (source->vote.weight > 0 && er_train_policy_finite(&source->vote))
        train->result.loss = source->vote.loss / source->vote.weight;
}

static int tell(const struct recovery *r, struct er_error *err)
{
    struct er_train *train = r->train;
    const struct er_resume_step *mine = &r->steps[train->rank];
    char text[96];

    snprintf(text, sizeof(text), "the memory of rank %d (%zu of %d ranks are new)", r->plan.source,
             r->moves_n, train->size);
    er_train_tell(train, ER_TRAIN_RECOVERED, train->applied, text);
    if (mine->action != ER_RESUME_FETCH)
        return 0;
    train->result.resumed_from = train->applied;
    snprintf(text, sizeof(text), "rank %d", mine->from);
    return er_loaded(train->ctx, train->applied, text, "peer", "", err);
}

static int carry_out(struct recovery *r, struct er_error *err)
{
    struct er_train *train = r->train;
    int rc = 0;

    er_progress(train->ctx, ER_PHASE_STARTUP, r->plan.applied);
    if (r->steps[train->rank].action == ER_RESUME_ROLL_FORWARD)
        rc = roll_forward(train, &r->records[r->plan.source].vote, err);
    if (rc < 0)
        return rc;
    er_train_drop(train); /* what is left of a step that was not applied */
    rc = bring_together(r, err);
    if (rc < 0)
        return rc;
    take_over(r);
    return tell(r, err);
}

int er_train_recover(struct er_train *train, struct er_error *err)
{
    struct recovery r = {.train = train};
    int rc = exchange(&r, err);

    if (rc == 0)
        rc = r.plan.source < 0 ? 1 : carry_out(&r, err);
    recovery_done(&r);
    return rc;
}
