#include "rendezvous/rdzv_txn_internal.h"

#include <assert.h>
#include <string.h>

#include "base/exit_codes.h"

/* The transactions of the protocol. Each builds into its lane's arrays and arena, which stay as
 * they are until the answer, so that the answer can be read by the operations that were sent. */

struct er_rdzv_lane *rdzv_txn_begin(struct er_rdzv *c, enum er_rdzv_lane_id id,
                                    enum er_rdzv_txn kind)
{
    struct er_rdzv_lane *l = &c->lanes[id];

    assert(l->kind == ER_TXN_NONE);
    l->kind = kind;
    l->used = 0;
    l->txn =
        (struct er_store_txn){.cmps = l->cmps, .then_ops = l->then_ops, .else_ops = l->else_ops};
    return l;
}

void rdzv_txn_end(struct er_rdzv *c, struct er_rdzv_lane *l)
{
    struct er_rdzv_action *a = rdzv_act(c, ER_ACT_TXN);

    a->lane = (enum er_rdzv_lane_id)(l - c->lanes);
    a->txn = &l->txn;
    if (a->lane == ER_LANE_BATCH)
        l->kind = ER_TXN_NONE; /* nothing of it is needed for the answer */
}

char *rdzv_txn_room(struct er_rdzv_lane *l, size_t n)
{
    assert(n <= sizeof(l->arena) - l->used);
    return l->arena + l->used;
}

struct er_bytes rdzv_txn_keep(struct er_rdzv_lane *l, const void *data, size_t n)
{
    struct er_bytes b = {rdzv_txn_room(l, n), n};

    memcpy(l->arena + l->used, data, n);
    l->used += n;
    return b;
}

struct er_bytes rdzv_txn_key_of(struct er_rdzv *c, struct er_rdzv_lane *l, enum er_key_kind kind,
                                uint64_t generation, const char *name)
{
    struct er_key key = {.kind = kind, .generation = generation};
    struct er_text text = {key.name, sizeof(key.name), 0};
    struct er_bytes b = {rdzv_txn_room(l, ER_KEY_MAX), 0};

    er_text_add(&text, name);
    b.len = er_key_format(c->root, &key, l->arena + l->used);
    assert(b.len);
    l->used += b.len;
    return b;
}

struct er_store_cmp *rdzv_txn_add_cmp(struct er_rdzv_lane *l, enum er_cmp_target target,
                                      struct er_bytes key, uint64_t rev)
{
    struct er_store_cmp *cmp;

    assert(l->txn.cmp_n < ER_RDZV_CMPS_MAX);
    cmp = &l->cmps[l->txn.cmp_n++];
    *cmp = (struct er_store_cmp){.target = target, .result = ER_CMP_EQUAL, .key = key, .rev = rev};
    return cmp;
}

void rdzv_txn_cmp_value(struct er_rdzv_lane *l, struct er_bytes key, const void *value, size_t n)
{
    rdzv_txn_add_cmp(l, ER_CMP_VALUE, key, 0)->value = rdzv_txn_keep(l, value, n);
}

void rdzv_txn_add_op(struct er_rdzv_lane *l, struct er_store_op op)
{
    assert(l->txn.then_n < ER_STORE_TXN_OPS_MAX);
    l->then_ops[l->txn.then_n++] = op;
}

void rdzv_txn_add_put(struct er_rdzv_lane *l, struct er_bytes key, const void *value, size_t n,
                      uint64_t lease)
{
    rdzv_txn_add_op(
        l, (struct er_store_op){
               .kind = ER_OP_PUT, .key = key, .value = rdzv_txn_keep(l, value, n), .lease = lease});
}

/* Read the key in both branches: an answer always says how things stand. */
void rdzv_txn_add_read(struct er_rdzv_lane *l, struct er_bytes key)
{
    struct er_store_op op = {.kind = ER_OP_RANGE, .key = key};

    rdzv_txn_add_op(l, op);
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
    m->slots = c->slots;
    m->preferred_rank = c->opts.preferred_rank;
    m->left = c->left;
    m->running = c->run == ER_RUN_IDLE ? 0 : c->run_generation;
    m->draining = c->leaving;
    m->protocol = ER_PROTOCOL;
    m->planned = c->planned;
    m->prepared = c->prepared;
    m->role = c->opts.role;
    m->spec = c->spec_hash;
    m->preempted = c->leaving && c->leave_code == ER_CODE_TEMPFAIL;
}

