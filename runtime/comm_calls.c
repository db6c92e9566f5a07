/* The public operations: arguments are checked here, once for all backends. */
#include "runtime/comm_ops.h"

#include <errno.h>

#include "runtime/host_algo.h"

static int check_array(const void *buf, size_t n, enum er_dtype dtype, struct er_error *err)
{
    size_t width = er_dtype_size(dtype);

    if (!width)
        return er_error_set(err, ER_E_USAGE, "unknown element type %d", (int)dtype);
    if (!buf && n > 0)
        return er_error_set(err, ER_E_USAGE, "NULL for %zu elements", n);
    if (n > SIZE_MAX / 2 / width)
        return er_error_set(err, ER_E_USAGE, "%zu elements: larger than any memory", n);
    if ((uintptr_t)buf % width)
        return er_error_set(err, ER_E_USAGE, "buffer %p is not aligned for %s", buf,
                            er_dtype_name(dtype));
    return 0;
}

static int check_ret(struct er_op **ret, struct er_error *err)
{
    return ret ? 0 : er_error_set(err, ER_E_USAGE, "no place for the operation's handle");
}

static int check_reduce(enum er_reduce reduce, struct er_error *err)
{
    if ((unsigned)reduce >= ER_REDUCE_COUNT)
        return er_error_set(err, ER_E_USAGE, "unknown reduction %d", (int)reduce);
    return 0;
}

static int check_rank(const struct er_comm *comm, int rank, const char *what, struct er_error *err)
{
    if (rank < 0 || rank >= comm->size)
        return er_error_set(err, ER_E_USAGE, "%s %d of %d ranks", what, rank, comm->size);
    return 0;
}

/* The same array, or none of its bytes in common. */
static int check_apart(const void *in, const void *out, size_t in_bytes, size_t out_bytes,
                       struct er_error *err)
{
    uintptr_t a = (uintptr_t)in, b = (uintptr_t)out;

    if (a == b || in_bytes == 0 || out_bytes == 0 || a + in_bytes <= b || b + out_bytes <= a)
        return 0;
    return er_error_set(err, ER_E_USAGE, "input and output overlap");
}

static int check_pair(const void *in, const void *out, size_t n, enum er_dtype dtype,
                      struct er_error *err)
{
    int rc = check_array(in, n, dtype, err);

    if (!rc)
        rc = check_array(out, n, dtype, err);
    return rc ? rc : check_apart(in, out, n * er_dtype_size(dtype), n * er_dtype_size(dtype), err);
}

int er_all_reduce_to(struct er_comm *comm, const void *in, void *out, size_t n, enum er_dtype dtype,
                     enum er_reduce reduce, struct er_op **ret, struct er_error *err)
{
    struct er_comm_call call = {.desc = {.kind = ER_OP_ALL_REDUCE,
                                         .n = n,
                                         .dtype = (uint32_t)dtype,
                                         .reduce = (uint32_t)reduce},
                                .in = in,
                                .out = out};
    int rc = check_ret(ret, err);

    if (!rc)
        rc = check_pair(in, out, n, dtype, err);
    if (!rc)
        rc = check_reduce(reduce, err);
    return rc ? rc : er_comm_start(comm, &call, ret, err);
}

int er_all_reduce(struct er_comm *comm, void *buf, size_t n, enum er_dtype dtype,
                  enum er_reduce reduce, struct er_op **ret, struct er_error *err)
{
    return er_all_reduce_to(comm, buf, buf, n, dtype, reduce, ret, err);
}

int er_reduce_to(struct er_comm *comm, const void *in, void *out, size_t n, enum er_dtype dtype,
                 enum er_reduce reduce, int root, struct er_op **ret, struct er_error *err)
{
    bool here = comm->rank == root;
    struct er_comm_call call = {.desc = {.kind = ER_OP_REDUCE,
                                         .n = n,
                                         .dtype = (uint32_t)dtype,
                                         .reduce = (uint32_t)reduce,
                                         .root = (uint32_t)root},
                                .in = in,
                                .out = here ? out : NULL};
    int rc = check_ret(ret, err);

