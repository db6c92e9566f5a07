#include "tests/sim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Agents, their workers, and the clock. */

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

/* ---- workers ---- */

static void on_start(void *user, const struct er_assignment *a)
{
    struct sim_node *node = user;
    struct sim *sim = node->sim;

    sim_check_start(node, a);
    if (sim_verbose)
        printf("# %12llu n%d starts %llu rank %d of %d, %s\n", (unsigned long long)sim->now_us,
               node->index, (unsigned long long)a->generation, a->node_rank, a->nnodes, a->reason);
    sim_tell(sim, node->label, "starts workers of %llu: node rank %d of %d, workers %d to %d of %d",
             (unsigned long long)a->generation, a->node_rank, a->nnodes, a->first_rank,
             a->first_rank + a->local_size - 1, a->world_size);
    node->running = node->last_started = a->generation;
    node->nonce = a->nonce;
    node->preparing = node->reported = node->late_to_stop = false;
    node->fail_us = node->ok_us = node->left_us = node->ready_us = 0;
    if (sim->finishing)
        node->ok_us = sim_soon(sim, &node->rand, 10 * ER_US_PER_S);
    if (sim_chance(&node->rand, 50))
        er_driver_progress(node->driver, a->generation);
}

static void on_prepare(void *user, const struct er_assignment *a)
{
    struct sim_node *node = user;

    sim_check_prepare(node, a);
    sim_tell(node->sim, node->label, "prepares workers of %llu", (unsigned long long)a->generation);
    node->running = a->generation;
    node->nonce = a->nonce;
    node->preparing = true;
    node->reported = false;
    node->ready_us = sim_soon(node->sim, &node->rand, node->sim->shape.prepare * ER_US_PER_S);
    if (sim_chance(&node->rand, 5))
        node->fail_us = sim_soon(node->sim, &node->rand, 5 * ER_US_PER_S);
}

static void on_notice(void *user, enum er_driver_notice kind, uint64_t target)
{
    struct sim_node *node = user;

    if (!node->running)
        return; /* they ended just before */
    sim_tell(node->sim, node->label, "gives its workers notice of %llu",
             (unsigned long long)target);
    sim_require(node->sim, !node->preparing && target > node->running,
                "n%d was given notice of %llu", node->index, (unsigned long long)target);
    if (sim_chance(&node->rand, 95))
        node->left_us = sim_soon(node->sim, &node->rand, node->sim->shape.depart * ER_US_PER_S);
}

static void on_stop(void *user, uint64_t generation, const char *reason)
{
    struct sim_node *node = user;
    struct sim *sim = node->sim;
    bool stubborn = !sim->healed && sim_chance(&node->rand, (unsigned)sim->shape.stubborn);
    uint64_t max = (stubborn ? 200 : 35) * ER_US_PER_S;

    sim_require(sim, node->running == generation || node->running == 0,
                "n%d told to stop %llu, runs %llu", node->index, (unsigned long long)generation,
                (unsigned long long)node->running);
    if (sim_verbose)
        printf("# %12llu n%d stops %llu: %s\n", (unsigned long long)sim->now_us, node->index,
               (unsigned long long)generation, reason);
    sim_tell(sim, node->label, "stops workers of %llu (%s)", (unsigned long long)generation,
             reason);
    node->left_us =
        !stubborn && sim_chance(&node->rand, 40) ? sim->now_us : sim_soon(sim, &node->rand, max);
    node->fail_us = node->ok_us = node->ready_us = 0;
}

static void on_verdict(void *user, const struct er_verdict *v)
{
    static const char *const verdicts[] = {"succeeded", "failed", "stopped"};
    struct sim_node *node = user;

    sim_require(node->sim, node->running == 0, "verdict while workers of n%d run", node->index);
    node->over = true;
    node->verdict = *v;
    sim_tell(node->sim, node->label, "verdict: %s, exit code %d%s%s", verdicts[v->kind],
             v->exit_code, v->reason[0] ? ": " : "", v->reason);
}

