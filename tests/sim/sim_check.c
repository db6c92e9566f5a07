#include "tests/sim/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What must hold after every change of the store. */

#define ASIDES_MAX 200 /* of one seed */

void sim_fail(struct sim *sim, const char *format, ...)
{
    va_list args;

    if (sim->broken)
        return;
    sim->broken = true;
    va_start(args, format);
    vsnprintf(sim->why, sizeof(sim->why), format, args);
    va_end(args);
}

bool sim_job_over(const struct er_job_record *w)
{
    return w->phase == ER_WORLD_DONE || w->phase == ER_WORLD_FAILED;
}

struct sim_sealed *sim_sealed(struct sim *sim, uint64_t generation)
{
    struct sim_sealed *g = &sim->gens[generation % SIM_GENS];

    return generation && g->generation == generation ? g : NULL;
}

/* An agent may act on what it heard from a store that is not there any more. */
static const struct sim_sealed *sealed_ever(struct sim *sim, uint64_t generation, uint64_t nonce)
{
    const struct sim_sealed *g = sim_sealed(sim, generation);

    for (unsigned i = 0; (!g || g->nonce != nonce) && i < SIM_FORMER; i++) {
        if (sim->former[i].generation == generation && sim->former[i].nonce == nonce)
            return &sim->former[i];
    }
    return g;
}

static int index_of(const struct sim *sim, const char *name)
{
    int v = 0;

    if (name[0] != 'n')
        return -1;
    for (const char *c = name + 1; *c; c++)
        v = v * 10 + (*c - '0');
    return v < sim->n ? v : -1;
}

static bool running_now(const struct sim_node *node)
{
    return node->driver && node->running && !node->preparing;
}

/* ---- a seal ---- */

static void check_member(struct sim *sim, const struct er_job_record *w, struct sim_sealed *g,
                         int i, bool taken[SIM_NODES])
{
    const struct er_assign *a = &sim->assign[i];
    const struct sim_node *node = &sim->nodes[i];

    if (a->group_rank < 0 || a->group_rank >= (int)w->nnodes || taken[a->group_rank]) {
        sim_fail(sim, "rank %d of n%d twice or out of range", a->group_rank, i);
        return;
    }
    taken[a->group_rank] = true;
    g->rank[i] = a->group_rank;
    g->first[i] = a->first_rank;
    g->incarnation[i] = a->incarnation;
    sim_require(sim,
                !sim->registered[i] || sim->incarnation_seen[i] != a->incarnation ||
                    sim->spec_seen[i] == w->spec,
                "n%d is in %llu with another spec", i, (unsigned long long)w->generation);
    sim_require(sim,
                !running_now(node) || node->incarnation != a->incarnation ||
                    node->running == w->generation,
                "n%d is in %llu and still runs %llu", i, (unsigned long long)w->generation,
                (unsigned long long)node->running);
}

static void check_members(struct sim *sim, const struct er_job_record *w, struct sim_sealed *g)
{
    bool taken[SIM_NODES] = {false};
    int first[SIM_NODES + 1] = {0}, node[SIM_NODES] = {0};
    uint32_t n = 0;

    for (int i = 0; i < sim->n && !sim->broken; i++) {
        const struct er_assign *a = &sim->assign[i];

        if (!sim->assign_seen[i] || a->generation != w->generation || a->nonce != w->nonce)
            continue;
        check_member(sim, w, g, i, taken);
        if (!sim->broken)
            node[a->group_rank] = i;
        n++;
    }
    if (sim->broken)
        return;
    sim_require(sim, n == w->nnodes && n >= w->min_nodes && n <= w->max_nodes,
                "%u assignments for %u nodes, bounds %u:%u", n, w->nnodes, w->min_nodes,
                w->max_nodes);
    for (uint32_t i = 0; i < n; i++)
        first[i] = g->first[node[i]];
    first[n] = (int)w->world_size;
    sim_require(sim, first[0] == 0, "the first rank is %d", first[0]);
    for (uint32_t i = 0; i < n; i++) {
        int size = first[i + 1] - first[i], most = sim->slots[node[i]];

        g->size[node[i]] = size;
        sim_require(sim, size >= 1 && size <= most && (sim->shape.vary || size == most),
                    "n%d has %d of %d workers", node[i], size, most);
    }
}

