#include <criterion/criterion.h>

#include <stdlib.h>

#include "base/cleanup.h"
#include "trainer/reshard.h"

#define RANKS_MAX 6

static const size_t elements[] = {16, 48, 160, 16 * 23};
static const struct er_reshard_units units = {elements, ER_ARRAY_N(elements)};

static struct er_shard shard(int size, int index)
{
    return (struct er_shard){(uint32_t)size, (uint32_t)index};
}

static void give(struct er_reshard_held *held, struct er_shard s)
{
    held->shards[held->n++] = s;
}

Test(reshard, shards_cover_a_unit_at_any_size)
{
    for (size_t u = 0; u < units.n; u++) {
        for (int size = 1; size <= 9; size++) {
            size_t next = 0;

            for (int i = 0; i < size; i++) {
                size_t first, n = er_shard_range(elements[u], shard(size, i), &first);

                cr_assert(n == 0 || first == next);
                cr_assert_leq(n, er_shard_elements(elements[u], (uint32_t)size));
                cr_assert_eq(er_shard_elements(elements[u], (uint32_t)size) % ER_SHARD_LINE, 0);
                next += n;
            }
            cr_assert_eq(next, elements[u]);
        }
    }
}

/* What each target has been given of each line; whether givers hold what they give. */
struct ledger {
    const struct er_reshard_held *held;
    int shift, ranks_n;
    int given[RANKS_MAX][2][4][23];
    size_t elements[RANKS_MAX][2][4]; /* in all: lines are counted where they begin */
    size_t far;
};

static int note(void *user, const struct er_reshard_move *m, struct er_error *err)
{
    struct ledger *l = user;
    size_t first, n = er_shard_range(elements[m->unit], m->shard, &first);
    bool has = false;

    for (uint32_t i = 0; i < l->held[m->from].n; i++)
        has = has || er_shard_same(l->held[m->from].shards[i], m->shard);
    cr_assert(has && m->count > 0);
    cr_assert(m->first >= first && m->first + m->count <= first + n);
    for (size_t at = m->first; at < m->first + m->count; at += ER_SHARD_LINE)
        l->given[m->to][m->target][m->unit][at / ER_SHARD_LINE]++;
    l->elements[m->to][m->target][m->unit] += m->count;
    l->far += m->from != m->to ? m->count : 0;
    return 0;
}

static void expect_each_once(const struct ledger *l)
{
    for (int rank = 0; rank < l->ranks_n; rank++) {
        for (int t = 0; t < (l->shift > 0 ? 2 : 1); t++) {
            for (size_t u = 0; u < units.n; u++) {
                int of = t ? (rank + l->shift) % l->ranks_n : rank;
                size_t first, n = er_shard_range(elements[u], shard(l->ranks_n, of), &first);

                cr_assert_eq(l->elements[rank][t][u], n);
                for (size_t line = 0; line < elements[u] / ER_SHARD_LINE; line++) {
                    bool wanted = line * ER_SHARD_LINE >= first && line * ER_SHARD_LINE < first + n;

                    cr_assert_eq(l->given[rank][t][u][line], wanted);
                }
            }
        }
    }
}

/* *ret_far: elements that went from one rank to another. */
static bool move(const struct er_reshard_held *held, int n, int shift, size_t *ret_far)
{
    ER_CLEANUP(er_cleanup_free)
    int32_t *memory = calloc(er_reshard_memory_n(held, n), sizeof(*memory));
    struct ledger ledger = {.held = held, .shift = shift, .ranks_n = n};
    struct er_reshard r;

    er_reshard_init(&r, units, held, n, memory);
    if (!er_reshard_covers(&r, NULL, NULL))
        return false;
    cr_assert_eq(er_reshard_moves(&r, shift, note, &ledger, NULL), 0);
    expect_each_once(&ledger);
    if (ret_far)
        *ret_far = ledger.far;
    return true;
}

Test(reshard, every_element_arrives_once_from_any_size_at_any_other)
{
    for (int from = 1; from <= RANKS_MAX; from++) {
        for (int to = 1; to <= RANKS_MAX; to++) {
            struct er_reshard_held held[RANKS_MAX] = {{0}};

            for (int i = 0; i < from; i++) /* two shards each where ranks go */
                give(&held[i % to], shard(from, i));
            for (int shift = 0; shift < to; shift++)
                cr_assert(move(held, to, shift, NULL));
        }
    }
}

Test(reshard, nothing_travels_where_everything_is_there)
{
    struct er_reshard_held held[3] = {{0}};
    size_t far = 1;

    for (int i = 0; i < 3; i++) {
        give(&held[i], shard(3, i));
        give(&held[i], shard(3, (i + 1) % 3));
    }
    cr_expect(move(held, 3, 1, &far) && far == 0);
}

