/*
 * Where training with sharded state goes on: a model of ranks that hold a shard each, and a copy of
 * another one's, killed at every point of every interleaving; the next generation has as many
 * ranks, or fewer.
 */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "trainer/resume.h"

/* What a rank does in a step. */
enum point {
    BEGIN_REDUCE, /* gradients are overwritten from here on */
    END_REDUCE,   /* when all ranks have begun */
    FORWARD,      /* its reduced gradients leave for its keeper */
    FORWARDED,    /* and those of the shard that it keeps are here: when that one has sent them */
    BEGIN_VOTE,
    END_VOTE, /* when all ranks have begun */
    APPLY,    /* own shard and copy; not interrupted */
    POINTS
};
enum { STEPS = 2, RANKS_MAX = 4, LINES = 8, UNITS = 2, DEPTH = STEPS * POINTS + 1 };
#define TORN UINT64_MAX

static const size_t elements[UNITS] = {16 * LINES, 16 * 4};
static const struct er_reshard_units units = {elements, UNITS};

struct model {
    int size, shift; /* 0: no copies */
    int passed[RANKS_MAX];
};

static int keeper_of(const struct model *m, int rank)
{
    return (rank + m->size - m->shift) % m->size;
}

static bool may_pass(const struct model *m, int rank)
{
    int at = m->passed[rank], point = at % POINTS;

    if (at == STEPS * POINTS)
        return false;
    if (point == FORWARDED && m->shift > 0)
        return m->passed[(rank + m->shift) % m->size] >= at;
    for (int i = 0; (point == END_REDUCE || point == END_VOTE) && i < m->size; i++) {
        if (m->passed[i] < at)
            return false;
    }
    return true;
}

