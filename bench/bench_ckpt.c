/*
 * Checkpoints of 1 GiB of state, on two ranks of this host (QUICK=1: 128 MiB): what the copy costs,
 * what a step loses, how fast the state becomes durable against plain direct writes of the same
 * bytes by as many writers (what `fio --direct=1 --bs=4M --rw=write --end_fsync=1` does), loading,
 * reading at another world size; and with PEERS=1 the same from others' libraries.
 */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/pool.h"
#include "bench/lib/bench.h"
#include "bench/lib/ckpt_peers.h"
#include "bench/lib/ckpt_ranks.h"
#include "ckpt/ckpt.h"

#define WRITE_BYTES (4 << 20) /* of one plain direct write */

static double cpu_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

/* ---- the copy ---- */

enum { S_PAUSE, S_CPU, S_WRITE, S_RAW, S_RATIO, S_LOAD, S_QUIET, S_BUSY, S_LARGE, S_COPY };

static double memcpy_ms(struct bench_rank *r, char *to, bool cpu)
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

static void measure_copy(struct bench_rank *r)
{
    struct bench_series *pause = &r->shared->series[S_PAUSE], *cpu = &r->shared->series[S_CPU];
    struct er_pool *pool = NULL;
    char *to;
    volatile double sink = 0;

    bench_must(er_pool_new(&pool, (size_t)bench_state_bytes + 4096, &r->err), &r->err);
    to = er_pool_alloc(pool, (size_t)bench_state_bytes, 4096);
    bench_open(r, "copy");
    bench_must(er_ckpt_reserve(r->ckpt, r->slices, TENSORS, &r->err), &r->err);
    for (size_t i = 0; i < bench_runs(7, 3); i++) {
        struct er_meta meta = {.applied = i + 1};
        struct er_ckpt_stats before, after;
        double plain = memcpy_ms(r, to, false), plain_cpu, waited, started;
        bool done;

        plain_cpu = memcpy_ms(r, to, true);
        er_ckpt_stats(r->ckpt, &before);
        started = bench_now_ms();
        bench_must(er_ckpt_begin(r->ckpt, r->slices, TENSORS, &meta, &r->err), &r->err);
        waited = bench_now_ms() - started;
        sink = sink + compute_for(3 * plain);
        started = bench_now_ms();
        bench_must(er_ckpt_before_apply(r->ckpt, &r->err), &r->err);
        waited += bench_now_ms() - started;
        do { /* further steps; what the boundaries cost counts too */
            sink = sink + compute_for(5);
            started = bench_now_ms();
            done = er_ckpt_local_done(r->ckpt);
            if (done)
                bench_must(er_ckpt_advance(r->ckpt, &r->err), &r->err);
            waited += bench_now_ms() - started;
        } while (er_ckpt_in_flight(r->ckpt));
        bench_must(er_ckpt_finish(r->ckpt, &r->err), &r->err);
        er_ckpt_stats(r->ckpt, &after);
        if (i > 0) { /* the first one warms the memory */
            bench_add(pause, waited / plain);
            bench_add(cpu,
                      (double)(after.snapshot_cpu_us - before.snapshot_cpu_us) / 1e3 / plain_cpu);
            r->shared->value[0] = waited;
        }
        bench_remove_step("copy", meta.applied);
    }
    er_pool_free(pool);
}

/* ---- writing ---- */

/* This rank's share of the bytes by direct writes to a fresh file, then fsync; from barrier to
 * barrier. */
static double raw_write_ms(struct bench_rank *r, bool pooled)
{
    char path[PATH_MAX + 64];
    uint64_t bytes = bench_state_bytes / (uint64_t)r->size / WRITE_BYTES * WRITE_BYTES;
    static struct er_pool *pool;
    static char *plain, *large; /* memory as fio has it; and with large pages, as the copy */
    char *buffer;
    double started;
    int fd;

    if (!pool) {
        bench_must(er_pool_new(&pool, WRITE_BYTES, &r->err), &r->err);
        large = er_pool_alloc(pool, WRITE_BYTES, 4096);
        if (posix_memalign((void **)&plain, 4096, WRITE_BYTES) != 0)
            bench_fail("no memory");
    }
    buffer = pooled ? large : plain;
    memset(buffer, 7, WRITE_BYTES);
    snprintf(path, sizeof(path), "%s/raw-%d", bench_dir, r->rank);
    bench_all(r, true);
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
    bench_all(r, true);
    started = bench_now_ms() - started;
    unlink(path);
    return started;
}

