/* The etcd store on a real etcd: what etcd does and the embedded store can't (test_store.c has what
 * both must do). */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "rendezvous/etcd_load.h"
#include "rendezvous/etcd_status.h"
#include "tests/contract/etcd_lib.h"
#include "tests/lib/tap.h"

static bool saw_n(void *user)
{
    const struct etcd_watching *w = user;

    return w->ended || w->n >= 3;
}

static bool ended(void *user)
{
    return ((struct etcd_watching *)user)->ended != 0;
}

static bool told(void *user)
{
    return ((struct etcd_answer *)user)->done;
}

static struct etcd_watching *watching_new(void)
{
    struct etcd_watching *w = calloc(1, sizeof(*w));

    er_tap_require(w != NULL);
    return w;
}

/* ---- watches ---- */

static void watch_from_now_sees_what_is_written_after_the_call(void)
{
    struct etcd_cluster e;
    struct er_store *s;
    struct etcd_watching *w = watching_new();

    etcd_start(&e, 1);
    s = etcd_open(&e);
    /* before there is any connection: the watch is in force when the writes are sent */
    etcd_watch(s, "/t/", true, 0, w);
    er_tap_check(etcd_put_surely(s, "/t/a", "1") == 0);
    er_tap_check(etcd_put_surely(s, "/t/b", "2") == 0);
    er_tap_check(etcd_put_surely(s, "/t/c", "3") == 0);
    er_tap_check(etcd_run(&s, 1, saw_n, w));
    er_tap_check(w->n == 3 && !w->disorder);
    er_tap_check(strcmp(w->seen[2].key, "/t/c") == 0 && strcmp(w->seen[2].value, "3") == 0);
    s->ops->free(s);
    etcd_stop(&e);
    free(w);
}

static void thousand_deletes_of_one_revision_are_one_call(void)
{
    struct etcd_cluster e;
    struct er_store *s;
    struct etcd_watching *w = watching_new();
    struct er_store_op ops[100];
    char keys[100][64];
    struct etcd_answer a;

    etcd_start(&e, 1);
    s = etcd_open(&e);
    for (int batch = 0; batch < 10; batch++) {
        for (int i = 0; i < 100; i++) {
            snprintf(keys[i], sizeof(keys[i]), "/t/%04d", batch * 100 + i);
            ops[i] = (struct er_store_op){
                .kind = ER_OP_PUT, .key = etcd_text(keys[i]), .value = etcd_text("x")};
        }
        er_tap_check(etcd_txn(s, &(struct er_store_txn){.then_ops = ops, .then_n = 100}, &a) == 0);
    }
    etcd_watch(s, "/t/", true, a.revision + 1, w);
    er_tap_check(etcd_delete(s, "/t/", true) == 0);
    er_tap_check(etcd_run(&s, 1, saw_n, w));
    er_tap_check(w->calls == 1 && w->n == 1000 && !w->disorder);
    er_tap_check(w->seen[999].kind == ER_STORE_DELETE && strcmp(w->seen[999].key, "/t/0999") == 0);
    s->ops->free(s);
    etcd_stop(&e);
    free(w);
}

static void what_is_asked_is_counted(void)
{
    struct etcd_cluster e;
    struct er_store *s;
    const struct er_etcd_counts *c;
    uint64_t timed = 0;

    etcd_start(&e, 1);
    s = etcd_open(&e);
    c = er_store_etcd_counts(s);
    er_tap_check(etcd_put_surely(s, "/t/a", "1") == 0);
    er_tap_check(c->answers[ER_ETCD_OP_TXN][ER_GRPC_OK] >= 1);
    er_tap_check(c->answers[ER_ETCD_OP_LEASE][ER_GRPC_OK] == 0);
    for (size_t i = 0; i <= er_bounds_fine.n; i++)
        timed += c->durations[ER_ETCD_OP_TXN].counts[i];
    er_tap_check(timed >= 1 && c->durations[ER_ETCD_OP_TXN].sum > 0);
    s->ops->free(s);
    etcd_stop(&e);
}

