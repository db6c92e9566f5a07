/*
 * What every store must do, whoever implements the port. One program per store: a store joins with
 * a store_factory_*.c and one line in meson.build.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/contract/store_case.h"

static void put_then_range(void)
{
    struct answer p = do_put("k", "v", 0), g = do_get("k", false), none = do_get("absent", false);

    er_tap_check(p.rc == 0 && p.succeeded);
    er_tap_check(g.kv_n == 1 && strcmp(g.value[0], "v") == 0 && g.mod_rev[0] == p.revision);
    er_tap_check(none.rc == 0 && none.range_count == 1 && none.range_n[0] == 0);
}

static void revisions_create_and_modify(void)
{
    uint64_t first = do_put("k", "1", 0).revision, second = do_put("k", "2", 0).revision;
    struct answer g = do_get("k", false);

    er_tap_check(second > first);
    er_tap_check(g.create_rev[0] == first && g.mod_rev[0] == second);
    er_tap_check(do_get("k", false).revision == second); /* reading takes none */
}

static void compares_of_revisions_and_values(void)
{
    uint64_t rev = do_put("k", "m", 0).revision;

    er_tap_check(holds((struct er_store_cmp){.target = ER_CMP_CREATE, .key = b("k"), .rev = rev}));
    er_tap_check(holds((struct er_store_cmp){.target = ER_CMP_CREATE, .key = b("no"), .rev = 0}));
    er_tap_check(!holds((struct er_store_cmp){.target = ER_CMP_CREATE, .key = b("k"), .rev = 0}));
    er_tap_check(holds((struct er_store_cmp){.target = ER_CMP_MOD, .key = b("no"), .rev = 0}));
    er_tap_check(holds((struct er_store_cmp){
        .target = ER_CMP_MOD, .result = ER_CMP_LESS, .key = b("k"), .rev = rev + 1}));
    er_tap_check(holds((struct er_store_cmp){
        .target = ER_CMP_MOD, .result = ER_CMP_GREATER, .key = b("k"), .rev = rev - 1}));
    er_tap_check(
        holds((struct er_store_cmp){.target = ER_CMP_VALUE, .key = b("k"), .value = b("m")}));
    er_tap_check(holds((struct er_store_cmp){
        .target = ER_CMP_VALUE, .result = ER_CMP_NOT_EQUAL, .key = b("k"), .value = b("x")}));
}

static void value_of_a_missing_key_compares_false(void)
{
    er_tap_check(
        !holds((struct er_store_cmp){.target = ER_CMP_VALUE, .key = b("no"), .value = b("")}));
    er_tap_check(!holds((struct er_store_cmp){
        .target = ER_CMP_VALUE, .result = ER_CMP_NOT_EQUAL, .key = b("no"), .value = b("x")}));
}

static void prefix_compare_is_about_every_key(void)
{
    struct er_store_cmp empty = {.target = ER_CMP_CREATE, .key = b("p/"), .prefix = true};
    struct er_store_cmp old = {
        .target = ER_CMP_MOD, .result = ER_CMP_LESS, .key = b("p/"), .prefix = true};
    uint64_t rev;

    er_tap_check(holds(empty));
    rev = do_put("p/a", "1", 0).revision;
    er_tap_check(!holds(empty));
    old.rev = rev + 1;
    er_tap_check(holds(old));
    do_put("p/b", "1", 0);
    er_tap_check(!holds(old));
}

static void a_branch_is_taken_whole(void)
{
    struct er_store_cmp cmp = {.target = ER_CMP_CREATE, .key = b("k"), .rev = 0};
    struct er_store_op then_ops[] = {put("k", "1", 0), put("l", "2", 0), get("k", false)};
    struct er_store_op else_ops[] = {get("l", false), get("no", false), get("k", false)};
    struct answer a = txn(&cmp, 1, then_ops, 3, else_ops, 3);

    er_tap_check(a.succeeded && a.range_count == 1 && strcmp(a.value[0], "1") == 0);
    er_tap_check(a.mod_rev[0] == a.revision);
    a = txn(&cmp, 1, then_ops, 3, else_ops, 3);
    er_tap_check(!a.succeeded && a.range_count == 3 && a.kv_n == 2);
    er_tap_check(a.range_n[0] == 1 && a.range_n[1] == 0 && a.range_n[2] == 1);
    er_tap_check(strcmp(a.value[0], "2") == 0 && strcmp(a.value[1], "1") == 0);
}

