/* The small decisions of the etcd client: what a status means, where to go next, when to renew. */
#include <criterion/criterion.h>

#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "rendezvous/etcd_ids.h"
#include "rendezvous/etcd_lease.h"
#include "rendezvous/etcd_order.h"
#include "rendezvous/etcd_rotate.h"
#include "rendezvous/etcd_status.h"

/* ---- status ---- */

Test(etcd_status, codes_and_texts_decide_together)
{
    static const struct {
        int code;
        const char *text;
        enum er_etcd_class class;
        int rc;
        bool unknown, server;
    } rows[] = {
        {0, "", ER_ETCD_OK, 0, false, true},
        {2, "etcdserver: too many requests", ER_ETCD_BUSY, 0, false, true},
        {8, "etcdserver: too many requests", ER_ETCD_BUSY, 0, false, true},
        {2, "something else", ER_ETCD_CUT, 0, true, false},
        {3, "etcdserver: request is too large", ER_ETCD_FINAL, -E2BIG, false, true},
        {3, "etcdserver: duplicate key given in txn request", ER_ETCD_FINAL, -EINVAL, false, true},
        {3, "etcdserver: authentication failed, invalid user ID or password", ER_ETCD_FINAL,
         -EACCES, false, true},
        {4, "Deadline Exceeded", ER_ETCD_TIMEOUT, 0, true, false},
        {5, "etcdserver: requested lease not found", ER_ETCD_FINAL, -ENOENT, false, true},
        {7, "etcdserver: permission denied", ER_ETCD_FINAL, -EACCES, false, true},
        {8, "etcdserver: mvcc: database space exceeded", ER_ETCD_FINAL, -ENOSPC, false, true},
        {9, "etcdserver: lease already exists", ER_ETCD_FINAL, -EEXIST, false, true},
        {9, "etcdserver: authentication is not enabled", ER_ETCD_NO_AUTH, 0, false, true},
        {14, "etcdserver: no leader", ER_ETCD_NO_LEADER, 0, false, true},
        {14, "etcdserver: request timed out", ER_ETCD_TIMEOUT, 0, true, true},
        {14, "Socket closed", ER_ETCD_CUT, 0, true, false},
        {14, "failed to connect to all addresses; last error: UNKNOWN: Connection refused",
         ER_ETCD_UNREACHABLE, 0, false, false},
        {14,
         "failed to connect to all addresses; last error: UNKNOWN: Ssl handshake failed: "
         "SSL_ERROR_SSL: certificate verify failed",
         ER_ETCD_REFUSED, -EACCES, false, false},
        {14, "SSL_ERROR_SSL: tlsv13 alert certificate required", ER_ETCD_REFUSED, -EACCES, true,
         false},
        {16, "etcdserver: invalid auth token", ER_ETCD_BAD_TOKEN, 0, false, true},
        {12, "unknown service", ER_ETCD_FINAL, ER_E_UNSUPPORTED, false, false},
        {77, "", ER_ETCD_CUT, 0, true, false},
    };

    for (size_t i = 0; i < ER_ARRAY_N(rows); i++) {
        struct er_etcd_verdict v = er_etcd_judge(rows[i].code, rows[i].text);

        cr_assert_eq(v.class, rows[i].class, "%d '%s' is %s", rows[i].code, rows[i].text,
                     er_etcd_class_name(v.class));
        cr_assert_eq(v.rc, rows[i].rc, "%s", rows[i].text);
        cr_assert_eq(v.applied_unknown, rows[i].unknown, "%s", rows[i].text);
        cr_assert_eq(v.from_server, rows[i].server, "%s", rows[i].text);
    }
}

/* ---- rotation ---- */

Test(etcd_rotate, every_endpoint_is_tried_before_one_is_tried_again)
{
    for (uint64_t seed = 0; seed < 50; seed++) {
        struct er_etcd_rotate r;
        unsigned seen = 0;
        uint64_t now = 1000000;

        er_etcd_rotate_init(&r, 5, seed);
        for (int i = 0; i < 5; i++) {
            cr_assert(!er_etcd_rotate_all_failed(&r));
            er_etcd_rotate_try(&r, now);
            seen |= 1u << er_etcd_rotate_current(&r);
            now = er_etcd_rotate_fail(&r, now);
        }
        cr_assert_eq(seen, 31u);
        cr_assert(er_etcd_rotate_all_failed(&r));
    }
}

