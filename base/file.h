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
/* As mkdir -p; an existing folder is success. */
int er_mkdir_all(const char *path, mode_t mode, struct er_error *err);
int er_fsync_dir(const char *path, struct er_error *err);
/* As rm -rf, never following links; a missing path is success. At most 128 folders deep, below that
 * -ENAMETOOLONG. */
int er_remove_all(const char *path, struct er_error *err);
