#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/rand.h"

enum {
    TEMP_NAME_MAX = 40,
    TEMP_TRIES = 100,
    READ_CHUNK = 64 * 1024,
    DEPTH_MAX = 128, /* folders below the one that er_remove_all() is given */
};

/* `path` = folder + name; "." when there is no slash. */
static int split(const char *path, char ret_dir[PATH_MAX], const char **ret_name,
                 struct er_error *err)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t n = slash ? (size_t)(slash - path) : 0;

    if (!*name || !strcmp(name, ".") || !strcmp(name, ".."))
        return er_error_set(err, -EINVAL, "'%s' is not the name of a file", path);
    if (n >= PATH_MAX)
        return er_error_set(err, -ENAMETOOLONG, "path of %zu bytes is too long", strlen(path));
    if (n) {
        memcpy(ret_dir, path, n);
        ret_dir[n] = '\0';
    } else {
        strcpy(ret_dir, slash ? "/" : ".");
    }
    *ret_name = name;
    return 0;
}

static int open_dir(const char *path, struct er_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    return fd < 0 ? er_error_errno(err, "open folder '%s'", path) : fd;
}

static int sync_dir(int fd, const char *path, struct er_error *err)
{
    /* EINVAL: a file system that cannot sync folders, and so orders its own metadata. */
    if (fsync(fd) < 0 && errno != EINVAL)
        return er_error_errno(err, "fsync folder '%s'", path);
    return 0;
}