Test(etcd_rotate, clients_start_at_different_endpoints)
{
    unsigned starts[3] = {0};
    struct er_etcd_rotate r;

    for (uint64_t seed = 0; seed < 300; seed++) {
        er_etcd_rotate_init(&r, 3, seed);
        starts[er_etcd_rotate_current(&r)]++;
    }
    for (int i = 0; i < 3; i++)
        cr_assert_gt(starts[i], 60u);
}

Test(etcd_rotate, the_first_change_is_at_once_later_ones_are_spaced)
{
    struct er_etcd_rotate r;
    uint64_t next;

    er_etcd_rotate_init(&r, 3, 1);
    er_etcd_rotate_try(&r, 1000);
    er_etcd_rotate_up(&r);
    next = er_etcd_rotate_fail(&r, 5000000); /* had served for long */
    cr_assert_eq(next, 5000000u);
    er_etcd_rotate_try(&r, next);
    next = er_etcd_rotate_fail(&r, 5000100); /* refused at once */
    cr_assert_eq(next, 5000000u + ER_ETCD_ROTATE_SPACING_US);
}

Test(etcd_rotate, rounds_without_success_wait_longer_up_to_a_limit)
{
    struct er_etcd_rotate r;
    uint64_t now = 1000000, before = 0;

    er_etcd_rotate_init(&r, 1, 1);
    for (int i = 0; i < 40; i++) {
        uint64_t next;

        er_etcd_rotate_try(&r, now);
        next = er_etcd_rotate_fail(&r, now);
        cr_assert_geq(next - now, ER_ETCD_ROTATE_SPACING_US * 3 / 4);
        cr_assert_leq(next - now, ER_ETCD_ROTATE_MAX_US * 5 / 4);
        before = next - now;
        now = next;
    }
    cr_assert_geq(before, ER_ETCD_ROTATE_MAX_US * 3 / 4);
}

/* ---- ids ---- */

Test(etcd_ids, every_item_is_found_until_it_is_removed)
{
    enum { N = 2000 };
    static uint64_t there[N]; /* 0: removed */
    struct er_etcd_ids ids = {.n = 0};
    struct er_rand r;

    er_rand_init(&r, 1);
    cr_assert_null(er_etcd_ids_get(&ids, 1));
    er_etcd_ids_remove(&ids, 1);
    for (size_t i = 0; i < N; i++) {
        there[i] = i % 2 ? i + 1 : er_rand_next(&r); /* dense and wide ones */
        cr_assert_eq(er_etcd_ids_put(&ids, there[i], &there[i]), 0);
        if (i % 3 == 0) {
            size_t gone = er_rand_below(&r, i + 1);

            er_etcd_ids_remove(&ids, there[gone]);
            if (there[gone])
                cr_assert_null(er_etcd_ids_get(&ids, there[gone]));
            there[gone] = 0;
        }
    }
    for (size_t i = 0; i < N; i++) {
        if (there[i])
            cr_assert_eq(er_etcd_ids_get(&ids, there[i]), &there[i]);
    }
    er_etcd_ids_clear(&ids);
    cr_assert_null(er_etcd_ids_get(&ids, there[N - 1]));
    er_etcd_ids_done(&ids);
}

/* ---- leases ---- */

#define S ER_US_PER_S

static int lost_n;
static uint64_t lost_id;

static void on_lost(void *user, int rc, uint64_t lease, uint64_t ttl_us)
{
    cr_assert_eq(rc, -ENOENT);
    lost_id = lease;
    lost_n++;
    if (user)
        cr_assert_eq(er_etcd_leases_keep(user, lease + 1, 0, on_lost, NULL), 0);
}

static struct er_etcd_leases *leases_new(void)
{
    struct er_etcd_leases *ls = NULL;

    lost_n = 0;
    cr_assert_eq(er_etcd_leases_new(&ls), 0);
    return ls;
}

