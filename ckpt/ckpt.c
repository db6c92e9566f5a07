#include "ckpt/ckpt.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/save.h"

#define CLOSE_US (5 * ER_US_PER_S) /* for what the writer has left to do */

int er_ckpt_gather(const struct er_ckpt *ckpt, const void *mine, size_t n, void *all,
                   struct er_error *err)
{
    if (ckpt->group.gather)
        return ckpt->group.gather(ckpt->group.user, mine, n, all, err);
    memcpy(all, mine, n);
    return 0;
}

struct outcome {
    int64_t code;
    char text[504];
};

int er_ckpt_agree(const struct er_ckpt *ckpt, int rc, bool *ret_together, struct er_error *err)
{
    size_t size = (size_t)ckpt->group.size;
    struct outcome mine = {.code = rc}, *all = calloc(size, sizeof(*all));
    if (!all)
        return er_error_set(err, -ENOMEM, "checkpoint: no memory");
    if (rc < 0)
        snprintf(mine.text, sizeof(mine.text), "%.*s", (int)sizeof(mine.text) - 1,
                 err ? err->text : "");
    int gathered = er_ckpt_gather(ckpt, &mine, sizeof(mine), all, err), code = 0;
    for (size_t i = 0; gathered == 0 && code >= 0 && i < size; i++) {
        if (all[i].code == 0)
            continue;
        code = (int)all[i].code;
        all[i].text[sizeof(all[i].text) - 1] = 0;
        if (code < 0)
            er_error_set(err, code, "rank %zu: %s", i, all[i].text);
    }
    free(all);
    if (ret_together)
        *ret_together = gathered == 0;
    return gathered < 0 ? gathered : code;
}

static int check_writable(const char *dir, struct er_error *err)
{
    char path[PATH_MAX];
    int rc = er_ckpt_join(dir, ".probe-XXXXXX", path, err);
    if (rc < 0)
        return rc;
    ER_CLEANUP(er_cleanup_fd) int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return er_error_errno(err, "checkpoint folder '%s' cannot be written", dir);
    unlink(path);
    return 0;
}

int er_ckpt_open(struct er_ckpt **ret, const char *dir, const struct er_ckpt_group *group,
                 const struct er_ckpt_opts *opts, struct er_error *err)
{
    int rc = er_mkdir_all(dir, 0777, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "checkpoint folder");
    rc = check_writable(dir, err);
    if (rc < 0)
        return rc;
    struct er_ckpt *ckpt = calloc(1, sizeof(*ckpt));
    if (!ckpt)
        return er_error_set(err, -ENOMEM, "checkpoint: no memory");
    ckpt->dir = strdup(dir);
    ckpt->group = group ? *group : (struct er_ckpt_group){.size = 1};
    if (opts)
        ckpt->opts = *opts;
    if (ckpt->opts.deadline_us == 0)
        ckpt->opts.deadline_us = ER_CKPT_DEADLINE_US;
    if (!ckpt->dir || (ckpt->group.size > 1 && !ckpt->group.gather)) {
        er_ckpt_close(ckpt);
        return er_error_set(err, -EINVAL,
                            "checkpoint: a group of several ranks needs a gather function");
    }
    *ret = ckpt;
    return 0;
}

void er_ckpt_close(struct er_ckpt *ckpt)
{
    if (!ckpt)
        return;
    if (ckpt->save)
        er_save_drop(ckpt, ckpt->group.size == 1);
    (void)er_ckpt_worker_free(ckpt->copier,
                              ER_FOREVER); /* it reads the caller's memory; never hangs */
    atomic_store(&ckpt->no_more_pages, true);
    (void)er_ckpt_worker_free(ckpt->digester, ER_FOREVER);
    (void)er_ckpt_worker_free(ckpt->writer, ckpt->hanging ? 0 : er_now_us() + CLOSE_US);
    (void)er_ckpt_worker_free(ckpt->saver, ckpt->hanging ? 0 : er_now_us() + CLOSE_US);
    er_snapshot_unref(ckpt->snapshot);
    er_snapshot_unref(ckpt->stage);
    free(ckpt->chain);
    free(ckpt->dir);
    free(ckpt);
}

void er_ckpt_remember(struct er_ckpt *ckpt, const struct er_ckpt_event *event)
{
    if (ckpt->event_n == ER_CKPT_EVENTS_MAX) {
        ckpt->event_first = (ckpt->event_first + 1) % ER_CKPT_EVENTS_MAX;
        ckpt->event_n--;
    }
    ckpt->events[(ckpt->event_first + ckpt->event_n++) % ER_CKPT_EVENTS_MAX] = *event;
}

void er_ckpt_poll(struct er_ckpt *ckpt, struct er_ckpt_event *ret)
{
    *ret = (struct er_ckpt_event){.kind = ER_CKPT_NOTHING};
    if (ckpt->event_n == 0)
        return;
    *ret = ckpt->events[ckpt->event_first];
    ckpt->event_first = (ckpt->event_first + 1) % ER_CKPT_EVENTS_MAX;
    ckpt->event_n--;
}

void er_ckpt_stats(const struct er_ckpt *ckpt, struct er_ckpt_stats *ret)
{
    *ret = ckpt->stats;
}
