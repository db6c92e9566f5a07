/*
 * How much of the communication of a step is hidden behind its computation: 2 ranks of this host,
 * each pinned to a core, links paced, so that communication takes its time and little CPU. The four
 * ways of a step follow one another in the same processes, round by round.
 *
 *     hidden = (serial - overlap) / min(compute, comm)
 *     bound  = max(comm, compute + CPU time of communication)
 *
 * That CPU time is what the kernel charges the ranks' processes in the steps of communication
 * alone.
 */
#include <sched.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bench/lib/bench.h"
#include "bench/lib/gpt_job.h"
#include "tests/lib/ranks.h"

enum { RANKS = 2, MODES = 4, STEPS = 2, WARM = 2, ROUNDS_MAX = 64, BUCKET_BYTES = 1 << 20 };

/* Shared with the ranks; rank 0 writes. */
struct run {
    uint64_t pace_bytes_per_s;
    size_t rounds;
    double ms[ROUNDS_MAX][MODES];
    double cpu_ms[ROUNDS_MAX]; /* of a step's communication */
};

static void must(int rc, const struct er_error *err)
{
    if (rc != 0)
        bench_fail("%s", err->text);
}

static void pin(int rank)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET((size_t)(rank % (int)cores), &set);
    (void)sched_setaffinity(0, sizeof(set), &set);
}

static double cpu_ms(void)
{
    struct rusage use;

    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e3 +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e3;
}

static double step_ms(struct gpt_job *job, struct er_comm *comm, enum gpt_job_mode mode)
{
    struct er_error err = ER_ERROR_INIT;
    double began;

    job->mode = mode;
    must(er_comm_barrier(comm, &err), &err);
    began = bench_now_ms();
    for (int i = 0; i < STEPS; i++)
        gpt_job_step(job);
    return (bench_now_ms() - began) / STEPS;
}

static int rank_main(struct er_ctx *ctx, void *user)
{
    static struct gpt_job job;
    struct run *run = user;
    const struct er_comm_opts opts = {.transport = ER_TRANSPORT_TCP,
                                      .pace_bytes_per_s = run->pace_bytes_per_s};
    const struct er_ddp_opts ddp = {.first_bucket_bytes = BUCKET_BYTES,
                                    .bucket_bytes = BUCKET_BYTES};
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm;
    int rank = er_world(ctx)->rank;

    pin(rank);
    must(er_comm_open(&comm, ctx, &opts, &err), &err);
    must(er_comm_wait_ready(comm, &err), &err);
    gpt_job_open(&job, comm, false, &ddp);
    for (int i = 0; i < WARM; i++)
        step_ms(&job, comm, GPT_JOB_OVERLAP);
    for (size_t r = 0; r < run->rounds; r++) {
        double ms[MODES], cpu = 0;

        for (int mode = 0; mode < MODES; mode++) {
            double before = cpu_ms();

            ms[mode] = step_ms(&job, comm, (enum gpt_job_mode)mode);
            if (mode == GPT_JOB_COMM)
                cpu = (cpu_ms() - before) / STEPS;
        }
        if (rank == 0) {
            for (int mode = 0; mode < MODES; mode++)
                run->ms[r][mode] = ms[mode];
            run->cpu_ms[r] = cpu;
        }
    }
    gpt_job_close(&job);
    er_comm_abort(comm);
    return 0;
}

static void run_ranks(struct run *run)
{
    int status[RANKS];

    er_ranks_run(RANKS, rank_main, run, status);
    for (int rank = 0; rank < RANKS; rank++) {
        if (status[rank] != 0)
            bench_fail("rank %d ended with %d", rank, status[rank]);
    }
}

static double greater(double a, double b)
{
    return a > b ? a : b;
}

static void emit_mode(const struct run *run, enum gpt_job_mode mode, const char *name, unsigned mb)
{
    static struct bench_series s;
    char figure[64];

    s.n = 0;
    for (size_t r = 0; r < run->rounds; r++)
        bench_add(&s, run->ms[r][mode]);
    if (mb)
        snprintf(figure, sizeof(figure), "%s_%u_ms", name, mb);
    else
        snprintf(figure, sizeof(figure), "%s_ms", name);
    bench_emit(figure, &s);
}

static void emit(const struct run *run, unsigned mb)
{
    static struct bench_series hidden, over, cpu;
    char figure[64];

    hidden.n = over.n = cpu.n = 0;
    for (size_t r = 0; r < run->rounds; r++) {
        const double *ms = run->ms[r];
        double compute = ms[GPT_JOB_COMPUTE], comm = ms[GPT_JOB_COMM];

        bench_add(&hidden,
                  (ms[GPT_JOB_SERIAL] - ms[GPT_JOB_OVERLAP]) / (compute < comm ? compute : comm));
        bench_add(&cpu, run->cpu_ms[r]);
        bench_add(&over, ms[GPT_JOB_OVERLAP] / greater(comm, compute + run->cpu_ms[r]));
    }
    emit_mode(run, GPT_JOB_COMM, "comm", mb);
    snprintf(figure, sizeof(figure), "comm_cpu_%u_ms", mb);
    bench_emit(figure, &cpu);
    emit_mode(run, GPT_JOB_SERIAL, "serial", mb);
    emit_mode(run, GPT_JOB_OVERLAP, "overlap", mb);
    snprintf(figure, sizeof(figure), "hidden_%u", mb);
    bench_emit(figure, &hidden);
    snprintf(figure, sizeof(figure), "step_over_bound_%u", mb);
    bench_emit(figure, &over);
}

int main(void)
{
    static const unsigned paces[] = {100, 400}; /* MB/s */
    struct run *run = er_ranks_shared(sizeof(*run));

    run->rounds = bench_runs(21, 5);
    for (size_t i = 0; i < sizeof(paces) / sizeof(paces[0]); i++) {
        run->pace_bytes_per_s = paces[i] * 1000000ull;
        run_ranks(run);
        if (i == 0)
            emit_mode(run, GPT_JOB_COMPUTE, "compute", 0);
        emit(run, paces[i]);
    }
    return 0;
}
