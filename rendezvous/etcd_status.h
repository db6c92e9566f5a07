#pragma once
/*
 * What a gRPC status means for a request: etcd reuses few codes for many things, so the text
 * decides too. Pure. Source: etcd's api/v3rpc/rpctypes/error.go (3.4 to 3.6); what gRPC itself
 * says, as observed with C core 1.51.
 */
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* gRPC's codes that are told apart here; the numbers are the wire's. */
enum er_grpc_code {
    ER_GRPC_OK = 0,
    ER_GRPC_CANCELLED = 1,
    ER_GRPC_UNKNOWN = 2,
    ER_GRPC_INVALID = 3,
    ER_GRPC_DEADLINE = 4,
    ER_GRPC_NOT_FOUND = 5,
    ER_GRPC_EXISTS = 6,
    ER_GRPC_DENIED = 7,
    ER_GRPC_EXHAUSTED = 8,
    ER_GRPC_PRECONDITION = 9,
    ER_GRPC_ABORTED = 10,
    ER_GRPC_OUT_OF_RANGE = 11,
    ER_GRPC_UNIMPLEMENTED = 12,
    ER_GRPC_INTERNAL = 13,
    ER_GRPC_UNAVAILABLE = 14,
    ER_GRPC_DATA_LOSS = 15,
    ER_GRPC_UNAUTHENTICATED = 16
};

enum er_etcd_class {
    ER_ETCD_OK,
    ER_ETCD_UNREACHABLE, /* never got there: certainly not applied */
    ER_ETCD_REFUSED,     /* never got there, and TLS says why: the other side is not who it should
                            be, or doesn't want us */
    ER_ETCD_CUT,         /* connection lost on the way: ambiguous */
    ER_ETCD_TIMEOUT,     /* no answer in time, or the server gave up waiting: ambiguous */
    ER_ETCD_NO_LEADER,   /* the member refused at the door: not applied */
    ER_ETCD_BUSY,        /* 'too many requests': not applied, try again later */
    ER_ETCD_BAD_TOKEN,   /* authenticate again: not applied */
    ER_ETCD_NO_AUTH,     /* the server has authentication switched off */
    ER_ETCD_FINAL        /* the server's answer: rc, not applied */
};

struct er_etcd_verdict {
    enum er_etcd_class class;
    int rc; /* for FINAL and REFUSED: -EACCES -EINVAL -E2BIG -ENOENT -EEXIST -ENOSPC ... */
    bool applied_unknown; /* a write may have been applied, or may be later */
    bool from_server;     /* etcd itself spoke: it is alive */
};

/* `text`: status details. */
struct er_etcd_verdict er_etcd_judge(int code, const char *text);
const char *er_etcd_class_name(enum er_etcd_class class);
