#include "rendezvous/farewell.h"

#include <string.h>

#include "base/rand.h"

static void on_said(void *user, int rc, const struct er_store_reply *reply)
{
    struct er_farewell *f = user;

    f->done(f->user, rc);
}

/* Another incarnation than the one that died, leaving, with nothing left of what ran. */
static size_t make_record(struct er_farewell *f, struct er_member *m)
{
    m->incarnation = er_rand_mix(f->incarnation ^ f->seed) | 1;
    m->draining = true;
    m->planned = false;
    m->running = 0;
    m->port = 0;
    if (f->generation > m->left)
        m->left = f->generation;
    return er_member_encode(m, f->record);
}

static void say(struct er_farewell *f, const struct er_store_kv *node, struct er_member *m,
                const struct er_store_kv *leader)
{
    const struct er_bytes node_key = {f->node_key, f->node_n};
    const struct er_bytes leader_key = {f->leader_key, f->leader_n};
    const struct er_store_cmp cmps[] = {
        {.target = ER_CMP_MOD, .key = node_key, .rev = node->mod_rev},
        {.target = ER_CMP_MOD, .key = leader_key, .rev = leader ? leader->mod_rev : 0},
    };
    const struct er_store_op ops[] = {
        {.kind = ER_OP_PUT,
         .key = node_key,
         .value = {f->record, make_record(f, m)},
         .lease = node->lease},
        {.kind = ER_OP_DELETE, .key = leader_key},
    };
    const size_t n = leader ? 2 : 1;
    const struct er_store_txn txn = {.cmps = cmps, .cmp_n = n, .then_ops = ops, .then_n = n};
    int rc = f->store->ops->txn(f->store, &txn, on_said, f);

    if (rc < 0)
        f->done(f->user, rc);
}

/* Only about the agent that died: the next one may be there already. */
static void on_read(void *user, int rc, const struct er_store_reply *reply)
{
    struct er_farewell *f = user;
    const struct er_store_kv *leader = NULL;
    struct er_leader l;
    struct er_member m;

    if (rc || !reply->range_n[0] || er_member_parse(reply->kvs[0].value, &m, NULL) < 0 ||
        m.incarnation != f->incarnation || !reply->kvs[0].lease) {
        f->done(f->user, rc);
        return;
    }
    if (reply->range_n[1] && er_leader_parse(reply->kvs[1].value, &l, NULL) == 0 &&
        l.incarnation == f->incarnation)
        leader = &reply->kvs[1];
    say(f, &reply->kvs[0], &m, leader);
}

static void make_keys(struct er_farewell *f)
{
    struct er_key node = {.kind = ER_KEY_NODE}, leader = {.kind = ER_KEY_LEADER};
    struct er_text root = {f->root, sizeof(f->root), 0}, id = {node.name, sizeof(node.name), 0};

    er_text_add(&root, f->prefix);
    er_text_add(&root, "/");
    er_text_add(&root, f->job);
    er_text_add(&root, "/");
    er_text_add(&id, f->node_id);
    f->node_n = er_key_format(f->root, &node, f->node_key);
    f->leader_n = er_key_format(f->root, &leader, f->leader_key);
}

int er_farewell_begin(struct er_farewell *f)
{
    struct er_store_op ops[2] = {{.kind = ER_OP_RANGE}, {.kind = ER_OP_RANGE}};
    const struct er_store_txn txn = {.then_ops = ops, .then_n = 2};

    make_keys(f);
    ops[0].key = (struct er_bytes){f->node_key, f->node_n};
    ops[1].key = (struct er_bytes){f->leader_key, f->leader_n};
    return f->store->ops->txn(f->store, &txn, on_read, f);
}
