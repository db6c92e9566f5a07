#include "trainer/resume.h"

/* Lowest rank with the newest state, -1: nobody has one. */
static int newest(const struct er_resume_record *records, int n)
{
    int source = -1;

    for (int i = 0; i < n; i++) {
        if (records[i].has_state && (source < 0 || records[i].applied > records[source].applied))
            source = i;
    }
    return source;
}

static enum er_resume_action action_of(const struct er_resume_record *record, uint64_t applied)
{
    if (record->has_state && record->applied == applied)
        return ER_RESUME_KEEP;
    if (record->has_state && record->applied + 1 == applied && record->grads_of == applied)
        return ER_RESUME_ROLL_FORWARD;
    return ER_RESUME_FETCH;
}

/* The next rank behind `from` that holds T before anybody fetches; the source is one. */
static int next_holder(const struct er_resume_step *steps, int n, int from)
{
    do {
        from = (from + 1) % n;
    } while (steps[from].action == ER_RESUME_FETCH);
    return from;
}

struct er_resume_plan er_resume_plan(const struct er_resume_record *records, int n,
                                     struct er_resume_step *steps)
{
    int source = newest(records, n), from = source - 1;
    struct er_resume_plan plan = {.source = source,
                                  .applied = source < 0 ? 0 : records[source].applied};

    for (int i = 0; i < n; i++)
        steps[i] = (struct er_resume_step){
            .action = source < 0 ? ER_RESUME_LOAD : action_of(&records[i], plan.applied),
            .from = -1,
        };
    for (int i = 0; i < n; i++) {
        if (steps[i].action == ER_RESUME_FETCH)
            steps[i].from = from = next_holder(steps, n, from < 0 ? n - 1 : from);
    }
    return plan;
}

static void reach_of(const struct er_resume_shards *s, const struct er_resume_step *steps, int n)
{
    for (int i = 0; i < n; i++) {
        uint32_t live = s->held_live[i] < s->held[i].n ? s->held_live[i] : s->held[i].n;

        s->reach[i] = s->held[i];
        if (steps[i].action == ER_RESUME_FETCH)
            s->reach[i].n = 0;
        else if (steps[i].action == ER_RESUME_ROLL_FORWARD)
            s->reach[i].n = live;
    }
}

struct er_resume_plan er_resume_plan_shards(const struct er_resume_record *records, int n,
                                            const struct er_resume_shards *shards,
                                            struct er_resume_step *steps)
{
    struct er_resume_plan plan = er_resume_plan(records, n, steps);
    struct er_reshard reshard;

    if (plan.source < 0)
        return plan;
    reach_of(shards, steps, n);
    er_reshard_init(&reshard, shards->units, shards->reach, n, shards->memory);
    if (er_reshard_covers(&reshard, NULL, NULL))
        return plan;
    for (int i = 0; i < n; i++)
        steps[i] = (struct er_resume_step){.action = ER_RESUME_LOAD, .from = -1};
    return (struct er_resume_plan){.source = -1};
}
