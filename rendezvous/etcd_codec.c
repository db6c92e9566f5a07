#include "rendezvous/etcd_codec.h"

#include <rendezvous/proto/etcd.pb-c.h> /* generated from proto/etcd.proto */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"

#define MESSAGE(m) (&(m)->base)

static int append(struct er_buf *out, const ProtobufCMessage *m)
{
    size_t n = protobuf_c_message_get_packed_size(m);
    int rc = er_buf_reserve(out, n ? n : 1);

    if (rc < 0)
        return rc;
    protobuf_c_message_pack(m, (uint8_t *)out->data + out->len);
    out->len += n;
    out->data[out->len] = 0;
    return 0;
}

static int to_i64(uint64_t from, int64_t *to)
{
    *to = (int64_t)from;
    return from > INT64_MAX ? -EINVAL : 0;
}

static uint64_t to_u64(int64_t from)
{
    return from < 0 ? 0 : (uint64_t)from;
}

static ProtobufCBinaryData binary(struct er_bytes b)
{
    return (ProtobufCBinaryData){b.len, (uint8_t *)(uintptr_t)b.data};
}

static struct er_bytes bytes(ProtobufCBinaryData b)
{
    return (struct er_bytes){b.data ? (const void *)b.data : "", b.len};
}

/* ---- ranges ---- */

static uint8_t zero_byte[1] = {0};

/* etcd's [key, end) of all keys that start with `key`; the end is built in `room`, of key.len bytes
 * at least. All keys: both ends are one zero byte. */
static void prefix_range(struct er_bytes key, uint8_t *room, ProtobufCBinaryData *ret_key,
                         ProtobufCBinaryData *ret_end)
{
    const uint8_t *from = key.data;
    size_t n = key.len;

    *ret_key = key.len ? binary(key) : (ProtobufCBinaryData){1, zero_byte};
    while (n && from[n - 1] == 0xff)
        n--;
    if (n == 0) {
        *ret_end = (ProtobufCBinaryData){1, zero_byte};
        return;
    }
    memcpy(room, from, n);
    room[n - 1]++;
    *ret_end = (ProtobufCBinaryData){n, room};
}

/* ---- transactions ---- */

/* Everything one TxnRequest points at, in one piece of memory. */
struct txn_parts {
    Etcdpb__Compare *cmps, **cmp_list;
    struct op_part {
        Etcdpb__RequestOp op;
        union {
            Etcdpb__RangeRequest range;
            Etcdpb__PutRequest put;
            Etcdpb__DeleteRangeRequest delete_range;
        } u;
    } * ops[2];
    Etcdpb__RequestOp **op_list[2];
    size_t room_used; /* of the range ends */
    uint8_t *rooms;
};

/* Pieces are carved off in the order of their alignment. NULL: out of memory. */
static struct txn_parts *parts_new(const struct er_store_txn *txn, size_t room)
{
    size_t ops_n = txn->then_n + txn->else_n;
    struct txn_parts *p =
        malloc(sizeof(*p) + txn->cmp_n * (sizeof(*p->cmps) + sizeof(*p->cmp_list)) +
               ops_n * (sizeof(*p->ops[0]) + sizeof(*p->op_list[0])) + room);

    if (!p)
        return NULL;
    p->cmps = (Etcdpb__Compare *)(p + 1);
    p->ops[0] = (struct op_part *)(p->cmps + txn->cmp_n);
    p->ops[1] = p->ops[0] + txn->then_n;
    p->cmp_list = (Etcdpb__Compare **)(p->ops[1] + txn->else_n);
    p->op_list[0] = (Etcdpb__RequestOp **)(p->cmp_list + txn->cmp_n);
    p->op_list[1] = p->op_list[0] + txn->then_n;
    p->rooms = (uint8_t *)(p->op_list[1] + txn->else_n);
    p->room_used = 0;
    return p;
}

static uint8_t *take_room(struct txn_parts *p, size_t n)
{
    uint8_t *at = p->rooms + p->room_used;

    p->room_used += n;
    return at;
}

