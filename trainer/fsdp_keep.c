/* Sharded parameters that go on in another generation: the same handle, the program's, on another
 * communicator, and with another shard. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "trainer/shadow.h"
#include "trainer/sync.h"

bool er_fsdp_fits(const struct er_fsdp *f)
{
    return f->plan.size == er_comm_size(f->comm) && f->rank == er_comm_rank(f->comm);
}

bool er_fsdp_reduced(const struct er_fsdp *f)
{
    return f->reduced;
}

/* Whether anybody brings a state along. */
static int anybody_keeps(struct er_fsdp *f, bool mine, struct er_error *err)
{
    size_t size = (size_t)er_comm_size(f->comm);
    ER_CLEANUP(er_cleanup_free) uint8_t *all = calloc(size, 1);
    struct er_device *device = f->engine->device;
    struct er_sync_place place = {
        .engine = f->engine, .wire = f->comm, .control = device ? NULL : f->comm};
    uint8_t keep = mine;
    int rc = 0;

    f->kept = false;
    if (!all)
        return er_error_set(err, -ENOMEM, "who keeps a state of %zu ranks", size);
    if (device) /* of this generation's size, which need not be that of the shards */
        rc = er_device_alloc(device, ER_MEMORY_PINNED, er_sync_notes_bytes((int)size), &place.notes,
                             err);
    if (rc == 0)
        rc = er_sync_gather_at(&place, &keep, sizeof(keep), all, err);
    if (device)
        er_device_free(device, ER_MEMORY_PINNED, place.notes);
    f->kept = rc == 0 && memchr(all, 1, size) != NULL;
    return rc < 0 ? er_error_wrap(err, rc, "first values") : 0;
}

int er_fsdp_fill(struct er_fsdp *f, er_fsdp_fill_fn fill, void *user, struct er_error *err)
{
    int rc = anybody_keeps(f, false, err);

    f->fill = fill;
    f->fill_user = user;
    return rc < 0 || f->kept ? rc : er_fsdp_fill_units(f, err);
}

int er_fsdp_fill_again(struct er_fsdp *f, struct er_error *err)
{
    if (!f->kept)
        return 0;
    if (!f->fill)
        return er_error_set(err, ER_E_USAGE,
                            "sharded parameters have no first values: er_fsdp_fill() is to be "
                            "called in shard()");
    for (size_t i = 0; i < f->plan.flat->states_n; i++) {
        int rc =
            f->engine->ops->fill(f->engine, f->block[ER_FLAT_STATE + i], 0.0f, f->plan.total, err);

        if (rc < 0)
            return rc;
    }
    er_fsdp_drop(f);
    return er_fsdp_fill_units(f, err);
}

int er_fsdp_rejoin(struct er_fsdp *f, struct er_comm *comm, struct er_error *err)
{
    f->comm = comm;
    f->failure = (struct er_error)ER_ERROR_INIT;
    f->evaluating = f->in_pass = false;
    f->position = 0;
    f->outside = 0;
    f->first_us = f->exposed_us = f->wire_bytes = 0;
    for (size_t u = 0; u < f->plan.units_n; u++)
        f->units[u].gather = f->units[u].scatter = NULL;
    er_shadow_forget(f);
    er_fsdp_forget(f);
    if (f->engine->device) /* it was taken back when the communicator before was abandoned */
        er_engine_guard_add(f->engine, &f->guard);
    return anybody_keeps(f, true, err);
}

int er_fsdp_renew(struct er_fsdp **ret, const struct er_fsdp *f, struct er_error *err)
{
    return er_fsdp_open(ret, f->comm, f->plan.flat, f->plan.units, f->plan.units_n, &f->asked, err);
}

void er_fsdp_replace(struct er_fsdp *f, struct er_fsdp *next)
{
    struct er_engine *engine = f->engine;
    struct er_fsdp old;

    er_engine_guard_remove(engine, &f->guard); /* they are lists' members, where they are */
    er_engine_guard_remove(engine, &next->guard);
    old = *f;
    *f = *next;
    f->comm = old.comm; /* `next` may have been made in a generation that came to nothing */
    f->fill = old.fill;
    f->fill_user = old.fill_user;
    f->kept = old.kept;
    f->listed = false;
    f->guard = (struct er_engine_guard){.arrived = er_fsdp_arrived, .user = f};
    if (engine->device)
        er_engine_guard_add(engine, &f->guard);
    f->tape = NULL;
    *next = old;
    next->tape = NULL;
    er_fsdp_close(next);
    if (old.tape)
        er_fsdp_attach(f, old.tape);
}