static void ranges_are_sorted_and_prefixes_exact(void)
{
    struct answer a;

    do_put("p/b", "2", 0);
    do_put("p/a", "1", 0);
    do_put("p", "0", 0);
    do_put("q", "3", 0);
    a = do_get("p/", true);
    er_tap_check(a.kv_n == 2 && strcmp(a.key[0], "p/a") == 0 && strcmp(a.key[1], "p/b") == 0);
}

/* Every key of "p/", `limit` at a time, as of the first page's revision. */
static size_t read_in_pages(size_t limit, bool keys_only, char ret[KVS_MAX][64], bool *ret_values)
{
    struct er_store_op op = get("p/", true);
    size_t n = 0;

    op.limit = limit;
    op.keys_only = keys_only;
    *ret_values = true;
    for (;;) {
        struct answer a = txn(NULL, 0, &op, 1, NULL, 0);

        er_tap_require(a.rc == 0 && a.range_count == 1);
        for (size_t i = 0; i < a.kv_n && n < KVS_MAX; i++, n++) {
            snprintf(ret[n], 64, "%s", a.key[i]);
            *ret_values = *ret_values && a.value[i][0];
        }
        if (a.kv_n < limit || n == KVS_MAX)
            return n;
        op.after = (struct er_bytes){ret[n - 1], strlen(ret[n - 1])};
        op.revision = op.revision ? op.revision : a.revision;
    }
}

static void pages_show_every_key_once(void)
{
    static const char *const keys[] = {"p/a", "p/a/1", "p/a0", "p/b", "p/c"};
    char got[KVS_MAX][64];
    bool values;

    for (size_t i = 0; i < 5; i++)
        do_put(keys[i], "v", 0);
    do_put("p", "before", 0);
    do_put("p0", "behind", 0);
    for (size_t limit = 1; limit <= 6; limit++) {
        er_tap_check(read_in_pages(limit, false, got, &values) == 5 && values);
        for (size_t i = 0; i < 5; i++)
            er_tap_check(strcmp(got[i], keys[i]) == 0);
        er_tap_check(read_in_pages(limit, true, got, &values) == 5);
    }
}

static void a_page_begins_behind_a_key_that_is_gone(void)
{
    struct er_store_op op = get("p/", true);
    struct answer a;

    do_put("p/a", "1", 0);
    do_put("p/c", "3", 0);
    op.after = b("p/b");
    a = txn(NULL, 0, &op, 1, NULL, 0);
    er_tap_check(a.kv_n == 1 && strcmp(a.key[0], "p/c") == 0);
    op.after = b("p/c");
    er_tap_check(txn(NULL, 0, &op, 1, NULL, 0).kv_n == 0);
}

/* What it can't show is refused, never shown as it is now. */
static void an_old_revision_is_shown_or_refused(void)
{
    struct er_store_op op = get("p/", true);
    struct answer a;

    do_put("p/a", "old", 0);
    op.revision = do_put("p/b", "old", 0).revision;
    do_put("p/a", "new", 0);
    a = txn(NULL, 0, &op, 1, NULL, 0);
    er_tap_check(a.rc == ER_E_STALE || (a.kv_n == 2 && strcmp(a.value[0], "old") == 0));
}

static void an_answer_tells_when_the_store_was_heard(void)
{
    uint64_t before, after;

    do_put("k", "1", 0);
    before = the->now_us();
    if (!client[0]->ops->heard)
        return; /* it cannot be out of reach */
    er_tap_check(client[0]->ops->heard(client[0]) <= before);
    do_put("k", "2", 0);
    after = the->now_us();
    er_tap_check(client[0]->ops->heard(client[0]) >= before);
    er_tap_check(client[0]->ops->heard(client[0]) <= after);
}

