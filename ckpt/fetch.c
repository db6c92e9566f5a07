#include "ckpt/fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "ckpt/ckpt_internal.h"
#include "ckpt/piece.h"
#include "ckpt/slices.h"

#define THREADS_AUTO 4u
#define THREADS_MAX  64u

typedef unsigned long long ull;

/* ---- the folder ---- */

int er_ckpt_source_open(struct er_ckpt_source *source, const char *folder, struct er_error *err)
{
    int rc;

    *source = (struct er_ckpt_source){.folder = folder};
    rc = er_ckpt_read_manifest(folder, &source->m, err);
    if (rc < 0)
        return rc;
    source->fds = calloc(source->m.shard_n, sizeof(*source->fds));
    if (!source->fds) {
        er_manifest_done(&source->m);
        return er_error_set(err, -ENOMEM, "read '%s': no memory", folder);
    }
    for (uint32_t i = 0; i < source->m.shard_n; i++)
        source->fds[i] = -1;
    return 0;
}

void er_ckpt_source_close(struct er_ckpt_source *source)
{
    for (uint32_t i = 0; source->fds && i < source->m.shard_n; i++)
        if (source->fds[i] >= 0)
            close(source->fds[i]);
    free(source->fds);
    source->fds = NULL;
    er_manifest_done(&source->m);
}

int er_ckpt_source_shard(struct er_ckpt_source *source, uint32_t shard, struct er_error *err)
{
    const struct er_manifest_shard *s = &source->m.shards[shard];
    char path[PATH_MAX];
    struct stat st;
    int rc;

    if (source->fds[shard] >= 0)
        return 0;
    rc = er_ckpt_join(source->folder, s->name, path, err);
    if (rc < 0)
        return rc;
    /* O_NONBLOCK: a pipe in its place must not make us wait for its other end. */
    ER_CLEANUP(er_cleanup_fd) int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return er_error_set(err, ER_E_CORRUPT, "'%s' is missing", path);
    if (fd < 0 || fstat(fd, &st) < 0)
        return er_error_errno(err, "open '%s'", path);
    if (!S_ISREG(st.st_mode))
        return er_error_set(err, ER_E_CORRUPT, "'%s' is not a file", path);
    if ((uint64_t)st.st_size != s->bytes)
        return er_error_set(err, ER_E_CORRUPT, "'%s' has %lld bytes, the manifest says %llu", path,
                            (long long)st.st_size, (ull)s->bytes);
    source->fds[shard] = ER_TAKE_FD(fd);
    return 0;
}

/* ---- what to read ---- */

static int add(struct er_fetch_list *list, const struct er_fetch *item, struct er_error *err)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 256;
        struct er_fetch *more = reallocarray(list->items, cap, sizeof(*more));

        if (!more)
            return er_error_set(err, -ENOMEM, "read: no memory");
        list->items = more;
        list->cap = cap;
    }
    list->items[list->n++] = *item;
    return 0;
}

static int add_overlap(struct er_fetch_list *list, struct er_ckpt_source *source, size_t slice,
                       const struct er_slice *want, bool mapped, struct er_error *err)
{
    const struct er_manifest_slice *s = &source->m.slices[slice];
    size_t size = er_ckpt_dtype_size(want->dtype);
    uint64_t first, n = er_overlap(s->offset, s->count, want->offset, want->count, &first);
    int rc;

    if (n == 0)
        return 0;
    rc = er_ckpt_source_shard(source, s->shard, err);
    if (rc < 0)
        return rc;
    return add(list,
               &(struct er_fetch){.slice = slice,
                                  .to = (char *)want->data + (first - want->offset) * size,
                                  .from = (first - s->offset) * size,
                                  .bytes = n * size,
                                  .mapped = mapped},
               err);
}

int er_fetch_find(const struct er_ckpt_source *source, const struct er_slice *want, size_t *ret,
                  struct er_error *err)
{
    const struct er_manifest *m = &source->m;
    const struct er_manifest_tensor *t;
    long tensor;
    int rc = er_slice_check(want, err);

