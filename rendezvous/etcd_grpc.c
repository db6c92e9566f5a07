#include "rendezvous/etcd_grpc.h"

#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/list.h"

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

/* ---- signals: gRPC starts threads when it likes, and they inherit the mask ---- */

struct masked {
    sigset_t old;
};

static struct masked mask_signals(void)
{
    struct masked m;
    sigset_t all;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &m.old);
    return m;
}

static void unmask_signals(struct masked *m)
{
    pthread_sigmask(SIG_SETMASK, &m->old, NULL);
}

#define WITH_SIGNALS_MASKED ER_CLEANUP(unmask_signals) struct masked masked_ = mask_signals()

/* ---- gRPC's own messages ---- */

static _Atomic(er_grpc_log_fn) log_to;

static void on_log(gpr_log_func_args *args)
{
    er_grpc_log_fn to = atomic_load(&log_to);
    const struct er_field fields[] = {ER_STR("text", args->message), ER_STR("file", args->file),
                                      ER_INT("line", args->line),
                                      ER_STR("severity", gpr_log_severity_string(args->severity))};

    if (to)
        to(ER_LOG_DEBUG, "gRPC says", fields, ER_ARRAY_N(fields));
}

static void log_by_default(enum er_log_level level, const char *msg, const struct er_field *fields,
                           size_t n)
{
    if (er_log_wanted(level))
        er_log_fields(level, msg, fields, n);
}

/* ---- completions ---- */

static void push_completed(struct er_grpc *g, struct tag *tag)
{
    bool first;

    pthread_mutex_lock(&g->lock);
    first = er_list_empty(&g->completed);
    er_list_push_back(&g->completed, &tag->node);
    pthread_mutex_unlock(&g->lock);
    if (first)
        eventfd_write(g->event_fd, 1);
}

static void *run_queue(void *user)
{
    struct er_grpc *g = user;
    grpc_event event;

    for (;;) {
        event = grpc_completion_queue_next(g->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        if (event.type == GRPC_OP_COMPLETE) {
            struct tag *tag = event.tag;

            tag->ok = event.success != 0;
            push_completed(g, tag);
        }
    }
}

static void take_completed(struct er_grpc *g, struct er_list *to)
{
    er_list_init(to);
    pthread_mutex_lock(&g->lock);
    while (!er_list_empty(&g->completed)) {
        struct er_list *first = g->completed.next;

        er_list_remove(first);
        er_list_push_back(to, first);
    }
    pthread_mutex_unlock(&g->lock);
}

/* ---- messages ---- */

static grpc_byte_buffer *message_new(const void *data, size_t n)
{
    grpc_slice slice = grpc_slice_malloc(n);
    grpc_byte_buffer *message;

    if (n)
        memcpy(GRPC_SLICE_START_PTR(slice), data, n);
    message = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return message;
}

static void message_free(grpc_byte_buffer **message)
{
    if (*message)
        grpc_byte_buffer_destroy(*message);
    *message = NULL;
}

/* False: damaged (a compressed message that doesn't unpack). The slice is the caller's. */
static bool message_bytes(grpc_byte_buffer *message, grpc_slice *ret)
{
    grpc_byte_buffer_reader reader;

    if (!grpc_byte_buffer_reader_init(&reader, message))
        return false;
    *ret = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    return true;
}

/* ---- calls ---- */

static gpr_timespec deadline_of(uint64_t timeout_us)
{
    if (timeout_us == ER_FOREVER)
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                        gpr_time_from_micros((int64_t)timeout_us, GPR_TIMESPAN));
}

static struct er_grpc_call *call_new(struct er_grpc_channel *channel, const char *method,
                                     uint64_t timeout_us, void *user)
{
    struct er_grpc_call *c = calloc(1, sizeof(*c));

    if (!c)
        return NULL;
    c->g = channel->g;
    c->user = user;
    c->call = grpc_channel_create_call(channel->channel, NULL, GRPC_PROPAGATE_DEFAULTS, c->g->queue,
                                       grpc_slice_from_static_string(method), NULL,
                                       deadline_of(timeout_us), NULL);
    if (!c->call) {
        free(c);
        return NULL;
    }
    for (int kind = 0; kind < TAG_COUNT; kind++) {
        c->tags[kind].kind = (enum tag_kind)kind;
        c->tags[kind].call = c;
    }
    grpc_metadata_array_init(&c->initial);
    grpc_metadata_array_init(&c->trailing);
    c->details = grpc_empty_slice();
    er_list_init(&c->sends);
    er_list_push_back(&c->g->calls, &c->node);
    return c;
}

