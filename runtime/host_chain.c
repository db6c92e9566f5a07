#include "runtime/host_hosts_internal.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "runtime/host_algo.h"

enum { DESC_BYTES = sizeof(struct er_op_desc) };

static int local_rank(const struct er_transport *t)
{
    return t->comm->rank - t->map.first;
}

static struct hosts_rank *me(const struct er_transport *t)
{
    return &t->rank[local_rank(t)];
}

static bool is_last(const struct er_transport *t)
{
    return t->map.host == t->map.hosts_n - 1;
}

static char *slot_of(const struct er_transport *t, int local, uint32_t piece)
{
    size_t i = (size_t)local * t->map.depth + (t->base + piece) % t->map.depth;

    return t->slots + i * t->map.piece_bytes;
}

static char *acc_of(const struct er_transport *t, uint32_t piece)
{
    return t->acc + piece % t->map.depth * t->acc_bytes;
}

static size_t piece_length(const struct er_transport *t, uint32_t piece)
{
    size_t left = t->total - (size_t)piece * t->map.piece_bytes;

    return left < t->map.piece_bytes ? left : t->map.piece_bytes;
}

/* The part of a piece that a rail carries, in elements of the piece. */
static struct er_segment part(const struct er_transport *t, uint32_t piece, int rail)
{
    return er_algo_segment(piece_length(t, piece) / t->width, t->map.rails, rail);
}

static size_t part_n(const struct er_transport *t, uint32_t piece)
{
    struct er_segment s = part(t, piece, local_rank(t));

    return s.end - s.begin;
}

void er_chain_begin(struct er_transport *t, const struct er_op *op)
{
    enum er_dtype dtype = (enum er_dtype)op->desc.dtype;
    size_t elements = 0;

    t->base += t->pieces_n;
    t->op = op;
    t->width = er_dtype_size(dtype);
    t->acc_width = er_algo_acc_size(dtype);
    t->total = er_op_bytes(&op->desc);
    t->pieces_n = (uint32_t)((t->total + t->map.piece_bytes - 1) / t->map.piece_bytes);
    t->copied = t->folded = t->published = t->fetched = 0;
    t->checked = false;
    if (hosts_is_rail(t)) {
        size_t full = part_n(t, 0), last = part_n(t, t->pieces_n - 1);

        elements = full * (t->pieces_n - 1) + last;
        t->part_acc = full * t->acc_width;
        t->part_out = full * t->width;
    }
    t->all_acc = elements * t->acc_width;
    t->all_out = elements * t->width;
    t->prev.sent = t->prev.got = t->next.sent = t->next.got = 0;
    t->prev.checked = t->next.checked = false;
}

/* Bytes of a stream that belong to the first `pieces`. */
static size_t bytes_until(size_t part_bytes, size_t all, uint32_t pieces)
{
    size_t n = part_bytes * pieces;

    return n < all ? n : all;
}

/* Pieces of which all bytes are among the first `bytes` after the descriptor. */
static uint32_t pieces_within(const struct er_transport *t, size_t position, size_t part_bytes,
                              size_t all)
{
    size_t bytes = position > DESC_BYTES ? position - DESC_BYTES : 0;

    if (bytes == all)
        return position >= DESC_BYTES ? t->pieces_n : 0;
    return (uint32_t)(bytes / part_bytes);
}

static uint32_t partials_come(const struct er_transport *t)
{
    return t->prev.fd < 0 ? t->pieces_n : pieces_within(t, t->prev.got, t->part_acc, t->all_acc);
}

static uint32_t partials_gone(const struct er_transport *t)
{
    return t->next.fd < 0 ? t->folded : pieces_within(t, t->next.sent, t->part_acc, t->all_acc);
}

static uint32_t results_come(const struct er_transport *t)
{
    return t->next.fd < 0 ? t->folded : pieces_within(t, t->next.got, t->part_out, t->all_out);
}

static uint32_t results_gone(const struct er_transport *t)
{
    return t->prev.fd < 0 ? t->pieces_n : pieces_within(t, t->prev.sent, t->part_out, t->all_out);
}

/* ---- in memory ---- */

#define ALL(t, n, field, target)                                                                   \
    ({                                                                                             \
        bool all_ = true;                                                                          \
        for (int i_ = 0; i_ < (n) && all_; i_++)                                                   \
            all_ = hosts_reached(atomic_load(&(t)->rank[i_].field), (target));                     \
        all_;                                                                                      \
    })

static bool may_copy_in(const struct er_transport *t)
{
    uint32_t depth = t->map.depth;

    if (t->copied == t->pieces_n || !ALL(t, t->map.count, done, t->base + t->copied + 1 - depth))
        return false;
    return !hosts_is_rail(t) || t->copied < depth || results_gone(t) > t->copied - depth;
}