    if (rc < 0)
        return rc;
    tensor = er_manifest_find(m, want->name);
    if (tensor < 0)
        return er_error_set(err, ER_E_MISMATCH, "the checkpoint has no tensor '%s'", want->name);
    t = &m->tensors[tensor];
    if (t->dtype != want->dtype || t->ndim != want->ndim ||
        memcmp(t->shape, want->shape, t->ndim * sizeof(*t->shape)) != 0)
        return er_error_set(err, ER_E_MISMATCH,
                            "tensor '%s' has another shape or type in the checkpoint", want->name);
    *ret = (size_t)tensor;
    return 0;
}

int er_fetch_want(struct er_fetch_list *list, struct er_ckpt_source *source,
                  const struct er_slice *want, bool mapped, struct er_error *err)
{
    size_t tensor = 0, first = 0, n;
    int rc = er_fetch_find(source, want, &tensor, err);

    if (rc < 0)
        return rc;
    n = er_manifest_slices_of(&source->m, tensor, &first);
    for (size_t i = first; rc == 0 && i < first + n; i++)
        rc = add_overlap(list, source, i, want, mapped, err);
    return rc;
}

static uint64_t slice_bytes(const struct er_manifest *m, size_t slice)
{
    return m->slices[slice].count * er_ckpt_dtype_size(m->tensors[m->slices[slice].tensor].dtype);
}

int er_fetch_all(struct er_fetch_list *list, struct er_ckpt_source *source, struct er_error *err)
{
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < source->m.slice_n; i++) {
        rc = er_ckpt_source_shard(source, source->m.slices[i].shard, err);
        if (rc == 0)
            rc =
                add(list, &(struct er_fetch){.slice = i, .bytes = slice_bytes(&source->m, i)}, err);
    }
    return rc;
}

void er_fetch_done(struct er_fetch_list *list)
{
    free(list->items);
    *list = (struct er_fetch_list){0};
}

/* ---- reading ---- */

struct run {
    const struct er_fetch_list *list;
    const struct er_ckpt_source *source;
    const struct er_fetch_opts *opts;
    uint64_t total_bytes;
    atomic_size_t next;
    atomic_uint_fast64_t read_bytes, done_bytes;
    atomic_bool stop;
    pthread_mutex_t lock;
    int rc; /* under the lock */
    struct er_error err;
};

/* `exponent`: all its bits are set in what is not finite. */
static bool halves_finite(const char *data, uint64_t n, uint16_t exponent)
{
    uint64_t bad = 0;

    for (uint64_t i = 0; i < n; i++) {
        uint16_t x;

        memcpy(&x, data + i * 2, 2);
        bad += (x & exponent) == exponent;
    }
    return bad == 0;
}

static bool all_finite(const char *data, uint64_t bytes, enum er_ckpt_dtype dtype)
{
    double sum = 0; /* of x - x: 0 unless one is not finite */

    if (dtype == ER_CKPT_F16 || dtype == ER_CKPT_BF16)
        return halves_finite(data, bytes / 2, dtype == ER_CKPT_F16 ? 0x7c00 : 0x7f80);
    if (dtype == ER_CKPT_F32)
        for (uint64_t i = 0; i < bytes / 4; i++) {
            float x;
            memcpy(&x, data + i * 4, 4);
            sum += (double)(x - x);
        }
    if (dtype == ER_CKPT_F64)
        for (uint64_t i = 0; i < bytes / 8; i++) {
            double x;
            memcpy(&x, data + i * 8, 8);
            sum += x - x;
        }
    return sum == 0;
}

