#include "rendezvous/etcd_conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "rendezvous/etcd_conn_internal.h"
#include "rendezvous/etcd_order.h"

/*
 * Unary requests: wait for a session, are sent, and are sent again when they were certainly not
 * applied, until their time is over. A write whose outcome is unknown ends at once, so that its
 * owner reads; what can be repeated without harm (reads, grants by id, revokes) is repeated.
 */

#define BUSY_MIN_US    50000u /* wait before asking an overloaded store again */
#define BUSY_MORE_US   250000u
#define LOOKED_MAX     256
#define ATTEMPT_MAX_US 4000000u
#define STRIKES_MAX    3 /* timeouts in a row that cost an endpoint its session */

enum request_kind { REQUEST_TXN, REQUEST_GRANT, REQUEST_REVOKE, REQUEST_TTL };

static const char *const methods[] = {
    [REQUEST_TXN] = ER_ETCD_METHOD_TXN,
    [REQUEST_GRANT] = ER_ETCD_METHOD_GRANT,
    [REQUEST_REVOKE] = ER_ETCD_METHOD_REVOKE,
    [REQUEST_TTL] = ER_ETCD_METHOD_TTL,
};

struct etcd_request {
    struct er_list node;
    struct er_etcd_conn *conn;
    enum request_kind kind;
    struct er_buf message;
    uint64_t deadline_us, not_before_us, sent_us, first_sent_us;
    uint64_t known_rev; /* when it was sent */
    unsigned epoch;
    struct er_etcd_touch touch;   /* TXN */
    struct er_etcd_ranges ranges; /* TXN */
    struct er_list *turns, turn;  /* TXN: its client's, in order */
    bool blocked;                 /* waits for an earlier one that touches the same keys */
    bool repeatable;              /* may be sent again although it may have been applied */
    bool doubtful;                /* ... and that is so */
    struct er_grpc_call *call;
    int rc; /* answered */
    uint64_t lease, ttl_us;
    er_store_txn_fn txn_done;
    er_store_lease_fn lease_done;
    void *user;
};

static int request_new(struct er_etcd_conn *c, enum request_kind kind, void *user,
                       struct etcd_request **ret)
{
    struct etcd_request *r;

    if (c->request_n == ER_ETCD_REQUESTS_MAX)
        return ER_E_LIMIT;
    r = calloc(1, sizeof(*r));
    if (!r)
        return -ENOMEM;
    r->conn = c;
    r->kind = kind;
    r->user = user;
    r->deadline_us = er_deadline_in(er_now_us(), c->request_timeout_us);
    er_buf_init(&r->message, ER_ETCD_MESSAGE_MAX);
    er_list_init(&r->node);
    er_list_init(&r->turn);
    c->request_n++;
    *ret = r;
    return 0;
}

static void request_free(struct etcd_request *r)
{
    er_list_remove(&r->node);
    er_list_remove(&r->turn);
    er_buf_done(&r->message);
    er_etcd_touch_done(&r->touch);
    r->conn->request_n--;
    free(r);
}

/* ---- ends ---- */

static void tell(struct etcd_request *r, int rc, const struct er_store_reply *reply)
{
    if (r->kind == REQUEST_TXN)
        r->txn_done(r->user, rc, rc ? NULL : reply);
    else if (r->lease_done)
        r->lease_done(r->user, rc, r->lease, r->ttl_us);
}

static void end(struct etcd_request *r, int rc, const struct er_store_reply *reply)
{
    er_list_remove(&r->node);
    if (rc == 0 && (r->kind == REQUEST_GRANT || r->kind == REQUEST_TTL))
        (void)er_etcd_leases_granted(r->conn->leases, r->lease, r->ttl_us, r->first_sent_us);
    tell(r, rc, reply);
    request_free(r);
}

/* From inside a call of the owner: the next dispatch tells. */
static void end_later(struct etcd_request *r, int rc)
{
    r->rc = rc;
    er_list_remove(&r->node);
    er_list_push_back(&r->conn->answered, &r->node);
}

void etcd_requests_answer(struct er_etcd_conn *c)
{
    struct er_list now;

    er_list_init(&now);
    er_list_for_each_safe (node, &c->answered) {
        er_list_remove(node);
        er_list_push_back(&now, node);
    }
    while (!er_list_empty(&now)) {
        struct etcd_request *r = ER_LIST_ITEM(now.next, struct etcd_request, node);

        end(r, r->rc, NULL);
    }
}

