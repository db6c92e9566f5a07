#include <criterion/criterion.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/etcd_watch.h"

/* One watch's owner; what it was told, as text: "12:a=1,b- " is revision 12, a put to 1, b
 * deleted; "!stale ". */
struct owner {
    char told[512];
    struct er_etcd_watches *ws;
    uint64_t id, remove;
    bool add;
};

static void on_watch(void *user, int rc, const struct er_store_event *events, size_t n,
                     uint64_t revision)
{
    struct owner *o = user;
    char *at = o->told + strlen(o->told);
    size_t left = sizeof(o->told) - strlen(o->told);

    if (rc) {
        snprintf(at, left, "!%s ", rc == ER_E_STALE ? "stale" : rc == -EACCES ? "denied" : "?");
    } else {
        at += snprintf(at, left, "%llu:", (unsigned long long)revision);
        for (size_t i = 0; i < n; i++) {
            cr_assert_eq(events[i].kv.mod_rev, revision);
            at += sprintf(at, "%s%.*s%s", i ? "," : "", (int)events[i].kv.key.len,
                          (const char *)events[i].kv.key.data,
                          events[i].kind == ER_STORE_PUT ? "+" : "-");
        }
        strcat(at, " ");
    }
    if (o->remove)
        er_etcd_watches_remove(o->ws, o->remove);
    if (o->add) {
        o->add = false;
        cr_assert_eq(er_etcd_watches_add(o->ws, (struct er_bytes){"z", 1}, false, 1, 0, on_watch, o,
                                         &(uint64_t){0}),
                     0);
    }
}

static struct er_etcd_watches *watches_new(void)
{
    struct er_etcd_watches *ws = NULL;

    cr_assert_eq(er_etcd_watches_new(&ws), 0);
    return ws;
}

static void add(struct er_etcd_watches *ws, struct owner *o, const char *key, uint64_t start,
                uint64_t known)
{
    o->ws = ws;
    cr_assert_eq(er_etcd_watches_add(ws, (struct er_bytes){key, strlen(key)}, true, start, known,
                                     on_watch, o, &o->id),
                 0);
}

/* The next request, as text: "create 1 k/ 7", "cancel 1", "". */
static const char *next(struct er_etcd_watches *ws)
{
    static char text[128];
    struct er_etcd_watch_request r;

    if (!er_etcd_watches_next_request(ws, &r))
        return "";
    if (r.kind == ER_ETCD_WATCH_CREATE)
        snprintf(text, sizeof(text), "create %llu %.*s %llu", (unsigned long long)r.wire_id,
                 (int)r.key.len, (const char *)r.key.data, (unsigned long long)r.start_rev);
    else
        snprintf(text, sizeof(text), "cancel %llu", (unsigned long long)r.wire_id);
    return text;
}

static enum er_etcd_watch_outcome answer(struct er_etcd_watches *ws, struct er_etcd_watch_answer a,
                                         const char *reason, bool may_login)
{
    snprintf(a.reason, sizeof(a.reason), "%s", reason);
    return er_etcd_watches_answer(ws, &a, may_login);
}

static void created(struct er_etcd_watches *ws, int64_t wire_id)
{
    answer(ws, (struct er_etcd_watch_answer){.wire_id = wire_id, .created = true}, "", false);
}

/* Events as "12a+ 12b- 13c+"; the key is one letter. */
static void events(struct er_etcd_watches *ws, int64_t wire_id, bool fragment, const char *text)
{
    struct er_etcd_watch_answer a = {.wire_id = wire_id, .fragment = fragment};
    char *copy = strdup(text), *save = NULL;
    struct er_store_event *list = calloc(64, sizeof(*list));

    a.events = list;
    a.owned[1] = list;
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        struct er_store_event *e = &list[a.event_n++];
        char *end;

        e->kv.mod_rev = strtoull(word, &end, 10);
        e->kv.key = (struct er_bytes){strchr("abcdefgh", *end), 1};
        e->kind = end[1] == '+' ? ER_STORE_PUT : ER_STORE_DELETE;
    }
    er_etcd_watches_answer(ws, &a, false);
    free(copy);
}

