#include <stdio.h>
#include <string.h>

#include "tests/sim/sim.h"

/* What each kind of fault does. */

/* A dead peer makes the others' workers fail soon after. */
static void make_victims(struct sim *sim, const struct sim_node *node, uint64_t generation,
                         struct er_rand *r)
{
    for (int i = 0; i < sim->n; i++) {
        struct sim_node *other = &sim->nodes[i];

        if (other->driver && generation && other->running == generation &&
            other->nonce == node->nonce && !other->preparing && !other->left_us &&
            sim_chance(r, 80))
            other->fail_us = sim_soon(sim, r, 200000);
    }
}

/* Also while it is being stopped. */
static bool do_fail(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    struct sim_sealed *g = sim_sealed(sim, node->running);

    if (!node->running || node->reported)
        return false;
    if (g && g->nonce == node->nonce)
        g->genuine = true;
    sim_report(node, false, amount % 10 == 0);
    if (!node->preparing)
        make_victims(sim, node, node->running, &node->rand);
    return true;
}

static bool do_quit(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    if (!node->running)
        return false;
    node->left_us = sim->now_us;
    if (amount % 2)
        sim_report(node, true, false);
    return true;
}

static bool do_success(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    if (!node->running || node->reported)
        return false;
    if (node->preparing || node->left_us) {
        sim_report(node, true, false);
        return true;
    }
    for (int i = 0; i < sim->n; i++) {
        struct sim_node *other = &sim->nodes[i];

        if (other->driver && other->running && !other->preparing && !other->left_us &&
            (other == node || amount % 3))
            other->ok_us = sim_soon(sim, &other->rand, 5 * ER_US_PER_S);
    }
    return true;
}

static void crash(struct sim *sim, struct sim_node *node, uint64_t max_us, uint64_t amount)
{
    /* Whose workers have finished is missed by nobody. */
    uint64_t generation = node->preparing || node->reported ? 0 : node->running;

    sim_down(node);
    node->restart_us = sim->now_us + 1 + amount % max_us;
    make_victims(sim, node, generation, &node->rand);
}

static bool do_crash_fast(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    crash(sim, node, 2 * ER_US_PER_S, amount);
    return true;
}

static bool do_crash_slow(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    crash(sim, node, 60 * ER_US_PER_S, amount);
    return true;
}

/* Its guard tells the store, in the name of the agent that died. */
static bool do_told(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    node->farewell = (struct er_farewell){.store = sim->observer,
                                          .prefix = "/elastic-run",
                                          .job = "sim",
                                          .node_id = node->id,
                                          .incarnation = node->incarnation,
                                          .generation = node->last_started,
                                          .seed = amount};
    crash(sim, node, 60 * ER_US_PER_S, amount);
    node->farewell_us = sim_soon(sim, &node->rand, 400000);
    return true;
}

static bool do_reboot(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    node->boot++;
    crash(sim, node, 60 * ER_US_PER_S, amount);
    return true;
}

/* How late: beyond a formation, within one, or just long enough for a second plan. */
static uint64_t lateness(uint64_t amount)
{
    static const uint64_t most[] = {30 * ER_US_PER_S, 100000, 60000};

    return amount / 3 % most[amount % 3];
}