static int given_up(const struct etcd_request *r)
{
    return r->doubtful && r->kind != REQUEST_TXN ? ER_E_AMBIGUOUS : -ENOTCONN;
}

void etcd_requests_fail(struct er_etcd_conn *c, int rc)
{
    er_list_for_each_safe (node, &c->waiting) {
        struct etcd_request *r = ER_LIST_ITEM(node, struct etcd_request, node);

        end_later(r, r->doubtful ? given_up(r) : rc);
    }
}

/* ---- answers ---- */

static void again(struct etcd_request *r, uint64_t delay_us)
{
    uint64_t now = er_now_us();

    if (now >= r->deadline_us) {
        end(r, given_up(r), NULL);
        return;
    }
    r->not_before_us = er_deadline_in(now, delay_us);
    er_list_remove(&r->node);
    er_list_push_back(r->conn->waiting.next, &r->node); /* in front of the others */
}

static void on_txn_answer(struct etcd_request *r, const void *data, size_t n)
{
    struct er_etcd_txn_answer a;
    int rc = er_etcd_decode_txn(data, n, r->ranges, &a);

    if (rc < 0) { /* it was carried out, but how? */
        end(r, r->repeatable ? rc : ER_E_AMBIGUOUS, NULL);
        return;
    }
    etcd_heard(r->conn, &a.header, r->known_rev);
    end(r, 0, &a.reply);
    er_etcd_txn_answer_done(&a);
}

static void on_lease_answer(struct etcd_request *r, const void *data, size_t n)
{
    struct er_etcd_lease_answer a = {.id = r->lease};
    int rc = 0;

    if (r->kind == REQUEST_GRANT)
        rc = er_etcd_decode_grant(data, n, &a);
    else if (r->kind == REQUEST_TTL)
        rc = er_etcd_decode_ttl(data, n, &a);
    if (rc == 0 && a.id != r->lease)
        rc = ER_E_PROTOCOL;
    if (rc == 0 && r->kind != REQUEST_REVOKE) {
        etcd_heard(r->conn, &a.header, 0);
        r->ttl_us = a.ttl_us;
        rc = a.ttl_us ? 0 : -ENOENT;
    }
    end(r, rc, NULL);
}

/* A repeated grant finds its own lease: ask what was granted. */
static void ask_ttl(struct etcd_request *r)
{
    int rc;

    r->kind = REQUEST_TTL;
    er_buf_clear(&r->message);
    rc = er_etcd_encode_ttl(r->lease, &r->message);
    if (rc < 0)
        end(r, ER_E_AMBIGUOUS, NULL);
    else
        again(r, 0);
}

static void on_final(struct etcd_request *r, int rc)
{
    if (r->kind == REQUEST_GRANT && rc == -EEXIST && r->doubtful)
        ask_ttl(r);
    else if (r->kind == REQUEST_REVOKE && rc == -ENOENT && r->doubtful)
        end(r, 0, NULL);
    else
        end(r, rc, NULL);
}

/* Who has said nothing since is gone. Who has is busy: the next attempts get more time, and only
 * several in a row cost the session; those that were under way together count as one. */
static void on_timeout(struct er_etcd_conn *c, uint64_t sent_us, const char *text)
{
    if (sent_us > c->strike_us) {
        c->strikes++;
        c->strike_us = er_now_us();
        c->attempt_us = c->attempt_us * 2 < ATTEMPT_MAX_US ? c->attempt_us * 2 : ATTEMPT_MAX_US;
    }
    if (c->heard_us <= sent_us || c->strikes >= STRIKES_MAX)
        etcd_session_fail(c, false, "request", text);
}

/* What the failure says about the session with the endpoint. */
static void judge_session(struct er_etcd_conn *c, uint64_t sent_us, const struct er_etcd_verdict *v,
                          const char *text)
{
    switch (v->class) {
    case ER_ETCD_BAD_TOKEN:
        etcd_session_login(c);
        break;
    case ER_ETCD_UNREACHABLE:
    case ER_ETCD_REFUSED:
    case ER_ETCD_CUT:
    case ER_ETCD_NO_LEADER:
        etcd_session_fail(c, v->class == ER_ETCD_REFUSED, "request", text);
        break;
    case ER_ETCD_TIMEOUT:
        on_timeout(c, sent_us, text);
        break;
    case ER_ETCD_OK:
    case ER_ETCD_BUSY:
    case ER_ETCD_NO_AUTH:
    case ER_ETCD_FINAL:
        break;
    }
}

