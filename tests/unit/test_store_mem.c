#include "rendezvous/store_mem.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"

/* What the contract suite cannot ask of a real store: faults, virtual time, compaction. */

struct heard {
    unsigned n, stale;
    int rc;
    bool succeeded;
    uint64_t lease;
};

static struct er_bytes b(const char *text)
{
    return (struct er_bytes){text, strlen(text)};
}

static void on_txn(void *user, int rc, const struct er_store_reply *reply)
{
    struct heard *h = user;

    h->n++;
    h->rc = rc;
    h->succeeded = reply && reply->succeeded;
}

static void on_lease(void *user, int rc, uint64_t lease, uint64_t ttl_us)
{
    struct heard *h = user;

    h->n++;
    h->rc = rc;
    h->lease = lease;
}

static void on_watch(void *user, int rc, const struct er_store_event *events, size_t n,
                     uint64_t revision)
{
    struct heard *h = user;

    h->n += (unsigned)n;
    h->stale += rc == ER_E_STALE;
}

static void put(struct er_store *s, const char *key, const char *value, uint64_t lease,
                struct heard *h)
{
    struct er_store_op op = {.kind = ER_OP_PUT, .key = b(key), .value = b(value), .lease = lease};
    struct er_store_txn txn = {.then_ops = &op, .then_n = 1};

    cr_assert_eq(s->ops->txn(s, &txn, on_txn, h), 0);
}

static struct er_store *open_store(void)
{
    struct er_store *s = NULL;

    cr_assert_eq(er_store_mem_new(&s, NULL), 0);
    return s;
}

static bool there(struct er_store *s, const char *key)
{
    return er_store_mem_peek(s, b(key)) != NULL;
}

Test(store_mem, ambiguous_answers_hide_what_happened)
{
    static const struct {
        enum er_store_mem_fault fault;
        int rc;
        bool now, later;
    } cases[] = {{ER_FAULT_LOST_REPLY, ER_E_AMBIGUOUS, true, true},
                 {ER_FAULT_LATE, ER_E_AMBIGUOUS, false, true},
                 {ER_FAULT_LOST, ER_E_AMBIGUOUS, false, false},
                 {ER_FAULT_REFUSED, -ENOTCONN, false, false}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct er_store *s = open_store();
        struct heard h = {0};

        er_store_mem_fault(s, cases[i].fault, 1000);
        put(s, "k", "v", 0, &h);
        s->ops->dispatch(s, 10);
        cr_assert_eq(h.rc, cases[i].rc);
        cr_assert_eq(there(s, "k"), cases[i].now);
        s->ops->dispatch(s, 2000);
        cr_assert_eq(there(s, "k"), cases[i].later);
        put(s, "l", "v", 0, &h);
        s->ops->dispatch(s, 2000);
        cr_assert_eq(h.rc, 0);
        s->ops->free(s);
    }
}

Test(store_mem, a_freed_clients_lease_ends_one_ttl_later)
{
    struct er_store *s = open_store(), *c = NULL;
    struct heard h = {0};

    cr_assert_eq(er_store_mem_client(s, &c, NULL), 0);
    c->ops->lease_grant(c, 5, 1000, on_lease, &h);
    c->ops->lease_keep(c, 5, on_lease, &h);
    put(c, "k", "v", 5, &h);
    c->ops->dispatch(c, 100000);
    cr_assert(there(s, "k"));
    cr_assert_eq(c->ops->deadline(c), ER_FOREVER);
    c->ops->free(c);
    cr_assert_eq(s->ops->deadline(s), 101000u);
    s->ops->dispatch(s, 100999);
    cr_assert(there(s, "k"));
    s->ops->dispatch(s, 101000);
    cr_assert_not(there(s, "k"));
    s->ops->free(s);
}

Test(store_mem, a_cut_client_loses_its_lease_and_hears_of_it_later)
{
    struct er_store *s = open_store();
    struct heard h = {0}, lost = {0};

    s->ops->lease_grant(s, 5, 1000, on_lease, &h);
    s->ops->lease_keep(s, 5, on_lease, &lost);
    s->ops->dispatch(s, 10);
    er_store_mem_cut(s, true);
    put(s, "k", "v", 0, &h);
    s->ops->dispatch(s, 10);
    cr_assert_eq(h.rc, -ENOTCONN);
    s->ops->dispatch(s, 5000);
    cr_assert_eq(lost.n, 0u);
    er_store_mem_cut(s, false);
    s->ops->dispatch(s, 5000);
    cr_assert_eq(lost.n, 1u);
    cr_assert_eq(lost.lease, 5u);
    s->ops->free(s);
}

