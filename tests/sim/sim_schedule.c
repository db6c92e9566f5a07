#include <stdio.h>
#include <string.h>

#include "tests/sim/sim.h"

/* Shapes of jobs, and schedules of faults: what, where in the job's life, to whom, and when. */

uint64_t sim_hits[SIM_FAULT_COUNT][SIM_PHASE_COUNT][SIM_ROLE_COUNT];

/* ---- the shape ---- */

static uint64_t pick_size(struct er_rand *r)
{
    uint64_t dice = sim_below(r, 100);

    if (dice < 75)
        return 1 + sim_below(r, 5);
    return dice < 95 ? 6 + sim_below(r, 10) : 16 + sim_below(r, SIM_NODES - 15);
}

/* Most seeds bring the job into one phase again and again, and aim there. */
static uint64_t pick_focus(struct er_rand *r)
{
    static const unsigned weights[SIM_PHASE_COUNT + 1] = {
        [SIM_PHASE_first] = 2, [SIM_PHASE_planning] = 5, [SIM_PHASE_sealed] = 2,
        [SIM_PHASE_ahead] = 8, [SIM_PHASE_go] = 9,       [SIM_PHASE_COUNT] = 8,
    };
    uint64_t dice = sim_below(r, 34), focus = 0;

    while (dice >= weights[focus])
        dice -= weights[focus++];
    return focus;
}

static void aim_shape(struct sim_shape *s, struct er_rand *r)
{
    switch (s->focus) {
    case SIM_PHASE_first: /* it takes long, and comes again: also beside what an old run left */
        s->n = sim_chance(r, 60) ? 2 + sim_below(r, 2) : s->n + 2;
        s->max = s->n;
        s->min = 1 + s->n / 2;
        s->spread = 60;
        s->new_runs = 1;
        s->stubborn = 70;
        break;
    case SIM_PHASE_sealed:   /* beside nodes that were left out, and run */
    case SIM_PHASE_planning: /* of some, while others still run */
        s->n += 2;
        s->stubborn = 50;
        break;
    case SIM_PHASE_ahead:
    case SIM_PHASE_go: /* so does a planned change */
        s->n += 2;
        s->max = s->n - sim_below(r, 3);
        s->min = 1;
        s->planned = 1;
        s->unable = 0;
        s->prepare = s->depart = 30;
        s->interval = 5;
        break;
    default:
        break;
    }
    if (s->n > SIM_NODES)
        s->n = s->max = SIM_NODES;
}

void sim_pick_shape(struct sim *sim)
{
    static const uint64_t budgets[] = {0, 1, 3, 10, UINT32_MAX, UINT32_MAX, UINT32_MAX};
    struct er_rand *r = &sim->rand, apart;
    struct sim_shape *s = &sim->shape;

    s->focus = pick_focus(r);
    s->n = pick_size(r);
    s->max = 1 + sim_below(r, s->n);
    s->min = 1 + sim_below(r, s->max);
    if (sim_chance(r, 50))
        s->min = 1 + s->min / 3;
    s->budget = budgets[sim_below(r, 7)];
    s->window = sim_chance(r, 50) ? 0 : 60;
    s->replacement = sim_chance(r, 33) ? 3 : 0;
    s->strikes = sim_chance(r, 20) ? 3 : 0;
    s->cooldown = sim_chance(r, 75) ? 120 : 0;
    s->loss_limit = sim_chance(r, 15) ? 20 : 0;
    s->planned = sim_chance(r, 60);
    s->unable = sim_chance(r, 9);
    s->new_runs = sim_chance(r, 25);
    s->stubborn = sim_chance(r, 30) ? 40 : 5;
    s->prepare = 5;
    s->depart = 3;
    s->spread = 3;
    s->interval = sim_chance(r, 50) ? 60 : 10;
    s->patience = s->focus == SIM_PHASE_COUNT ? 30 : 90;
    aim_shape(s, r);
    er_rand_init(&apart, ~sim->seed);
    s->vary = sim_chance(&apart, 40);
}