static void on_note(void *user, const struct er_note *note)
{
    struct sim_node *node = user;

    sim_tell_note(node->sim, node->label, note);
}

void sim_report(struct sim_node *node, bool ok, bool uncounted)
{
    struct er_cause c = {.rank = 1, .kind = ER_EXIT_EXITED, .code = 3, .uncounted = uncounted};

    if (!node->running || node->reported)
        return;
    node->reported = true;
    sim_tell(node->sim, node->label, "workers of %llu %s", (unsigned long long)node->running,
             ok ? "have succeeded" : "failed");
    er_driver_result(node->driver, node->running, ok ? NULL : &c);
    node->dirty = true;
}

/* ---- agents ---- */

void sim_down(struct sim_node *node)
{
    er_driver_free(node->driver);
    if (node->client)
        node->client->ops->free(node->client);
    node->driver = NULL;
    node->client = NULL;
    node->running = 0; /* the guard leaves nothing behind */
    node->preparing = false;
    node->left_us = node->fail_us = node->ok_us = node->uncut_us = 0;
    node->undeaf_us = node->ready_us = 0;
    node->next_us = ER_FOREVER;
    sim_dirty(node->sim);
}

/* How much this node's clock is ahead. */
static int64_t skew(const struct sim_node *node)
{
    const struct sim *sim = node->sim;

    return (int64_t)(sim->now_us - sim->begun_us) * node->drift_ppm / 1000000 + node->jump_us;
}

static uint64_t local_now(const struct sim_node *node)
{
    return (uint64_t)((int64_t)node->sim->now_us + skew(node));
}

static void options(struct sim_node *node, struct er_driver_opts *o)
{
    struct sim *sim = node->sim;
    const struct sim_shape *shape = &sim->shape;

    *o = (struct er_driver_opts){
        .job = "sim",
        .host = "host",
        .prefix = "/elastic-run",
        .slots = sim->slots[node->index],
        .preferred_rank = -1,
        .min_nodes = (uint32_t)shape->min,
        .max_nodes = (uint32_t)shape->max,
        .restart_max = (uint32_t)shape->budget,
        .restart_window_us = shape->window ? shape->window * ER_US_PER_S : ER_FOREVER,
        .backoff_initial_us = 100000,
        .backoff_max_us = 10 * ER_US_PER_S,
        .join_timeout_us = 600 * ER_US_PER_S,
        .last_call_us = 30 * ER_US_PER_S,
        .exit_timeout_us = 300 * ER_US_PER_S,
        .lease_ttl_us = 5 * ER_US_PER_S,
        .death_grace_us = ER_US_PER_S,
        .replacement_wait_us = shape->replacement * ER_US_PER_S,
        .stop_grace_us = 30 * ER_US_PER_S,
        .update_spec = true,
        .strike_max = (uint32_t)shape->strikes,
        .strike_window_us = 600 * ER_US_PER_S,
        .strike_cooldown_us = shape->cooldown * ER_US_PER_S,
        .store_loss_limit_us = shape->loss_limit * ER_US_PER_S,
        .resize_grace_us = shape->planned ? 60 * ER_US_PER_S : 0,
        .new_run = shape->new_runs && !sim->finishing ? ER_NEW_RUN_AUTO : node->new_run,
        .incarnation = ++sim->incarnations,
        .boot_id_hash = node->boot,
        .seed = er_rand_next(&node->rand),
        .now_us = local_now(node),
    };
    snprintf(o->node_id, sizeof(o->node_id), "%s", node->id);
    snprintf(o->address, sizeof(o->address), "10.0.0.%d", node->index);
}