static void keep_alives_are_heard(void)
{
    struct answer lost = {0};
    uint64_t before;

    grant(0x16);
    er_tap_require(client[0]->ops->lease_keep(client[0], 0x16, on_lease, &lost) == 0);
    before = the->now_us();
    er_tap_check(!wait_n(&lost.n, 1, the->ttl_us));
    er_tap_check(!client[0]->ops->heard || client[0]->ops->heard(client[0]) > before);
}

static void deletes_take_a_key_or_a_prefix(void)
{
    struct er_store_op one = del("p/a", false), all = del("p/", true);

    do_put("p/a", "1", 0);
    do_put("p/b", "1", 0);
    do_put("p/c", "1", 0);
    txn(NULL, 0, &one, 1, NULL, 0);
    er_tap_check(do_get("p/", true).kv_n == 2);
    txn(NULL, 0, &all, 1, NULL, 0);
    er_tap_check(do_get("p/", true).kv_n == 0);
}

static void too_many_operations_are_refused(void)
{
    static char keys[ER_STORE_TXN_OPS_MAX + 1][16];
    struct er_store_op ops[ER_STORE_TXN_OPS_MAX + 1];

    for (int i = 0; i <= ER_STORE_TXN_OPS_MAX; i++) {
        snprintf(keys[i], sizeof(keys[i]), "k%d", i);
        ops[i] = put(keys[i], "v", 0);
    }
    er_tap_check(txn(NULL, 0, ops, ER_STORE_TXN_OPS_MAX + 1, NULL, 0).rc < 0);
    er_tap_check(do_get("k0", false).kv_n == 0);
    er_tap_check(txn(NULL, 0, ops, ER_STORE_TXN_OPS_MAX, NULL, 0).succeeded);
}

static void the_same_key_twice_is_refused(void)
{
    struct er_store_op ops[] = {put("k", "1", 0), put("k", "2", 0)};

    er_tap_check(txn(NULL, 0, ops, 2, NULL, 0).rc < 0);
    er_tap_check(do_get("k", false).kv_n == 0);
}

static void a_lease_id_is_granted_once(void)
{
    struct answer a = grant(0x1234);

    er_tap_check(a.rc == 0 && a.lease == 0x1234 && a.ttl_us >= the->ttl_us);
    er_tap_check(grant(0x1234).rc == -EEXIST);
}

static void a_lease_that_nobody_keeps_ends(void)
{
    struct changes c = {0};
    uint64_t id, rev;

    grant(0x10);
    rev = do_put("k", "v", 0x10).revision;
    er_tap_check(do_get("k", false).kv_lease[0] == 0x10);
    er_tap_require(client[1]->ops->watch(client[1], b("k"), false, rev + 1, on_watch, &c, &id) ==
                   0);
    er_tap_check(wait_n(&c.n, 1, LONG_US));
    er_tap_check(c.kind[0] == ER_STORE_DELETE);
}

static void a_kept_lease_stays(void)
{
    struct answer lost = {0};

    grant(0x11);
    er_tap_require(client[0]->ops->lease_keep(client[0], 0x11, on_lease, &lost) == 0);
    do_put("k", "v", 0x11);
    er_tap_check(!wait_n(&lost.n, 1, 3 * the->ttl_us));
    er_tap_check(do_get("k", false).kv_n == 1);
}

static void revoke_deletes_all_its_keys_in_one_revision(void)
{
    struct changes c = {0};
    struct answer a = {0};
    uint64_t id, rev;

    grant(0x12);
    do_put("k/1", "v", 0x12);
    do_put("k/2", "v", 0x12);
    rev = do_put("k/3", "v", 0).revision;
    er_tap_require(client[1]->ops->watch(client[1], b("k/"), true, rev + 1, on_watch, &c, &id) ==
                   0);
    er_tap_require(client[0]->ops->lease_revoke(client[0], 0x12, on_lease, &a) == 0);
    er_tap_check(wait_n(&a.n, 1, LONG_US) && a.rc == 0);
    er_tap_check(wait_n(&c.n, 2, LONG_US));
    er_tap_check(c.calls == 1 && c.revision[0] == c.revision[1]);
    er_tap_check(do_get("k/", true).kv_n == 1);
    a.n = 0;
    er_tap_require(client[0]->ops->lease_revoke(client[0], 0x12, on_lease, &a) == 0);
    er_tap_check(wait_n(&a.n, 1, LONG_US) && a.rc == -ENOENT);
}

