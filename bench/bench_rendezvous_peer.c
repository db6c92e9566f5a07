/* First formation of small jobs, beside torch's own c10d rendezvous handler. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "bench/bench_rendezvous.h"

enum { CHANNELS = 8, PATIENCE_MS = 60000 };

static double form_ms(const struct bench_etcd *e, size_t n)
{
    static unsigned jobs;
    char job[32];
    const struct sim_opts opts = {.endpoints = e->endpoints,
                                  .job = job,
                                  .channels = n < CHANNELS ? n : CHANNELS,
                                  .nodes = n,
                                  .ttl_us = 5 * ER_US_PER_S,
                                  .death_grace_us = ER_US_PER_S,
                                  .min_nodes = (uint32_t)n};
    struct sim s;
    double start, ms;

    snprintf(job, sizeof(job), "small%u", ++jobs);
    sim_open(&s, &opts);
    start = bench_now_ms();
    sim_start(&s);
    sim_wait_all(&s, 1, PATIENCE_MS);
    ms = bench_now_ms() - start;
    sim_close(&s);
    return ms;
}

static const size_t sizes[] = {8, 32, 128};
enum { SIZES = sizeof(sizes) / sizeof(sizes[0]) };

/* Lines "N milliseconds" of the peer's program, which loads torch once for all. */
static void run_torch(const char *folder, struct bench_series series[SIZES])
{
    size_t runs = bench_runs(3, 1), n;
    char command[1024], line[128];
    FILE *f;
    double ms;

    snprintf(command, sizeof(command),
             "%s/bin/python -W ignore %s/peers_rendezvous.py %zu %d %d %d", folder, ER_BENCH_SOURCE,
             runs, (int)sizes[0], (int)sizes[1], (int)sizes[2]);
    f = popen(command, "re");
    if (!f)
        bench_fail("cannot start '%s'", command);
    while (fgets(line, sizeof(line), f)) {
        for (size_t k = 0; sscanf(line, "%zu %lf", &n, &ms) == 2 && k < SIZES; k++) {
            if (sizes[k] == n)
                bench_add(&series[k], ms);
        }
    }
    if (pclose(f) != 0)
        bench_fail("'%s' failed", command);
}

void bench_small(void)
{
    static struct bench_series ours[SIZES], theirs[SIZES];
    const char *folder = bench_peers();
    struct bench_etcd e;

    bench_etcd_start(&e, 1, BENCH_ETCD_MEMORY);
    form_ms(&e, sizes[0]); /* once unmeasured */
    for (size_t i = 0; i < SIZES * bench_runs(9, 3); i++)
        bench_add(&ours[i % SIZES], form_ms(&e, sizes[i % SIZES]));
    bench_etcd_stop(&e);
    if (folder)
        run_torch(folder, theirs);
    for (size_t k = 0; k < SIZES; k++) {
        char figure[32];

        snprintf(figure, sizeof(figure), "form_n%zu_ms", sizes[k]);
        if (folder)
            bench_emit_peer(figure, &ours[k], "torch c10d", &theirs[k]);
        else
            bench_emit(figure, &ours[k]);
    }
}
