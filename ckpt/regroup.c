/* A checkpoint in flight when the group of ranks changes. Touches no file. */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "ckpt/save.h"

struct standing {
    uint64_t nonce, last_nonce; /* in flight, 0: nothing; the last one that ended */
    uint8_t last_committed, publishing, leader;
};

static struct standing describe(const struct er_ckpt *ckpt)
{
    const struct er_save *save = ckpt->save;
    struct standing mine = {.last_nonce = ckpt->last_nonce, .last_committed = ckpt->last_committed};

    if (save) {
        mine.nonce = save->nonce;
        mine.publishing = save->stage != ER_SAVE_WRITING;
        mine.leader = save->leader;
    }
    return mine;
}

/* What they have in flight, all of them; 0: nothing, or not the same. *ret_committed: one of them
 * knows that what is in flight here has been committed. */
static uint64_t in_common(const struct standing *all, size_t n, uint64_t mine, bool *ret_committed)
{
    uint64_t common = all[0].nonce;

    for (size_t i = 0; i < n; i++) {
        common = all[i].nonce == common ? common : 0;
        if (mine != 0 && all[i].last_nonce == mine && all[i].last_committed)
            *ret_committed = true;
    }
    return common;
}

/* The one that publishes is still here: it goes on with that. What it asked of the record in the
 * generation before is asked for again, in this one: the outcome may be that it came too late. Else
 * the parts are asked for anew. */
static void choose_stage(struct er_ckpt *ckpt, const struct standing *all, size_t n)
{
    struct er_save *save = ckpt->save;
    bool publishing = false;

    for (size_t i = 0; i < n; i++)
        publishing = publishing || (all[i].publishing && all[i].leader);
    if (save->stage == ER_SAVE_COMMITTING)
        save->deadline_us = er_deadline_in(er_now_us(), ckpt->opts.deadline_us);
    save->stage = publishing ? ER_SAVE_PUBLISHING : ER_SAVE_WRITING;
    if (!publishing)
        save->leader = ckpt->group.rank == 0; /* until the next round says who */
}

static void settle(struct er_ckpt *ckpt, const struct standing *all, struct er_error *err)
{
    size_t n = (size_t)ckpt->group.size;
    bool committed = false;
    uint64_t common = in_common(all, n, ckpt->save ? ckpt->save->nonce : 0, &committed);

    if (!ckpt->save)
        return;
    if (common != 0) {
        choose_stage(ckpt, all, n);
        return;
    }
    if (committed) {
        (void)er_save_conclude(ckpt, 0, err);
        return;
    }
    er_error_set(err, ER_E_PEER_LOST, "given up: generation %llu has ranks without a part in it",
                 (unsigned long long)ckpt->opts.generation);
    er_save_tell(ckpt, ckpt->save, ckpt->save->meta.applied, err->code, err->text);
    er_save_drop(ckpt, true);
}

int er_ckpt_regroup(struct er_ckpt *ckpt, const struct er_ckpt_group *group, uint64_t generation,
                    struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free)
    struct standing *all = calloc((size_t)group->size, sizeof(*all));
    struct er_error why = ER_ERROR_INIT;
    struct standing mine;
    int rc;

    if (!all)
        return er_error_set(err, -ENOMEM, "checkpoint: no memory");
    if (group->size > 1 && !group->gather)
        return er_error_set(err, -EINVAL,
                            "checkpoint: a group of several ranks needs a gather function");
    if (er_save_is_recorded(ckpt))
        (void)er_save_conclude(ckpt, 0, &why);
    mine = describe(ckpt);
    ckpt->group = *group;
    ckpt->opts.generation = generation;
    if (ckpt->save)
        ckpt->save->fence = generation;
    rc = er_ckpt_gather(ckpt, &mine, sizeof(mine), all, err);
    if (rc < 0)
        return rc;
    settle(ckpt, all, &why);
    return 0;
}
