#include "rendezvous/rdzv_internal.h"

#include <assert.h>
#include <string.h>

/* The transactions of the protocol. Each builds into its lane's arrays and arena, which stay as
 * they are until the answer, so that the answer can be read by the operations that were sent. */

static struct er_rdzv_lane *begin(struct er_rdzv *c, enum er_rdzv_lane_id id, enum er_rdzv_txn kind)
{
    struct er_rdzv_lane *l = &c->lanes[id];

    assert(l->kind == ER_TXN_NONE);
    l->kind = kind;
    l->used = 0;
    l->txn =
        (struct er_store_txn){.cmps = l->cmps, .then_ops = l->then_ops, .else_ops = l->else_ops};
    return l;
}

static void end(struct er_rdzv *c, struct er_rdzv_lane *l)
{
    struct er_rdzv_action *a = rdzv_act(c, ER_ACT_TXN);

    a->lane = l == &c->lanes[ER_LANE_OWN] ? ER_LANE_OWN : ER_LANE_LEAD;
    a->txn = &l->txn;
}

static char *room(struct er_rdzv_lane *l, size_t n)
{
    assert(n <= sizeof(l->arena) - l->used);
    return l->arena + l->used;
}

static struct er_bytes keep(struct er_rdzv_lane *l, const void *data, size_t n)
{
    struct er_bytes b = {room(l, n), n};

    memcpy(l->arena + l->used, data, n);
    l->used += n;
    return b;
}

static struct er_bytes key_of(struct er_rdzv *c, struct er_rdzv_lane *l, enum er_key_kind kind,
                              uint64_t generation, const char *name)
{
    struct er_key key = {.kind = kind, .generation = generation};
    struct er_text text = {key.name, sizeof(key.name), 0};
    struct er_bytes b = {room(l, ER_KEY_MAX), 0};

    er_text_add(&text, name);
    b.len = er_key_format(c->root, &key, l->arena + l->used);
    assert(b.len);
    l->used += b.len;
    return b;
}

static struct er_store_cmp *add_cmp(struct er_rdzv_lane *l, enum er_cmp_target target,
                                    struct er_bytes key, uint64_t rev)
{
    struct er_store_cmp *cmp;

    assert(l->txn.cmp_n < ER_RDZV_CMPS_MAX);
    cmp = &l->cmps[l->txn.cmp_n++];
    *cmp = (struct er_store_cmp){.target = target, .result = ER_CMP_EQUAL, .key = key, .rev = rev};
    return cmp;
}

static void cmp_value(struct er_rdzv_lane *l, struct er_bytes key, const void *value, size_t n)
{
    add_cmp(l, ER_CMP_VALUE, key, 0)->value = keep(l, value, n);
}

static void add_op(struct er_rdzv_lane *l, struct er_store_op op)
{
    assert(l->txn.then_n < ER_STORE_TXN_OPS_MAX);
    l->then_ops[l->txn.then_n++] = op;
}

static void add_put(struct er_rdzv_lane *l, struct er_bytes key, const void *value, size_t n,
                    uint64_t lease)
{
    add_op(l, (struct er_store_op){
                  .kind = ER_OP_PUT, .key = key, .value = keep(l, value, n), .lease = lease});
}

/* Read the key in both branches: an answer always says how things stand. */
static void add_read(struct er_rdzv_lane *l, struct er_bytes key)
{
    struct er_store_op op = {.kind = ER_OP_RANGE, .key = key};

    add_op(l, op);
    assert(l->txn.else_n < ER_RDZV_ELSE_MAX);
    l->else_ops[l->txn.else_n++] = op;
}

/* ---- the node's own ---- */

static void own_member(const struct er_rdzv *c, struct er_member *m)
{
    memset(m, 0, sizeof(*m));
    m->incarnation = c->opts.incarnation;
    m->boot_id_hash = c->opts.boot_id_hash;
    memcpy(m->address, c->opts.address, sizeof(m->address));
    memcpy(m->host, c->opts.host, sizeof(m->host));
    m->port = c->port;
    m->slots = c->opts.slots;
    m->preferred_rank = c->opts.preferred_rank;
    m->left = c->left;
    m->running = c->run == ER_RUN_IDLE ? 0 : c->run_generation;
    m->draining = c->leaving;
}

static void put_member(struct er_rdzv *c, struct er_rdzv_lane *l, struct er_bytes key)
{
    unsigned char bytes[ER_MEMBER_BYTES_MAX];
    struct er_member m;
    size_t n;

    own_member(c, &m);
    n = er_member_encode(&m, bytes);
    add_put(l, key, bytes, n, c->lease);
}

static void put_leader(struct er_rdzv *c, struct er_rdzv_lane *l, struct er_bytes key)
{
    struct er_leader leader = {.incarnation = c->opts.incarnation};
    unsigned char bytes[ER_LEADER_BYTES_MAX];

    leader.nonce = rdzv_random(c);
    memcpy(leader.node_id, c->opts.node_id, sizeof(leader.node_id));
    add_put(l, key, bytes, er_leader_encode(&leader, bytes), c->lease);
}