static void call_free(struct er_grpc_call *c)
{
    WITH_SIGNALS_MASKED;

    er_list_for_each_safe (node, &c->sends) {
        struct send *s = ER_LIST_ITEM(node, struct send, node);

        message_free(&s->message);
        free(s);
    }
    message_free(&c->received);
    message_free(&c->sent);
    grpc_slice_unref(c->details);
    grpc_metadata_array_destroy(&c->initial);
    grpc_metadata_array_destroy(&c->trailing);
    grpc_call_unref(c->call);
    er_list_remove(&c->node);
    free(c);
}

/* gRPC refuses a batch only when it is malformed. */
static void start_batch(struct er_grpc_call *c, const grpc_op *ops, size_t n, enum tag_kind kind)
{
    WITH_SIGNALS_MASKED;
    grpc_call_error error = grpc_call_start_batch(c->call, ops, n, &c->tags[kind], NULL);

    assert(error == GRPC_CALL_OK);
    (void)error;
    c->outstanding++;
}

static size_t fill_metadata(const struct er_grpc_opts *opts, grpc_metadata *to)
{
    size_t n = 0;

    memset(to, 0, 2 * sizeof(*to));
    if (opts->token) {
        to[n].key = grpc_slice_from_static_string("token");
        to[n++].value = grpc_slice_from_copied_string(opts->token);
    }
    if (opts->hasleader) {
        to[n].key = grpc_slice_from_static_string("hasleader");
        to[n++].value = grpc_slice_from_static_string("true");
    }
    return n;
}

static void drop_metadata(grpc_metadata *m, size_t n)
{
    for (size_t i = 0; i < n; i++)
        grpc_slice_unref(m[i].value);
}

static grpc_op send_metadata(grpc_metadata *m, size_t n)
{
    grpc_op op = {.op = GRPC_OP_SEND_INITIAL_METADATA};

    op.data.send_initial_metadata.count = n;
    op.data.send_initial_metadata.metadata = m;
    return op;
}

static grpc_op send_message(grpc_byte_buffer *message)
{
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};

    op.data.send_message.send_message = message;
    return op;
}

static grpc_op recv_metadata(struct er_grpc_call *c)
{
    grpc_op op = {.op = GRPC_OP_RECV_INITIAL_METADATA};

    op.data.recv_initial_metadata.recv_initial_metadata = &c->initial;
    return op;
}

static grpc_op recv_message(struct er_grpc_call *c)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};

    op.data.recv_message.recv_message = &c->received;
    return op;
}

static grpc_op recv_status(struct er_grpc_call *c)
{
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};

    op.data.recv_status_on_client.trailing_metadata = &c->trailing;
    op.data.recv_status_on_client.status = &c->status;
    op.data.recv_status_on_client.status_details = &c->details;
    return op;
}

int er_grpc_unary(struct er_grpc_channel *channel, const char *method, const void *data, size_t n,
                  const struct er_grpc_opts *opts, er_grpc_unary_fn done, void *user,
                  struct er_grpc_call **ret)
{
    WITH_SIGNALS_MASKED;
    struct er_grpc_call *c = call_new(channel, method, opts->timeout_us, user);
    grpc_metadata metadata[2];
    size_t metadata_n;
    grpc_op ops[6];