Test(etcd_watch, goes_on_after_the_last_revision_it_delivered)
{
    struct er_etcd_watches *ws = watches_new();
    struct owner o = {.told = ""};

    add(ws, &o, "k/", 5, 0);
    cr_assert(er_etcd_watches_pending(ws));
    cr_assert_str_eq(next(ws), "create 1 k/ 5");
    cr_assert_str_eq(next(ws), "");
    created(ws, 1);
    events(ws, 1, false, "5a+ 7a- 7b+ 9c+");
    cr_assert_str_eq(o.told, "5:a+ 7:a-,b+ 9:c+ ");
    er_etcd_watches_connected(ws, 20);
    cr_assert_str_eq(next(ws), "create 2 k/ 10");
    created(ws, 2);
    events(ws, 2, false, "9c+ 11d+");
    cr_assert_str_eq(o.told, "5:a+ 7:a-,b+ 9:c+ 11:d+ ", "what was delivered comes once");
    er_etcd_watches_free(ws);
}

Test(etcd_watch, from_now_is_fixed_when_the_revision_is_known)
{
    struct er_etcd_watches *ws = watches_new();
    struct owner a = {.told = ""}, b = {.told = ""};

    add(ws, &a, "a", 0, 41);
    add(ws, &b, "b", 0, 0);
    er_etcd_watches_connected(ws, 50);
    cr_assert_str_eq(next(ws), "create 1 a 42");
    cr_assert_str_eq(next(ws), "create 2 b 51");
    er_etcd_watches_connected(ws, 60); /* broke before an answer */
    cr_assert_str_eq(next(ws), "create 3 a 42");
    cr_assert_str_eq(next(ws), "create 4 b 51");
    er_etcd_watches_free(ws);
}

Test(etcd_watch, one_from_when_it_is_opened_says_so_first)
{
    struct er_etcd_watches *ws = watches_new();
    struct owner o = {.told = ""};

    add(ws, &o, "k/", ER_STORE_OPENED, 41);
    cr_assert_str_eq(next(ws), "create 1 k/ 0");
    er_etcd_watches_connected(ws, 50); /* broke before an answer */
    cr_assert_str_eq(next(ws), "create 2 k/ 0");
    answer(ws, (struct er_etcd_watch_answer){.wire_id = 2, .created = true, .header.revision = 60},
           "", false);
    cr_assert_str_eq(o.told, "60: ");
    events(ws, 2, false, "60a+ 61b+");
    cr_assert_str_eq(o.told, "60: 61:b+ ");
    er_etcd_watches_connected(ws, 70);
    cr_assert_str_eq(next(ws), "create 3 k/ 62");
    created(ws, 3);
    cr_assert_str_eq(o.told, "60: 61:b+ ", "it is told once");
    er_etcd_watches_free(ws);
}

Test(etcd_watch, a_revision_in_fragments_is_one_call)
{
    struct er_etcd_watches *ws = watches_new();
    struct owner o = {.told = ""};

    add(ws, &o, "k", 1, 0);
    next(ws);
    created(ws, 1);
    events(ws, 1, true, "3a+ 4a+ 4b+");
    cr_assert_str_eq(o.told, "3:a+ ");
    events(ws, 1, true, "4c+");
    events(ws, 1, false, "4d+ 5e+");
    cr_assert_str_eq(o.told, "3:a+ 4:a+,b+,c+,d+ 5:e+ ");
    events(ws, 1, true, "6a+");
    er_etcd_watches_connected(ws, 9);
    cr_assert_str_eq(next(ws), "create 2 k 6", "an unfinished revision comes again");
    created(ws, 2);
    events(ws, 2, false, "6a+ 6b+");
    cr_assert_str_eq(o.told, "3:a+ 4:a+,b+,c+,d+ 5:e+ 6:a+,b+ ");
    er_etcd_watches_free(ws);
}

Test(etcd_watch, endless_fragments_have_a_bound)
{
    struct er_etcd_watches *ws = watches_new();
    struct owner o = {.told = ""};

    add(ws, &o, "k", 1, 0);
    next(ws);
    created(ws, 1);
    for (int i = 0; i < ER_ETCD_HELD_MAX + 1; i++)
        events(ws, 1, true, "3a+");
    cr_assert_str_eq(o.told, "!stale ");
    cr_assert_str_eq(next(ws), "cancel 1");
    cr_assert_eq(er_etcd_watches_n(ws), 0u);
    er_etcd_watches_free(ws);
}