static bool may_fold(const struct er_transport *t)
{
    return hosts_is_rail(t) && t->folded < t->copied &&
           ALL(t, t->map.count, in, t->base + t->folded + 1) && partials_come(t) > t->folded &&
           (t->folded < t->map.depth || partials_gone(t) > t->folded - t->map.depth);
}

static bool may_publish(const struct er_transport *t)
{
    return hosts_is_rail(t) && results_come(t) > t->published;
}

static bool may_fetch(const struct er_transport *t)
{
    return t->fetched < t->copied && ALL(t, t->map.rails, red, t->base + t->fetched + 1);
}

bool er_chain_may_step(const struct er_transport *t)
{
    return may_copy_in(t) || may_fold(t) || may_publish(t) || may_fetch(t);
}

static void copy_in(struct er_transport *t)
{
    const char *from = (const char *)t->op->in + (size_t)t->copied * t->map.piece_bytes;
    char *to = slot_of(t, local_rank(t), t->copied);
    size_t n = piece_length(t, t->copied);

    if (t->copied == 0)
        me(t)->desc[t->op->desc.seq % HOSTS_DESCS] = t->op->desc;
    if (hosts_is_rail(t)) { /* our part's place takes the result */
        struct er_segment own = part(t, t->copied, local_rank(t));
        size_t end = own.end * t->width;

        memcpy(to, from, own.begin * t->width);
        memcpy(to + end, from + end, n - end);
    } else {
        memcpy(to, from, n);
    }
    t->copied++;
    er_hosts_publish(t, &me(t)->in, t->base + t->copied);
}

static int check_descs(struct er_transport *t, struct er_error *err)
{
    int rc = 0;

    for (int i = 0; i < t->map.count && rc == 0; i++)
        rc = er_op_agree(&t->op->desc, t->comm->rank,
                         &t->rank[i].desc[t->op->desc.seq % HOSTS_DESCS], t->map.first + i, err);
    t->checked = rc == 0;
    return rc;
}

/* Add this host's contributions to what has come; the last host makes the result of it. */
static void fold(struct er_transport *t)
{
    struct er_segment own = part(t, t->folded, local_rank(t));
    size_t at = own.begin * t->width, n = own.end - own.begin;
    const char *mine = (const char *)t->op->in + (size_t)t->folded * t->map.piece_bytes + at;
    enum er_dtype dtype = (enum er_dtype)t->op->desc.dtype;
    enum er_reduce reduce = (enum er_reduce)t->op->desc.reduce;
    char *acc = acc_of(t, t->folded);

    for (int i = 0; i < t->map.count; i++)
        t->src[i] = i == local_rank(t) ? mine : slot_of(t, i, t->folded) + at;
    er_algo_fold(acc, t->map.host == 0, t->src, t->map.count, n, dtype, reduce);
    if (is_last(t))
        er_algo_finish(slot_of(t, local_rank(t), t->folded) + at, acc, n, dtype, reduce,
                       t->comm->size);
    t->folded++;
}

static void fetch(struct er_transport *t)
{
    char *home = (char *)t->op->out + (size_t)t->fetched * t->map.piece_bytes;

    for (int i = 0; i < t->map.rails; i++) {
        struct er_segment s = part(t, t->fetched, i);

        memcpy(home + s.begin * t->width, slot_of(t, i, t->fetched) + s.begin * t->width,
               (s.end - s.begin) * t->width);
    }
    t->fetched++;
    er_hosts_publish(t, &me(t)->done, t->base + t->fetched);
}

static int step_memory(struct er_transport *t, bool *moved, struct er_error *err)
{
    bool before = *moved;

    *moved = true;
    if (may_fetch(t)) {
        fetch(t);
    } else if (may_publish(t)) {
        t->published = results_come(t);
        er_hosts_publish(t, &me(t)->red, t->base + t->published);
    } else if (may_fold(t)) {
        int rc = t->checked ? 0 : check_descs(t, err);

        if (rc < 0)
            return rc;
        fold(t);
    } else if (may_copy_in(t)) {
        copy_in(t);
    } else {
        *moved = before;
    }
    return 0;
}

/* ---- to and from neighbours ---- */

/* Where position `at` of a stream of partials or results lies, and how much of its piece is there.
 */
static struct iovec place(const struct er_transport *t, bool partials, size_t at, size_t until)
{
    size_t part_bytes = partials ? t->part_acc : t->part_out;
    uint32_t piece = (uint32_t)(at / part_bytes);
    size_t offset = at % part_bytes, end = (piece + 1) * part_bytes;
    char *base = partials ? acc_of(t, piece)
                          : slot_of(t, local_rank(t), piece) +
                                part(t, piece, local_rank(t)).begin * t->width;

    return (struct iovec){.iov_base = base + offset, .iov_len = (end < until ? end : until) - at};
}

