#include "rendezvous/etcd_lease.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/list.h"
#include "rendezvous/etcd_ids.h"

struct lease {
    struct er_list node; /* in the list of its state, by at_us */
    uint64_t at_us;      /* GRANTED: its end; IDLE: when to ask next; ASKED: overdue then */
    uint64_t id;
    uint64_t ttl_us;      /* 0: not known yet */
    uint64_t answered_us; /* when the last answered request was sent */
    uint64_t asked_us;    /* 0: nothing is under way */
    uint64_t next_us;     /* when to ask next */
    bool kept;
    er_store_lease_fn lost;
    void *user;
};

struct er_etcd_leases {
    struct er_list granted, idle, asked; /* not kept; kept; kept, and an answer is due */
    struct er_etcd_ids ids;
};

int er_etcd_leases_new(struct er_etcd_leases **ret)
{
    struct er_etcd_leases *ls = calloc(1, sizeof(*ls));

    if (!ls)
        return -ENOMEM;
    er_list_init(&ls->granted);
    er_list_init(&ls->idle);
    er_list_init(&ls->asked);
    *ret = ls;
    return 0;
}

static void lease_free(struct er_etcd_leases *ls, struct lease *l)
{
    er_etcd_ids_remove(&ls->ids, l->id);
    er_list_remove(&l->node);
    free(l);
}

void er_etcd_leases_free(struct er_etcd_leases *ls)
{
    if (!ls)
        return;
    for (size_t i = 0; i < 3; i++) {
        struct er_list *const lists[] = {&ls->granted, &ls->idle, &ls->asked};

        er_list_for_each_safe (node, lists[i])
            lease_free(ls, ER_LIST_ITEM(node, struct lease, node));
    }
    er_etcd_ids_done(&ls->ids);
    free(ls);
}

static uint64_t overdue_at(const struct lease *l)
{
    uint64_t patience = l->ttl_us / 6;

    return er_deadline_in(l->asked_us,
                          patience > ER_ETCD_OVERDUE_MIN_US ? patience : ER_ETCD_OVERDUE_MIN_US);
}

/* By time; mostly it is the last. */
static void insert(struct er_list *list, struct lease *l)
{
    struct er_list *before;

    er_list_remove(&l->node);
    before = list->prev;
    while (before != list && ER_LIST_ITEM(before, struct lease, node)->at_us > l->at_us)
        before = before->prev;
    er_list_push_back(before->next, &l->node);
}

/* Into the list of its state. */
static void settle(struct er_etcd_leases *ls, struct lease *l)
{
    l->at_us = !l->kept      ? er_deadline_in(l->answered_us, l->ttl_us)
               : l->asked_us ? overdue_at(l)
                             : l->next_us;
    insert(!l->kept ? &ls->granted : l->asked_us ? &ls->asked : &ls->idle, l);
}

static struct lease *first(const struct er_list *list)
{
    return er_list_empty(list) ? NULL : ER_LIST_ITEM(list->next, struct lease, node);
}

static struct lease *find(const struct er_etcd_leases *ls, uint64_t id)
{
    return er_etcd_ids_get(&ls->ids, id);
}

static int find_or_add(struct er_etcd_leases *ls, uint64_t id, struct lease **ret)
{
    struct lease *l = find(ls, id);

    if (!l) {
        if (ls->ids.n == ER_ETCD_LEASES_MAX)
            return ER_E_LIMIT;
        l = calloc(1, sizeof(*l));
        if (!l || er_etcd_ids_put(&ls->ids, id, l) < 0) {
            free(l);
            return -ENOMEM;
        }
        l->id = id;
        er_list_init(&l->node);
    }
    *ret = l;
    return 0;
}

/* Granted, but never kept. */
static void forget_expired(struct er_etcd_leases *ls, uint64_t now_us)
{
    struct lease *l;

    while ((l = first(&ls->granted)) && l->at_us < now_us)
        lease_free(ls, l);
}

