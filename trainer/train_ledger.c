/* Lines of the ledger (ckpt/ledger.h): which steps this generation begins with and ends at. */
#include <inttypes.h>
#include <stdio.h>

#include "ckpt/ledger.h"
#include "trainer/train_internal.h"

/* The folder of checkpoints, where rank 0 keeps it; NULL: nobody does. */
static const char *folder(const struct er_train *train)
{
    const char *dir = train->opts->checkpoint_dir;

    if (!train->ckpt || train->rank != 0)
        return NULL;
    return dir ? dir : er_world(train->ctx)->checkpoint_dir;
}

/* A disk that does not take it is no reason to stop; a newer generation is. */
static int append(struct er_train *train, struct er_ledger_entry *entry, struct er_error *err)
{
    const struct er_world *world = er_world(train->ctx);
    struct er_error why = ER_ERROR_INIT;
    char text[ER_ERROR_TEXT_MAX];
    int rc;

    if (!folder(train))
        return 0;
    entry->generation = world->generation;
    snprintf(entry->run, sizeof(entry->run), "%s", world->run);
    rc = er_ledger_append(folder(train), entry, &why);
    if (rc == 0)
        return 0;
    if (rc == ER_E_STALE)
        return er_error_set(err, rc, "ledger: %s", why.text);
    snprintf(text, sizeof(text), "the ledger has a gap: %.*s", (int)sizeof(text) - 32, why.text);
    er_train_tell(train, ER_TRAIN_SAVE_FAILED, entry->step, text);
    return 0;
}

int er_train_ledger_begin(struct er_train *train, enum er_ledger_source from, struct er_error *err)
{
    const struct er_plan *plan = &train->opts->plan;
    const struct er_world *world = er_world(train->ctx);
    struct er_ledger_entry entry = {
        .kind = ER_LEDGER_BEGIN,
        .step = train->applied,
        .world = (uint64_t)train->size,
        .plan = {plan->samples, plan->global_batch, plan->seed, plan->shards},
        .from = from,
    };

    int rc = append(train, &entry, err);

    /* Told before they come: no step is left out that the ledger does not know of. */
    for (size_t i = 0; rc == 0 && i < world->skip_steps_n; i++) {
        struct er_ledger_entry left_out = {
            .kind = ER_LEDGER_SKIP, .step = world->skip_steps[i], .poison = true};

        if (world->skip_steps[i] > train->applied)
            rc = append(train, &left_out, err);
    }
    return rc;
}

int er_train_ledger_skip(struct er_train *train, uint64_t step, struct er_error *err)
{
    struct er_ledger_entry entry = {.kind = ER_LEDGER_SKIP, .step = step};

    return append(train, &entry, err);
}

int er_train_ledger_end(struct er_train *train, struct er_error *err)
{
    struct er_ledger_entry entry = {
        .kind = ER_LEDGER_END, .step = train->applied, .total = train->total_steps};

    return append(train, &entry, err);
}
