#pragma once
/* Shared by ckpt.c, writer.c and reader.c. */
#include <limits.h>

#include "ckpt/ckpt.h"
#include "ckpt/manifest.h"

#define ER_CKPT_EVENTS_MAX 16 /* not taken; the oldest is dropped beyond */

struct er_ckpt {
    char *dir; /* owned, absolute or as given */
    struct er_ckpt_group group;
    struct er_ckpt_opts opts;
    struct er_ckpt_event events[ER_CKPT_EVENTS_MAX];
    size_t event_first, event_n;
};

/* Path of a checkpoint's folder, of its temporary form, of a file in a folder. -ENAMETOOLONG. */
int er_ckpt_step_path(const char *dir, uint64_t step, char ret_path[PATH_MAX],
                      struct er_error *err);
int er_ckpt_temp_path(const char *dir, uint64_t step, uint64_t generation, char ret_path[PATH_MAX],
                      struct er_error *err);
int er_ckpt_join(const char *folder, const char *name, char ret_path[PATH_MAX],
                 struct er_error *err);

/* Remove temporary folders of generations up to `generation`: leftovers of writers that died. */
int er_ckpt_clean(const char *dir, uint64_t generation, struct er_error *err);

/* All ranks learn the first failure, in rank order: 0 everywhere, or the same code and a text "rank
 * r: ..." everywhere. */
int er_ckpt_agree(const struct er_ckpt *ckpt, int rc, struct er_error *err);
/* All-gather, or a copy in a world of one. */
int er_ckpt_gather(const struct er_ckpt *ckpt, const void *mine, size_t n, void *all,
                   struct er_error *err);

/* The manifest of a folder, parsed and checked. */
int er_ckpt_read_manifest(const char *folder, struct er_manifest *ret, struct er_error *err);