static int fill_cmp(struct txn_parts *p, const struct er_store_cmp *from, Etcdpb__Compare *to)
{
    static const Etcdpb__Compare__Result results[] = {
        [ER_CMP_EQUAL] = ETCDPB__COMPARE__RESULT__EQUAL,
        [ER_CMP_NOT_EQUAL] = ETCDPB__COMPARE__RESULT__NOT_EQUAL,
        [ER_CMP_LESS] = ETCDPB__COMPARE__RESULT__LESS,
        [ER_CMP_GREATER] = ETCDPB__COMPARE__RESULT__GREATER,
    };
    int rc = 0;

    etcdpb__compare__init(to);
    to->result = results[from->result];
    to->key = binary(from->key);
    if (from->prefix)
        prefix_range(from->key, take_room(p, from->key.len), &to->key, &to->range_end);
    switch (from->target) {
    case ER_CMP_CREATE:
        to->target = ETCDPB__COMPARE__TARGET__CREATE;
        to->target_union_case = ETCDPB__COMPARE__TARGET_UNION_CREATE_REVISION;
        rc = to_i64(from->rev, &to->create_revision);
        break;
    case ER_CMP_MOD:
        to->target = ETCDPB__COMPARE__TARGET__MOD;
        to->target_union_case = ETCDPB__COMPARE__TARGET_UNION_MOD_REVISION;
        rc = to_i64(from->rev, &to->mod_revision);
        break;
    case ER_CMP_VALUE:
        to->target = ETCDPB__COMPARE__TARGET__VALUE;
        to->target_union_case = ETCDPB__COMPARE__TARGET_UNION_VALUE;
        to->value = binary(from->value);
        break;
    }
    return rc;
}

static int fill_range(struct txn_parts *p, const struct er_store_op *from, Etcdpb__RangeRequest *to)
{
    int rc;

    etcdpb__range_request__init(to);
    to->key = binary(from->key);
    if (from->prefix)
        prefix_range(from->key, take_room(p, from->key.len), &to->key, &to->range_end);
    if (from->prefix && from->after.len) { /* the key next to it is itself and a zero byte */
        uint8_t *next = take_room(p, from->after.len + 1);

        memcpy(next, from->after.data, from->after.len);
        next[from->after.len] = 0;
        to->key = (ProtobufCBinaryData){from->after.len + 1, next};
    }
    to->keys_only = from->keys_only;
    rc = to_i64(from->revision, &to->revision);
    if (rc == 0)
        rc = to_i64(from->limit, &to->limit);
    return rc;
}

static int fill_op(struct txn_parts *p, const struct er_store_op *from, struct op_part *to)
{
    int rc = 0;

    etcdpb__request_op__init(&to->op);
    switch (from->kind) {
    case ER_OP_PUT:
        etcdpb__put_request__init(&to->u.put);
        to->u.put.key = binary(from->key);
        to->u.put.value = binary(from->value);
        rc = to_i64(from->lease, &to->u.put.lease);
        to->op.request_case = ETCDPB__REQUEST_OP__REQUEST_PUT;
        to->op.put = &to->u.put;
        break;
    case ER_OP_DELETE:
        etcdpb__delete_range_request__init(&to->u.delete_range);
        to->u.delete_range.key = binary(from->key);
        if (from->prefix)
            prefix_range(from->key, take_room(p, from->key.len), &to->u.delete_range.key,
                         &to->u.delete_range.range_end);
        to->op.request_case = ETCDPB__REQUEST_OP__REQUEST_DELETE_RANGE;
        to->op.delete_range = &to->u.delete_range;
        break;
    case ER_OP_RANGE:
        rc = fill_range(p, from, &to->u.range);
        to->op.request_case = ETCDPB__REQUEST_OP__REQUEST_RANGE;
        to->op.range = &to->u.range;
        break;
    }
    return rc;
}

static size_t ops_room(const struct er_store_op *ops, size_t n)
{
    size_t room = 0;

    for (size_t i = 0; i < n; i++)
        room += ops[i].prefix ? ops[i].key.len + ops[i].after.len + 1 : 0;
    return room;
}

static int fill_ops(struct txn_parts *p, int branch, const struct er_store_op *ops, size_t n)
{
    int rc = 0;

    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = fill_op(p, &ops[i], &p->ops[branch][i]);
        p->op_list[branch][i] = &p->ops[branch][i].op;
    }
    return rc;
}