/* Survivors keep their order. */
static void check_order(struct sim *sim, const struct sim_sealed *before,
                        const struct sim_sealed *now)
{
    for (int i = 0; before && i < sim->n; i++) {
        for (int k = 0; k < sim->n; k++) {
            bool both = before->incarnation[i] && before->incarnation[i] == now->incarnation[i] &&
                        before->incarnation[k] && before->incarnation[k] == now->incarnation[k];

            sim_require(sim,
                        !both ||
                            (before->rank[i] < before->rank[k]) == (now->rank[i] < now->rank[k]) ||
                            i == k,
                        "n%d and n%d changed their order", i, k);
        }
    }
}

static void see_seal(struct sim *sim, const struct er_job_record *w)
{
    struct sim_sealed *g = &sim->gens[w->generation % SIM_GENS];
    const struct sim_sealed *before = sim_sealed(sim, sim->world.last_sealed);

    if (g->generation == w->generation) { /* written again: bounds, requests, what comes next */
        sim_require(sim, g->nonce == w->nonce && g->nnodes == w->nnodes,
                    "generation %llu sealed twice", (unsigned long long)w->generation);
        return;
    }
    memset(g, 0, sizeof(*g));
    g->generation = w->generation;
    g->nonce = w->nonce;
    g->nnodes = w->nnodes;
    g->world_size = w->world_size;
    g->restarts = w->restarts;
    memcpy(g->master, w->master_addr, sizeof(g->master));
    sim->seals++;
    check_members(sim, w, g);
    if (strcmp(w->run, sim->world.run) == 0)
        check_order(sim, before, g);
}

/* ---- world ---- */

static void check_charge(struct sim *sim, const struct er_job_record *w)
{
    const struct sim_sealed *last = sim_sealed(sim, sim->world.last_sealed);

    sim_require(sim, w->restarts - sim->world.restarts <= 1, "%u charges at once",
                w->restarts - sim->world.restarts);
    if (w->restarts == sim->world.restarts)
        return;
    sim_require(sim, w->phase == ER_WORLD_SEALED, "charged outside a seal");
    sim_require(sim, last && last->genuine, "generation %llu charged without a failure of its own",
                (unsigned long long)sim->world.last_sealed);
}

static void check_verdict(struct sim *sim, const struct er_job_record *w)
{
    const struct sim_sealed *g = sim_sealed(sim, w->last_sealed);

    sim_require(sim, sim->fence[0] == 0, "a verdict, and still a fence");
    if (w->phase == ER_WORLD_DONE) {
        sim_require(sim, g, "success of a generation that was never sealed");
        for (int i = 0; g && i < sim->n; i++)
            sim_require(sim, !g->incarnation[i] || g->ok[i], "success without n%d", i);
        return;
    }
    if (!w->stopped && w->exit_code == 3)
        sim_require(sim, g && g->genuine, "failed by workers that did not fail by themselves");
}

static void check_change(struct sim *sim, const struct er_job_record *w, bool request_gone)
{
    const struct er_job_record *old = &sim->world;

    sim_require(sim, w->generation >= old->generation, "generation went back from %llu to %llu",
                (unsigned long long)old->generation, (unsigned long long)w->generation);
    if (strcmp(w->run, old->run) != 0) {
        sim_require(sim, w->phase == ER_WORLD_FORMING && w->last_sealed == 0, "a run began oddly");
        for (int i = 0; i < sim->n; i++)
            sim_require(sim, !sim->registered[i] || i == sim->n, "a run began while n%d lived", i);
        return;
    }
    sim_require(sim, !sim_job_over(old), "a finished job changed");
    sim_require(sim,
                request_gone || (w->min_nodes == old->min_nodes && w->max_nodes == old->max_nodes),
                "bounds changed without a request");
    sim_require(sim, w->next == 0 || w->next > w->generation, "next %llu is not ahead of %llu",
                (unsigned long long)w->next, (unsigned long long)w->generation);
    check_charge(sim, w);
}

static void see_world(struct sim *sim, const struct er_store_kv *kv, bool request_gone)
{
    struct er_job_record w;

    if (er_job_record_parse(kv->value, &w, NULL)) {
        sim_fail(sim, "world is malformed");
        return;
    }
    if (sim->has_world)
        check_change(sim, &w, request_gone);
    if (w.phase == ER_WORLD_SEALED)
        see_seal(sim, &w);
    if (sim_job_over(&w))
        check_verdict(sim, &w);
    sim->world = w;
    sim->has_world = true;
}

/* ---- other records ---- */