#define TXN_FAULT(lower, upper)                                                                    \
    static bool do_##lower(struct sim *sim, struct sim_node *node, uint64_t amount)                \
    {                                                                                              \
        er_store_mem_fault(node->client, ER_FAULT_##upper, lateness(amount));                      \
        return true;                                                                               \
    }
TXN_FAULT(lost_reply, LOST_REPLY)
TXN_FAULT(late, LATE)
TXN_FAULT(lost, LOST)
TXN_FAULT(duplicate, DUPLICATE)
TXN_FAULT(refused, REFUSED)

static const struct er_store_kv *member_kv(const struct sim *sim, const struct sim_node *node)
{
    char key[64];
    int n = snprintf(key, sizeof(key), SIM_ROOT "j/n/%s", node->id);

    return er_store_mem_peek(sim->observer, (struct er_bytes){key, (size_t)n});
}

static bool do_lease(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    const struct er_store_kv *kv = member_kv(sim, node);

    if (!kv)
        return false;
    er_store_mem_drop_lease(sim->observer, kv->lease);
    return true;
}

static bool do_cut(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    er_store_mem_cut(node->client, true);
    node->uncut_us = sim->now_us + 1 + amount % (25 * ER_US_PER_S);
    return true;
}

static bool do_deaf(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    er_store_mem_deaf(node->client, true);
    node->undeaf_us = sim->now_us + 1 + amount % (25 * ER_US_PER_S);
    return true;
}

static bool do_delay(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    er_store_mem_delay(node->client, amount % 60000, amount / 7 % 400000);
    return true;
}

static bool do_leave(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    if (node->driver->core->leaving)
        return false;
    er_driver_drain(node->driver, 75, "preempted",
                    amount % 2 ? 0 : node->driver->now_us + 60 * ER_US_PER_S);
    return true;
}

static void on_answer(void *user, int rc, const void *value, size_t n) {}

static void ask(struct sim *sim, struct sim_node *node, const struct er_ask *ask)
{
    char id[32];

    snprintf(id, sizeof(id), "q%llu", (unsigned long long)++sim->requests);
    er_driver_request(node->driver, id, ask, on_answer, NULL);
}

static bool do_drain(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    struct er_ask a = {.kind = ER_ASK_DRAIN, .incarnation = node->incarnation};

    if (amount % 3 ==
        0) /* in some time that it was given: from hardly any to more than is needed */
        a.deadline_us = 1 + amount % (100 * ER_US_PER_S);
    memcpy(a.node, node->id, sizeof(node->id));
    ask(sim, node, &a);
    return true;
}

static bool do_scale(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    struct er_ask a = {.kind = ER_ASK_SCALE};

    a.max_nodes = 1 + (uint32_t)(amount % (uint64_t)(sim->n + 2));
    a.min_nodes = 1 + (uint32_t)(amount / 97 % a.max_nodes) / 3;
    if (a.min_nodes > sim->shape.min)
        a.min_nodes = (uint32_t)sim->shape.min;
    if (a.min_nodes > a.max_nodes)
        a.min_nodes = a.max_nodes;
    ask(sim, node, &a);
    return true;
}

static bool do_aside(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    struct er_ask a = {.kind = ER_ASK_ASIDE, .cooldown_us = 1 + amount % (100 * ER_US_PER_S)};

    memcpy(a.node, node->id, sizeof(node->id));
    ask(sim, node, &a);
    return true;
}

static bool do_release(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    struct er_ask a = {.kind = ER_ASK_RELEASE};

    memcpy(a.node, sim->nodes[amount % (uint64_t)sim->n].id, sizeof(node->id));
    ask(sim, node, &a);
    return true;
}

static bool do_compact(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    sim_look(sim);
    er_store_mem_compact(sim->observer, er_store_mem_revision(sim->observer));
    return true;
}

static bool do_outage(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    sim->outage_us = sim->now_us + 1 + amount % (60 * ER_US_PER_S);
    er_store_mem_outage(sim->observer, true);
    for (int i = 0; i < sim->n; i++) {
        if (sim->nodes[i].client)
            er_store_mem_cut(sim->nodes[i].client, true);
    }
    return true;
}

/* It comes back empty, at once or after an outage. Who has heard of the job's end is not started
 * again, so the job must not be over. */
static bool do_wipe(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    if (!sim->has_world || sim_job_over(&sim->world) || sim->outage_us)
        return false;
    sim_wipe(sim);
    return amount % 2 ? true : do_outage(sim, node, amount / 2);
}

/* Monotonic clocks only go forward. */
static bool do_clock(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    node->jump_us += (int64_t)(amount % (2 * ER_US_PER_S));
    return true;
}

static bool do_commit(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    if (!node->last_started)
        return false;
    er_driver_commit(node->driver, node->last_started, sim->commit_step + 1 + amount % 3, "digest",
                     "step", on_answer, NULL);
    return true;
}

static bool do_keys(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    if (!node->last_started)
        return false;
    er_driver_kv_put(node->driver, node->last_started, "k", "v", 1, on_answer, NULL);
    er_driver_kv_add(node->driver, node->last_started, "n", 1, on_answer, NULL);
    er_driver_kv_get(node->driver, node->last_started, amount % 2 ? "k" : "none",
                     node->driver->now_us + amount % (20 * ER_US_PER_S), on_answer, NULL);
    return true;
}

/* A rolling change begins: whoever starts from now on has the new spec. */
static bool do_respec(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    if (node->driver->core->leaving)
        return false;
    sim->specs += amount % 5 != 0;
    er_driver_drain(node->driver, 75, "restarted", 0);
    return true;
}

static int merge_set(void *user, const struct er_overrides *now, struct er_overrides *next)
{
    struct sim_node *node = user;

    snprintf(next->id, sizeof(next->id), "%s", node->set_id);
    snprintf(next->text, sizeof(next->text), "%s", node->set_wish);
    return 0;
}

static void on_set(void *user, int rc, const void *value, size_t n)
{
    struct sim_node *node = user;

    node->set_busy = false;
}

static bool do_set(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    if (node->set_busy)
        return false;
    node->set_busy = true;
    snprintf(node->set_wish, sizeof(node->set_wish), "%llu\n",
             (unsigned long long)(amount % (10 * ER_US_PER_S)));
    snprintf(node->set_id, sizeof(node->set_id), "set-%llu", (unsigned long long)++sim->requests);
    er_driver_override(node->driver, node->driver->now_us + amount % (20 * ER_US_PER_S), merge_set,
                       on_set, node);
    return true;
}

static bool (*const actions[SIM_FAULT_COUNT])(struct sim *, struct sim_node *, uint64_t) = {
    [SIM_FAIL] = do_fail,
    [SIM_QUIT] = do_quit,
    [SIM_SUCCESS] = do_success,
    [SIM_CRASH_FAST] = do_crash_fast,
    [SIM_CRASH_SLOW] = do_crash_slow,
    [SIM_REBOOT] = do_reboot,
    [SIM_TOLD] = do_told,
    [SIM_LOST_REPLY] = do_lost_reply,
    [SIM_LATE] = do_late,
    [SIM_LOST] = do_lost,
    [SIM_DUPLICATE] = do_duplicate,
    [SIM_REFUSED] = do_refused,
    [SIM_LEASE] = do_lease,
    [SIM_CUT] = do_cut,
    [SIM_DEAF] = do_deaf,
    [SIM_DELAY] = do_delay,
    [SIM_LEAVE] = do_leave,
    [SIM_DRAIN] = do_drain,
    [SIM_SCALE] = do_scale,
    [SIM_ASIDE] = do_aside,
    [SIM_RELEASE] = do_release,
    [SIM_COMPACT] = do_compact,
    [SIM_OUTAGE] = do_outage,
    [SIM_CLOCK] = do_clock,
    [SIM_COMMIT] = do_commit,
    [SIM_KEYS] = do_keys,
    [SIM_RESPEC] = do_respec,
    [SIM_WIPE] = do_wipe,
    [SIM_SET] = do_set,
};

bool sim_act(struct sim *sim, struct sim_node *node, enum sim_fault_kind kind, uint64_t amount)
{
    return actions[kind](sim, node, amount);
}