int er_etcd_encode_txn(const struct er_store_txn *txn, struct er_buf *out)
{
    Etcdpb__TxnRequest m = ETCDPB__TXN_REQUEST__INIT;
    struct txn_parts *p;
    size_t room = ops_room(txn->then_ops, txn->then_n) + ops_room(txn->else_ops, txn->else_n);
    int rc = 0;

    if (txn->cmp_n > ER_STORE_TXN_OPS_MAX || txn->then_n > ER_STORE_TXN_OPS_MAX ||
        txn->else_n > ER_STORE_TXN_OPS_MAX)
        return -EINVAL;
    for (size_t i = 0; i < txn->cmp_n; i++)
        room += txn->cmps[i].prefix ? txn->cmps[i].key.len : 0;
    p = parts_new(txn, room);
    if (!p)
        return -ENOMEM;
    for (size_t i = 0; i < txn->cmp_n && rc == 0; i++) {
        rc = fill_cmp(p, &txn->cmps[i], &p->cmps[i]);
        p->cmp_list[i] = &p->cmps[i];
    }
    if (rc == 0)
        rc = fill_ops(p, 0, txn->then_ops, txn->then_n);
    if (rc == 0)
        rc = fill_ops(p, 1, txn->else_ops, txn->else_n);
    m.n_compare = txn->cmp_n;
    m.compare = p->cmp_list;
    m.n_success = txn->then_n;
    m.success = p->op_list[0];
    m.n_failure = txn->else_n;
    m.failure = p->op_list[1];
    if (rc == 0)
        rc = append(out, MESSAGE(&m));
    free(p);
    return rc;
}

/* ---- other requests ---- */

int er_etcd_encode_hello(struct er_bytes key, struct er_buf *out)
{
    Etcdpb__RangeRequest m = ETCDPB__RANGE_REQUEST__INIT;

    m.key = key.len ? binary(key) : (ProtobufCBinaryData){1, zero_byte};
    m.count_only = true;
    return append(out, MESSAGE(&m));
}

int er_etcd_encode_grant(uint64_t id, uint64_t ttl_us, struct er_buf *out)
{
    Etcdpb__LeaseGrantRequest m = ETCDPB__LEASE_GRANT_REQUEST__INIT;
    uint64_t seconds = ttl_us / ER_US_PER_S + (ttl_us % ER_US_PER_S != 0);

    m.ttl = (int64_t)(seconds ? seconds : 1);
    return to_i64(id, &m.id) < 0 ? -EINVAL : append(out, MESSAGE(&m));
}

int er_etcd_encode_revoke(uint64_t id, struct er_buf *out)
{
    Etcdpb__LeaseRevokeRequest m = ETCDPB__LEASE_REVOKE_REQUEST__INIT;

    return to_i64(id, &m.id) < 0 ? -EINVAL : append(out, MESSAGE(&m));
}

int er_etcd_encode_keep_alive(uint64_t id, struct er_buf *out)
{
    Etcdpb__LeaseKeepAliveRequest m = ETCDPB__LEASE_KEEP_ALIVE_REQUEST__INIT;

    return to_i64(id, &m.id) < 0 ? -EINVAL : append(out, MESSAGE(&m));
}

int er_etcd_encode_ttl(uint64_t id, struct er_buf *out)
{
    Etcdpb__LeaseTimeToLiveRequest m = ETCDPB__LEASE_TIME_TO_LIVE_REQUEST__INIT;

    return to_i64(id, &m.id) < 0 ? -EINVAL : append(out, MESSAGE(&m));
}

int er_etcd_encode_login(const char *user, const char *password, struct er_buf *out)
{
    Etcdpb__AuthenticateRequest m = ETCDPB__AUTHENTICATE_REQUEST__INIT;

    m.name = (char *)(uintptr_t)user;
    m.password = (char *)(uintptr_t)password;
    return append(out, MESSAGE(&m));
}

static int encode_create(const struct er_etcd_watch_request *r, struct er_buf *out)
{
    Etcdpb__WatchRequest m = ETCDPB__WATCH_REQUEST__INIT;
    Etcdpb__WatchCreateRequest create = ETCDPB__WATCH_CREATE_REQUEST__INIT;
    uint8_t *room = malloc(r->key.len + 1);
    int rc;

    if (!room)
        return -ENOMEM;
    create.key = binary(r->key);
    if (r->prefix)
        prefix_range(r->key, room, &create.key, &create.range_end);
    create.fragment = true; /* else one answer may be as large as the history */
    m.request_case = ETCDPB__WATCH_REQUEST__REQUEST_CREATE;
    m.create = &create;
    rc = to_i64(r->wire_id, &create.watch_id);
    if (rc == 0)
        rc = to_i64(r->start_rev, &create.start_revision);
    if (rc == 0)
        rc = append(out, MESSAGE(&m));
    free(room);
    return rc;
}