    if (!rc)
        rc = check_rank(comm, root, "root", err);
    if (!rc)
        rc = check_pair(in, here ? out : in, n, dtype, err);
    if (!rc)
        rc = check_reduce(reduce, err);
    return rc ? rc : er_comm_start(comm, &call, ret, err);
}

int er_broadcast_to(struct er_comm *comm, const void *in, void *out, size_t n, enum er_dtype dtype,
                    int root, struct er_op **ret, struct er_error *err)
{
    bool here = comm->rank == root;
    struct er_comm_call call = {
        .desc = {.kind = ER_OP_BROADCAST, .n = n, .dtype = (uint32_t)dtype, .root = (uint32_t)root},
        .in = here ? in : NULL,
        .out = out};
    int rc = check_ret(ret, err);

    if (!rc)
        rc = check_rank(comm, root, "root", err);
    if (!rc)
        rc = check_pair(here ? in : out, out, n, dtype, err);
    return rc ? rc : er_comm_start(comm, &call, ret, err);
}

int er_broadcast(struct er_comm *comm, void *buf, size_t n, enum er_dtype dtype, int root,
                 struct er_op **ret, struct er_error *err)
{
    return er_broadcast_to(comm, buf, buf, n, dtype, root, ret, err);
}

/* Blocks of all ranks at `blocks`, one of them at `block`: apart, or the very block of this rank.
 * `counts` NULL: n elements each. */
static int check_block_of(const struct er_comm *comm, const void *block, const void *blocks,
                          size_t n, const size_t *counts, enum er_dtype dtype, struct er_error *err)
{
    size_t width = er_dtype_size(dtype), mine = counts ? counts[comm->rank] : n;
    size_t total = 0, before = 0;
    int rc = 0;

    for (int i = 0; i < comm->size; i++) {
        size_t count = counts ? counts[i] : n;

        before = i == comm->rank ? total : before;
        if (count > SIZE_MAX / 2 - total)
            return er_error_set(err, ER_E_USAGE,
                                "%zu elements of each of %d ranks: larger than any memory", count,
                                comm->size);
        total += count;
    }
    rc = check_array(block, mine, dtype, err);
    if (!rc)
        rc = check_array(blocks, total, dtype, err);
    if (rc || (uintptr_t)block == (uintptr_t)blocks + before * width)
        return rc;
    if (block == blocks && mine > 0) /* what check_apart() takes for the same array */
        return er_error_set(err, ER_E_USAGE, "input and output overlap");
    return check_apart(block, blocks, mine * width, total * width, err);
}

int er_all_gather_to(struct er_comm *comm, const void *in, void *out, size_t n, enum er_dtype dtype,
                     struct er_op **ret, struct er_error *err)
{
    struct er_comm_call call = {
        .desc = {.kind = ER_OP_ALL_GATHER, .n = n, .dtype = (uint32_t)dtype}, .in = in, .out = out};
    int rc = check_ret(ret, err);

    if (!rc)
        rc = check_block_of(comm, in, out, n, NULL, dtype, err);
    return rc ? rc : er_comm_start(comm, &call, ret, err);
}

int er_all_gather(struct er_comm *comm, const void *mine, size_t n, void *all, struct er_op **ret,
                  struct er_error *err)
{
    return er_all_gather_to(comm, mine, all, n, ER_U8, ret, err);
}

int er_reduce_scatter(struct er_comm *comm, const void *in, void *out, size_t n,
                      enum er_dtype dtype, enum er_reduce reduce, struct er_op **ret,
                      struct er_error *err)
{
    struct er_comm_call call = {.desc = {.kind = ER_OP_REDUCE_SCATTER,
                                         .n = n,
                                         .dtype = (uint32_t)dtype,
                                         .reduce = (uint32_t)reduce},
                                .in = in,
                                .out = out};
    int rc = check_ret(ret, err);