Test(reshard, a_newcomer_gets_its_shard_and_its_copy_alone)
{
    struct er_reshard_held held[3] = {{0}};
    size_t far, all = 0;

    for (int i = 0; i < 3; i += 2) {
        give(&held[i], shard(3, i));
        give(&held[i], shard(3, (i + 1) % 3));
    }
    cr_expect(move(held, 3, 1, &far));
    for (size_t u = 0; u < units.n; u++) {
        size_t first;

        all += er_shard_range(elements[u], shard(3, 1), &first);
        all += er_shard_range(elements[u], shard(3, 2), &first);
    }
    cr_expect_eq(far, all);
}

Test(reshard, a_shard_that_nobody_holds_is_told)
{
    struct er_reshard_held held[2] = {{0}};
    int32_t memory[64];
    struct er_reshard r;
    size_t unit = 99, element = 99;

    give(&held[0], shard(3, 0));
    give(&held[1], shard(3, 2));
    er_reshard_init(&r, units, held, 2, memory);
    cr_expect_not(er_reshard_covers(&r, &unit, &element));
    /* The first unit is a single line, which is shard 0's. */
    cr_expect(unit == 1 && element == 16);
}

Test(reshard, divisions_may_be_mixed)
{
    struct er_reshard_held held[3] = {{0}};

    give(&held[0], shard(2, 0));
    give(&held[1], shard(3, 1));
    give(&held[2], shard(3, 2));
    cr_expect(move(held, 3, 1, NULL));
    held[0].shards[0] = shard(3, 0);
    held[1].shards[0] = shard(2, 1);
    held[2].n = 0;
    cr_expect(!move(held, 3, 1, NULL)); /* the second third's first half */
}

Test(reshard, copies_are_on_other_nodes_where_there_are_any)
{
    static const struct {
        uint32_t nodes[6];
        int n, shift;
        bool elsewhere;
    } rows[] = {
        {{0}, 1, 0, false},
        {{0, 0, 0}, 3, 1, false},
        {{0, 1, 2}, 3, 1, true},
        {{0, 0, 1, 1}, 4, 2, true},
        {{0, 0, 1, 1, 2, 2}, 6, 2, true},
        {{0, 1, 1, 2, 2, 2}, 6, 3, true},
        {{0, 0, 0, 1}, 4, 3, false}, /* two of the three cannot */
    };

    for (size_t i = 0; i < ER_ARRAY_N(rows); i++) {
        int n = rows[i].n, shift = er_shadow_shift(rows[i].nodes, n);

        cr_expect_eq(shift, rows[i].shift, "row %zu: %d", i, shift);
        for (int r = 0; r < n && rows[i].elsewhere; r++)
            cr_expect_neq(rows[i].nodes[r], rows[i].nodes[(r + shift) % n]);
    }
}

/* The first divisions of what is left may be larger ones than those of the whole. */
Test(reshard, memory_of_all_is_enough_for_a_part)
{
    const struct er_reshard_held held[] = {
        {5, {{1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 0}}}, {2, {{100, 7}, {90, 7}}}, {1, {{2, 1}}}};
    size_t all = er_reshard_memory_n(held, 3);

    cr_expect_eq(all, 3 * ER_RESHARD_HELD_MAX + 100 + 90 + 5 + 4);
    for (unsigned left = 0; left < 8; left++) {
        struct er_reshard_held part[3];

        memcpy(part, held, sizeof(part));
        for (unsigned i = 0; i < 3; i++)
            part[i].n = left >> i & 1 ? part[i].n : 0;
        cr_expect(er_reshard_memory_n(part, 3) <= all);
    }
}

Test(reshard, impossible_shards_are_told_from_others)
{
    struct er_reshard_held held = {0};

    cr_assert(er_reshard_held_ok(&held));
    give(&held, shard(3, 2));
    give(&held, shard(1, 0));
    cr_assert(er_reshard_held_ok(&held));
    held.shards[1] = shard(0, 0);
    cr_assert_not(er_reshard_held_ok(&held));
    held.shards[1] = shard(3, 3);
    cr_assert_not(er_reshard_held_ok(&held));
    held.shards[1] = shard(INT32_MAX, 0);
    cr_assert_not(er_reshard_held_ok(&held));
    held.shards[1] = shard(3, 0);
    held.n = ER_RESHARD_HELD_MAX + 1;
    cr_assert_not(er_reshard_held_ok(&held));
}
