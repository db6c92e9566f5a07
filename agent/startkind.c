#include "agent/startkind.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"

#define ASIDE_MAX 100000

static bool is_checkpoint(const char *name)
{
    return strncmp(name, "step-", 5) == 0 && isdigit((unsigned char)name[5]);
}

/* A folder that is not there, or cannot be looked into, has none. */
static bool has_checkpoints(const char *path)
{
    DIR *dir = opendir(path);
    bool found = false;

    for (struct dirent *entry; dir && !found && (entry = readdir(dir));)
        found = is_checkpoint(entry->d_name);
    if (dir)
        closedir(dir);
    return found;
}

static int move_aside(const char *dir, char ret_moved[PATH_MAX], struct er_error *err)
{
    char to[PATH_MAX];

    for (unsigned n = 1; n <= ASIDE_MAX; n++) {
        if ((size_t)snprintf(to, sizeof(to), "%s.before-%u", dir, n) >= sizeof(to))
            return er_error_set(err, -ENAMETOOLONG, "--fresh: path '%.200s...'", dir);
        if (access(to, F_OK) == 0)
            continue;
        if (rename(dir, to) == 0) {
            memcpy(ret_moved, to, sizeof(to));
            return 0;
        }
        if (errno != EEXIST && errno != ENOTEMPTY)
            return er_error_errno(err, "--fresh: rename '%s' to '%s'", dir, to);
    }
    return er_error_set(err, -EEXIST, "--fresh: '%s.before-1' to '-%d' are all taken", dir,
                        ASIDE_MAX);
}

int er_startkind_check(const struct er_config *config, struct er_error *err)
{
    const char *dir = config->checkpoint.dir;

    if (config->start_kind != ER_START_RESUME)
        return 0;
    if (!dir)
        return er_error_set(err, ER_E_CONFIG,
                            "--resume: checkpoint.dir is not set: there is nothing to resume from");
    if (!has_checkpoints(dir))
        return er_error_set(err, ER_E_CONFIG,
                            "--resume: checkpoint.dir '%s' holds no checkpoint (no folder step-*)",
                            dir);
    return 0;
}

static bool remembers(const char *marker, const char *run)
{
    struct er_buf text;
    bool same;

    er_buf_init(&text, 256);
    same = er_file_read_plain(marker, &text, NULL) == 0 && strcmp(er_buf_str(&text), run) == 0;
    er_buf_done(&text);
    return same;
}

/* With the lock held. */
static int begin_run(const char *dir, const char *run, char ret_moved[PATH_MAX],
                     struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    char marker[PATH_MAX];
    int rc;

    if ((size_t)snprintf(marker, sizeof(marker), "%s/.run", dir) >= sizeof(marker))
        return er_error_set(err, -ENAMETOOLONG, "--fresh: path '%.200s...'", dir);
    if (remembers(marker, run))
        return 0;
    rc = has_checkpoints(dir) ? move_aside(dir, ret_moved, err) : 0;
    if (!rc)
        rc = er_mkdir_all(dir, 0755, err);
    if (rc)
        return rc;
    fd = open(marker, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, run, strlen(run)) != (ssize_t)strlen(run))
        return er_error_errno(err, "--fresh: write '%s'", marker);
    return 0;
}

int er_startkind_begin_run(const struct er_config *config, const char *run,
                           char ret_moved[PATH_MAX], struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int lock = -1;
    const char *dir = config->checkpoint.dir;
    char path[PATH_MAX];

    ret_moved[0] = '\0';
    if (!dir)
        return 0;
    if ((size_t)snprintf(path, sizeof(path), "%s.lock", dir) >= sizeof(path))
        return er_error_set(err, -ENAMETOOLONG, "--fresh: path '%.200s...'", dir);
    lock = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (lock < 0 || flock(lock, LOCK_EX) < 0)
        return er_error_errno(err, "--fresh: lock '%s'", path);
    return begin_run(dir, run, ret_moved, err);
}

int er_startkind_apply(const struct er_config *config, char ret_moved[PATH_MAX],
                       struct er_error *err)
{
    const char *dir = config->checkpoint.dir;

    ret_moved[0] = '\0';
    if (config->start_kind == ER_START_FRESH && dir && has_checkpoints(dir))
        return move_aside(dir, ret_moved, err);
    return er_startkind_check(config, err);
}