    if (!rc)
        rc = check_block_of(comm, out, in, n, NULL, dtype, err);
    if (!rc)
        rc = check_reduce(reduce, err);
    return rc ? rc : er_comm_start(comm, &call, ret, err);
}

static int check_counts(const size_t *counts, struct er_error *err)
{
    return counts ? 0 : er_error_set(err, ER_E_USAGE, "no counts");
}

int er_reduce_scatter_v(struct er_comm *comm, const void *in, void *out, const size_t *counts,
                        enum er_dtype dtype, enum er_reduce reduce, struct er_op **ret,
                        struct er_error *err)
{
    struct er_comm_call call = {.desc = {.kind = ER_OP_REDUCE_SCATTER,
                                         .dtype = (uint32_t)dtype,
                                         .reduce = (uint32_t)reduce},
                                .in = in,
                                .out = out,
                                .counts = counts};
    int rc = check_ret(ret, err);

    if (!rc)
        rc = check_counts(counts, err);
    if (!rc)
        rc = check_block_of(comm, out, in, 0, counts, dtype, err);
    if (!rc)
        rc = check_reduce(reduce, err);
    return rc ? rc : er_comm_start(comm, &call, ret, err);
}

int er_all_gather_v(struct er_comm *comm, const void *in, void *out, const size_t *counts,
                    enum er_dtype dtype, struct er_op **ret, struct er_error *err)
{
    struct er_comm_call call = {.desc = {.kind = ER_OP_ALL_GATHER, .dtype = (uint32_t)dtype},
                                .in = in,
                                .out = out,
                                .counts = counts};
    int rc = check_ret(ret, err);

    if (!rc)
        rc = check_counts(counts, err);
    if (!rc)
        rc = check_block_of(comm, in, out, 0, counts, dtype, err);
    return rc ? rc : er_comm_start(comm, &call, ret, err);
}

int er_all_to_all(struct er_comm *comm, const void *in, void *out, size_t n, enum er_dtype dtype,
                  struct er_op **ret, struct er_error *err)
{
    struct er_comm_call call = {
        .desc = {.kind = ER_OP_ALL_TO_ALL, .n = n, .dtype = (uint32_t)dtype}, .in = in, .out = out};
    int rc = check_ret(ret, err);

    if (!rc && n > SIZE_MAX / 2 / (size_t)comm->size)
        rc = er_error_set(err, ER_E_USAGE,
                          "%zu elements for each of %d ranks: larger than any memory", n,
                          comm->size);
    if (!rc)
        rc = check_pair(in, out, n * (size_t)comm->size, dtype, err);
    if (!rc && in == out && n > 0 && comm->size > 1)
        rc = er_error_set(err, ER_E_USAGE, "input and output overlap");
    return rc ? rc : er_comm_start(comm, &call, ret, err);
}

static int start_message(struct er_comm *comm, enum er_op_kind kind, const void *in, void *out,
                         size_t n, enum er_dtype dtype, int peer, struct er_op **ret,
                         struct er_error *err)
{
    struct er_comm_call call = {
        .desc = {.kind = kind, .n = n, .dtype = (uint32_t)dtype, .root = (uint32_t)peer},
        .in = in,
        .out = out};
    int rc = check_ret(ret, err);

    if (!rc)
        rc = check_array(kind == ER_OP_SEND ? in : out, n, dtype, err);
    if (!rc)
        rc = check_rank(comm, peer, "peer", err);
    if (!rc && peer == comm->rank)
        rc = er_error_set(err, ER_E_USAGE, "a message of rank %d to itself", peer);
    return rc ? rc : er_comm_start(comm, &call, ret, err);
}

int er_send(struct er_comm *comm, const void *buf, size_t n, enum er_dtype dtype, int to,
            struct er_op **ret, struct er_error *err)
{
    return start_message(comm, ER_OP_SEND, buf, NULL, n, dtype, to, ret, err);
}

