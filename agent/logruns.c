#include "agent/logruns.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/events.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"

#define SAME_MAX 1000 /* runs that share an id: agents that died before they had one */

/* `current` holds links into gen-* beside it: moved together, they stay right. */
static bool is_of_a_run(const char *name)
{
    return strncmp(name, "gen-", 4) == 0 || strcmp(name, "current") == 0;
}

static bool has_runs(const char *path)
{
    DIR *dir = opendir(path);
    bool found = false;

    for (struct dirent *entry; dir && !found && (entry = readdir(dir));)
        found = is_of_a_run(entry->d_name);
    if (dir)
        closedir(dir);
    return found;
}

/* A folder of its own, below runs/. */
static int make_folder(const char *dir, const char *id, char ret_path[PATH_MAX],
                       struct er_error *err)
{
    int rc;

    snprintf(ret_path, PATH_MAX, "%s/runs", dir);
    rc = er_mkdir_all(ret_path, 0755, err);
    for (unsigned n = 1; !rc && n <= SAME_MAX; n++) {
        int length = n > 1 ? snprintf(ret_path, PATH_MAX, "%s/runs/%s-%u", dir, id, n)
                           : snprintf(ret_path, PATH_MAX, "%s/runs/%s", dir, id);

        if (length >= PATH_MAX)
            return er_error_set(err, -ENAMETOOLONG, "path '%.200s...'", dir);
        if (mkdir(ret_path, 0755) == 0)
            return 0;
        if (errno != EEXIST)
            return er_error_errno(err, "make folder '%s'", ret_path);
    }
    return rc ? rc : er_error_set(err, -EEXIST, "'%s/runs/%s-%d' is taken", dir, id, SAME_MAX);
}

static int move_all(const char *from, const char *to, struct er_error *err)
{
    DIR *dir = opendir(from);
    int rc = dir ? 0 : er_error_errno(err, "open folder '%s'", from);

    for (struct dirent *entry; !rc && (entry = readdir(dir));) {
        char old[PATH_MAX + NAME_MAX + 2], moved[PATH_MAX + NAME_MAX + 2];

        if (!is_of_a_run(entry->d_name))
            continue;
        snprintf(old, sizeof(old), "%s/%s", from, entry->d_name);
        snprintf(moved, sizeof(moved), "%s/%s", to, entry->d_name);
        if (rename(old, moved) < 0)
            rc = er_error_errno(err, "rename '%s' to '%s'", old, moved);
    }
    if (dir)
        closedir(dir);
    return rc;
}

int er_logruns_move_aside(const char *dir, const char *events, struct er_error *err)
{
    char to[PATH_MAX], id[64];
    int rc;

    if (!has_runs(dir))
        return 0;
    if (!er_events_last_run(events, id))
        er_rfc3339(er_wall_us(), id);
    rc = make_folder(dir, id, to, err);
    return rc ? rc : move_all(dir, to, err);
}