static void a_keeper_hears_that_its_lease_was_revoked_elsewhere(void)
{
    struct answer lost = {0}, a = {0};

    grant(0x13);
    er_tap_require(client[0]->ops->lease_keep(client[0], 0x13, on_lease, &lost) == 0);
    er_tap_require(client[1]->ops->lease_revoke(client[1], 0x13, on_lease, &a) == 0);
    er_tap_check(wait_n(&lost.n, 1, LONG_US));
    er_tap_check(lost.lease == 0x13);
}

static void a_put_under_a_dead_lease_applies_nothing(void)
{
    struct er_store_op ops[] = {put("k", "1", 0), put("l", "2", 0x99)};
    struct er_store_cmp never = {.target = ER_CMP_CREATE, .key = b("k"), .rev = 77777};

    er_tap_check(txn(NULL, 0, ops, 2, NULL, 0).rc < 0);
    er_tap_check(do_get("k", false).kv_n == 0);
    er_tap_check(txn(&never, 1, ops, 2, NULL, 0).rc == 0); /* in a branch not taken: no matter */
}

static void a_put_can_move_a_key_to_another_lease(void)
{
    struct answer a = {0};
    uint64_t created;

    grant(0x14);
    grant(0x15);
    created = do_put("k", "1", 0x14).revision;
    do_put("k", "2", 0x15);
    er_tap_require(client[0]->ops->lease_revoke(client[0], 0x14, on_lease, &a) == 0);
    er_tap_check(wait_n(&a.n, 1, LONG_US));
    er_tap_check(do_get("k", false).create_rev[0] == created);
}

static void a_watch_replays_from_its_revision(void)
{
    struct er_store_op both[] = {put("w/a", "3", 0), put("w/b", "4", 0)};
    struct changes c = {0};
    struct er_store_op gone = del("w/a", false);
    uint64_t first = do_put("w/a", "1", 0).revision, id;

    do_put("w/a", "2", 0);
    do_put("other", "x", 0);
    txn(NULL, 0, both, 2, NULL, 0);
    txn(NULL, 0, &gone, 1, NULL, 0);
    er_tap_require(client[1]->ops->watch(client[1], b("w/"), true, first + 1, on_watch, &c, &id) ==
                   0);
    er_tap_check(wait_n(&c.n, 4, LONG_US));
    er_tap_check(c.calls == 3 && strcmp(c.value[0], "2") == 0);
    er_tap_check(c.revision[1] == c.revision[2]);
    er_tap_check(c.kind[3] == ER_STORE_DELETE && strcmp(c.key[3], "w/a") == 0);
}

static void a_watch_of_one_key_sees_the_other_clients_writes(void)
{
    struct changes c = {0};
    uint64_t id, rev = do_get("k", false).revision;

    er_tap_require(client[1]->ops->watch(client[1], b("k"), false, rev + 1, on_watch, &c, &id) ==
                   0);
    do_put("kk", "no", 0);
    do_put("k", "yes", 0);
    er_tap_check(wait_n(&c.n, 1, LONG_US));
    er_tap_check(c.n == 1 && strcmp(c.value[0], "yes") == 0);
}

static void a_closed_watch_is_silent(void)
{
    struct changes c = {0}, other = {0};
    uint64_t id, second, from = do_get("k", false).revision + 1;

    er_tap_require(client[1]->ops->watch(client[1], b("k"), false, from, on_watch, &c, &id) == 0);
    er_tap_require(
        client[1]->ops->watch(client[1], b("k"), false, from, on_watch, &other, &second) == 0);
    er_tap_check(id != 0 && id != second);
    client[1]->ops->unwatch(client[1], id);
    do_put("k", "v", 0);
    er_tap_check(wait_n(&other.n, 1, LONG_US));
    er_tap_check(c.calls == 0);
}

static void a_watch_from_now_sees_what_its_own_client_writes_next(void)
{
    struct changes c = {0};
    uint64_t id;

    do_put("k", "before", 0);
    er_tap_require(client[0]->ops->watch(client[0], b("k"), false, 0, on_watch, &c, &id) == 0);
    do_put("k", "after", 0);
    er_tap_check(wait_n(&c.n, 1, LONG_US));
    er_tap_check(c.n == 1 && strcmp(c.value[0], "after") == 0);
}

