/* A state that is divided over the ranks: from one generation to the next. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "trainer/train_recovery_internal.h"

ER_CLEANUP_FOR(er_hasher_free, struct er_hasher)

int er_train_shards_open(struct er_train *train, struct er_error *err)
{
    int rc;

    if (train->fsdp)
        return er_fsdp_rejoin(train->fsdp, train->wire, err);
    rc = er_train_callback_rc(train->ops->shard(train->user, train->wire, &train->fsdp, err),
                              "shard()", err);
    if (rc < 0) /* half-made: the process begins anew */
        train->rejoins = false;
    train->shards.fsdp = train->fsdp;
    return rc;
}

/* The pieces may be others. */
static int look_again(struct er_train *train, struct er_error *err)
{
    int rc;

    if (train->fsdp->listed)
        return 0;
    train->layout = er_fsdp_layout(train->fsdp);
    er_train_mirror_close(train);
    train->ops->state(train->user, &train->state, &train->state_n);
    rc = er_train_mirror_open(train, err);
    if (rc == 0)
        rc = er_train_scaler_open(train, err);
    if (rc < 0)
        return rc;
    if (!train->fsdp->listed)
        return er_error_set(err, ER_E_USAGE,
                            "state() gave pieces of a former generation: with shard() it is to ask "
                            "er_fsdp_slices() each time it is called");
    return 0;
}

int er_train_shards_empty(struct er_train *train, struct er_error *err)
{
    int rc = er_shards_empty(&train->shards, err);

    return rc < 0 ? er_error_wrap(err, rc, "shards of another generation") : look_again(train, err);
}

int er_train_shards_shadow(struct er_train *train, struct er_error *err)
{
    int rc = train->fsdp ? er_shards_shadow(&train->shards, train->shift, err) : 0;

    return rc < 0 ? er_error_wrap(err, rc, "second copies of shards") : 0;
}

int er_train_shards_apply(struct er_train *train, uint64_t step, const struct er_vote *vote,
                          struct er_error *err)
{
    int rc;

    if (!train->fsdp || !er_fsdp_turn(train->fsdp))
        return 0;
    rc = er_train_callback_rc(train->ops->apply(train->user, step, vote, err), "apply()", err);
    er_fsdp_turn(train->fsdp);
    return rc;
}

/* ---- a generation begins ---- */

/* Names and sizes, which do not depend on how many ranks there are. */
static int digest_model(const struct er_fsdp *f, uint64_t *ret, struct er_error *err)
{
    ER_CLEANUP(er_hasher_free_cleanup) struct er_hasher *hasher = er_hasher_new();
    const struct er_flat *flat = f->plan.flat;

    if (!hasher)
        return er_error_set(err, -ENOMEM, "digest of the model");
    for (size_t u = 0; u < f->plan.units_n; u++) {
        const struct er_fsdp_unit *unit = &f->plan.units[u];

        er_hasher_add(hasher, unit->name, strlen(unit->name) + 1);
        er_hasher_add(hasher, &unit->elements, sizeof(unit->elements));
    }
    for (size_t i = 0; i < flat->states_n; i++)
        er_hasher_add(hasher, flat->state_names[i], strlen(flat->state_names[i]) + 1);
    *ret = er_hasher_get(hasher).lo;
    return 0;
}

int er_train_shards_tell(const struct er_train *train, struct er_train_record *ret,
                         struct er_error *err)
{
    ret->shadow = train->opts->shadow;
    ret->node = (uint32_t)er_world(train->ctx)->node_rank;
    if (train->held.state)
        ret->held = er_shards_list(&train->shards, &ret->held_live);
    return digest_model(train->fsdp, &ret->model, err);
}

static int check_same(const struct er_train_recovery *r, struct er_error *err)
{
    for (int i = 1; i < r->train->size; i++) {
        if (r->records[i].model != r->records[0].model)
            return er_error_set(err, ER_E_MISMATCH,
                                "rank %d has other units of sharded parameters than rank 0", i);
        if (r->records[i].shadow != r->records[0].shadow)
            return er_error_set(err, ER_E_MISMATCH,
                                "rank %d has another option 'shadow' than rank 0", i);
    }
    for (int i = 0; i < r->train->size; i++) {
        if (!er_reshard_held_ok(&r->records[i].held))
            return er_error_set(err, ER_E_PROTOCOL, "rank %d says that it holds impossible shards",
                                i);
    }
    return 0;
}

