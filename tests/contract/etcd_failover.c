/* Three members on Unix sockets, one of them killed or frozen: nothing that was acknowledged is
 * lost, nothing comes twice, no kept lease dies, and the client goes on without help. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "tests/contract/etcd_lib.h"
#include "tests/lib/tap.h"

/* A client that writes numbered keys one after the other, watches them, and keeps a lease. */
struct writer {
    struct er_store *store;
    struct etcd_watching *w;
    char prefix[32]; /* of its own */
    struct etcd_answer grant, lost;
    unsigned next, acked, doubtful, refused;
    bool busy;
    uint64_t last_ack_us, gap_us;
    unsigned want; /* acks that end the run */
    uint64_t lease;
};

static void send_next(struct writer *w);

static void on_put(void *user, int rc, const struct er_store_reply *reply)
{
    struct writer *w = user;
    uint64_t now = er_now_us();

    w->busy = false;
    if (rc == 0) {
        w->acked++;
        if (w->last_ack_us && now - w->last_ack_us > w->gap_us)
            w->gap_us = now - w->last_ack_us;
        w->last_ack_us = now;
    } else {
        er_tap_check(rc == ER_E_AMBIGUOUS || rc == -ENOTCONN);
        w->doubtful += rc == ER_E_AMBIGUOUS;
        w->refused += rc == -ENOTCONN;
    }
    if (w->acked < w->want)
        send_next(w);
}

static void send_next(struct writer *w)
{
    char key[64];
    const struct er_store_op op = {
        .kind = ER_OP_PUT,
        .key = {key, (size_t)snprintf(key, sizeof(key), "%s%05u", w->prefix, w->next++)},
        .value = etcd_text("v")};

    w->busy = true;
    er_tap_require(w->store->ops->txn(w->store,
                                      &(struct er_store_txn){.then_ops = &op, .then_n = 1}, on_put,
                                      w) == 0);
}

static bool has_acks(void *user)
{
    const struct writer *w = user;

    return w->acked >= w->want && !w->busy;
}

static bool run_to(struct writer *w, unsigned acks)
{
    w->want = acks;
    if (!w->busy)
        send_next(w);
    return etcd_run(&w->store, 1, has_acks, w);
}

static void writer_open(struct writer *w, const char *endpoints, uint64_t seed)
{
    memset(w, 0, sizeof(*w));
    w->w = calloc(1, sizeof(*w->w));
    er_tap_require(w->w != NULL);
    w->store = etcd_open_with(
        &(struct er_etcd_opts){.endpoints = endpoints, .prefix = "/t/", .seed = seed});
    w->lease = 1000 + seed;
    snprintf(w->prefix, sizeof(w->prefix), "/t/%llu/", (unsigned long long)seed);
    while (etcd_grant(w->store, w->lease, 5 * ER_US_PER_S, &w->grant) != 0)
        ;
    etcd_keep(w->store, w->lease, &w->lost);
    etcd_watch(w->store, w->prefix, true, 1, w->w);
    er_tap_require(run_to(w, 50));
}

/* Every acknowledged key is seen exactly once, and no key twice; then all is closed. */
struct last {
    struct etcd_watching *w;
    const char *key;
};

static bool saw_last(void *user)
{
    const struct last *l = user;

    return l->w->ended || (l->w->n && strcmp(l->w->seen[l->w->n - 1].key, l->key) == 0);
}

static void writer_check_and_close(struct writer *w)
{
    char last_key[64];
    struct last last = {w->w, last_key};
    struct etcd_answer a;
    size_t puts = 0;

    snprintf(last_key, sizeof(last_key), "%slast", w->prefix);
    er_tap_check(etcd_put_surely(w->store, last_key, "x") == 0);
    er_tap_check(etcd_run(&w->store, 1, saw_last, &last));
    er_tap_check(w->w->ended == 0 && !w->w->disorder);
    for (size_t i = 1; i < w->w->n; i++)
        er_tap_check(w->w->seen[i].rev > w->w->seen[i - 1].rev);
    puts = w->w->n - 1;
    er_tap_check(puts >= w->acked && puts <= w->acked + w->doubtful);
    er_tap_check(!w->lost.done);
    er_tap_check(etcd_put(w->store, "/t/leased", "x", w->lease) == 0);
    er_tap_check(etcd_get(w->store, "/t/leased", &a) == 0 && a.kv_n == 1);
    er_tap_note("acked %u, doubtful %u, refused %u, longest gap %llu ms", w->acked, w->doubtful,
                w->refused, (unsigned long long)w->gap_us / 1000);
    w->store->ops->free(w->store);
    free(w->w);
}