static void fenced(struct sim *sim, uint64_t generation, const char *what)
{
    const struct sim_sealed *g = sim_sealed(sim, generation);
    char fence[ER_FENCE_MAX] = "";

    if (g)
        er_fence_format(generation, g->nonce, fence);
    sim_require(sim, g && strcmp(fence, sim->fence) == 0, "stale %s of %llu under fence %s", what,
                (unsigned long long)generation, sim->fence);
}

static void see_commit(struct sim *sim, const struct er_store_kv *kv)
{
    struct er_ckpt_record c;

    if (er_ckpt_record_parse(kv->value, &c, NULL)) {
        sim_fail(sim, "checkpoint record is malformed");
        return;
    }
    sim_require(sim, c.step > sim->commit_step || c.generation > sim->commit_generation,
                "commit of step %llu after %llu in one generation", (unsigned long long)c.step,
                (unsigned long long)sim->commit_step);
    sim_require(sim, c.generation >= sim->commit_generation, "commit of an older generation");
    fenced(sim, c.generation, "commit");
    sim->commit_step = c.step;
    sim->commit_generation = c.generation;
    sim->commits++;
}

static void see_result(struct sim *sim, const struct er_key *key, int i,
                       const struct er_store_kv *kv)
{
    struct sim_sealed *g = sim_sealed(sim, key->generation);
    struct er_result r;

    sim_require(sim, er_result_parse(kv->value, &r, NULL) == 0, "result is malformed");
    sim_require(sim, kv->create_rev == kv->mod_rev, "a result was changed");
    fenced(sim, key->generation, "result");
    if (g && !sim->broken) {
        sim_require(sim, g->incarnation[i] == r.incarnation, "result of no member n%d", i);
        g->ok[i] = r.ok;
    }
}

/* Each change is made from the one before it, and written once. */
static void see_set(struct sim *sim, const struct er_store_kv *kv)
{
    struct er_overrides o;

    if (er_overrides_parse(kv->value, &o, NULL)) {
        sim_fail(sim, "what is set is malformed");
        return;
    }
    sim_require(sim, o.seq == sim->set_seq + 1, "change %llu of what is set follows %llu",
                (unsigned long long)o.seq, (unsigned long long)sim->set_seq);
    sim_require(sim, strcmp(o.id, sim->set_id) != 0, "%s was written twice", o.id);
    sim_require(sim, sim->has_world && !sim_job_over(&sim->world), "%s: the job is over", o.id);
    sim->set_seq = o.seq;
    snprintf(sim->set_id, sizeof(sim->set_id), "%.31s", o.id);
    snprintf(sim->set, sizeof(sim->set), "%.31s", o.text);
}

/* "Left" is only said of what does not run any more. */
static void see_member(struct sim *sim, int i, const struct er_store_kv *kv)
{
    const struct sim_node *node = &sim->nodes[i];
    struct er_member m;

    sim->registered[i] = true;
    if (er_member_parse(kv->value, &m, NULL)) {
        sim_fail(sim, "member record is malformed");
        return;
    }
    sim->spec_seen[i] = m.spec;
    sim->incarnation_seen[i] = m.incarnation;
    if (m.incarnation == node->incarnation && node->driver && node->running)
        sim_require(sim, m.left < node->running, "n%d said it left %llu and runs %llu", i,
                    (unsigned long long)m.left, (unsigned long long)node->running);
}

static void see_first(struct sim *sim, const struct er_key *key, int i, bool put,
                      const struct er_store_kv *kv)
{
    if (key->kind == ER_KEY_ASSIGN && i >= 0) {
        sim->assign_seen[i] = put;
        sim_require(sim, !put || er_assign_parse(kv->value, &sim->assign[i], NULL) == 0,
                    "assignment is malformed");
    } else if (key->kind == ER_KEY_FENCE) {
        snprintf(sim->fence, sizeof(sim->fence), "%.*s", put ? (int)kv->value.len : 0,
                 put ? (const char *)kv->value.data : "");
    } else if (key->kind == ER_KEY_NODE && i >= 0 && !put) {
        sim->registered[i] = false;
    } else if (key->kind == ER_KEY_CKPT && !put) {
        sim->commit_step = sim->commit_generation = 0;
    } else if (key->kind == ER_KEY_OVERRIDES && !put) {
        sim->set_seq = 0;
        sim->set[0] = 0;
    }
}

