#include "trainer/reshard.h"

#include <assert.h>
#include <string.h>

bool er_shard_same(struct er_shard a, struct er_shard b)
{
    return a.size == b.size && a.index == b.index;
}

size_t er_shard_elements(size_t elements, uint32_t size)
{
    size_t together = (size_t)ER_SHARD_LINE * size;

    return (elements + together - 1) / together * ER_SHARD_LINE;
}

size_t er_shard_range(size_t elements, struct er_shard shard, size_t *ret_first)
{
    size_t n = er_shard_elements(elements, shard.size), first = n * shard.index;

    *ret_first = first < elements ? first : elements;
    return first + n < elements ? n : elements - *ret_first;
}

/* ---- who holds what ---- */

bool er_reshard_held_ok(const struct er_reshard_held *held)
{
    if (held->n > ER_RESHARD_HELD_MAX)
        return false;
    for (uint32_t i = 0; i < held->n; i++) {
        const struct er_shard *shard = &held->shards[i];

        if (shard->size == 0 || shard->size > ER_RESHARD_RANKS_MAX || shard->index >= shard->size)
            return false;
    }
    return true;
}

/* Different divisions, in the order in which they come. */
static size_t list_sizes(const struct er_reshard_held *held, int ranks_n,
                         uint32_t ret[ER_RESHARD_SIZES_MAX])
{
    size_t n = 0;

    for (int rank = 0; rank < ranks_n; rank++) {
        for (uint32_t i = 0; i < held[rank].n; i++) {
            size_t at = 0;

            while (at < n && ret[at] != held[rank].shards[i].size)
                at++;
            if (at == n && n < ER_RESHARD_SIZES_MAX)
                ret[n++] = held[rank].shards[i].size;
        }
    }
    return n;
}

/* A size that is not among the largest yet takes the place of the least of them. */
static size_t take_size(uint32_t largest[ER_RESHARD_SIZES_MAX], size_t n, uint32_t size)
{
    size_t least = 0;

    for (size_t i = 0; i < n; i++) {
        if (largest[i] == size)
            return n;
        if (largest[i] < largest[least])
            least = i;
    }
    if (n < ER_RESHARD_SIZES_MAX)
        largest[n++] = size;
    else if (size > largest[least])
        largest[least] = size;
    return n;
}

/* Enough for any part of it as well, whose first divisions may be others: as for the largest. */
size_t er_reshard_memory_n(const struct er_reshard_held *held, int ranks_n)
{
    uint32_t sizes[ER_RESHARD_SIZES_MAX];
    size_t n = (size_t)ranks_n * ER_RESHARD_HELD_MAX, sizes_n = 0;

    for (int rank = 0; rank < ranks_n; rank++) {
        for (uint32_t i = 0; i < held[rank].n; i++)
            sizes_n = take_size(sizes, sizes_n, held[rank].shards[i].size);
    }
    for (size_t i = 0; i < sizes_n; i++)
        n += sizes[i];
    return n;
}

/* The last rank comes first: a chain is walked upwards. */
static void enter(struct er_reshard *r, int rank, uint32_t which)
{
    struct er_shard shard = r->held[rank].shards[which];
    int32_t holder = rank * ER_RESHARD_HELD_MAX + (int32_t)which;

    for (size_t i = 0; i < r->sizes_n; i++) {
        if (r->sizes[i] != shard.size || shard.index >= shard.size)
            continue;
        r->next[holder] = r->first[i][shard.index];
        r->first[i][shard.index] = holder;
    }
}

void er_reshard_init(struct er_reshard *r, struct er_reshard_units units,
                     const struct er_reshard_held *held, int ranks_n, int32_t *memory)
{
    *r = (struct er_reshard){.units = units, .held = held, .ranks_n = ranks_n, .next = memory};
    r->sizes_n = list_sizes(held, ranks_n, r->sizes);
    memset(memory, 0xff, er_reshard_memory_n(held, ranks_n) * sizeof(*memory)); /* -1 */
    memory += (size_t)ranks_n * ER_RESHARD_HELD_MAX;
    for (size_t i = 0; i < r->sizes_n; i++) {
        r->first[i] = memory;
        memory += r->sizes[i];
    }
    for (int rank = ranks_n; rank-- > 0;) {
        for (uint32_t i = held[rank].n; i-- > 0;)
            enter(r, rank, i);
    }
}

/* A place in a unit, and the holders of one division that have it. */
struct place {
    struct er_shard shard;
    size_t end; /* of the shard's part of the unit */
    int32_t first;
};

