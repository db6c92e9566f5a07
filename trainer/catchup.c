#include "trainer/catchup.h"

#include <string.h>

static bool has_period(const size_t *bytes, size_t n, size_t period)
{
    for (size_t i = period; i < n; i++) {
        if (bytes[i] != bytes[i - period])
            return false;
    }
    return true;
}

/* `of` is a whole run of components of `name`: "a.b" of "optim.a.b", not of "optim.a.bc". */
static bool is_of(const char *name, const char *of)
{
    size_t n = strlen(of);

    for (const char *at = strstr(name, of); at; at = strstr(at + 1, of)) {
        if ((at == name || at[-1] == '.') && (at[n] == '\0' || at[n] == '.'))
            return true;
    }
    return false;
}

struct er_catchup_state er_catchup_state_of(const char *const *names, const size_t *bytes,
                                            size_t parts_n)
{
    struct er_catchup_state state = {.bytes = bytes, .n = parts_n, .blocks = parts_n > 0};
    size_t blocks = 0;

    for (size_t i = 0; i < parts_n; i++)
        blocks += is_of(names[i], names[0]);
    if (blocks == 0 || parts_n % blocks != 0 || !has_period(bytes, parts_n, parts_n / blocks))
        return state;
    state.n = parts_n / blocks;
    state.blocks = blocks;
    return state;
}

uint64_t er_catchup_total(const struct er_catchup_state *state)
{
    uint64_t total = 0;

    for (size_t i = 0; i < state->n; i++)
        total += state->bytes[i];
    return total;
}

bool er_catchup_pays(const struct er_catchup_state *state, int learners, bool always)
{
    uint64_t total = er_catchup_total(state) * state->blocks;

    /* At least one piece a step. */
    return learners > 0 &&
           state->blocks * (size_t)learners <= ER_CATCHUP_OPS_MAX / (ER_CATCHUP_STRIPES_MAX + 1) &&
           total > 0 && (always || total >= ER_CATCHUP_MIN_BYTES);
}

struct er_catchup_piece er_catchup_piece_at(const struct er_catchup_state *state, uint64_t at,
                                            uint64_t end)
{
    struct er_catchup_piece piece = {0};
    uint64_t left = end - at;

    while (piece.part < state->n && at >= state->bytes[piece.part])
        at -= state->bytes[piece.part++];
    if (piece.part == state->n)
        return piece;
    piece.first = (size_t)at;
    piece.bytes = state->bytes[piece.part] - piece.first;
    if (piece.bytes > left)
        piece.bytes = (size_t)left;
    return piece;
}

uint64_t er_catchup_slice_end(const struct er_catchup_state *state, uint64_t at, int learners)
{
    uint64_t total = er_catchup_total(state), end;
    uint64_t bytes = (total + ER_CATCHUP_SLICES - 1) / ER_CATCHUP_SLICES;
    size_t times = state->blocks * (size_t)(learners > 0 ? learners : 1);
    /* A stripe's border cuts a piece in two. */
    size_t pieces = ER_CATCHUP_OPS_MAX / times - ER_CATCHUP_STRIPES_MAX;

    bytes = (bytes + ER_CATCHUP_ALIGN - 1) / ER_CATCHUP_ALIGN * ER_CATCHUP_ALIGN;
    end = total - at < bytes ? total : at + bytes;
    for (; at < end && pieces > 0; pieces--)
        at += er_catchup_piece_at(state, at, end).bytes;
    return at;
}

uint64_t er_catchup_stripe_end(uint64_t at, uint64_t end, int which, int stripes)
{
    uint64_t each = (end - at + (uint64_t)stripes - 1) / (uint64_t)stripes;

    each = (each + ER_CATCHUP_ALIGN - 1) / ER_CATCHUP_ALIGN * ER_CATCHUP_ALIGN;
    at += each * ((uint64_t)which + 1);
    return at < end ? at : end;
}