static void a_large_history_is_replayed_through_fragments(void)
{
    struct etcd_cluster e;
    struct er_store *s;
    struct etcd_watching *w = watching_new();
    size_t big = 1000000;
    char *value = malloc(big + 1);

    er_tap_require(value != NULL);
    memset(value, 'v', big);
    value[big] = 0;
    etcd_start(&e, 1);
    s = etcd_open(&e);
    for (int i = 0; i < 8; i++)
        er_tap_check(etcd_put(s, "/t/big", value, 0) == 0);
    etcd_watch(s, "/t/", true, 1, w);
    while (w->n < 8 && !w->ended) {
        size_t before = w->n;

        etcd_idle(s, 20000);
        if (w->n == before && !er_tap_check(er_now_us() > 0))
            break;
    }
    er_tap_check(w->n == 8 && !w->disorder);
    s->ops->free(s);
    etcd_stop(&e);
    free(value);
    free(w);
}

static void compaction_ends_a_watch_that_starts_before_it(void)
{
    struct etcd_cluster e;
    struct er_store *s;
    struct etcd_watching *w = watching_new();
    struct er_test_proc p;
    struct etcd_answer a;
    char rev[32];

    etcd_start(&e, 1);
    s = etcd_open(&e);
    for (int i = 0; i < 5; i++)
        er_tap_check(etcd_put_surely(s, "/t/a", "x") == 0);
    er_tap_check(etcd_get(s, "/t/a", &a) == 0);
    snprintf(rev, sizeof(rev), "%llu", (unsigned long long)a.revision);
    er_tap_check(etcd_ctl(&e, 0, &p, (const char *[]){"compact", rev, NULL}) == 0);
    er_test_done(&p);
    etcd_watch(s, "/t/", true, 2, w);
    er_tap_check(etcd_run(&s, 1, ended, w));
    er_tap_check(w->ended == ER_E_STALE && w->n == 0);
    /* the recipe: range, then watch from the next revision */
    er_tap_check(etcd_get(s, "/t/a", &a) == 0 && a.kv_n == 1);
    etcd_watch(s, "/t/", true, a.revision + 1, w);
    for (int i = 0; i < 3; i++)
        er_tap_check(etcd_put(s, "/t/a", "y", 0) == 0);
    er_tap_check(etcd_run(&s, 1, saw_n, w));
    er_tap_check(w->n == 3 && w->ended == 0 && !w->disorder);
    s->ops->free(s);
    etcd_stop(&e);
    free(w);
}

/* ---- the server comes back, as it was or not ---- */

static void a_restarted_etcd_is_found_again_and_nothing_is_missed(void)
{
    struct etcd_cluster e;
    struct er_store *s;
    struct etcd_watching *w = watching_new();
    struct er_etcd_status status;
    struct etcd_answer a, lost;

    etcd_start(&e, 1);
    s = etcd_open(&e);
    er_tap_check(etcd_put_surely(s, "/t/a", "1") == 0);
    er_tap_check(etcd_grant(s, 77, 30 * ER_US_PER_S, &a) == 0);
    etcd_keep(s, 77, &lost);
    etcd_watch(s, "/t/", true, 2, w);
    etcd_member_kill(&e, 0);
    er_tap_check(etcd_put(s, "/t/x", "x", 0) != 0);
    er_store_etcd_status(s, &status);
    er_tap_check(!status.connected && status.rc == -ENOTCONN && status.down_since_us > 0);
    er_tap_check(strstr(status.text, e.endpoints) != NULL);
    er_tap_note("%s", status.text);
    etcd_member_start(&e, 0);
    er_tap_check(etcd_put_surely(s, "/t/b", "2") == 0);
    er_tap_check(etcd_put_surely(s, "/t/c", "3") == 0);
    er_tap_check(etcd_run(&s, 1, saw_n, w));
    er_tap_check(w->n == 3 && !w->disorder && w->ended == 0);
    er_tap_check(!lost.done);
    er_store_etcd_status(s, &status);
    er_tap_check(status.connected && status.sessions == 2 && status.text[0] == 0);
    s->ops->free(s);
    etcd_stop(&e);
    free(w);
}

