#pragma once
/* The connection's insides, shared by etcd_conn.c, etcd_request.c and etcd_stream.c. */
#include "base/clock.h"
#include "base/list.h"
#include "rendezvous/etcd_auth.h"
#include "rendezvous/etcd_conn.h"
#include "rendezvous/etcd_endpoint.h"
#include "rendezvous/etcd_grpc.h"
#include "rendezvous/etcd_lease.h"
#include "rendezvous/etcd_rotate.h"
#include "rendezvous/etcd_status.h"
#include "rendezvous/etcd_watch.h"

#define ER_ETCD_SAID_MAX 240

enum etcd_session { ETCD_WAITING, ETCD_LOGIN, ETCD_HELLO, ETCD_UP };

struct etcd_member {
    struct er_etcd_endpoint endpoint;
    char name[ER_ETCD_ENDPOINT_TEXT_MAX];
    struct er_grpc_channel *channel; /* NULL: made when it is tried */
    char said[ER_ETCD_SAID_MAX];     /* why it failed last; "": it didn't */
    bool refused;                    /* ... because one side does not accept the other */
};

/* etcd answers the keep-alives of a stream one after the other, each when everything before it is
 * applied: many leases on one stream would end waiting for each other. */
#define ETCD_KEEPERS 32
struct etcd_keeper {
    struct er_etcd_conn *conn;
    struct er_grpc_call *stream; /* NULL: opened when it is needed */
};

struct er_etcd_conn {
    struct er_grpc *grpc, *own_grpc; /* own_grpc NULL: grpc is shared */
    struct er_etcd_auth auth;
    struct etcd_member members[ER_ETCD_ENDPOINTS_MAX];
    size_t member_n;
    struct er_etcd_rotate rotate;
    char *prefix; /* owned */
    uint64_t attempt_timeout_us, request_timeout_us;
    struct er_rand rand; /* jitter of retries */

    bool dispatching, woken; /* woken: since the last dispatch */
    enum etcd_session session;
    unsigned epoch; /* counts the tries; what belongs to an older one says nothing now */
    struct er_grpc_call *asking; /* login or hello under way */
    uint64_t next_try_us;        /* WAITING */
    uint64_t down_since_us;      /* 0: UP */
    uint64_t sessions;
    uint64_t resumed_us;  /* when a session other than the first came up; 0: none has */
    unsigned logins;      /* in a row, without a session that held */
    uint64_t heard_us;    /* last word of the current endpoint */
    uint64_t answered_us; /* when the newest request was sent that has been answered */
    unsigned strikes;     /* timeouts in a row */
    uint64_t strike_us;   /* when the last one was */
    uint64_t attempt_us;  /* for the next attempts: attempt_timeout_us, more where etcd is slow */

    uint64_t cluster_id, known_rev; /* newest revision this client has seen */
    uint64_t hello_rev;             /* known_rev when hello was sent */
    uint64_t hello_us;              /* when that was */

    struct er_list waiting, flying, answered; /* struct etcd_request */
    size_t request_n, flying_n;

    struct er_grpc_call *watch_stream;
    struct etcd_keeper keepers[ETCD_KEEPERS]; /* a lease's is the one of its id */
    unsigned keeping_epoch;                   /* whose answers are waited for */
    unsigned keeper_n;                        /* in use; 1 but for a pool's connections */
    struct er_etcd_watches *watches;
    struct er_etcd_leases *leases;
    uint64_t beat_us, beat_next_us; /* heartbeat: first of an unanswered row, next; 0: none */
    struct er_buf scratch;          /* one encoded message */
    struct er_etcd_counts counts;
};

/* etcd_conn.c */
void etcd_wake(struct er_etcd_conn *c); /* there is something to do for the next dispatch */
struct etcd_member *etcd_current(struct er_etcd_conn *c);
/* The session is of no use any more: on to the next endpoint. Only from dispatch. */
void etcd_session_fail(struct er_etcd_conn *c, bool refused, const char *what, const char *why);
/* The token is not valid any more: log in again at the same endpoint. */
void etcd_session_login(struct er_etcd_conn *c);
/* A header came from the current endpoint. `at_least`: the answer of a linearizable request cannot
 * be older (0: any). */
void etcd_heard(struct er_etcd_conn *c, const struct er_etcd_header *h, uint64_t at_least);

/* An answer or failure; `sent_us` 0: took no time worth counting. */
void etcd_count(struct er_etcd_conn *c, enum er_etcd_op op, int code, uint64_t sent_us);

/* What was sent then has been answered. */
void etcd_answered(struct er_etcd_conn *c, uint64_t sent_us);

/* etcd_request.c */
void etcd_requests_pump(struct er_etcd_conn *c);   /* send what waits; end what waited too long */
void etcd_requests_answer(struct er_etcd_conn *c); /* what ended without being sent */
void etcd_requests_fail(struct er_etcd_conn *c, int rc); /* all that wait */
uint64_t etcd_requests_deadline(const struct er_etcd_conn *c);
void etcd_requests_free(struct er_etcd_conn *c);

/* etcd_stream.c */
void etcd_streams_pump(struct er_etcd_conn *c);
void etcd_streams_close(struct er_etcd_conn *c);
uint64_t etcd_streams_deadline(const struct er_etcd_conn *c);
