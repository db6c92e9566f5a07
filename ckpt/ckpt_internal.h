#pragma once
/* The handle, shared by the files of this folder. */
#include <limits.h>
#include <stdatomic.h>

#include "ckpt/ckpt.h"
#include "ckpt/folder.h"
#include "ckpt/manifest.h"
#include "ckpt/worker.h"

#define ER_CKPT_EVENTS_MAX  16 /* not taken; the oldest is dropped beyond */
#define ER_CKPT_DEADLINE_US (600ull * 1000 * 1000)

struct er_save;
struct er_snapshot;

struct er_ckpt {
    char *dir; /* owned, absolute or as given */
    struct er_ckpt_group group;
    struct er_ckpt_opts opts;
    struct er_ckpt_event events[ER_CKPT_EVENTS_MAX];
    size_t event_first, event_n;
    struct er_ckpt_stats stats;
    /* NULL until first used. The caller waits for the copier, and for the saver: it writes what
     * er_ckpt_save() is to write. The others stand back where the steps need all processors. */
    struct er_ckpt_worker *copier, *digester, *writer, *saver;
    struct er_snapshot *snapshot; /* a reference, for copies; NULL until first used */
    struct er_snapshot *stage;    /* a reference, for er_ckpt_save(); likewise */
    atomic_bool no_more_pages;    /* ends the task that brings in the snapshot's */
    struct er_save *save;         /* a reference; NULL: none in flight */
    bool hanging;                 /* the writer was given up, and has not come back */
    struct er_chain_link *chain;  /* owned: generations up to what was loaded */
    size_t chain_n;
    uint64_t attempts;
    uint64_t last_nonce; /* of the last one that ended here; */
    bool last_committed; /* how */
};

/* All ranks learn the first failure, in rank order: the same code and a text "rank r: ..."
 * everywhere; without one, what positive code a rank has, else 0. *ret_together (may be NULL):
 * false when the exchange itself failed. */
int er_ckpt_agree(const struct er_ckpt *ckpt, int rc, bool *ret_together, struct er_error *err);
/* All-gather, or a copy in a world of one. */
int er_ckpt_gather(const struct er_ckpt *ckpt, const void *mine, size_t n, void *all,
                   struct er_error *err);
void er_ckpt_remember(struct er_ckpt *ckpt, const struct er_ckpt_event *event);

/* The manifest of a folder, parsed and checked. */
int er_ckpt_read_manifest(const char *folder, struct er_manifest *ret, struct er_error *err);
