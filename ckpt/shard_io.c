#include "ckpt/shard_io.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"

#define ALIGN            4096u
#define DIRECT_MIN_BYTES (1u << 20) /* below, the page cache is as fast */

struct out {
    int fd;
    bool direct;
    uint64_t bytes;
};

/* Some file systems take O_DIRECT at open and refuse it when written to. */
static int go_buffered(struct out *out)
{
    int flags = fcntl(out->fd, F_GETFL);

    if (flags < 0 || fcntl(out->fd, F_SETFL, flags & ~O_DIRECT) < 0)
        return -errno;
    out->direct = false;
    return 0;
}

static int write_range(struct out *out, const char *data, uint64_t at, uint64_t end)
{
    int rc;

    if (out->direct)
        end = (end + ALIGN - 1) / ALIGN * ALIGN; /* the tail; cut off again afterwards */
    rc = er_pwrite_all(out->fd, data, (size_t)(end - at), (off_t)at);
    if (rc != -EINVAL || !out->direct)
        return rc;
    rc = go_buffered(out);
    if (end > out->bytes)
        end = out->bytes;
    return rc < 0 ? rc : er_pwrite_all(out->fd, data, (size_t)(end - at), (off_t)at);
}

static int write_all(struct out *out, er_bytes_fn from, void *user)
{
    for (uint64_t at = 0; at < out->bytes;) {
        uint64_t end =
            out->bytes - at > ER_SHARD_WRITE_BYTES ? at + ER_SHARD_WRITE_BYTES : out->bytes;
        const char *data = from(user, at, end);
        int rc;

        if (!data)
            return -ECANCELED;
        rc = write_range(out, data, at, end);
        if (rc < 0)
            return rc;
        at = end;
    }
    return 0;
}

/* All of the space, or none of the work. */
static int ask_for_space(const struct out *out)
{
    int rc;

    do {
        rc = fallocate(out->fd, 0, 0, (off_t)out->bytes);
    } while (rc < 0 && errno == EINTR);
    if (rc < 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        return -errno;
    return 0;
}

static int open_out(struct out *out, const char *path, bool buffered)
{
    const int flags = O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC;

    out->direct = !buffered && out->bytes >= DIRECT_MIN_BYTES;
    out->fd = open(path, flags | (out->direct ? O_DIRECT : 0), 0666);
    if (out->fd < 0 && errno == EINVAL && out->direct) {
        /* The file has been made all the same on some file systems. */
        unlink(path);
        out->direct = false;
        out->fd = open(path, flags, 0666);
    }
    return out->fd < 0 ? -errno : 0;
}

int er_shard_write(const char *path, uint64_t bytes, bool buffered, er_bytes_fn from, void *user,
                   struct er_error *err)
{
    struct out out = {.bytes = bytes};
    int rc = open_out(&out, path, buffered);
    ER_CLEANUP(er_cleanup_fd) int fd = out.fd;

    if (rc < 0)
        return er_error_set(err, rc, "create '%s': %s", path, er_error_name(rc));
    rc = ask_for_space(&out);
    if (rc == 0)
        rc = write_all(&out, from, user);
    if (rc == 0 && out.direct && bytes % ALIGN && ftruncate(fd, (off_t)bytes) < 0)
        rc = -errno;
    if (rc == 0 && fsync(fd) < 0)
        rc = -errno;
    return rc < 0 ? er_error_set(err, rc, "write '%s': %s", path, er_error_name(rc)) : 0;
}
