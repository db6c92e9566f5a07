#include "trainer/train_catchup.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "trainer/train_internal.h"

ER_CLEANUP_FOR(er_hasher_free, struct er_hasher)

void er_train_catchup_drop(struct er_train *train)
{
    struct er_train_catchup *c = &train->catchup;

    free(c->learns);
    free(c->holders);
    free(c->parts);
    free(c->bytes);
    free(c->all);
    *c = (struct er_train_catchup){0};
}

static int list_ranks(struct er_train_catchup *c, const bool *learns, size_t size,
                      struct er_error *err)
{
    c->learns = calloc(size, sizeof(*c->learns));
    c->holders = calloc(size, sizeof(*c->holders));
    c->all = calloc(size, sizeof(*c->all));
    if (!c->learns || !c->holders || !c->all)
        return er_error_set(err, -ENOMEM, "newcomers of %zu ranks", size);
    for (size_t i = 0; i < size; i++) {
        c->learns[i] = learns[i];
        if (learns[i])
            c->learners_n++;
        else
            c->holders[c->holders_n++] = (int)i;
    }
    return 0;
}

/* Names and sizes, as the plan wants them. */
static int list_parts(struct er_train_catchup *c, struct er_sync_part *parts, size_t n,
                      struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) const char **names = calloc(n + 1, sizeof(*names));

    c->bytes = calloc(n + 1, sizeof(*c->bytes));
    if (!names || !c->bytes)
        return er_error_set(err, -ENOMEM, "list of %zu tensors", n);
    for (size_t i = 0; i < n; i++) {
        names[i] = parts[i].name;
        c->bytes[i] = parts[i].bytes;
    }
    c->state = er_catchup_state_of(names, c->bytes, n);
    c->total = er_catchup_total(&c->state);
    c->parts = parts;
    return 0;
}

int er_train_catchup_start(struct er_train *train, const bool *learns, struct er_sync_part *parts,
                           size_t n, bool always, struct er_error *err)
{
    struct er_train_catchup *c = &train->catchup;
    int rc;

    er_train_catchup_drop(train);
    rc = list_parts(c, parts, n, err);
    if (rc == 0)
        rc = list_ranks(c, learns, (size_t)train->size, err);
    if (rc == 0 && !er_catchup_pays(&c->state, c->learners_n, always)) {
        c->parts = NULL;
        er_train_catchup_drop(train);
        return 1;
    }
    if (rc == 0)
        rc = er_sync_same(train->comm, parts, n, err);
    if (rc == 0)
        train->held.state = !learns[train->rank];
    return rc;
}

/* ---- a step ---- */

static void *address(const struct er_train_catchup *c, size_t block,
                     const struct er_catchup_piece *piece)
{
    return (char *)c->parts[block * c->state.n + piece->part].ptr + piece->first;
}

static int send_or_receive(struct er_train *train, const struct er_catchup_piece *piece, int from,
                           int to, struct er_error *err)
{
    struct er_train_catchup *c = &train->catchup;
    int rc = 0;

    for (size_t block = 0; block < c->state.blocks && rc == 0; block++) {
        void *data = address(c, block, piece);

        rc = from == train->rank
                 ? er_send(train->comm, data, piece->bytes, ER_U8, to, &c->op[c->op_n], err)
                 : er_recv(train->comm, data, piece->bytes, ER_U8, from, &c->op[c->op_n], err);
        if (rc == 0)
            c->op_n++;
    }
    return rc;
}

/* One stripe from one of those who have it to all newcomers; other ranks have no part in it. */
static int move_stripe(struct er_train *train, uint64_t at, uint64_t end, int from,
                       struct er_error *err)
{
    const struct er_train_catchup *c = &train->catchup;
    int rc = 0;

    while (at < end && rc == 0) {
        struct er_catchup_piece piece = er_catchup_piece_at(&c->state, at, end);

        for (int to = 0; to < train->size && rc == 0; to++) {
            if (c->learns[to] && (from == train->rank || to == train->rank))
                rc = send_or_receive(train, &piece, from, to, err);
        }
        at += piece.bytes;
    }
    return rc;
}

/* Who sends goes round, so that every rank gives as much. */
static int move_slice(struct er_train *train, struct er_error *err)
{
    struct er_train_catchup *c = &train->catchup;
    int stripes = c->holders_n < ER_CATCHUP_STRIPES_MAX ? c->holders_n : ER_CATCHUP_STRIPES_MAX;
    uint64_t at = c->sent, turn = train->applied;
    int rc = er_group_begin(train->comm, err), end_rc;

    if (rc < 0)
        return rc;
    c->sending = er_catchup_slice_end(&c->state, c->sent, c->learners_n);
    for (int s = 0; s < stripes && rc == 0; s++) {
        uint64_t end = er_catchup_stripe_end(c->sent, c->sending, s, stripes);
        int from = c->holders[(turn * (uint64_t)stripes + (uint64_t)s) % (uint64_t)c->holders_n];

        rc = move_stripe(train, at, end, from, err);
        at = end;
    }
    end_rc = er_group_end(train->comm, rc < 0 ? NULL : err);
    return rc < 0 ? rc : end_rc;
}