static void another_store_behind_the_endpoint_ends_watches_and_leases(void)
{
    struct etcd_cluster e;
    struct er_store *s;
    struct etcd_watching *w = watching_new();
    struct etcd_answer a, lost;

    etcd_start(&e, 1);
    s = etcd_open(&e);
    for (int i = 0; i < 5; i++)
        er_tap_check(etcd_put_surely(s, "/u/a", "1") == 0);
    er_tap_check(etcd_grant(s, 77, 2 * ER_US_PER_S, &a) == 0);
    etcd_keep(s, 77, &lost);
    etcd_watch(s, "/t/", true, 0, w);
    er_tap_check(etcd_get(s, "/u/a", &a) == 0);
    etcd_member_kill(&e, 0);
    etcd_wipe(&e, 0); /* the same name and cluster id, but empty */
    etcd_member_start(&e, 0);
    er_tap_check(etcd_run(&s, 1, ended, w));
    er_tap_check(w->ended == ER_E_STALE);
    er_tap_check(etcd_run(&s, 1, told, &lost));
    er_tap_check(lost.rc == -ENOENT && lost.lease == 77);
    er_tap_check(etcd_get(s, "/u/a", &a) == 0 && a.kv_n == 0);
    s->ops->free(s);
    etcd_stop(&e);
    free(w);
}

/* ---- leases ---- */

static void a_lease_that_another_client_revokes_is_lost(void)
{
    struct etcd_cluster e;
    struct er_store *s, *other;
    struct etcd_answer a, lost;

    etcd_start(&e, 1);
    s = etcd_open(&e);
    other = etcd_open(&e);
    er_tap_check(etcd_grant(s, 5, 2 * ER_US_PER_S, &a) == 0 && a.ttl_us >= 2 * ER_US_PER_S);
    etcd_keep(s, 5, &lost);
    er_tap_check(etcd_put(s, "/t/m", "x", 5) == 0);
    er_tap_check(etcd_revoke(other, 5) == 0);
    er_tap_check(etcd_run(&s, 1, told, &lost));
    er_tap_check(lost.rc == -ENOENT && lost.lease == 5);
    er_tap_check(etcd_get(s, "/t/m", &a) == 0 && a.kv_n == 0);
    er_tap_check(er_store_etcd_lease_until(s, 5) == 0);
    s->ops->free(s);
    other->ops->free(other);
    etcd_stop(&e);
}

static void a_kept_lease_outlives_its_ttl(void)
{
    struct etcd_cluster e;
    struct er_store *s;
    struct etcd_answer a, lost;
    uint64_t until;

    etcd_start(&e, 1);
    s = etcd_open(&e);
    er_tap_check(etcd_grant(s, 5, 1, &a) == 0 && a.ttl_us == ER_US_PER_S);
    until = er_store_etcd_lease_until(s, 5);
    er_tap_check(until > er_now_us());
    etcd_keep(s, 5, &lost);
    er_tap_check(etcd_put(s, "/t/m", "x", 5) == 0);
    etcd_idle(s, 3 * ER_US_PER_S);
    er_tap_check(!lost.done && er_store_etcd_lease_until(s, 5) > until + 2 * ER_US_PER_S);
    er_tap_check(etcd_get(s, "/t/m", &a) == 0 && a.kv_n == 1 && a.kv_lease[0] == 5);
    s->ops->free(s);
    etcd_stop(&e);
}

/* ---- a frozen etcd: what was sent to it may be carried out later ---- */

static bool disconnected(void *user)
{
    struct er_etcd_status status;

    er_store_etcd_status(user, &status);
    return !status.connected;
}

static void a_write_to_a_frozen_etcd_is_doubtful_the_next_is_not_sent(void)
{
    struct etcd_cluster e;
    struct er_store *s;
    struct etcd_answer a;

    etcd_start(&e, 1);
    s = etcd_open_with(&(struct er_etcd_opts){
        .endpoints = e.endpoints, .prefix = "/t/", .request_timeout_us = 2 * ER_US_PER_S});
    er_tap_check(etcd_put_surely(s, "/t/a", "1") == 0);
    etcd_member_signal(&e, 0, SIGSTOP);
    er_tap_check(etcd_put(s, "/t/doubtful", "1", 0) == ER_E_AMBIGUOUS);
    er_tap_check(etcd_run(&s, 1, disconnected, s));
    er_tap_check(etcd_put(s, "/t/refused", "1", 0) == -ENOTCONN);
    etcd_member_signal(&e, 0, SIGCONT);
    er_tap_check(etcd_put_surely(s, "/t/b", "1") == 0);
    er_tap_check(etcd_get(s, "/t/refused", &a) == 0 && a.kv_n == 0);
    s->ops->free(s);
    etcd_stop(&e);
}

