/* A run whose state is in a GPU's memory: NCCL for the gradients, and a copy of the state in pinned
 * memory, which checkpoints and recovery work on. */
#include <errno.h>
#include <stdlib.h>

#include "ckpt/slices.h"
#include "trainer/engine_ops.h"
#include "trainer/train_internal.h"

struct er_train_mirror {
    const struct er_slice *state; /* the program's */
    size_t n;
    struct er_slice *copy;    /* the same, in `memory` */
    char *memory;             /* pinned */
    struct er_stream *stream; /* copies beside the next step */
    struct er_event *applied; /* what is copied is complete */
};

static bool on_gpu(const struct er_train *train)
{
    return train->engine->device != NULL;
}

int er_train_open_wire(struct er_train *train, struct er_error *err)
{
    struct er_comm_opts opts = train->opts->comm;
    int rc;

    train->wire = train->comm;
    if (!on_gpu(train))
        return 0;
    train->wire = NULL;
    opts.backend = ER_COMM_NCCL;
    opts.device = train->engine->device;
    rc = er_comm_open(&train->wire, train->ctx, &opts, err);
    if (rc == 0)
        rc = er_comm_wait_ready(train->wire, err);
    return rc < 0 ? er_error_wrap(err, rc, "communicator of gradients") : 0;
}

static size_t bytes_of(const struct er_slice *slice)
{
    return (size_t)slice->count * er_ckpt_dtype_size(slice->dtype);
}

/* Slices at multiples of the widest element. */
static size_t lay_out(struct er_train_mirror *m, size_t n)
{
    size_t total = 0;

    for (size_t i = 0; i < n; i++) {
        m->copy[i] = m->state[i];
        m->copy[i].data = m->memory ? m->memory + total : NULL;
        total += (bytes_of(&m->state[i]) + ER_FLAT_ALIGN - 1) & ~(size_t)(ER_FLAT_ALIGN - 1);
    }
    return total;
}

int er_train_mirror_open(struct er_train *train, struct er_error *err)
{
    struct er_device *device = train->engine->device;
    struct er_train_mirror *m;
    int rc;

    if (!on_gpu(train))
        return 0;
    m = train->mirror = calloc(1, sizeof(*m));
    if (m)
        m->copy = calloc(train->state_n + 1, sizeof(*m->copy));
    if (!m || !m->copy)
        return er_error_set(err, -ENOMEM, "list of %zu tensors", train->state_n);
    m->state = train->state;
    m->n = train->state_n;
    rc = er_device_alloc(device, ER_MEMORY_PINNED, lay_out(m, train->state_n), (void **)&m->memory,
                         err);
    if (rc == 0)
        rc = er_stream_new(&m->stream, device, ER_STREAM_NORMAL, err);
    if (rc == 0)
        rc = er_event_new(&m->applied, device, false, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "copy of the state on the host");
    lay_out(m, train->state_n);
    train->state = m->copy;
    return 0;
}

void er_train_mirror_close(struct er_train *train)
{
    struct er_train_mirror *m = train->mirror;

    if (!m)
        return;
    if (m->stream)
        er_stream_sync(m->stream, NULL);
    er_event_free(m->applied);
    er_stream_free(m->stream);
    er_device_free(train->engine->device, ER_MEMORY_PINNED, m->memory);
    free(m->copy);
    free(m);
    train->mirror = NULL;
}

static int copy_all(const struct er_train *train, struct er_stream *stream, bool to_host,
                    struct er_error *err)
{
    const struct er_train_mirror *m = train->mirror;
    int rc = 0;

    for (size_t i = 0; i < m->n && rc == 0; i++) {
        size_t bytes = bytes_of(&m->state[i]);

        rc = to_host ? er_stream_copy(stream, m->copy[i].data, m->state[i].data, bytes,
                                      ER_COPY_TO_HOST, err)
                     : er_stream_copy(stream, m->state[i].data, m->copy[i].data, bytes,
                                      ER_COPY_TO_DEVICE, err);
    }
    return rc;
}

int er_train_pull(struct er_train *train, struct er_error *err)
{
    int rc;

    if (!train->mirror)
        return 0;
    rc = copy_all(train, train->engine->stream, true, err);
    return rc ? rc : er_engine_wait(train->engine, err);
}

int er_train_push(struct er_train *train, struct er_error *err)
{
    int rc;

    if (!train->mirror)
        return 0;
    rc = copy_all(train, train->engine->stream, false, err);
    return rc ? rc : er_engine_wait(train->engine, err);
}

int er_train_pull_begin(struct er_train *train, struct er_error *err)
{
    struct er_train_mirror *m = train->mirror;
    int rc;

    if (!m)
        return 0;
    rc = er_event_record(m->applied, train->engine->stream, err);
    if (rc == 0)
        rc = er_stream_wait(m->stream, m->applied, err);
    return rc ? rc : copy_all(train, m->stream, true, err);
}

int er_train_pull_end(struct er_train *train, struct er_error *err)
{
    return train->mirror ? er_stream_sync(train->mirror->stream, err) : 0;
}