/* Bits of a line after `applied` steps. */
static uint64_t bits_of(size_t unit, size_t line, uint64_t applied)
{
    uint64_t x = unit * 100 + line + 1;

    for (uint64_t t = 1; t <= applied; t++)
        x = (x ^ t * 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu + 1;
    return x;
}

/* One shard in somebody's memory: only its own lines mean anything. */
struct content {
    struct er_shard shard;
    uint64_t line[UNITS][LINES];
};

struct memory {
    struct er_resume_record record;
    int n; /* of what it holds: its own, then the copy */
    struct content held[2];
};

static void fill(struct content *c, struct er_shard shard, uint64_t applied)
{
    c->shard = shard;
    for (size_t u = 0; u < UNITS; u++) {
        size_t first, n = er_shard_range(elements[u], shard, &first);

        for (size_t l = 0; l < LINES; l++)
            c->line[u][l] = l * ER_SHARD_LINE >= first && l * ER_SHARD_LINE < first + n
                                ? bits_of(u, l, applied)
                                : TORN;
    }
}

/* A survivor once it has stopped. */
static struct memory survivor(const struct model *m, int rank)
{
    uint32_t size = (uint32_t)m->size;
    uint64_t steps = (uint64_t)(m->passed[rank] / POINTS);
    int at = m->passed[rank] % POINTS;
    struct memory s = {.record.has_state = true, .n = m->shift > 0 ? 2 : 1};

    if (at > END_VOTE) {
        steps++;
        at = 0;
    }
    s.record.applied = steps;
    s.record.grads_of = at > FORWARDED ? steps + 1 : 0;
    fill(&s.held[0], (struct er_shard){size, (uint32_t)rank}, steps);
    fill(&s.held[1], (struct er_shard){size, (uint32_t)((rank + m->shift) % m->size)}, steps);
    return s;
}

struct next {
    struct memory *ranks;
    struct memory after[RANKS_MAX];
};

static int carry(void *user, const struct er_reshard_move *move, struct er_error *err)
{
    struct next *next = user;
    const struct content *from = NULL;
    struct content *to = &next->after[move->to].held[move->target];

    for (int i = 0; i < next->ranks[move->from].n; i++) {
        if (er_shard_same(next->ranks[move->from].held[i].shard, move->shard))
            from = &next->ranks[move->from].held[i];
    }
    cr_assert(from != NULL);
    for (size_t l = move->first / ER_SHARD_LINE; l * ER_SHARD_LINE < move->first + move->count; l++)
        to->line[move->unit][l] = from->line[move->unit][l];
    return 0;
}

static void roll_forward(struct memory *rank, uint64_t applied)
{
    cr_assert(rank->record.applied + 1 == applied && rank->record.grads_of == applied);
    for (int i = 0; i < rank->n; i++)
        fill(&rank->held[i], rank->held[i].shard, applied);
    rank->record = (struct er_resume_record){.has_state = true, .applied = applied};
}

static void expect_whole(const struct memory *ranks, int n, int shift, uint64_t applied)
{
    for (int rank = 0; rank < n; rank++) {
        for (int i = 0; i < (shift > 0 ? 2 : 1); i++) {
            struct content want;

            fill(&want, (struct er_shard){(uint32_t)n, (uint32_t)((rank + i * shift) % n)},
                 applied);
            cr_assert(memcmp(want.line, ranks[rank].held[i].line, sizeof(want.line)) == 0);
        }
    }
}

static unsigned long checked, loads;

/* True: everybody loads. */
static bool recover(struct memory *ranks, int n)
{
    struct er_resume_record records[RANKS_MAX];
    struct er_resume_step steps[RANKS_MAX];
    struct er_reshard_held held[RANKS_MAX] = {{0}}, reach[RANKS_MAX];
    uint32_t live[RANKS_MAX], nodes[RANKS_MAX] = {0, 1, 2, 3};
    int32_t memory[RANKS_MAX * ER_RESHARD_HELD_MAX + 16];
    const struct er_resume_shards shards = {units, held, live, reach, memory};
    int shift = er_shadow_shift(nodes, n);
    struct next next = {.ranks = ranks};
    struct er_reshard r;
    uint64_t newest = 0;

    for (int i = 0; i < n; i++) {
        records[i] = ranks[i].record;
        live[i] = held[i].n = records[i].has_state ? (uint32_t)ranks[i].n : 0;
        for (int k = 0; k < ranks[i].n; k++)
            held[i].shards[k] = ranks[i].held[k].shard;
        if (records[i].has_state && records[i].applied > newest)
            newest = records[i].applied;
        memset(next.after[i].held, 0xff, sizeof(next.after[i].held)); /* torn */
    }
    struct er_resume_plan plan = er_resume_plan_shards(records, n, &shards, steps);
    checked++;
    if (plan.source < 0)
        return true;
    cr_assert_eq(plan.applied, newest);
    for (int i = 0; i < n; i++) {
        if (steps[i].action == ER_RESUME_ROLL_FORWARD)
            roll_forward(&ranks[i], plan.applied);
    }
    er_reshard_init(&r, units, reach, n, memory);
    cr_assert_eq(er_reshard_moves(&r, shift, carry, &next, NULL), 0);
    expect_whole(next.after, n, shift, plan.applied);
    return false;
}

/* Whether some shard had nobody left: the owner and its keeper are gone. */
static bool is_lost(const struct model *m, unsigned dead)
{
    for (int i = 0; i < m->size; i++) {
        bool kept = m->shift > 0 && !(dead & 1u << keeper_of(m, i));

        if (dead & 1u << i && !kept)
            return true;
    }
    return false;
}

/* With successors in the places of the dead, or without. */
static void kill_here(const struct model *m, unsigned dead)
{
    struct memory same[RANKS_MAX] = {{.n = 0}}, fewer[RANKS_MAX];
    bool lost = is_lost(m, dead);
    int n = 0;

    for (int i = 0; i < m->size; i++) {
        if (dead & 1u << i)
            continue;
        same[i] = survivor(m, i);
        fewer[n++] = same[i];
    }
    cr_assert_eq(recover(same, m->size), lost);
    if (n > 0)
        cr_assert_eq(recover(fewer, n), lost);
    loads += lost;
}

static size_t index_of(const struct model *m)
{
    size_t index = 0;

    for (int i = 0; i < m->size; i++)
        index = index * DEPTH + (size_t)m->passed[i];
    return index;
}

static void explore(int size, int shift)
{
    static struct model stack[1 << 17];
    size_t states = 1, n = 0;

    for (int i = 0; i < size; i++)
        states *= DEPTH;
    ER_CLEANUP(er_cleanup_free) char *seen = calloc(states, 1);
    cr_assert(seen != NULL);
    stack[n++] = (struct model){.size = size, .shift = shift};
    seen[0] = 1;
    while (n > 0) {
        struct model at = stack[--n];

        for (unsigned dead = 1; dead < 1u << size; dead++)
            kill_here(&at, dead);
        for (int rank = 0; rank < size; rank++) {
            struct model next = at;

            next.passed[rank]++;
            if (!may_pass(&at, rank) || seen[index_of(&next)]++)
                continue;
            cr_assert(n < ER_ARRAY_N(stack));
            stack[n++] = next;
        }
    }
}

Test(resume_shards, without_copies_every_loss_loads)
{
    for (int size = 1; size <= 4; size++)
        explore(size, 0);
    cr_expect(checked > 1000 && loads > 0);
}

Test(resume_shards, a_shard_lives_as_long_as_its_owner_or_keeper)
{
    for (int size = 2; size <= 3; size++)
        explore(size, 1);
    cr_expect(checked > 1000);
}

Test(resume_shards, every_kill_point_of_four_ranks, .timeout = 120)
{
    explore(4, 1);
    explore(4, 2);
    cr_expect(checked > 10000, "%lu", checked);
}

static struct er_resume_record at_step(uint64_t applied, uint64_t grads_of)
{
    return (struct er_resume_record){.has_state = true, .applied = applied, .grads_of = grads_of};
}

/* A shard that was handed over has no gradients: who is one behind cannot bring it along. */
Test(resume_shards, what_has_no_gradients_does_not_roll_forward)
{
    const struct er_resume_record records[2] = {at_step(6, 7), at_step(7, 0)};
    const struct er_reshard_held held[2] = {{2, {{3, 0}, {3, 1}}}, {1, {{3, 2}}}};
    uint32_t live[2] = {1, 1};
    struct er_reshard_held reach[2];
    struct er_resume_step steps[2];
    int32_t memory[4 * ER_RESHARD_HELD_MAX];
    const struct er_resume_shards shards = {units, held, live, reach, memory};

    cr_expect(er_resume_plan_shards(records, 2, &shards, steps).source == -1);
    cr_expect_eq(steps[0].action, ER_RESUME_LOAD);
    live[0] = 2;
    cr_expect(er_resume_plan_shards(records, 2, &shards, steps).source == 1);
    cr_expect_eq(steps[0].action, ER_RESUME_ROLL_FORWARD);
}

/* Somebody who was away holds an old step: it takes the new one as a newcomer does. */
Test(resume_shards, who_is_far_behind_gives_nothing)
{
    const struct er_resume_record records[3] = {at_step(9, 0), at_step(4, 0), at_step(9, 0)};
    const struct er_reshard_held held[3] = {{1, {{2, 0}}}, {1, {{2, 1}}}, {1, {{2, 1}}}};
    const uint32_t live[3] = {1, 1, 1};
    struct er_reshard_held reach[3];
    struct er_resume_step steps[3];
    int32_t memory[4 * ER_RESHARD_HELD_MAX];
    const struct er_resume_shards shards = {units, held, live, reach, memory};
    struct er_resume_plan plan = er_resume_plan_shards(records, 3, &shards, steps);

    cr_expect(plan.source == 0 && plan.applied == 9);
    cr_expect(steps[1].action == ER_RESUME_FETCH && reach[1].n == 0);
}
