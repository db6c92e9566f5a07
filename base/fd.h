#pragma once
/* Descriptors: flags, whole reads and writes, passing. Functions return 0 or -errno unless said. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

/* Does the process at the other end of a Unix socket belong to this one's user, or to root? */
bool er_fd_peer_is_own(int fd);

/* For all who share the open file, not for this descriptor alone. */
int er_fd_nonblock(int fd);
/* `on` 0: the descriptor is inherited by programs that are executed. */
int er_fd_cloexec(int fd, int on);
/* Memory of `bytes`, all 0, behind a new descriptor: sealed against shrinking, so that who maps it
 * may touch all of it; close-on-exec. `name` shows in /proc only. Returns the fd, the caller's, or
 * -errno. */
int er_memfd(const char *name, size_t bytes);

/*
 * All `n` bytes or an error; EINTR is tried again. For blocking descriptors: a non-blocking one
 * gives -EAGAIN with an unknown part done, as does any failure. The p-forms neither use nor move
 * the file's position. Reads: the end of the file before n bytes is -ENODATA.
 */
int er_write_all(int fd, const void *data, size_t n);
int er_read_all(int fd, void *data, size_t n);
int er_pwrite_all(int fd, const void *data, size_t n, off_t offset);
int er_pread_all(int fd, void *data, size_t n, off_t offset);

/* A descriptor of our own for writing to what `fd` is, close-on-exec, that never makes us wait: for
 * a pipe, FIFO or terminal a new open file description with O_NONBLOCK (the one we were given is
 * shared with others and cannot be changed), else a duplicate. Returns the fd or -errno. */
int er_fd_own_output(int fd);
/* Writes what `fd` (of er_fd_own_output()) takes, waiting at most `wait_us` in all for room. Bytes
 * written, fewer than n when it did not take more; -errno when it is broken and nothing was
 * written. */
ssize_t er_write_some(int fd, const void *data, size_t n, uint64_t wait_us);

/* One byte plus one descriptor over a Unix socket, `fd` stays open here. er_recv_fd returns the
 * (close-on-exec) fd, the caller's, or -errno: -ENODATA at end of file, -EBADMSG for a byte without
 * one, -EMSGSIZE for several. */
int er_send_fd(int sock, int fd);
int er_recv_fd(int sock);
