#pragma once
/*
 * Whole files and folders. er_file_replace() is the only way the tree publishes a file: temporary
 * name in the same folder, write, fsync, rename, fsync of the folder; after a crash at any instant
 * the old content or the new is there, never a mixture, and a failed call leaves the old one and no
 * temporary behind.
 */
#include <stddef.h>
#include <sys/types.h>

#include "base/buf.h"

/* The file gets exactly `mode`, whatever the umask; a link at `path` is replaced, not followed. The
 * one failure after the rename is that of the folder's fsync: the new content is then in place, but
 * may not survive a power cut. */
int er_file_replace(const char *path, const void *data, size_t n, mode_t mode,
                    struct er_error *err);
/* Appends the content to `buf`, whose limit applies: a longer file is -EFBIG. On failure `buf`
 * holds what it held before. */
int er_file_read(const char *path, struct er_buf *buf, struct er_error *err);
/* The same where another program may have put something else: -EINVAL for what is no regular file
 * (a pipe would be waited for, a device has no end). */
int er_file_read_plain(const char *path, struct er_buf *buf, struct er_error *err);
/* The same of a secret: ER_E_CONFIG when every user of the host may read or write it. */
int er_file_read_secret(const char *path, struct er_buf *buf, struct er_error *err);
/* As mkdir -p; an existing folder is success. */
int er_mkdir_all(const char *path, mode_t mode, struct er_error *err);
/* The same where others may have been before: in a folder that everybody can write to (/tmp), a
 * part of the path that is neither ours nor root's is -EPERM; whoever it belongs to could lead what
 * we write elsewhere. */
int er_mkdir_all_own(const char *path, mode_t mode, struct er_error *err);
/* One folder for nobody but us, mode 0700: made, or there already and then taken from all others.
 * -ENOTDIR: something else is there, a link too; -EPERM: somebody else's folder (/tmp belongs to
 * everybody). */
int er_mkdir_private(const char *path, struct er_error *err);
int er_fsync_dir(const char *path, struct er_error *err);
/* As rm -rf, never following links; a missing path is success. At most 128 folders deep, below that
 * -ENAMETOOLONG. */
int er_remove_all(const char *path, struct er_error *err);
