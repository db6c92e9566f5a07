/*
 * Second copies of shards on real communicators: bit for bit those of their owners after every
 * step, whatever its passes, in plain, mixed and exact mode, wherever the copy is; and transfers
 * that were damaged are found.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "tests/lib/ranks.h"
#include "tests/lib/tap.h"
#include "trainer/half.h"
#include "trainer/optim.h"
#include "trainer/shards.h"
#include "trainer/shards_wire.h"
#include "trainer/sync.h"

enum { PARAMS = 4, UNITS = 3, STEPS = 5, RANKS_MAX = 4, EXACT_SHARDS = 6, ELEMENTS_MAX = 900 };

struct test {
    int size, shift;
    uint32_t passes;
    bool exact;
    enum er_dtype type; /* of gathered values and gradients */
    int rcs[RANKS_MAX];
    bool same[RANKS_MAX], differs; /* copies and owners; parameters and what they began with */
    size_t bytes, alone;           /* of a rank, with and without the copy */
    char text[ER_ERROR_TEXT_MAX];
};

static struct test *test; /* shared by the ranks */

struct model {
    struct er_flat_param table[PARAMS];
    struct er_flat flat;
    struct er_fsdp *fsdp;
    struct er_optim optim;
};

static void open_model(struct model *m)
{
    static const size_t counts[PARAMS] = {100, 7, 900, 33};
    static const char *const names[PARAMS] = {"a", "b", "c", "d"};

    m->optim = er_optim_adamw();
    er_flat_init(&m->flat, m->table, PARAMS, er_optim_state_names(m->optim.kind), 2);
    for (size_t p = 0; p < PARAMS; p++) {
        struct er_shape shape = er_shape_1d(counts[p]);

        er_tap_require(er_flat_add(&m->flat, names[p], &shape, NULL, NULL) == 0);
    }
}

static void first_values(void *user, size_t param, float *value)
{
    struct model *m = user;

    for (size_t i = 0; i < m->table[param].count; i++)
        value[i] = (float)((i * 37 + param) % 19) / 16 - 0.5f;
}

static int shard(struct model *m, struct er_comm *comm, struct er_error *err)
{
    struct er_fsdp_unit units[UNITS] = {{.name = "one", .params_n = 2},
                                        {.name = "two", .first = 2, .params_n = 1},
                                        {.name = "kept", .first = 3, .params_n = 1, .keep = true}};
    const struct er_fsdp_opts opts = {
        .passes = test->exact ? 0 : test->passes,
        .exact_shards = test->exact ? EXACT_SHARDS : 0,
        .exact_weight_max = 64,
        .param_dtype = test->type,
        .reduce_dtype = test->type,
    };
    int rc = er_fsdp_open(&m->fsdp, comm, &m->flat, units, UNITS, &opts, err);

    return rc < 0 ? rc : er_fsdp_fill(m->fsdp, first_values, m, err);
}

/* Gradients that differ from rank to rank, from pass to pass and from element to element. */
static void put_grads(struct er_fsdp *f, size_t param, uint64_t step, uint32_t pass)
{
    struct er_fsdp_gathered *u = &f->units[f->unit_of[param]];
    size_t at = er_fsdp_param_at(&f->plan, param), n = f->plan.flat->params[param].count;

    void *value = er_fsdp_at(u->value, test->type, at), *grad = er_fsdp_at(u->grad, test->type, at);
    float values[ELEMENTS_MAX], grads[ELEMENTS_MAX];

    er_half_convert(test->type, value, ER_F32, values, n);
    er_half_convert(test->type, grad, ER_F32, grads, n);
    for (size_t i = 0; i < n; i++)
        grads[i] += 0.01f * (float)((i * 13 + step * 7 + pass * 3 + (size_t)f->rank) % 23) +
                    0.1f * values[i];
    er_half_convert(ER_F32, grads, test->type, grad, n);
}

static int pass(struct er_fsdp *f, uint64_t step, uint32_t number, struct er_error *err)
{
    int rc = 0;

    for (size_t p = 0; p < PARAMS && rc == 0; p++)
        rc = er_fsdp_use(f, p, false, err);
    for (size_t p = PARAMS; p-- > 0 && rc == 0;) {
        rc = er_fsdp_use(f, p, true, err);
        if (rc == 0)
            put_grads(f, p, step, number);
    }
    return rc;
}

