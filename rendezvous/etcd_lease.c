#include "rendezvous/etcd_lease.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/list.h"

struct lease {
    struct er_list node;
    uint64_t id;
    uint64_t ttl_us;      /* 0: not known yet */
    uint64_t answered_us; /* when the last answered request was sent */
    uint64_t asked_us;    /* 0: nothing is under way */
    uint64_t next_us;     /* when to ask next */
    bool kept, dead;
    er_store_lease_fn lost;
    void *user;
};

struct er_etcd_leases {
    struct er_list list;
    size_t n;
    bool busy; /* in a callback: nothing is freed */
};

int er_etcd_leases_new(struct er_etcd_leases **ret)
{
    struct er_etcd_leases *ls = calloc(1, sizeof(*ls));

    if (!ls)
        return -ENOMEM;
    er_list_init(&ls->list);
    *ret = ls;
    return 0;
}

static void lease_free(struct er_etcd_leases *ls, struct lease *l)
{
    er_list_remove(&l->node);
    free(l);
    ls->n--;
}

void er_etcd_leases_free(struct er_etcd_leases *ls)
{
    if (!ls)
        return;
    er_list_for_each_safe (node, &ls->list)
        lease_free(ls, ER_LIST_ITEM(node, struct lease, node));
    free(ls);
}

static void reap(struct er_etcd_leases *ls)
{
    if (ls->busy)
        return;
    er_list_for_each_safe (node, &ls->list) {
        struct lease *l = ER_LIST_ITEM(node, struct lease, node);

        if (l->dead)
            lease_free(ls, l);
    }
}

static struct lease *find(const struct er_etcd_leases *ls, uint64_t id)
{
    er_list_for_each (node, &ls->list) {
        struct lease *l = ER_LIST_ITEM(node, struct lease, node);

        if (l->id == id && !l->dead)
            return l;
    }
    return NULL;
}

static int find_or_add(struct er_etcd_leases *ls, uint64_t id, struct lease **ret)
{
    struct lease *l = find(ls, id);

    if (!l) {
        if (ls->n == ER_ETCD_LEASES_MAX)
            return ER_E_LIMIT;
        l = calloc(1, sizeof(*l));
        if (!l)
            return -ENOMEM;
        l->id = id;
        er_list_push_back(&ls->list, &l->node);
        ls->n++;
    }
    *ret = l;
    return 0;
}

/* Granted, but never kept. */
static void forget_expired(struct er_etcd_leases *ls, uint64_t now_us)
{
    er_list_for_each (node, &ls->list) {
        struct lease *l = ER_LIST_ITEM(node, struct lease, node);

        l->dead = l->dead || (!l->kept && er_deadline_in(l->answered_us, l->ttl_us) < now_us);
    }
    reap(ls);
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
    return 0;
}

void er_etcd_leases_remove(struct er_etcd_leases *ls, uint64_t id)
{
    struct lease *l = find(ls, id);

    if (l)
        l->dead = true;
    reap(ls);
}

bool er_etcd_leases_any(const struct er_etcd_leases *ls)
{
    er_list_for_each (node, &ls->list) {
        const struct lease *l = ER_LIST_ITEM(node, struct lease, node);

        if (l->kept && !l->dead)
            return true;
    }
    return false;
}

void er_etcd_leases_connected(struct er_etcd_leases *ls, uint64_t now_us)
{
    er_list_for_each (node, &ls->list) {
        struct lease *l = ER_LIST_ITEM(node, struct lease, node);

        if (l->asked_us)
            l->next_us = now_us;
        l->asked_us = 0;
    }
}

bool er_etcd_leases_next(struct er_etcd_leases *ls, uint64_t now_us, uint64_t *ret_id)
{
    er_list_for_each (node, &ls->list) {
        struct lease *l = ER_LIST_ITEM(node, struct lease, node);

        if (l->dead || !l->kept || l->asked_us || l->next_us > now_us)
            continue;
        l->asked_us = now_us ? now_us : 1;
        *ret_id = l->id;
        return true;
    }
    return false;
}

uint64_t er_etcd_leases_asked(const struct er_etcd_leases *ls, uint64_t id)
{
    const struct lease *l = find(ls, id);

    return l ? l->asked_us : 0;
}

static void tell_lost(struct er_etcd_leases *ls, struct lease *l)
{
    bool was_busy = ls->busy;

    l->dead = true;
    if (!l->kept)
        return;
    ls->busy = true;
    l->lost(l->user, -ENOENT, l->id, l->ttl_us);
    ls->busy = was_busy;
}

void er_etcd_leases_answer(struct er_etcd_leases *ls, uint64_t id, uint64_t ttl_us, uint64_t now_us)
{
    struct lease *l = find(ls, id);

    if (!l)
        return;
    if (ttl_us == 0) {
        tell_lost(ls, l);
        reap(ls);
        return;
    }
    l->ttl_us = ttl_us;
    l->answered_us = l->asked_us ? l->asked_us : l->answered_us;
    l->asked_us = 0;
    l->next_us = er_deadline_in(l->answered_us ? l->answered_us : now_us, ttl_us / 3);
}

static uint64_t overdue_at(const struct lease *l)
{
    uint64_t patience = l->ttl_us / 6;

    return er_deadline_in(l->asked_us,
                          patience > ER_ETCD_OVERDUE_MIN_US ? patience : ER_ETCD_OVERDUE_MIN_US);
}

uint64_t er_etcd_leases_deadline(const struct er_etcd_leases *ls)
{
    uint64_t at = ER_FOREVER;

    er_list_for_each (node, &ls->list) {
        const struct lease *l = ER_LIST_ITEM(node, struct lease, node);
        uint64_t mine = l->asked_us ? overdue_at(l) : l->next_us;

        if (l->kept && !l->dead && mine < at)
            at = mine;
    }
    return at;
}

bool er_etcd_leases_overdue(const struct er_etcd_leases *ls, uint64_t now_us)
{
    er_list_for_each (node, &ls->list) {
        const struct lease *l = ER_LIST_ITEM(node, struct lease, node);

        if (l->kept && !l->dead && l->asked_us && overdue_at(l) <= now_us)
            return true;
    }
    return false;
}

uint64_t er_etcd_leases_until(const struct er_etcd_leases *ls, uint64_t id)
{
    const struct lease *l = find(ls, id);

    return l && l->ttl_us && l->answered_us ? er_deadline_in(l->answered_us, l->ttl_us) : 0;
}