static void put_member(struct er_rdzv *c, struct er_rdzv_lane *l, struct er_bytes key)
{
    unsigned char bytes[ER_MEMBER_BYTES_MAX];
    struct er_member m;
    size_t n;

    own_member(c, &m);
    n = er_member_encode(&m, bytes);
    rdzv_txn_add_put(l, key, bytes, n, c->lease);
}

/* Also under another node's lease: that makes it the leader. */
void rdzv_txn_put_leader(struct er_rdzv *c, struct er_rdzv_lane *l, struct er_bytes key,
                         const char *node, uint64_t incarnation, uint64_t lease)
{
    struct er_leader leader = {.incarnation = incarnation, .nonce = rdzv_random(c)};
    struct er_text id = {leader.node_id, sizeof(leader.node_id), 0};
    unsigned char bytes[ER_LEADER_BYTES_MAX];

    er_text_add(&id, node);
    rdzv_txn_add_put(l, key, bytes, er_leader_encode(&leader, bytes), lease);
}

static void put_leader(struct er_rdzv *c, struct er_rdzv_lane *l, struct er_bytes key)
{
    rdzv_txn_put_leader(c, l, key, c->opts.node_id, c->opts.incarnation, c->lease);
}

void rdzv_txn_put_world(struct er_rdzv_lane *l, struct er_bytes key, const struct er_job_record *w)
{
    unsigned char bytes[ER_WORLD_BYTES_MAX];

    rdzv_txn_add_put(l, key, bytes, er_job_record_encode(w, bytes), 0);
}

void rdzv_send_read(struct er_rdzv *c, enum er_rdzv_lane_id id)
{
    struct er_rdzv_lane *l = rdzv_txn_begin(c, id, ER_TXN_READ);

    rdzv_txn_add_read(l, rdzv_txn_key_of(c, l, ER_KEY_WORLD, 0, ""));
    rdzv_txn_add_read(l, rdzv_txn_key_of(c, l, ER_KEY_LEADER, 0, ""));
    rdzv_txn_add_read(l, rdzv_txn_key_of(c, l, ER_KEY_NODE, 0, c->opts.node_id));
    rdzv_txn_add_read(l, rdzv_txn_key_of(c, l, ER_KEY_ASSIGN, 0, c->opts.node_id));
    rdzv_txn_end(c, l);
}

static void first_world(struct er_rdzv *c, struct er_job_record *w)
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
    w->generation = (c->seen > c->opts.first_generation ? c->seen : c->opts.first_generation) + 1;
    w->min_nodes = c->opts.min_nodes;
    w->max_nodes = c->opts.max_nodes;
    w->writer = c->opts.incarnation;
    w->seq = ++c->seq;
    w->protocol_low = w->protocol_high = ER_PROTOCOL;
    w->spec = c->spec_hash;
}

/* They were of another run. */
static void drop_overrides(struct er_rdzv *c, struct er_rdzv_lane *l)
{
    rdzv_txn_add_op(l, (struct er_store_op){.kind = ER_OP_DELETE,
                                            .key = rdzv_txn_key_of(c, l, ER_KEY_OVERRIDES, 0, "")});
}

/* 2: first of all: writes spec and world as well; else joins what is there. Takes the leader's
 * place when it is free. 11 is the same: the record then says what runs. */
