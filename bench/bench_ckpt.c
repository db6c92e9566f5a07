/*
 * Checkpoints of 1 GiB of state, on two ranks of this host (QUICK=1: 128 MiB): what the copy costs,
 * what a step loses, how fast the state becomes durable against plain direct writes of the same
 * bytes by as many writers (what `fio --direct=1 --bs=4M --rw=write --end_fsync=1` does), loading,
 * reading at another world size; and with PEERS=1 the same from others' libraries.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/pool.h"
#include "bench/lib/bench.h"
#include "ckpt/ckpt.h"

enum { RANKS_MAX = 3, TENSORS = 3, BLOB_MAX = 1 << 20, WRITE_BYTES = 4 << 20 };

/* Shared by the ranks. */
struct shared {
    pthread_barrier_t barrier;
    char blobs[RANKS_MAX][BLOB_MAX];
    double value[8];
    struct bench_series series[10];
};

struct rank {
    struct shared *shared;
    int rank, size;
    struct er_pool *pool;
    char *state[TENSORS];
    uint64_t tensor_n; /* floats of a tensor */
    struct er_slice slices[TENSORS];
    struct er_ckpt *ckpt;
    struct er_error err;
};

static char base_dir[PATH_MAX];
static uint64_t state_bytes;

static void must(int rc, const struct er_error *err)
{
    if (rc < 0)
        bench_fail("%s", err->text);
}

static double cpu_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

static int gather(void *user, const void *mine, size_t n, void *all, struct er_error *err)
{
    struct rank *r = user;

    if (n > BLOB_MAX)
        return er_error_set(err, -EMSGSIZE, "record of %zu bytes", n);
    memcpy(r->shared->blobs[r->rank], mine, n);
    pthread_barrier_wait(&r->shared->barrier);
    for (int i = 0; i < r->size; i++)
        memcpy((char *)all + (size_t)i * n, r->shared->blobs[i], n);
    pthread_barrier_wait(&r->shared->barrier);
    return 0;
}

static bool all_ranks(struct rank *r, bool mine)
{
    char one = mine, all[RANKS_MAX];

    gather(r, &one, 1, all, NULL);
    for (int i = 0; i < r->size; i++)
        mine = mine && all[i];
    return mine;
}

/* ---- ranks ---- */

static void set_up(struct rank *r, bool sharded)
{
    static const char *const names[TENSORS] = {"params", "adam.m", "adam.v"};
    uint64_t n = state_bytes / TENSORS / sizeof(float), first = 0, count = n;

    if (sharded) {
        first = n * (uint64_t)r->rank / (uint64_t)r->size;
        count = n * (uint64_t)(r->rank + 1) / (uint64_t)r->size - first;
    }
    r->tensor_n = n;
    must(er_pool_new(&r->pool, (size_t)(count * sizeof(float) + 4096) * TENSORS, &r->err), &r->err);
    for (int t = 0; t < TENSORS; t++) {
        r->state[t] = er_pool_alloc(r->pool, (size_t)count * sizeof(float), 4096);
        for (uint64_t i = 0; i < count; i++)
            ((float *)(void *)r->state[t])[i] = (float)((first + i) % 1000003) + (float)t;
        r->slices[t] = (struct er_slice){.name = names[t],
                                         .dtype = ER_CKPT_F32,
                                         .ndim = 1,
                                         .shape = {n},
                                         .offset = first,
                                         .count = count,
                                         .data = r->state[t],
                                         .replicated = !sharded};
    }
}

static void open_at(struct rank *r, const char *name)
{
    const struct er_ckpt_group group = {
        .rank = r->rank, .size = r->size, .user = r, .gather = r->size > 1 ? gather : NULL};
    char dir[PATH_MAX + 64];

    snprintf(dir, sizeof(dir), "%s/%s", base_dir, name);
    must(er_ckpt_open(&r->ckpt, dir, &group, NULL, &r->err), &r->err);
}

static void remove_dir(const char *name)
{
    char dir[PATH_MAX + 64];

    snprintf(dir, sizeof(dir), "%s/%s", base_dir, name);
    (void)er_remove_all(dir, NULL);
}

