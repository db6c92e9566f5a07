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