static void an_opened_watch_says_from_where_and_sees_all_that_follows(void)
{
    struct changes c = {0};
    uint64_t id, before = do_put("k", "before", 0).revision, read;

    er_tap_require(
        client[1]->ops->watch(client[1], b("k"), false, ER_STORE_OPENED, on_watch, &c, &id) == 0);
    er_tap_check(wait_n(&c.calls, 1, LONG_US));
    er_tap_check(c.n == 0 && c.opened >= before);
    read = do_get("k", false).revision;
    er_tap_check(read >= c.opened);
    do_put("k", "after", 0);
    er_tap_check(wait_n(&c.n, 1, LONG_US));
    er_tap_check(c.calls == 2 && strcmp(c.value[0], "after") == 0 && c.revision[0] > read);
}

static void answers_come_in_the_order_of_the_requests(void)
{
    struct er_store_op one = put("k", "1", 0), two = put("k", "2", 0);
    struct er_store_txn t1 = {.then_ops = &one, .then_n = 1}, t2 = {.then_ops = &two, .then_n = 1};
    struct answer a1 = {0}, a2 = {0};

    er_tap_require(client[0]->ops->txn(client[0], &t1, on_txn, &a1) == 0);
    er_tap_require(client[0]->ops->txn(client[0], &t2, on_txn, &a2) == 0);
    er_tap_check(wait_n(&a2.n, 1, LONG_US));
    er_tap_check(a1.n == 1 && a2.revision > a1.revision);
    er_tap_check(strcmp(do_get("k", false).value[0], "2") == 0);
}

/* ---- every case ---- */

#define CASES(X)                                                                                   \
    X(put_then_range)                                                                              \
    X(revisions_create_and_modify)                                                                 \
    X(compares_of_revisions_and_values)                                                            \
    X(value_of_a_missing_key_compares_false)                                                       \
    X(prefix_compare_is_about_every_key)                                                           \
    X(a_branch_is_taken_whole)                                                                     \
    X(ranges_are_sorted_and_prefixes_exact)                                                        \
    X(pages_show_every_key_once)                                                                   \
    X(a_page_begins_behind_a_key_that_is_gone)                                                     \
    X(an_old_revision_is_shown_or_refused)                                                         \
    X(an_answer_tells_when_the_store_was_heard)                                                    \
    X(keep_alives_are_heard)                                                                       \
    X(deletes_take_a_key_or_a_prefix)                                                              \
    X(too_many_operations_are_refused)                                                             \
    X(the_same_key_twice_is_refused)                                                               \
    X(a_lease_id_is_granted_once)                                                                  \
    X(a_lease_that_nobody_keeps_ends)                                                              \
    X(a_kept_lease_stays)                                                                          \
    X(revoke_deletes_all_its_keys_in_one_revision)                                                 \
    X(a_keeper_hears_that_its_lease_was_revoked_elsewhere)                                         \
    X(a_put_under_a_dead_lease_applies_nothing)                                                    \
    X(a_put_can_move_a_key_to_another_lease)                                                       \
    X(a_watch_replays_from_its_revision)                                                           \
    X(a_watch_of_one_key_sees_the_other_clients_writes)                                            \
    X(a_watch_from_now_sees_what_its_own_client_writes_next)                                       \
    X(an_opened_watch_says_from_where_and_sees_all_that_follows)                                   \
    X(a_closed_watch_is_silent)                                                                    \
    X(answers_come_in_the_order_of_the_requests)

static void run_case(void (*body)(void))
{
    the->open(client);
    body();
    the->close(client);
}

#define FACTORY_CASE(name)                                                                         \
    static void on_store_##name(void)                                                              \
    {                                                                                              \
        run_case(name);                                                                            \
    }
CASES(FACTORY_CASE)

int main(int argc, char **argv)
{
#define CASE_LINE(name) {#name, on_store_##name, 0},
    static const struct er_tap_case cases[] = {CASES(CASE_LINE)};

    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
