#include "tests/sim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The clock, and one seed from beginning to end. */

#define CALM_US    (2400 * ER_US_PER_S) /* after the faults: time to come to rest */
#define QUIET_US   (600 * ER_US_PER_S)  /* then: nothing may happen */
#define EVENTS_MAX 150000u              /* of one seed */

bool sim_verbose;

uint64_t sim_below(struct er_rand *r, uint64_t n)
{
    return er_rand_below(r, n);
}

bool sim_chance(struct er_rand *r, unsigned percent)
{
    return sim_plain ? percent > 50 : sim_below(r, 100) < percent;
}

uint64_t sim_soon(const struct sim *sim, struct er_rand *r, uint64_t max_us)
{
    return sim->now_us + 1 + (sim_plain ? max_us / 100 : sim_below(r, max_us));
}

void sim_dirty(struct sim *sim)
{
    for (int i = 0; i < sim->n; i++)
        sim->nodes[i].dirty = true;
}

/* ---- the clock ---- */

/* How much this node's clock is ahead. */
static int64_t skew(const struct sim_node *node)
{
    const struct sim *sim = node->sim;

    return (int64_t)(sim->now_us - sim->begun_us) * node->drift_ppm / 1000000 + node->jump_us;
}

uint64_t sim_local_now(const struct sim_node *node)
{
    return (uint64_t)((int64_t)node->sim->now_us + skew(node));
}

bool sim_due(const struct sim *sim, uint64_t *at)
{
    if (!*at || *at > sim->now_us)
        return false;
    *at = 0;
    return true;
}

/* When its agent has something to do, on the store's clock. */
static void find_next(struct sim *sim, struct sim_node *node)
{
    uint64_t at, now = sim_local_now(node);

    node->dirty = false;
    node->next_us = ER_FOREVER;
    if (!node->driver || node->over)
        return;
    er_store_mem_skew(node->client, skew(node));
    at = er_driver_pending(node->driver) ? 0 : er_driver_deadline(node->driver);
    if (at == ER_FOREVER)
        return;
    node->next_us = at <= now ? sim->now_us : sim->now_us + (at - now);
}

static void dispatch(struct sim *sim, struct sim_node *node)
{
    uint64_t rev = er_store_mem_revision(sim->observer);

    if (node->dirty)
        find_next(sim, node);
    if (node->next_us > sim->now_us)
        return;
    er_store_mem_skew(node->client, skew(node));
    sim_actor = node->label;
    er_driver_dispatch(node->driver, sim_local_now(node));
    sim->events++;
    node->dirty = true;
    if (er_store_mem_revision(sim->observer) != rev) {
        sim_look(sim);
        sim_dirty(sim);
    }
    sim_actor = "store";
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return b && b < a ? b : a;
}

static uint64_t next_time(struct sim *sim)
{
    uint64_t at = earlier(sim_plain ? sim_next_step(sim) : sim_next_fault(sim), sim->outage_us);

    for (int i = 0; i < sim->n; i++) {
        struct sim_node *node = &sim->nodes[i];
        const uint64_t times[] = {node->farewell_us, node->restart_us, node->left_us,
                                  node->fail_us,     node->ok_us,      node->uncut_us,
                                  node->undeaf_us,   node->ready_us,   node->more_us};

        for (size_t k = 0; k < sizeof(times) / sizeof(times[0]); k++)
            at = earlier(at, times[k]);
        if (node->dirty)
            find_next(sim, node);
        at = node->next_us < at ? node->next_us : at;
        if (node->over && node->driver)
            at = sim->now_us;
    }
    return at;
}

static void end_outage(struct sim *sim)
{
    if (!sim_due(sim, &sim->outage_us))
        return;
    sim_tell(sim, "store", "answers again");
    er_store_mem_outage(sim->observer, false);
    for (int i = 0; i < sim->n; i++) {
        if (sim->nodes[i].client && !sim->nodes[i].uncut_us)
            er_store_mem_cut(sim->nodes[i].client, false);
    }
    sim_dirty(sim);
}

/* So many are no protocol's, and slow. */
static void check_storm(struct sim *sim)
{
    uint64_t most = sim->n > 10 ? 400 * (uint64_t)sim->n : 4000;

    if (sim->now_us / ER_US_PER_S != sim->second) {
        sim->second = sim->now_us / ER_US_PER_S;
        sim->second_events = sim->events;
    }
    sim_require(sim, sim->events < EVENTS_MAX && sim->events - sim->second_events < most,
                "a storm of events");
}

static void run_until(struct sim *sim, uint64_t end_us)
{
    while (!sim->broken) {
        uint64_t at, rev = er_store_mem_revision(sim->observer);
        int start = sim_plain ? 0 : (int)sim_below(&sim->rand, (uint64_t)sim->n);

        sim_look(sim);
        if (er_store_mem_revision(sim->observer) != rev)
            sim_dirty(sim); /* a lease ended, or something was applied late */
        end_outage(sim);
        if (sim_plain)
            sim_steps(sim);
        else
            sim_inject(sim);
        for (int i = 0; i < sim->n; i++)
            sim_turn(sim, &sim->nodes[i]);
        for (int i = 0; i < sim->n && !sim->broken; i++)
            dispatch(sim, &sim->nodes[(start + i) % sim->n]);
        check_storm(sim);
        at = next_time(sim);
        if (at > end_us)
            break;
        sim->now_us = at > sim->now_us ? at : sim->now_us;
    }
    sim->now_us = end_us > sim->now_us ? end_us : sim->now_us;
    sim_dirty(sim);
}