static void up(struct sim_node *node)
{
    static const struct er_driver_callbacks callbacks = {on_start, on_stop,    on_verdict,
                                                         on_note,  on_prepare, on_notice};
    struct sim *sim = node->sim;
    struct er_driver_opts o;
    char spec[32];

    options(node, &o);
    snprintf(spec, sizeof(spec), "command=train%u", sim->specs);
    o.spec = spec;
    node->spec = er_spec_hash(spec);
    node->incarnation = o.incarnation;
    node->over = node->reported = false;
    node->restart_us = node->last_started = 0;
    if (er_store_mem_client(sim->observer, &node->client, NULL) ||
        er_driver_new(&node->driver, node->client, &o, &callbacks, node, NULL))
        abort();
    if (sim->outage_us)
        er_store_mem_cut(node->client, true);
    if (sim_plain)
        er_store_mem_delay(node->client, 1000, 1000);
    else
        er_store_mem_delay(node->client, 200 + sim_below(&node->rand, 4000),
                           sim_below(&node->rand, 8000));
    er_driver_port(node->driver, 1000 + node->index);
    node->driver->core->min_interval_us = sim->shape.interval * ER_US_PER_S;
    if (sim->shape.planned)
        er_driver_planned(node->driver, !sim->shape.unable || node->index);
    node->dirty = true;
}

static bool due(const struct sim *sim, uint64_t *at)
{
    if (!*at || *at > sim->now_us)
        return false;
    *at = 0;
    return true;
}

static void left(struct sim_node *node)
{
    uint64_t g = node->running;

    node->running = 0;
    node->preparing = false;
    sim_tell(node->sim, node->label, "workers of %llu are gone", (unsigned long long)g);
    er_driver_left(node->driver, g);
    node->dirty = true;
}

static void on_farewell(void *user, int rc)
{
    struct sim_node *node = user;

    sim_require(node->sim, rc == 0, "the word for n%d failed", node->index);
}

/* Read and written at once; in an outage the guard gives up. */
static void say_farewell(struct sim *sim, struct sim_node *node)
{
    if (sim->outage_us)
        return;
    node->farewell.done = on_farewell;
    node->farewell.user = node;
    if (er_farewell_begin(&node->farewell) < 0)
        abort();
    sim_look(sim);
    sim_look(sim);
    sim_dirty(sim);
}

static void run_workers(struct sim *sim, struct sim_node *node)
{
    if (due(sim, &node->farewell_us))
        say_farewell(sim, node);
    if (due(sim, &node->restart_us))
        up(node);
    if (!node->driver)
        return;
    if (due(sim, &node->fail_us) && !node->left_us)
        sim_report(node, false, false);
    if (due(sim, &node->ok_us) && !node->left_us)
        sim_report(node, true, false);
    if (due(sim, &node->ready_us) && node->preparing) {
        sim_tell(sim, node->label, "workers of %llu are prepared",
                 (unsigned long long)node->running);
        er_driver_prepared(node->driver, node->running);
        node->dirty = true;
    }
    if (due(sim, &node->uncut_us) && !sim->outage_us)
        er_store_mem_cut(node->client, false), sim_dirty(sim);
    if (due(sim, &node->undeaf_us))
        er_store_mem_deaf(node->client, false), sim_dirty(sim);
    if (due(sim, &node->left_us) && node->running)
        left(node);
    if (!node->over)
        return;
    sim_down(node);
    if (sim_plain)
        return;
    /* A unit's restart: an agent without the job's verdict comes back. */
    if (!sim_job_over(&sim->world) || (sim->shape.new_runs && !sim->finishing))
        node->restart_us = sim_soon(sim, &node->rand, 20 * ER_US_PER_S);
}

/* ---- the clock ---- */

/* When its agent has something to do, on the store's clock. */
static void find_next(struct sim *sim, struct sim_node *node)
{
    uint64_t at, now = local_now(node);

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
    er_driver_dispatch(node->driver, local_now(node));
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
                                  node->undeaf_us,   node->ready_us};

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
    if (!due(sim, &sim->outage_us))
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
            run_workers(sim, &sim->nodes[i]);
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