static void update(struct model *m, uint64_t step, double weight)
{
    struct er_optim_view view = er_fsdp_view(m->fsdp);

    er_tap_check(er_fsdp_take(m->fsdp, weight, NULL) == 0);
    er_optim_apply(&m->optim, &view, step, 1e-2, test->exact ? 1 : 1.0 / weight);
}

static int one_step(struct model *m, uint64_t step, struct er_error *err)
{
    struct er_vote vote = {.step = step, .weight = 8};
    int rc = 0;

    /* The first rank makes fewer passes than there are: the rest is made for it. */
    for (uint32_t p = m->fsdp->rank == 0; p < m->fsdp->opts.passes && rc == 0; p++)
        rc = pass(m->fsdp, step, p, err);
    if (rc == 0)
        rc = er_fsdp_finish(m->fsdp, &vote, err);
    if (rc < 0)
        return rc;
    update(m, step, vote.weight);
    if (!er_tap_check(er_fsdp_turn(m->fsdp)))
        return -1;
    update(m, step, vote.weight);
    er_fsdp_turn(m->fsdp);
    return 0;
}

static struct er_digest digest_of(const struct er_fsdp *f, float *const *block)
{
    struct er_hasher *hasher = er_hasher_new();
    size_t blocks[ER_FLAT_BLOCK_MAX], n = er_shard_blocks(f, blocks);
    struct er_digest digest;

    for (size_t i = 0; i < n; i++)
        er_hasher_add(hasher, block[blocks[i]], f->plan.total * sizeof(float));
    digest = er_hasher_get(hasher);
    er_hasher_free(hasher);
    return digest;
}

/* Everybody's own shard, and the copy of it. */
static int compare(const struct er_fsdp *f, bool *ret, struct er_error *err)
{
    struct er_digest mine[2] = {digest_of(f, f->block), digest_of(f, f->shadow->copy->block)};
    struct er_digest all[RANKS_MAX][2];
    int rc = er_sync_gather(f->comm, mine, sizeof(mine), all, err);

    for (int r = 0; r < test->size && rc == 0; r++)
        *ret &= er_digest_equal(all[(r + test->shift) % test->size][0], all[r][1]);
    return rc;
}

static int train(struct model *m, struct er_comm *comm, struct er_error *err)
{
    struct er_digest before;
    int rank = er_comm_rank(comm), rc = shard(m, comm, err);

    test->alone = rc == 0 ? er_fsdp_bytes(m->fsdp) : 0;
    if (rc == 0)
        rc = er_fsdp_shadow(m->fsdp, test->shift, err);
    if (rc < 0)
        return rc;
    before = digest_of(m->fsdp, m->fsdp->block);
    test->bytes = er_fsdp_bytes(m->fsdp);
    test->same[rank] = true;
    rc = compare(m->fsdp, &test->same[rank], err);
    for (uint64_t step = 1; step <= STEPS && rc == 0; step++) {
        rc = one_step(m, step, err);
        if (rc == 0)
            rc = compare(m->fsdp, &test->same[rank], err);
    }
    if (rank == 0)
        test->differs = !er_digest_equal(before, digest_of(m->fsdp, m->fsdp->block));
    return rc;
}

static int rank_main(struct er_ctx *ctx, void *user)
{
    static struct model m;
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;
    int rank = er_world(ctx)->rank, rc = er_comm_open(&comm, ctx, NULL, &err);

    if (rc == 0)
        rc = er_comm_wait_ready(comm, &err);
    open_model(&m);
    if (rc == 0)
        rc = train(&m, comm, &err);
    test->rcs[rank] = rc;
    if (rank == 0)
        snprintf(test->text, sizeof(test->text), "%s", err.text);
    er_comm_abort(comm);
    er_fsdp_close(m.fsdp);
    return 0;
}

static void run_as(int size, int shift, uint32_t passes, bool exact, enum er_dtype type)
{
    *test =
        (struct test){.size = size, .shift = shift, .passes = passes, .exact = exact, .type = type};
    er_ranks_run(size, rank_main, NULL, NULL);
}

static void run(int size, int shift, uint32_t passes, bool exact)
{
    run_as(size, shift, passes, exact, ER_F32);
}

