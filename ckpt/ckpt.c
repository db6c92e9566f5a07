#include "ckpt/ckpt.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/parse.h"
#include "ckpt/ckpt_internal.h"

#define STEP_FORMAT "step-%012llu"
#define TEMP_FORMAT ".step-%012llu.g%llu.tmp"

static int format_path(char ret_path[PATH_MAX], int n, const char *dir, struct er_error *err)
{
    return n < 0 || n >= PATH_MAX ? er_error_set(err, -ENAMETOOLONG,
                                                 "checkpoint folder '%.64s...': path too long", dir)
                                  : 0;
}

int er_ckpt_step_path(const char *dir, uint64_t step, char ret_path[PATH_MAX], struct er_error *err)
{
    return format_path(
        ret_path, snprintf(ret_path, PATH_MAX, "%s/" STEP_FORMAT, dir, (unsigned long long)step),
        dir, err);
}

int er_ckpt_temp_path(const char *dir, uint64_t step, uint64_t generation, char ret_path[PATH_MAX],
                      struct er_error *err)
{
    int n = snprintf(ret_path, PATH_MAX, "%s/" TEMP_FORMAT, dir, (unsigned long long)step,
                     (unsigned long long)generation);
    return format_path(ret_path, n, dir, err);
}

int er_ckpt_join(const char *folder, const char *name, char ret_path[PATH_MAX],
                 struct er_error *err)
{
    return format_path(ret_path, snprintf(ret_path, PATH_MAX, "%s/%s", folder, name), folder, err);
}

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

int er_ckpt_agree(const struct er_ckpt *ckpt, int rc, struct er_error *err)
{
    size_t size = (size_t)ckpt->group.size;
    struct outcome mine = {.code = rc}, *all = calloc(size, sizeof(*all));
    if (!all)
        return er_error_set(err, -ENOMEM, "checkpoint: no memory");
    if (rc < 0)
        snprintf(mine.text, sizeof(mine.text), "%.*s", (int)sizeof(mine.text) - 1,
                 err ? err->text : "");
    int gathered = er_ckpt_gather(ckpt, &mine, sizeof(mine), all, err), code = 0;
    for (size_t i = 0; gathered == 0 && code == 0 && i < size; i++) {
        code = (int)all[i].code;
        all[i].text[sizeof(all[i].text) - 1] = 0;
        if (code < 0)
            er_error_set(err, code, "rank %zu: %s", i, all[i].text);
    }
    free(all);
    return gathered < 0 ? gathered : code;
}

static int check_writable(const char *dir, struct er_error *err)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof(path), "%s/.probe-XXXXXX", dir);
    int rc = format_path(path, n, dir, err);
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
    free(ckpt->dir);
    free(ckpt);
}

int er_ckpt_before_apply(struct er_ckpt *ckpt, struct er_error *err)
{
    (void)ckpt; /* er_ckpt_begin() returns after the state has been written */
    (void)err;
    return 0;
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

/* "step-000000000042" -> 42; false for any other name. */
static bool parse_step_name(const char *name, uint64_t *ret)
{
    static const char head[] = "step-";
    if (strncmp(name, head, sizeof(head) - 1) != 0)
        return false;
    const char *digits = name + sizeof(head) - 1;
    return strlen(digits) == 12 && er_parse_u64(digits, 0, UINT64_MAX, ret, NULL) == 0;
}

static int compare_steps(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void close_dir(DIR **dir)
{
    if (*dir)
        closedir(*dir);
}

int er_ckpt_list(const char *dir, uint64_t **ret, size_t *ret_n, struct er_error *err)
{
    ER_CLEANUP(close_dir) DIR *d = opendir(dir);
    if (!d)
        return er_error_errno(err, "checkpoint folder '%s'", dir);
    uint64_t *steps = NULL, step;
    size_t n = 0, cap = 0;
    for (struct dirent *e; (e = readdir(d));) {
        char path[PATH_MAX];
        if (!parse_step_name(e->d_name, &step) ||
            snprintf(path, sizeof(path), "%s/%s/manifest.json", dir, e->d_name) >= PATH_MAX ||
            access(path, F_OK) != 0)
            continue;
        if (n == cap) {
            cap = cap ? cap * 2 : 16;
            uint64_t *more = reallocarray(steps, cap, sizeof(*steps));
            if (!more) {
                free(steps);
                return er_error_set(err, -ENOMEM, "checkpoint: no memory");
            }
            steps = more;
        }
        steps[n++] = step;
    }
    if (n)
        qsort(steps, n, sizeof(*steps), compare_steps);
    *ret = steps;
    *ret_n = n;
    return 0;
}

int er_ckpt_clean(const char *dir, uint64_t generation, struct er_error *err)
{
    ER_CLEANUP(close_dir) DIR *d = opendir(dir);
    if (!d)
        return er_error_errno(err, "checkpoint folder '%s'", dir);
    for (struct dirent *e; (e = readdir(d));) {
        unsigned long long step, g;
        char path[PATH_MAX];
        int end = 0;
        if (sscanf(e->d_name, ".step-%llu.g%llu.tmp%n", &step, &g, &end) != 2 || end == 0 ||
            e->d_name[end] || g > generation)
            continue;
        int rc = er_ckpt_join(dir, e->d_name, path, err);
        if (rc == 0)
            rc = er_remove_all(path, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}