Test(etcd_watch, compaction_ends_it)
{
    struct er_etcd_watches *ws = watches_new();
    struct owner o = {.told = ""};

    add(ws, &o, "k", 1, 0);
    next(ws);
    created(ws, 1);
    answer(ws, (struct er_etcd_watch_answer){.wire_id = 1, .canceled = true, .compact_rev = 10}, "",
           false);
    cr_assert_str_eq(o.told, "!stale ");
    cr_assert_eq(er_etcd_watches_n(ws), 0u);
    er_etcd_watches_free(ws);
}

Test(etcd_watch, a_refusal_is_matched_by_order_and_asks_for_one_login)
{
    static const struct er_etcd_watch_answer refused = {
        .wire_id = -1, .created = true, .canceled = true};
    const char *why = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
    struct er_etcd_watches *ws = watches_new();
    struct owner a = {.told = ""}, b = {.told = ""};

    add(ws, &a, "a", 1, 0);
    add(ws, &b, "b", 1, 0);
    next(ws);
    next(ws);
    created(ws, 1);
    cr_assert_eq(answer(ws, refused, why, true), ER_ETCD_WATCH_LOGIN);
    cr_assert_str_eq(b.told, "");
    er_etcd_watches_connected(ws, 1);
    cr_assert_str_eq(next(ws), "create 3 a 1");
    cr_assert_str_eq(next(ws), "create 4 b 1");
    created(ws, 3);
    cr_assert_eq(answer(ws, refused, why, true), ER_ETCD_WATCH_HANDLED);
    cr_assert_str_eq(b.told, "!denied ");
    cr_assert_str_eq(a.told, "");
    er_etcd_watches_free(ws);
}

Test(etcd_watch, removed_ones_are_silent_and_cancelled)
{
    struct er_etcd_watches *ws = watches_new();
    struct owner fresh = {.told = ""}, asked = {.told = ""}, live = {.told = ""};

    add(ws, &live, "l", 1, 0);
    add(ws, &asked, "a", 1, 0);
    next(ws);
    next(ws);
    created(ws, 1);
    add(ws, &fresh, "f", 1, 0);
    er_etcd_watches_remove(ws, fresh.id);
    er_etcd_watches_remove(ws, asked.id);
    er_etcd_watches_remove(ws, live.id);
    er_etcd_watches_remove(ws, live.id);
    cr_assert_str_eq(next(ws), "cancel 1");
    cr_assert_str_eq(next(ws), "", "what was asked for is cancelled when its answer came");
    created(ws, 2);
    cr_assert_str_eq(next(ws), "cancel 2");
    events(ws, 1, false, "3a+");
    events(ws, 2, false, "3a+");
    cr_assert_str_eq(live.told, "");
    cr_assert_str_eq(asked.told, "");
    cr_assert_eq(er_etcd_watches_n(ws), 0u);
    er_etcd_watches_free(ws);
}

Test(etcd_watch, callbacks_may_add_and_remove)
{
    struct er_etcd_watches *ws = watches_new();
    struct owner o = {.told = "", .add = true};

    add(ws, &o, "k", 1, 0);
    next(ws);
    created(ws, 1);
    o.remove = o.id;
    events(ws, 1, false, "3a+ 4a+");
    cr_assert_str_eq(o.told, "3:a+ ");
    cr_assert_eq(er_etcd_watches_n(ws), 1u);
    cr_assert_str_eq(next(ws), "cancel 1");
    cr_assert_str_eq(next(ws), "create 2 z 1");
    er_etcd_watches_free(ws);
}

Test(etcd_watch, another_store_ends_all_of_them)
{
    struct er_etcd_watches *ws = watches_new();
    struct owner a = {.told = "", .add = true}, b = {.told = ""};

    add(ws, &a, "a", 1, 0);
    next(ws);
    created(ws, 1);
    add(ws, &b, "b", 1, 0);
    er_etcd_watches_stale(ws);
    cr_assert_str_eq(a.told, "!stale ");
    cr_assert_str_eq(b.told, "!stale ");
    cr_assert_eq(er_etcd_watches_n(ws), 1u, "the one that a callback added stays");
    er_etcd_watches_free(ws);
}

Test(etcd_watch, answers_of_nobody_are_ignored)
{
    struct er_etcd_watches *ws = watches_new();

    created(ws, 1);
    events(ws, 1, false, "3a+");
    answer(ws, (struct er_etcd_watch_answer){.wire_id = -1}, "", false);
    answer(ws, (struct er_etcd_watch_answer){.wire_id = 0, .canceled = true}, "", false);
    er_etcd_watches_free(ws);
}