static double save_ms(struct bench_rank *r, uint64_t step)
{
    const struct er_meta meta = {.applied = step};
    double started;

    bench_all(r, true);
    started = bench_now_ms();
    bench_must(er_ckpt_save(r->ckpt, r->slices, TENSORS, &meta, &r->err), &r->err);
    bench_all(r, true);
    return bench_now_ms() - started;
}

static void measure_writes(struct bench_rank *r)
{
    struct bench_series *s = r->shared->series;
    size_t rounds = bench_runs(5, 2), tries = 0;
    double before, after, large;

    bench_open(r, "write");
    r->shared->value[1] = save_ms(r, 1); /* the first one: memory, threads */
    if (r->rank == 0)
        bench_remove_step("write", 1);
    before = raw_write_ms(r, false);
    for (size_t good = 0; good < rounds && tries < 3 * rounds; tries++) {
        double took = save_ms(r, tries + 2);

        if (r->rank == 0)
            bench_remove_step("write", tries + 2);
        large = raw_write_ms(r, true);
        after = raw_write_ms(r, false);
        /* A round on a disk that changed its mind in between says nothing. Every rank measured the
         * same barriers, so all decide alike but for rounding: rank 0's word counts. */
        if (bench_all(r, r->rank != 0 || fabs(before - after) <= 0.15 * fmax(before, after))) {
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

static void measure_steps(struct bench_rank *r)
{
    struct bench_series *s = r->shared->series;
    volatile double sink = 1;

    bench_open(r, "steps");
    bench_must(er_ckpt_reserve(r->ckpt, r->slices, TENSORS, &r->err), &r->err);
    for (size_t round = 0; round < bench_runs(5, 2); round++) {
        const struct er_meta meta = {.applied = round + 1};
        bool flying = false;

        for (int step = 0; step < 40 || er_ckpt_in_flight(r->ckpt); step++) {
            double started = bench_now_ms(), x = sink;

            if (step == 20) {
                bench_must(er_ckpt_begin(r->ckpt, r->slices, TENSORS, &meta, &r->err), &r->err);
                flying = true;
            }
            for (int i = 0; i < 5000000; i++) /* some 20 ms */
                x = x * 1.0000001 + 1e-9;
            sink = x;
            bench_must(er_ckpt_before_apply(r->ckpt, &r->err), &r->err);
            if (bench_all(r, er_ckpt_local_done(r->ckpt)))
                bench_must(er_ckpt_advance(r->ckpt, &r->err), &r->err);
            if (r->rank == 0 && (flying ? er_ckpt_in_flight(r->ckpt) : step > 2))
                bench_add(&s[step == 20 ? S_COPY
                             : flying   ? S_BUSY
                                        : S_QUIET],
                          bench_now_ms() - started);
            flying = flying && er_ckpt_in_flight(r->ckpt);
            if (step > 20 && !flying)
                break;
        }
        bench_must(er_ckpt_finish(r->ckpt, &r->err), &r->err);
        bench_all(r, true);
        if (r->rank == 0)
            bench_remove_step("steps", meta.applied);
    }
}

/* ---- reading ---- */

static void write_once(struct bench_rank *r)
{
    bench_open(r, "read");
    (void)save_ms(r, 1);
}

static void read_at_size(struct bench_rank *r)
{
    struct er_ckpt_stats stats;
    struct er_meta meta;

    bench_open(r, "read");
    bench_must(er_ckpt_load(r->ckpt, r->slices, TENSORS, &meta, NULL, NULL, &r->err), &r->err);
    er_ckpt_stats(r->ckpt, &stats);
    for (uint64_t i = 0; i < r->slices[1].count; i += 997) {
        float want = (float)((r->slices[1].offset + i) % 1000003) + 1;

        if (((float *)(void *)r->state[1])[i] != want)
            bench_fail("element %llu is wrong", (unsigned long long)i);
    }
    r->shared->value[2 + r->rank] = (double)stats.read_bytes / (double)stats.needed_bytes;
}

static double reshard(struct bench_shared *shared, int from, int to)
{
    double worst = 0;

    bench_run_ranks(shared, from, true, write_once);
    bench_run_ranks(shared, to, true, read_at_size);
    bench_remove("read");
    for (int i = 0; i < to; i++)
        worst = fmax(worst, shared->value[2 + i]);
    return worst;
}

static void measure_load(struct bench_rank *r)
{
    struct er_meta meta = {.applied = 1};

    bench_open(r, "load");
    bench_must(er_ckpt_save(r->ckpt, r->slices, TENSORS, &meta, &r->err), &r->err);
    for (size_t i = 0; i < bench_runs(6, 3); i++) {
        double started = bench_now_ms();

        bench_must(er_ckpt_load(r->ckpt, r->slices, TENSORS, &meta, NULL, NULL, &r->err), &r->err);
        if (i > 0)
            bench_add(&r->shared->series[S_LOAD], bench_now_ms() - started);
    }
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
    static struct bench_peer peers[] = {
        {.what = "save"}, {.what = "first"}, {.what = "pause"}, {.what = "load"}};
    static struct bench_series one;
    struct bench_shared *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct bench_series *s = shared->series;
    double mib;

    if (shared == MAP_FAILED)
        bench_fail("no memory");
    bench_state_bytes = (uint64_t)bench_runs(1024, 128) << 20;
    mib = (double)bench_state_bytes / (1 << 20);
    snprintf(bench_dir, sizeof(bench_dir), "%s/bench-ckpt-%d", bench_bin("bench"), (int)getpid());
    if (mkdir(bench_dir, 0777) < 0)
        bench_fail("make '%s'", bench_dir);

    bench_run_ranks(shared, 1, false, measure_copy);
    bench_remove("copy");
    bench_run_ranks(shared, 2, false, measure_writes);
    bench_remove("write");
    bench_run_ranks(shared, 2, false, measure_steps);
    bench_remove("steps");
    bench_run_ranks(shared, 1, false, measure_load);
    bench_remove("load");
    bench_emit_value("reshard_2_to_3_read_over_needed", reshard(shared, 2, 3), 0, 1);
    bench_emit_value("reshard_3_to_2_read_over_needed", reshard(shared, 3, 2), 0, 1);
    if (bench_peers())
        bench_run_peers(peers, 4);

    bench_emit("snapshot_cpu_over_memcpy", &s[S_CPU]);
    bench_emit("pause_over_memcpy", &s[S_PAUSE]);
    bench_add(&one, shared->value[0]);
    bench_emit_beside("pause_ms", &one, &peers[2]);
    if (s[S_RATIO].n > 0)
        bench_emit("write_over_direct", &s[S_RATIO]);
    if (s[S_LARGE].n > 0)
        bench_emit("write_over_direct_large_pages", &s[S_LARGE]);
    bench_emit_value("direct_write_mib_s", mib / bench_median(&s[S_RAW]) * 1e3,
                     bench_spread(&s[S_RAW]), s[S_RAW].n);
    bench_emit_beside("save_ms", &s[S_WRITE], &peers[0]);
    one.values[0] = shared->value[1];
    bench_emit_beside("first_save_ms", &one, &peers[1]);
    bench_emit_beside("load_ms", &s[S_LOAD], &peers[3]);
    bench_emit_value("step_beside_write_over_alone", mean(&s[S_BUSY]) / mean(&s[S_QUIET]),
                     bench_spread(&s[S_BUSY]), s[S_BUSY].n);
    /* No processor is free for it: the step that is copied beside waits for the copy. */
    bench_emit_value("step_with_copy_extra_ms", mean(&s[S_COPY]) - mean(&s[S_QUIET]),
                     bench_spread(&s[S_COPY]), s[S_COPY].n);
    (void)er_remove_all(bench_dir, NULL);
    return 0;
}
