/*
 * Checkpoints of 1 GiB of state, on two ranks of this host (QUICK=1: 128 MiB): what the copy costs,
 * what a step loses, how fast the state becomes durable beside fio's direct writes of the same
 * bytes by as many writers, loading, reading at another world size; and with PEERS=1 the same work
 * by others' libraries, turn by turn.
 */
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

static double cpu_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

/* ---- the copy ---- */

enum {
    S_PAUSE,
    S_PAUSE_MS,
    S_CPU,
    S_WRITE,
    S_FIRST,
    S_FIO,
    S_RATIO,
    S_LOAD,
    S_MAP,
    S_LOAD_PEER,
    S_QUIET,
    S_BUSY,
    S_COPY
};

#define STEADY 0.15 /* fio before and after a round may differ by */

static bool with_peers;

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
            bench_add(&r->shared->series[S_PAUSE_MS], waited);
        }
        bench_remove_step("copy", meta.applied);
    }
    er_pool_free(pool);
}

/* ---- writing ---- */

static double save_ms(struct bench_rank *r, const char *name, uint64_t step)
{
    const struct er_meta meta = {.applied = step};
    double started;

    bench_all(r, true);
    started = bench_now_ms();
    bench_must(er_ckpt_save(r->ckpt, r->slices, TENSORS, &meta, &r->err), &r->err);
    bench_all(r, true);
    started = bench_now_ms() - started;
    if (r->rank == 0)
        bench_remove_step(name, step);
    return started;
}

/* The first one of a process: memory, threads. */
static void measure_first(struct bench_rank *r)
{
    double took;

    bench_open(r, "first");
    took = save_ms(r, "first", 1);
    if (r->rank == 0)
        bench_add(&r->shared->series[S_FIRST], took);
}

static bool steady(double a, double b)
{
    return fabs(a - b) <= STEADY * fmax(a, b);
}

static void ask_libraries(struct bench_shared *shared)
{
    for (size_t i = 0; i < LIBRARIES_N; i++) {
        double pause, ms = bench_peers_ask("save", bench_libraries[i], &pause);

        bench_add(&shared->save[i], ms);
        bench_add(&shared->pause[i], pause);
    }
}

/* Rank 0's side of a round; the others wait at the next barrier. */
static void judge_round(struct bench_shared *shared, double took, double before, double after)
{
    struct bench_series *s = shared->series;

    if (!steady(before, after)) {
        fprintf(stderr, "bench: ckpt: a round is discarded: fio %.0f ms, then %.0f ms\n", before,
                after);
        return;
    }
    bench_add(&s[S_WRITE], took);
    bench_add(&s[S_FIO], (before + after) / 2);
    bench_add(&s[S_RATIO], (before + after) / 2 / took);
}