static void copies_are_their_owners_bits(void)
{
    static const struct {
        int size, shift;
        uint32_t passes;
        bool exact;
        enum er_dtype type;
    } rows[] = {{2, 1, 1, false, ER_F32}, {3, 1, 1, false, ER_F32},  {3, 2, 2, false, ER_F32},
                {4, 2, 3, false, ER_F32}, {2, 1, 0, true, ER_F32},   {3, 1, 0, true, ER_F32},
                {4, 3, 0, true, ER_F32},  {2, 1, 1, false, ER_BF16}, {3, 2, 2, false, ER_F16}};

    test = er_ranks_shared(sizeof(*test));
    for (size_t i = 0; i < ER_ARRAY_N(rows); i++) {
        run_as(rows[i].size, rows[i].shift, rows[i].passes, rows[i].exact, rows[i].type);
        for (int r = 0; r < rows[i].size; r++) {
            if (!er_tap_check(test->rcs[r] == 0 && test->same[r]))
                er_tap_note("row %zu, rank %d: %s", i, r, test->text);
        }
        er_tap_check(test->differs);
    }
}

/* Values, gradients and two states of a shard; in exact mode its sums. */
static void a_copy_takes_what_it_says(void)
{
    size_t shard;

    test = er_ranks_shared(sizeof(*test));
    for (int exact = 0; exact < 2; exact++) {
        run(2, 1, 1, exact);
        shard = (112 + 16 + 912 + 48) / 2 * sizeof(float);
        er_tap_check(test->bytes - test->alone >= (exact ? 6 : 4) * shard);
        er_tap_check(test->bytes - test->alone <= (exact ? 6 : 4) * (shard + 3 * ER_FLAT_ALIGN));
    }
}

static void a_copy_of_ones_own_shard_is_refused(void)
{
    test = er_ranks_shared(sizeof(*test));
    run(2, 2, 1, false);
    er_tap_check(test->rcs[0] == ER_E_USAGE && test->rcs[1] == ER_E_USAGE);
    if (!er_tap_check(strstr(test->text, "rank + 2, of 2 ranks")))
        er_tap_note("%s", test->text);
}

/* What leaves is not what the sender took the digest of. */
static int damage(struct er_ctx *ctx, void *user)
{
    char data[1000] = "as it was";
    struct er_error err = ER_ERROR_INIT;
    struct er_shards_wire *wire = NULL;
    struct er_comm *comm = NULL;
    int rank = er_world(ctx)->rank, rc = er_comm_open(&comm, ctx, NULL, &err);

    if (rc == 0)
        rc = er_comm_wait_ready(comm, &err);
    if (rc == 0)
        rc = er_shards_wire_open(&wire, comm, er_engine_cpu(), &err);
    if (rc == 0 && rank == 0)
        rc = er_shards_wire_send(wire, data, sizeof(data), 1, &err);
    else if (rc == 0 && rank == 1)
        rc = er_shards_wire_recv(wire, data, sizeof(data), 0, &err);
    if (rank == 0 && test->differs)
        data[500] = 1;
    if (rc == 0)
        rc = er_shards_wire_check(wire, &err);
    test->rcs[rank] = rc;
    if (rank == 1)
        snprintf(test->text, sizeof(test->text), "%s", err.text);
    er_shards_wire_close(wire);
    er_comm_abort(comm);
    return 0;
}

static void a_damaged_transfer_is_found(void)
{
    test = er_ranks_shared(sizeof(*test));
    er_ranks_run(3, damage, NULL, NULL);
    er_tap_check(test->rcs[0] == 0 && test->rcs[1] == 0 && test->rcs[2] == 0);
    test->differs = true;
    er_ranks_run(3, damage, NULL, NULL);
    er_tap_check(test->rcs[0] == 0 && test->rcs[1] == ER_E_CORRUPT && test->rcs[2] == 0);
    if (!er_tap_check(strstr(test->text, "what came from rank 0 is not what it sent")))
        er_tap_note("%s", test->text);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"copies_are_their_owners_bits", copies_are_their_owners_bits, 0},
        {"a_copy_takes_what_it_says", a_copy_takes_what_it_says, 0},
        {"a_copy_of_ones_own_shard_is_refused", a_copy_of_ones_own_shard_is_refused, 0},
        {"a_damaged_transfer_is_found", a_damaged_transfer_is_found, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