static void put_world(struct er_rdzv_lane *l, struct er_bytes key, const struct er_world *w)
{
    unsigned char bytes[ER_WORLD_BYTES_MAX];

    add_put(l, key, bytes, er_world_encode(w, bytes), 0);
}

void rdzv_send_read(struct er_rdzv *c, enum er_rdzv_lane_id id)
{
    struct er_rdzv_lane *l = begin(c, id, ER_TXN_READ);

    add_read(l, key_of(c, l, ER_KEY_WORLD, 0, ""));
    add_read(l, key_of(c, l, ER_KEY_LEADER, 0, ""));
    add_read(l, key_of(c, l, ER_KEY_NODE, 0, c->opts.node_id));
    add_read(l, key_of(c, l, ER_KEY_ASSIGN, 0, c->opts.node_id));
    end(c, l);
}

static void first_world(struct er_rdzv *c, struct er_world *w)
{
    struct er_text run = {w->run, sizeof(w->run), 0};

    memset(w, 0, sizeof(*w));
    for (unsigned i = 0; i < 2; i++) {
        uint64_t v = rdzv_random(c);

        for (int shift = 60; shift >= 0; shift -= 4) {
            char digit[2] = {"0123456789abcdef"[(v >> shift) & 15], 0};

            er_text_add(&run, digit);
        }
    }
    w->generation = c->opts.first_generation + 1;
    w->min_nodes = c->opts.min_nodes;
    w->max_nodes = c->opts.max_nodes;
    w->writer = c->opts.incarnation;
    w->seq = ++c->seq;
}

/* 2: first of all: writes spec and world as well; else joins what is there. Takes the leader's
 * place when it is free. 11 is the same: the record then says what runs. */
void rdzv_send_join(struct er_rdzv *c)
{
    struct er_rdzv_lane *l = begin(c, ER_LANE_OWN, ER_TXN_JOIN);
    struct er_bytes spec = key_of(c, l, ER_KEY_SPEC, 0, "");
    struct er_bytes world = key_of(c, l, ER_KEY_WORLD, 0, "");
    struct er_bytes leader = key_of(c, l, ER_KEY_LEADER, 0, "");
    struct er_bytes node = key_of(c, l, ER_KEY_NODE, 0, c->opts.node_id);
    bool elect =
        !c->k_leader.present && !c->leaving && (!c->k_world.present || !rdzv_terminal(&c->world));

    add_cmp(l, ER_CMP_CREATE, node, 0);
    put_member(c, l, node);
    if (!c->k_world.present) {
        struct er_world w;

        first_world(c, &w);
        c->fresh_seq = w.seq;
        add_cmp(l, ER_CMP_CREATE, world, 0);
        add_put(l, spec, c->spec, strlen(c->spec), 0);
        put_world(l, world, &w);
    } else {
        cmp_value(l, spec, c->spec, strlen(c->spec));
    }
    if (elect) {
        add_cmp(l, ER_CMP_CREATE, leader, 0);
        put_leader(c, l, leader);
    }
    add_read(l, spec);
    add_read(l, world);
    add_read(l, leader);
    add_read(l, node);
    add_read(l, key_of(c, l, ER_KEY_ASSIGN, 0, c->opts.node_id));
    end(c, l);
}

void rdzv_send_result(struct er_rdzv *c)
{
    struct er_rdzv_lane *l = begin(c, ER_LANE_OWN, ER_TXN_RESULT);
    struct er_bytes fence = key_of(c, l, ER_KEY_FENCE, 0, "");
    struct er_bytes key = key_of(c, l, ER_KEY_RESULT, c->result_generation, c->opts.node_id);
    unsigned char bytes[ER_RESULT_BYTES_MAX];
    char text[ER_FENCE_MAX];
    size_t n = er_fence_format(c->result_generation, c->run_nonce, text);

    cmp_value(l, fence, text, n);
    add_cmp(l, ER_CMP_CREATE, key, 0);
    add_put(l, key, bytes, er_result_encode(&c->result, bytes), 0);
    end(c, l);
}

void rdzv_send_left(struct er_rdzv *c)
{
    struct er_rdzv_lane *l = begin(c, ER_LANE_OWN, ER_TXN_LEFT);
    struct er_bytes key = key_of(c, l, ER_KEY_NODE, 0, c->opts.node_id);

    add_cmp(l, ER_CMP_MOD, key, c->k_node.mod_rev);
    put_member(c, l, key);
    add_read(l, key);
    end(c, l);
}

/* ---- the leader's ---- */