Test(store_mem, a_short_cut_keeps_the_lease)
{
    struct er_store *s = open_store();
    struct heard h = {0}, lost = {0};

    s->ops->lease_grant(s, 5, 1000, on_lease, &h);
    s->ops->lease_keep(s, 5, on_lease, &lost);
    er_store_mem_cut(s, true);
    s->ops->dispatch(s, 999);
    er_store_mem_cut(s, false);
    s->ops->dispatch(s, 5000);
    cr_assert_eq(lost.n, 0u);
    s->ops->free(s);
}

Test(store_mem, dropped_lease_is_told_once)
{
    struct er_store *s = open_store();
    struct heard h = {0}, lost = {0};

    s->ops->lease_grant(s, 5, 1000, on_lease, &h);
    s->ops->lease_keep(s, 5, on_lease, &lost);
    put(s, "k", "v", 5, &h);
    cr_assert_eq(er_store_mem_drop_lease(s, 5), 0);
    cr_assert_eq(er_store_mem_drop_lease(s, 5), -ENOENT);
    s->ops->dispatch(s, 1);
    cr_assert_eq(lost.n, 1u);
    cr_assert_not(there(s, "k"));
    s->ops->free(s);
}

Test(store_mem, watches_behind_the_compaction_are_stale)
{
    struct er_store *s = open_store();
    struct heard h = {0}, old = {0}, now = {0};
    uint64_t id;

    put(s, "k", "1", 0, &h);
    put(s, "k", "2", 0, &h);
    er_store_mem_compact(s, er_store_mem_revision(s));
    s->ops->watch(s, b("k"), false, 1, on_watch, &old, &id);
    s->ops->watch(s, b("k"), false, 0, on_watch, &now, &id);
    put(s, "k", "3", 0, &h);
    s->ops->dispatch(s, 1);
    cr_assert_eq(old.stale, 1u);
    cr_assert_eq(old.n, 0u);
    cr_assert_eq(now.n, 1u);
    cr_assert_eq(now.stale, 0u);
    s->ops->free(s);
}

Test(store_mem, wiped_store_is_another_one)
{
    struct er_store *s = open_store();
    struct heard h = {0}, watch = {0}, lost = {0}, again = {0};
    uint64_t id;

    s->ops->lease_grant(s, 5, 1000000, on_lease, &h);
    s->ops->dispatch(s, 1);
    s->ops->lease_keep(s, 5, on_lease, &lost);
    put(s, "k", "1", 5, &h);
    s->ops->dispatch(s, 2);
    s->ops->watch(s, b("k"), false, 0, on_watch, &watch, &id);
    er_store_mem_fault(s, ER_FAULT_DUPLICATE, 10);
    put(s, "k", "2", 5, &h); /* its answer is under way, and it is applied again later */
    er_store_mem_wipe(s);
    cr_assert_eq(er_store_mem_revision(s), 1u);
    cr_assert_not(there(s, "k"));
    s->ops->dispatch(s, 20);
    cr_assert_eq(h.rc, ER_E_AMBIGUOUS);
    cr_assert_eq(watch.stale, 1u);
    cr_assert_eq(watch.n, 0u);
    cr_assert_eq(lost.lease, 5u);
    cr_assert_not(there(s, "k"));
    s->ops->watch(s, b("k"), false, ER_STORE_OPENED, on_watch, &again, &id);
    put(s, "k", "3", 0, &h);
    s->ops->dispatch(s, 21);
    cr_assert_eq(h.rc, 0);
    cr_assert_eq(again.n, 1u);
    s->ops->free(s);
}

Test(store_mem, history_is_bounded)
{
    struct er_store *s = open_store();
    struct heard h = {0}, old = {0};
    uint64_t id;

    s->ops->watch(s, b("k"), false, 1, on_watch, &old, &id);
    for (unsigned i = 0; i < ER_STORE_MEM_HISTORY_MAX + 10; i++)
        put(s, "k", "v", 0, &h);
    s->ops->dispatch(s, 1);
    cr_assert_eq(old.stale, 1u);
    s->ops->free(s);
}

Test(store_mem, delays_hold_answers_and_events_back)
{
    struct er_store *s = open_store();
    struct heard h = {0}, w = {0};
    uint64_t id;

    er_store_mem_delay(s, 100, 300);
    s->ops->watch(s, b("k"), false, 0, on_watch, &w, &id);
    put(s, "k", "v", 0, &h);
    cr_assert_not(s->ops->pending(s));
    cr_assert_eq(s->ops->deadline(s), 100u);
    s->ops->dispatch(s, 100);
    cr_assert_eq(h.n, 1u);
    cr_assert_eq(w.n, 0u);
    cr_assert_eq(s->ops->deadline(s), 300u);
    s->ops->dispatch(s, 300);
    cr_assert_eq(w.n, 1u);
    s->ops->free(s);
}