static void on_failure(struct etcd_request *r, const struct er_etcd_verdict *v, const char *text)
{
    struct er_etcd_conn *c = r->conn;
    bool current = r->epoch == c->epoch && c->session == ETCD_UP;
    uint64_t sent_us = r->sent_us;

    if (v->from_server && current && v->class != ER_ETCD_TIMEOUT)
        c->heard_us = er_now_us();
    if (v->class == ER_ETCD_FINAL) {
        etcd_answered(c, sent_us);
        on_final(r, v->rc);
    } else if (v->applied_unknown && !r->repeatable) {
        end(r, ER_E_AMBIGUOUS, NULL);
    } else {
        r->doubtful = r->doubtful || v->applied_unknown;
        again(r,
              v->class == ER_ETCD_BUSY ? BUSY_MIN_US + er_rand_below(&c->rand, BUSY_MORE_US) : 0);
    }
    if (current)
        judge_session(c, sent_us, v, text);
}

static enum er_etcd_op op_of(const struct etcd_request *r)
{
    if (r->kind != REQUEST_TXN)
        return ER_ETCD_OP_LEASE;
    return r->repeatable ? ER_ETCD_OP_RANGE : ER_ETCD_OP_TXN;
}

static void on_answer(void *user, const struct er_grpc_status *status, const void *data, size_t n)
{
    struct etcd_request *r = user;
    struct er_etcd_conn *c = r->conn;
    struct er_etcd_verdict v = er_etcd_judge(status->code, status->text);

    r->call = NULL;
    c->flying_n--;
    etcd_count(c, op_of(r), status->code, r->sent_us);
    if (v.class != ER_ETCD_OK) {
        on_failure(r, &v, status->text);
        return;
    }
    if (r->epoch == c->epoch) {
        c->heard_us = er_now_us();
        c->strikes = 0;
        if (c->heard_us - r->sent_us < c->attempt_timeout_us / 2)
            c->attempt_us = c->attempt_timeout_us;
    }
    etcd_answered(c, r->sent_us);
    if (r->kind == REQUEST_TXN)
        on_txn_answer(r, data, n);
    else
        on_lease_answer(r, data, n);
}

/* ---- sending ---- */

static void send_request(struct er_etcd_conn *c, struct etcd_request *r, uint64_t now)
{
    uint64_t left = r->deadline_us - now;
    struct er_grpc_opts opts = {
        .token = *c->auth.token ? c->auth.token : NULL,
        .timeout_us = left < c->attempt_us ? left : c->attempt_us,
    };

    if (er_grpc_unary(etcd_current(c)->channel, methods[r->kind], r->message.data, r->message.len,
                      &opts, on_answer, r, &r->call) < 0) {
        end(r, r->doubtful ? given_up(r) : -ENOTCONN, NULL);
        return;
    }
    r->sent_us = now;
    r->first_sent_us = r->first_sent_us ? r->first_sent_us : now;
    r->epoch = c->epoch;
    r->known_rev = c->known_rev;
    er_list_remove(&r->node);
    er_list_push_back(&c->flying, &r->node);
    c->flying_n++;
}

/* Behind an earlier one of its client that waits or is under way? */
static bool is_blocked(const struct etcd_request *r)
{
    for (const struct er_list *node = r->turn.prev; r->turns && node != r->turns;
         node = node->prev) {
        const struct etcd_request *other = ER_LIST_ITEM(node, struct etcd_request, turn);

        if (er_etcd_touch_conflict(&other->touch, &r->touch))
            return true;
    }
    return false;
}

static bool all_held(const struct er_etcd_conn *c)
{
    return c->session != ETCD_UP || c->flying_n >= ER_ETCD_FLYING_MAX;
}

static bool may_send(struct etcd_request *r, uint64_t now)
{
    if (r->not_before_us > now)
        return false;
    r->blocked = is_blocked(r);
    return !r->blocked;
}