static int choose_shift(struct er_train_recovery *r, struct er_error *err)
{
    struct er_train *train = r->train;
    ER_CLEANUP(er_cleanup_free)
    uint32_t *nodes = calloc((size_t)train->size, sizeof(*nodes));

    if (!nodes)
        return er_error_set(err, -ENOMEM, "nodes of %d ranks", train->size);
    for (int i = 0; i < train->size; i++)
        nodes[i] = r->records[i].node;
    train->shift = train->opts->shadow ? er_shadow_shift(nodes, train->size) : 0;
    return 0;
}

int er_train_shards_plan(struct er_train_recovery *r, struct er_error *err)
{
    size_t n = (size_t)r->train->size;
    ER_CLEANUP(er_cleanup_free) struct er_reshard_held *held = calloc(n, sizeof(*held));
    ER_CLEANUP(er_cleanup_free) uint32_t *live = calloc(n, sizeof(*live));
    struct er_resume_shards shards = {.held = held, .held_live = live};
    int rc = check_same(r, err);

    if (rc == 0)
        rc = choose_shift(r, err);
    if (rc == 0)
        rc = er_shards_units(r->train->fsdp, &r->units, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; held && live && i < n; i++) {
        held[i] = r->records[i].held;
        live[i] = r->records[i].held_live;
    }
    r->reach = calloc(n, sizeof(*r->reach));
    if (held)
        r->memory = calloc(er_reshard_memory_n(held, (int)n), sizeof(*r->memory));
    if (!live || !r->reach || !r->memory)
        return er_error_set(err, -ENOMEM, "shards of %zu ranks", n);
    shards.units = r->units;
    shards.reach = r->reach;
    shards.memory = r->memory;
    r->plan = er_resume_plan_shards(r->resume, (int)n, &shards, r->steps);
    return 0;
}

int er_train_shards_bring(struct er_train_recovery *r, struct er_error *err)
{
    struct er_train *train = r->train;
    struct er_reshard plan;
    int rc = 0;

    if (r->steps[train->rank].action == ER_RESUME_FETCH) { /* what it has is of no use */
        train->held.state = false;
        rc = er_train_shards_empty(train, err);
    }
    if (rc < 0)
        return rc;
    er_reshard_init(&plan, r->units, r->reach, train->size, r->memory);
    rc = er_shards_bring(&train->shards, &plan, train->shift, err);
    return rc < 0 ? er_error_wrap(err, rc, "state of step %lu", (unsigned long)r->plan.applied) : 0;
}

int er_train_shards_switch(struct er_train *train, struct er_error *err)
{
    int rc = er_shards_switch(&train->shards, train->shift, err);

    return rc < 0 ? rc : look_again(train, err);
}

/* ---- ranks leave ---- */

struct leaving {
    uint8_t *stays; /* of each rank, owned, as everything here */
    int *from, *to; /* whose shard goes to whom */
    size_t n;
};

static void leaving_done(struct leaving *l)
{
    free(l->stays);
    free(l->from);
    free(l->to);
}

/* A rank that leaves gives its shard to the next one that stays, by turns, unless its keeper stays.
 * False: somebody would have to hold too many. */
static bool choose_takers(const struct er_train *train, struct leaving *l)
{
    int size = train->size, to = -1, leavers = 0, stayers = 0;

    for (int i = 0; i < size; i++) {
        int keeper = (i + size - train->shift) % size;

        stayers += l->stays[i];
        if (l->stays[i] || (train->shift > 0 && l->stays[keeper]))
            continue;
        leavers++;
        do {
            to = (to + 1) % size;
        } while (!l->stays[to]);
        l->from[l->n] = i;
        l->to[l->n++] = to;
    }
    return leavers <= stayers * (ER_SHARDS_SPARES_MAX / 2);
}

static int gather_stays(struct er_train *train, struct leaving *l, struct er_error *err)
{
    size_t size = (size_t)train->size;
    uint8_t mine = train->policy.told == ER_NOTICE_REJOIN;

    l->stays = calloc(size, 1);
    l->from = calloc(size, sizeof(*l->from));
    l->to = calloc(size, sizeof(*l->to));
    if (!l->stays || !l->from || !l->to)
        return er_error_set(err, -ENOMEM, "who stays of %zu ranks", size);
    return er_sync_gather(train->comm, &mine, 1, l->stays, err);
}

int er_train_shards_hand_over(struct er_train *train, enum er_train_ending ending,
                              struct er_error *err)
{
    struct leaving l = {0};
    int rc = gather_stays(train, &l, err);

    if (rc == 0 && choose_takers(train, &l))
        rc = l.n > 0 ? er_shards_hand_over(&train->shards, l.from, l.to, l.n, err) : 0;
    else if (rc == 0 && train->ckpt) /* from where all begin then */
        rc = er_train_save(train, ending, err);
    leaving_done(&l);
    return rc;
}