static size_t may_send(const struct er_transport *t, const struct hosts_lane *lane)
{
    if (lane == &t->next)
        return DESC_BYTES + bytes_until(t->part_acc, t->all_acc, t->folded);
    return DESC_BYTES + bytes_until(t->part_out, t->all_out, results_come(t));
}

/* Partials have room for what is not yet gone; results go where their piece's contributions were.
 */
static size_t may_receive(const struct er_transport *t, const struct hosts_lane *lane)
{
    if (lane == &t->prev)
        return DESC_BYTES + bytes_until(t->part_acc, t->all_acc, partials_gone(t) + t->map.depth);
    return DESC_BYTES + bytes_until(t->part_out, t->all_out, t->folded);
}

static bool would_block(void)
{
    return errno == EAGAIN || errno == EINTR;
}

static struct iovec stretch(const struct er_transport *t, void *desc, size_t position, size_t until,
                            bool partials)
{
    if (position < DESC_BYTES)
        return (struct iovec){.iov_base = (char *)desc + position,
                              .iov_len = DESC_BYTES - position};
    return place(t, partials, position - DESC_BYTES, until - DESC_BYTES);
}

static bool send_some(struct er_transport *t, struct hosts_lane *lane)
{
    size_t until = may_send(t, lane);
    struct er_op_desc desc = t->op->desc;
    struct iovec iov;
    ssize_t n;

    if (lane->fd < 0 || lane->closed || lane->sent >= until)
        return false;
    iov = stretch(t, &desc, lane->sent, until, lane == &t->next);
    n = send(lane->fd, iov.iov_base, iov.iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n <= 0) {
        lane->closed |= n < 0 && !would_block();
        return false;
    }
    lane->sent += (size_t)n;
    return true;
}

static int receive_some(struct er_transport *t, struct hosts_lane *lane, bool *moved,
                        struct er_error *err)
{
    size_t until = may_receive(t, lane);
    struct iovec iov;
    ssize_t n;

    if (lane->fd < 0 || lane->closed || lane->got >= until)
        return 0;
    iov = stretch(t, &lane->desc, lane->got, until, lane == &t->prev);
    n = recv(lane->fd, iov.iov_base, iov.iov_len, MSG_DONTWAIT);
    if (n <= 0) {
        lane->closed |= n == 0 || !would_block();
        return 0;
    }
    lane->got += (size_t)n;
    *moved = true;
    if (lane->checked || lane->got < DESC_BYTES)
        return 0;
    lane->checked = true;
    return er_op_agree(&t->op->desc, t->comm->rank, &lane->desc,
                       lane == &t->prev ? t->map.prev : t->map.next, err);
}

static bool lane_done(const struct er_transport *t, const struct hosts_lane *lane)
{
    size_t out = lane == &t->next ? t->all_acc : t->all_out;
    size_t in = lane == &t->next ? t->all_out : t->all_acc;

    return lane->fd < 0 || (lane->sent == DESC_BYTES + out && lane->got == DESC_BYTES + in);
}

int er_chain_step(struct er_transport *t, struct er_error *err)
{
    bool moved = false;
    int rc;

    if (hosts_is_rail(t)) {
        moved |= send_some(t, &t->prev);
        moved |= send_some(t, &t->next);
        rc = receive_some(t, &t->prev, &moved, err);
        if (rc == 0)
            rc = receive_some(t, &t->next, &moved, err);
        if (rc < 0)
            return rc;
    }
    rc = step_memory(t, &moved, err);
    if (rc < 0)
        return rc;
    if (t->fetched == t->pieces_n && lane_done(t, &t->prev) && lane_done(t, &t->next))
        return 0;
    return moved ? ER_STEP_MOVED : ER_STEP_BLOCKED;
}

short er_chain_events(const struct er_transport *t, const struct hosts_lane *lane)
{
    short events = 0;

    if (lane->fd < 0 || lane->closed)
        return 0;
    if (lane->sent < may_send(t, lane))
        events |= POLLOUT;
    if (lane->got < may_receive(t, lane))
        events |= POLLIN;
    return events;
}

bool er_chain_needs(const struct er_transport *t, int peer)
{
    int i = peer - t->map.first;
    const struct hosts_rank *r = &t->rank[i];

    if (peer == t->map.prev)
        return !lane_done(t, &t->prev);
    if (peer == t->map.next)
        return !lane_done(t, &t->next);
    if (i < 0 || i >= t->map.count)
        return false;
    if (t->copied < t->pieces_n &&
        !hosts_reached(atomic_load(&r->done), t->base + t->copied + 1 - t->map.depth))
        return true;
    if (i < t->map.rails && t->fetched < t->pieces_n &&
        !hosts_reached(atomic_load(&r->red), t->base + t->fetched + 1))
        return true;
    return hosts_is_rail(t) && t->folded < t->pieces_n &&
           !hosts_reached(atomic_load(&r->in), t->base + t->folded + 1);
}