/* Our endpoint alone first in the list is not ours to choose: find it by status. */
static int connected_member(const struct etcd_cluster *e, const struct writer *w)
{
    struct er_etcd_status status;

    er_store_etcd_status(w->store, &status);
    er_tap_require(status.connected);
    return status.endpoint[strlen(status.endpoint) - 1] - '0';
}

/* A writer connected to the leader, or to a follower. */
static int open_on(struct etcd_cluster *e, struct writer *w, bool on_leader)
{
    for (uint64_t seed = 0; seed < 100; seed++) {
        int leader, member;

        writer_open(w, e->endpoints, seed);
        leader = etcd_leader(e);
        member = connected_member(e, w);
        if (leader >= 0 && (member == leader) == on_leader)
            return member;
        w->store->ops->free(w->store);
        free(w->w);
    }
    er_tap_require(false);
    return -1;
}

static void survives_kill(bool on_leader)
{
    struct etcd_cluster e;
    struct writer w;
    int member;

    etcd_start(&e, 3);
    member = open_on(&e, &w, on_leader);
    etcd_member_kill(&e, member);
    er_tap_check(run_to(&w, w.acked + 100));
    etcd_member_start(&e, member);
    er_tap_check(run_to(&w, w.acked + 100));
    writer_check_and_close(&w);
    etcd_stop(&e);
}

static void killed_follower_that_we_use(void)
{
    survives_kill(false);
}

static void killed_leader_that_we_use(void)
{
    survives_kill(true);
}

static void killed_leader_behind_a_follower(void)
{
    struct etcd_cluster e;
    struct writer w;
    int leader;

    etcd_start(&e, 3);
    open_on(&e, &w, false);
    leader = etcd_leader(&e);
    er_tap_require(leader >= 0);
    etcd_member_kill(&e, leader);
    er_tap_check(run_to(&w, w.acked + 100));
    writer_check_and_close(&w);
    etcd_stop(&e);
}

static void frozen_follower_that_we_use(void)
{
    struct etcd_cluster e;
    struct writer w;
    int member;

    etcd_start(&e, 3);
    member = open_on(&e, &w, false);
    etcd_member_signal(&e, member, SIGSTOP);
    er_tap_check(run_to(&w, w.acked + 100));
    er_tap_check(connected_member(&e, &w) != member);
    etcd_member_signal(&e, member, SIGCONT);
    er_tap_check(run_to(&w, w.acked + 100));
    writer_check_and_close(&w);
    etcd_stop(&e);
}

static void frozen_leader_that_we_use(void)
{
    struct etcd_cluster e;
    struct writer w;
    int member;

    etcd_start(&e, 3);
    member = open_on(&e, &w, true);
    etcd_member_signal(&e, member, SIGSTOP);
    er_tap_check(run_to(&w, w.acked + 100));
    er_tap_check(connected_member(&e, &w) != member);
    er_tap_check(!w.lost.done);
    /* thawed it may revoke live leases (etcd 3.4): not continued here */
    etcd_member_kill(&e, member);
    writer_check_and_close(&w);
    etcd_stop(&e);
}

/* Nothing but a lease: its overdue answers must be enough to leave the member, in time. */
static void a_kept_lease_survives_a_frozen_member(void)
{
    struct etcd_cluster e;
    struct er_etcd_status status;
    struct er_store *s, *other;
    struct etcd_answer a, lost;
    int member;

    etcd_start(&e, 3);
    s = etcd_open(&e);
    other = etcd_open_with(
        &(struct er_etcd_opts){.endpoints = e.endpoints, .prefix = "/t/", .seed = 5});
    while (etcd_grant(s, 9, 3 * ER_US_PER_S, &a) != 0)
        ;
    etcd_keep(s, 9, &lost);
    er_tap_check(etcd_put_surely(other, "/t/a", "1") == 0);
    er_store_etcd_status(s, &status);
    er_tap_require(status.connected);
    member = status.endpoint[strlen(status.endpoint) - 1] - '0';
    etcd_member_signal(&e, member, SIGSTOP);
    etcd_idle(s, 8 * ER_US_PER_S);
    er_tap_check(!lost.done);
    er_store_etcd_status(s, &status);
    er_tap_check(status.connected && status.sessions <= 4);
    er_tap_check(status.endpoint[strlen(status.endpoint) - 1] - '0' != member);
    er_tap_check(er_store_etcd_lease_until(s, 9) > er_now_us());
    s->ops->free(s);
    other->ops->free(other);
    etcd_stop(&e);
}

