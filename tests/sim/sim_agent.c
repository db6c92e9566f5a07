#include "tests/sim/sim.h"

#include <stdio.h>
#include <stdlib.h>

/* A simulated agent, its guard and its workers. */

/* ---- workers ---- */

#define MORE_US (20 * ER_US_PER_S) /* at most, until a worker is back */

/* Some that died are up again, or those that were are not any more. */
static void offer(struct sim_node *node)
{
    struct sim *sim = node->sim;
    int most = sim->slots[node->index];

    if (!node->running || node->preparing)
        return;
    node->offers = sim->healed ? most
                               : node->has + (int)sim_below(&node->slots_rand,
                                                            (uint64_t)(most - node->has + 1));
    if (node->offers < most)
        node->more_us = sim_soon(sim, &node->slots_rand, MORE_US);
    sim_tell(sim, node->label, "could go on with %d workers", node->offers);
    er_driver_slots(node->driver, node->offers);
    node->dirty = true;
}

/* With as many as it said, or fewer, or more. */
static void settle_slots(struct sim_node *node)
{
    struct sim *sim = node->sim;

    if (!sim->shape.vary || node->preparing)
        return;
    if (sim->healed)
        node->offers = sim->slots[node->index];
    else if (sim_chance(&node->slots_rand, 40))
        node->offers = 1 + (int)sim_below(&node->slots_rand, (uint64_t)sim->slots[node->index]);
    er_driver_slots(node->driver, node->offers);
}

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
    node->has = node->offers = a->local_size;
    node->more_us = 0;
    if (a->local_size < sim->slots[node->index])
        node->more_us = sim_soon(sim, &node->slots_rand, MORE_US);
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
    node->undeaf_us = node->ready_us = node->more_us = 0;
    node->next_us = ER_FOREVER;
    sim_dirty(node->sim);
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
        /* Some are too slow. One holds up all others that come with it, so there are to be few; and
         * none in the traces. */
        .prepare_us =
            shape->prepare < 100 && shape->n <= 5 ? shape->prepare * ER_US_PER_S * 9 / 10 : 0,
        .store_loss_limit_us = shape->loss_limit * ER_US_PER_S,
        .resize_grace_us = shape->planned ? 60 * ER_US_PER_S : 0,
        .new_run = shape->new_runs && !sim->finishing ? ER_NEW_RUN_AUTO : node->new_run,
        .incarnation = ++sim->incarnations,
        .boot_id_hash = node->boot,
        .seed = er_rand_next(&node->rand),
        .now_us = sim_local_now(node),
    };
    snprintf(o->node_id, sizeof(o->node_id), "%s", node->id);
    snprintf(o->address, sizeof(o->address), "10.0.0.%d", node->index);
}

void sim_tune(struct sim_node *node)
{
    struct er_driver_opts o;
    uint64_t incarnations = node->sim->incarnations;
    struct er_rand rand = node->rand;

    options(node, &o);
    node->sim->incarnations = incarnations;
    node->rand = rand;
    const struct er_driver_tuning t = {
        .restart_max = o.restart_max,
        .restart_window_us = o.restart_window_us,
        .backoff_initial_us = o.backoff_initial_us,
        .backoff_max_us = o.backoff_max_us,
        .strike_max = o.strike_max,
        .strike_window_us = o.strike_window_us,
        .strike_cooldown_us = o.strike_cooldown_us,
        .prepare_us = o.prepare_us,
        .resize_min_interval_us = node->sim->shape.interval * ER_US_PER_S + 1,
        .resize_settle_us = (uint64_t)strtoull(node->set, NULL, 10) + 1,
    };

    er_driver_tune(node->driver, &t);
}

/* "MICROSECONDS\n": how long joins are gathered. */
static void on_overrides(void *user, const struct er_overrides *now)
{
    struct sim_node *node = user;
    bool changes = now || node->set[0];

    node->set_known = true;
    snprintf(node->set, sizeof(node->set), "%.30s", now ? now->text : "");
    if (changes)
        sim_tune(node);
}

static void up(struct sim_node *node)
{
    static const struct er_driver_callbacks callbacks = {.start = on_start,
                                                         .stop = on_stop,
                                                         .verdict = on_verdict,
                                                         .note = on_note,
                                                         .prepare = on_prepare,
                                                         .notice = on_notice,
                                                         .overrides = on_overrides};
    struct sim *sim = node->sim;
    struct er_driver_opts o;
    char spec[32];

    options(node, &o);
    snprintf(spec, sizeof(spec), "command=train%u", sim->specs);
    o.spec = spec;
    node->spec = er_spec_hash(spec);
    node->incarnation = o.incarnation;
    node->over = node->reported = node->set_known = node->set_busy = false;
    node->set[0] = 0;
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

static void left(struct sim_node *node)
{
    uint64_t g = node->running;

    settle_slots(node);
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

void sim_turn(struct sim *sim, struct sim_node *node)
{
    if (sim_due(sim, &node->farewell_us))
        say_farewell(sim, node);
    if (sim_due(sim, &node->restart_us))
        up(node);
    if (!node->driver)
        return;
    if (sim_due(sim, &node->fail_us) && !node->left_us)
        sim_report(node, false, false);
    if (sim_due(sim, &node->ok_us) && !node->left_us)
        sim_report(node, true, false);
    if (sim_due(sim, &node->ready_us) && node->preparing) {
        sim_tell(sim, node->label, "workers of %llu are prepared",
                 (unsigned long long)node->running);
        er_driver_prepared(node->driver, node->running);
        node->dirty = true;
    }
    if (sim_due(sim, &node->more_us))
        offer(node);
    if (sim_due(sim, &node->uncut_us) && !sim->outage_us)
        er_store_mem_cut(node->client, false), sim_dirty(sim);
    if (sim_due(sim, &node->undeaf_us))
        er_store_mem_deaf(node->client, false), sim_dirty(sim);
    if (sim_due(sim, &node->left_us) && node->running)
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
