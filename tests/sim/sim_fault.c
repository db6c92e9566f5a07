#include "tests/sim/sim.h"

#include <stdio.h>
#include <string.h>

/* The schedule of faults, and what each does. */

#define TRIGGER_US (30 * ER_US_PER_S) /* a fault waits that long for its moment */

uint64_t sim_hits[SIM_FAULT_COUNT][SIM_PHASE_COUNT][SIM_ROLE_COUNT];

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

void sim_schedule(struct sim *sim)
{
    uint64_t at = sim->now_us + sim_below(&sim->rand, 40 * ER_US_PER_S);

    sim->fault_n = 4 + sim_below(&sim->rand, SIM_FAULTS - 4);
    for (size_t i = 0; i < sim->fault_n; i++) {
        sim->faults[i] = (struct sim_fault){
            .at_us = at,
            .kind = pick_kind(&sim->rand),
            .phase = (enum sim_phase)sim_below(&sim->rand, SIM_PHASE_COUNT),
            .role = (enum sim_role)sim_below(&sim->rand, SIM_ROLE_COUNT),
            .victim = (unsigned)sim_below(&sim->rand, SIM_NODES),
            .amount = er_rand_next(&sim->rand) >> 1,
        };
        at += 1 + sim_below(&sim->rand, sim_chance(&sim->rand, 50) ? 300000 : 12 * ER_US_PER_S);
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

/* One that has the role, else any that lives; NULL: nobody does. */
static struct sim_node *find_victim(struct sim *sim, const struct sim_fault *f, int leading,
                                    bool strict)
{
    int n = 0;

    for (unsigned pass = 0; pass < 2; pass++) {
        unsigned pick = n ? f->victim % (unsigned)n : 0;

        for (int i = 0; i < sim->n; i++) {
            struct sim_node *node = &sim->nodes[i];

            if (!node->driver || node->over || (strict && role_of(sim, i, leading) != f->role))
                continue;
            if (pass == 0)
                n++;
            else if (pick-- == 0)
                return node;
        }
    }
    return NULL;
}

/* ---- what each does ---- */

/* A dead peer makes the others' workers fail soon after. */
static void make_victims(struct sim *sim, uint64_t generation, struct er_rand *r)
{
    for (int i = 0; i < sim->n; i++) {
        struct sim_node *other = &sim->nodes[i];

        if (other->driver && generation && other->running == generation && !other->preparing &&
            !other->left_us && sim_chance(r, 80))
            other->fail_us = sim_soon(sim, r, 200000);
    }
}

static void do_fail(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    struct sim_sealed *g = sim_sealed(sim, node->running);

    if (!node->running || node->left_us || node->reported)
        return;
    if (g)
        g->genuine = true;
    sim_report(node, false, amount % 10 == 0);
    if (!node->preparing)
        make_victims(sim, node->running, &node->rand);
}

static void do_quit(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    if (node->running && !node->left_us)
        node->left_us = sim->now_us;
    if (amount % 2)
        sim_report(node, true, false);
}

static void do_success(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    for (int i = 0; i < sim->n; i++) {
        struct sim_node *other = &sim->nodes[i];

        if (other->driver && other->running && !other->preparing && !other->left_us &&
            (other == node || amount % 3))
            other->ok_us = sim_soon(sim, &other->rand, 5 * ER_US_PER_S);
    }
}

static void crash(struct sim *sim, struct sim_node *node, uint64_t max_us, uint64_t amount)
{
    /* Whose workers have finished is missed by nobody. */
    uint64_t generation = node->preparing || node->reported ? 0 : node->running;

    sim_down(node);
    node->restart_us = sim->now_us + 1 + amount % max_us;
    make_victims(sim, generation, &node->rand);
}

static void do_crash_fast(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    crash(sim, node, 2 * ER_US_PER_S, amount);
}

static void do_crash_slow(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    crash(sim, node, 60 * ER_US_PER_S, amount);
}

static void do_reboot(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    node->boot++;
    crash(sim, node, 60 * ER_US_PER_S, amount);
}

#define TXN_FAULT(lower, upper)                                                                    \
    static void do_##lower(struct sim *sim, struct sim_node *node, uint64_t amount)                \
    {                                                                                              \
        er_store_mem_fault(node->client, ER_FAULT_##upper,                                         \
                           amount % (amount % 2 ? 30 * ER_US_PER_S : 100000));                     \
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

static void do_lease(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    const struct er_store_kv *kv = member_kv(sim, node);

    if (kv)
        er_store_mem_drop_lease(sim->observer, kv->lease);
}

static void do_cut(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    er_store_mem_cut(node->client, true);
    node->uncut_us = sim->now_us + 1 + amount % (25 * ER_US_PER_S);
}

static void do_deaf(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    er_store_mem_deaf(node->client, true);
    node->undeaf_us = sim->now_us + 1 + amount % (25 * ER_US_PER_S);
}

static void do_delay(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    er_store_mem_delay(node->client, amount % 60000, amount / 7 % 400000);
}

static void do_leave(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    er_driver_drain(node->driver, 75, "preempted",
                    amount % 2 ? 0 : node->driver->now_us + 60 * ER_US_PER_S);
}

static void on_answer(void *user, int rc, const void *value, size_t n) {}

static void ask(struct sim *sim, struct sim_node *node, const struct er_ask *ask)
{
    char id[32];

    snprintf(id, sizeof(id), "q%llu", (unsigned long long)++sim->requests);
    er_driver_request(node->driver, id, ask, on_answer, NULL);
}

static void do_drain(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    struct er_ask a = {.kind = ER_ASK_DRAIN, .incarnation = node->incarnation};

    memcpy(a.node, node->id, sizeof(node->id));
    ask(sim, node, &a);
}

static void do_scale(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    struct er_ask a = {.kind = ER_ASK_SCALE};

    a.max_nodes = 1 + (uint32_t)(amount % (uint64_t)(sim->n + 2));
    a.min_nodes = 1 + (uint32_t)(amount / 97 % a.max_nodes) / 3;
    if (a.min_nodes > (uint32_t)sim->min)
        a.min_nodes = (uint32_t)sim->min;
    if (a.min_nodes > a.max_nodes)
        a.min_nodes = a.max_nodes;
    ask(sim, node, &a);
}

static void do_aside(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    struct er_ask a = {.kind = ER_ASK_ASIDE, .cooldown_us = 1 + amount % (100 * ER_US_PER_S)};

    memcpy(a.node, node->id, sizeof(node->id));
    ask(sim, node, &a);
}

static void do_release(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    struct er_ask a = {.kind = ER_ASK_RELEASE};

    memcpy(a.node, sim->nodes[amount % (uint64_t)sim->n].id, sizeof(node->id));
    ask(sim, node, &a);
}

static void do_compact(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    sim_look(sim);
    er_store_mem_compact(sim->observer, er_store_mem_revision(sim->observer));
}

static void do_outage(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    sim->outage_us = sim->now_us + 1 + amount % (60 * ER_US_PER_S);
    er_store_mem_outage(sim->observer, true);
    for (int i = 0; i < sim->n; i++) {
        if (sim->nodes[i].client)
            er_store_mem_cut(sim->nodes[i].client, true);
    }
}

/* Monotonic clocks only go forward. */
static void do_clock(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    node->jump_us += (int64_t)(amount % (2 * ER_US_PER_S));
}

static void do_commit(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    if (node->last_started)
        er_driver_commit(node->driver, node->last_started, sim->commit_step + 1 + amount % 3,
                         "digest", "step", on_answer, NULL);
}

static void do_keys(struct sim *sim, struct sim_node *node, uint64_t amount)
{
    if (!node->last_started)
        return;
    er_driver_kv_put(node->driver, node->last_started, "k", "v", 1, on_answer, NULL);
    er_driver_kv_add(node->driver, node->last_started, "n", 1, on_answer, NULL);
    er_driver_kv_get(node->driver, node->last_started, amount % 2 ? "k" : "none",
                     node->driver->now_us + amount % (20 * ER_US_PER_S), on_answer, NULL);
}

static void (*const actions[SIM_FAULT_COUNT])(struct sim *, struct sim_node *, uint64_t) = {
    [SIM_FAIL] = do_fail,
    [SIM_QUIT] = do_quit,
    [SIM_SUCCESS] = do_success,
    [SIM_CRASH_FAST] = do_crash_fast,
    [SIM_CRASH_SLOW] = do_crash_slow,
    [SIM_REBOOT] = do_reboot,
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
};

/* ---- when ---- */

/* When something is armed, every event may be its moment. */
uint64_t sim_next_fault(const struct sim *sim)
{
    uint64_t at = ER_FOREVER;

    for (size_t i = 0; i < sim->fault_n; i++) {
        const struct sim_fault *f = &sim->faults[i];
        uint64_t next = f->at_us > sim->now_us ? f->at_us : f->at_us + TRIGGER_US;

        if (sim->done[i] || f->left_out)
            continue;
        at = next < at ? next : at;
        if (f->at_us > sim->now_us)
            break;
    }
    return at;
}

static bool fire(struct sim *sim, const struct sim_fault *f)
{
    static const char *const names[] = {
#define NAME(name, weight) #name,
        SIM_FAULT_KINDS(NAME)
#undef NAME
    };
    int leading;
    const struct er_rdzv *lead = leader(sim, &leading);
    enum sim_phase phase = phase_now(sim, lead);
    bool late = sim->now_us >= f->at_us + TRIGGER_US;
    struct sim_node *node = NULL;

    if (phase == f->phase || late)
        node = find_victim(sim, f, leading, true);
    if (!node && late)
        node = find_victim(sim, f, leading, false);
    if (!node)
        return late;
    sim_hits[f->kind][phase][role_of(sim, node->index, leading)]++;
    if (sim_verbose)
        printf("# %12llu n%d %s\n", (unsigned long long)sim->now_us, node->index, names[f->kind]);
    actions[f->kind](sim, node, f->amount);
    sim_dirty(sim);
    return true;
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
