#include "rendezvous/etcd_grpc.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "rendezvous/etcd_grpc_internal.h"

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
        grpc_finish(tag);
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
    grpc_shutdown_blocking(); /* or a thread of its own is still ending while the process exits */
    pthread_mutex_destroy(&g->lock);
    close(g->event_fd);
    free(g);
}