/* ---- the schedule ---- */

static enum sim_fault_kind pick_kind(struct er_rand *r)
{
    static const unsigned weights[SIM_FAULT_COUNT] = {
#define WEIGHT(name, weight) [SIM_##name] = weight,
        SIM_FAULT_KINDS(WEIGHT)
#undef WEIGHT
    };
    unsigned total = 0, pick, kind = 0;

    for (size_t i = 0; i < SIM_FAULT_COUNT; i++)
        total += weights[i];
    pick = (unsigned)sim_below(r, total);
    while (pick >= weights[kind])
        pick -= weights[kind++];
    return (enum sim_fault_kind)kind;
}

static struct sim_fault pick_fault(struct er_rand *r, uint64_t at_us)
{
    return (struct sim_fault){
        .at_us = at_us,
        .kind = pick_kind(r),
        .phase = (enum sim_phase)sim_below(r, SIM_PHASE_COUNT),
        .role = (enum sim_role)sim_below(r, SIM_ROLE_COUNT),
        .victim = (unsigned)sim_below(r, SIM_NODES),
        .amount = er_rand_next(r) >> 1,
    };
}

/* Steps that bring a job into a phase, in their order; then come faults that hit it there: first
 * some that leave it there, at last one of any kind. */
struct mover {
    unsigned focus; /* phase */
    struct {
        enum sim_fault_kind kind;
        enum sim_phase phase;
        enum sim_role role;
    } steps[3];
    unsigned n, gentle; /* steps; faults after them, before the last */
};

static const struct mover movers[] = {
    /* A run begins beside the workers of an old one: the store has forgotten it; */
    {SIM_PHASE_first, {{SIM_WIPE, SIM_PHASE_sealed, SIM_ROLE_member}}, 1, 1},
    {SIM_PHASE_first, {{SIM_WIPE, SIM_PHASE_sealed, SIM_ROLE_leader}}, 1, 1},
    /* or they are cut off, and another agent starts. With its leader gone one of them leads. */
    {SIM_PHASE_first,
     {{SIM_CUT, SIM_PHASE_sealed, SIM_ROLE_member},
      {SIM_LEAVE, SIM_PHASE_sealed, SIM_ROLE_leader},
      {SIM_LEAVE, SIM_PHASE_first, SIM_ROLE_leader}},
     3,
     1},
    {SIM_PHASE_first, {{SIM_SUCCESS, SIM_PHASE_sealed, SIM_ROLE_leader}}, 1, 2},
    {SIM_PHASE_planning, {{SIM_FAIL, SIM_PHASE_sealed, SIM_ROLE_member}}, 1, 1},
    /* What belongs to a plan that is given up comes late. */
    {SIM_PHASE_planning,
     {{SIM_FAIL, SIM_PHASE_sealed, SIM_ROLE_member},
      {SIM_LATE, SIM_PHASE_planning, SIM_ROLE_leader},
      {SIM_LEAVE, SIM_PHASE_planning, SIM_ROLE_member}},
     3,
     0},
    {SIM_PHASE_planning,
     {{SIM_QUIT, SIM_PHASE_sealed, SIM_ROLE_member},
      {SIM_LATE, SIM_PHASE_planning, SIM_ROLE_leader},
      {SIM_CRASH_FAST, SIM_PHASE_planning, SIM_ROLE_member}},
     3,
     0},
    {SIM_PHASE_planning, {{SIM_CRASH_FAST, SIM_PHASE_sealed, SIM_ROLE_member}}, 1, 1},
    {SIM_PHASE_planning, {{SIM_SCALE, SIM_PHASE_sealed, SIM_ROLE_other}}, 1, 1},
    /* Who is cut off, or does not stop in time, is left out. */
    {SIM_PHASE_sealed, {{SIM_FAIL, SIM_PHASE_sealed, SIM_ROLE_member}}, 1, 3},
    {SIM_PHASE_sealed, {{SIM_CUT, SIM_PHASE_sealed, SIM_ROLE_member}}, 1, 3},
    {SIM_PHASE_ahead, {{SIM_SCALE, SIM_PHASE_sealed, SIM_ROLE_other}}, 1, 1},
    {SIM_PHASE_ahead, {{SIM_DRAIN, SIM_PHASE_sealed, SIM_ROLE_member}}, 1, 1},
    {SIM_PHASE_ahead, {{SIM_ASIDE, SIM_PHASE_sealed, SIM_ROLE_member}}, 1, 1},
    {SIM_PHASE_go, {{SIM_SCALE, SIM_PHASE_sealed, SIM_ROLE_other}}, 1, 1},
    {SIM_PHASE_go, {{SIM_LEAVE, SIM_PHASE_sealed, SIM_ROLE_member}}, 1, 1},
    {SIM_PHASE_go, {{SIM_ASIDE, SIM_PHASE_sealed, SIM_ROLE_member}}, 1, 1},
};