void rdzv_send_join(struct er_rdzv *c)
{
    struct er_rdzv_lane *l = rdzv_txn_begin(c, ER_LANE_OWN, ER_TXN_JOIN);
    struct er_bytes spec = rdzv_txn_key_of(c, l, ER_KEY_SPEC, 0, "");
    struct er_bytes next = rdzv_txn_key_of(c, l, ER_KEY_SPEC_NEXT, 0, "");
    struct er_bytes world = rdzv_txn_key_of(c, l, ER_KEY_WORLD, 0, "");
    struct er_bytes leader = rdzv_txn_key_of(c, l, ER_KEY_LEADER, 0, "");
    struct er_bytes node = rdzv_txn_key_of(c, l, ER_KEY_NODE, 0, c->opts.node_id);
    bool elect =
        !c->k_leader.present && !c->leaving && (!c->k_world.present || !rdzv_terminal(&c->world));

    c->join_first = !c->k_world.present;
    c->join_elect = elect;
    rdzv_txn_add_cmp(l, ER_CMP_CREATE, node, 0);
    put_member(c, l, node);
    if (c->join_first) {
        struct er_job_record w;

        first_world(c, &w);
        c->fresh_seq = w.seq;
        rdzv_txn_add_cmp(l, ER_CMP_CREATE, world, 0);
        rdzv_txn_add_put(l, spec, c->spec, strlen(c->spec), 0);
        rdzv_txn_put_world(l, world, &w);
        drop_overrides(c, l);
    } else {
        rdzv_txn_cmp_value(l, c->join_next ? next : spec, c->spec, strlen(c->spec));
    }
    if (elect) {
        rdzv_txn_add_cmp(l, ER_CMP_CREATE, leader, 0);
        put_leader(c, l, leader);
    }
    rdzv_txn_add_read(l, spec); /* rdzv_node_reply() knows that these two are the first */
    rdzv_txn_add_read(l, next);
    rdzv_txn_add_read(l, world);
    rdzv_txn_add_read(l, leader);
    rdzv_txn_add_read(l, node);
    rdzv_txn_add_read(l, rdzv_txn_key_of(c, l, ER_KEY_ASSIGN, 0, c->opts.node_id));
    rdzv_txn_end(c, l);
}

/* Of two that do it at once, the later one has read the earlier one's. */
void rdzv_send_respec(struct er_rdzv *c, uint64_t spec_rev, uint64_t next_rev)
{
    struct er_rdzv_lane *l = rdzv_txn_begin(c, ER_LANE_OWN, ER_TXN_RESPEC);
    struct er_bytes next = rdzv_txn_key_of(c, l, ER_KEY_SPEC_NEXT, 0, "");

    rdzv_txn_add_cmp(l, ER_CMP_MOD, rdzv_txn_key_of(c, l, ER_KEY_SPEC, 0, ""), spec_rev);
    rdzv_txn_add_cmp(l, ER_CMP_MOD, next, next_rev);
    rdzv_txn_add_put(l, next, c->spec, strlen(c->spec), 0);
    rdzv_txn_end(c, l);
}

static void delete_old_run(struct er_rdzv *c, struct er_rdzv_lane *l)
{
    static const char *const parts[] = {"j/r/", "j/ctl/", "j/aside/", "a/", "kv/", "op/"};

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        struct er_text t = {rdzv_txn_room(l, ER_ROOT_MAX + 8), ER_ROOT_MAX + 8, 0};

        er_text_add(&t, c->root);
        er_text_add(&t, parts[i]);
        l->used += t.len;
        rdzv_txn_add_op(
            l, (struct er_store_op){.kind = ER_OP_DELETE, .key = {t.at, t.len}, .prefix = true});
    }
    rdzv_txn_add_op(l, (struct er_store_op){.kind = ER_OP_DELETE,
                                            .key = rdzv_txn_key_of(c, l, ER_KEY_FENCE, 0, "")});
    rdzv_txn_add_op(l, (struct er_store_op){.kind = ER_OP_DELETE,
                                            .key = rdzv_txn_key_of(c, l, ER_KEY_SPEC_NEXT, 0, "")});
    drop_overrides(c, l);
    if (c->opts.new_run == ER_NEW_RUN_FRESH)
        rdzv_txn_add_op(l, (struct er_store_op){.kind = ER_OP_DELETE,
                                                .key = rdzv_txn_key_of(c, l, ER_KEY_CKPT, 0, "")});
}

