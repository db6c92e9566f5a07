#pragma once
/*
 * gRPC's C core behind five verbs: channel, unary call, bidirectional stream, dispatch, free.
 *
 *   owner's thread                      queue thread                 gRPC's threads
 *   call, send ------------------------------------------------------> network
 *   dispatch <-- list <-- eventfd ----- completion queue <------------ network
 *
 * Every call is started from the owner's thread and every callback is made from
 * er_grpc_dispatch(), in that thread, so nothing but the list of completions is locked. gRPC's
 * threads run with all signals blocked. Sockets are close-on-exec, but not atomically: a child must
 * close_range() what it doesn't want.
 *
 * An object may be cancelled from inside its own callback. After a cancel there is no callback.
 */
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"

struct er_grpc;         /* opaque: queue, thread, event descriptor */
struct er_grpc_channel; /* opaque: one target */
struct er_grpc_call;    /* opaque: unary call or stream */

/* What is in the log's hands; NULL: er_log_fields() of base/. gRPC's own messages come at DEBUG,
 * from any thread. One function a process: the last one set serves all. */
typedef void (*er_grpc_log_fn)(enum er_log_level level, const char *msg,
                               const struct er_field *fields, size_t n);

/* -ENOMEM, -EMFILE ... */
int er_grpc_new(struct er_grpc **ret, er_grpc_log_fn log, struct er_error *err);
/* Cancels what is under way, without callbacks, and waits for gRPC to let go of it
 * (milliseconds). Channels must have been freed. */
void er_grpc_free(struct er_grpc *g);
int er_grpc_fd(const struct er_grpc *g); /* readable when there is something to dispatch */
void er_grpc_wake(struct er_grpc *g);    /* makes it readable */
void er_grpc_dispatch(struct er_grpc *g);

struct er_grpc_tls { /* PEM; borrowed for the call; NULL: plaintext */
    const char *ca;  /* NULL: the system's */
    const char *cert, *key;
    const char *server_name; /* NULL: the target's host */
};
int er_grpc_channel_new(struct er_grpc *g, const char *target, const struct er_grpc_tls *tls,
                        struct er_grpc_channel **ret, struct er_error *err);
/* Calls under way go on as far as the connection lasts. */
void er_grpc_channel_free(struct er_grpc_channel *channel);

struct er_grpc_opts {
    const char *token;   /* NULL: none; sent as "token" */
    bool hasleader;      /* the server ends the call when it loses its leader */
    uint64_t timeout_us; /* ER_FOREVER: none */
};

struct er_grpc_status {
    int code;         /* 0: ok */
    const char *text; /* "" when ok; valid during the callback */
};

/* status->code 0: `data` is the answer, valid during the callback. */
typedef void (*er_grpc_unary_fn)(void *user, const struct er_grpc_status *status, const void *data,
                                 size_t n);
/* `method` is static text. -ENOMEM. `ret` is valid until its callback returns or er_grpc_cancel().
 */
int er_grpc_unary(struct er_grpc_channel *channel, const char *method, const void *data, size_t n,
                  const struct er_grpc_opts *opts, er_grpc_unary_fn done, void *user,
                  struct er_grpc_call **ret);

struct er_grpc_stream_callbacks {
    void (*message)(void *user, const void *data, size_t n);
    void (*closed)(void *user, const struct er_grpc_status *status); /* last callback */
};
#define ER_GRPC_SENDS_MAX 16384 /* messages waiting to be sent on one stream */
int er_grpc_stream(struct er_grpc_channel *channel, const char *method,
                   const struct er_grpc_opts *opts, const struct er_grpc_stream_callbacks *cb,
                   void *user, struct er_grpc_call **ret);
/* Queued, in order. -ENOMEM, -ENOBUFS. After the stream broke it is dropped: closed() comes. */
int er_grpc_send(struct er_grpc_call *stream, const void *data, size_t n);

/* NULL is fine. */
void er_grpc_cancel(struct er_grpc_call *call);
