#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/sim/sim.h"

/* Many seeds, in several processes, and what they have covered. */

#define FAILURES_MAX 5
#define ENOUGH       1000 /* hits of a cell */

/* Jobs by their number of nodes: up to so many. */
static const int sizes[] = {1, 3, 8, 16, 32, SIM_NODES};
#define SIZES ER_ARRAY_N(sizes)

/* Of one process; it alone writes it. */
struct tally {
    uint64_t seed, events, failures; /* seed: under way */
    struct {
        uint64_t seeds, events;
    } by_size[SIZES];
    uint64_t hits[SIM_FAULT_COUNT][SIM_PHASE_COUNT][SIM_ROLE_COUNT];
};

/* Shared by all of them. */
struct board {
    uint64_t taken, failures; /* seeds given out */
    struct tally tallies[SIM_JOBS];
};

/* ---- shrinking ---- */

static bool still_fails(struct sim *sim, uint64_t seed)
{
    return !sim_run(sim, seed, true);
}

/* Leaves out as much as can be left out: halves, quarters, ... single ones. */
static void shrink(struct sim *sim, uint64_t seed)
{
    static bool before[SIM_FAULTS];

    for (size_t size = sim->fault_n / 2 + 1; size > 0; size /= 2) {
        for (size_t from = 0; from < sim->fault_n; from += size) {
            bool any = false;

            for (size_t i = from; i < from + size && i < sim->fault_n; i++) {
                before[i] = sim->faults[i].left_out;
                any |= !before[i];
                sim->faults[i].left_out = true;
            }
            if (any && still_fails(sim, seed))
                continue;
            for (size_t i = from; i < from + size && i < sim->fault_n; i++)
                sim->faults[i].left_out = before[i];
        }
    }
    still_fails(sim, seed);
}

static void print_failure(struct sim *sim, uint64_t seed)
{
    const char *comma = "";

    printf("# seed %llu: %s\n", (unsigned long long)seed, sim->why);
    shrink(sim, seed);
    printf("# replay: sim_rendezvous seed %llu ", (unsigned long long)seed);
    for (size_t i = 0; i < sim->fault_n; i++) {
        if (sim->faults[i].left_out)
            continue;
        printf("%s%zu", comma, i);
        comma = ",";
    }
    printf("%s\n#   at %llu us: %s\n# for regressions.txt: ", *comma ? "" : "none",
           (unsigned long long)sim->now_us, sim->why);
    sim_print(sim);
}

/* ---- jobs ---- */

static double seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void *sim_share(size_t n)
{
    void *at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED)
        abort();
    return at;
}

bool sim_jobs(unsigned jobs, void (*run)(void *arg, unsigned job), void *arg, bool died[SIM_JOBS])
{
    pid_t pids[SIM_JOBS];
    bool all = true;

    if (jobs == 1) { /* a debugger's friend */
        run(arg, 0);
        return true;
    }
    fflush(stdout);
    for (unsigned i = 0; i < jobs; i++) {
        pids[i] = fork();
        if (pids[i] < 0)
            abort();
        if (pids[i] == 0) {
            run(arg, i);
            fflush(stdout);
            _exit(0);
        }
    }
    for (unsigned i = 0; i < jobs; i++) {
        int status;

        while (waitpid(pids[i], &status, 0) < 0 && errno == EINTR)
            continue;
        died[i] = status != 0;
        all &= status == 0;
    }
    return all;
}

/* ---- reports ---- */
/* The least hit of the cells that can be hit. */
struct least {
    uint64_t hits;
    unsigned kind, phase, role, cells, impossible, few;
};

static struct least find_least(void)
{
    struct least l = {.hits = UINT64_MAX};

