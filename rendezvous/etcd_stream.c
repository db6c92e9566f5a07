#include "rendezvous/etcd_conn.h"

#include <errno.h>
#include <string.h>

#include "rendezvous/etcd_conn_internal.h"

/* The two streams of a session, and the silence on them. */

/* A client that keeps no lease has nobody who misses an answer: it asks for a sign of life. */
#define BEAT_AFTER_US    5000000u
#define BEAT_EVERY_US    1000000u
#define BEAT_PATIENCE_US 3000000u

static void on_closed(struct er_etcd_conn *c, const char *what, const struct er_grpc_status *status)
{
    struct er_etcd_verdict v = er_etcd_judge(status->code, status->text);

    if (v.class == ER_ETCD_BAD_TOKEN)
        etcd_session_login(c);
    else
        etcd_session_fail(c, v.class == ER_ETCD_REFUSED || v.rc == -EACCES, what,
                          status->code ? status->text : "ended by the server");
}

static void broken(struct er_etcd_conn *c, const char *what)
{
    etcd_session_fail(c, false, what, "an answer that cannot be read");
}

/* ---- watches ---- */

static void on_watch_message(void *user, const void *data, size_t n)
{
    struct er_etcd_conn *c = user;
    struct er_etcd_watch_answer a;
    bool may_login = c->auth.user && !c->auth.off;

    if (er_etcd_decode_watch(data, n, &a) < 0) {
        broken(c, "watch");
        return;
    }
    etcd_heard(c, &a.header, 0);
    if (a.created)
        etcd_count(c, ER_ETCD_OP_WATCH, ER_GRPC_OK, 0);
    if (c->beat_us && !a.created && !a.canceled && a.event_n == 0)
        etcd_answered(c, c->beat_us);
    for (size_t i = 0; i < a.event_n; i++) {
        if (a.events[i].kv.mod_rev > c->known_rev)
            c->known_rev = a.events[i].kv.mod_rev;
    }
    if (er_etcd_watches_answer(c->watches, &a, may_login) == ER_ETCD_WATCH_LOGIN)
        etcd_session_login(c);
}

static void on_watch_closed(void *user, const struct er_grpc_status *status)
{
    struct er_etcd_conn *c = user;

    c->watch_stream = NULL;
    etcd_count(c, ER_ETCD_OP_WATCH, status->code, 0);
    on_closed(c, "watch", status);
}

/* ---- keep-alives ---- */

static void on_keep_message(void *user, const void *data, size_t n)
{
    struct er_etcd_conn *c = ((struct etcd_keeper *)user)->conn;
    struct er_etcd_lease_answer a;
    uint64_t asked_us;

    if (er_etcd_decode_keep_alive(data, n, &a) < 0) {
        broken(c, "keep-alive");
        return;
    }
    etcd_heard(c, &a.header, 0);
    asked_us = er_etcd_leases_asked(c->leases, a.id);
    etcd_count(c, ER_ETCD_OP_LEASE, ER_GRPC_OK, asked_us);
    etcd_answered(c, asked_us);
    er_etcd_leases_answer(c->leases, a.id, a.ttl_us, er_now_us());
}

static void on_keep_closed(void *user, const struct er_grpc_status *status)
{
    struct etcd_keeper *k = user;

    k->stream = NULL;
    etcd_count(k->conn, ER_ETCD_OP_LEASE, status->code, 0);
    on_closed(k->conn, "keep-alive", status);
}

/* ---- both ---- */

static struct er_grpc_call *open_stream(struct er_etcd_conn *c, const char *method,
                                        const struct er_grpc_stream_callbacks *cb, void *user)
{
    struct er_grpc_opts opts = {.token = *c->auth.token ? c->auth.token : NULL,
                                .hasleader = true,
                                .timeout_us = ER_FOREVER};
    struct er_grpc_call *stream = NULL;

    (void)er_grpc_stream(etcd_current(c)->channel, method, &opts, cb, user, &stream);
    return stream; /* NULL, out of memory: the next pump tries again */
}

static void pump_watches(struct er_etcd_conn *c)
{
    static const struct er_grpc_stream_callbacks cb = {on_watch_message, on_watch_closed};
    struct er_etcd_watch_request request;

    if (!c->watch_stream && er_etcd_watches_n(c->watches)) {
        er_etcd_watches_connected(c->watches, c->known_rev);
        c->watch_stream = open_stream(c, ER_ETCD_METHOD_WATCH, &cb, c);
    }
    while (c->watch_stream && er_etcd_watches_next_request(c->watches, &request)) {
        er_buf_clear(&c->scratch);
        if (er_etcd_encode_watch(&request, &c->scratch) < 0 ||
            er_grpc_send(c->watch_stream, c->scratch.data, c->scratch.len) < 0) {
            etcd_session_fail(c, false, "watch", "out of memory");
            return;
        }
    }
}

/* Who answers something else just now is busy, not gone: to connect anew would make it worse. A
 * member without a leader answers nothing at all. */
