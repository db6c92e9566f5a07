#include "rendezvous/etcd_grpc.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "rendezvous/etcd_grpc_internal.h"

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

void grpc_finish(struct tag *tag)
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