static void see_second(struct sim *sim, const struct er_key *key, int i,
                       const struct er_store_kv *kv, bool request_gone)
{
    if (key->kind == ER_KEY_WORLD)
        see_world(sim, kv, request_gone);
    else if (key->kind == ER_KEY_CKPT)
        see_commit(sim, kv);
    else if (key->kind == ER_KEY_OVERRIDES)
        see_set(sim, kv);
    else if (key->kind == ER_KEY_RESULT && i >= 0)
        see_result(sim, key, i, kv);
    else if (key->kind == ER_KEY_ASIDE)
        sim_require(sim, ++sim->asides < ASIDES_MAX, "nodes are set aside again and again");
    else if (key->kind == ER_KEY_KV || key->kind == ER_KEY_OP)
        fenced(sim, key->generation, "key");
}

/* One revision: assignments and fence before the world that rests on them, who registers last. */
static void observe(void *user, int rc, const struct er_store_event *events, size_t n,
                    uint64_t revision)
{
    struct sim *sim = user;
    bool request_gone = false;

    if (rc) {
        sim_fail(sim, "the observer lost history");
        return;
    }
    sim_tell_store(sim, events, n);
    for (unsigned pass = 0; pass < 3 && !sim->broken; pass++) {
        for (size_t k = 0; k < n; k++) {
            bool put = events[k].kind == ER_STORE_PUT;
            struct er_key key;
            int i;

            er_key_parse(SIM_ROOT, events[k].kv.key, &key);
            i = index_of(sim, key.name);
            request_gone |= key.kind == ER_KEY_CTL && !put;
            if (pass == 0)
                see_first(sim, &key, i, put, &events[k].kv);
            else if (pass == 1 && put)
                see_second(sim, &key, i, &events[k].kv, request_gone);
            else if (pass == 2 && put && key.kind == ER_KEY_NODE && i >= 0)
                see_member(sim, i, &events[k].kv);
        }
    }
}

void sim_observe(struct sim *sim)
{
    sim->observer->ops->watch(sim->observer, (struct er_bytes){SIM_ROOT, sizeof(SIM_ROOT) - 1},
                              true, 1, observe, sim, &sim->watch);
}

void sim_look(struct sim *sim)
{
    sim->observer->ops->dispatch(sim->observer, sim->now_us);
}

/* The newest generation, and the one before it, which a node whose watch lags may still start. */
static void remember(struct sim *sim)
{
    for (unsigned n = 0; n < 4; n++) {
        const struct sim_sealed *newest = NULL;

        for (size_t i = 0; i < SIM_GENS; i++) {
            const struct sim_sealed *g = &sim->gens[i];

            if (g->generation && (!newest || g->generation > newest->generation))
                newest = g;
        }
        if (!newest)
            return;
        sim->former[sim->former_n++ % SIM_FORMER] = *newest;
        sim_sealed(sim, newest->generation)->generation = 0;
    }
}

/* What is promised after that: another run, with numbers above those that its members have seen.
 * Commits, results, requests and the budget are forgotten. */
void sim_wipe(struct sim *sim)
{
    sim_look(sim);
    sim->observer->ops->unwatch(sim->observer, sim->watch);
    er_store_mem_wipe(sim->observer);
    remember(sim);
    for (size_t i = 0; i < SIM_GENS; i++)
        sim->gens[i].generation = 0;
    memset(&sim->world, 0, sizeof(sim->world));
    memset(sim->assign_seen, 0, sizeof(sim->assign_seen));
    memset(sim->registered, 0, sizeof(sim->registered));
    sim->fence[0] = 0;
    sim->has_world = false;
    sim->commit_step = sim->commit_generation = sim->set_seq = 0;
    sim->set[0] = sim->set_id[0] =
        0; /* whose reply was lost with the old store may be written anew */
    sim->wipes++;
    sim_observe(sim);
}

/* ---- what agents are told ---- */

void sim_check_start(struct sim_node *node, const struct er_assignment *a)
{
    struct sim *sim = node->sim;
    const struct sim_sealed *g;
    int i = node->index;

    sim_look(sim); /* the seal may come with this very dispatch */
    sim_require(sim, node->set_known, "n%d starts before it knows what is set", i);
    g = sealed_ever(sim, a->generation, a->nonce);
    sim_require(sim, node->running == 0 || (node->preparing && node->running == a->generation),
                "n%d started %llu while %llu runs", i, (unsigned long long)a->generation,
                (unsigned long long)node->running);
    sim_require(sim, a->generation > node->last_started, "n%d started %llu after %llu", i,
                (unsigned long long)a->generation, (unsigned long long)node->last_started);
    sim_require(sim, g && g->nonce == a->nonce, "n%d started an unsealed generation", i);
    if (sim->broken)
        return;
    sim_require(sim, g->incarnation[i] == node->incarnation, "n%d started another's assignment", i);
    sim_require(sim,
                g->rank[i] == a->node_rank && g->first[i] == a->first_rank &&
                    g->size[i] == a->local_size && g->nnodes == (uint32_t)a->nnodes &&
                    g->world_size == (uint32_t)a->world_size && g->restarts == a->restarts &&
                    strcmp(g->master, a->master_addr) == 0,
                "n%d has other ranks than the sealed ones", i);
}

