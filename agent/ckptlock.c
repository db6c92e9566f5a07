#include "agent/ckptlock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"

#define NAME_MAX_BYTES 256
#define TRIES          100 /* while others write their name, which takes an instant */
#define TRY_MS         10

static void read_name(int fd, char ret[NAME_MAX_BYTES])
{
    ssize_t n = pread(fd, ret, NAME_MAX_BYTES - 1, 0);

    ret[n > 0 ? n : 0] = '\0';
    ret[strcspn(ret, "\n")] = '\0';
}

/* Nobody else uses the folder: it is this job's now. */
static int write_name(int fd, const char *job)
{
    char line[NAME_MAX_BYTES];
    int n = snprintf(line, sizeof(line), "%.*s\n", NAME_MAX_BYTES - 2, job);

    return ftruncate(fd, 0) < 0 ? -errno : er_pwrite_all(fd, line, (size_t)n, 0);
}

static bool is_held(int rc)
{
    return rc < 0 && (errno == EWOULDBLOCK || errno == EINTR);
}

/* 0: shared with those of the same name; 1: somebody is writing, once more; -EBUSY: `ret_other`;
 * another failure: no locks here. */
static int try_lock(int fd, const char *job, char ret_other[NAME_MAX_BYTES])
{
    int rc = flock(fd, LOCK_EX | LOCK_NB);

    if (rc == 0)
        rc = write_name(fd, job);
    else if (is_held(rc))
        rc = 0;
    else
        rc = -errno;
    if (rc < 0)
        return rc;
    if (flock(fd, LOCK_SH | LOCK_NB) < 0)
        return is_held(-1) ? 1 : -errno;
    read_name(fd, ret_other); /* turning one lock into the other lets others in between */
    return strncmp(ret_other, job, NAME_MAX_BYTES - 2) == 0 ? 0 : -EBUSY;
}

int er_ckptlock_take(const char *dir, const char *job, int *ret_fd, struct er_error *err)
{
    char path[PATH_MAX], other[NAME_MAX_BYTES] = "";
    int rc = 1;

    *ret_fd = -1;
    if (snprintf(path, sizeof(path), "%s/.job", dir) >= (int)sizeof(path))
        return 0;
    ER_CLEANUP(er_cleanup_fd)
    int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    for (int i = 0; fd >= 0 && rc == 1 && i < TRIES; i++) {
        rc = try_lock(fd, job, other);
        if (rc == 1)
            poll(NULL, 0, TRY_MS);
    }
    if (rc == -EBUSY)
        return er_error_set(err, -EBUSY,
                            "'%s' is in use by job '%s': give each job a folder of its own", dir,
                            other);
    if (rc == 0)
        *ret_fd = ER_TAKE_FD(fd);
    return 0;
}