static void measure_writes(struct bench_rank *r)
{
    struct bench_series *s = r->shared->series;
    size_t rounds = bench_runs(5, 2), tries = 0;

    bench_open(r, "write");
    (void)save_ms(r, "write", 1);
    if (r->rank == 0 && with_peers) /* each has had its first one */
        for (size_t i = 0; i < LIBRARIES_N; i++)
            (void)bench_peers_ask("save", bench_libraries[i], NULL);
    do {
        double before = r->rank == 0 ? bench_fio_ms(bench_state_bytes, r->size) : 0;
        double took = save_ms(r, "write", tries + 2);

        if (r->rank == 0) {
            judge_round(r->shared, took, before, bench_fio_ms(bench_state_bytes, r->size));
            if (with_peers && r->shared->save[0].n < rounds)
                ask_libraries(r->shared);
        }
        tries++;
    } while (bench_all(r, r->rank != 0 || s[S_RATIO].n < rounds) && tries < 4 * rounds);
    if (r->rank == 0)
        fprintf(stderr, "bench: ckpt: %zu rounds on a steady disk, of %zu\n", s[S_RATIO].n, tries);
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
    const struct er_meta meta = {.applied = 1};

    bench_open(r, "read");
    bench_must(er_ckpt_save(r->ckpt, r->slices, TENSORS, &meta, &r->err), &r->err);
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

/* As the peer does: mapped, and every byte looked at, here for its digest. */
static double map_ms(struct bench_rank *r)
{
    struct er_slice slices[TENSORS];
    struct er_ckpt_views *views = NULL;
    struct er_meta meta;
    double started = bench_now_ms();

    memcpy(slices, r->slices, sizeof(slices));
    bench_must(er_ckpt_map(r->ckpt, slices, TENSORS, &meta, NULL, NULL, &views, &r->err), &r->err);
    started = bench_now_ms() - started;
    er_ckpt_unmap(views);
    return started;
}

static void measure_load(struct bench_rank *r)
{
    struct er_meta meta = {.applied = 1};

    bench_open(r, "load");
    bench_must(er_ckpt_save(r->ckpt, r->slices, TENSORS, &meta, &r->err), &r->err);
    for (size_t i = 0; i < bench_runs(12, 4); i++) {
        double started = bench_now_ms();

        bench_must(er_ckpt_load(r->ckpt, r->slices, TENSORS, &meta, NULL, NULL, &r->err), &r->err);
        started = bench_now_ms() - started;
        if (i > 0)
            bench_add(&r->shared->series[S_LOAD], started);
        started = map_ms(r);
        if (i > 0)
            bench_add(&r->shared->series[S_MAP], started);
        started = with_peers ? bench_peers_ask("load", "", NULL) : 0;
        if (i > 0 && with_peers)
            bench_add(&r->shared->series[S_LOAD_PEER], started);
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

/* Ours beside the fastest library, and the ratio of the two, which has a target. */
static void emit_beside(const char *figure, const char *ratio, const struct bench_series *ours,
                        const struct bench_series *theirs)
{
    size_t best = bench_fastest(theirs);

    for (size_t i = 0; i < LIBRARIES_N; i++)
        fprintf(stderr, "bench: ckpt: %s: %.1f ms, %s %.1f ms\n", figure, bench_median(ours),
                bench_libraries[i], bench_median(&theirs[i]));
    bench_emit_peer(figure, ours, bench_libraries[best], &theirs[best]);
    bench_emit_value(ratio, bench_median(ours) / bench_median(&theirs[best]), bench_spread(ours),
                     ours->n);
}

static void emit_copy(const struct bench_shared *shared)
{
    const struct bench_series *s = shared->series;

    bench_emit("snapshot_cpu_over_memcpy", &s[S_CPU]);
    bench_emit("pause_over_memcpy", &s[S_PAUSE]);
    if (!with_peers)
        bench_emit("pause_ms", &s[S_PAUSE_MS]);
}

static void emit_load(const struct bench_series *s)
{
    bench_emit("load_ms", &s[S_LOAD]);
    if (!with_peers) {
        bench_emit("map_ms", &s[S_MAP]);
        return;
    }
    bench_emit_peer("map_ms", &s[S_MAP], "safetensors.load_file", &s[S_LOAD_PEER]);
    bench_emit_value("map_over_peer", bench_median(&s[S_MAP]) / bench_median(&s[S_LOAD_PEER]),
                     bench_spread(&s[S_MAP]), s[S_MAP].n);
    bench_emit_value("load_over_peer", bench_median(&s[S_LOAD]) / bench_median(&s[S_LOAD_PEER]),
                     bench_spread(&s[S_LOAD]), s[S_LOAD].n);
}

static void emit_steps(const struct bench_series *s)
{
    bench_emit_value("step_beside_write_over_alone", mean(&s[S_BUSY]) / mean(&s[S_QUIET]),
                     bench_spread(&s[S_BUSY]), s[S_BUSY].n);
    /* No processor is free for it: the step that is copied beside waits for the copy. */
    bench_emit_value("step_with_copy_extra_ms", mean(&s[S_COPY]) - mean(&s[S_QUIET]),
                     bench_spread(&s[S_COPY]), s[S_COPY].n);
}

static void emit_first(const struct bench_shared *shared)
{
    if (with_peers)
        emit_beside("first_save_ms", "first_save_over_fastest_peer", &shared->series[S_FIRST],
                    shared->first);
    else
        bench_emit("first_save_ms", &shared->series[S_FIRST]);
}

static void emit_writes(const struct bench_shared *shared)
{
    const struct bench_series *s = shared->series;
    double mib = (double)bench_state_bytes / (1 << 20);

    if (s[S_RATIO].n == 0)
        return; /* no round on a steady disk: a missing figure */
    bench_emit("write_over_fio", &s[S_RATIO]);
    bench_emit_value("fio_mib_s", mib / bench_median(&s[S_FIO]) * 1e3, bench_spread(&s[S_FIO]),
                     s[S_FIO].n);
    if (!with_peers) {
        bench_emit("save_ms", &s[S_WRITE]);
        return;
    }
    emit_beside("save_ms", "save_over_fastest_peer", &s[S_WRITE], shared->save);
    emit_beside("pause_ms", "pause_over_shortest_peer", &s[S_PAUSE_MS], shared->pause);
}

static void measure_firsts(struct bench_shared *shared)
{
    for (size_t round = 0; round < bench_runs(3, 1); round++) {
        bench_run_ranks(shared, 2, false, measure_first);
        bench_remove("first");
        for (size_t i = 0; with_peers && i < LIBRARIES_N; i++)
            bench_add(&shared->first[i], bench_peers_ask("first", bench_libraries[i], NULL));
    }
}

int main(void)
{
    struct bench_shared *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (shared == MAP_FAILED)
        bench_fail("no memory");
    bench_state_bytes = (uint64_t)bench_runs(1024, 128) << 20;
    snprintf(bench_dir, sizeof(bench_dir), "%s/bench-ckpt-%d", bench_bin("bench"), (int)getpid());
    if (mkdir(bench_dir, 0777) < 0)
        bench_fail("make '%s'", bench_dir);
    with_peers = bench_peers_open();

    bench_run_ranks(shared, 1, false, measure_copy);
    bench_remove("copy");
    emit_copy(shared);
    bench_run_ranks(shared, 1, false, measure_load);
    bench_remove("load");
    emit_load(shared->series);
    bench_run_ranks(shared, 2, false, measure_steps);
    bench_remove("steps");
    emit_steps(shared->series);
    bench_emit_value("reshard_2_to_3_read_over_needed", reshard(shared, 2, 3), 0, 1);
    bench_emit_value("reshard_3_to_2_read_over_needed", reshard(shared, 3, 2), 0, 1);
    measure_firsts(shared);
    emit_first(shared);
    bench_run_ranks(shared, 2, false, measure_writes);
    bench_remove("write");
    bench_peers_close();
    emit_writes(shared);
    (void)er_remove_all(bench_dir, NULL);
    return 0;
}
