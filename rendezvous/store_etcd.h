#pragma once
/*
 * The store port on etcd v3.4 or newer. It is a loadable module, so that programs that need no etcd
 * do not pay for gRPC (15 ms and 50 libraries at start): er_store_etcd_load() of etcd_load.h finds
 * it; within the module's own tests er_store_etcd_open() is linked.
 *
 * One thread. Requests are sent to one endpoint at a time; when it fails, answers too late or has
 * no leader the next is tried, streams are opened again and go on where they were. Signals should
 * be blocked before the first open: gRPC's threads block them all anyway.
 *
 * Answers of the port's calls, beyond those in store.h:
 *   -ENOTCONN        no endpoint took it within the request timeout; certainly not applied
 *   ER_E_AMBIGUOUS   sent, not answered
 *   -EACCES          certificate, password or permission refused, by either side
 *   -EINVAL -E2BIG   as the embedded store: the transaction itself is wrong or too large
 *   -ENOENT -EEXIST  lease not there, lease id taken
 *   -ENOSPC          the store's quota is used up
 * A watch ends with ER_E_STALE (range again) or -EACCES.
 */
#include "base/histogram.h"
#include "base/log.h"
#include "rendezvous/store.h"

struct er_etcd_opts {
    const char *endpoints; /* comma-separated, see etcd_endpoint.h */
    /* A key that this client may read: the first request of a session reads it (its value doesn't
     * matter). NULL: any key. */
    const char *prefix;
    const char *ca, *cert, *key; /* files, PEM; any of them: TLS. NULL: none */
    const char *server_name;     /* expected in the certificate instead of the host */
    const char *user, *password_file;
    uint64_t attempt_timeout_us; /* one request on one endpoint; 0: 1 s */
    uint64_t request_timeout_us; /* of a request in all, waiting included; 0: 5 s */
    uint64_t seed;               /* order of the endpoints, jitter */
    /* Takes gRPC's own messages (DEBUG), from any thread; NULL: base/log. */
    void (*log)(enum er_log_level level, const char *msg, const struct er_field *fields, size_t n);
};

/* -ENOMEM; ER_E_CONFIG (endpoints, TLS or password files); whether the store is there shows later.
 * Only with an srv: endpoint does it block, for the DNS query (seconds at most). */
int er_store_etcd_open(struct er_store **ret, const struct er_etcd_opts *opts,
                       struct er_error *err);

struct er_etcd_status {
    bool connected;
    char endpoint[320];           /* the current one */
    uint64_t down_since_us;       /* 0 while connected */
    uint64_t cluster_id;          /* 0: never connected */
    uint64_t sessions;            /* established so far */
    uint64_t cert_until_us;       /* wall-clock end of our certificate; 0: none, or not known */
    int rc;                       /* 0, -ENOTCONN or -EACCES */
    char text[ER_ERROR_TEXT_MAX]; /* what was tried, for how long, and what each endpoint said; ""
                                     while connected */
};
void er_store_etcd_status(const struct er_store *store, struct er_etcd_status *ret);
/* Until when etcd is known to hold a lease of this client: TTL after the sending of the last
 * request that was answered. 0: not known. */
uint64_t er_store_etcd_lease_until(const struct er_store *store, uint64_t lease);

/* What was asked of etcd, and gRPC's codes as etcd's own metrics spell them. */
#define ER_ETCD_OPS(X) X(TXN, "txn") X(RANGE, "range") X(WATCH, "watch") X(LEASE, "lease")
#define ER_GRPC_CODE_NAMES                                                                         \
    {                                                                                              \
        "OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound",            \
            "AlreadyExists", "PermissionDenied", "ResourceExhausted", "FailedPrecondition",        \
            "Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable", "DataLoss",       \
            "Unauthenticated"                                                                      \
    }
#define ER_GRPC_CODES 17

enum er_etcd_op {
#define ER_ETCD_OP_ENUM(name, text) ER_ETCD_OP_##name,
    ER_ETCD_OPS(ER_ETCD_OP_ENUM)
#undef ER_ETCD_OP_ENUM
        ER_ETCD_OP_COUNT
};

/* Since the store was opened. Each attempt counts; a watch when etcd begins or ends its stream, a
 * lease also at each keep-alive. Codes outside gRPC's count as Unknown. */
struct er_etcd_counts {
    uint64_t answers[ER_ETCD_OP_COUNT][ER_GRPC_CODES];
    struct er_histogram durations[ER_ETCD_OP_COUNT]; /* er_bounds_fine; none of WATCH */
};
/* Valid as long as the store. */
const struct er_etcd_counts *er_store_etcd_counts(const struct er_store *store);

/* What the module exports, under the name ER_STORE_ETCD_SYMBOL. */
#define ER_STORE_ETCD_VERSION 2
#define ER_STORE_ETCD_SYMBOL  "er_store_etcd_module"
struct er_store_etcd_module {
    unsigned version; /* ER_STORE_ETCD_VERSION */
    int (*open)(struct er_store **ret, const struct er_etcd_opts *opts, struct er_error *err);
    void (*status)(const struct er_store *store, struct er_etcd_status *ret);
    uint64_t (*lease_until)(const struct er_store *store, uint64_t lease);
    const struct er_etcd_counts *(*counts)(const struct er_store *store);
};
