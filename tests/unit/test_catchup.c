#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "trainer/catchup.h"

static const size_t SIZES[] = {100, 64, 4, 70000, 0, 12, 1 << 20, 8};
static const struct er_catchup_state STATE = {SIZES, ER_ARRAY_N(SIZES), 1};

Test(catchup, slices_follow_each_other_to_the_end)
{
    for (int learners = 1; learners <= 24; learners++) {
        uint64_t at = 0, total = er_catchup_total(&STATE);
        int slices = 0;

        while (at < total) {
            uint64_t end = er_catchup_slice_end(&STATE, at, learners);

            cr_assert(end > at && end <= total);
            at = end;
            slices++;
        }
        cr_expect_leq(slices, ER_CATCHUP_SLICES + (int)STATE.n);
    }
}

/* Each byte goes once from one rank, and nobody has too many transfers at once. */
static void send_all(int learners, int stripes, const size_t *sizes, size_t n, size_t blocks)
{
    const struct er_catchup_state state = {sizes, n, blocks};
    uint64_t total = er_catchup_total(&state), at = 0;
    ER_CLEANUP(er_cleanup_free) unsigned char *sent = calloc(total, 1);

    while (at < total) {
        uint64_t end = er_catchup_slice_end(&state, at, learners), from = at;
        int received = 0;

        for (int s = 0; s < stripes; s++) {
            uint64_t to = er_catchup_stripe_end(at, end, s, stripes);
            int given = 0;

            cr_assert(to >= from && to <= end);
            while (from < to) {
                struct er_catchup_piece p = er_catchup_piece_at(&state, from, to);
                uint64_t before = 0;

                cr_assert(p.bytes > 0 && p.first + p.bytes <= sizes[p.part]);
                for (size_t i = 0; i < p.part; i++)
                    before += sizes[i];
                cr_assert_eq(before + p.first, from);
                for (size_t i = 0; i < p.bytes; i++)
                    cr_assert_eq(sent[from + i]++, 0);
                from += p.bytes;
                given++;
            }
            cr_assert_leq(given * learners * (int)blocks, ER_CATCHUP_OPS_MAX);
            received += given;
        }
        cr_assert_eq(from, end);
        cr_assert_leq(received * (int)blocks, ER_CATCHUP_OPS_MAX);
        at = end;
    }
}

Test(catchup, each_byte_is_sent_once_in_stripes)
{
    static size_t many[300];

    for (size_t i = 0; i < ER_ARRAY_N(many); i++)
        many[i] = 4 + i % 7 * 40;
    for (int stripes = 1; stripes <= ER_CATCHUP_STRIPES_MAX; stripes++) {
        for (int learners = 1; learners <= 8; learners++) {
            send_all(learners, stripes, SIZES, STATE.n, 3);
            send_all(learners, stripes, many, ER_ARRAY_N(many), 3);
        }
        send_all(24, stripes, SIZES, STATE.n, 1);
    }
}

Test(catchup, a_small_state_is_copied_at_once_unless_asked_otherwise)
{
    static const size_t large[] = {ER_CATCHUP_MIN_BYTES / 2};

    cr_expect(!er_catchup_pays(&STATE, 1, false));
    cr_expect(er_catchup_pays(&STATE, 1, true));
    cr_expect(er_catchup_pays(&(struct er_catchup_state){large, 1, 2}, 1, false));
    cr_expect(!er_catchup_pays(&STATE, 0, true));
    cr_expect(er_catchup_pays(&STATE, 24, true));
    cr_expect(!er_catchup_pays(&STATE, 25, true));
    cr_expect(!er_catchup_pays(&(struct er_catchup_state){large, 1, 3}, 9, true));
    cr_expect(!er_catchup_pays(&(struct er_catchup_state){large, 0, 0}, 1, true));
}

Test(catchup, values_and_states_of_an_element_travel_together)
{
    static const char *const flat[] = {"a.w", "a.b", "optim.m.a.w", "optim.m.a.b"};
    static const char *const own[] = {"w", "w.momentum"}, *const alike[] = {"w1", "w10", "w11"};
    static const size_t bytes[] = {8, 64, 8, 64}, equal[] = {8, 8, 8, 8};
    struct er_catchup_state state = er_catchup_state_of(flat, bytes, 4);

    cr_expect(state.n == 2 && state.blocks == 2);
    state = er_catchup_state_of(flat, equal, 4);
    cr_expect(state.n == 2 && state.blocks == 2);
    state = er_catchup_state_of(own, equal, 2);
    cr_expect(state.n == 1 && state.blocks == 2);
    state = er_catchup_state_of(own, bytes, 2); /* of another type, say */
    cr_expect(state.n == 2 && state.blocks == 1);
    state = er_catchup_state_of(alike, equal, 3);
    cr_expect(state.n == 3 && state.blocks == 1);
    state = er_catchup_state_of(own, equal, 0);
    cr_expect(state.n == 0 && state.blocks == 0);
}