/* A new file of a name of its own in `dir`. */
static int open_temp(int dir, char ret_name[TEMP_NAME_MAX])
{
    static _Atomic uint64_t count;

    for (unsigned i = 0; i < TEMP_TRIES; i++) {
        uint64_t mix =
            er_rand_mix(er_now_us() ^ (uint64_t)getpid() << 40 ^ atomic_fetch_add(&count, 1) << 32);
        int fd;

        snprintf(ret_name, TEMP_NAME_MAX, ".er-tmp-%016llx", (unsigned long long)mix);
        fd = openat(dir, ret_name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

static int fill(int fd, const char *path, const void *data, size_t n, mode_t mode,
                struct er_error *err)
{
    int rc = er_write_all(fd, data, n);

    if (rc)
        return er_error_set(err, rc, "write '%s': %s", path, er_error_name(rc));
    if (fchmod(fd, mode) < 0)
        return er_error_errno(err, "set mode of '%s'", path);
    if (fsync(fd) < 0)
        return er_error_errno(err, "fsync '%s'", path);
    return 0;
}

int er_file_replace(const char *path, const void *data, size_t n, mode_t mode, struct er_error *err)
{
    char folder[PATH_MAX], temp[TEMP_NAME_MAX];
    const char *name = NULL;
    ER_CLEANUP(er_cleanup_fd) int dir = -1;
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    int rc = split(path, folder, &name, err);

    if (rc)
        return rc;
    dir = open_dir(folder, err);
    if (dir < 0)
        return er_error_wrap(err, dir, "replace '%s'", path);
    fd = open_temp(dir, temp);
    if (fd < 0)
        return er_error_errno(err, "create a temporary file for '%s'", path);
    rc = fill(fd, path, data, n, mode, err);
    if (!rc && renameat(dir, temp, dir, name) < 0)
        rc = er_error_errno(err, "rename a temporary file to '%s'", path);
    if (rc) {
        unlinkat(dir, temp, 0);
        return rc;
    }
    return sync_dir(dir, folder, err);
}

/* Everything up to the end of the file; one byte more than the limit is asked for, to tell "full"
 * from "longer". */
static int read_to_end(int fd, struct er_buf *buf)
{
    char probe;

    for (;;) {
        size_t room = buf->max - buf->len, chunk = room < READ_CHUNK ? room : READ_CHUNK;
        int rc = chunk ? er_buf_reserve(buf, chunk) : 0;
        ssize_t got;

        if (rc)
            return rc;
        if (chunk)
            got = read(fd, buf->data + buf->len, chunk);
        else
            got = read(fd, &probe, 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : 0;
        if (!chunk)
            return -EFBIG;
        buf->len += (size_t)got;
        buf->data[buf->len] = '\0';
    }
}

static int read_file(int fd, const char *path, struct er_buf *buf, struct er_error *err)
{
    size_t start = buf->len;
    int rc = read_to_end(fd, buf);

    if (!rc)
        return 0;
    if (buf->data) {
        buf->len = start;
        buf->data[start] = '\0';
    }
    if (rc == -EFBIG)
        return er_error_set(err, rc, "read '%s': longer than the limit of %zu bytes", path,
                            buf->max - start);
    return er_error_set(err, rc, "read '%s': %s", path, er_error_name(rc));
}

int er_file_read(const char *path, struct er_buf *buf, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int fd = open(path, O_RDONLY | O_CLOEXEC);

    return fd < 0 ? er_error_errno(err, "open '%s'", path) : read_file(fd, path, buf, err);
}

int er_file_read_plain(const char *path, struct er_buf *buf, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return er_error_errno(err, "open '%s'", path);
    if (!S_ISREG(st.st_mode))
        return er_error_set(err, -EINVAL, "'%s' is no regular file", path);
    return read_file(fd, path, buf, err);
}

int er_file_read_secret(const char *path, struct er_buf *buf, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return er_error_errno(err, "open '%s'", path);
    if (S_ISREG(st.st_mode) && (st.st_mode & S_IRWXO))
        return er_error_set(err, ER_E_CONFIG,
                            "'%s' is a secret, and every user of this host may %s it: chmod o= it",
                            path, st.st_mode & S_IROTH ? "read" : "touch");
    return read_file(fd, path, buf, err);
}

static int make_one(const char *path, mode_t mode, struct er_error *err)
{
    struct stat st;

    if (mkdir(path, mode) == 0)
        return 0;
    if (errno == EEXIST) {
        if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
            return 0;
        return er_error_set(err, -ENOTDIR, "make folder '%s': something else has that name", path);
    }
    return er_error_errno(err, "make folder '%s'", path);
}

int er_mkdir_all(const char *path, mode_t mode, struct er_error *err)
{
    char part[PATH_MAX];
    size_t n = strlen(path);
    int rc = 0;

    if (n == 0 || n >= sizeof(part))
        return er_error_set(err, n ? -ENAMETOOLONG : -EINVAL, "folder name of %zu bytes", n);
    memcpy(part, path, n + 1);
    for (size_t i = 1; !rc && i <= n; i++) {
        if ((part[i] && part[i] != '/') || part[i - 1] == '/')
            continue;
        part[i] = '\0';
        rc = make_one(part, mode, err);
        part[i] = path[i];
    }
    return rc;
}

static int check_owners(const char *path, struct er_error *err)
{
    char part[PATH_MAX];
    size_t n = strlen(path);
    bool open_to_all = false;
    struct stat st;

    if (n == 0 || n >= sizeof(part))
        return er_error_set(err, n ? -ENAMETOOLONG : -EINVAL, "folder name of %zu bytes", n);
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if ((part[i] && part[i] != '/') || part[i - 1] == '/')
            continue;
        part[i] = '\0';
        if (lstat(part, &st) < 0)
            return 0; /* the rest is not there either */
        if (open_to_all && st.st_uid != geteuid() && st.st_uid != 0)
            return er_error_set(err, -EPERM,
                                "'%s' belongs to user %u, in a folder that everybody can write to: "
                                "give another folder, or remove it",
                                part, (unsigned)st.st_uid);
        open_to_all = stat(part, &st) == 0 && (st.st_mode & S_IWOTH);
        part[i] = path[i];
    }
    return 0;
}

int er_mkdir_all_own(const char *path, mode_t mode, struct er_error *err)
{
    int rc = check_owners(path, err);

    if (!rc)
        rc = er_mkdir_all(path, mode, err);
    return rc ? rc : check_owners(path, err); /* somebody may have been faster */
}

int er_mkdir_private(const char *path, struct er_error *err)
{
    struct stat st;

    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return er_error_errno(err, "make the folder '%s'", path);
    if (lstat(path, &st) < 0)
        return er_error_errno(err, "folder '%s'", path);
    if (!S_ISDIR(st.st_mode))
        return er_error_set(err, -ENOTDIR, "'%s' is no folder", path);
    if (st.st_uid != geteuid())
        return er_error_set(err, -EPERM, "folder '%s' belongs to somebody else", path);
    if ((st.st_mode & 077) && chmod(path, 0700) < 0)
        return er_error_errno(err, "keep others out of '%s'", path);
    return 0;
}

int er_fsync_dir(const char *path, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int fd = open_dir(path, err);

    return fd < 0 ? fd : sync_dir(fd, path, err);
}

/* One open folder on the way down; `name` is how its parent knows it. */
struct level {
    DIR *dir;
    char name[NAME_MAX + 1];
    bool removed_some; /* since the last scan began: scan again, as readdir() may have skipped
                          entries */
};

struct walk {
    const char *path; /* for messages */
    unsigned depth;
    struct level levels[DEPTH_MAX];
};

static int enter(struct walk *w, int parent, const char *name, struct er_error *err)
{
    struct level *level = &w->levels[w->depth];
    int fd;

    if (w->depth == DEPTH_MAX)
        return er_error_set(err, -ENAMETOOLONG, "remove '%s': more than %d folders deep", w->path,
                            DEPTH_MAX);
    fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return 0;
    if (fd < 0)
        return er_error_errno(err, "remove '%s': open folder '%s'", w->path, name);
    level->dir = fdopendir(fd);
    if (!level->dir) {
        close(fd);
        return er_error_errno(err, "remove '%s': read folder '%s'", w->path, name);
    }
    snprintf(level->name, sizeof(level->name), "%s", name);
    level->removed_some = false;
    w->depth++;
    return 0;
}

/* The folder on top has been read to its end: scan again or drop it and remove it from its parent.
 */
static int leave(struct walk *w, struct er_error *err)
{
    struct level *level = &w->levels[w->depth - 1];

    if (level->removed_some) {
        level->removed_some = false;
        rewinddir(level->dir);
        return 0;
    }
    closedir(level->dir);
    w->depth--;
    if (w->depth == 0)
        return 0; /* the caller removes the outermost one, by its path */
    if (unlinkat(dirfd(level[-1].dir), level->name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        return er_error_errno(err, "remove '%s': folder '%s'", w->path, level->name);
    level[-1].removed_some = true;
    return 0;
}

static int remove_entry(struct walk *w, const char *name, struct er_error *err)
{
    struct level *level = &w->levels[w->depth - 1];

    if (!strcmp(name, ".") || !strcmp(name, ".."))
        return 0;
    if (unlinkat(dirfd(level->dir), name, 0) == 0) {
        level->removed_some = true;
        return 0;
    }
    if (errno == ENOENT)
        return 0;
    if (errno != EISDIR)
        return er_error_errno(err, "remove '%s': '%s'", w->path, name);
    return enter(w, dirfd(level->dir), name, err);
}

static int remove_below(struct walk *w, struct er_error *err)
{
    int rc = 0;

    while (!rc && w->depth > 0) {
        const struct dirent *entry;

        errno = 0;
        entry = readdir(w->levels[w->depth - 1].dir);
        if (entry)
            rc = remove_entry(w, entry->d_name, err);
        else if (errno)
            rc = er_error_errno(err, "remove '%s': read a folder", w->path);
        else
            rc = leave(w, err);
    }
    while (w->depth > 0)
        closedir(w->levels[--w->depth].dir);
    return rc;
}

int er_remove_all(const char *path, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) struct walk *w = NULL;
    char bare[PATH_MAX]; /* a trailing slash would make the kernel follow a link */
    size_t n = strlen(path);
    int rc;

    while (n > 1 && path[n - 1] == '/')
        n--;
    if (n == 0 || n >= sizeof(bare) || (n == 1 && path[0] == '/'))
        return er_error_set(err, -EINVAL, "remove '%s': not a name that may be removed", path);
    memcpy(bare, path, n);
    bare[n] = '\0';
    if (unlink(bare) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR)
        return er_error_errno(err, "remove '%s'", path);
    w = malloc(sizeof(*w));
    if (!w)
        return er_error_set(err, -ENOMEM, "remove '%s': out of memory", path);
    w->path = path;
    w->depth = 0;
    rc = enter(w, AT_FDCWD, bare, err);
    if (!rc)
        rc = remove_below(w, err);
    if (!rc && rmdir(bare) < 0 && errno != ENOENT)
        rc = er_error_errno(err, "remove '%s'", path);
    return rc;
}
