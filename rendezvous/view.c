#include "rendezvous/view.h"

#include <assert.h>
#include <string.h>

#include "rendezvous/planted.h"

void er_view_init(struct er_view *v, struct er_view_node *nodes, size_t cap)
{
    memset(v, 0, sizeof(*v));
    v->nodes = nodes;
    v->cap = cap;
    v->changes = 1;
}

void er_view_reset(struct er_view *v)
{
    er_view_init(v, v->nodes, v->cap);
}

static size_t lower_bound(const struct er_view *v, const char *id)
{
    size_t lo = 0, hi = v->n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (strcmp(v->nodes[mid].id, id) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

struct er_view_node *er_view_find(const struct er_view *v, const char *id)
{
    size_t i = lower_bound(v, id);

    return i < v->n && strcmp(v->nodes[i].id, id) == 0 ? &v->nodes[i] : NULL;
}

/* Make room by forgetting a node that is gone and doesn't matter any more. */
static bool evict(struct er_view *v)
{
    for (size_t i = 0; i < v->n; i++) {
        if (v->nodes[i].present || v->nodes[i].aside ||
            er_view_member_rank(v, &v->nodes[i], NULL) >= 0)
            continue;
        assert(v->nodes[i].traits == 0);
        v->n--;
        memmove(&v->nodes[i], &v->nodes[i + 1], (v->n - i) * sizeof(*v->nodes));
        return true;
    }
    return false;
}

static struct er_view_node *find_or_add(struct er_view *v, const char *id)
{
    struct er_view_node *n = er_view_find(v, id);
    size_t i;

    if (n)
        return n;
    if (strlen(id) >= ER_NAME_TEXT_MAX || (v->n == v->cap && !evict(v))) {
        v->dropped++;
        v->full |= v->n == v->cap;
        return NULL;
    }
    i = lower_bound(v, id);
    memmove(&v->nodes[i + 1], &v->nodes[i], (v->n - i) * sizeof(*v->nodes));
    v->n++;
    n = &v->nodes[i];
    memset(n, 0, sizeof(*n));
    memcpy(n->id, id, strlen(id) + 1);
    return n;
}

static void put_node(struct er_view *v, const char *id, const struct er_store_kv *kv,
                     uint64_t now_us)
{
    struct er_member member;
    struct er_view_node *n;

    if (er_member_parse(kv->value, &member, NULL) < 0) {
        v->dropped++;
        return;
    }
    n = find_or_add(v, id);
    if (!n)
        return;
    if (!n->present || n->member.incarnation != member.incarnation) {
        n->joined_us = now_us;
        n->unfit = 0;
        n->unfit_us = 0;
    }
    n->present = true;
    n->member = member;
    n->mod_rev = kv->mod_rev;
    n->lease = kv->lease;
}

static void delete_node(struct er_view *v, const char *id, uint64_t now_us)
{
    struct er_view_node *n = er_view_find(v, id);

    if (!n || !n->present)
        return;
    n->present = false;
    n->gone_us = now_us;
    if (er_view_leaving(n))
        n->departed = n->member.incarnation;
}

static void put_assign(struct er_view *v, const char *id, const struct er_store_kv *kv,
                       uint64_t now_us)
{
    struct er_assign assign;
    struct er_view_node *n;

    if (er_assign_parse(kv->value, &assign, NULL) < 0) {
        v->dropped++;
        return;
    }
    n = find_or_add(v, id);
    if (!n)
        return;
    n->assign = assign;
    n->has_assign = true;
    if (!n->present && !n->gone_us)
        n->gone_us = now_us;
}

static void put_result(struct er_view *v, const struct er_key *key, const struct er_store_kv *kv)
{
    struct er_result result;
    struct er_view_node *n;

    if (er_result_parse(kv->value, &result, NULL) < 0) {
        v->dropped++;
        return;
    }
    n = find_or_add(v, key->name);
    if (!n || key->generation < n->result_generation)
        return;
    n->result_generation = key->generation;
    n->result_ok = result.ok;
    if (result.ok || key->generation < v->failed_generation)
        return;
    if (key->generation > v->failed_generation)
        v->progressed = false;
    v->progressed |= result.progressed;
    if (key->generation == v->failed_generation && kv->create_rev > v->failed_rev)
        return;
    v->failed_generation = key->generation;
    v->failed_rev = kv->create_rev;
    v->failed = result.cause;
}

static void put_world(struct er_view *v, const struct er_store_kv *kv, uint64_t now_us)
{
    struct er_job_record world;

    if (er_job_record_parse(kv->value, &world, NULL) < 0) {
        v->dropped++;
        return;
    }
    v->world = world;
    v->has_world = true;
    v->world_rev = kv->mod_rev;
    v->world_us = now_us;
}

static void put_aside(struct er_view *v, const char *id, bool put)
{
    struct er_view_node *n = put ? find_or_add(v, id) : er_view_find(v, id);

    if (n)
        n->aside = put;
}

static void delete_ctl(struct er_view *v, const char *id)
{
    for (size_t i = 0; i < v->ctl_n; i++) {
        if (strcmp(v->ctls[i].id, id) != 0)
            continue;
        v->ctl_n--;
        memmove(&v->ctls[i], &v->ctls[i + 1], (v->ctl_n - i) * sizeof(v->ctls[0]));
        return;
    }
}

static void put_ctl(struct er_view *v, const char *id, const struct er_store_kv *kv)
{
    struct er_view_ctl *c;

    delete_ctl(v, id);
    if (strlen(id) >= ER_NAME_TEXT_MAX) {
        v->dropped++;
        return;
    }
    if (v->ctl_n == ER_VIEW_CTLS) {
        v->ctl_missed = true;
        return;
    }
    c = &v->ctls[v->ctl_n];
    if (er_ask_parse(kv->value, &c->ctl, NULL) < 0) {
        v->dropped++;
        return;
    }
    memcpy(c->id, id, strlen(id) + 1);
    c->mod_rev = kv->mod_rev;
    v->ctl_n++;
}

/* ---- what nodes are, counted ---- */

#define BIT(trait) (1u << ER_TRAIT_##trait)

static unsigned lost_trait(const struct er_view *v, const struct er_view_node *n)
{
    return er_view_departed(v, n) ? BIT(DEPARTED) : n->present ? BIT(REBORN) : BIT(ABSENT);
}

static bool has_quit(const struct er_view *v, const struct er_view_node *n)
{
    return v->world.phase == ER_WORLD_SEALED && !v->world.next_go &&
           n->member.left >= v->world.last_sealed && n->result_generation < n->member.left;
}

static unsigned traits_of(const struct er_view *v, const struct er_view_node *n)
{
    bool member = er_view_member_rank(v, n, NULL) >= 0, alive = er_view_alive_member(v, n);
    bool ready = er_view_ready(v, n), ok = er_view_succeeded(v, n);
    unsigned traits = (member ? BIT(MEMBER) : 0) | (member && ok ? BIT(OK) : 0);

    if (er_view_lost_member(v, n))
        traits |= lost_trait(v, n);
    if (!n->present)
        return traits;
    traits |= ready ? 0 : BIT(UNREADY);
    if (er_view_leaving(n))
        return traits | (alive && !ok ? BIT(DRAINING) : 0);
    traits |= alive && has_quit(v, n) ? BIT(QUIT) : 0;
    if (n->member.spec != v->world.spec) /* a spare, whatever else */
        return traits | (ready ? BIT(OTHER) : 0);
    if (n->aside)
        return traits | (ready ? BIT(ASIDE_READY) : 0) | (alive && !ok ? BIT(ASIDE_MEMBER) : 0);
    return traits | BIT(PRESENT) | (ready ? BIT(READY) : 0) | (alive ? 0 : BIT(NEWCOMER));
}

static uint32_t offers_of(const struct er_view *v, const struct er_view_node *n)
{
    if (!er_view_alive_member(v, n) || er_view_leaving(n) || n->member.slots < 1)
        return 0;
    return (uint32_t)n->member.slots;
}

void er_view_changed(struct er_view *v, struct er_view_node *n)
{
    unsigned was = n->traits;

    v->staying -= n->offers > 0;
    v->offered -= n->offers;
    n->offers = offers_of(v, n);
    v->staying += n->offers > 0;
    v->offered += n->offers;
    n->traits = traits_of(v, n);
    v->changes++;
    for (unsigned i = 0; was != n->traits && i < ER_TRAIT_COUNT; i++)
        v->counts[i] += (n->traits >> i & 1) - (was >> i & 1);
}

bool er_view_counts_right(const struct er_view *v)
{
    uint32_t counts[ER_TRAIT_COUNT] = {0}, staying = 0, offered = 0;

    for (size_t k = 0; k < v->n; k++) {
        unsigned traits = traits_of(v, &v->nodes[k]);
        uint32_t offers = offers_of(v, &v->nodes[k]);

        staying += offers > 0;
        offered += offers;

        for (unsigned i = 0; i < ER_TRAIT_COUNT; i++)
            counts[i] += traits >> i & 1;
    }
    return memcmp(counts, v->counts, sizeof(counts)) == 0 && staying == v->staying &&
           offered == v->offered;
}

/* What a node is depends on `world`, which seldom changes. */
static void count_anew(struct er_view *v, const struct er_key *key)
{
    struct er_view_node *n;

    if (key->kind == ER_KEY_WORLD) {
        for (size_t i = 0; i < v->n; i++)
            er_view_changed(v, &v->nodes[i]);
    } else if (key->kind == ER_KEY_NODE || key->kind == ER_KEY_ASSIGN ||
               key->kind == ER_KEY_RESULT || key->kind == ER_KEY_ASIDE) {
        n = er_view_find(v, key->name);
        if (n)
            er_view_changed(v, n);
    }
}

void er_view_apply(struct er_view *v, const char *root, enum er_store_event_kind kind,
                   const struct er_store_kv *kv, uint64_t now_us)
{
    bool put = kind == ER_STORE_PUT;
    struct er_key key;

    if (kv->mod_rev > v->revision)
        v->revision = kv->mod_rev;
    er_key_parse(root, kv->key, &key);
    if (key.kind == ER_KEY_NODE && put) {
        put_node(v, key.name, kv, now_us);
    } else if (key.kind == ER_KEY_NODE) {
        delete_node(v, key.name, now_us);
    } else if (key.kind == ER_KEY_ASSIGN && put) {
        put_assign(v, key.name, kv, now_us);
    } else if (key.kind == ER_KEY_RESULT && put) {
        put_result(v, &key, kv);
    } else if (key.kind == ER_KEY_WORLD && put) {
        put_world(v, kv, now_us);
    } else if (key.kind == ER_KEY_CTL && put) {
        put_ctl(v, key.name, kv);
    } else if (key.kind == ER_KEY_CTL) {
        delete_ctl(v, key.name);
    } else if (key.kind == ER_KEY_ASIDE) {
        put_aside(v, key.name, put);
    } else if (key.kind == ER_KEY_LEADER) {
        v->has_leader = put && er_leader_parse(kv->value, &v->leader, NULL) == 0;
        v->leader_rev = v->has_leader ? kv->mod_rev : 0;
    }
    count_anew(v, &key);
}

bool er_view_part(const struct er_view *v, const struct er_view_node *n, struct er_view_part *ret)
{
    const struct er_assign *a = &n->assign;
    uint64_t g = v->world.last_sealed;

    if (g == 0 || !n->has_assign)
        return false;
    if (a->generation == g)
        *ret = (struct er_view_part){a->group_rank, a->first_rank, a->role_first,
                                     a->role_size,  a->nonce,      a->incarnation};
    else if (a->prev_generation == g)
        *ret = (struct er_view_part){a->prev_rank,      a->prev_first, a->prev_role_first,
                                     a->prev_role_size, a->prev_nonce, a->prev_incarnation};
    return a->generation == g || a->prev_generation == g;
}

int er_view_member_rank(const struct er_view *v, const struct er_view_node *n,
                        uint64_t *ret_incarnation)
{
    struct er_view_part part;

    if (!er_view_part(v, n, &part))
        return -1;
    if (ret_incarnation)
        *ret_incarnation = part.incarnation;
    return part.rank;
}

bool er_view_alive_member(const struct er_view *v, const struct er_view_node *n)
{
    uint64_t incarnation;

    return n->present && er_view_member_rank(v, n, &incarnation) >= 0 &&
           n->member.incarnation == incarnation;
}

bool er_view_succeeded(const struct er_view *v, const struct er_view_node *n)
{
    return v->world.last_sealed && n->result_generation == v->world.last_sealed && n->result_ok;
}

bool er_view_lost_member(const struct er_view *v, const struct er_view_node *n)
{
    return er_view_member_rank(v, n, NULL) >= 0 && !er_view_alive_member(v, n) &&
           !er_view_succeeded(v, n);
}

bool er_view_leaving(const struct er_view_node *n)
{
    return n->member.draining ||
           (n->has_assign && n->assign.drain && n->assign.drain == n->member.incarnation);
}

/* Also when its next incarnation is there already. A leader that came later knows one of them, by
 * the cause. */
bool er_view_departed(const struct er_view *v, const struct er_view_node *n)
{
    const struct er_job_record *w = &v->world;
    uint64_t incarnation;

    if (er_view_member_rank(v, n, &incarnation) < 0 || er_view_alive_member(v, n))
        return false;
    return n->departed == incarnation ||
           (w->phase == ER_WORLD_FORMING && er_reason_leaves(w->reason) && w->has_cause &&
            strcmp(w->cause.node_id, n->id) == 0);
}

/* The newest generation this incarnation was given and may run: one that was sealed. A number above
 * the last sealed one came to nothing; then the one before it counts. A number below that came to
 * nothing is covered by `left`, as idle nodes raise it whenever the job forms. */
static uint64_t given(const struct er_view *v, const struct er_view_node *n)
{
    const struct er_assign *a = &n->assign;

    if (!n->has_assign || er_bug(LEFT_OUT_IS_READY))
        return 0;
    if (a->generation <= v->world.last_sealed)
        return a->incarnation == n->member.incarnation ? a->generation : 0;
    return a->prev_incarnation == n->member.incarnation ? a->prev_generation : 0;
}

bool er_view_ready(const struct er_view *v, const struct er_view_node *n)
{
    if (!n->present)
        return false;
    if (er_view_alive_member(v, n))
        return n->member.left >= v->world.last_sealed;
    return n->member.left >= n->member.running && n->member.left >= given(v, n);
}

const struct er_cause *er_view_failed(const struct er_view *v)
{
    return v->world.last_sealed && v->failed_generation == v->world.last_sealed ? &v->failed : NULL;
}

const char *er_view_state_name(const struct er_view *v, const struct er_view_node *n)
{
    if (!n->present)
        return "gone";
    if (er_view_leaving(n))
        return "leaving";
    if (n->aside)
        return "set_aside";
    if (er_view_alive_member(v, n))
        return "member";
    return v->world.phase == ER_WORLD_SEALED ? "spare" : "waiting";
}

const char *er_view_phase_name(const struct er_job_record *w)
{
    switch (w->phase) {
    case ER_WORLD_FORMING:
        return "forming";
    case ER_WORLD_SEALED: /* the next generation is being prepared while this one runs */
        return w->next ? "resizing" : "running";
    case ER_WORLD_DONE:
        return "succeeded";
    case ER_WORLD_FAILED:
        return w->stopped ? "stopped" : "failed";
    case ER_WORLD_PHASE_COUNT:
        break;
    }
    return "unknown";
}