static void remove_step(const char *name, uint64_t step)
{
    char relative[64];

    snprintf(relative, sizeof(relative), "%s/step-%012llu", name, (unsigned long long)step);
    remove_dir(relative);
}

static void run_ranks(struct shared *shared, int size, bool sharded, void (*fn)(struct rank *))
{
    pthread_barrierattr_t attr;
    pid_t pids[RANKS_MAX];

    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attr, (unsigned)size);
    fflush(stdout);
    for (int i = 0; i < size; i++) {
        pids[i] = fork();
        if (pids[i] < 0)
            bench_fail("fork failed");
        if (pids[i] == 0) {
            struct rank r = {.shared = shared, .rank = i, .size = size};

            set_up(&r, sharded);
            fn(&r);
            er_ckpt_close(r.ckpt);
            _exit(0);
        }
    }
    for (int i = 0; i < size; i++) {
        int status = 0;

        if (waitpid(pids[i], &status, 0) != pids[i] || status != 0)
            bench_fail("rank %d: wait status %#x", i, (unsigned)status);
    }
    pthread_barrier_destroy(&shared->barrier);
}

/* ---- the copy ---- */

enum { S_PAUSE, S_CPU, S_WRITE, S_RAW, S_RATIO, S_LOAD, S_QUIET, S_BUSY, S_LARGE, S_COPY };

static double memcpy_ms(struct rank *r, char *to, bool cpu)
{
    double started = cpu ? cpu_ms() : bench_now_ms();

    for (int t = 0; t < TENSORS; t++)
        memcpy(to + (size_t)t * r->tensor_n * 4, r->state[t], (size_t)r->tensor_n * 4);
    return (cpu ? cpu_ms() : bench_now_ms()) - started;
}

/* A forward and backward that takes `ms` of this core and no memory traffic to speak of. */
static double compute_for(double ms)
{
    double until = bench_now_ms() + ms, x = 1;

    while (bench_now_ms() < until)
        for (int i = 0; i < 10000; i++)
            x = x * 1.0000001 + 1e-9;
    return x;
}

static void measure_copy(struct rank *r)
{
    struct bench_series *pause = &r->shared->series[S_PAUSE], *cpu = &r->shared->series[S_CPU];
    struct er_pool *pool = NULL;
    char *to;
    volatile double sink = 0;

    must(er_pool_new(&pool, (size_t)state_bytes + 4096, &r->err), &r->err);
    to = er_pool_alloc(pool, (size_t)state_bytes, 4096);
    open_at(r, "copy");
    must(er_ckpt_reserve(r->ckpt, r->slices, TENSORS, &r->err), &r->err);
    for (size_t i = 0; i < bench_runs(7, 3); i++) {
        struct er_meta meta = {.applied = i + 1};
        struct er_ckpt_stats before, after;
        double plain = memcpy_ms(r, to, false), plain_cpu, waited, started;
        bool done;

        plain_cpu = memcpy_ms(r, to, true);
        er_ckpt_stats(r->ckpt, &before);
        started = bench_now_ms();
        must(er_ckpt_begin(r->ckpt, r->slices, TENSORS, &meta, &r->err), &r->err);
        waited = bench_now_ms() - started;
        sink = sink + compute_for(3 * plain);
        started = bench_now_ms();
        must(er_ckpt_before_apply(r->ckpt, &r->err), &r->err);
        waited += bench_now_ms() - started;
        do { /* further steps; what the boundaries cost counts too */
            sink = sink + compute_for(5);
            started = bench_now_ms();
            done = er_ckpt_local_done(r->ckpt);
            if (done)
                must(er_ckpt_advance(r->ckpt, &r->err), &r->err);
            waited += bench_now_ms() - started;
        } while (er_ckpt_in_flight(r->ckpt));
        must(er_ckpt_finish(r->ckpt, &r->err), &r->err);
        er_ckpt_stats(r->ckpt, &after);
        if (i > 0) { /* the first one warms the memory */
            bench_add(pause, waited / plain);
            bench_add(cpu,
                      (double)(after.snapshot_cpu_us - before.snapshot_cpu_us) / 1e3 / plain_cpu);
            r->shared->value[0] = waited;
        }
        remove_step("copy", meta.applied);
    }
    er_pool_free(pool);
}