/* The list is by deadline, near enough: what is sent again goes to its front. Only so many are
 * looked at, so that a long queue costs no more. */
void etcd_requests_pump(struct er_etcd_conn *c)
{
    uint64_t now = er_now_us();
    unsigned looked = 0;

    er_list_for_each_safe (node, &c->waiting) {
        struct etcd_request *r = ER_LIST_ITEM(node, struct etcd_request, node);

        if (r->deadline_us <= now)
            end_later(r, given_up(r));
        else if (all_held(c) || ++looked > LOOKED_MAX)
            break;
        else if (may_send(r, now))
            send_request(c, r, now);
    }
    etcd_requests_answer(c);
}

uint64_t etcd_requests_deadline(const struct er_etcd_conn *c)
{
    uint64_t at = ER_FOREVER;
    unsigned looked = 0;

    if (!er_list_empty(&c->answered))
        return 0;
    er_list_for_each (node, &c->waiting) {
        const struct etcd_request *r = ER_LIST_ITEM(node, struct etcd_request, node);
        bool held = r->blocked || all_held(c);
        uint64_t mine =
            held || r->not_before_us > r->deadline_us ? r->deadline_us : r->not_before_us;

        at = mine < at ? mine : at;
        if (all_held(c) || ++looked > LOOKED_MAX)
            break;
    }
    return at;
}

void etcd_requests_free(struct er_etcd_conn *c)
{
    struct er_list *const lists[] = {&c->waiting, &c->flying, &c->answered};

    for (size_t i = 0; i < ER_ARRAY_N(lists); i++) {
        er_list_for_each_safe (node, lists[i]) {
            struct etcd_request *r = ER_LIST_ITEM(node, struct etcd_request, node);

            er_grpc_cancel(r->call);
            request_free(r);
        }
    }
}

/* ---- the port's calls ---- */

static int queue(struct etcd_request *r, int encoded)
{
    if (encoded == -ENOMEM) {
        request_free(r);
        return encoded;
    }
    if (encoded < 0)
        end_later(r, encoded == -ENOBUFS ? -E2BIG : encoded);
    else
        er_list_push_back(&r->conn->waiting, &r->node);
    etcd_wake(r->conn);
    return 0;
}

static bool only_reads(const struct er_store_op *ops, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (ops[i].kind != ER_OP_RANGE)
            return false;
    }
    return true;
}

int er_etcd_conn_txn(struct er_etcd_conn *c, struct er_list *turns, const struct er_store_txn *txn,
                     er_store_txn_fn done, void *user)
{
    struct etcd_request *r = NULL;
    int rc = request_new(c, REQUEST_TXN, user, &r);

    if (rc < 0)
        return rc;
    r->txn_done = done;
    r->turns = turns;
    er_list_push_back(turns, &r->turn);
    r->repeatable =
        only_reads(txn->then_ops, txn->then_n) && only_reads(txn->else_ops, txn->else_n);
    r->ranges = er_etcd_ranges_of(txn);
    rc = er_etcd_touch_init(&r->touch, txn);
    return queue(r, rc < 0 ? rc : er_etcd_encode_txn(txn, &r->message));
}

void er_etcd_turns_end(struct er_list *turns)
{
    er_list_for_each_safe (node, turns) {
        ER_LIST_ITEM(node, struct etcd_request, turn)->turns = NULL;
        er_list_remove(node);
    }
}

int er_etcd_conn_grant(struct er_etcd_conn *c, uint64_t id, uint64_t ttl_us, er_store_lease_fn done,
                       void *user)
{
    struct etcd_request *r = NULL;
    int rc = request_new(c, REQUEST_GRANT, user, &r);

    if (rc < 0)
        return rc;
    r->lease = id;
    r->lease_done = done;
    r->repeatable = true;
    /* id 0 would let the server choose */
    return queue(r, id ? er_etcd_encode_grant(id, ttl_us, &r->message) : -EINVAL);
}

int er_etcd_conn_revoke(struct er_etcd_conn *c, uint64_t id, er_store_lease_fn done, void *user)
{
    struct etcd_request *r = NULL;
    int rc = request_new(c, REQUEST_REVOKE, user, &r);

    if (rc < 0)
        return rc;
    r->lease = id;
    r->lease_done = done;
    r->repeatable = true;
    return queue(r, er_etcd_encode_revoke(id, &r->message));
}
