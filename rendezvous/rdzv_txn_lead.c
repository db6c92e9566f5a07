#include "rendezvous/rdzv_txn_internal.h"

#include <string.h>

#include "base/cleanup.h"

/* The leader's transactions. */

/* That this node's session leads, by the record's nonce: a store that was wiped may give the same
 * revision to another one's, and to another world. */
static void cmp_leader(struct er_rdzv *c, struct er_rdzv_lane *l)
{
    rdzv_txn_cmp_value(l, rdzv_txn_key_of(c, l, ER_KEY_LEADER, 0, ""), c->leader_bytes,
                       c->leader_n);
}

/* What every transaction of a leader compares: world as it knows it, and its own session. */
static struct er_bytes guard(struct er_rdzv *c, struct er_rdzv_lane *l, uint64_t world_rev)
{
    struct er_bytes world = rdzv_txn_key_of(c, l, ER_KEY_WORLD, 0, "");

    if (er_bug(UNGUARDED))
        return world;
    rdzv_txn_add_cmp(l, ER_CMP_MOD, world, world_rev);
    cmp_leader(c, l);
    return world;
}

/* What all keys of a kind begin with. */
static struct er_bytes prefix_of(struct er_rdzv *c, struct er_rdzv_lane *l, enum er_key_kind kind)
{
    static const char *const heads[ER_KEY_KIND_COUNT] = {
        [ER_KEY_RESULT] = "j/r/",
        [ER_KEY_CTL] = "j/ctl/",
        [ER_KEY_KV] = "kv/",
        [ER_KEY_OP] = "op/",
    };
    struct er_text t = {rdzv_txn_room(l, ER_ROOT_MAX + 8), ER_ROOT_MAX + 8, 0};

    er_text_add(&t, c->root);
    er_text_add(&t, heads[kind]);
    l->used += t.len;
    return (struct er_bytes){t.at, t.len};
}

static void still_lost(struct er_rdzv *c, struct er_rdzv_lane *l)
{
    unsigned n = 0;

    for (size_t i = 0; i < c->view.n && n < ER_RDZV_LOST_MAX; i++) {
        const struct er_view_node *node = &c->view.nodes[i];

        if (!er_view_lost_member(&c->view, node))
            continue;
        n++;
        rdzv_txn_add_cmp(l, node->present ? ER_CMP_MOD : ER_CMP_CREATE,
                         rdzv_txn_key_of(c, l, ER_KEY_NODE, 0, node->id),
                         node->present ? node->mod_rev : 0);
    }
}

static void read_world(struct er_rdzv *c, struct er_rdzv_lane *l, struct er_bytes world)
{
    rdzv_txn_add_read(l, world);
    rdzv_txn_add_read(l, rdzv_txn_key_of(c, l, ER_KEY_LEADER, 0, ""));
}

/* A request is acted on once: it must still be there, and goes with the same transaction. */
static void take_ctl(struct er_rdzv *c, struct er_rdzv_lane *l, const char *id, uint64_t mod_rev)
{
    struct er_bytes key = rdzv_txn_key_of(c, l, ER_KEY_CTL, 0, id);

    if (er_bug(REQUEST_AGAIN))
        return;
    rdzv_txn_add_cmp(l, ER_CMP_MOD, key, mod_rev);
    rdzv_txn_add_op(l, (struct er_store_op){.kind = ER_OP_DELETE, .key = key});
}

void rdzv_send_world(struct er_rdzv *c, enum er_rdzv_txn kind, struct er_job_record *w, bool lost,
                     const struct er_view_ctl *ctl)
{
    struct er_rdzv_lane *l = rdzv_txn_begin(c, ER_LANE_LEAD, kind);
    struct er_bytes world = guard(c, l, c->view.world_rev);

    if (lost)
        still_lost(c, l);
    if (ctl)
        take_ctl(c, l, ctl->id, ctl->mod_rev);
    w->writer = c->opts.incarnation;
    w->seq = c->fresh_seq = ++c->seq;
    rdzv_txn_put_world(l, world, w);
    read_world(c, l, world);
    rdzv_txn_end(c, l);
}

/* The view takes it for written at once. That is as good as true: whether the record is the old
 * one or this one, the last sealed generation's membership reads the same from both, and the
 * generation of this one isn't sealed before all of its records are known to be there. */
