#include "trainer/sync.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"

#define WINDOW 32 /* broadcasts in flight; more would only wait in the communicator's ring */

ER_CLEANUP_FOR(er_hasher_free, struct er_hasher)

int er_sync_gather(struct er_comm *comm, const void *mine, size_t n, void *all,
                   struct er_error *err)
{
    struct er_op *op;
    int rc = er_all_gather(comm, mine, n, all, &op, err);

    return rc < 0 ? rc : er_op_wait(op, UINT64_MAX, err);
}

/* First rank whose digest is not rank 0's, or -1. */
static int other_than_first(const struct er_digest *all, int size)
{
    for (int rank = 1; rank < size; rank++) {
        if (!er_digest_equal(all[rank], all[0]))
            return rank;
    }
    return -1;
}

/* Gathers everybody's digest; `code` and `what` when they are not all the same. */
static int agree(struct er_comm *comm, struct er_digest mine, int code, const char *what,
                 struct er_error *err)
{
    int size = er_comm_size(comm), odd, rc;
    ER_CLEANUP(er_cleanup_free) struct er_digest *all = calloc((size_t)size, sizeof(*all));

    if (!all)
        return er_error_set(err, -ENOMEM, "digests of %d ranks", size);
    rc = er_sync_gather(comm, &mine, sizeof(mine), all, err);
    if (rc < 0)
        return rc;
    odd = other_than_first(all, size);
    if (odd >= 0)
        return er_error_set(err, code, "state of rank %d %s rank 0's", odd, what);
    return 0;
}

/* Digest of names and sizes, or of the bytes themselves. */
static int digest_parts(const struct er_sync_part *parts, size_t n, bool content,
                        struct er_digest *ret, struct er_error *err)
{
    ER_CLEANUP(er_hasher_free_cleanup) struct er_hasher *hasher = er_hasher_new();

    if (!hasher)
        return er_error_set(err, -ENOMEM, "digest");
    for (size_t i = 0; i < n; i++) {
        if (content) {
            er_hasher_add(hasher, parts[i].ptr, parts[i].bytes);
        } else {
            er_hasher_add(hasher, parts[i].name, strlen(parts[i].name) + 1);
            er_hasher_add(hasher, &parts[i].bytes, sizeof(parts[i].bytes));
        }
    }
    *ret = er_hasher_get(hasher);
    return 0;
}

typedef int (*begin_fn)(struct er_comm *comm, const struct er_sync_part *part, int peer,
                        struct er_op **ret, struct er_error *err);

static int begin_broadcast(struct er_comm *comm, const struct er_sync_part *part, int peer,
                           struct er_op **ret, struct er_error *err)
{
    return er_broadcast(comm, part->ptr, part->bytes, ER_U8, peer, ret, err);
}

static int begin_send(struct er_comm *comm, const struct er_sync_part *part, int peer,
                      struct er_op **ret, struct er_error *err)
{
    return er_send(comm, part->ptr, part->bytes, ER_U8, peer, ret, err);
}

static int begin_recv(struct er_comm *comm, const struct er_sync_part *part, int peer,
                      struct er_op **ret, struct er_error *err)
{
    return er_recv(comm, part->ptr, part->bytes, ER_U8, peer, ret, err);
}

/* One operation for each part, WINDOW of them under way. */
static int transfer(struct er_comm *comm, const struct er_sync_part *parts, size_t n,
                    begin_fn begin, int peer, struct er_error *err)
{
    struct er_op *flight[WINDOW];

    for (size_t i = 0; i < n + WINDOW; i++) {
        struct er_op **slot = &flight[i % WINDOW];
        int rc = 0;

        if (i >= WINDOW && i - WINDOW < n)
            rc = er_op_wait(*slot, UINT64_MAX, err);
        if (rc < 0)
            return er_error_wrap(err, rc, "state '%s'", parts[i - WINDOW].name);
        if (i < n)
            rc = begin(comm, &parts[i], peer, slot, err);
        if (rc < 0)
            return er_error_wrap(err, rc, "state '%s'", parts[i].name);
    }
    return 0;
}

int er_sync_parts(struct er_comm *comm, const struct er_sync_part *parts, size_t n,
                  struct er_error *err)
{
    struct er_digest digest;
    int rc = digest_parts(parts, n, false, &digest, err);

    if (rc == 0)
        rc = agree(comm, digest, ER_E_MISMATCH, "has other names or sizes than", err);
    if (rc == 0)
        rc = transfer(comm, parts, n, begin_broadcast, 0, err);
    if (rc == 0)
        rc = digest_parts(parts, n, true, &digest, err);
    if (rc == 0)
        rc = agree(comm, digest, ER_E_CORRUPT, "differs after the transfer from", err);
    return rc;
}

int er_sync_moves(struct er_comm *comm, const struct er_sync_part *parts, size_t n,
                  const struct er_sync_move *moves, size_t moves_n, struct er_error *err)
{
    int rank = er_comm_rank(comm), rc;
    struct er_digest digest;

    rc = digest_parts(parts, n, false, &digest, err);
    if (rc == 0)
        rc = agree(comm, digest, ER_E_MISMATCH, "has other names or sizes than", err);
    for (size_t i = 0; rc == 0 && i < moves_n; i++) {
        if (moves[i].from == rank)
            rc = transfer(comm, parts, n, begin_send, moves[i].to, err);
        else if (moves[i].to == rank)
            rc = transfer(comm, parts, n, begin_recv, moves[i].from, err);
    }
    if (rc == 0)
        rc = digest_parts(parts, n, true, &digest, err);
    if (rc == 0)
        rc = agree(comm, digest, ER_E_CORRUPT, "differs from", err);
    return rc;
}
