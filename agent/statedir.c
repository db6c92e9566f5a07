#include "agent/statedir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"

#define TMP_BASE    "/tmp/elastic-run-"
#define UNIT_FOLDER "agent" /* short: the instance is in the path already */
#define TRIES       100     /* other jobs may be removing the folder or the lock just now */

#define LOCK_PATH_MAX (ER_STATE_PATH_MAX + 8)

size_t er_statedir_bases(char ret_paths[ER_STATE_BASES][ER_STATE_PATH_MAX])
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    size_t n = 0;

    if (geteuid() == 0)
        snprintf(ret_paths[n++], ER_STATE_PATH_MAX, "/run/elastic-run");
    else if (runtime && runtime[0] == '/' && strlen(runtime) < 64)
        snprintf(ret_paths[n++], ER_STATE_PATH_MAX, "%s/elastic-run", runtime);
    snprintf(ret_paths[n++], ER_STATE_PATH_MAX, TMP_BASE "%u", (unsigned)geteuid());
    return n;
}

size_t er_statedir_unit_bases(char ret_paths[ER_STATE_BASES][ER_STATE_PATH_MAX])
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    size_t n = 0;

    snprintf(ret_paths[n++], ER_STATE_PATH_MAX, "/run/elastic-agent");
    if (runtime && runtime[0] == '/' && strlen(runtime) < 64)
        snprintf(ret_paths[n++], ER_STATE_PATH_MAX, "%s/elastic-agent", runtime);
    return n;
}

int er_statedir_unit_file(const char *base, const char *instance, const char *file,
                          char ret_path[ER_STATE_PATH_MAX])
{
    int n = snprintf(ret_path, ER_STATE_PATH_MAX, "%s/%s/" UNIT_FOLDER "/%s", base, instance, file);

    return n < ER_STATE_PATH_MAX ? 0 : -ENAMETOOLONG;
}

/* "<base>/.<name>.lock" for "<base>/<name>". */
static void lock_path(const char *path, char ret[LOCK_PATH_MAX])
{
    const char *slash = strrchr(path, '/');

    snprintf(ret, LOCK_PATH_MAX, "%.*s/.%s.lock", (int)(slash - path), path, slash + 1);
}

/* -EAGAIN: whoever had it has removed the file meanwhile, so what we locked is nobody's. */
static int lock(struct er_statedir *dir)
{
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    char path[LOCK_PATH_MAX];
    struct stat ours, there;

    lock_path(dir->path, path);
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return errno == ENOENT ? -EAGAIN : -errno;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? -EBUSY : -errno;
    if (fstat(fd, &ours) < 0)
        return -errno;
    if (stat(path, &there) < 0 || there.st_ino != ours.st_ino || there.st_dev != ours.st_dev)
        return -EAGAIN;
    dir->lock_fd = ER_TAKE_FD(fd);
    return 0;
}

static int lock_in(struct er_statedir *dir, const char *base, const char *name)
{
    int rc = -EAGAIN;

    if ((size_t)snprintf(dir->path, sizeof(dir->path), "%s/%s", base, name) >= sizeof(dir->path))
        return -ENAMETOOLONG;
    for (int try = 0; rc == -EAGAIN && try < TRIES; try++) {
        rc = er_mkdir_private(base, NULL);
        if (!rc)
            rc = lock(dir);
        else if (rc == -ENOENT)
            rc = -EAGAIN;
    }
    return rc == -EAGAIN ? -EBUSY : rc;
}

int er_statedir_lock(struct er_statedir *ret, const char *name, struct er_error *err)
{
    char bases[ER_STATE_BASES][ER_STATE_PATH_MAX];
    size_t n = er_statedir_bases(bases);
    struct er_statedir dir = {.lock_fd = -1};
    const char *unit = getenv("ELASTIC_INSTANCE") ? getenv("RUNTIME_DIRECTORY") : NULL;
    int rc = -ENOENT;

    if (unit && unit[0] == '/' && !strchr(unit, ':')) { /* systemd's, of this unit alone */
        snprintf(bases[0], ER_STATE_PATH_MAX, "%s", unit);
        name = UNIT_FOLDER;
        n = 1;
    }
    for (size_t i = 0; i < n; i++) {
        rc = lock_in(&dir, bases[i], name);
        if (rc == -EBUSY)
            return er_error_set(err, rc,
                                "job '%s' is running on this host already ('%s' is in use): give "
                                "this one another name",
                                name, dir.path);
        if (!rc) {
            *ret = dir;
            return 0;
        }
    }
    return er_error_set(err, rc, "make the state folder '%s/%s': %s%s", bases[n - 1], name,
                        er_error_name(rc),
                        rc == -EPERM || rc == -ENOTDIR || rc == -ELOOP
                            ? " (somebody else has made a file or folder of that name: remove it, "
                              "or set XDG_RUNTIME_DIR to a folder of your own)"
                            : "");
}

int er_statedir_make(struct er_statedir *dir, struct er_error *err)
{
    int rc;

    er_remove_all(dir->path, NULL);
    rc = er_mkdir_private(dir->path, NULL);
    return rc ? er_error_set(err, rc, "make the state folder '%s': %s", dir->path,
                             er_error_name(rc))
              : 0;
}

/* /run's belong to the system. rmdir(2) takes empty folders only, so another job's is safe. */
void er_statedir_remove(const char *path)
{
    char lock[LOCK_PATH_MAX];
    char *slash;

    er_remove_all(path, NULL);
    lock_path(path, lock);
    unlink(lock);
    slash = strrchr(lock, '/');
    if (strncmp(lock, TMP_BASE, strlen(TMP_BASE)) != 0)
        return;
    *slash = '\0';
    (void)rmdir(lock);
}

void er_statedir_close(struct er_statedir *dir, bool shared)
{
    if (!dir->path[0])
        return;
    if (shared)
        er_remove_all(dir->path, NULL);
    else
        er_statedir_remove(dir->path);
    er_cleanup_fd(&dir->lock_fd);
    dir->path[0] = '\0';
}

int er_statedir_socket(const struct er_statedir *dir, const char *file,
                       char ret_path[ER_STATE_PATH_MAX], struct er_error *err)
{
    size_t room = sizeof(((struct sockaddr_un *)0)->sun_path);

    if ((size_t)snprintf(ret_path, ER_STATE_PATH_MAX, "%s/%s", dir->path, file) >= room)
        return er_error_set(err, -ENAMETOOLONG,
                            "socket path '%s/%s' is longer than %zu bytes: set XDG_RUNTIME_DIR to "
                            "a shorter one",
                            dir->path, file, room - 1);
    return 0;
}
