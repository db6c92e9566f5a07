#include "trainer/sync.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "trainer/engine_ops.h"

#define WINDOW      32 /* broadcasts in flight; more would only wait in the communicator's ring */
#define PIECE_BYTES (1 << 20) /* of a GPU's memory at a time, on its way to a digest */

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

size_t er_sync_notes_bytes(int size)
{
    return ((size_t)size + 1) * ER_SYNC_NOTE_BYTES;
}

int er_sync_gather_at(const struct er_sync_place *place, const void *mine, size_t n, void *all,
                      struct er_error *err)
{
    char *notes = place->notes;
    int rc;

    if (place->control)
        return er_sync_gather(place->control, mine, n, all, err);
    assert(n <= ER_SYNC_NOTE_BYTES);
    memcpy(notes, mine, n);
    rc = er_sync_gather(place->wire, notes, n, notes + ER_SYNC_NOTE_BYTES, err);
    if (rc == 0)
        memcpy(all, notes + ER_SYNC_NOTE_BYTES, n * (size_t)er_comm_size(place->wire));
    return rc;
}

/* Gathers everybody's digest; `code` and `what` when they are not all the same. */
static int agree(const struct er_sync_place *place, struct er_digest mine, int code,
                 const char *what, struct er_error *err)
{
    int size = er_comm_size(place->wire), odd, rc;
    ER_CLEANUP(er_cleanup_free) struct er_digest *all = calloc((size_t)size, sizeof(*all));

    if (!all)
        return er_error_set(err, -ENOMEM, "digests of %d ranks", size);
    rc = er_sync_gather_at(place, &mine, sizeof(mine), all, err);
    if (rc < 0)
        return rc;
    odd = other_than_first(all, size);
    if (odd >= 0)
        return er_error_set(err, code, "state of rank %d %s rank 0's", odd, what);
    return 0;
}

static void add_names(struct er_hasher *hasher, const struct er_sync_part *parts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        er_hasher_add(hasher, parts[i].name, strlen(parts[i].name) + 1);
        er_hasher_add(hasher, &parts[i].bytes, sizeof(parts[i].bytes));
    }
}

static int add_content(const struct er_sync_place *place, struct er_hasher *hasher,
                       const struct er_sync_part *parts, size_t n, struct er_error *err)
{
    bool of_host = place->engine->ops->of_host;
    ER_CLEANUP(er_cleanup_free) char *piece = of_host ? NULL : malloc(PIECE_BYTES);
    int rc = 0;

    if (!of_host && !piece)
        return er_error_set(err, -ENOMEM, "digest");
    for (size_t i = 0; i < n; i++) {
        const char *from = parts[i].ptr;

        if (of_host)
            er_hasher_add(hasher, from, parts[i].bytes);
        for (size_t at = 0, bytes; !of_host && at < parts[i].bytes && rc == 0; at += bytes) {
            bytes = parts[i].bytes - at < PIECE_BYTES ? parts[i].bytes - at : PIECE_BYTES;
            rc = place->engine->ops->get(place->engine, piece, from + at, bytes, err);
            er_hasher_add(hasher, piece, rc == 0 ? bytes : 0);
        }
    }
    return rc;
}

/* Digest of names and sizes, or of the bytes themselves. */
static int digest_parts(const struct er_sync_place *place, const struct er_sync_part *parts,
                        size_t n, bool content, struct er_digest *ret, struct er_error *err)
{
    ER_CLEANUP(er_hasher_free_cleanup) struct er_hasher *hasher = er_hasher_new();
    int rc = 0;

    if (!hasher)
        return er_error_set(err, -ENOMEM, "digest");
    if (content)
        rc = add_content(place, hasher, parts, n, err);
    else
        add_names(hasher, parts, n);
    *ret = er_hasher_get(hasher);
    return rc;
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

/* Whether all hold the same parts; then, whether they hold the same bytes. */
static int agree_names(const struct er_sync_place *place, const struct er_sync_part *parts,
                       size_t n, struct er_error *err)
{
    struct er_digest digest;
    int rc = digest_parts(place, parts, n, false, &digest, err);

    return rc ? rc : agree(place, digest, ER_E_MISMATCH, "has other names or sizes than", err);
}

static int agree_content(const struct er_sync_place *place, const struct er_sync_part *parts,
                         size_t n, const char *what, struct er_error *err)
{
    struct er_digest digest;
    int rc = digest_parts(place, parts, n, true, &digest, err);

    return rc ? rc : agree(place, digest, ER_E_CORRUPT, what, err);
}

int er_sync_parts_at(const struct er_sync_place *place, const struct er_sync_part *parts, size_t n,
                     struct er_error *err)
{
    int rc = agree_names(place, parts, n, err);

    if (rc == 0 && place->engine->stream) /* what fills them */
        rc = er_comm_after(place->wire, place->engine->stream, err);
    if (rc == 0)
        rc = transfer(place->wire, parts, n, begin_broadcast, 0, err);
    return rc ? rc : agree_content(place, parts, n, "differs after the transfer from", err);
}

static struct er_sync_place on_host(struct er_comm *comm)
{
    return (struct er_sync_place){.engine = er_engine_cpu(), .wire = comm, .control = comm};
}

int er_sync_same(struct er_comm *comm, const struct er_sync_part *parts, size_t n,
                 struct er_error *err)
{
    const struct er_sync_place place = on_host(comm);

    return agree_names(&place, parts, n, err);
}

int er_sync_parts(struct er_comm *comm, const struct er_sync_part *parts, size_t n,
                  struct er_error *err)
{
    const struct er_sync_place place = on_host(comm);

    return er_sync_parts_at(&place, parts, n, err);
}

int er_sync_moves(struct er_comm *comm, const struct er_sync_part *parts, size_t n,
                  const struct er_sync_move *moves, size_t moves_n, struct er_error *err)
{
    const struct er_sync_place place = on_host(comm);
    int rank = er_comm_rank(comm), rc = agree_names(&place, parts, n, err);

    for (size_t i = 0; rc == 0 && i < moves_n; i++) {
        if (moves[i].from == rank)
            rc = transfer(comm, parts, n, begin_send, moves[i].to, err);
        else if (moves[i].to == rank)
            rc = transfer(comm, parts, n, begin_recv, moves[i].from, err);
    }
    return rc ? rc : agree_content(&place, parts, n, "differs from", err);
}