int er_recv(struct er_comm *comm, void *buf, size_t n, enum er_dtype dtype, int from,
            struct er_op **ret, struct er_error *err)
{
    return start_message(comm, ER_OP_RECV, NULL, buf, n, dtype, from, ret, err);
}

int er_comm_barrier(struct er_comm *comm, struct er_error *err)
{
    struct er_comm_call call = {.desc = {.kind = ER_OP_BARRIER, .dtype = ER_U8}};

    if (comm->grouping)
        return er_error_set(err, ER_E_USAGE, "barrier within a group");
    return er_comm_start(comm, &call, NULL, err);
}

/* 0, or ER_E_MISMATCH naming the first rank that differs from rank 0: the same on all ranks. */
static int check_votes(const struct er_comm *comm, struct er_error *err)
{
    const struct er_vote *first = &comm->votes[0];

    for (int i = 1; i < comm->size; i++) {
        const struct er_vote *v = &comm->votes[i];

        if (v->step != first->step)
            return er_error_set(err, ER_E_MISMATCH, "vote: rank 0 is at step %llu, rank %d at %llu",
                                (unsigned long long)first->step, i, (unsigned long long)v->step);
        if (v->order_hash != first->order_hash)
            return er_error_set(err, ER_E_MISMATCH,
                                "vote at step %llu: rank %d reduced in another order than rank 0 "
                                "(hash %016llx, not %016llx)",
                                (unsigned long long)v->step, i, (unsigned long long)v->order_hash,
                                (unsigned long long)first->order_hash);
    }
    return 0;
}

/* The k-th smallest, by Hoare's selection: C. A. R. Hoare, "Algorithm 65: find", CACM 4(7), 1961.
 */
static uint64_t select_busy(uint64_t *v, int n, int k)
{
    int low = 0, high = n - 1;

    while (low < high) {
        uint64_t pivot = v[low + (high - low) / 2];
        int i = low, j = high;

        while (i <= j) {
            while (v[i] < pivot)
                i++;
            while (v[j] > pivot)
                j--;
            if (i <= j) {
                uint64_t t = v[i];

                v[i++] = v[j];
                v[j--] = t;
            }
        }
        if (k <= j)
            high = j;
        else if (k >= i)
            low = i;
        else
            break;
    }
    return v[k];
}

static uint64_t median_busy(const struct er_comm *comm)
{
    for (int i = 0; i < comm->size; i++)
        comm->busy[i] = comm->votes[i].busy_us;
    return select_busy(comm->busy, comm->size, (comm->size - 1) / 2);
}

int er_vote(struct er_comm *comm, struct er_vote *inout, struct er_error *err)
{
    struct er_comm_call call = {.desc = {.kind = ER_OP_VOTE, .n = sizeof(*inout), .dtype = ER_U8},
                                .in = inout,
                                .out = comm->votes};
    struct er_error why = ER_ERROR_INIT;
    uint64_t unfinished, busy_us;
    int rc;

    if (comm->ops->poll)
        comm->ops->poll(comm);
    unfinished = comm->staged - atomic_load_explicit(&comm->finished, memory_order_acquire);

    if (unfinished || comm->grouping)
        return er_error_set(err, -EBUSY,
                            "vote at step %llu: %llu operations of this rank are unfinished",
                            (unsigned long long)inout->step, (unsigned long long)unfinished);
    rc = er_comm_start(comm, &call, NULL, err);
    if (rc < 0)
        return rc;
    rc = check_votes(comm, &why);
    if (rc < 0) {
        er_comm_fail(comm, rc, &why);
        return er_comm_check(comm, err);
    }
    busy_us = median_busy(comm);
    for (int i = 1; i < comm->size; i++)
        er_algo_vote(&comm->votes[0], &comm->votes[i]);
    comm->votes[0].busy_us = busy_us;
    *inout = comm->votes[0];
    return 0;
}