int er_etcd_encode_watch(const struct er_etcd_watch_request *r, struct er_buf *out)
{
    Etcdpb__WatchRequest m = ETCDPB__WATCH_REQUEST__INIT;
    Etcdpb__WatchCancelRequest cancel = ETCDPB__WATCH_CANCEL_REQUEST__INIT;
    Etcdpb__WatchProgressRequest progress = ETCDPB__WATCH_PROGRESS_REQUEST__INIT;

    switch (r->kind) {
    case ER_ETCD_WATCH_CREATE:
        return encode_create(r, out);
    case ER_ETCD_WATCH_CANCEL:
        m.request_case = ETCDPB__WATCH_REQUEST__REQUEST_CANCEL;
        m.cancel = &cancel;
        return to_i64(r->wire_id, &cancel.watch_id) < 0 ? -EINVAL : append(out, MESSAGE(&m));
    case ER_ETCD_WATCH_PROGRESS:
        m.request_case = ETCDPB__WATCH_REQUEST__REQUEST_PROGRESS;
        m.progress = &progress;
        return append(out, MESSAGE(&m));
    }
    return -EINVAL;
}

/* ---- answers ---- */

static struct er_etcd_header header_of(const Etcdpb__Header *h)
{
    return h ? (struct er_etcd_header){h->cluster_id, h->member_id, to_u64(h->revision),
                                       h->raft_term}
             : (struct er_etcd_header){0, 0, 0, 0};
}

static struct er_store_kv kv_of(const Etcdpb__KeyValue *kv)
{
    return (struct er_store_kv){
        .key = bytes(kv->key),
        .value = bytes(kv->value),
        .create_rev = to_u64(kv->create_revision),
        .mod_rev = to_u64(kv->mod_revision),
        .lease = to_u64(kv->lease),
    };
}

/* NULL: not this message, or no memory. */
static void *unpack(const ProtobufCMessageDescriptor *what, const void *data, size_t n)
{
    return n <= ER_ETCD_MESSAGE_MAX ? protobuf_c_message_unpack(what, NULL, n, data) : NULL;
}

static void give_back(void *message)
{
    if (message)
        protobuf_c_message_free_unpacked(message, NULL);
}

static const Etcdpb__RangeResponse *range_of(const Etcdpb__ResponseOp *op)
{
    return op->response_case == ETCDPB__RESPONSE_OP__RESPONSE_RANGE ? op->range : NULL;
}

static size_t count_ranges(const struct er_store_op *ops, size_t n)
{
    size_t ranges = 0;

    for (size_t i = 0; i < n; i++)
        ranges += ops[i].kind == ER_OP_RANGE;
    return ranges;
}

struct er_etcd_ranges er_etcd_ranges_of(const struct er_store_txn *txn)
{
    return (struct er_etcd_ranges){count_ranges(txn->then_ops, txn->then_n),
                                   count_ranges(txn->else_ops, txn->else_n)};
}

int er_etcd_decode_txn(const void *data, size_t n, struct er_etcd_ranges asked,
                       struct er_etcd_txn_answer *ret)
{
    Etcdpb__TxnResponse *m = unpack(&etcdpb__txn_response__descriptor, data, n);
    struct er_etcd_txn_answer a = {.owned = {m}};
    struct er_store_kv *kvs;
    size_t *range_n, kv_n = 0, ranges = 0;

    if (!m)
        return ER_E_PROTOCOL;
    for (size_t i = 0; i < m->n_responses; i++) {
        const Etcdpb__RangeResponse *range = range_of(m->responses[i]);

        kv_n += range ? range->n_kvs : 0;
        ranges += range != NULL;
    }
    if (ranges != (m->succeeded ? asked.then_n : asked.else_n)) {
        er_etcd_txn_answer_done(&a);
        return ER_E_PROTOCOL;
    }
    kvs = a.owned[1] = calloc(kv_n + 1, sizeof(*kvs));
    range_n = a.owned[2] = calloc(ranges + 1, sizeof(*range_n));
    if (!kvs || !range_n) {
        er_etcd_txn_answer_done(&a);
        return -ENOMEM;
    }
    a.header = header_of(m->header);
    a.reply = (struct er_store_reply){m->succeeded, a.header.revision, kvs, kv_n, range_n, ranges};
    for (size_t i = 0; i < m->n_responses; i++) {
        const Etcdpb__RangeResponse *range = range_of(m->responses[i]);

        for (size_t k = 0; range && k < range->n_kvs; k++)
            *kvs++ = kv_of(range->kvs[k]);
        if (range)
            *range_n++ = range->n_kvs;
    }
    *ret = a;
    return 0;
}

