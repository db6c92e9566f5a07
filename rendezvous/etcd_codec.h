#pragma once
/*
 * The port's structs and etcd's messages: encoders append one message to a buffer, decoders turn
 * bytes from the network into the port's answers. No I/O, no clock; memory is got and given back
 * here. A decoder never reads beyond its input, whatever the bytes, and leaves `ret` untouched on
 * failure.
 *
 * Errors: encoders -ENOMEM, -ENOBUFS (larger than the buffer may grow), -EINVAL (too many
 * operations, a number that etcd can't hold); decoders ER_E_PROTOCOL, -ENOMEM.
 */
#include "base/buf.h"
#include "rendezvous/store.h"

#define ER_ETCD_METHOD_TXN        "/etcdserverpb.KV/Txn"
#define ER_ETCD_METHOD_RANGE      "/etcdserverpb.KV/Range"
#define ER_ETCD_METHOD_WATCH      "/etcdserverpb.Watch/Watch"
#define ER_ETCD_METHOD_GRANT      "/etcdserverpb.Lease/LeaseGrant"
#define ER_ETCD_METHOD_REVOKE     "/etcdserverpb.Lease/LeaseRevoke"
#define ER_ETCD_METHOD_KEEP_ALIVE "/etcdserverpb.Lease/LeaseKeepAlive"
#define ER_ETCD_METHOD_TTL        "/etcdserverpb.Lease/LeaseTimeToLive"
#define ER_ETCD_METHOD_LOGIN      "/etcdserverpb.Auth/Authenticate"

#define ER_ETCD_MESSAGE_MAX (64u << 20) /* bytes of one message, either way */
#define ER_ETCD_REASON_MAX  256

struct er_etcd_header {
    uint64_t cluster_id, member_id, revision, raft_term;
};

/* ---- requests ---- */

int er_etcd_encode_txn(const struct er_store_txn *txn, struct er_buf *out);
/* Nothing but the header is wanted: a linearizable read of `key`, answered by a count. */
int er_etcd_encode_hello(struct er_bytes key, struct er_buf *out);
/* A TTL of part of a second counts as a whole one. */
int er_etcd_encode_grant(uint64_t id, uint64_t ttl_us, struct er_buf *out);
int er_etcd_encode_revoke(uint64_t id, struct er_buf *out);
int er_etcd_encode_keep_alive(uint64_t id, struct er_buf *out);
int er_etcd_encode_ttl(uint64_t id, struct er_buf *out);
int er_etcd_encode_login(const char *user, const char *password, struct er_buf *out);

enum er_etcd_watch_request_kind {
    ER_ETCD_WATCH_CREATE,
    ER_ETCD_WATCH_CANCEL,
    ER_ETCD_WATCH_PROGRESS
};
struct er_etcd_watch_request {
    enum er_etcd_watch_request_kind kind;
    uint64_t wire_id; /* CREATE, CANCEL: chosen by us, not 0 */
    struct er_bytes key;
    bool prefix;
    uint64_t start_rev;
};
int er_etcd_encode_watch(const struct er_etcd_watch_request *r, struct er_buf *out);

/* ---- answers; _done() frees what the decoder got ---- */

struct er_etcd_txn_answer {
    struct er_etcd_header header;
    struct er_store_reply reply; /* points into `owned` */
    void *owned[3];
};
/* How many ranges the request has, in either branch: who asked looks for as many results, so an
 * answer with more or fewer is ER_E_PROTOCOL. */
struct er_etcd_ranges {
    size_t then_n, else_n;
};
struct er_etcd_ranges er_etcd_ranges_of(const struct er_store_txn *txn);
int er_etcd_decode_txn(const void *data, size_t n, struct er_etcd_ranges asked,
                       struct er_etcd_txn_answer *ret);
void er_etcd_txn_answer_done(struct er_etcd_txn_answer *a);

int er_etcd_decode_hello(const void *data, size_t n, struct er_etcd_header *ret);

struct er_etcd_lease_answer {
    struct er_etcd_header header;
    uint64_t id;
    uint64_t ttl_us; /* 0: the lease is gone; of a TTL request: what was granted */
};
int er_etcd_decode_grant(const void *data, size_t n, struct er_etcd_lease_answer *ret);
int er_etcd_decode_keep_alive(const void *data, size_t n, struct er_etcd_lease_answer *ret);
int er_etcd_decode_ttl(const void *data, size_t n, struct er_etcd_lease_answer *ret);

#define ER_ETCD_TOKEN_MAX 4096
int er_etcd_decode_login(const void *data, size_t n, char ret_token[ER_ETCD_TOKEN_MAX]);

struct er_etcd_watch_answer {
    struct er_etcd_header header;
    int64_t wire_id; /* -1: of no watch */
    bool created, canceled, fragment;
    uint64_t compact_rev; /* not 0: history up to it is lost */
    char reason[ER_ETCD_REASON_MAX];
    struct er_store_event *events; /* by revision, then in order; points into `owned` */
    size_t event_n;
    void *owned[2];
};
int er_etcd_decode_watch(const void *data, size_t n, struct er_etcd_watch_answer *ret);
void er_etcd_watch_answer_done(struct er_etcd_watch_answer *a);