/* Numbers go on across runs. */
void rdzv_send_run(struct er_rdzv *c)
{
    struct er_rdzv_lane *l = rdzv_txn_begin(c, ER_LANE_OWN, ER_TXN_RUN);
    struct er_bytes spec = rdzv_txn_key_of(c, l, ER_KEY_SPEC, 0, "");
    struct er_bytes world = rdzv_txn_key_of(c, l, ER_KEY_WORLD, 0, "");
    struct er_bytes leader = rdzv_txn_key_of(c, l, ER_KEY_LEADER, 0, "");
    struct er_bytes node = rdzv_txn_key_of(c, l, ER_KEY_NODE, 0, c->opts.node_id);
    struct er_bytes nodes = {node.data, node.len - strlen(c->opts.node_id)};
    struct er_job_record w;

    first_world(c, &w);
    if (w.generation <= c->world.generation)
        w.generation = c->world.generation + 1;
    if (w.generation <= c->world.taken)
        w.generation = c->world.taken + 1;
    c->fresh_seq = w.seq;
    rdzv_txn_add_cmp(l, ER_CMP_MOD, world, c->k_world.mod_rev);
    rdzv_txn_add_cmp(l, ER_CMP_CREATE, nodes, 0)->prefix = true;
    rdzv_txn_put_world(l, world, &w);
    rdzv_txn_add_put(l, spec, c->spec, strlen(c->spec), 0);
    put_member(c, l, node);
    if (!c->k_leader.present) {
        rdzv_txn_add_cmp(l, ER_CMP_CREATE, leader, 0);
        put_leader(c, l, leader);
    }
    delete_old_run(c, l);
    rdzv_txn_add_read(l, world);
    rdzv_txn_add_read(l, leader);
    rdzv_txn_add_read(l, node);
    rdzv_txn_add_read(l, rdzv_txn_key_of(c, l, ER_KEY_ASSIGN, 0, c->opts.node_id));
    rdzv_txn_end(c, l);
}

void rdzv_send_result(struct er_rdzv *c)
{
    struct er_rdzv_lane *l = rdzv_txn_begin(c, ER_LANE_OWN, ER_TXN_RESULT);
    struct er_bytes fence = rdzv_txn_key_of(c, l, ER_KEY_FENCE, 0, "");
    struct er_bytes key =
        rdzv_txn_key_of(c, l, ER_KEY_RESULT, c->result_generation, c->opts.node_id);
    unsigned char bytes[ER_RESULT_BYTES_MAX];
    char text[ER_FENCE_MAX];
    size_t n = er_fence_format(c->result_generation, c->run_nonce, text);

    if (!er_bug(RESULT_NOT_FENCED))
        rdzv_txn_cmp_value(l, fence, text, n);
    rdzv_txn_add_cmp(l, ER_CMP_CREATE, key, 0);
    rdzv_txn_add_put(l, key, bytes, er_result_encode(&c->result, bytes), 0);
    rdzv_txn_end(c, l);
}

void rdzv_send_left(struct er_rdzv *c)
{
    struct er_rdzv_lane *l = rdzv_txn_begin(c, ER_LANE_OWN, ER_TXN_LEFT);
    struct er_bytes key = rdzv_txn_key_of(c, l, ER_KEY_NODE, 0, c->opts.node_id);

    rdzv_txn_add_cmp(l, ER_CMP_MOD, key, c->k_node.mod_rev);
    put_member(c, l, key);
    rdzv_txn_add_read(l, key);
    rdzv_txn_end(c, l);
}

/* 3 */
void rdzv_send_elect(struct er_rdzv *c)
{
    struct er_rdzv_lane *l = rdzv_txn_begin(c, ER_LANE_LEAD, ER_TXN_ELECT);
    struct er_bytes key = rdzv_txn_key_of(c, l, ER_KEY_LEADER, 0, "");

    rdzv_txn_add_cmp(l, ER_CMP_CREATE, key, 0);
    put_leader(c, l, key);
    rdzv_txn_add_read(l, key);
    rdzv_txn_add_read(l, rdzv_txn_key_of(c, l, ER_KEY_WORLD, 0, ""));
    rdzv_txn_end(c, l);
}