/* What came in the step before, and has been updated since. */
static int begin_compare(struct er_train *train, struct er_error *err)
{
    ER_CLEANUP(er_hasher_free_cleanup) struct er_hasher *hasher = er_hasher_new();
    struct er_train_catchup *c = &train->catchup;

    if (!hasher)
        return er_error_set(err, -ENOMEM, "digest");
    for (uint64_t at = c->compared; at < c->sent;) {
        struct er_catchup_piece piece = er_catchup_piece_at(&c->state, at, c->sent);

        for (size_t block = 0; block < c->state.blocks; block++)
            er_hasher_add(hasher, address(c, block, &piece), piece.bytes);
        at += piece.bytes;
    }
    c->mine = er_hasher_get(hasher);
    return er_all_gather(train->comm, &c->mine, sizeof(c->mine), c->all, &c->compare, err);
}

int er_train_catchup_begin(struct er_train *train, struct er_error *err)
{
    struct er_train_catchup *c = &train->catchup;
    int rc = 0;

    if (c->learners_n == 0)
        return 0;
    c->op_n = 0;
    c->compare = NULL;
    c->sending = c->sent;
    if (c->compared < c->sent)
        rc = begin_compare(train, err);
    if (rc == 0 && c->sent < c->total)
        rc = move_slice(train, err);
    return rc < 0 ? er_error_wrap(err, rc, "state for newcomers") : 0;
}

static bool all_same(const struct er_train *train)
{
    const struct er_digest *all = train->catchup.all;

    for (int i = 1; i < train->size; i++) {
        if (!er_digest_equal(all[i], all[0]))
            return false;
    }
    return true;
}

static int tell_done(struct er_train *train, struct er_error *err)
{
    bool learned = train->catchup.learns[train->rank];
    char text[64];

    snprintf(text, sizeof(text), "%d ranks", train->catchup.holders_n);
    er_train_catchup_drop(train);
    train->held.state = true;
    return learned ? er_loaded(train->ctx, train->applied, text, "peer", "", err) : 0;
}

int er_train_catchup_end(struct er_train *train, struct er_error *err)
{
    struct er_train_catchup *c = &train->catchup;
    int rc = 0;

    if (c->learners_n == 0)
        return 0;
    /* They are done: the step's gradients came behind them. */
    for (size_t i = 0; i < c->op_n && rc == 0; i++)
        rc = er_op_wait(c->op[i], UINT64_MAX, err);
    if (rc == 0 && c->compare)
        rc = er_op_wait(c->compare, UINT64_MAX, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "state for newcomers");
    if (c->compare && !all_same(train)) /* an update that does not go element by element */
        return er_train_catchup_finish(train, err);
    if (c->compare)
        c->compared = c->sent;
    c->sent = c->sending;
    return c->compared == c->total ? tell_done(train, err) : 0;
}

int er_train_catchup_finish(struct er_train *train, struct er_error *err)
{
    struct er_train_catchup *c = &train->catchup;
    ER_CLEANUP(er_cleanup_free) struct er_sync_move *moves = NULL;
    size_t n = 0;
    int rc;

    if (c->learners_n == 0)
        return 0;
    moves = calloc((size_t)c->learners_n, sizeof(*moves));
    if (!moves)
        return er_error_set(err, -ENOMEM, "%d newcomers", c->learners_n);
    for (int to = 0; to < train->size; to++) {
        if (c->learns[to]) {
            moves[n] =
                (struct er_sync_move){.from = c->holders[n % (size_t)c->holders_n], .to = to};
            n++;
        }
    }
    rc = er_sync_moves(train->comm, c->parts, c->state.n * c->state.blocks, moves, n, err);
    return rc < 0 ? er_error_wrap(err, rc, "state for newcomers") : tell_done(train, err);
}

/* ---- samples ---- */

struct er_range er_train_range(const struct er_train *train)
{
    const struct er_train_catchup *c = &train->catchup;
    struct er_range range;
    int place = 0;

    if (c->learners_n == 0)
        return er_batch(&train->opts->plan, train->applied + 1, train->rank, train->size);
    for (int i = 0; i < c->holders_n && c->holders[i] < train->rank; i++)
        place++;
    if (!c->learns[train->rank])
        return er_batch(&train->opts->plan, train->applied + 1, place, c->holders_n);
    range = er_batch(&train->opts->plan, train->applied + 1, 0, c->holders_n);
    range.count = range.shards_n = 0;
    return range;
}
