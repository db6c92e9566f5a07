#pragma once
/* Views of a checkpoint's shards: mapped files, and memory where a slice is not in one piece. */
#include "base/pool.h"
#include "ckpt/ckpt.h"
#include "ckpt/fetch.h"

struct er_ckpt_views {
    struct er_view_file {
        char *data; /* NULL: not mapped */
        size_t bytes;
    } * files; /* owned, one a shard */
    uint32_t file_n;
    struct er_pool *pool; /* owned; NULL: all slices are in one piece */
};

/* Sets the data of `slices`, and lists what has to be read or checked before it is used. `source`'s
 * shards are opened. On failure er_ckpt_unmap() takes what is there. */
int er_views_make(struct er_ckpt_views *views, struct er_ckpt_source *source,
                  struct er_slice *slices, size_t n, struct er_fetch_list *list,
                  struct er_error *err);
