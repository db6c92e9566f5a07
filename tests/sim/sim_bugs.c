#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim.h"

/* Bugs that are planted in the core (planted.h): after how many events each is found. */

#define BUG_EVENTS  1000000u /* it must be within, in the middle of all hunts */
#define REPEATS_MAX 1000
#define BUGS        (ER_BUG_COUNT - 1)

enum er_bug er_planted;

static const char *const texts[ER_BUG_COUNT] = {
#define NAME(name, text) [ER_BUG_##name] = text,
    ER_BUGS(NAME)
#undef NAME
};

struct hunts {
    unsigned repeats;
    uint64_t taken;
    uint64_t found[BUGS][REPEATS_MAX]; /* events; UINT64_MAX: not within the limit */
    char why[BUGS][200];               /* the first hunt's */
};

static uint64_t hunt(struct sim *sim, enum er_bug bug, uint64_t first, char why[200])
{
    uint64_t n = 0;

    er_planted = bug;
    for (uint64_t seed = first; n < BUG_EVENTS; seed++) {
        bool ok = sim_run(sim, seed, false);

        n += sim->events;
        if (ok)
            continue;
        snprintf(why, 200, "%.150s", sim->why);
        er_planted = ER_BUG_NONE;
        return n;
    }
    er_planted = ER_BUG_NONE;
    return UINT64_MAX;
}

static void run_job(void *arg, unsigned job)
{
    static struct sim sim;
    struct hunts *h = arg;
    char why[200];

    for (;;) {
        uint64_t i = __atomic_fetch_add(&h->taken, 1, __ATOMIC_RELAXED);
        uint64_t bug = i / h->repeats, repeat = i % h->repeats;

        if (bug >= BUGS)
            return;
        h->found[bug][repeat] =
            hunt(&sim, (enum er_bug)(bug + 1), 1 + 100000 * repeat, repeat ? why : h->why[bug]);
    }
}

static int by_size(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static void print_events(uint64_t n)
{
    if (n == UINT64_MAX)
        printf(" > %u |", BUG_EVENTS);
    else
        printf(" %llu |", (unsigned long long)n);
}

/* A table, as README.md has it. */
int sim_bugs(unsigned repeats, unsigned jobs)
{
    struct hunts *h = sim_share(sizeof(*h));
    bool died[SIM_JOBS];
    uint64_t worst = 0;
    int missed = 0;

    h->repeats = repeats < 1 ? 1 : repeats > REPEATS_MAX ? REPEATS_MAX : repeats;
    if (!sim_jobs(jobs, run_job, h, died))
        return 1; /* an assertion, which is not how a bug should be found */
    printf("| what is broken | found after, median | slowest of %u | how, for one |\n"
           "|---|---|---|---|\n",
           h->repeats);
    for (unsigned bug = 0; bug < BUGS; bug++) {
        uint64_t median;

        qsort(h->found[bug], h->repeats, sizeof(h->found[0][0]), by_size);
        median = h->found[bug][h->repeats / 2];
        worst = median > worst ? median : worst;
        missed += median == UINT64_MAX;
        printf("| %s |", texts[bug + 1]);
        print_events(median);
        print_events(h->found[bug][h->repeats - 1]);
        printf(" %s |\n", h->why[bug]);
    }
    if (missed)
        printf("%d planted bugs, %d not found within %u events\n", BUGS, missed, BUG_EVENTS);
    else
        printf("%d planted bugs, all found; worst median %llu events\n", BUGS,
               (unsigned long long)worst);
    return missed ? 1 : 0;
}