/* Nothing but a watch: nobody writes, nobody misses a keep-alive. */
static void a_silent_watcher_notices_a_frozen_member(void)
{
    struct etcd_cluster e;
    struct writer w;
    struct er_store *watcher;
    struct er_etcd_status status;
    struct etcd_watching *seen = calloc(1, sizeof(*seen));
    struct last last = {seen, "/t/last"};
    struct etcd_answer a;
    int member;

    er_tap_require(seen != NULL);
    etcd_start(&e, 3);
    writer_open(&w, e.endpoints, 1);
    watcher = etcd_open(&e);
    etcd_watch(watcher, "/t/", true, 0, seen);
    while (etcd_get(watcher, "/t/x", &a) != 0)
        ;
    er_store_etcd_status(watcher, &status);
    er_tap_require(status.connected);
    member = status.endpoint[strlen(status.endpoint) - 1] - '0';
    etcd_member_signal(&e, member, SIGSTOP);
    er_tap_check(etcd_put_surely(w.store, "/t/last", "x") == 0);
    er_tap_check(etcd_run((struct er_store *[]){watcher, w.store}, 2, saw_last, &last));
    er_tap_check(seen->ended == 0 && !seen->disorder);
    etcd_member_signal(&e, member, SIGCONT);
    watcher->ops->free(watcher);
    w.store->ops->free(w.store);
    free(w.w);
    free(seen);
    etcd_stop(&e);
}

static void all_members_gone_and_back(void)
{
    struct etcd_cluster e;
    struct writer w;

    etcd_start(&e, 3);
    writer_open(&w, e.endpoints, 1);
    for (int i = 0; i < 3; i++)
        etcd_member_kill(&e, i);
    w.want = w.acked + 1000000; /* goes on trying */
    if (!w.busy)
        send_next(&w);
    etcd_idle(w.store, 2 * ER_US_PER_S);
    for (int i = 0; i < 3; i++)
        etcd_member_start(&e, i);
    er_tap_check(run_to(&w, w.acked + 100));
    er_tap_check(w.w->ended == 0);
    w.store->ops->free(w.store);
    free(w.w);
    etcd_stop(&e);
}

static void without_a_majority_writes_are_not_sent_or_doubtful_never_done(void)
{
    enum { TRIES = 30 };
    struct etcd_cluster e;
    struct writer w;
    struct etcd_answer a;
    char key[32];
    int rc = 0;

    etcd_start(&e, 3);
    writer_open(&w, e.endpoints, 1);
    etcd_member_kill(&e, 0);
    etcd_member_kill(&e, 1);
    /* Doubtful until the client has learned that there is no leader; then it sends no more. When
     * it learns that is the surviving member's business. */
    for (int i = 0; i < TRIES && rc != -ENOTCONN; i++) {
        snprintf(key, sizeof(key), "/t/try-%d", i);
        rc = etcd_put(w.store, key, "x", 0);
        er_tap_check(rc == ER_E_AMBIGUOUS || rc == -ENOTCONN);
    }
    er_tap_check(rc == -ENOTCONN);
    etcd_member_start(&e, 0);
    er_tap_check(run_to(&w, w.acked + 10));
    er_tap_check(etcd_get(w.store, key, &a) == 0 && a.kv_n == 0); /* the one that was not sent */
    w.store->ops->free(w.store);
    free(w.w);
    etcd_stop(&e);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"killed_follower_that_we_use", killed_follower_that_we_use, 120},
        {"killed_leader_that_we_use", killed_leader_that_we_use, 120},
        {"killed_leader_behind_a_follower", killed_leader_behind_a_follower, 120},
        {"frozen_follower_that_we_use", frozen_follower_that_we_use, 120},
        {"frozen_leader_that_we_use", frozen_leader_that_we_use, 120},
        {"a_kept_lease_survives_a_frozen_member", a_kept_lease_survives_a_frozen_member, 120},
        {"a_silent_watcher_notices_a_frozen_member", a_silent_watcher_notices_a_frozen_member, 120},
        {"all_members_gone_and_back", all_members_gone_and_back, 120},
        {"without_a_majority_writes_are_not_sent_or_doubtful_never_done",
         without_a_majority_writes_are_not_sent_or_doubtful_never_done, 120},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
