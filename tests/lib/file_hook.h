#pragma once
/*
 * The file layer under a test's control: the linker leads the calls below here (`--wrap`, see
 * file_hook_dep). `before` may fail an operation, shorten a write, or hold it;
 * `after` sees what has been done. Paths are absolute.
 */
#include <stddef.h>
#include <stdint.h>

#define ER_FILE_OPS(X)                                                                             \
    X(CREATE)                                                                                      \
    X(WRITE) X(TRUNCATE) X(ALLOCATE) X(FSYNC) X(MKDIR) X(RENAME) X(EXCHANGE) X(UNLINK) X(RMDIR)

enum er_file_op_kind {
#define ER_FILE_OP_ENUM(name) ER_FILE_##name,
    ER_FILE_OPS(ER_FILE_OP_ENUM)
#undef ER_FILE_OP_ENUM
};

struct er_file_op {
    enum er_file_op_kind kind;
    const char *path, *to; /* to: RENAME, EXCHANGE */
    uint64_t offset;       /* WRITE */
    const void *data;      /* WRITE */
    size_t n;              /* WRITE, TRUNCATE, ALLOCATE: bytes */
};

/* < 0: the call fails with that error; WRITE: may lower *ret_n, the bytes that are written. Not
 * under the lock, so that it may block. */
extern int (*_Atomic er_file_before)(const struct er_file_op *op, size_t *ret_n);
/* Only after success; under the lock that keeps operations one after the other. */
extern void (*_Atomic er_file_after)(const struct er_file_op *op);
