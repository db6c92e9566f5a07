#include "trainer/ps_plan.h"

#include <stdint.h>

#include "trainer/flat.h"

struct er_ps_extent er_ps_extent_of(size_t elements, int index, int servers)
{
    const size_t line = ER_FLAT_ALIGN / sizeof(float);
    size_t lines = elements / line, n = (size_t)servers, i = (size_t)index;
    size_t first = lines * i / n * line;

    return (struct er_ps_extent){.first = first, .count = lines * (i + 1) / n * line - first};
}

static size_t end_of(const struct er_ps_extent *extent)
{
    return extent->first + extent->count;
}

static bool is_newer(const struct er_ps_held *a, const struct er_ps_held *b)
{
    return a->lineage != b->lineage ? a->lineage > b->lineage : a->updates > b->updates;
}

static bool same_state(const struct er_ps_held *a, const struct er_ps_held *b)
{
    return a->lineage == b->lineage && a->updates == b->updates;
}

/* The piece of `held` with the element; NULL: none. What came over the wire is not trusted. */
static const struct er_ps_extent *piece_with(const struct er_ps_held *held, size_t element)
{
    uint32_t n = held->n < ER_PS_PIECES_MAX ? held->n : ER_PS_PIECES_MAX;

    for (uint32_t i = 0; i < n; i++) {
        const struct er_ps_extent *piece = &held->piece[i];

        if (element >= piece->first && element - piece->first < piece->count &&
            piece->count <= SIZE_MAX - piece->first)
            return piece;
    }
    return NULL;
}

/* Who gives an element to `to`: itself, else the next rank that can. -1: nobody. */
static int giver(const struct er_ps_held *held, int n, int source, int to, size_t element)
{
    for (int i = 0; i < n; i++) {
        int rank = (to + i) % n;

        if (same_state(&held[rank], &held[source]) && piece_with(&held[rank], element))
            return rank;
    }
    return -1;
}

/* The end of the stretch from `element` on, at most `end`, that `from` gives to `to`: what `to` has
 * itself is its own. */
static size_t stretch(const struct er_ps_held *held, int source, int from, int to, size_t element,
                      size_t end)
{
    size_t last = end_of(piece_with(&held[from], element));
    bool useful = from != to && same_state(&held[to], &held[source]);

    last = last < end ? last : end;
    for (uint32_t i = 0; useful && i < held[to].n && i < ER_PS_PIECES_MAX; i++) {
        size_t own = held[to].piece[i].first;

        if (held[to].piece[i].count > 0 && own > element && own < last)
            last = own;
    }
    return last;
}

int er_ps_plan_source(const struct er_ps_held *held, int n, size_t elements)
{
    int source = -1;

    for (int i = 0; i < n; i++) {
        if (held[i].lineage > 0 && (source < 0 || is_newer(&held[i], &held[source])))
            source = i;
    }
    for (size_t at = 0; source >= 0 && at < elements;) {
        int from = giver(held, n, source, source, at);

        if (from < 0)
            return -1;
        at = end_of(piece_with(&held[from], at));
    }
    return source;
}

int er_ps_plan_moves(const struct er_ps_held *held, int n, int source, size_t elements, int servers,
                     er_ps_move_fn move, void *user, struct er_error *err)
{
    int rc = 0;

    for (int to = 0; to < servers; to++) {
        struct er_ps_extent want = er_ps_extent_of(elements, to, servers);

        for (size_t at = want.first, end = end_of(&want); at < end && rc == 0;) {
            int from = giver(held, n, source, to, at);
            size_t last;

            if (from < 0)
                return er_error_set(err, ER_E_CORRUPT, "nobody holds element %zu", at);
            last = stretch(held, source, from, to, at, end);
            rc = move(user, &(struct er_ps_move){from, to, {at, last - at}}, err);
            at = last;
        }
    }
    return rc;
}

int er_ps_plan_takers(const uint8_t *stays, int size, int servers, int *from, int *to)
{
    int stayers = 0, leavers = 0, taker = -1;

    for (int i = 0; i < size; i++)
        stayers += stays[i] != 0;
    for (int i = 0; i < servers && stayers > 0; i++) {
        if (stays[i])
            continue;
        do {
            taker = (taker + 1) % size;
        } while (!stays[taker]);
        from[leavers] = i;
        to[leavers++] = taker;
    }
    /* Each has its own server's part beside. */
    if (stayers == 0 || leavers > stayers * (ER_PS_PIECES_MAX - 1))
        return -1;
    return leavers;
}
