/*
 * Where training goes on: the plan by itself, and against a model of data-parallel training whose
 * ranks are killed at every point of every interleaving.
 */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "trainer/resume.h"

#define RANKS_MAX 4

static struct er_resume_record kept(uint64_t applied, uint64_t grads_of)
{
    return (struct er_resume_record){.has_state = true, .applied = applied, .grads_of = grads_of};
}

Test(resume, nobody_has_a_state_so_everybody_loads)
{
    struct er_resume_record records[3] = {{0}};
    struct er_resume_step steps[3];
    struct er_resume_plan plan = er_resume_plan(records, 3, steps);

    cr_expect(plan.source == -1 && plan.applied == 0);
    for (int i = 0; i < 3; i++)
        cr_expect(steps[i].action == ER_RESUME_LOAD && steps[i].from == -1);
}

Test(resume, who_is_one_step_behind_applies_it_from_its_own_gradients)
{
    const struct er_resume_record records[4] = {kept(6, 7), kept(7, 7), {0}, kept(7, 0)};
    struct er_resume_step steps[4];
    struct er_resume_plan plan = er_resume_plan(records, 4, steps);

    cr_expect(plan.source == 1 && plan.applied == 7);
    cr_expect_eq(steps[0].action, ER_RESUME_ROLL_FORWARD);
    cr_expect_eq(steps[1].action, ER_RESUME_KEEP);
    cr_expect(steps[2].action == ER_RESUME_FETCH && steps[2].from == 1);
    cr_expect_eq(steps[3].action, ER_RESUME_KEEP);
}

Test(resume, who_cannot_roll_forward_fetches)
{
    const struct er_resume_record records[3] = {kept(6, 0), kept(5, 7), kept(7, 7)};
    struct er_resume_step steps[3];

    er_resume_plan(records, 3, steps);
    cr_expect(steps[0].action == ER_RESUME_FETCH && steps[0].from == 2);
    cr_expect(steps[1].action == ER_RESUME_FETCH && steps[1].from == 2);
}

Test(resume, those_who_fetch_are_spread_over_those_who_hold)
{
    const struct er_resume_record records[6] = {{0}, kept(3, 0), {0}, {0}, kept(2, 3), {0}};
    struct er_resume_step steps[6];

    er_resume_plan(records, 6, steps);
    cr_expect(steps[0].from == 1 && steps[2].from == 4 && steps[3].from == 1 && steps[5].from == 4);
}

Test(resume, a_state_before_the_first_step_is_kept_as_well)
{
    const struct er_resume_record records[2] = {{0}, kept(0, 0)};
    struct er_resume_step steps[2];
    struct er_resume_plan plan = er_resume_plan(records, 2, steps);

    cr_expect(plan.source == 1 && plan.applied == 0 && steps[0].action == ER_RESUME_FETCH);
}

/* ---- the model ---- */

/* What a rank does in a step, one after the other. Joint operations complete on a rank only when
 * all ranks have begun them, and on each rank in its own time. */
enum point {
    BEGIN_0, /* bucket 0 leaves: gradients are overwritten from here on */
    END_0,
    BEGIN_1,
    END_1,
    BEGIN_VOTE, /* only now, with all own buckets complete */
    END_VOTE,
    APPLY_BEGIN,
    APPLY_END,
    POINTS
};
#define STEPS 3

/* Of each rank, how many points it has passed over all steps. */
struct model {
    int size;
    int passed[RANKS_MAX];
};

static bool is_joint(int point)
{
    return point == END_0 || point == END_1 || point == END_VOTE;
}

static bool may_pass(const struct model *m, int rank)
{
    int at = m->passed[rank];

    if (at == STEPS * POINTS)
        return false;
    for (int i = 0; is_joint(at % POINTS) && i < m->size; i++) {
        if (m->passed[i] < at) /* its begin is the point before */
            return false;
    }
    return true;
}

/* A rank's memory: `params` stands for the bits of the parameters, `grads` for those of the
 * gradients; torn ones are nobody's. */
#define TORN UINT64_MAX
struct memory {
    bool lives;
    uint64_t params, grads;
    struct er_resume_record record;
};

static uint64_t gradient_bits(uint64_t step)
{
    return step * 0x9e3779b97f4a7c15u;
}

static uint64_t after(uint64_t params, uint64_t grads)
{
    return (params ^ grads) * 0xff51afd7ed558ccdu + 1;
}

static uint64_t bits_of(uint64_t applied)
{
    uint64_t params = 1;

    for (uint64_t t = 1; t <= applied; t++)
        params = after(params, gradient_bits(t));
    return params;
}

/* What a survivor that has passed so many points holds once it has stopped: a step whose vote it
 * saw complete is applied first, an apply is never interrupted. */
static struct memory survivor(int passed)
{
    uint64_t steps = (uint64_t)(passed / POINTS);
    int at = passed % POINTS; /* points passed in the step under way */
    struct memory m = {.lives = true, .record.has_state = true};

    if (at > END_VOTE) {
        steps++;
        at = 0;
    }
    m.params = bits_of(steps);
    m.grads = at > END_1 ? gradient_bits(steps + 1) : at > BEGIN_0 ? TORN : gradient_bits(steps);
    m.record.applied = steps;
    m.record.grads_of = at > END_1 ? steps + 1 : 0;
    return m;
}

static unsigned long checked;