static void grants_and_revokes_are_repeated_until_it_is_certain(void)
{
    struct etcd_cluster e;
    struct er_store *s;
    struct etcd_answer a;

    etcd_start(&e, 1);
    s = etcd_open_with(&(struct er_etcd_opts){
        .endpoints = e.endpoints, .prefix = "/t/", .request_timeout_us = 25 * ER_US_PER_S});
    er_tap_check(etcd_put_surely(s, "/t/a", "1") == 0);
    etcd_member_signal(&e, 0, SIGSTOP);
    etcd_grant_start(s, 9, 30 * ER_US_PER_S, &a);
    er_tap_check(etcd_run(&s, 1, disconnected, s)); /* the first one was sent, and waits there */
    etcd_member_signal(&e, 0, SIGCONT);
    er_tap_check(etcd_wait_answer(s, &a) && a.rc == 0 && a.ttl_us == 30 * ER_US_PER_S);
    er_tap_check(etcd_grant(s, 9, ER_US_PER_S, &a) == -EEXIST); /* by itself it is an error */
    etcd_member_signal(&e, 0, SIGSTOP);
    etcd_revoke_start(s, 9, &a);
    er_tap_check(etcd_run(&s, 1, disconnected, s));
    etcd_member_signal(&e, 0, SIGCONT);
    er_tap_check(etcd_wait_answer(s, &a) && a.rc == 0);
    er_tap_check(etcd_revoke(s, 9) == -ENOENT);
    s->ops->free(s);
    etcd_stop(&e);
}

/* ---- the rest ---- */

static void requests_wait_for_an_etcd_that_starts_late(void)
{
    struct etcd_cluster e;
    struct er_store *s;
    struct etcd_answer a[3];
    const struct er_store_op op = {
        .kind = ER_OP_PUT, .key = etcd_text("/t/a"), .value = etcd_text("1")};

    etcd_start(&e, 1);
    etcd_member_kill(&e, 0);
    s = etcd_open_with(&(struct er_etcd_opts){
        .endpoints = e.endpoints, .prefix = "/t/", .request_timeout_us = 20 * ER_US_PER_S});
    for (int i = 0; i < 3; i++)
        etcd_txn_start(s, &(struct er_store_txn){.then_ops = &op, .then_n = 1}, &a[i]);
    etcd_idle(s, 700000);
    er_tap_check(!a[0].done);
    etcd_member_start(&e, 0);
    for (int i = 0; i < 3; i++)
        er_tap_check(etcd_wait_answer(s, &a[i]) && a[i].rc == 0);
    s->ops->free(s);
    etcd_stop(&e);
}

static void freeing_with_everything_under_way_is_clean(void)
{
    struct etcd_cluster e;
    struct er_store *s;
    struct etcd_answer a[20], lost;
    struct etcd_watching *w = watching_new();
    const struct er_store_op op = {
        .kind = ER_OP_PUT, .key = etcd_text("/t/a"), .value = etcd_text("1")};

    etcd_start(&e, 1);
    for (int round = 0; round < 4; round++) {
        s = etcd_open(&e);
        if (round > 1)
            er_tap_check(etcd_put_surely(s, "/t/z", "1") == 0);
        etcd_keep(s, 5, &lost);
        etcd_watch(s, "/t/", true, 0, w);
        for (int i = 0; i < 20; i++)
            etcd_txn_start(s, &(struct er_store_txn){.then_ops = &op, .then_n = 1}, &a[i]);
        if (round % 2)
            s->ops->dispatch(s, er_now_us());
        s->ops->free(s);
    }
    etcd_stop(&e);
    free(w);
}

static void a_missing_module_is_named_with_what_to_do(void)
{
    const struct er_store_etcd_module *module = NULL;
    struct er_error err = ER_ERROR_INIT;
    int rc = er_store_etcd_load(&module, &err);

    /* this program lies elsewhere */
    er_tap_check(rc == ER_E_UNSUPPORTED && strstr(err.text, "libgrpc-dev"));
}

