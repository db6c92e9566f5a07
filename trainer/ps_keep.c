#include "trainer/ps_keep.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "base/pool.h"
#include "trainer/sync.h"

#define BLOCKS_MAX (1 + ER_FLAT_STATES_MAX)

void er_ps_keep_server(struct er_ps_keep *keep, struct er_ps_server *server, uint64_t lineage)
{
    er_ps_server_stop(server);
    er_ps_server_progress(server, &keep->at);
    keep->server = server;
    keep->lineage = lineage;
}

static void drop_pieces(struct er_ps_keep *keep)
{
    for (size_t i = 0; i < keep->pieces_n; i++)
        er_pool_free(keep->pieces[i].pool);
    keep->pieces_n = 0;
}

void er_ps_keep_drop(struct er_ps_keep *keep)
{
    er_ps_server_close(ER_TAKE(keep->server));
    drop_pieces(keep);
    keep->lineage = 0;
}

struct er_ps_held er_ps_keep_held(const struct er_ps_keep *keep)
{
    struct er_ps_held held = {.lineage = keep->lineage, .updates = keep->at.updates};

    if (keep->server)
        held.piece[held.n++] = er_ps_server_extent(keep->server);
    for (size_t i = 0; i < keep->pieces_n; i++)
        held.piece[held.n++] = keep->pieces[i].extent;
    return held;
}

/* ---- pushes that were in flight ---- */

struct settling {
    uint64_t each;                 /* entries of a rank */
    struct er_ps_pending *pending; /* (size, each); owned */
    uint8_t *counts;               /* likewise: a server knows that it does; owned */
};

static int gather_pending(const struct er_ps_keep *keep, struct er_comm *comm, struct settling *s,
                          struct er_error *err)
{
    size_t size = (size_t)er_comm_size(comm);
    ER_CLEANUP(er_cleanup_free) struct er_ps_pending *mine = calloc(s->each, sizeof(*mine));
    size_t n;

    s->pending = calloc(size * s->each, sizeof(*s->pending));
    s->counts = calloc(size * s->each, 1);
    if (!mine || !s->pending || !s->counts)
        return er_error_set(err, -ENOMEM, "pushes in flight");
    n = keep->server ? er_ps_server_pending(keep->server, mine, s->each) : 0;
    for (; n < s->each; n++)
        mine[n].worker = ER_PS_WORKERS_MAX; /* none */
    return er_sync_gather(comm, mine, s->each * sizeof(*mine), s->pending, err);
}

static int reduce_max(struct er_comm *comm, void *buf, size_t n, enum er_dtype dtype,
                      struct er_error *err)
{
    struct er_op *op;
    int rc = er_all_reduce(comm, buf, n, dtype, ER_MAX, &op, err);

    return rc < 0 ? rc : er_op_wait(op, UINT64_MAX, err);
}

static bool same_push(const struct er_ps_pending *a, const struct er_ps_pending *b)
{
    return a->worker == b->worker && a->incarnation == b->incarnation && a->seq == b->seq;
}

/* Whether an earlier entry is the same push, of another server. */
static bool is_told_before(const struct settling *s, size_t entry)
{
    for (size_t i = 0; i < entry; i++) {
        if (same_push(&s->pending[i], &s->pending[entry]))
            return true;
    }
    return false;
}

static void carry_out(struct er_ps_keep *keep, const struct settling *s, size_t n,
                      uint64_t *ret_counted, uint64_t *ret_dropped)
{
    for (size_t i = 0; i < n; i++) {
        if (s->pending[i].worker >= ER_PS_WORKERS_MAX)
            continue;
        if (!is_told_before(s, i))
            *(s->counts[i] ? ret_counted : ret_dropped) += 1;
        if (keep->server)
            er_ps_server_settle(keep->server, &s->pending[i], s->counts[i] != 0);
    }
    if (keep->server)
        er_ps_server_progress(keep->server, &keep->at);
}

static int settle_all(struct er_ps_keep *keep, struct er_comm *comm, struct settling *s,
                      uint64_t *ret_counted, uint64_t *ret_dropped, struct er_error *err)
{
    size_t n = (size_t)er_comm_size(comm) * s->each;
    int rc = gather_pending(keep, comm, s, err);

    if (rc < 0)
        return rc;
    for (size_t i = 0; i < n && keep->server; i++)
        s->counts[i] = er_ps_server_knows(keep->server, &s->pending[i]);
    rc = reduce_max(comm, s->counts, n, ER_U8, err);
    if (rc == 0)
        carry_out(keep, s, n, ret_counted, ret_dropped);
    return rc;
}

