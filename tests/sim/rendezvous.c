#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/sim/sim.h"

/*
 * The simulation of the rendezvous as a program:
 *
 *   sim_rendezvous [COUNT [FIRST_SEED]]
 *     seeds; a failing one is shrunk and printed as one line
 *
 *   sim_rendezvous seed SEED [KEEP,...]
 *     one, told in detail; with only those of its faults
 *
 *   sim_rendezvous replay FILE [tell|story]
 *     schedules that failed once, one a line; as a golden trace
 *
 *   sim_rendezvous golden FOLDER [--update]
 *     scenarios, compared with their traces (sim_golden.c)
 *
 *   sim_rendezvous bugs [REPEATS [JOBS]]
 *     every planted bug: found after how many events
 *
 *   sim_rendezvous soak MINUTES [FIRST [JOBS [HASH]]]
 *     as long as that, in so many processes (0: one for each processor); HASH of the binary goes
 *     into the record
 *
 *   sim_rendezvous chunk SEEDS FIRST JOBS HASH
 *     the same for so many seeds, with all hits as JSON (tests/sim/soak adds them up)
 */

#define DEFAULT_SEEDS 300

static struct sim sim;

/* ---- one seed in detail ---- */

static int run_seed(uint64_t seed, const char *keep)
{
    bool ok = sim_run(&sim, seed, false);

    sim_print(&sim);
    if (keep) {
        for (size_t i = 0; i < sim.fault_n; i++)
            sim.faults[i].left_out = true;
        for (char *end; *keep >= '0' && *keep <= '9'; keep = *end == ',' ? end + 1 : end) {
            unsigned long i = strtoul(keep, &end, 10);

            if (i < sim.fault_n)
                sim.faults[i].left_out = false;
        }
    }
    sim_verbose = true;
    ok = sim_run(&sim, seed, true);
    printf("# seed %llu: %d nodes, %d:%d, %llu events, %llu generations: %s\n",
           (unsigned long long)seed, sim.n, (int)sim.shape.min, (int)sim.shape.max,
           (unsigned long long)sim.events, (unsigned long long)sim.seals, ok ? "ok" : sim.why);
    return ok ? 0 : 1;
}

/* Every line of the file, but for comments. */
static int replay(const char *path)
{
    static char line[32768];
    FILE *f = fopen(path, "re");
    unsigned lines = 0, failures = 0;

    if (!f) {
        printf("cannot open '%s'\n", path);
        return 1;
    }
    while (fgets(line, sizeof(line), f)) {
        if (line[0] == '#' || line[0] == '\n')
            continue;
        lines++;
        if (!sim_parse(&sim, line)) {
            printf("# not a schedule: %s", line);
            failures++;
        } else if (!sim_run(&sim, sim.seed, true)) {
            printf("# %s: %s", sim.why, line);
            failures++;
        }
    }
    fclose(f);
    printf("%u schedules replayed, %u failed\n", lines, failures);
    return failures || !lines ? 1 : 0;
}

static uint64_t number(int argc, char **argv, int i, uint64_t otherwise)
{
    return argc > i ? strtoull(argv[i], NULL, 10) : otherwise;
}

static unsigned jobs_of(uint64_t asked)
{
    long n = asked ? (long)asked : sysconf(_SC_NPROCESSORS_ONLN);

    return n < 1 ? 1 : n > SIM_JOBS ? SIM_JOBS : (unsigned)n;
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    uint64_t a = number(argc, argv, 2, 0);

    setvbuf(stdout, NULL, _IOLBF, 1 << 16);
    if (strcmp(verb, "seed") == 0)
        return run_seed(a, argc > 3 ? argv[3] : NULL);
    if (strcmp(verb, "bugs") == 0)
        return sim_bugs((unsigned)a, jobs_of(number(argc, argv, 3, 1)));
    if (strcmp(verb, "soak") == 0)
        return sim_soak(&(struct sim_soak){.first = number(argc, argv, 3, 1),
                                           .count = UINT64_MAX,
                                           .jobs = jobs_of(number(argc, argv, 4, 0)),
                                           .limit_s = (double)(a ? a : 1) * 60,
                                           .hash = argc > 5 ? argv[5] : ""});
    if (strcmp(verb, "chunk") == 0 && argc == 6)
        return sim_soak(&(struct sim_soak){.first = number(argc, argv, 3, 1),
                                           .count = a,
                                           .jobs = jobs_of(number(argc, argv, 4, 0)),
                                           .hash = argv[5],
                                           .cells = true});
    if (strcmp(verb, "golden") == 0 && argc > 2)
        return sim_golden(&sim, argv[2], argc > 3 && strcmp(argv[3], "--update") == 0);
    sim_verbose = argc > 3 && strcmp(argv[3], "tell") == 0;
    if (strcmp(verb, "replay") == 0 && argc > 3 && strcmp(argv[3], "story") == 0)
        sim_story = stdout;
    if (strcmp(verb, "replay") == 0)
        return replay(argc > 2 ? argv[2] : "");
    return sim_soak(&(struct sim_soak){
        .first = a ? a : 1, .count = number(argc, argv, 1, DEFAULT_SEEDS), .jobs = 1});
}