/* ---- writing ---- */

/* This rank's share of the bytes by direct writes to a fresh file, then fsync; from barrier to
 * barrier. */
static double raw_write_ms(struct rank *r, bool pooled)
{
    char path[PATH_MAX + 64];
    uint64_t bytes = state_bytes / (uint64_t)r->size / WRITE_BYTES * WRITE_BYTES;
    static struct er_pool *pool;
    static char *plain, *large; /* memory as fio has it; and with large pages, as the copy */
    char *buffer;
    double started;
    int fd;

    if (!pool) {
        must(er_pool_new(&pool, WRITE_BYTES, &r->err), &r->err);
        large = er_pool_alloc(pool, WRITE_BYTES, 4096);
        if (posix_memalign((void **)&plain, 4096, WRITE_BYTES) != 0)
            bench_fail("no memory");
    }
    buffer = pooled ? large : plain;
    memset(buffer, 7, WRITE_BYTES);
    snprintf(path, sizeof(path), "%s/raw-%d", base_dir, r->rank);
    all_ranks(r, true);
    started = bench_now_ms();
    fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_DIRECT, 0666);
    if (fd < 0)
        fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0666);
    if (fd < 0)
        bench_fail("create '%s'", path);
    (void)!fallocate(fd, 0, 0, (off_t)bytes);
    for (uint64_t at = 0; at < bytes; at += WRITE_BYTES)
        if (pwrite(fd, buffer, WRITE_BYTES, (off_t)at) != WRITE_BYTES)
            bench_fail("write '%s'", path);
    if (fsync(fd) < 0)
        bench_fail("fsync '%s'", path);
    close(fd);
    all_ranks(r, true);
    started = bench_now_ms() - started;
    unlink(path);
    return started;
}

static double save_ms(struct rank *r, uint64_t step)
{
    const struct er_meta meta = {.applied = step};
    double started;

    all_ranks(r, true);
    started = bench_now_ms();
    must(er_ckpt_save(r->ckpt, r->slices, TENSORS, &meta, &r->err), &r->err);
    all_ranks(r, true);
    return bench_now_ms() - started;
}

static void measure_writes(struct rank *r)
{
    struct bench_series *s = r->shared->series;
    size_t rounds = bench_runs(5, 2), tries = 0;
    double before, after, large;

    open_at(r, "write");
    r->shared->value[1] = save_ms(r, 1); /* the first one: memory, threads */
    if (r->rank == 0)
        remove_step("write", 1);
    before = raw_write_ms(r, false);
    for (size_t good = 0; good < rounds && tries < 3 * rounds; tries++) {
        double took = save_ms(r, tries + 2);

        if (r->rank == 0)
            remove_step("write", tries + 2);
        large = raw_write_ms(r, true);
        after = raw_write_ms(r, false);
        /* A round on a disk that changed its mind in between says nothing. Every rank measured the
         * same barriers, so all decide alike but for rounding: rank 0's word counts. */
        if (all_ranks(r, r->rank != 0 || fabs(before - after) <= 0.15 * fmax(before, after))) {
            good++;
            if (r->rank == 0) {
                bench_add(&s[S_WRITE], took);
                bench_add(&s[S_RAW], (before + after) / 2);
                bench_add(&s[S_RATIO], (before + after) / 2 / took);
                bench_add(&s[S_LARGE], large / took);
            }
        }
        before = after;
    }
    if (r->rank == 0 && s[S_RATIO].n < rounds)
        fprintf(stderr, "bench: ckpt: %zu of %zu rounds on a steady disk, after %zu tries\n",
                s[S_RATIO].n, rounds, tries);
}

/* ---- steps beside a write ---- */

