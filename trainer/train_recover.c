/* A generation begins with what its ranks hold from the one before. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "trainer/train_recovery_internal.h"

/* What the generation before did not get to. */
static bool owes(const struct er_train *train)
{
    bool flies = train->ckpt && er_ckpt_in_flight(train->ckpt);

    return train->held.owed || train->policy.owed || (train->policy.flight_step > 0 && !flies);
}

static void recovery_done(struct er_train_recovery *r)
{
    free(r->records);
    free(r->resume);
    free(r->steps);
    free(r->moves);
    free(r->reach);
    free((void *)(uintptr_t)r->units.elements);
    free(r->memory);
}

static int fill_record(struct er_train *train, struct er_train_record *ret, struct er_error *err)
{
    *ret = (struct er_train_record){
        .resume = {.has_state = train->held.state,
                   .applied = train->applied,
                   .grads_of = train->held.grads_of},
        .saved_step = train->held.saved_step,
        .vote = train->held.vote,
        .bad = train->bad,
        .owed = owes(train),
        .newcomers = (uint8_t)train->opts->newcomers,
    };
    return train->fsdp ? er_train_shards_tell(train, ret, err) : 0;
}

static int exchange(struct er_train_recovery *r, struct er_error *err)
{
    struct er_train *train = r->train;
    size_t n = (size_t)train->size;
    struct er_train_record mine;
    int rc = fill_record(train, &mine, err);

    if (rc < 0)
        return rc;
    r->records = calloc(n, sizeof(*r->records));
    r->resume = calloc(n, sizeof(*r->resume));
    r->steps = calloc(n, sizeof(*r->steps));
    r->moves = calloc(n, sizeof(*r->moves));
    if (!r->records || !r->resume || !r->steps || !r->moves)
        return er_error_set(err, -ENOMEM, "records of %d ranks", train->size);
    rc = er_sync_gather(train->comm, &mine, sizeof(mine), r->records, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "what the ranks hold");
    for (size_t i = 0; i < n; i++)
        r->resume[i] = r->records[i].resume;
    return 0;
}

static int make_plan(struct er_train_recovery *r, struct er_error *err)
{
    int size = r->train->size, rc = 0;

    if (r->train->fsdp)
        rc = er_train_shards_plan(r, err);
    else
        r->plan = er_resume_plan(r->resume, size, r->steps);
    for (int i = 0; i < size && rc == 0; i++) {
        if (r->steps[i].action == ER_RESUME_FETCH)
            r->moves[r->moves_n++] = (struct er_sync_move){.from = r->steps[i].from, .to = i};
    }
    return rc;
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

static int check_newcomers(const struct er_train_recovery *r, struct er_error *err)
{
    for (int i = 1; i < r->train->size; i++) {
        if (r->records[i].newcomers != r->records[0].newcomers)
            return er_error_set(err, ER_E_MISMATCH,
                                "rank %d has another option 'newcomers' than rank 0", i);
    }
    return 0;
}

/* 1: the state is copied at once. Takes `parts` otherwise. */
static int begin_catchup(struct er_train_recovery *r, struct er_sync_part *parts, size_t n,
                         struct er_error *err)
{
    struct er_train *train = r->train;
    enum er_train_newcomers how = train->opts->newcomers;
    ER_CLEANUP(er_cleanup_free) bool *learns = calloc((size_t)train->size, sizeof(*learns));

    if (!learns)
        return er_error_set(err, -ENOMEM, "newcomers of %d ranks", train->size);
    for (int i = 0; i < train->size; i++)
        learns[i] = r->steps[i].action == ER_RESUME_FETCH;
    /* The scale of losses is not an element's. */
    if (how == ER_NEWCOMERS_COPY || train->fsdp || train->mirror || train->opts->scaler)
        return 1;
    return er_train_catchup_start(train, learns, parts, n, how == ER_NEWCOMERS_CATCH_UP, err);
}

static int bring_together(struct er_train_recovery *r, struct er_error *err)
{
    struct er_train *train = r->train;
    ER_CLEANUP(er_cleanup_free) struct er_sync_part *parts = NULL;
    size_t n = 0;
    int rc = er_train_parts(train, &parts, &n, err);

    if (rc < 0 || (train->fsdp && n == 0))
        return rc;
    if (r->steps[train->rank].action == ER_RESUME_FETCH)
        train->held.state = false; /* until it is whole */
    rc = begin_catchup(r, parts, n, err);
    if (train->catchup.parts == parts)
        (void)ER_TAKE(parts);
    if (rc <= 0)
        return rc;
    rc = er_train_pull(train, err);
    if (rc == 0)
        rc = er_sync_moves(train->comm, parts, n, r->moves, r->moves_n, err);
    if (rc == 0)
        rc = er_train_push(train, err);
    return rc < 0 ? er_error_wrap(err, rc, "state of step %lu", (unsigned long)r->plan.applied) : 0;
}

static bool is_owed(const struct er_train_recovery *r)
{
    bool owed = false;

    for (int i = 0; i < r->train->size; i++)
        owed = owed || r->records[i].owed;
    return owed;
}

/* What all ranks know now, whether they were there or not. */
static void take_over(struct er_train_recovery *r)
{
    const struct er_train_record *source = &r->records[r->plan.source];
    struct er_train *train = r->train;

    train->applied = r->plan.applied;
    train->held = (struct er_train_held){
        .state = !train->catchup.learns || !train->catchup.learns[train->rank],
        .saved_step = source->saved_step,
        .vote = source->vote,
        .owed = is_owed(r),
    };
    train->bad = source->bad;
    if (source->vote.weight > 0 && er_train_policy_usable(&source->vote))
        train->result.loss = source->vote.loss / source->vote.weight;
}

static int tell(const struct er_train_recovery *r, struct er_error *err)
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
    if (train->catchup.learners_n > 0) /* told when it is here */
        return 0;
    snprintf(text, sizeof(text), "rank %d", mine->from);
    return er_loaded(train->ctx, train->applied, text, "peer", "", err);
}

static int carry_out(struct er_train_recovery *r, struct er_error *err)
{
    struct er_train *train = r->train;
    int rc = 0;

    er_progress(train->ctx, ER_PHASE_STARTUP, r->plan.applied);
    if (r->steps[train->rank].action == ER_RESUME_ROLL_FORWARD)
        rc = roll_forward(train, &r->records[r->plan.source].vote, err);
    if (rc < 0)
        return rc;
    er_train_drop(train); /* what is left of a step that was not applied */
    rc = train->fsdp ? er_train_shards_bring(r, err) : 0;
    if (rc == 0)
        rc = bring_together(r, err);
    if (rc < 0)
        return rc;
    take_over(r);
    if (train->fsdp)
        rc = er_train_shards_switch(train, err);
    return rc < 0 ? rc : tell(r, err);
}

int er_train_recover(struct er_train *train, struct er_error *err)
{
    struct er_train_recovery r = {.train = train};
    int rc = exchange(&r, err);

    if (rc == 0)
        rc = check_newcomers(&r, err);
    if (rc == 0)
        rc = make_plan(&r, err);
    if (rc == 0)
        rc = r.plan.source < 0 ? 1 : carry_out(&r, err);
    recovery_done(&r);
    return rc;
}
