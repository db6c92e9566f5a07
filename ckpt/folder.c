#include "ckpt/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fence.h"
#include "base/file.h"
#include "base/parse.h"
#include "base/rand.h"
#include "ckpt/ckpt.h"

#define SCANS_MAX   100 /* of a folder in which others remove; each is a removal more */
#define STEP_FORMAT "step-%012llu"
#define TEMP_FORMAT ".step-%012llu.g%llu.%016llx.tmp"

typedef unsigned long long ull;

static int format_path(int n, const char *dir, struct er_error *err)
{
    return n < 0 || n >= PATH_MAX ? er_error_set(err, -ENAMETOOLONG,
                                                 "checkpoint folder '%.64s...': path too long", dir)
                                  : 0;
}

int er_ckpt_step_path(const char *dir, uint64_t step, char ret_path[PATH_MAX], struct er_error *err)
{
    return format_path(snprintf(ret_path, PATH_MAX, "%s/" STEP_FORMAT, dir, (ull)step), dir, err);
}

int er_ckpt_temp_path(const char *dir, uint64_t step, uint64_t generation, uint64_t nonce,
                      char ret_path[PATH_MAX], struct er_error *err)
{
    int n = snprintf(ret_path, PATH_MAX, "%s/" TEMP_FORMAT, dir, (ull)step, (ull)generation,
                     (ull)nonce);
    return format_path(n, dir, err);
}

int er_ckpt_join(const char *folder, const char *name, char ret_path[PATH_MAX],
                 struct er_error *err)
{
    return format_path(snprintf(ret_path, PATH_MAX, "%s/%s", folder, name), folder, err);
}

bool er_ckpt_step_parse(const char *name, uint64_t *ret)
{
    static const char head[] = "step-";
    if (strncmp(name, head, sizeof(head) - 1) != 0)
        return false;
    const char *digits = name + sizeof(head) - 1;
    return strlen(digits) == 12 && er_parse_u64(digits, 0, UINT64_MAX, ret, NULL) == 0;
}

