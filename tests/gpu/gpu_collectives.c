/* Items of several ranks: every operation and type. For correctness alone, as gpu_many.c says. */
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "tests/gpu/gpu_check.h"

struct work {
    struct er_comm *comm;
    struct er_stream *stream;
    char *in, *out;   /* device */
    char *host, *got; /* pinned */
    int rank, size;
};

/* Small whole numbers: exact in every type, in any order of summation. */
static void put(char *at, enum er_dtype dtype, size_t n, int rank)
{
    static const uint16_t f16[] = {0, 0x3c00, 0x4000, 0x4200}, bf16[] = {0, 0x3f80, 0x4000, 0x4040};

    for (size_t i = 0; i < n; i++) {
        unsigned v = (unsigned)((i + (size_t)rank) % 4);

        switch (dtype) {
        case ER_F32:
            ((float *)at)[i] = (float)v;
            break;
        case ER_F64:
            ((double *)at)[i] = v;
            break;
        case ER_I32:
            ((int32_t *)at)[i] = (int32_t)v;
            break;
        case ER_I64:
            ((int64_t *)at)[i] = (int64_t)v;
            break;
        case ER_U8:
            ((uint8_t *)at)[i] = (uint8_t)v;
            break;
        case ER_F16:
            ((uint16_t *)at)[i] = f16[v];
            break;
        case ER_BF16:
            ((uint16_t *)at)[i] = bf16[v];
            break;
        case ER_DTYPE_COUNT:
            break;
        }
    }
}

static void load(struct work *w, enum er_dtype dtype, size_t n)
{
    size_t bytes = n * er_dtype_size(dtype);
    struct er_error err = ER_ERROR_INIT;

    put(w->host, dtype, n, w->rank);
    gpu_copy(w->stream, w->in, w->host, bytes, ER_COPY_TO_DEVICE);
    RANK_OK(er_comm_after(w->comm, w->stream, &err), err);
}

/* `out` holds what rank `of` put. */
static void require_of(struct work *w, const char *out, enum er_dtype dtype, size_t n, int of)
{
    size_t bytes = n * er_dtype_size(dtype);

    put(w->host, dtype, n, of);
    if (bytes)
        gpu_copy(w->stream, w->got, out, bytes, ER_COPY_TO_HOST);
    RANK_REQUIRE(memcmp(w->got, w->host, bytes) == 0);
}

static void check_moves(struct work *w, enum er_dtype dtype, size_t n)
{
    size_t bytes = n * er_dtype_size(dtype);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL, *other = NULL;
    int next = (w->rank + 1) % w->size, before = (w->rank + w->size - 1) % w->size;

    load(w, dtype, n);
    RANK_OK(er_all_gather_to(w->comm, w->in, w->out, n, dtype, &op, &err), err);
    gpu_finish(op);
    for (int i = 0; i < w->size; i++)
        require_of(w, w->out + (size_t)i * bytes, dtype, n, i);
    RANK_OK(er_broadcast_to(w->comm, w->in, w->out, n, dtype, w->size - 1, &op, &err), err);
    gpu_finish(op);
    require_of(w, w->out, dtype, n, w->size - 1);
    RANK_OK(er_group_begin(w->comm, &err), err);
    RANK_OK(er_send(w->comm, w->in, n, dtype, next, &op, &err), err);
    RANK_OK(er_recv(w->comm, w->out, n, dtype, before, &other, &err), err);
    RANK_OK(er_group_end(w->comm, &err), err);
    gpu_finish(op);
    gpu_finish(other);
    require_of(w, w->out, dtype, n, before);
}

/* The maximum of all ranks at i is 3 if any of them has one there; at one element in four it is
 * another number. Sums are compared as integers where they are. */