int er_etcd_leases_granted(struct er_etcd_leases *ls, uint64_t id, uint64_t ttl_us,
                           uint64_t sent_us)
{
    struct lease *l = NULL;
    int rc;

    forget_expired(ls, sent_us);
    rc = find_or_add(ls, id, &l);
    if (rc < 0)
        return rc;
    l->ttl_us = ttl_us;
    l->answered_us = sent_us;
    l->next_us = er_deadline_in(sent_us, ttl_us / 3);
    settle(ls, l);
    return 0;
}

int er_etcd_leases_keep(struct er_etcd_leases *ls, uint64_t id, uint64_t now_us,
                        er_store_lease_fn lost, void *user)
{
    struct lease *l = NULL;
    int rc = find_or_add(ls, id, &l);

    if (rc < 0)
        return rc;
    if (l->ttl_us == 0)
        l->next_us = now_us;
    l->kept = true;
    l->lost = lost;
    l->user = user;
    settle(ls, l);
    return 0;
}

void er_etcd_leases_remove(struct er_etcd_leases *ls, uint64_t id)
{
    struct lease *l = find(ls, id);

    if (l)
        lease_free(ls, l);
}

bool er_etcd_leases_any(const struct er_etcd_leases *ls)
{
    return first(&ls->idle) || first(&ls->asked);
}

void er_etcd_leases_connected(struct er_etcd_leases *ls, uint64_t now_us)
{
    struct lease *l;

    while ((l = first(&ls->asked))) {
        l->asked_us = 0;
        l->next_us = l->at_us = now_us;
        er_list_remove(&l->node);
        er_list_push_back(ls->idle.next, &l->node); /* at the front, without looking */
    }
}

bool er_etcd_leases_next(struct er_etcd_leases *ls, uint64_t now_us, uint64_t *ret_id)
{
    struct lease *l = first(&ls->idle);

    if (!l || l->at_us > now_us)
        return false;
    l->asked_us = now_us ? now_us : 1;
    settle(ls, l);
    *ret_id = l->id;
    return true;
}

uint64_t er_etcd_leases_asked(const struct er_etcd_leases *ls, uint64_t id)
{
    const struct lease *l = find(ls, id);

    return l ? l->asked_us : 0;
}

void er_etcd_leases_answer(struct er_etcd_leases *ls, uint64_t id, uint64_t ttl_us, uint64_t now_us)
{
    struct lease *l = find(ls, id);

    if (!l)
        return;
    if (ttl_us == 0) {
        struct lease was = *l;

        lease_free(ls, l);
        if (was.kept)
            was.lost(was.user, -ENOENT, was.id, was.ttl_us);
        return;
    }
    l->ttl_us = ttl_us;
    l->answered_us = l->asked_us ? l->asked_us : l->answered_us;
    l->asked_us = 0;
    l->next_us = er_deadline_in(l->answered_us ? l->answered_us : now_us, ttl_us / 3);
    settle(ls, l);
}

uint64_t er_etcd_leases_deadline(const struct er_etcd_leases *ls)
{
    const struct lease *idle = first(&ls->idle), *asked = first(&ls->asked);
    uint64_t at = idle ? idle->at_us : ER_FOREVER;

    return asked && asked->at_us < at ? asked->at_us : at;
}

bool er_etcd_leases_overdue(const struct er_etcd_leases *ls, uint64_t now_us)
{
    const struct lease *asked = first(&ls->asked);

    return asked && asked->at_us <= now_us;
}

bool er_etcd_leases_bear(struct er_etcd_leases *ls, uint64_t now_us)
{
    struct lease *l;

    while ((l = first(&ls->asked)) && l->at_us <= now_us) {
        uint64_t limit = er_deadline_in(l->asked_us, l->ttl_us / 2);

        if (limit <= now_us)
            return false;
        l->at_us = er_deadline_in(now_us, ER_ETCD_OVERDUE_MIN_US);
        l->at_us = l->at_us < limit ? l->at_us : limit;
        insert(&ls->asked, l);
    }
    return true;
}

uint64_t er_etcd_leases_until(const struct er_etcd_leases *ls, uint64_t id)
{
    const struct lease *l = find(ls, id);

    return l && l->ttl_us && l->answered_us ? er_deadline_in(l->answered_us, l->ttl_us) : 0;
}