    if (!c)
        return -ENOMEM;
    c->done = done;
    c->sent = message_new(data, n);
    metadata_n = fill_metadata(opts, metadata);
    ops[0] = send_metadata(metadata, metadata_n);
    ops[1] = send_message(c->sent);
    ops[2] = (grpc_op){.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    ops[3] = recv_metadata(c);
    ops[4] = recv_message(c);
    ops[5] = recv_status(c);
    start_batch(c, ops, 6, TAG_UNARY);
    drop_metadata(metadata, metadata_n);
    *ret = c;
    return 0;
}

static void receive_next(struct er_grpc_call *c)
{
    grpc_op op = recv_message(c);

    start_batch(c, &op, 1, TAG_RECV);
}

static void send_next(struct er_grpc_call *c)
{
    struct send *s;
    grpc_op op;

    if (c->sending || c->closed || er_list_empty(&c->sends))
        return;
    s = ER_LIST_ITEM(c->sends.next, struct send, node);
    er_list_remove(&s->node);
    c->send_n--;
    c->sent = s->message;
    free(s);
    op = send_message(c->sent);
    start_batch(c, &op, 1, TAG_SEND);
    c->sending = true;
}

int er_grpc_stream(struct er_grpc_channel *channel, const char *method,
                   const struct er_grpc_opts *opts, const struct er_grpc_stream_callbacks *cb,
                   void *user, struct er_grpc_call **ret)
{
    WITH_SIGNALS_MASKED;
    struct er_grpc_call *c = call_new(channel, method, opts->timeout_us, user);
    grpc_metadata metadata[2];
    size_t metadata_n;
    grpc_op ops[2];

    if (!c)
        return -ENOMEM;
    c->stream = true;
    c->cb = *cb;
    metadata_n = fill_metadata(opts, metadata);
    ops[0] = send_metadata(metadata, metadata_n);
    ops[1] = recv_metadata(c);
    start_batch(c, ops, 2, TAG_OPEN);
    ops[0] = recv_status(c);
    start_batch(c, ops, 1, TAG_STATUS);
    receive_next(c);
    drop_metadata(metadata, metadata_n);
    *ret = c;
    return 0;
}

int er_grpc_send(struct er_grpc_call *c, const void *data, size_t n)
{
    struct send *s;

    assert(c->stream);
    if (c->closed)
        return 0;
    if (c->send_n == ER_GRPC_SENDS_MAX)
        return -ENOBUFS;
    s = malloc(sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->message = message_new(data, n);
    er_list_push_back(&c->sends, &s->node);
    c->send_n++;
    send_next(c);
    return 0;
}

void er_grpc_cancel(struct er_grpc_call *c)
{
    WITH_SIGNALS_MASKED;

    if (!c || c->cancelled)
        return;
    c->cancelled = true;
    grpc_call_cancel(c->call, NULL);
}

/* ---- dispatch ---- */

static void tell_status(struct er_grpc_call *c, bool damaged, grpc_slice answer)
{
    char *text = grpc_slice_to_c_string(c->details);
    struct er_grpc_status status = {(int)c->status, text};

    if (damaged)
        status = (struct er_grpc_status){GRPC_STATUS_INTERNAL, "answer without a message"};
    if (c->stream)
        c->cb.closed(c->user, &status);
    else
        c->done(c->user, &status, GRPC_SLICE_START_PTR(answer), GRPC_SLICE_LENGTH(answer));
    gpr_free(text);
}

static void finish_unary(struct er_grpc_call *c)
{
    grpc_slice answer = grpc_empty_slice();
    bool damaged =
        c->status == GRPC_STATUS_OK && (!c->received || !message_bytes(c->received, &answer));

    tell_status(c, damaged, answer);
    grpc_slice_unref(answer);
}

static void finish_receive(struct er_grpc_call *c, bool ok)
{
    grpc_byte_buffer *message = ER_TAKE(c->received);
    grpc_slice bytes;

    if (!ok || !message || !message_bytes(message, &bytes)) {
        if (message) /* damaged: the stream is of no use any more; closed() comes */
            grpc_call_cancel(c->call, NULL);
    } else {
        receive_next(c);
        c->cb.message(c->user, GRPC_SLICE_START_PTR(bytes), GRPC_SLICE_LENGTH(bytes));
        grpc_slice_unref(bytes);
    }
    message_free(&message);
}

/* A stream's end is told when the messages before it have been. */
static void maybe_tell_closed(struct er_grpc_call *c)
{
    if (c->stream && c->closed && c->outstanding == 0 && !c->cancelled) {
        c->cancelled = true;
        tell_status(c, false, grpc_empty_slice());
    }
}

static void finish(struct tag *tag)
{
    struct er_grpc_call *c = tag->call;

    c->outstanding--;
    if (tag->kind == TAG_SEND) {
        message_free(&c->sent);
        c->sending = false;
    }
    if (tag->kind == TAG_STATUS)
        c->closed = true;
    if (!c->cancelled) {
        if (tag->kind == TAG_UNARY)
            finish_unary(c);
        else if (tag->kind == TAG_RECV)
            finish_receive(c, tag->ok);
        else if (tag->kind == TAG_SEND && tag->ok)
            send_next(c);
    }
    maybe_tell_closed(c);
    if (c->outstanding == 0)
        call_free(c);
}

int er_grpc_fd(const struct er_grpc *g)
{
    return g->event_fd;
}

void er_grpc_wake(struct er_grpc *g)
{
    eventfd_write(g->event_fd, 1);
}

void er_grpc_dispatch(struct er_grpc *g)
{
    struct er_list completed;
    eventfd_t count;

    (void)eventfd_read(g->event_fd, &count);
    take_completed(g, &completed);
    while (!er_list_empty(&completed)) {
        struct tag *tag = ER_LIST_ITEM(completed.next, struct tag, node);

        er_list_remove(&tag->node);
        finish(tag);
    }
}

/* ---- channels ---- */

static grpc_arg int_arg(const char *key, int value)
{
    return (grpc_arg){
        .type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

static grpc_channel_credentials *credentials_new(const struct er_grpc_tls *tls)
{
    grpc_ssl_pem_key_cert_pair pair;

    if (!tls)
        return grpc_insecure_credentials_create();
    pair = (grpc_ssl_pem_key_cert_pair){tls->key, tls->cert};
    return grpc_ssl_credentials_create_ex(tls->ca, tls->cert ? &pair : NULL, NULL, NULL);
}

int er_grpc_channel_new(struct er_grpc *g, const char *target, const struct er_grpc_tls *tls,
                        struct er_grpc_channel **ret, struct er_error *err)
{
    WITH_SIGNALS_MASKED;
    grpc_arg list[8];
    grpc_channel_args args = {0, list};
    grpc_channel_credentials *credentials = credentials_new(tls);
    struct er_grpc_channel *c = credentials ? calloc(1, sizeof(*c)) : NULL;

    if (!credentials)
        return er_error_set(err, ER_E_CONFIG, "gRPC does not accept the TLS certificate or key");
    list[args.num_args++] = int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, -1);
    list[args.num_args++] = int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    list[args.num_args++] = int_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    list[args.num_args++] = int_arg(GRPC_ARG_ENABLE_RETRIES, 0);
    /* A new channel is a new connection, without the backoff of an old one. */
    list[args.num_args++] = int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    if (tls && tls->server_name)
        list[args.num_args++] = (grpc_arg){
            .type = GRPC_ARG_STRING,
            .key = (char *)(uintptr_t)GRPC_SSL_TARGET_NAME_OVERRIDE_ARG,
            .value.string = (char *)(uintptr_t)tls->server_name,
        };
    if (c) {
        c->g = g;
        c->channel = grpc_channel_create(target, credentials, &args);
    }
    grpc_channel_credentials_release(credentials);
    if (!c || !c->channel) {
        free(c);
        return er_error_set(err, -ENOMEM, "etcd '%s': out of memory", target);
    }
    *ret = c;
    return 0;
}

void er_grpc_channel_free(struct er_grpc_channel *channel)
{
    WITH_SIGNALS_MASKED;

    if (!channel)
        return;
    grpc_channel_destroy(channel->channel);
    free(channel);
}

/* ---- life ---- */

int er_grpc_new(struct er_grpc **ret, er_grpc_log_fn log, struct er_error *err)
{
    WITH_SIGNALS_MASKED;
    struct er_grpc *g = calloc(1, sizeof(*g));
    int rc;

    if (!g)
        return er_error_set(err, -ENOMEM, "etcd client: out of memory");
    er_list_init(&g->completed);
    er_list_init(&g->calls);
    g->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (g->event_fd < 0) {
        rc = er_error_errno(err, "etcd client: eventfd");
        free(g);
        return rc;
    }
    atomic_store(&log_to, log ? log : log_by_default);
    gpr_set_log_function(on_log);
    grpc_init();
    pthread_mutex_init(&g->lock, NULL);
    g->queue = grpc_completion_queue_create_for_next(NULL);
    rc = pthread_create(&g->thread, NULL, run_queue, g);
    if (rc) {
        grpc_completion_queue_shutdown(g->queue);
        grpc_completion_queue_destroy(g->queue);
        grpc_shutdown();
        close(g->event_fd);
        free(g);
        return er_error_set(err, -rc, "etcd client: cannot start a thread: %s", er_error_name(-rc));
    }
    *ret = g;
    return 0;
}

void er_grpc_free(struct er_grpc *g)
{
    WITH_SIGNALS_MASKED;

    if (!g)
        return;
    er_list_for_each (node, &g->calls)
        er_grpc_cancel(ER_LIST_ITEM(node, struct er_grpc_call, node));
    grpc_completion_queue_shutdown(g->queue);
    pthread_join(g->thread, NULL); /* every tag has come back */
    er_grpc_dispatch(g);
    assert(er_list_empty(&g->calls));
    grpc_completion_queue_destroy(g->queue);
    grpc_shutdown();
    pthread_mutex_destroy(&g->lock);
    close(g->event_fd);
    free(g);
}