static void put_assign(struct er_rdzv *c, struct er_rdzv_lane *l, struct er_view_node *n)
{
    struct er_assign a = {.generation = c->plan.generation,
                          .nonce = c->plan.nonce,
                          .incarnation = n->plan_incarnation,
                          .group_rank = n->plan_rank,
                          .first_rank = n->plan_first,
                          .role_first = n->plan_role_first,
                          .role_size = n->plan_role_size,
                          .drain = n->assign.drain,
                          .drain_code = n->assign.drain_code,
                          .drain_us = n->assign.drain_us,
                          .strikes = n->assign.strikes,
                          .strike_generation = n->assign.strike_generation,
                          .strike_age_us = n->assign.strike_age_us};
    unsigned char bytes[ER_ASSIGN_BYTES_MAX];
    struct er_view_part part;

    a.prev_rank = -1;
    if (er_view_part(&c->view, n, &part)) {
        a.prev_generation = c->view.world.last_sealed;
        a.prev_incarnation = part.incarnation;
        a.prev_nonce = part.nonce;
        a.prev_rank = part.rank;
        a.prev_first = part.first_rank;
        a.prev_role_first = part.role_first;
        a.prev_role_size = part.role_size;
    }
    n->assign = a;
    n->has_assign = true;
    er_view_changed(&c->view, n);
    rdzv_txn_add_put(l, rdzv_txn_key_of(c, l, ER_KEY_ASSIGN, 0, n->id), bytes,
                     er_assign_encode(&a, bytes), 0);
}

/* The next batch of the plan. */
void rdzv_send_assign(struct er_rdzv *c)
{
    struct er_rdzv_lane *l = rdzv_txn_begin(c, ER_LANE_BATCH, ER_TXN_ASSIGN);

    c->fresh_seq = 0; /* the next plan takes a new number */
    c->batches++;
    guard(c, l, c->plan.world_rev);
    /* Nodes may have moved since the last batch, hence twice round. */
    for (size_t k = 0; k < 2 * c->view.n && l->txn.then_n < ER_RDZV_BATCH && !rdzv_all_sent(c);
         k++) {
        struct er_view_node *n = &c->view.nodes[c->plan.at++ % c->view.n];

        if (n->plan_generation != c->plan.generation || n->plan_sent)
            continue;
        n->plan_sent = true;
        c->plan.sent++;
        put_assign(c, l, n);
    }
    rdzv_txn_end(c, l);
}

/* From the seal on the next spec, which is this leader's own, is in force. */
static void switch_spec(struct er_rdzv *c, struct er_rdzv_lane *l)
{
    struct er_bytes next = rdzv_txn_key_of(c, l, ER_KEY_SPEC_NEXT, 0, "");

    rdzv_txn_cmp_value(l, next, c->spec, strlen(c->spec));
    rdzv_txn_add_put(l, rdzv_txn_key_of(c, l, ER_KEY_SPEC, 0, ""), c->spec, strlen(c->spec), 0);
    rdzv_txn_add_op(l, (struct er_store_op){.kind = ER_OP_DELETE, .key = next});
    l->else_ops[l->txn.else_n++] = (struct er_store_op){.kind = ER_OP_RANGE, .key = next};
}

void rdzv_send_seal(struct er_rdzv *c, struct er_job_record *w)
{
    struct er_rdzv_lane *l = rdzv_txn_begin(c, ER_LANE_LEAD, ER_TXN_SEAL);
    struct er_bytes world = guard(c, l, c->plan.world_rev);
    char text[ER_FENCE_MAX];

    w->writer = c->opts.incarnation;
    w->seq = ++c->seq;
    rdzv_txn_put_world(l, world, w);
    rdzv_txn_add_put(l, rdzv_txn_key_of(c, l, ER_KEY_FENCE, 0, ""), text,
                     er_fence_format(w->generation, w->nonce, text), 0);
    if (w->spec != c->view.world.spec)
        switch_spec(c, l);
    read_world(c, l, world);
    rdzv_txn_end(c, l);
}

void rdzv_send_verdict(struct er_rdzv *c, struct er_job_record *w)
{
    struct er_rdzv_lane *l = rdzv_txn_begin(c, ER_LANE_LEAD, ER_TXN_VERDICT);
    struct er_bytes world = guard(c, l, c->view.world_rev);

    w->writer = c->opts.incarnation;
    w->seq = ++c->seq;
    rdzv_txn_put_world(l, world, w);
    if (!w->stop_us) /* else what is saved till then is committed */
        rdzv_txn_add_op(l, (struct er_store_op){.kind = ER_OP_DELETE,
                                                .key = rdzv_txn_key_of(c, l, ER_KEY_FENCE, 0, "")});
    rdzv_txn_add_op(l, (struct er_store_op){.kind = ER_OP_DELETE,
                                            .key = prefix_of(c, l, ER_KEY_CTL),
                                            .prefix = true});
    read_world(c, l, world);
    rdzv_txn_end(c, l);
}

/* ---- beside generations ---- */

void rdzv_send_handover(struct er_rdzv *c, const struct er_view_node *to)
{
    struct er_rdzv_lane *l = rdzv_txn_begin(c, ER_LANE_LEAD, ER_TXN_HANDOVER);
    struct er_bytes leader = rdzv_txn_key_of(c, l, ER_KEY_LEADER, 0, "");

    cmp_leader(c, l);
    rdzv_txn_add_cmp(l, ER_CMP_MOD, rdzv_txn_key_of(c, l, ER_KEY_NODE, 0, to->id), to->mod_rev);
    rdzv_txn_put_leader(c, l, leader, to->id, to->member.incarnation, to->lease);
    rdzv_txn_add_read(l, leader);
    rdzv_txn_end(c, l);
}