int er_ps_keep_settle(struct er_ps_keep *keep, struct er_comm *comm, uint64_t *ret_counted,
                      uint64_t *ret_dropped, struct er_error *err)
{
    struct settling s = {.each = keep->server ? er_ps_server_pending(keep->server, NULL, 0) : 0};
    int64_t most = (int64_t)s.each;
    int rc = reduce_max(comm, &most, 1, ER_I64, err);

    *ret_counted = *ret_dropped = 0;
    if (rc == 0 && (most < 0 || most > ER_PS_WORKERS_MAX))
        rc = er_error_set(err, ER_E_PROTOCOL, "%ld pushes in flight on one server", (long)most);
    s.each = (uint64_t)most;
    if (rc == 0 && most > 0)
        rc = settle_all(keep, comm, &s, ret_counted, ret_dropped, err);
    free(s.pending);
    free(s.counts);
    return rc < 0 ? er_error_wrap(err, rc, "pushes in flight") : 0;
}

/* ---- memory from rank to rank ---- */

/* Stretches of memory, one of each block, of a part of the state. */
struct stretch {
    float *at[BLOCKS_MAX];
    size_t blocks_n, count;
};

static struct er_digest digest_of(const struct stretch *s)
{
    struct er_digest parts[BLOCKS_MAX] = {{0}};

    for (size_t b = 0; b < s->blocks_n; b++)
        parts[b] = er_hash(s->at[b], s->count * sizeof(float));
    return er_hash(parts, sizeof(parts));
}

/* Up to the last operation that was begun, whatever becomes of the others: nothing is written here
 * any more then. The first failure. */
static int wait_all(struct er_op *const *ops, size_t n, int rc, struct er_error *err)
{
    for (size_t i = 0; i < n; i++) {
        int one = er_op_wait(ops[i], UINT64_MAX, rc == 0 ? err : NULL);

        rc = rc == 0 ? one : rc;
    }
    return rc;
}

static int send_stretch(struct er_comm *comm, const struct stretch *s, int to, struct er_error *err)
{
    struct er_op *ops[BLOCKS_MAX + 1];
    struct er_digest digest = digest_of(s);
    size_t n = 0;
    int rc = 0;

    for (size_t b = 0; b < s->blocks_n && rc == 0; b++) {
        rc = er_send(comm, s->at[b], s->count, ER_F32, to, &ops[n], err);
        n += rc == 0;
    }
    if (rc == 0) {
        rc = er_send(comm, &digest, sizeof(digest), ER_U8, to, &ops[n], err);
        n += rc == 0;
    }
    return wait_all(ops, n, rc, err);
}

static int receive_stretch(struct er_comm *comm, const struct stretch *s, int from,
                           struct er_error *err)
{
    struct er_op *ops[BLOCKS_MAX + 1];
    struct er_digest digest;
    size_t n = 0;
    int rc = 0;

    for (size_t b = 0; b < s->blocks_n && rc == 0; b++) {
        rc = er_recv(comm, s->at[b], s->count, ER_F32, from, &ops[n], err);
        n += rc == 0;
    }
    if (rc == 0) {
        rc = er_recv(comm, &digest, sizeof(digest), ER_U8, from, &ops[n], err);
        n += rc == 0;
    }
    rc = wait_all(ops, n, rc, err);
    if (rc == 0 && !er_digest_equal(digest, digest_of(s)))
        return er_error_set(err, ER_E_CORRUPT,
                            "state of a parameter server: rank %d sent something else", from);
    return rc;
}

static struct stretch of_server(const struct er_ps_keep *keep, const struct er_ps_server *server,
                                struct er_ps_extent part)
{
    size_t offset = part.first - er_ps_server_extent(server).first;
    struct stretch s = {.blocks_n = keep->blocks_n, .count = part.count};

    for (size_t b = 0; b < s.blocks_n; b++)
        s.at[b] = er_ps_server_block(server, b) + offset;
    return s;
}

static struct stretch of_piece(const struct er_ps_keep *keep, const struct er_ps_piece *piece,
                               struct er_ps_extent part)
{
    size_t offset = part.first - piece->extent.first;
    struct stretch s = {.blocks_n = keep->blocks_n, .count = part.count};

    for (size_t b = 0; b < s.blocks_n; b++)
        s.at[b] = piece->block[b] + offset;
    return s;
}

static bool has(struct er_ps_extent extent, struct er_ps_extent part)
{
    return part.first >= extent.first && part.first - extent.first < extent.count;
}

/* Where this rank has what the plan says it has. */
static struct stretch of_held(const struct er_ps_keep *keep, struct er_ps_extent part)
{
    if (keep->server && has(er_ps_server_extent(keep->server), part))
        return of_server(keep, keep->server, part);
    for (size_t i = 0; i < keep->pieces_n; i++) {
        if (has(keep->pieces[i].extent, part))
            return of_piece(keep, &keep->pieces[i], part);
    }
    return (struct stretch){0};
}

/* ---- to the servers of a new generation ---- */

int er_ps_keep_share_progress(const struct er_ps_keep *keep, struct er_comm *comm, int source,
                              struct er_ps_progress *ret, struct er_error *err)
{
    struct er_op *op;
    int rc;

