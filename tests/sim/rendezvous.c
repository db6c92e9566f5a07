#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/sim/sim.h"

/*
 * The simulation of the rendezvous as a program:
 *
 *   sim_rendezvous [COUNT [FIRST_SEED]]    seeds; a failing one is shrunk and printed as one line
 *   sim_rendezvous seed SEED [KEEP,...]    one, told in detail; with only those of its faults
 *   sim_rendezvous replay FILE [tell]      schedules that failed once, one a line
 *   sim_rendezvous golden FOLDER [--update]
 *                                          scenarios, compared with their traces (sim_golden.c)
 *   sim_rendezvous bugs [REPEATS]          every planted bug: found after how many events
 *   sim_rendezvous soak MINUTES [FIRST [HASH]]
 *                                          as long as that; HASH of the binary goes into the record
 */

#define DEFAULT_SEEDS 300
#define BUG_EVENTS    1000000u /* a planted bug must be found within */

enum er_bug er_planted;

static struct sim sim;
static uint64_t events, failures;

/* ---- shrinking ---- */

static bool still_fails(uint64_t seed)
{
    return !sim_run(&sim, seed, true);
}

/* Leaves out as much as can be left out: halves, quarters, ... single ones. */
static void shrink(uint64_t seed)
{
    static bool before[SIM_FAULTS];

    for (size_t size = sim.fault_n / 2 + 1; size > 0; size /= 2) {
        for (size_t from = 0; from < sim.fault_n; from += size) {
            bool any = false;

            for (size_t i = from; i < from + size && i < sim.fault_n; i++) {
                before[i] = sim.faults[i].left_out;
                any |= !before[i];
                sim.faults[i].left_out = true;
            }
            if (any && still_fails(seed))
                continue;
            for (size_t i = from; i < from + size && i < sim.fault_n; i++)
                sim.faults[i].left_out = before[i];
        }
    }
    still_fails(seed);
}

static void print_failure(uint64_t seed)
{
    const char *comma = "";

    printf("# seed %llu: %s\n", (unsigned long long)seed, sim.why);
    shrink(seed);
    printf("# replay: sim_rendezvous seed %llu ", (unsigned long long)seed);
    for (size_t i = 0; i < sim.fault_n; i++) {
        if (sim.faults[i].left_out)
            continue;
        printf("%s%zu", comma, i);
        comma = ",";
    }
    printf("%s\n#   at %llu us: %s\n# for regressions.txt: ", *comma ? "" : "none",
           (unsigned long long)sim.now_us, sim.why);
    sim_print(&sim);
}

static bool run_one(uint64_t seed)
{
    bool ok = sim_run(&sim, seed, false);

    events += sim.events;
    if (!ok && ++failures <= 5)
        print_failure(seed);
    return ok;
}

/* ---- reports ---- */

/* The least hit of the cells that can be hit. */
struct least {
    uint64_t hits;
    unsigned kind, phase, role, cells, impossible;
};

static struct least find_least(void)
{
    struct least l = {.hits = UINT64_MAX};

    for (unsigned k = 0; k < SIM_FAULT_COUNT; k++) {
        for (unsigned p = 0; p < SIM_PHASE_COUNT; p++) {
            for (unsigned r = 0; r < SIM_ROLE_COUNT; r++) {
                l.cells++;
                if (sim_impossible((enum sim_fault_kind)k, (enum sim_phase)p, (enum sim_role)r)) {
                    l.impossible++;
                } else if (sim_hits[k][p][r] < l.hits) {
                    l.hits = sim_hits[k][p][r];
                    l.kind = k;
                    l.phase = p;
                    l.role = r;
                }
            }
        }
    }
    return l;
}

static void print_cell(unsigned kind, unsigned phase)
{
    char cell[80] = "";
    size_t n = 0;

    for (unsigned r = 0; r < SIM_ROLE_COUNT; r++) {
        const char *slash = r ? "/" : "";

        if (sim_impossible((enum sim_fault_kind)kind, (enum sim_phase)phase, (enum sim_role)r))
            n += (size_t)snprintf(cell + n, sizeof(cell) - n, "%s-", slash);
        else
            n += (size_t)snprintf(cell + n, sizeof(cell) - n, "%s%llu", slash,
                                  (unsigned long long)sim_hits[kind][phase][r]);
    }
    printf(" %22s", cell);
}

static void print_coverage(void)
{
    struct least l = find_least();

    printf("# hits: leader/member/other; -: cannot be\n# %-11s", "");
    for (unsigned p = 0; p < SIM_PHASE_COUNT; p++)
        printf(" %22s", sim_phase_names[p]);
    for (unsigned k = 0; k < SIM_FAULT_COUNT; k++) {
        printf("\n# %-11s", sim_fault_names[k]);
        for (unsigned p = 0; p < SIM_PHASE_COUNT; p++)
            print_cell(k, p);
    }
    printf("\n# least hit cell: %s in %s on %s, %llu\n", sim_fault_names[l.kind],
           sim_phase_names[l.phase], sim_role_names[l.role], (unsigned long long)l.hits);
}