Test(etcd_lease, renewed_a_third_after_the_answered_request_was_sent)
{
    struct er_etcd_leases *ls = leases_new();
    uint64_t id = 0;

    cr_assert_eq(er_etcd_leases_deadline(ls), ER_FOREVER);
    cr_assert_eq(er_etcd_leases_granted(ls, 7, 6 * S, 100 * S), 0);
    cr_assert(!er_etcd_leases_any(ls));
    cr_assert_eq(er_etcd_leases_keep(ls, 7, 101 * S, on_lost, NULL), 0);
    cr_assert_eq(er_etcd_leases_deadline(ls), 102 * S);
    cr_assert(!er_etcd_leases_next(ls, 102 * S - 1, &id));
    cr_assert(er_etcd_leases_next(ls, 102 * S, &id));
    cr_assert_eq(id, 7);
    cr_assert(!er_etcd_leases_next(ls, 103 * S, &id), "asked already");
    cr_assert_eq(er_etcd_leases_until(ls, 7), 106 * S);
    er_etcd_leases_answer(ls, 7, 6 * S, 102 * S + S / 2);
    cr_assert_eq(er_etcd_leases_deadline(ls), 104 * S);
    cr_assert_eq(er_etcd_leases_until(ls, 7), 108 * S);
    er_etcd_leases_free(ls);
}

Test(etcd_lease, a_lease_of_unknown_ttl_is_asked_for_at_once)
{
    struct er_etcd_leases *ls = leases_new();
    uint64_t id = 0;

    cr_assert_eq(er_etcd_leases_keep(ls, 9, 50 * S, on_lost, NULL), 0);
    cr_assert(er_etcd_leases_next(ls, 50 * S, &id) && id == 9);
    cr_assert_eq(er_etcd_leases_until(ls, 9), 0u);
    er_etcd_leases_answer(ls, 9, 3 * S, 50 * S + 1);
    cr_assert_eq(er_etcd_leases_deadline(ls), 51 * S);
    er_etcd_leases_free(ls);
}

Test(etcd_lease, an_overdue_answer_is_told_and_asked_again_elsewhere)
{
    struct er_etcd_leases *ls = leases_new();
    uint64_t id = 0;

    er_etcd_leases_granted(ls, 1, 3 * S, 10 * S);
    er_etcd_leases_granted(ls, 2, 30 * S, 10 * S);
    er_etcd_leases_keep(ls, 1, 10 * S, on_lost, NULL);
    er_etcd_leases_keep(ls, 2, 10 * S, on_lost, NULL);
    cr_assert(er_etcd_leases_next(ls, 11 * S, &id) && id == 1);
    cr_assert(!er_etcd_leases_overdue(ls, 11 * S + 599999));
    cr_assert(er_etcd_leases_overdue(ls, 11 * S + 600000));
    cr_assert_eq(er_etcd_leases_deadline(ls), 11 * S + 600000);
    er_etcd_leases_connected(ls, 12 * S);
    cr_assert(!er_etcd_leases_overdue(ls, 12 * S));
    cr_assert(er_etcd_leases_next(ls, 12 * S, &id) && id == 1);
    er_etcd_leases_answer(ls, 1, 3 * S, 12 * S);
    /* a long lease has more patience: a sixth of its TTL */
    cr_assert(er_etcd_leases_next(ls, 20 * S, &id));
    cr_assert(er_etcd_leases_next(ls, 20 * S, &id));
    er_etcd_leases_answer(ls, 1, 3 * S, 20 * S);
    cr_assert(!er_etcd_leases_overdue(ls, 25 * S - 1));
    cr_assert(er_etcd_leases_overdue(ls, 25 * S));
    er_etcd_leases_free(ls);
}

Test(etcd_lease, a_slow_endpoint_is_waited_for_till_half_of_the_ttl)
{
    struct er_etcd_leases *ls = leases_new();
    uint64_t id = 0;

    er_etcd_leases_granted(ls, 1, 3 * S, 10 * S);
    er_etcd_leases_keep(ls, 1, 10 * S, on_lost, NULL);
    cr_assert(er_etcd_leases_next(ls, 11 * S, &id));
    cr_assert(er_etcd_leases_overdue(ls, 11 * S + 600000));
    cr_assert(er_etcd_leases_bear(ls, 11 * S + 600000));
    cr_assert(!er_etcd_leases_overdue(ls, 11 * S + 600000));
    cr_assert_eq(er_etcd_leases_deadline(ls), 12 * S + 200000);
    cr_assert(er_etcd_leases_bear(ls, 12 * S + 200000));
    cr_assert_eq(er_etcd_leases_deadline(ls), 12 * S + 500000);
    cr_assert(!er_etcd_leases_bear(ls, 12 * S + 500000));
    er_etcd_leases_free(ls);
}

