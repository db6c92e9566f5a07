#pragma once
/* Writing a shard file: direct I/O where the file system can, space asked for beforehand, fsync. */
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define ER_SHARD_WRITE_BYTES (4u << 20)

/* Blocks until the file's bytes [at, end) are in memory, 4096-aligned as `at` is, readable up to
 * the next multiple of 4096, and stay so until it is asked for what follows. NULL: stop. */
typedef const char *(*er_bytes_fn)(void *user, uint64_t at, uint64_t end);

/*
 * Creates `path` with `bytes` bytes, asked for from the first to the last, ER_SHARD_WRITE_BYTES at
 * a time. 0 only when it is durable. -ECANCELED: `from` said stop; else the storage's error, and
 * what is there of the file stays.
 */
int er_shard_write(const char *path, uint64_t bytes, bool buffered, er_bytes_fn from, void *user,
                   struct er_error *err);