/* One line for the record. */
static void print_record(uint64_t first, uint64_t seeds, double took, const char *hash)
{
    struct least l = find_least();

    printf("{\"figure\":\"soak\",\"first_seed\":%llu,\"seeds\":%llu,\"events\":%llu,"
           "\"violations\":%llu,\"cells\":%u,\"cells_impossible\":%u,\"least_cell\":"
           "\"%s/%s/%s\",\"least_cell_hits\":%llu,\"seconds\":%.0f,\"binary_sha256\":\"%s\"}\n",
           (unsigned long long)first, (unsigned long long)seeds, (unsigned long long)events,
           (unsigned long long)failures, l.cells, l.impossible, sim_fault_names[l.kind],
           sim_phase_names[l.phase], sim_role_names[l.role], (unsigned long long)l.hits, took,
           hash);
}

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* `hash`: NULL: no record. */
static int run_seeds(uint64_t first, uint64_t count, double limit_s, const char *hash)
{
    double begun = seconds(), took;
    uint64_t n = 0;

    for (; n < count && failures < 5; n++) {
        if (limit_s > 0 && seconds() - begun > limit_s)
            break;
        run_one(first + n);
    }
    took = seconds() - begun;
    print_coverage();
    printf("%llu seeds from %llu, %llu events, %.0f a second, %llu failed\n", (unsigned long long)n,
           (unsigned long long)first, (unsigned long long)events, (double)events / took,
           (unsigned long long)failures);
    if (hash)
        print_record(first, n, took, hash);
    return failures ? 1 : 0;
}

/* ---- planted bugs ---- */

/* Events until it is found; UINT64_MAX: not within the limit. */
static uint64_t hunt(enum er_bug bug, uint64_t first, char why[256])
{
    uint64_t n = 0;

    er_planted = bug;
    for (uint64_t seed = first; n < BUG_EVENTS; seed++) {
        bool ok = sim_run(&sim, seed, false);

        n += sim.events;
        if (ok)
            continue;
        snprintf(why, 256, "seed %llu: %.200s", (unsigned long long)seed, sim.why);
        er_planted = ER_BUG_NONE;
        return n;
    }
    er_planted = ER_BUG_NONE;
    return UINT64_MAX;
}

static int by_size(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static int run_bugs(unsigned repeats)
{
    static const char *const texts[ER_BUG_COUNT] = {
#define NAME(name, text) [ER_BUG_##name] = text,
        ER_BUGS(NAME)
#undef NAME
    };
    static uint64_t found[1000];
    int missed = 0;

    repeats = repeats < 1000 ? repeats : 1000;
    for (unsigned bug = ER_BUG_NONE + 1; bug < ER_BUG_COUNT; bug++) {
        char why[256] = "not found";
        uint64_t median;

        for (unsigned i = 0; i < repeats; i++)
            found[i] = hunt((enum er_bug)bug, 1 + 100000 * (uint64_t)i, why);
        qsort(found, repeats, sizeof(found[0]), by_size);
        median = found[repeats / 2];
        missed += median == UINT64_MAX;
        printf("# %-55s %10lld events   %s\n", texts[bug],
               median == UINT64_MAX ? -1 : (long long)median, why);
    }
    printf("%d planted bugs, %d not found\n", ER_BUG_COUNT - 1, missed);
    return missed ? 1 : 0;
}

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
    unsigned lines = 0;

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
    printf("%u schedules replayed, %llu failed\n", lines, (unsigned long long)failures);
    return failures || !lines ? 1 : 0;
}

int main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    unsigned long long a = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (strcmp(verb, "seed") == 0)
        return run_seed(a, argc > 3 ? argv[3] : NULL);
    if (strcmp(verb, "bugs") == 0)
        return run_bugs(a ? (unsigned)a : 1);
    if (strcmp(verb, "soak") == 0)
        return run_seeds(argc > 3 ? strtoull(argv[3], NULL, 10) : 1, UINT64_MAX, (double)a * 60,
                         argc > 4 ? argv[4] : "");
    if (strcmp(verb, "golden") == 0 && argc > 2)
        return sim_golden(&sim, argv[2], argc > 3 && strcmp(argv[3], "--update") == 0);
    sim_verbose = argc > 3 && strcmp(argv[3], "tell") == 0;
    if (strcmp(verb, "replay") == 0)
        return replay(argc > 2 ? argv[2] : "");
    return run_seeds(a ? a : 1, *verb ? strtoull(verb, NULL, 10) : DEFAULT_SEEDS, 0, NULL);
}