Test(etcd_lease, loss_is_told_once_and_never_for_what_was_removed)
{
    struct er_etcd_leases *ls = leases_new();

    er_etcd_leases_keep(ls, 1, 0, on_lost, NULL);
    er_etcd_leases_keep(ls, 2, 0, on_lost, NULL);
    er_etcd_leases_remove(ls, 2);
    er_etcd_leases_answer(ls, 2, 0, 1);
    cr_assert_eq(lost_n, 0);
    er_etcd_leases_answer(ls, 1, 0, 1);
    er_etcd_leases_answer(ls, 1, 0, 2);
    cr_assert_eq(lost_n, 1);
    cr_assert_eq(lost_id, 1u);
    cr_assert(!er_etcd_leases_any(ls));
    er_etcd_leases_free(ls);
}

Test(etcd_lease, the_callback_may_keep_another_one)
{
    struct er_etcd_leases *ls = leases_new();

    er_etcd_leases_keep(ls, 1, 0, on_lost, ls);
    er_etcd_leases_answer(ls, 1, 0, 1);
    cr_assert(er_etcd_leases_any(ls));
    er_etcd_leases_free(ls);
}

Test(etcd_lease, granted_leases_that_nobody_keeps_are_forgotten)
{
    struct er_etcd_leases *ls = leases_new();

    er_etcd_leases_granted(ls, 1, 5 * S, 10 * S);
    er_etcd_leases_granted(ls, 2, 5 * S, 16 * S);
    cr_assert_eq(er_etcd_leases_until(ls, 1), 0u);
    cr_assert_eq(er_etcd_leases_until(ls, 2), 21 * S);
    er_etcd_leases_free(ls);
}

/* ---- order ---- */

static struct er_store_op op(enum er_store_op_kind kind, const char *key, bool prefix)
{
    return (struct er_store_op){.kind = kind, .key = {key, strlen(key)}, .prefix = prefix};
}

/* One operation and, when `compared` is given, one compare. */
static struct er_etcd_touch touch(struct er_store_op o, const char *compared)
{
    const struct er_store_cmp cmp = {.key = {compared, compared ? strlen(compared) : 0}};
    const struct er_store_txn txn = {&cmp, compared != NULL, &o, 1, NULL, 0};
    struct er_etcd_touch t = {.read_n = 0};

    cr_assert_eq(er_etcd_touch_init(&t, &txn), 0);
    return t;
}

Test(etcd_order, what_touches_a_written_key_waits)
{
    static const struct {
        enum er_store_op_kind a_kind, b_kind;
        const char *a, *a_cmp, *b, *b_cmp;
        bool a_prefix, b_prefix, conflict;
    } rows[] = {
        {ER_OP_PUT, ER_OP_PUT, "k", NULL, "k", NULL, false, false, true},
        {ER_OP_PUT, ER_OP_PUT, "k", NULL, "l", NULL, false, false, false},
        {ER_OP_PUT, ER_OP_RANGE, "k", NULL, "k", NULL, false, false, true},
        {ER_OP_RANGE, ER_OP_RANGE, "k", NULL, "k", NULL, false, false, false},
        {ER_OP_DELETE, ER_OP_RANGE, "k", NULL, "k", NULL, false, false, true},
        {ER_OP_PUT, ER_OP_PUT, "k", "world", "l", "world", false, false, false},
        {ER_OP_PUT, ER_OP_PUT, "world", NULL, "l", "world", false, false, true},
        {ER_OP_PUT, ER_OP_RANGE, "k", NULL, "x", NULL, false, true, true},
        {ER_OP_RANGE, ER_OP_RANGE, "k", NULL, "x", NULL, true, true, false},
        {ER_OP_DELETE, ER_OP_RANGE, "k", NULL, "x", NULL, true, false, true},
    };

    for (size_t i = 0; i < ER_ARRAY_N(rows); i++) {
        struct er_etcd_touch a =
            touch(op(rows[i].a_kind, rows[i].a, rows[i].a_prefix), rows[i].a_cmp);
        struct er_etcd_touch b =
            touch(op(rows[i].b_kind, rows[i].b, rows[i].b_prefix), rows[i].b_cmp);

        cr_assert_eq(er_etcd_touch_conflict(&a, &b), rows[i].conflict, "row %zu", i);
        cr_assert_eq(er_etcd_touch_conflict(&b, &a), rows[i].conflict, "row %zu", i);
        er_etcd_touch_done(&a);
        er_etcd_touch_done(&b);
    }
}