void rdzv_send_ctl(struct er_rdzv *c, const struct er_view_ctl *ctl, struct er_view_node *drain,
                   const char *release)
{
    struct er_rdzv_lane *l = rdzv_txn_begin(c, ER_LANE_LEAD, ER_TXN_CTL);
    struct er_assign a = {.prev_rank = -1};
    unsigned char bytes[ER_ASSIGN_BYTES_MAX];

    c->drain.ctl[0] = 0;
    guard(c, l, c->view.world_rev);
    take_ctl(c, l, ctl->id, ctl->mod_rev);
    if (drain && drain->has_assign)
        a = drain->assign;
    if (drain) { /* a write of an assignment: should it come late, a plan must not suffer */
        c->fresh_seq = 0;
        memcpy(c->drain.ctl, ctl->id, sizeof(c->drain.ctl));
        memcpy(c->drain.node, drain->id, sizeof(c->drain.node));
        c->drain.incarnation = a.drain = drain->member.incarnation;
        c->drain.code = a.drain_code = ctl->ctl.code;
        c->drain.time_us = a.drain_us =
            drain->member.protocol >= ER_PROTOCOL_DEADLINE ? ctl->ctl.deadline_us : 0;
        rdzv_txn_add_put(l, rdzv_txn_key_of(c, l, ER_KEY_ASSIGN, 0, drain->id), bytes,
                         er_assign_encode(&a, bytes), 0);
    }
    if (release)
        rdzv_txn_add_op(
            l, (struct er_store_op){.kind = ER_OP_DELETE,
                                    .key = rdzv_txn_key_of(c, l, ER_KEY_ASIDE, 0, release)});
    rdzv_txn_end(c, l);
}

static uint64_t ctl_rev(const struct er_rdzv *c, const char *id)
{
    for (size_t i = 0; i < c->view.ctl_n; i++) {
        if (strcmp(c->view.ctls[i].id, id) == 0)
            return c->view.ctls[i].mod_rev;
    }
    return 0;
}

void rdzv_send_aside(struct er_rdzv *c)
{
    struct er_rdzv_lane *l = rdzv_txn_begin(c, ER_LANE_LEAD, ER_TXN_ASIDE);
    unsigned char bytes[ER_ASIDE_BYTES_MAX];
    struct er_aside aside = {.reason = ""};
    struct er_text why = {aside.reason, sizeof(aside.reason), 0};

    er_text_add(&why, c->aside.reason);
    cmp_leader(c, l);
    c->aside.ctl_rev = c->aside.ctl[0] ? ctl_rev(c, c->aside.ctl) : 0;
    if (c->aside.ctl[0])
        take_ctl(c, l, c->aside.ctl, c->aside.ctl_rev);
    rdzv_txn_add_put(l, rdzv_txn_key_of(c, l, ER_KEY_ASIDE, 0, c->aside.node), bytes,
                     er_aside_encode(&aside, bytes), c->aside.lease);
    rdzv_txn_end(c, l);
}

static const enum er_key_kind leftovers[] = {ER_KEY_RESULT, ER_KEY_KV, ER_KEY_OP};

/* The first keys of each kind: numbers have a fixed width, so the oldest generations' come first.
 */
void rdzv_send_look(struct er_rdzv *c)
{
    struct er_rdzv_lane *l = rdzv_txn_begin(c, ER_LANE_LEAD, ER_TXN_LOOK);

    for (size_t i = 0; i < ER_ARRAY_N(leftovers); i++)
        rdzv_txn_add_op(l, (struct er_store_op){.kind = ER_OP_RANGE,
                                                .key = prefix_of(c, l, leftovers[i]),
                                                .prefix = true,
                                                .limit = ER_RDZV_CLEAN,
                                                .keys_only = true});
    rdzv_txn_end(c, l);
}

bool rdzv_send_clean(struct er_rdzv *c, const struct er_store_reply *found)
{
    struct er_rdzv_lane *l = NULL;
    struct er_key key;

    for (size_t i = 0; i < found->kv_n; i++) {
        er_key_parse(c->root, found->kvs[i].key, &key);
        if (key.kind == ER_KEY_OTHER || key.generation >= c->view.world.last_sealed)
            continue;
        if (!l) {
            l = rdzv_txn_begin(c, ER_LANE_LEAD, ER_TXN_CLEAN);
            cmp_leader(c, l);
        }
        if (l->txn.then_n == ER_STORE_TXN_OPS_MAX || l->used + ER_KEY_MAX > sizeof(l->arena))
            break;
        rdzv_txn_add_op(l, (struct er_store_op){.kind = ER_OP_DELETE,
                                                .key = rdzv_txn_keep(l, found->kvs[i].key.data,
                                                                     found->kvs[i].key.len)});
    }
    if (l)
        rdzv_txn_end(c, l);
    return l != NULL;
}