static const struct mover *pick_mover(struct er_rand *r, uint64_t focus)
{
    const struct mover *fit[sizeof(movers) / sizeof(movers[0])];
    size_t n = 0;

    for (size_t i = 0; i < sizeof(movers) / sizeof(movers[0]); i++) {
        if (movers[i].focus == focus)
            fit[n++] = &movers[i];
    }
    return fit[sim_below(r, n)];
}

/* What only a node with workers, or one that had some, feels is the rarest, and that most of all
 * where nobody should have any. */
static void aim(struct er_rand *r, struct sim_fault *f, uint64_t focus, bool last)
{
    static const enum sim_fault_kind rare[] = {SIM_FAIL, SIM_QUIT, SIM_SUCCESS, SIM_COMMIT,
                                               SIM_KEYS};
    static const enum sim_fault_kind gentle[] = {
        SIM_LOST_REPLY, SIM_LATE,    SIM_LOST,    SIM_DUPLICATE, SIM_REFUSED, SIM_DELAY, SIM_SCALE,
        SIM_ASIDE,      SIM_RELEASE, SIM_COMPACT, SIM_CLOCK,     SIM_COMMIT,  SIM_KEYS,  SIM_SET};
    static const enum sim_fault_kind rough[] = {
        SIM_FAIL, SIM_QUIT,  SIM_SUCCESS, SIM_CRASH_FAST, SIM_CRASH_SLOW,
        SIM_TOLD, SIM_CUT,   SIM_DEAF,    SIM_REBOOT,     SIM_OUTAGE,
        SIM_WIPE, SIM_LEAVE, SIM_DRAIN,   SIM_RESPEC,     SIM_LEASE};

    f->phase = (enum sim_phase)focus;
    f->kind = last ? rough[sim_below(r, sizeof(rough) / sizeof(rough[0]))]
                   : gentle[sim_below(r, sizeof(gentle) / sizeof(gentle[0]))];
    if (focus == SIM_PHASE_sealed || (last && sim_chance(r, 15)))
        f->kind = rare[sim_below(r, 5)];
    if (focus == SIM_PHASE_planning && last && sim_chance(r, 25)) {
        f->kind = rare[sim_below(r, 3)];
        f->role = SIM_ROLE_other;
    }
    if (focus == SIM_PHASE_sealed)
        f->role = SIM_ROLE_other;
    else if (focus == SIM_PHASE_first)
        f->role = sim_chance(r, 50) ? SIM_ROLE_leader : SIM_ROLE_other;
}

static void schedule_at_random(struct sim *sim, uint64_t at)
{
    struct er_rand *r = &sim->rand;

    for (size_t i = 0; i < sim->fault_n; i++) {
        sim->faults[i] = pick_fault(r, at);
        if (sim_chance(r, 50))
            sim->faults[i].kind = (enum sim_fault_kind)sim_below(r, SIM_FAULT_COUNT);
        at += 1 + sim_below(r, sim_chance(r, 50) ? 300000 : 12 * ER_US_PER_S);
    }
}