static void measure_steps(struct rank *r)
{
    struct bench_series *s = r->shared->series;
    volatile double sink = 1;

    open_at(r, "steps");
    must(er_ckpt_reserve(r->ckpt, r->slices, TENSORS, &r->err), &r->err);
    for (size_t round = 0; round < bench_runs(5, 2); round++) {
        const struct er_meta meta = {.applied = round + 1};
        bool flying = false;

        for (int step = 0; step < 40 || er_ckpt_in_flight(r->ckpt); step++) {
            double started = bench_now_ms(), x = sink;

            if (step == 20) {
                must(er_ckpt_begin(r->ckpt, r->slices, TENSORS, &meta, &r->err), &r->err);
                flying = true;
            }
            for (int i = 0; i < 5000000; i++) /* some 20 ms */
                x = x * 1.0000001 + 1e-9;
            sink = x;
            must(er_ckpt_before_apply(r->ckpt, &r->err), &r->err);
            if (all_ranks(r, er_ckpt_local_done(r->ckpt)))
                must(er_ckpt_advance(r->ckpt, &r->err), &r->err);
            if (r->rank == 0 && (flying ? er_ckpt_in_flight(r->ckpt) : step > 2))
                bench_add(&s[step == 20 ? S_COPY
                             : flying   ? S_BUSY
                                        : S_QUIET],
                          bench_now_ms() - started);
            flying = flying && er_ckpt_in_flight(r->ckpt);
            if (step > 20 && !flying)
                break;
        }
        must(er_ckpt_finish(r->ckpt, &r->err), &r->err);
        all_ranks(r, true);
        if (r->rank == 0)
            remove_step("steps", meta.applied);
    }
}

/* ---- reading ---- */

static void write_once(struct rank *r)
{
    open_at(r, "read");
    (void)save_ms(r, 1);
}

static void read_at_size(struct rank *r)
{
    struct er_ckpt_stats stats;
    struct er_meta meta;

    open_at(r, "read");
    must(er_ckpt_load(r->ckpt, r->slices, TENSORS, &meta, NULL, NULL, &r->err), &r->err);
    er_ckpt_stats(r->ckpt, &stats);
    for (uint64_t i = 0; i < r->slices[1].count; i += 997) {
        float want = (float)((r->slices[1].offset + i) % 1000003) + 1;

        if (((float *)(void *)r->state[1])[i] != want)
            bench_fail("element %llu is wrong", (unsigned long long)i);
    }
    r->shared->value[2 + r->rank] = (double)stats.read_bytes / (double)stats.needed_bytes;
}

static double reshard(struct shared *shared, int from, int to)
{
    double worst = 0;

    run_ranks(shared, from, true, write_once);
    run_ranks(shared, to, true, read_at_size);
    remove_dir("read");
    for (int i = 0; i < to; i++)
        worst = fmax(worst, shared->value[2 + i]);
    return worst;
}

static void measure_load(struct rank *r)
{
    struct er_meta meta = {.applied = 1};

    open_at(r, "load");
    must(er_ckpt_save(r->ckpt, r->slices, TENSORS, &meta, &r->err), &r->err);
    for (size_t i = 0; i < bench_runs(6, 3); i++) {
        double started = bench_now_ms();

        must(er_ckpt_load(r->ckpt, r->slices, TENSORS, &meta, NULL, NULL, &r->err), &r->err);
        if (i > 0)
            bench_add(&r->shared->series[S_LOAD], bench_now_ms() - started);
    }
}

/* ---- peers ---- */

enum { LIBRARIES_MAX = 8 };

/* What bench/peers_ckpt.py measured of one kind: a series for each library. */
struct peer {
    const char *what;
    size_t n;
    char names[LIBRARIES_MAX][64];
    struct bench_series ms[LIBRARIES_MAX];
};

static void note_peer(struct peer *peer, const char *name, double ms)
{
    size_t i = 0;

    while (i < peer->n && strcmp(peer->names[i], name) != 0)
        i++;
    if (i == LIBRARIES_MAX)
        return;
    if (i == peer->n)
        snprintf(peer->names[peer->n++], sizeof(peer->names[0]), "%s", name);
    bench_add(&peer->ms[i], ms);
}

static size_t fastest(const struct peer *peer)
{
    size_t best = 0;

    for (size_t i = 1; i < peer->n; i++)
        if (bench_median(&peer->ms[i]) < bench_median(&peer->ms[best]))
            best = i;
    return best;
}

