#include "trainer/shards_wire.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "trainer/engine_ops.h"

#define BATCH_MAX  32         /* pieces that begin together; two batches are under way */
#define LOOK_BYTES (1u << 20) /* of a GPU's memory that are hashed at a time */

struct piece {
    struct er_op *op;
    const void *data; /* NULL: sent */
    size_t bytes;
    int from;
};

struct batch {
    struct piece piece[BATCH_MAX];
    size_t n;
};

struct er_shards_wire {
    struct er_comm *comm;
    struct er_engine *engine;
    int size;
    char *look;             /* on a GPU: LOOK_BYTES of the host's */
    struct er_digest *said; /* (2 size): what was sent to each rank, what each has sent; on a GPU
                               pinned */
    struct er_hasher **sent, **got; /* (size); NULL: nothing yet */
    struct batch batch[2];
    unsigned filling; /* which one; the other one is under way */
};

ER_CLEANUP_FOR(er_shards_wire_close, struct er_shards_wire)

static int take_memory(struct er_shards_wire *w, struct er_error *err)
{
    size_t bytes = 2 * (size_t)w->size * sizeof(*w->said);

    if (!w->engine->device) {
        w->said = calloc(1, bytes);
        return w->said ? 0 : er_error_set(err, -ENOMEM, "digests of %d ranks", w->size);
    }
    w->look = malloc(LOOK_BYTES);
    if (!w->look)
        return er_error_set(err, -ENOMEM, "digests of pieces");
    return er_device_alloc(w->engine->device, ER_MEMORY_PINNED, bytes, (void **)&w->said, err);
}

int er_shards_wire_open(struct er_shards_wire **ret, struct er_comm *comm, struct er_engine *engine,
                        struct er_error *err)
{
    ER_CLEANUP(er_shards_wire_close_cleanup) struct er_shards_wire *w = calloc(1, sizeof(*w));
    int rc;

    if (w) {
        w->comm = comm;
        w->engine = engine;
        w->size = er_comm_size(comm);
        w->sent = calloc((size_t)w->size, sizeof(struct er_hasher *));
        w->got = calloc((size_t)w->size, sizeof(struct er_hasher *));
    }
    if (!w || !w->sent || !w->got)
        return er_error_set(err, -ENOMEM, "transfers between %d ranks", er_comm_size(comm));
    rc = take_memory(w, err);
    if (rc < 0)
        return rc;
    *ret = ER_TAKE(w);
    return 0;
}

void er_shards_wire_close(struct er_shards_wire *w)
{
    for (int i = 0; w && i < w->size; i++) {
        if (w->sent)
            er_hasher_free(w->sent[i]);
        if (w->got)
            er_hasher_free(w->got[i]);
    }
    if (w) {
        free((void *)w->sent);
        free((void *)w->got);
        free(w->look);
        if (w->engine->device)
            er_device_free(w->engine->device, ER_MEMORY_PINNED, w->said);
        else
            free(w->said);
    }
    free(w);
}

static int add_hash(struct er_shards_wire *w, struct er_hasher **hasher, const void *data,
                    size_t bytes, struct er_error *err)
{
    int rc = 0;

    if (!*hasher)
        *hasher = er_hasher_new();
    if (!*hasher)
        return er_error_set(err, -ENOMEM, "digest");
    if (!w->look) {
        er_hasher_add(*hasher, data, bytes);
        return 0;
    }
    for (size_t at = 0, n; at < bytes && rc == 0; at += n) {
        n = bytes - at < LOOK_BYTES ? bytes - at : LOOK_BYTES;
        rc = er_engine_get(w->engine, w->look, (const char *)data + at, n, err);
        if (rc == 0)
            er_hasher_add(*hasher, w->look, n);
    }
    return rc;
}

static int finish(struct er_shards_wire *w, struct batch *batch, struct er_error *err)
{
    int rc = 0;

    for (size_t i = 0; i < batch->n && rc == 0; i++) {
        const struct piece *p = &batch->piece[i];

        rc = er_op_wait(p->op, UINT64_MAX, err);
        if (rc == 0 && p->data)
            rc = add_hash(w, &w->got[p->from], p->data, p->bytes, err);
    }
    batch->n = 0;
    return rc;
}

/* What was filled leaves, and what left before is waited for. */
static int flush(struct er_shards_wire *w, struct er_error *err)
{
    struct batch *batch = &w->batch[w->filling];
    int rc = batch->n > 0 ? er_group_end(w->comm, err) : 0;

    if (rc < 0) {
        batch->n = 0;
        return rc;
    }
    w->filling = 1 - w->filling;
    return finish(w, &w->batch[w->filling], err);
}

static int next_piece(struct er_shards_wire *w, struct piece **ret, struct er_error *err)
{
    struct batch *batch = &w->batch[w->filling];
    int rc = batch->n == BATCH_MAX ? flush(w, err) : 0;

    batch = &w->batch[w->filling];
    if (rc == 0 && batch->n == 0 && w->engine->stream) /* what is sent, or zeroed, is complete */
        rc = er_comm_after(w->comm, w->engine->stream, err);
    if (rc == 0 && batch->n == 0)
        rc = er_group_begin(w->comm, err);
    if (rc < 0)
        return rc;
    *ret = &batch->piece[batch->n];
    return 0;
}

int er_shards_wire_send(struct er_shards_wire *w, const void *data, size_t bytes, int to,
                        struct er_error *err)
{
    struct piece *p;
    int rc = next_piece(w, &p, err);

    if (rc == 0)
        rc = er_send(w->comm, data, bytes, ER_U8, to, &p->op, err);
    if (rc < 0)
        return rc;
    p->data = NULL;
    w->batch[w->filling].n++;
    return add_hash(w, &w->sent[to], data, bytes, err);
}

int er_shards_wire_recv(struct er_shards_wire *w, void *data, size_t bytes, int from,
                        struct er_error *err)
{
    struct piece *p;
    int rc = next_piece(w, &p, err);

    if (rc == 0)
        rc = er_recv(w->comm, data, bytes, ER_U8, from, &p->op, err);
    if (rc < 0)
        return rc;
    *p = (struct piece){.op = p->op, .data = data, .bytes = bytes, .from = from};
    w->batch[w->filling].n++;
    return 0;
}

static struct er_digest digest_of(const struct er_hasher *hasher)
{
    return hasher ? er_hasher_get(hasher) : (struct er_digest){0};
}

int er_shards_wire_check(struct er_shards_wire *w, struct er_error *err)
{
    struct er_digest *said = w->said, *heard = said + w->size;
    struct er_op *op;
    int rc = flush(w, err);

    if (rc == 0)
        rc = flush(w, err);
    if (rc < 0)
        return rc;
    for (int i = 0; i < w->size; i++)
        said[i] = digest_of(w->sent[i]);
    rc = er_all_to_all(w->comm, said, heard, sizeof(*said), ER_U8, &op, err);
    if (rc == 0)
        rc = er_op_wait(op, UINT64_MAX, err);
    for (int i = 0; i < w->size && rc == 0; i++) {
        if (!er_digest_equal(heard[i], digest_of(w->got[i])))
            rc = er_error_set(err, ER_E_CORRUPT, "what came from rank %d is not what it sent", i);
    }
    return rc;
}
