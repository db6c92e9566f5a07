#pragma once
/* Writing a shard file: direct I/O where the file system can, space asked for beforehand, fsync. */
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define ER_SHARD_WRITE_BYTES (4u << 20)

/* Blocks until the image is there up to `end`; false: stop. */
typedef bool (*er_ready_fn)(void *user, uint64_t end);

/*
 * Creates `path` with the image's first `bytes` bytes; `image` is 4096-aligned and may be read up
 * to the next multiple of 4096. 0 only when it is durable. -ECANCELED: `ready` said stop; else the
 * storage's error, and what is there of the file stays.
 */
int er_shard_write(const char *path, const char *image, uint64_t bytes, bool buffered,
                   er_ready_fn ready, void *user, struct er_error *err);