void er_etcd_txn_answer_done(struct er_etcd_txn_answer *a)
{
    give_back(a->owned[0]);
    free(a->owned[1]);
    free(a->owned[2]);
    memset(a, 0, sizeof(*a));
}

int er_etcd_decode_hello(const void *data, size_t n, struct er_etcd_header *ret)
{
    Etcdpb__RangeResponse *m = unpack(&etcdpb__range_response__descriptor, data, n);

    if (!m)
        return ER_E_PROTOCOL;
    *ret = header_of(m->header);
    give_back(m);
    return 0;
}

static uint64_t ttl_us(int64_t seconds)
{
    if (seconds <= 0)
        return 0;
    return (uint64_t)seconds > ER_FOREVER / ER_US_PER_S / 2 ? ER_FOREVER
                                                            : (uint64_t)seconds * ER_US_PER_S;
}

int er_etcd_decode_grant(const void *data, size_t n, struct er_etcd_lease_answer *ret)
{
    Etcdpb__LeaseGrantResponse *m = unpack(&etcdpb__lease_grant_response__descriptor, data, n);

    if (!m)
        return ER_E_PROTOCOL;
    *ret = (struct er_etcd_lease_answer){header_of(m->header), to_u64(m->id), ttl_us(m->ttl)};
    give_back(m);
    return 0;
}

int er_etcd_decode_keep_alive(const void *data, size_t n, struct er_etcd_lease_answer *ret)
{
    Etcdpb__LeaseKeepAliveResponse *m =
        unpack(&etcdpb__lease_keep_alive_response__descriptor, data, n);

    if (!m)
        return ER_E_PROTOCOL;
    *ret = (struct er_etcd_lease_answer){header_of(m->header), to_u64(m->id), ttl_us(m->ttl)};
    give_back(m);
    return 0;
}

int er_etcd_decode_ttl(const void *data, size_t n, struct er_etcd_lease_answer *ret)
{
    Etcdpb__LeaseTimeToLiveResponse *m =
        unpack(&etcdpb__lease_time_to_live_response__descriptor, data, n);

    if (!m)
        return ER_E_PROTOCOL;
    *ret = (struct er_etcd_lease_answer){header_of(m->header), to_u64(m->id),
                                         m->ttl > 0 ? ttl_us(m->granted_ttl) : 0};
    give_back(m);
    return 0;
}

int er_etcd_decode_login(const void *data, size_t n, char ret_token[ER_ETCD_TOKEN_MAX])
{
    Etcdpb__AuthenticateResponse *m = unpack(&etcdpb__authenticate_response__descriptor, data, n);
    int rc = ER_E_PROTOCOL;

    if (m && m->token && *m->token && strlen(m->token) < ER_ETCD_TOKEN_MAX) {
        memcpy(ret_token, m->token, strlen(m->token) + 1);
        rc = 0;
    }
    give_back(m);
    return rc;
}

int er_etcd_decode_watch(const void *data, size_t n, struct er_etcd_watch_answer *ret)
{
    Etcdpb__WatchResponse *m = unpack(&etcdpb__watch_response__descriptor, data, n);
    struct er_etcd_watch_answer a = {.owned = {m}};
    size_t reason_n;

    if (!m)
        return ER_E_PROTOCOL;
    a.events = a.owned[1] = calloc(m->n_events + 1, sizeof(*a.events));
    if (!a.events) {
        er_etcd_watch_answer_done(&a);
        return -ENOMEM;
    }
    a.header = header_of(m->header);
    a.wire_id = m->watch_id;
    a.created = m->created;
    a.canceled = m->canceled;
    a.fragment = m->fragment;
    a.compact_rev = to_u64(m->compact_revision);
    reason_n = strnlen(m->cancel_reason, sizeof(a.reason) - 1);
    memcpy(a.reason, m->cancel_reason, reason_n);
    a.reason[reason_n] = 0;
    for (size_t i = 0; i < m->n_events; i++) {
        if (!m->events[i]->kv)
            continue;
        a.events[a.event_n].kind =
            m->events[i]->type == ETCDPB__EVENT__TYPE__DELETE ? ER_STORE_DELETE : ER_STORE_PUT;
        a.events[a.event_n++].kv = kv_of(m->events[i]->kv);
    }
    *ret = a;
    return 0;
}

void er_etcd_watch_answer_done(struct er_etcd_watch_answer *a)
{
    give_back(a->owned[0]);
    free(a->owned[1]);
    memset(a, 0, sizeof(*a));
}