static void check_reductions(struct work *w, enum er_dtype dtype, size_t n)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    size_t block = n / (size_t)w->size;

    load(w, dtype, n);
    RANK_OK(er_all_reduce_to(w->comm, w->in, w->out, n, dtype, ER_MAX, &op, &err), err);
    gpu_finish(op);
    RANK_OK(er_all_reduce_to(w->comm, w->in, w->out, n, dtype, ER_SUM, &op, &err), err);
    gpu_finish(op);
    if (dtype == ER_I64 && n > 0) {
        gpu_copy(w->stream, w->got, w->out, n * 8, ER_COPY_TO_HOST);
        for (size_t i = 0; i < n; i++) {
            int64_t want = 0;

            for (int r = 0; r < w->size; r++)
                want += (int64_t)((i + (size_t)r) % 4);
            RANK_REQUIRE(((int64_t *)w->got)[i] == want);
        }
    }
    /* in pieces and put together it is the same */
    RANK_OK(er_reduce_scatter(w->comm, w->in,
                              w->in + (size_t)w->rank * block * er_dtype_size(dtype), block, dtype,
                              ER_SUM, &op, &err),
            err);
    gpu_finish(op);
    RANK_OK(er_all_gather_to(w->comm, w->in + (size_t)w->rank * block * er_dtype_size(dtype), w->in,
                             block, dtype, &op, &err),
            err);
    gpu_finish(op);
    if (block > 0) {
        size_t bytes = block * (size_t)w->size * er_dtype_size(dtype);

        gpu_copy(w->stream, w->got, w->out, bytes, ER_COPY_TO_HOST);
        gpu_copy(w->stream, w->host, w->in, bytes, ER_COPY_TO_HOST);
        RANK_REQUIRE(memcmp(w->got, w->host, bytes) == 0);
    }
}

static void check_uneven(struct work *w)
{
    size_t counts[GPU_RANKS_MAX], total = 0;
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;

    for (int i = 0; i < w->size; i++)
        total += counts[i] = i == 1 ? 0 : 1001u * (unsigned)(i + 1);
    load(w, ER_I32, total);
    RANK_OK(er_all_gather_v(w->comm, w->in, w->out, counts, ER_I32, &op, &err), err);
    gpu_finish(op);
    require_of(w, w->out, ER_I32, counts[0], 0);
    RANK_OK(er_reduce_scatter_v(w->comm, w->in, w->out, counts, ER_I32, ER_SUM, &op, &err), err);
    gpu_finish(op);
}

static void all_collectives(struct rank *r)
{
    size_t large = gpu_facts()->is_double ? 70000 : (size_t)2 << 20;
    const size_t sizes[] = {0, 1, 4099, large};
    uint64_t began_us = er_now_us();
    struct er_device *d = gpu_device(r);
    struct er_error err = ER_ERROR_INIT;
    struct work w = {.rank = r->rank, .size = r->size};

    w.comm = gpu_comm(r, NULL);
    if (r->rank == 0)
        say("open_ms", (double)(er_now_us() - began_us) / 1e3);
    RANK_OK(er_stream_new(&w.stream, d, ER_STREAM_NORMAL, &err), err);
    w.in = gpu_alloc(d, ER_MEMORY_DEVICE, large * 8 * GPU_RANKS_MAX);
    w.out = gpu_alloc(d, ER_MEMORY_DEVICE, large * 8 * GPU_RANKS_MAX);
    w.host = gpu_alloc(d, ER_MEMORY_PINNED, large * 8 * GPU_RANKS_MAX);
    w.got = gpu_alloc(d, ER_MEMORY_PINNED, large * 8 * GPU_RANKS_MAX);
    for (int k = 0; k < ER_DTYPE_COUNT; k++)
        for (size_t i = 0; i < ER_ARRAY_N(sizes); i++) {
            check_moves(&w, (enum er_dtype)k, sizes[i]);
            check_reductions(&w, (enum er_dtype)k, sizes[i]);
        }
    check_uneven(&w);
    RANK_OK(er_comm_barrier(w.comm, &err), err);
    er_comm_abort(w.comm);
    er_stream_free(w.stream);
}

void item_collectives(void)
{
    gpu_ranks(2, all_collectives);
}

void item_three(void)
{
    gpu_ranks(3, all_collectives);
}