/* ---- one seed ---- */

static void set_up_node(struct sim *sim, int i)
{
    struct sim_node *node = &sim->nodes[i];

    node->sim = sim;
    node->index = i;
    node->boot = 100 + (uint64_t)i * 100;
    node->next_us = ER_FOREVER;
    er_rand_init(&node->rand, sim->seed * 1000 + (uint64_t)i);
    er_rand_init(&node->slots_rand, ~sim->seed * 1000 + (uint64_t)i);
    snprintf(node->id, sizeof(node->id), "n%d", i);
    snprintf(node->label, sizeof(node->label), "n%d", i);
    sim->slots[i] = 1 + (int)sim_below(&node->rand, 3);
    if (sim_chance(&node->rand, 50))
        node->drift_ppm = (int)sim_below(&node->rand, 20001) - 10000;
    node->restart_us = sim_soon(sim, &node->rand, sim->shape.spread * ER_US_PER_S);
    if (!sim_plain)
        return;
    sim->slots[i] = 2;
    node->restart_us = sim_starts_later(node) ? 0 : sim->now_us + 1 + (uint64_t)i * 100000;
}

static void set_up(struct sim *sim, uint64_t seed, bool keep)
{
    sim->seed = seed;
    er_rand_init(&sim->rand, seed);
    sim->now_us = sim->begun_us = 1000 * ER_US_PER_S;
    if (!keep)
        sim_pick_shape(sim);
    sim->n = (int)sim->shape.n;
    if (er_store_mem_new(&sim->observer, NULL))
        abort();
    sim_look(sim);
    for (int i = 0; i < sim->n; i++)
        set_up_node(sim, i);
    if (!keep)
        sim_schedule(sim);
}

static void finish(struct sim *sim)
{
    sim->finishing = true;
    for (int i = 0; i < sim->n; i++) {
        if (sim->nodes[i].running && !sim->nodes[i].left_us)
            sim->nodes[i].ok_us = sim_soon(sim, &sim->rand, 10 * ER_US_PER_S);
    }
}

/* Keeps a shape and a schedule that are there. */
static void clear(struct sim *sim, bool keep)
{
    static struct sim_fault faults[SIM_FAULTS];
    struct sim_shape shape = sim->shape;
    size_t n = sim->fault_n;

    memcpy(faults, sim->faults, sizeof(faults));
    for (size_t i = 0; i < SIM_GENS; i++)
        sim->gens[i].generation = 0;
    memset(sim, 0, offsetof(struct sim, gens));
    if (!keep)
        return;
    memcpy(sim->faults, faults, sizeof(faults));
    sim->shape = shape;
    sim->fault_n = n;
}

static void tell_states(const struct sim *sim)
{
    printf("# world: phase %d generation %llu last sealed %llu next %llu, %u:%u\n",
           (int)sim->world.phase, (unsigned long long)sim->world.generation,
           (unsigned long long)sim->world.last_sealed, (unsigned long long)sim->world.next,
           sim->world.min_nodes, sim->world.max_nodes);
    for (int i = 0; i < sim->n; i++) {
        const struct sim_node *node = &sim->nodes[i];
        const struct er_rdzv *c = node->driver ? node->driver->core : NULL;

        printf("# n%d runs %llu", i, (unsigned long long)node->running);
        if (c)
            printf(": state %d run %d lead %d lanes %d%s %d%s batches %u left %llu of %llu%s",
                   (int)c->state, (int)c->run, (int)c->lead, (int)c->lanes[0].kind,
                   c->lanes[0].reread ? "?" : "", (int)c->lanes[1].kind,
                   c->lanes[1].reread ? "?" : "", c->batches, (unsigned long long)c->left,
                   (unsigned long long)c->run_generation, c->leaving ? " leaving" : "");
        printf("\n");
    }
}

bool sim_run(struct sim *sim, uint64_t seed, bool keep)
{
    uint64_t before;

    clear(sim, keep);
    set_up(sim, seed, keep);
    sim_observe(sim);
    run_until(sim, sim->begun_us + sim->shape.until * ER_US_PER_S);
    sim_heal(sim);
    run_until(sim, sim->now_us + CALM_US);
    if (!sim->broken)
        sim_check_rest(sim);
    before = sim->seals;
    run_until(sim, sim->now_us + QUIET_US);
    sim_require(sim, sim->seals == before || sim->shape.new_runs, "generations come and go");
    if (!sim->broken)
        finish(sim);
    run_until(sim, sim->now_us + CALM_US);
    if (!sim->broken)
        sim_check_end(sim);
    if (sim->broken && sim_verbose)
        tell_states(sim);
    for (int i = 0; i < sim->n; i++)
        sim_down(&sim->nodes[i]);
    sim->observer->ops->free(sim->observer);
    return !sim->broken;
}

bool sim_run_plain(struct sim *sim)
{
    uint64_t seed = sim->seed;

    clear(sim, true);
    set_up(sim, seed, true);
    sim_observe(sim);
    run_until(sim, sim->begun_us + sim->shape.until * ER_US_PER_S);
    for (int i = 0; i < sim->n; i++)
        sim_down(&sim->nodes[i]);
    sim->observer->ops->free(sim->observer);
    return !sim->broken;
}