/* One rank carries its part of the plan out. */
static void carry_out(struct memory *m, const struct er_resume_step *step,
                      const struct memory *before, uint64_t applied)
{
    if (step->action == ER_RESUME_ROLL_FORWARD) {
        m->params = after(m->params, m->grads);
    } else if (step->action == ER_RESUME_FETCH) {
        cr_assert(before[step->from].params == bits_of(applied));
        m->params = before[step->from].params;
    } else if (step->action == ER_RESUME_LOAD) {
        m->params = bits_of(0);
    }
    m->record = (struct er_resume_record){.has_state = true, .applied = applied};
}

static uint64_t newest_applied(const struct memory *ranks, int n, bool *ret_any)
{
    uint64_t newest = 0;

    *ret_any = false;
    for (int i = 0; i < n; i++) {
        if (!ranks[i].record.has_state)
            continue;
        *ret_any = true;
        newest = ranks[i].record.applied > newest ? ranks[i].record.applied : newest;
    }
    return newest;
}

/* All ranks of the next generation agree on the newest step, and come to hold the bits that an
 * undisturbed run has there. `ranks` becomes what they hold then. */
static void recover(struct memory *ranks, int n)
{
    struct er_resume_record records[RANKS_MAX];
    struct er_resume_step steps[RANKS_MAX];
    struct memory holders[RANKS_MAX];
    bool any;
    uint64_t newest = newest_applied(ranks, n, &any);

    for (int i = 0; i < n; i++)
        records[i] = ranks[i].record;
    struct er_resume_plan plan = er_resume_plan(records, n, steps);
    cr_assert(plan.applied == newest && (plan.source >= 0) == any);
    for (int i = 0; i < n; i++) {
        cr_assert((steps[i].action == ER_RESUME_LOAD) == !any);
        if (records[i].has_state) /* nobody throws away what it holds */
            cr_assert(steps[i].action == ER_RESUME_KEEP ||
                      steps[i].action == ER_RESUME_ROLL_FORWARD);
    }
    for (int i = 0; i < n; i++) {
        if (steps[i].action != ER_RESUME_FETCH)
            carry_out(&ranks[i], &steps[i], NULL, plan.applied);
    }
    memcpy(holders, ranks, sizeof(holders));
    for (int i = 0; i < n; i++) {
        if (steps[i].action == ER_RESUME_FETCH)
            carry_out(&ranks[i], &steps[i], holders, plan.applied);
    }
    for (int i = 0; i < n; i++)
        cr_assert(ranks[i].params == bits_of(plan.applied));
    checked++;
}

/* A second failure while the plan is carried out: `done` have finished their part (of those who
 * keep or roll forward), whoever fetches holds torn bytes, `dead` are killed. */
static void killed_again(const struct memory *ranks, int n, unsigned done, unsigned dead)
{
    struct er_resume_record records[RANKS_MAX];
    struct er_resume_step steps[RANKS_MAX];
    struct memory now[RANKS_MAX];

    memcpy(now, ranks, sizeof(now));
    for (int i = 0; i < n; i++)
        records[i] = ranks[i].record;
    struct er_resume_plan plan = er_resume_plan(records, n, steps);
    for (int i = 0; i < n; i++) {
        if (dead & 1u << i || steps[i].action == ER_RESUME_FETCH)
            now[i] = (struct memory){.lives = true, .params = TORN, .grads = TORN};
        else if (done & 1u << i)
            carry_out(&now[i], &steps[i], NULL, plan.applied);
    }
    recover(now, n);
}

/* The ranks in `dead` are killed here; successors take their places. */
static void kill_here(const struct model *m, unsigned dead)
{
    struct memory ranks[RANKS_MAX], again[RANKS_MAX];
    unsigned all = (1u << m->size) - 1;

    for (int i = 0; i < m->size; i++)
        ranks[i] = dead & 1u << i ? (struct memory){.lives = true, .params = TORN, .grads = TORN}
                                  : survivor(m->passed[i]);
    memcpy(again, ranks, sizeof(again));
    recover(again, m->size);
    for (unsigned done = 0; done <= all; done++) {
        for (int i = 0; i < m->size; i++)
            killed_again(ranks, m->size, done, 1u << i);
    }
}

/* States seen, by their index: points passed as digits. */
static size_t index_of(const struct model *m)
{
    size_t index = 0;

    for (int i = 0; i < m->size; i++)
        index = index * (STEPS * POINTS + 1) + (size_t)m->passed[i];
    return index;
}

static void explore(int size)
{
    struct model first = {.size = size};
    size_t states = 1, n = 0;

    for (int i = 0; i < size; i++)
        states *= STEPS * POINTS + 1;
    char *seen = calloc(states, 1);
    size_t cap = 1u << 20;
    struct model *stack = malloc(cap * sizeof(*stack));
    cr_assert(seen && stack);
    stack[n++] = first;
    seen[0] = 1;
    while (n > 0) {
        struct model at = stack[--n];

        for (unsigned dead = 1; dead < 1u << size; dead++)
            kill_here(&at, dead);
        for (int rank = 0; rank < size; rank++) {
            struct model next = at;

            if (!may_pass(&at, rank))
                continue;
            next.passed[rank]++;
            if (seen[index_of(&next)]++)
                continue;
            cr_assert(n < cap);
            stack[n++] = next;
        }
    }
    free(seen);
    free(stack);
}

Test(resume, every_kill_point_of_one_rank)
{
    explore(1);
    cr_expect(checked > 0);
}

Test(resume, every_kill_point_of_two_ranks)
{
    explore(2);
}

Test(resume, every_kill_point_of_three_ranks)
{
    explore(3);
    cr_expect(checked > 10000);
}

Test(resume, every_kill_point_of_four_ranks, .timeout = 60)
{
    explore(4);
    cr_expect(checked > 100000);
}