    *ret = keep->at;
    rc = er_broadcast(comm, ret, sizeof(*ret), ER_U8, source, &op, err);
    return rc < 0 ? rc : er_op_wait(op, UINT64_MAX, err);
}

bool er_ps_keep_stands(const struct er_ps_keep *keep, const struct er_ps_held *newest,
                       struct er_ps_extent extent)
{
    const struct er_ps_extent old =
        keep->server ? er_ps_server_extent(keep->server) : (struct er_ps_extent){0};

    return keep->server && keep->lineage == newest->lineage &&
           keep->at.updates == newest->updates && old.first == extent.first &&
           old.count == extent.count;
}

struct bringing {
    const struct er_ps_keep *keep;
    struct er_comm *comm;
    struct er_ps_server *server;
};

static int move_part(void *user, const struct er_ps_move *move, struct er_error *err)
{
    const struct bringing *b = user;
    int rank = er_comm_rank(b->comm);
    struct stretch from = {0}, to = {0};

    if (move->from == rank)
        from = of_held(b->keep, move->extent);
    if (move->to == rank && er_ps_server_block(b->server, 0))
        to = of_server(b->keep, b->server, move->extent);
    if (move->from == rank && move->to != rank)
        return send_stretch(b->comm, &from, move->to, err);
    if (move->to == rank && move->from != rank)
        return receive_stretch(b->comm, &to, move->from, err);
    for (size_t i = 0; i < to.blocks_n && i < from.blocks_n; i++)
        memcpy(to.at[i], from.at[i], to.count * sizeof(float));
    return 0;
}

int er_ps_keep_bring(const struct er_ps_keep *keep, struct er_comm *comm,
                     const struct er_ps_held *held, int source, size_t elements, int servers,
                     struct er_ps_server *server, struct er_error *err)
{
    struct bringing b = {keep, comm, server};

    return er_ps_plan_moves(held, er_comm_size(comm), source, elements, servers, move_part, &b,
                            err);
}

void er_ps_keep_switch(struct er_ps_keep *keep, struct er_ps_server *server)
{
    if (server && !er_ps_server_block(server, 0))
        er_ps_server_adopt(server, ER_TAKE(keep->server));
    er_ps_keep_drop(keep);
}

/* ---- to those who stay ---- */

static int take_piece(struct er_ps_keep *keep, struct er_comm *comm, struct er_ps_extent extent,
                      int from, struct er_error *err)
{
    size_t bytes = extent.count * sizeof(float);
    struct er_ps_piece piece = {.extent = extent};
    struct stretch whole;
    int rc;

    if (keep->pieces_n == ER_PS_PIECES_MAX - 1)
        return er_error_set(err, ER_E_LIMIT, "too many parts of other parameter servers");
    rc = er_pool_new(&piece.pool, keep->blocks_n * bytes + ER_FLAT_ALIGN, err);
    if (rc < 0)
        return rc;
    for (size_t b = 0; b < keep->blocks_n; b++)
        piece.block[b] = er_pool_alloc(piece.pool, bytes, ER_FLAT_ALIGN);
    whole = of_piece(keep, &piece, extent);
    rc = receive_stretch(comm, &whole, from, err);
    if (rc == 0)
        keep->pieces[keep->pieces_n++] = piece;
    else
        er_pool_free(piece.pool);
    return rc;
}

/* How far it is, for those who had no server. */
static int pass_progress(struct er_ps_keep *keep, struct er_comm *comm,
                         const struct er_ps_server *mine, int from, int to, struct er_error *err)
{
    struct er_ps_progress at;
    struct er_op *op;
    int rank = er_comm_rank(comm), rc;

    if (rank == from)
        er_ps_server_progress(mine, &at);
    rc = rank == from ? er_send(comm, &at, sizeof(at), ER_U8, to, &op, err)
                      : er_recv(comm, &at, sizeof(at), ER_U8, from, &op, err);
    if (rc == 0)
        rc = er_op_wait(op, UINT64_MAX, err);
    if (rc == 0 && rank == to)
        keep->at = at;
    return rc;
}

int er_ps_keep_hand_over(struct er_ps_keep *keep, struct er_comm *comm, struct er_ps_server *mine,
                         uint64_t lineage, const int *from, const int *to, int n, size_t elements,
                         int servers, struct er_error *err)
{
    int rank = er_comm_rank(comm), rc = 0;

    for (int i = 0; i < n && rc == 0; i++) {
        struct er_ps_extent extent = er_ps_extent_of(elements, from[i], servers);

        if ((rank != from[i] && rank != to[i]) || extent.count == 0)
            continue;
        rc = pass_progress(keep, comm, mine, from[i], to[i], err);
        if (rc == 0 && rank == from[i]) {
            struct stretch whole = of_server(keep, mine, extent);

            rc = send_stretch(comm, &whole, to[i], err);
        } else if (rc == 0) {
            rc = take_piece(keep, comm, extent, from[i], err);
            keep->lineage = rc == 0 ? lineage : keep->lineage;
        }
    }
    return rc;
}