static bool bears_with(struct er_etcd_conn *c, uint64_t now)
{
    return now < er_deadline_in(c->heard_us, ER_ETCD_OVERDUE_MIN_US) &&
           er_etcd_leases_bear(c->leases, now);
}

static bool ask_to_keep(struct er_etcd_conn *c, uint64_t id)
{
    static const struct er_grpc_stream_callbacks cb = {on_keep_message, on_keep_closed};
    struct etcd_keeper *k = &c->keepers[id % c->keeper_n];

    k->conn = c;
    if (!k->stream)
        k->stream = open_stream(c, ER_ETCD_METHOD_KEEP_ALIVE, &cb, k);
    er_buf_clear(&c->scratch);
    return k->stream && er_etcd_encode_keep_alive(id, &c->scratch) == 0 &&
           er_grpc_send(k->stream, c->scratch.data, c->scratch.len) == 0;
}

static void pump_leases(struct er_etcd_conn *c, uint64_t now)
{
    uint64_t id;

    if (c->keeping_epoch != c->epoch) { /* what was asked in an older session is asked again */
        er_etcd_leases_connected(c->leases, now);
        c->keeping_epoch = c->epoch;
    }
    if (er_etcd_leases_overdue(c->leases, now) && !bears_with(c, now)) {
        etcd_session_fail(c, false, "keep-alive", "no answer in time");
        return;
    }
    while (er_etcd_leases_next(c->leases, now, &id)) {
        if (!ask_to_keep(c, id)) {
            etcd_session_fail(c, false, "keep-alive", "out of memory");
            return;
        }
    }
}

static void pump_beat(struct er_etcd_conn *c, uint64_t now)
{
    const struct er_etcd_watch_request beat = {.kind = ER_ETCD_WATCH_PROGRESS};

    if (!c->watch_stream || er_etcd_leases_any(c->leases)) {
        c->beat_us = c->beat_next_us = 0;
        return;
    }
    if (c->beat_us && c->heard_us >= c->beat_us)
        c->beat_us = 0;
    if (c->beat_us && now >= c->beat_us + BEAT_PATIENCE_US) {
        etcd_session_fail(c, false, "watch", "no sign of life");
        return;
    }
    if (c->beat_us == 0)
        c->beat_next_us = c->heard_us + BEAT_AFTER_US;
    if (now < c->beat_next_us)
        return;
    c->beat_us = c->beat_us ? c->beat_us : now;
    c->beat_next_us = now + BEAT_EVERY_US;
    er_buf_clear(&c->scratch);
    if (er_etcd_encode_watch(&beat, &c->scratch) == 0)
        (void)er_grpc_send(c->watch_stream, c->scratch.data, c->scratch.len);
}

void etcd_streams_pump(struct er_etcd_conn *c)
{
    uint64_t now = er_now_us();

    if (c->session == ETCD_UP)
        pump_leases(c, now);
    if (c->session == ETCD_UP)
        pump_watches(c);
    if (c->session == ETCD_UP)
        pump_beat(c, now);
}

void etcd_streams_close(struct er_etcd_conn *c)
{
    er_grpc_cancel(c->watch_stream);
    c->watch_stream = NULL;
    for (unsigned i = 0; i < c->keeper_n; i++) {
        er_grpc_cancel(c->keepers[i].stream);
        c->keepers[i].stream = NULL;
    }
    c->beat_us = c->beat_next_us = 0;
}

uint64_t etcd_streams_deadline(const struct er_etcd_conn *c)
{
    uint64_t at;

    if (c->session != ETCD_UP)
        return ER_FOREVER;
    if (er_etcd_watches_pending(c->watches))
        return 0;
    at = er_etcd_leases_deadline(c->leases);
    if (c->watch_stream && c->beat_next_us && c->beat_next_us < at)
        at = c->beat_next_us;
    return at;
}

/* ---- the port's calls ---- */

int er_etcd_conn_keep(struct er_etcd_conn *c, uint64_t id, er_store_lease_fn lost, void *user)
{
    if (id == 0 || id > INT64_MAX)
        return -EINVAL;
    etcd_wake(c);
    return er_etcd_leases_keep(c->leases, id, er_now_us(), lost, user);
}

int er_etcd_conn_watch(struct er_etcd_conn *c, struct er_bytes key, bool prefix, uint64_t start_rev,
                       er_store_watch_fn fn, void *user, uint64_t *ret_id)
{
    if (start_rev > INT64_MAX && start_rev != ER_STORE_OPENED)
        return -EINVAL;
    etcd_wake(c);
    return er_etcd_watches_add(c->watches, key, prefix, start_rev, c->known_rev, fn, user, ret_id);
}

void er_etcd_conn_forget(struct er_etcd_conn *c, uint64_t lease)
{
    er_etcd_leases_remove(c->leases, lease);
}

void er_etcd_conn_unwatch(struct er_etcd_conn *c, uint64_t id)
{
    etcd_wake(c);
    er_etcd_watches_remove(c->watches, id);
}