static bool parse_temp_name(const char *name, uint64_t *ret_step, uint64_t *ret_generation)
{
    ull step, g;
    int end = 0;
    if (sscanf(name, ".step-%llu.g%llu%n", &step, &g, &end) != 2)
        return false;
    size_t n = strlen(name);
    if (n < 4 || strcmp(name + n - 4, ".tmp") != 0 || name[end] != '.')
        return false;
    *ret_step = step;
    *ret_generation = g;
    return true;
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

static int open_dir(const char *dir, DIR **ret, struct er_error *err)
{
    *ret = opendir(dir);
    return *ret ? 0 : er_error_errno(err, "checkpoint folder '%s'", dir);
}

struct steps {
    uint64_t *all; /* owned */
    size_t n, cap;
};

static int add_step(struct steps *steps, uint64_t step, struct er_error *err)
{
    if (steps->n == steps->cap) {
        size_t cap = steps->cap ? steps->cap * 2 : 16;
        uint64_t *more = reallocarray(steps->all, cap, sizeof(*more));

        if (!more)
            return er_error_set(err, -ENOMEM, "checkpoint: no memory");
        steps->all = more;
        steps->cap = cap;
    }
    steps->all[steps->n++] = step;
    return 0;
}

/* 1: one of them was removed while we looked. A folder is not read at one instant: the one that was
 * published before that may be missing too. */
static int scan_steps(const char *dir, struct steps *steps, struct er_error *err)
{
    ER_CLEANUP(close_dir) DIR *d = NULL;
    int rc = open_dir(dir, &d, err);
    bool removed = false;

    steps->n = 0;
    for (struct dirent *e; rc == 0 && (e = readdir(d));) {
        char path[PATH_MAX];
        uint64_t step;
        int n;

        if (!er_ckpt_step_parse(e->d_name, &step))
            continue;
        n = snprintf(path, sizeof(path), "%s/%s/manifest.json", dir, e->d_name);
        if (n >= PATH_MAX)
            continue;
        if (access(path, F_OK) == 0)
            rc = add_step(steps, step, err);
        else if (faccessat(dirfd(d), e->d_name, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
            removed = true;
    }
    return rc < 0 ? rc : removed;
}

int er_ckpt_list(const char *dir, uint64_t **ret, size_t *ret_n, struct er_error *err)
{
    struct steps steps = {0};
    int rc, tries = 0;

    do
        rc = scan_steps(dir, &steps, err);
    while (rc == 1 && ++tries < SCANS_MAX);
    if (rc < 0) {
        free(steps.all);
        return rc;
    }
    if (steps.n)
        qsort(steps.all, steps.n, sizeof(*steps.all), compare_steps);
    *ret = steps.all;
    *ret_n = steps.n;
    return 0;
}

int er_ckpt_discard(const char *dir, const char *path, uint64_t step, uint64_t generation,
                    struct er_error *err)
{
    char temp[PATH_MAX];
    int rc = er_ckpt_temp_path(dir, step, generation, er_rand_mix(er_wall_us() ^ step), temp, err);

    if (rc < 0)
        return rc;
    if (rename(path, temp) < 0)
        return errno == ENOENT ? 0 : er_error_errno(err, "rename '%s'", path);
    return er_remove_all(temp, err);
}

static int is_temp(const struct dirent *e)
{
    uint64_t step, g;

    return parse_temp_name(e->d_name, &step, &g);
}

static int clean_one(const char *dir, const char *name, uint64_t generation, const char *keep,
                     size_t *ret_n, struct er_error *err)
{
    uint64_t step, g;
    char path[PATH_MAX];
    int rc;

    if (!parse_temp_name(name, &step, &g) || g > generation)
        return 0;
    rc = er_ckpt_join(dir, name, path, err);
    if (rc < 0 || (keep && strcmp(path, keep) == 0))
        return rc;
    rc = er_ckpt_discard(dir, path, step, g, err);
    if (rc == 0 && ret_n)
        ++*ret_n;
    return rc;
}

/* All names first: what is under way gets another one, and must not be found by it. */
int er_ckpt_clean(const char *dir, uint64_t generation, const char *keep, size_t *ret_n,
                  struct er_error *err)
{
    struct dirent **found = NULL;
    int n = scandir(dir, &found, is_temp, NULL);
    int first = n < 0 ? er_error_errno(err, "checkpoint folder '%s'", dir) : 0;

    for (int i = 0; i < n; i++) {
        int rc = clean_one(dir, found[i]->d_name, generation, keep, ret_n, first ? NULL : err);

        first = first ? first : rc; /* the others all the same */
        free(found[i]);
    }
    free(found);
    return first;
}

/* Fences of the generations before say nothing any more. */
static void remove_fences_below(const char *dir, uint64_t generation)
{
    ER_CLEANUP(close_dir) DIR *d = opendir(dir);
    uint64_t g;
    for (struct dirent *e; d && (e = readdir(d));)
        if (er_fence_parse(e->d_name, &g) && g < generation)
            unlinkat(dirfd(d), e->d_name, 0);
}

static int check_newest(uint64_t newest, uint64_t generation, struct er_error *err)
{
    return newest > generation
               ? er_error_set(err, ER_E_STALE, "generation %llu was superseded by %llu",
                              (ull)generation, (ull)newest)
               : 0;
}

int er_ckpt_fence(const char *dir, uint64_t generation, struct er_error *err)
{
    char name[ER_FENCE_NAME_MAX], path[PATH_MAX];
    uint64_t newest = 0;
    if (generation == 0)
        return 0;
    er_fence_name(generation, name);
    int rc = er_fence_newest(dir, &newest, err);
    if (rc < 0 || newest >= generation)
        return rc < 0 ? rc : check_newest(newest, generation, err);
    rc = er_ckpt_join(dir, name, path, err);
    if (rc < 0)
        return rc;
    ER_CLEANUP(er_cleanup_fd) int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
    if (fd < 0)
        return er_error_errno(err, "create '%s'", path);
    rc = er_fsync_dir(dir, err);
    if (rc == 0)
        remove_fences_below(dir, generation);
    return rc;
}

int er_ckpt_check_fence(const char *dir, uint64_t generation, struct er_error *err)
{
    uint64_t newest = 0;
    int rc = generation > 0 ? er_fence_newest(dir, &newest, err) : 0;
    return rc == 0 ? check_newest(newest, generation, err) : rc;
}