static void schedule_aimed(struct sim *sim, uint64_t at)
{
    struct er_rand *r = &sim->rand;

    for (size_t i = 0; i < sim->fault_n;) {
        const struct mover *m = pick_mover(r, sim->shape.focus);

        for (unsigned k = 0; k <= m->n + m->gentle && i < sim->fault_n; k++, i++) {
            sim->faults[i] = pick_fault(r, at);
            if (k >= m->n) {
                aim(r, &sim->faults[i], sim->shape.focus, k == m->n + m->gentle);
            } else {
                sim->faults[i].kind = m->steps[k].kind;
                sim->faults[i].phase = m->steps[k].phase;
                sim->faults[i].role = m->steps[k].role;
            }
            at += 1 + sim_below(r, ER_US_PER_S);
        }
        at += sim_below(r, 40 * ER_US_PER_S);
    }
}

static uint64_t patience(const struct sim *sim)
{
    return (sim->shape.patience ? sim->shape.patience : 30) * ER_US_PER_S;
}

void sim_schedule(struct sim *sim)
{
    uint64_t at = sim->now_us + sim_below(&sim->rand, 40 * ER_US_PER_S);

    sim->fault_n = 4 + sim_below(&sim->rand, SIM_FAULTS - 4);
    if (sim->shape.focus == SIM_PHASE_COUNT)
        schedule_at_random(sim, at);
    else
        schedule_aimed(sim, at);
    at = sim->faults[sim->fault_n - 1].at_us + patience(sim) - sim->begun_us;
    sim->shape.until = at / ER_US_PER_S + 2;
}

/* ---- what cannot be hit ---- */

#define ANY    (~0u)
#define BIT(x) (1u << (x))

static const struct {
    unsigned kinds, phases, roles;
    const char *why;
} impossible[] = {
    {ANY, BIT(SIM_PHASE_first), BIT(SIM_ROLE_member),
     "nobody is a member before the first seal of a run"},
};

const char *sim_impossible(enum sim_fault_kind kind, enum sim_phase phase, enum sim_role role)
{
    for (size_t i = 0; i < sizeof(impossible) / sizeof(impossible[0]); i++) {
        if (impossible[i].kinds & BIT(kind) && impossible[i].phases & BIT(phase) &&
            impossible[i].roles & BIT(role))
            return impossible[i].why;
    }
    return NULL;
}

static void print_names(const char *const *names, unsigned n, unsigned which)
{
    if ((which & (BIT(n) - 1)) == BIT(n) - 1) {
        printf(" any");
        return;
    }
    for (unsigned i = 0; i < n; i++) {
        if (which & BIT(i))
            printf(" %s", names[i]);
    }
}

void sim_print_impossible(void)
{
    for (size_t i = 0; i < sizeof(impossible) / sizeof(impossible[0]); i++) {
        printf("# cannot be: faults");
        print_names(sim_fault_names, SIM_FAULT_COUNT, impossible[i].kinds);
        printf("; in");
        print_names(sim_phase_names, SIM_PHASE_COUNT, impossible[i].phases);
        printf("; on");
        print_names(sim_role_names, SIM_ROLE_COUNT, impossible[i].roles);
        printf(": %s\n", impossible[i].why);
    }
}

/* ---- where the job is ---- */

static const struct er_rdzv *leader(const struct sim *sim, int *ret_index)
{
    for (int i = 0; i < sim->n; i++) {
        if (sim->nodes[i].driver && sim->nodes[i].driver->core->lead != ER_LEAD_NO) {
            *ret_index = i;
            return sim->nodes[i].driver->core;
        }
    }
    *ret_index = -1;
    return NULL;
}

static enum sim_phase phase_now(const struct sim *sim, const struct er_rdzv *lead)
{
    const struct er_job_record *w = &sim->world;