void sim_check_prepare(struct sim_node *node, const struct er_assignment *a)
{
    struct sim *sim = node->sim;

    sim_look(sim);
    sim_require(sim, node->running == 0, "n%d prepared %llu while %llu runs", node->index,
                (unsigned long long)a->generation, (unsigned long long)node->running);
    sim_require(sim, !sim_sealed(sim, a->generation) && a->generation > node->last_started,
                "n%d prepares %llu", node->index, (unsigned long long)a->generation);
}

/* ---- in the end ---- */

static void on_left(void *user, int rc, const struct er_store_reply *reply)
{
    struct sim *sim = user;
    struct er_key key;

    for (size_t i = 0; rc == 0 && i < reply->kv_n; i++) {
        er_key_parse(SIM_ROOT, reply->kvs[i].key, &key);
        sim_require(sim, key.kind != ER_KEY_CTL, "request %s is still there", key.name);
        sim_require(sim, key.kind == ER_KEY_CTL || key.generation >= sim->world.last_sealed,
                    "keys of %llu are left, last sealed is %llu",
                    (unsigned long long)key.generation, (unsigned long long)sim->world.last_sealed);
    }
}

static void check_leftovers(struct sim *sim)
{
    static const char *const parts[] = {"j/r/", "kv/", "op/", "j/ctl/"};
    struct er_store_op ops[4];
    struct er_store_txn txn = {.then_ops = ops, .then_n = 4};
    char text[4][64];

    for (size_t i = 0; i < 4; i++) {
        snprintf(text[i], sizeof(text[i]), SIM_ROOT "%s", parts[i]);
        ops[i] = (struct er_store_op){
            .kind = ER_OP_RANGE, .key = {text[i], strlen(text[i])}, .prefix = true};
    }
    sim->observer->ops->txn(sim->observer, &txn, on_left, sim);
    sim_look(sim);
}

void sim_check_rest(struct sim *sim)
{
    int max = (int)sim->world.max_nodes, want = 0, have = 0;

    if (sim_job_over(&sim->world))
        return;
    for (int i = 0; i < sim->n; i++) {
        want += sim->nodes[i].spec == sim->world.spec;
        have += sim->nodes[i].running && sim->nodes[i].running == sim->world.last_sealed;
    }
    want = want < max ? want : max;
    sim_require(sim, sim->world.phase == ER_WORLD_SEALED && have == want,
                "after the faults %d of %d nodes run generation %llu (phase %d, next %llu)", have,
                want, (unsigned long long)sim->world.last_sealed, (int)sim->world.phase,
                (unsigned long long)sim->world.next);
    for (int i = 0; i < sim->n; i++) {
        const struct sim_node *node = &sim->nodes[i];

        sim_require(sim, !node->running || node->has == sim->slots[i],
                    "after the faults n%d runs %d of %d workers", i, node->has, sim->slots[i]);
    }
    for (int i = 0; i < sim->n; i++) {
        const struct sim_node *node = &sim->nodes[i];

        sim_require(sim, !node->driver || strcmp(node->set, sim->set) == 0,
                    "after the faults n%d goes by %s, and %s is set", i, node->set, sim->set);
    }
    check_leftovers(sim);
}

void sim_check_end(struct sim *sim)
{
    sim_require(sim, sim_job_over(&sim->world), "the job has no end");
    for (int i = 0; i < sim->n; i++) {
        const struct sim_node *node = &sim->nodes[i];

        sim_require(sim, !node->driver && !node->running, "n%d has no verdict", i);
        if (node->verdict.kind != ER_VERDICT_STOPPED)
            sim_require(sim,
                        node->verdict.exit_code == sim->world.exit_code &&
                            (node->verdict.kind == ER_VERDICT_SUCCEEDED) ==
                                (sim->world.phase == ER_WORLD_DONE),
                        "n%d says %d, the job %d", i, node->verdict.exit_code,
                        sim->world.exit_code);
    }
}