/* The i-th division at `element`. */
static struct place place_of(const struct er_reshard *r, size_t i, size_t unit, size_t element)
{
    size_t elements = r->units.elements[unit], first;
    struct place p = {.shard.size = r->sizes[i]};

    p.shard.index = (uint32_t)(element / er_shard_elements(elements, p.shard.size));
    p.end = er_shard_range(elements, p.shard, &first);
    p.end += first;
    p.first = r->first[i][p.shard.index];
    return p;
}

bool er_reshard_covers(const struct er_reshard *r, size_t *ret_unit, size_t *ret_element)
{
    for (size_t unit = 0; unit < r->units.n; unit++) {
        for (size_t at = 0; at < r->units.elements[unit];) {
            size_t end = at;

            for (size_t i = 0; i < r->sizes_n; i++) {
                struct place p = place_of(r, i, unit, at);

                if (p.first >= 0 && p.end > end)
                    end = p.end;
            }
            if (end == at) {
                if (ret_unit)
                    *ret_unit = unit;
                if (ret_element)
                    *ret_element = at;
                return false;
            }
            at = end;
        }
    }
    return true;
}

/* ---- copies ---- */

int er_shadow_shift(const uint32_t *nodes, int n)
{
    int most = 0, run = 0;

    for (int i = 0; i < n; i++) {
        run = i > 0 && nodes[i] == nodes[i - 1] ? run + 1 : 1;
        most = run > most ? run : most;
    }
    if (n < 2)
        return 0;
    return most < n ? most : 1; /* all on one: at least in another process */
}

/* ---- moves ---- */

static int rank_of(int32_t holder)
{
    return holder / ER_RESHARD_HELD_MAX;
}

/* Whether `rank` is among the holders of this place. */
static bool is_near(const struct er_reshard *r, const struct place *p, int rank)
{
    for (int32_t h = p->first; h >= 0; h = r->next[h]) {
        if (rank_of(h) == rank)
            return true;
    }
    return false;
}

/* One of all who hold it, by turns. */
static int one_of(const struct er_reshard *r, const struct place *p, size_t turn)
{
    int32_t h = p->first;
    size_t n = 0;

    for (; h >= 0; h = r->next[h])
        n++;
    turn %= n;
    for (h = p->first; turn > 0; turn--)
        h = r->next[h];
    return rank_of(h);
}

/* Who gives what lies at `element` to `to`: itself if it can, in whatever division. */
static struct place choose(const struct er_reshard *r, size_t unit, size_t element, int to,
                           int *ret_from)
{
    struct place chosen = {.first = -1};

    for (size_t i = 0; i < r->sizes_n; i++) {
        struct place p = place_of(r, i, unit, element);

        if (is_near(r, &p, to)) {
            *ret_from = to;
            return p;
        }
        if (p.first >= 0 && chosen.first < 0)
            chosen = p;
    }
    assert(chosen.first >= 0);
    *ret_from = one_of(r, &chosen, (size_t)to + unit);
    return chosen;
}

static int move_range(const struct er_reshard *r, struct er_reshard_move *move,
                      struct er_shard wanted, er_reshard_fn fn, void *user, struct er_error *err)
{
    size_t at, end;
    int rc = 0;

    end = er_shard_range(r->units.elements[move->unit], wanted, &at);
    end += at;
    while (at < end && rc == 0) {
        struct place p = choose(r, move->unit, at, move->to, &move->from);

        move->shard = p.shard;
        move->first = at;
        move->count = (p.end < end ? p.end : end) - at;
        rc = fn(user, move, err);
        at += move->count;
    }
    return rc;
}

int er_reshard_moves(const struct er_reshard *r, int shift, er_reshard_fn fn, void *user,
                     struct er_error *err)
{
    int targets = shift > 0 ? 2 : 1, rc = 0;

    for (size_t unit = 0; unit < r->units.n; unit++) {
        for (int i = 0; i < r->ranks_n * targets && rc == 0; i++) {
            int to = i / targets, of = i % targets ? (to + shift) % r->ranks_n : to;
            struct er_shard wanted = {(uint32_t)r->ranks_n, (uint32_t)of};
            struct er_reshard_move move = {.unit = unit, .to = to};

            move.target = i % targets ? ER_RESHARD_SHADOW : ER_RESHARD_OWN;
            rc = move_range(r, &move, wanted, fn, user, err);
        }
    }
    return rc;
}