void rdzv_send_elect(struct er_rdzv *c)
{
    struct er_rdzv_lane *l = begin(c, ER_LANE_LEAD, ER_TXN_ELECT);
    struct er_bytes key = key_of(c, l, ER_KEY_LEADER, 0, "");

    add_cmp(l, ER_CMP_CREATE, key, 0);
    put_leader(c, l, key);
    add_read(l, key);
    add_read(l, key_of(c, l, ER_KEY_WORLD, 0, ""));
    end(c, l);
}

/* What every transaction of a leader compares: world as it knows it, and its own session. */
static struct er_bytes guard(struct er_rdzv *c, struct er_rdzv_lane *l, uint64_t world_rev)
{
    struct er_bytes world = key_of(c, l, ER_KEY_WORLD, 0, "");

    add_cmp(l, ER_CMP_MOD, world, world_rev);
    add_cmp(l, ER_CMP_MOD, key_of(c, l, ER_KEY_LEADER, 0, ""), c->lead_rev);
    return world;
}

static void still_lost(struct er_rdzv *c, struct er_rdzv_lane *l)
{
    unsigned n = 0;

    for (size_t i = 0; i < c->view.n && n < ER_RDZV_LOST_MAX; i++) {
        const struct er_view_node *node = &c->view.nodes[i];

        if (!er_view_lost_member(&c->view, node))
            continue;
        n++;
        add_cmp(l, node->present ? ER_CMP_MOD : ER_CMP_CREATE,
                key_of(c, l, ER_KEY_NODE, 0, node->id), node->present ? node->mod_rev : 0);
    }
}

static void read_world(struct er_rdzv *c, struct er_rdzv_lane *l, struct er_bytes world)
{
    add_read(l, world);
    add_read(l, key_of(c, l, ER_KEY_LEADER, 0, ""));
}

void rdzv_send_world(struct er_rdzv *c, enum er_rdzv_txn kind, struct er_world *w, bool lost)
{
    struct er_rdzv_lane *l = begin(c, ER_LANE_LEAD, kind);
    struct er_bytes world = guard(c, l, c->view.world_rev);

    if (lost)
        still_lost(c, l);
    w->writer = c->opts.incarnation;
    w->seq = c->fresh_seq = ++c->seq;
    put_world(l, world, w);
    read_world(c, l, world);
    end(c, l);
}

static void put_assign(struct er_rdzv *c, struct er_rdzv_lane *l, const struct er_view_node *n)
{
    struct er_assign a = {.generation = c->plan.generation,
                          .nonce = c->plan.nonce,
                          .incarnation = n->plan_incarnation,
                          .group_rank = n->plan_rank,
                          .first_rank = n->plan_first};
    unsigned char bytes[ER_ASSIGN_BYTES_MAX];

    a.prev_rank = er_view_member_rank(&c->view, n, &a.prev_incarnation);
    if (a.prev_rank >= 0)
        a.prev_generation = c->view.world.last_sealed;
    add_put(l, key_of(c, l, ER_KEY_ASSIGN, 0, n->id), bytes, er_assign_encode(&a, bytes), 0);
}

/* The next batch of the plan. */
void rdzv_send_assign(struct er_rdzv *c)
{
    struct er_rdzv_lane *l = begin(c, ER_LANE_LEAD, ER_TXN_ASSIGN);

    c->fresh_seq = 0; /* the next plan takes a new number */
    guard(c, l, c->plan.world_rev);
    for (size_t i = 0; i < c->view.n && l->txn.then_n < ER_RDZV_BATCH; i++) {
        struct er_view_node *n = &c->view.nodes[i];

        if (n->plan_generation != c->plan.generation || n->plan_sent)
            continue;
        n->plan_sent = true;
        put_assign(c, l, n);
    }
    end(c, l);
}

void rdzv_send_seal(struct er_rdzv *c, struct er_world *w)
{
    struct er_rdzv_lane *l = begin(c, ER_LANE_LEAD, ER_TXN_SEAL);
    struct er_bytes world = guard(c, l, c->plan.world_rev);
    char text[ER_FENCE_MAX];

    w->writer = c->opts.incarnation;
    w->seq = ++c->seq;
    put_world(l, world, w);
    add_put(l, key_of(c, l, ER_KEY_FENCE, 0, ""), text,
            er_fence_format(w->generation, w->nonce, text), 0);
    read_world(c, l, world);
    end(c, l);
}

void rdzv_send_verdict(struct er_rdzv *c, struct er_world *w)
{
    struct er_rdzv_lane *l = begin(c, ER_LANE_LEAD, ER_TXN_VERDICT);
    struct er_bytes world = guard(c, l, c->view.world_rev);

    w->writer = c->opts.incarnation;
    w->seq = ++c->seq;
    put_world(l, world, w);
    add_op(l, (struct er_store_op){.kind = ER_OP_DELETE, .key = key_of(c, l, ER_KEY_FENCE, 0, "")});
    read_world(c, l, world);
    end(c, l);
}