static int fetch_one(struct run *run, const struct er_fetch *f, struct er_piece_reader *reader,
                     struct er_error *err)
{
    const struct er_manifest *m = &run->source->m;
    const struct er_manifest_slice *s = &m->slices[f->slice];
    const struct er_manifest_tensor *t = &m->tensors[s->tensor];
    const struct er_piece piece = {.fd = run->source->fds[s->shard],
                                   .at = s->at,
                                   .bytes = slice_bytes(m, f->slice),
                                   .mapped = f->mapped ? f->to - f->from : NULL,
                                   .to = f->to,
                                   .from = f->from,
                                   .wanted = f->to ? f->bytes : 0};
    struct er_digest digest;
    int rc = er_piece_read(reader, &piece, &digest);

    if (rc < 0)
        return er_error_set(err, rc, "read '%s': %s", m->shards[s->shard].name, er_error_name(rc));
    atomic_fetch_add(&run->read_bytes, piece.bytes);
    if (!er_digest_equal(digest, s->digest))
        return er_error_set(err, ER_E_CORRUPT,
                            "tensor '%s', elements from %llu: digest does not match (shard %u)",
                            t->name, (ull)s->offset, s->shard);
    if (run->opts->refuse_nonfinite && f->to && !all_finite(f->to, f->bytes, t->dtype))
        return er_error_set(err, -EDOM, "tensor '%s' holds values that are not finite", t->name);
    return 0;
}

static void fail(struct run *run, int rc, const struct er_error *err)
{
    pthread_mutex_lock(&run->lock);
    if (run->rc == 0) {
        run->rc = rc;
        run->err = *err;
    }
    pthread_mutex_unlock(&run->lock);
    atomic_store(&run->stop, true);
}

static void work(struct run *run, bool tells)
{
    struct er_piece_reader *reader = er_piece_reader_new();
    struct er_error err = ER_ERROR_INIT;
    size_t i;

    if (!reader)
        fail(run, er_error_set(&err, -ENOMEM, "read: no memory"), &err);
    while (!atomic_load(&run->stop) && (i = atomic_fetch_add(&run->next, 1)) < run->list->n) {
        int rc = fetch_one(run, &run->list->items[i], reader, &err);

        if (rc < 0)
            fail(run, rc, &err);
        atomic_fetch_add(&run->done_bytes, run->list->items[i].bytes);
        if (tells && run->opts->progress)
            run->opts->progress(run->opts->user, atomic_load(&run->done_bytes), run->total_bytes);
    }
    er_piece_reader_free(reader);
}

static void *work_thread(void *run)
{
    work(run, false);
    return NULL;
}

static uint32_t thread_n(const struct er_fetch_opts *opts, size_t items)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t n = opts->threads;

    if (n == 0)
        n = cores > 0 && cores < (long)THREADS_AUTO ? (uint32_t)cores : THREADS_AUTO;
    if (n > THREADS_MAX)
        n = THREADS_MAX;
    /* A thread is not worth its start for a few pieces. */
    return items / 4 + 1 < n ? (uint32_t)(items / 4 + 1) : n;
}

/* This thread and `n - 1` others; fewer when they cannot be had. */
static void run_threads(struct run *run, uint32_t n)
{
    pthread_t threads[THREADS_MAX];
    sigset_t all, before;
    uint32_t started = 0;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started + 1 < n && pthread_create(&threads[started], NULL, work_thread, run) == 0)
        started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    work(run, true);
    while (started > 0)
        pthread_join(threads[--started], NULL);
}

int er_fetch_run(const struct er_fetch_list *list, const struct er_ckpt_source *source,
                 const struct er_fetch_opts *opts, uint64_t *ret_read, struct er_error *err)
{
    struct run run = {.list = list, .source = source, .opts = opts};

    pthread_mutex_init(&run.lock, NULL);
    for (size_t i = 0; i < list->n; i++)
        run.total_bytes += list->items[i].bytes;
    run_threads(&run, thread_n(opts, list->n));
    if (opts->progress)
        opts->progress(opts->user, atomic_load(&run.done_bytes), run.total_bytes);
    pthread_mutex_destroy(&run.lock);
    if (ret_read)
        *ret_read = atomic_load(&run.read_bytes);
    return run.rc < 0 ? er_error_set(err, run.rc, "%s", run.err.text) : 0;
}
