#pragma once
/* What etcd_grpc.c (queue, channels, life) and etcd_call.c (calls and their batches) share. */
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>

#include <pthread.h>
#include <signal.h>

#include "base/cleanup.h"
#include "base/list.h"
#include "rendezvous/etcd_grpc.h"

/* One batch under way; the tag that gRPC hands back. */
enum tag_kind { TAG_UNARY, TAG_OPEN, TAG_STATUS, TAG_RECV, TAG_SEND, TAG_COUNT };
struct tag {
    struct er_list node; /* in er_grpc.completed */
    struct er_grpc_call *call;
    enum tag_kind kind;
    bool ok;
};

struct er_grpc {
    grpc_completion_queue *queue;
    pthread_t thread;
    pthread_mutex_t lock;
    struct er_list completed; /* locked */
    int event_fd;
    struct er_list calls; /* alive, owner's thread */
};

struct er_grpc_channel {
    struct er_grpc *g;
    grpc_channel *channel;
};

struct send {
    struct er_list node;
    grpc_byte_buffer *message;
};

/* Lives until its last tag came back; `cancelled` calls have no callbacks any more. */
struct er_grpc_call {
    struct er_list node; /* in er_grpc.calls */
    struct er_grpc *g;
    grpc_call *call;
    struct tag tags[TAG_COUNT];
    unsigned outstanding;
    bool cancelled, stream, sending, closed;
    er_grpc_unary_fn done;
    struct er_grpc_stream_callbacks cb;
    void *user;
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *received, *sent;
    grpc_status_code status;
    grpc_slice details;
    struct er_list sends;
    size_t send_n;
};

/* A batch came back; owner's thread. May free the call. */
void grpc_finish(struct tag *tag);

/* ---- signals: gRPC starts threads when it likes, and they inherit the mask ---- */

struct masked {
    sigset_t old;
};

static inline struct masked mask_signals(void)
{
    struct masked m;
    sigset_t all;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &m.old);
    return m;
}

static inline void unmask_signals(struct masked *m)
{
    pthread_sigmask(SIG_SETMASK, &m->old, NULL);
}

#define WITH_SIGNALS_MASKED ER_CLEANUP(unmask_signals) struct masked masked_ = mask_signals()
