#include "ckpt/gc.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "ckpt/retain.h"

static void read_metric(const char *dir, uint64_t step, struct er_retain_item *item)
{
    char folder[PATH_MAX];
    struct er_manifest m;

    if (er_ckpt_step_path(dir, step, folder, NULL) < 0 ||
        er_ckpt_read_manifest(folder, &m, NULL) < 0)
        return;
    item->has_metric = m.meta.has_metric;
    item->metric = m.meta.metric;
    er_manifest_done(&m);
}

int er_ckpt_gc_plan(const char *dir, const struct er_ckpt_opts *opts, uint64_t current,
                    uint64_t **ret, size_t *ret_n, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) uint64_t *steps = NULL;
    ER_CLEANUP(er_cleanup_free) uint64_t *gone = NULL;
    ER_CLEANUP(er_cleanup_free) struct er_retain_item *items = NULL;
    const struct er_retain_rules rules = {.keep_last = opts->keep_last,
                                          .keep_every = opts->keep_every,
                                          .keep_best = opts->keep_best,
                                          .more_is_better = opts->more_is_better};
    size_t n = 0;
    int rc = er_ckpt_list(dir, &steps, &n, err);

    if (rc < 0)
        return rc;
    gone = calloc(n + 1, sizeof(*gone));
    items = calloc(n + 1, sizeof(*items));
    if (!gone || !items)
        return er_error_set(err, -ENOMEM, "checkpoint: no memory");
    for (size_t i = 0; i < n; i++) {
        items[i].step = steps[i];
        if (opts->keep_best > 0 && steps[i] <= current)
            read_metric(dir, steps[i], &items[i]);
    }
    *ret_n = er_retain_by(items, n, current, &rules, gone);
    *ret = ER_TAKE(gone);
    return 0;
}

static int remove_step(const char *dir, uint64_t step, uint64_t generation, struct er_error *err)
{
    char path[PATH_MAX];
    int rc = er_ckpt_step_path(dir, step, path, err);

    return rc == 0 ? er_ckpt_discard(dir, path, step, generation, err) : rc;
}

int er_ckpt_gc(const char *dir, const struct er_ckpt_opts *opts, uint64_t current,
               uint64_t generation, er_ckpt_gone_fn gone, void *user, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) uint64_t *steps = NULL;
    size_t n = 0;
    int rc = er_ckpt_gc_plan(dir, opts, current, &steps, &n, err);

    for (size_t i = 0; rc == 0 && i < n; i++) {
        rc = er_ckpt_check_fence(dir, generation, err);
        if (rc == 0)
            rc = remove_step(dir, steps[i], generation, err);
        if (rc == 0 && gone)
            gone(user, steps[i]);
    }
    return rc;
}