    if (lead && (lead->lead == ER_LEAD_ASSIGNING || lead->lead == ER_LEAD_SEALING || lead->batches))
        return SIM_PHASE_planning;
    if (w->phase == ER_WORLD_SEALED)
        return w->next_go ? SIM_PHASE_go : w->next ? SIM_PHASE_ahead : SIM_PHASE_sealed;
    return w->last_sealed ? SIM_PHASE_forming : SIM_PHASE_first;
}

static enum sim_role role_of(struct sim *sim, int i, int leading)
{
    const struct sim_sealed *g = sim_sealed(sim, sim->world.last_sealed);

    if (i == leading)
        return SIM_ROLE_leader;
    return g && g->incarnation[i] && g->incarnation[i] == sim->nodes[i].incarnation
               ? SIM_ROLE_member
               : SIM_ROLE_other;
}

/* ---- when ---- */

/* When something is armed, every event may be its moment. */
uint64_t sim_next_fault(const struct sim *sim)
{
    uint64_t at = ER_FOREVER;

    for (size_t i = 0; i < sim->fault_n; i++) {
        const struct sim_fault *f = &sim->faults[i];
        uint64_t next = f->at_us > sim->now_us ? f->at_us : f->at_us + patience(sim);

        if (sim->done[i] || f->left_out)
            continue;
        at = next < at ? next : at;
        if (f->at_us > sim->now_us)
            break;
    }
    return at;
}

/* Hits the first, from the victim on, that lives, has the role, and feels it. */
static bool hit(struct sim *sim, const struct sim_fault *f, enum sim_phase phase, int leading,
                bool strict)
{
    for (int i = 0; i < sim->n; i++) {
        struct sim_node *node = &sim->nodes[(f->victim + (unsigned)i) % (unsigned)sim->n];
        enum sim_role role = role_of(sim, node->index, leading);

        if (!node->driver || node->over || (strict && role != f->role) ||
            !sim_act(sim, node, f->kind, f->amount))
            continue;
        sim_hits[f->kind][phase][role]++;
        if (sim_impossible(f->kind, phase, role))
            sim_fail(sim, "%s hit a %s in %s, which cannot be: %s", sim_fault_names[f->kind],
                     sim_role_names[role], sim_phase_names[phase],
                     sim_impossible(f->kind, phase, role));
        if (sim_verbose)
            printf("# %12llu n%d %s\n", (unsigned long long)sim->now_us, node->index,
                   sim_fault_names[f->kind]);
        sim_dirty(sim);
        return true;
    }
    return false;
}

static bool fire(struct sim *sim, const struct sim_fault *f)
{
    int leading;
    const struct er_rdzv *lead = leader(sim, &leading);
    enum sim_phase phase = phase_now(sim, lead);
    bool late = sim->now_us >= f->at_us + patience(sim);

    if ((phase == f->phase || late) && hit(sim, f, phase, leading, true))
        return true;
    if (late)
        hit(sim, f, phase, leading, false);
    return late;
}

void sim_inject(struct sim *sim)
{
    for (size_t i = 0; i < sim->fault_n && sim->faults[i].at_us <= sim->now_us; i++) {
        if (!sim->done[i] && !sim->faults[i].left_out)
            sim->done[i] = fire(sim, &sim->faults[i]);
    }
}

void sim_heal(struct sim *sim)
{
    sim->healed = true;
    for (size_t i = 0; i < sim->fault_n; i++)
        sim->done[i] = true;
    if (sim->outage_us)
        sim->outage_us = sim->now_us;
    for (int i = 0; i < sim->n; i++) {
        struct sim_node *node = &sim->nodes[i];

        if (!node->client)
            continue;
        er_store_mem_delay(node->client, 300, 500);
        er_store_mem_fault(node->client, ER_FAULT_NONE, 0);
        er_store_mem_deaf(node->client, false);
        if (!sim->outage_us)
            er_store_mem_cut(node->client, false);
        node->uncut_us = node->undeaf_us = 0;
    }
    sim_dirty(sim);
}