static void the_module_has_what_the_loader_wants(void)
{
    const struct er_store_etcd_module *module;
    struct er_error err = ER_ERROR_INIT;
    void *handle = dlopen(er_test_bin("er_store_etcd.so"), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

    if (!er_tap_check(handle != NULL)) {
        er_tap_note("%s", dlerror());
        return;
    }
    module = dlsym(handle, ER_STORE_ETCD_SYMBOL);
    er_tap_require(module && module->version == ER_STORE_ETCD_VERSION);
    er_tap_check(module->open(&(struct er_store *){NULL},
                              &(struct er_etcd_opts){.endpoints = "a:b"}, &err) == ER_E_CONFIG);
    er_tap_check(strstr(err.text, "a:b") != NULL);
}

/* A program's signals must reach its own threads: those of gRPC block all. */
static void threads_of_grpc_take_no_signals(void)
{
    struct etcd_cluster e;
    struct er_store *s;
    char path[64], *text, *at;
    struct dirent *entry;
    DIR *tasks;
    int others = 0;

    etcd_start(&e, 1);
    s = etcd_open(&e);
    er_tap_check(etcd_put_surely(s, "/t/a", "1") == 0);
    tasks = opendir("/proc/self/task");
    er_tap_require(tasks != NULL);
    while ((entry = readdir(tasks)) != NULL) {
        if (entry->d_name[0] == '.' || atoi(entry->d_name) == getpid())
            continue;
        snprintf(path, sizeof(path), "/proc/self/task/%.20s/status", entry->d_name);
        text = er_test_read_file(path);
        at = text ? strstr(text, "SigBlk:") : NULL;
        if (at) { /* TERM 15, INT 2, CHLD 17, HUP 1 */
            unsigned long long blocked = strtoull(at + 7, NULL, 16);

            others++;
            er_tap_check((blocked & 0x14003) == 0x14003);
        }
        free(text);
    }
    closedir(tasks);
    er_tap_check(others > 0);
    s->ops->free(s);
    etcd_stop(&e);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"watch_from_now_sees_what_is_written_after_the_call",
         watch_from_now_sees_what_is_written_after_the_call, 0},
        {"thousand_deletes_of_one_revision_are_one_call",
         thousand_deletes_of_one_revision_are_one_call, 0},
        {"what_is_asked_is_counted", what_is_asked_is_counted, 0},
        {"a_large_history_is_replayed_through_fragments",
         a_large_history_is_replayed_through_fragments, 0},
        {"compaction_ends_a_watch_that_starts_before_it",
         compaction_ends_a_watch_that_starts_before_it, 0},
        {"a_restarted_etcd_is_found_again_and_nothing_is_missed",
         a_restarted_etcd_is_found_again_and_nothing_is_missed, 0},
        {"another_store_behind_the_endpoint_ends_watches_and_leases",
         another_store_behind_the_endpoint_ends_watches_and_leases, 0},
        {"a_lease_that_another_client_revokes_is_lost", a_lease_that_another_client_revokes_is_lost,
         0},
        {"a_kept_lease_outlives_its_ttl", a_kept_lease_outlives_its_ttl, 0},
        {"a_write_to_a_frozen_etcd_is_doubtful_the_next_is_not_sent",
         a_write_to_a_frozen_etcd_is_doubtful_the_next_is_not_sent, 0},
        {"grants_and_revokes_are_repeated_until_it_is_certain",
         grants_and_revokes_are_repeated_until_it_is_certain, 0},
        {"requests_wait_for_an_etcd_that_starts_late", requests_wait_for_an_etcd_that_starts_late,
         0},
        {"freeing_with_everything_under_way_is_clean", freeing_with_everything_under_way_is_clean,
         0},
        {"a_missing_module_is_named_with_what_to_do", a_missing_module_is_named_with_what_to_do, 0},
        {"the_module_has_what_the_loader_wants", the_module_has_what_the_loader_wants, 0},
        {"threads_of_grpc_take_no_signals", threads_of_grpc_take_no_signals, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