    for (unsigned k = 0; k < SIM_FAULT_COUNT; k++) {
        for (unsigned p = 0; p < SIM_PHASE_COUNT; p++) {
            for (unsigned r = 0; r < SIM_ROLE_COUNT; r++) {
                l.cells++;
                l.few += sim_hits[k][p][r] < ENOUGH;
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
    l.few -= l.impossible;
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
    printf("\n");
    sim_print_impossible();
    printf("# least hit cell: %s in %s on %s, %llu; %u of %u cells below %d\n",
           sim_fault_names[l.kind], sim_phase_names[l.phase], sim_role_names[l.role],
           (unsigned long long)l.hits, l.few, l.cells - l.impossible, ENOUGH);
}

/* One line for the record. */
static void print_record(const struct sim_soak *o, uint64_t seeds, const struct tally *t,
                         double took)
{
    struct least l = find_least();

    printf("{\"figure\":\"soak\",\"first_seed\":%llu,\"seeds\":%llu,\"events\":%llu,"
           "\"violations\":%llu,\"cells\":%u,\"cells_impossible\":%u,\"cells_below_%d\":%u,"
           "\"least_cell\":\"%s/%s/%s\",\"least_cell_hits\":%llu,\"jobs\":%u,\"seconds\":%.0f,"
           "\"binary_sha256\":\"%s\"}\n",
           (unsigned long long)o->first, (unsigned long long)seeds, (unsigned long long)t->events,
           (unsigned long long)t->failures, l.cells, l.impossible, ENOUGH, l.few,
           sim_fault_names[l.kind], sim_phase_names[l.phase], sim_role_names[l.role],
           (unsigned long long)l.hits, o->jobs, took, o->hash);
}

/* Two more lines, for who adds up many runs. */
static void print_cells(void)
{
    printf("{\"figure\":\"soak_cells\",\"cells\":{");
    for (unsigned k = 0; k < SIM_FAULT_COUNT; k++) {
        printf("%s\"%s\":{", k ? "," : "", sim_fault_names[k]);
        for (unsigned p = 0; p < SIM_PHASE_COUNT; p++) {
            const char *comma = "";

            printf("%s\"%s\":{", p ? "," : "", sim_phase_names[p]);
            for (unsigned r = 0; r < SIM_ROLE_COUNT; r++) {
                if (sim_impossible((enum sim_fault_kind)k, (enum sim_phase)p, (enum sim_role)r))
                    continue;
                printf("%s\"%s\":%llu", comma, sim_role_names[r],
                       (unsigned long long)sim_hits[k][p][r]);
                comma = ",";
            }
            printf("}");
        }
        printf("}");
    }
    printf("}}\n");
}

static void print_sizes(const struct tally *t)
{
    printf("{\"figure\":\"soak_sizes\",\"sizes\":{");
    for (size_t i = 0; i < SIZES; i++)
        printf("%s\"%d to %d\":[%llu,%llu]", i ? "," : "", i ? sizes[i - 1] + 1 : 1, sizes[i],
               (unsigned long long)t->by_size[i].seeds, (unsigned long long)t->by_size[i].events);
    printf("}}\n");
}

/* ---- seeds ---- */

struct run {
    const struct sim_soak *opts;
    struct board *board;
    double until; /* 0: no limit */
};

static bool take_seed(const struct run *r, uint64_t *ret)
{
    uint64_t i;

    if ((r->until > 0 && seconds() > r->until) ||
        __atomic_load_n(&r->board->failures, __ATOMIC_RELAXED) >= FAILURES_MAX)
        return false;
    i = __atomic_fetch_add(&r->board->taken, 1, __ATOMIC_RELAXED);
    *ret = r->opts->first + i;
    if (i < r->opts->count)
        return true;
    __atomic_fetch_sub(&r->board->taken, 1, __ATOMIC_RELAXED);
    return false;
}

static void note_size(struct tally *t, const struct sim *sim)
{
    size_t i = 0;

    while (sizes[i] < sim->n)
        i++;
    t->by_size[i].seeds++;
    t->by_size[i].events += sim->events;
}

static void run_job(void *arg, unsigned job)
{
    static struct sim sim;
    const struct run *r = arg;
    struct tally *t = &r->board->tallies[job];

    while (take_seed(r, &t->seed)) {
        bool ok = sim_run(&sim, t->seed, false);

        note_size(t, &sim);
        t->events += sim.events;
        if (ok)
            continue;
        t->failures++;
        if (__atomic_fetch_add(&r->board->failures, 1, __ATOMIC_RELAXED) < FAILURES_MAX)
            print_failure(&sim, t->seed);
    }
    memcpy(t->hits, sim_hits, sizeof(t->hits));
}

static void add_up(const struct board *b, unsigned jobs, struct tally *ret)
{
    memset(ret, 0, sizeof(*ret));
    memset(sim_hits, 0, sizeof(sim_hits));
    for (unsigned i = 0; i < jobs; i++) {
        const uint64_t *from = &b->tallies[i].hits[0][0][0];
        uint64_t *to = &sim_hits[0][0][0];

        ret->events += b->tallies[i].events;
        ret->failures += b->tallies[i].failures;
        for (size_t k = 0; k < sizeof(sim_hits) / sizeof(*to); k++)
            to[k] += from[k];
        for (size_t k = 0; k < SIZES; k++) {
            ret->by_size[k].seeds += b->tallies[i].by_size[k].seeds;
            ret->by_size[k].events += b->tallies[i].by_size[k].events;
        }
    }
}

int sim_soak(const struct sim_soak *opts)
{
    struct board *board = sim_share(sizeof(*board));
    double begun = seconds(), took;
    struct run run = {opts, board, opts->limit_s > 0 ? begun + opts->limit_s : 0};
    bool died[SIM_JOBS] = {false};
    struct tally all;
    bool ok = sim_jobs(opts->jobs, run_job, &run, died);

    took = seconds() - begun;
    add_up(board, opts->jobs, &all);
    for (unsigned i = 0; i < opts->jobs; i++) {
        if (died[i])
            printf("# a process ended in seed %llu\n", (unsigned long long)board->tallies[i].seed);
    }
    print_coverage();
    printf("%llu seeds from %llu, %llu events, %.0f a second, %llu failed\n",
           (unsigned long long)board->taken, (unsigned long long)opts->first,
           (unsigned long long)all.events, (double)all.events / took,
           (unsigned long long)all.failures);
    if (opts->hash)
        print_record(opts, board->taken, &all, took);
    if (opts->cells) {
        print_cells();
        print_sizes(&all);
    }
    return ok && !all.failures ? 0 : 1;
}
