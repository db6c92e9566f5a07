#include "agent/keeper_home.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"

#define TRIES    100 /* a keeper that ends removes the folder under us */
#define TMP_BASE "/tmp/"

static void base_of(const char *home, char ret[ER_KEEPER_HOME_MAX])
{
    snprintf(ret, ER_KEEPER_HOME_MAX, "%.*s", (int)(strrchr(home, '/') - home), home);
}

/* -EAGAIN: its last owner has removed it meanwhile. */
static int lock(const char *path, int *ret_fd)
{
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    struct stat ours, there;
    int rc = er_mkdir_private(path, NULL);

    if (rc)
        return rc == -ENOENT ? -EAGAIN : rc;
    fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? -EAGAIN : -errno;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? -EBUSY : -errno;
    if (fstat(fd, &ours) < 0)
        return -errno;
    if (stat(path, &there) < 0 || there.st_ino != ours.st_ino || there.st_dev != ours.st_dev)
        return -EAGAIN;
    *ret_fd = ER_TAKE_FD(fd);
    return 0;
}

static int lock_home(const char *path, int *ret_fd)
{
    char base[ER_KEEPER_HOME_MAX];
    int rc = -EAGAIN;

    base_of(path, base);
    for (int i = 0; rc == -EAGAIN && i < TRIES; i++) {
        rc = er_mkdir_private(base, NULL);
        if (!rc)
            rc = lock(path, ret_fd);
        else if (rc == -ENOENT)
            rc = -EAGAIN;
    }
    return rc == -EAGAIN ? -EBUSY : rc;
}

/* A killed etcd's and keeper's files; of the log the last end is worth keeping until the next. */
static void sweep(const char *path)
{
    static const char *const FILES[] = {ER_KEEPER_SOCKET, ER_KEEPER_MEMBER, ER_KEEPER_CA,
                                        ER_KEEPER_CERT,   ER_KEEPER_KEY,    "peer:0"};
    char file[ER_KEEPER_HOME_MAX + 16];

    for (size_t i = 0; i < ER_ARRAY_N(FILES); i++) {
        snprintf(file, sizeof(file), "%s/%s", path, FILES[i]);
        unlink(file);
    }
}

int er_keeper_home_open(struct er_keeper_home *ret, const struct er_keeper_opts *opts,
                        struct er_error *err)
{
    struct er_keeper_home home = {.fd = -1};
    int rc = lock_home(opts->home, &home.fd);

    if (rc)
        return er_error_set(err, rc, "make the folder of the managed etcd, '%s': %s", opts->home,
                            er_error_name(rc));
    strcpy(home.path, opts->home);
    sweep(home.path);
    if (opts->fresh)
        rc = er_remove_all(opts->data, err);
    if (!rc)
        rc = er_mkdir_all_own(opts->data, 0700, err);
    if (!rc && chmod(opts->data, 0700) < 0) /* etcd insists */
        rc = er_error_errno(err, "make '%s' private", opts->data);
    if (rc) {
        er_keeper_home_close(&home, opts);
        return er_error_wrap(err, rc, "rendezvous.managed.data_dir");
    }
    *ret = home;
    return 0;
}

void er_keeper_home_close(struct er_keeper_home *home, const struct er_keeper_opts *opts)
{
    char base[ER_KEEPER_HOME_MAX], parent[ER_KEEPER_PATH_MAX];
    char *slash;

    if (!home->path[0])
        return;
    if (!opts->keep_data) {
        er_remove_all(opts->data, NULL);
        /* The job's own folder, when nothing else is in it. */
        strcpy(parent, opts->data);
        slash = strrchr(parent, '/');
        if (slash && slash != parent) {
            *slash = '\0';
            (void)rmdir(parent);
        }
    }
    er_remove_all(home->path, NULL);
    base_of(home->path, base);
    if (strncmp(base, TMP_BASE, strlen(TMP_BASE)) == 0)
        (void)rmdir(base);
    er_cleanup_fd(&home->fd);
    home->path[0] = '\0';
}

int er_keeper_home_tell(const struct er_keeper_home *home, const struct er_keeper_opts *opts,
                        int keeper_pid, int etcd_pid, struct er_error *err)
{
    char path[ER_KEEPER_HOME_MAX + 16];
    struct er_buf text;
    int rc;

    er_buf_init(&text, 8192);
    snprintf(path, sizeof(path), "%s/" ER_KEEPER_MEMBER, home->path);
    rc = er_buf_printf(&text, "job %s\nmember %u\nendpoints %s\nkeeper %d\netcd %d\ndata %s\n",
                       opts->name, opts->index, opts->endpoints, keeper_pid, etcd_pid, opts->data);
    if (!rc)
        rc = er_file_replace(path, text.data, text.len, 0600, err);
    er_buf_done(&text);
    return rc;
}