static void run_peers(struct peer *peers, size_t n)
{
    char command[2 * PATH_MAX + 256], line[256];
    const char *root = bench_peers();
    FILE *out;

    snprintf(command, sizeof(command), "'%s/bin/python' '%s' '%s/peers' %llu %zu", root,
             ER_BENCH_SOURCE "/peers_ckpt.py", base_dir, (unsigned long long)state_bytes,
             bench_runs(5, 2));
    out = popen(command, "r");
    if (!out)
        bench_fail("start the peers");
    while (fgets(line, sizeof(line), out)) {
        char what[32], name[64];
        double ms;

        if (sscanf(line, "%31s %63s %lf", what, name, &ms) != 3)
            continue;
        for (size_t i = 0; i < n; i++) {
            if (strcmp(peers[i].what, what) == 0)
                note_peer(&peers[i], name, ms);
        }
    }
    if (pclose(out) != 0)
        bench_fail("the peers failed");
}

static void emit_ms(const char *figure, const struct bench_series *s, const struct peer *peer)
{
    if (!peer || peer->n == 0) {
        bench_emit(figure, s);
        return;
    }
    for (size_t i = 0; i < peer->n; i++)
        fprintf(stderr, "bench: ckpt: %s: %s %.0f ms\n", figure, peer->names[i],
                bench_median(&peer->ms[i]));
    bench_emit_peer(figure, s, peer->names[fastest(peer)], &peer->ms[fastest(peer)]);
}

/* What is lost counts as a whole, not what most steps lose. */
static double mean(const struct bench_series *s)
{
    double sum = 0;

    for (size_t i = 0; i < s->n; i++)
        sum += s->values[i];
    return s->n ? sum / (double)s->n : 0;
}

int main(void)
{
    static struct peer peers[] = {
        {.what = "save"}, {.what = "first"}, {.what = "pause"}, {.what = "load"}};
    static struct bench_series one;
    struct shared *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct bench_series *s = shared->series;
    double mib;

    if (shared == MAP_FAILED)
        bench_fail("no memory");
    state_bytes = (uint64_t)bench_runs(1024, 128) << 20;
    mib = (double)state_bytes / (1 << 20);
    snprintf(base_dir, sizeof(base_dir), "%s/bench-ckpt-%d", bench_bin("bench"), (int)getpid());
    if (mkdir(base_dir, 0777) < 0)
        bench_fail("make '%s'", base_dir);

    run_ranks(shared, 1, false, measure_copy);
    remove_dir("copy");
    run_ranks(shared, 2, false, measure_writes);
    remove_dir("write");
    run_ranks(shared, 2, false, measure_steps);
    remove_dir("steps");
    run_ranks(shared, 1, false, measure_load);
    remove_dir("load");
    bench_emit_value("reshard_2_to_3_read_over_needed", reshard(shared, 2, 3), 0, 1);
    bench_emit_value("reshard_3_to_2_read_over_needed", reshard(shared, 3, 2), 0, 1);
    if (bench_peers())
        run_peers(peers, 4);

    bench_emit("snapshot_cpu_over_memcpy", &s[S_CPU]);
    bench_emit("pause_over_memcpy", &s[S_PAUSE]);
    bench_add(&one, shared->value[0]);
    emit_ms("pause_ms", &one, &peers[2]);
    if (s[S_RATIO].n > 0)
        bench_emit("write_over_direct", &s[S_RATIO]);
    if (s[S_LARGE].n > 0)
        bench_emit("write_over_direct_large_pages", &s[S_LARGE]);
    bench_emit_value("direct_write_mib_s", mib / bench_median(&s[S_RAW]) * 1e3,
                     bench_spread(&s[S_RAW]), s[S_RAW].n);
    emit_ms("save_ms", &s[S_WRITE], &peers[0]);
    one.values[0] = shared->value[1];
    emit_ms("first_save_ms", &one, &peers[1]);
    emit_ms("load_ms", &s[S_LOAD], &peers[3]);
    bench_emit_value("step_beside_write_over_alone", mean(&s[S_BUSY]) / mean(&s[S_QUIET]),
                     bench_spread(&s[S_BUSY]), s[S_BUSY].n);
    /* No processor is free for it: the step that is copied beside waits for the copy. */
    bench_emit_value("step_with_copy_extra_ms", mean(&s[S_COPY]) - mean(&s[S_QUIET]),
                     bench_spread(&s[S_COPY]), s[S_COPY].n);
    (void)er_remove_all(base_dir, NULL);
    return 0;
}
