/* The HTTP server on libmicrohttpd, driven from outside: its epoll descriptor is in the agent's
 * loop. The module er_http.so. */
#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/http_module.h"
#include "base/clock.h"
#include "base/list.h"

#define CONNECTIONS_MAX  64
#define CONNECTION_BYTES (16u * 1024) /* request headers */
#define IDLE_S           30
#define TAKES_US         (10 * ER_US_PER_S) /* a request and its answer, at most; streams are spared */
#define CROWD            (CONNECTIONS_MAX - 16) /* with more of them the oldest has to go */
#define LAST_LOOKS       20
#define LAST_LOOK_MS     10
#define BLOCK_BYTES      4096

/* Oldest first. Whoever takes too long is shut down, and closed by the daemon: else a few slow
 * clients would lock out everybody, the probe of /healthz included. */
struct connection {
    struct er_list node;
    int fd;
    bool stream;
    uint64_t since_us; /* it is there, or was answered last */
};

struct er_http {
    struct MHD_Daemon *daemon;
    struct er_http_opts opts;
    struct er_list connections;
    unsigned connections_n;
    struct er_list streams;
    unsigned streams_n;
    bool closing;
};

/* A connection that stays open. Between two messages it is suspended. */
struct stream {
    struct er_list node;
    struct er_http *http;
    struct MHD_Connection *connection;
    char *data; /* owned */
    size_t n, sent;
    bool suspended;
};

static void touch(struct er_http *http, struct connection *c)
{
    c->since_us = er_now_us();
    er_list_remove(&c->node);
    er_list_push_back(&http->connections, &c->node);
}

static struct connection *oldest(struct er_http *http)
{
    er_list_for_each (at, &http->connections) {
        struct connection *c = ER_LIST_ITEM(at, struct connection, node);

        if (!c->stream)
            return c;
    }
    return NULL;
}

static void send_away(struct er_http *http, struct connection *c)
{
    (void)shutdown(c->fd, SHUT_RDWR);
    touch(http, c); /* should it stay all the same, it is not the next */
}

static void send_slow_away(struct er_http *http, uint64_t now_us)
{
    struct connection *c;

    while ((c = oldest(http)) && now_us >= c->since_us + TAKES_US)
        send_away(http, c);
}

static void on_connection(void *user, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    struct er_http *http = user;
    struct connection *c = *context;

    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (c) {
            er_list_remove(&c->node);
            http->connections_n--;
            free(c);
        }
        return;
    }
    c = *context = calloc(1, sizeof(*c));
    if (!c)
        return; /* then IDLE_S is its only limit */
    er_list_init(&c->node);
    c->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    touch(http, c);
    if (++http->connections_n > CROWD)
        send_away(http, oldest(http));
}

static struct connection *context_of(struct MHD_Connection *connection)
{
    return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

static void on_answered(void *user, struct MHD_Connection *connection, void **state,
                        enum MHD_RequestTerminationCode why)
{
    struct connection *c = context_of(connection);

    (void)state, (void)why;
    if (c)
        touch(user, c);
}

static void stream_free(void *user)
{
    struct stream *s = user;

    er_list_remove(&s->node);
    s->http->streams_n--;
    free(s->data);
    free(s);
}

static ssize_t stream_read(void *user, uint64_t at, char *to, size_t max)
{
    struct stream *s = user;
    size_t n = s->n - s->sent;

    (void)at;
    if (s->http->closing)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (n == 0) {
        s->suspended = true;
        MHD_suspend_connection(s->connection);
        return 0;
    }
    n = n < max ? n : max;
    memcpy(to, s->data + s->sent, n);
    s->sent += n;
    return (ssize_t)n;
}

/* False: out of memory; the stream goes on without this message. */
static bool stream_fill(struct stream *s, const char *data, size_t n)
{
    char *copy = realloc(s->data, n ? n : 1);

    if (!copy)
        return false;
    memcpy(copy, data, n);
    s->data = copy;
    s->n = n;
    s->sent = 0;
    return true;
}

static struct MHD_Response *stream_response(struct er_http *http, struct MHD_Connection *connection,
                                            const struct er_http_reply *reply)
{
    struct stream *s = calloc(1, sizeof(*s));
    struct MHD_Response *response;

    if (!s)
        return NULL;
    er_list_init(&s->node);
    s->http = http;
    s->connection = connection;
    if (!stream_fill(s, reply->data, reply->n)) {
        free(s);
        return NULL;
    }
    er_list_push_back(&http->streams, &s->node);
    http->streams_n++;
    response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, stream_read, s,
                                                 stream_free);
    if (!response)
        stream_free(s);
    return response;
}

static enum MHD_Result send_reply(struct er_http *http, struct MHD_Connection *connection,
                                  const struct er_http_reply *reply)
{
    static const char *const HEADERS[][2] = {
        {MHD_HTTP_HEADER_CACHE_CONTROL, "no-store"},
        {"X-Content-Type-Options", "nosniff"},
        {"Content-Security-Policy",
         "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
         "connect-src 'self'"},
    };
    struct MHD_Response *response =
        reply->stream ? stream_response(http, connection, reply)
                      : MHD_create_response_from_buffer(reply->n, (void *)(uintptr_t)reply->data,
                                                        MHD_RESPMEM_MUST_COPY);
    enum MHD_Result rc;

    if (!response)
        return MHD_NO;
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, reply->type);
    for (size_t i = 0; i < sizeof(HEADERS) / sizeof(HEADERS[0]); i++)
        MHD_add_response_header(response, HEADERS[i][0], HEADERS[i][1]);
    if (reply->status == MHD_HTTP_UNAUTHORIZED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (reply->status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    rc = MHD_queue_response(connection, reply->status, response);
    MHD_destroy_response(response);
    return rc;
}

static const char *value_of(struct MHD_Connection *connection, enum MHD_ValueKind kind,
                            const char *name)
{
    const char *value = MHD_lookup_connection_value(connection, kind, name);

    return value ? value : "";
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *data,
                                  size_t *data_n, void **state)
{
    static const char NOT_ALLOWED[] = "only GET is answered here\n", BUSY[] = "too many streams\n";
    static char seen;
    struct er_http *http = user;
    struct er_http_reply reply = {.status = MHD_HTTP_METHOD_NOT_ALLOWED,
                                  .type = "text/plain; charset=utf-8",
                                  .data = NOT_ALLOWED,
                                  .n = sizeof(NOT_ALLOWED) - 1};

    (void)version, (void)data;
    if (!*state) { /* headers only: the answer follows the body, which nobody wants */
        *state = &seen;
        return MHD_YES;
    }
    if (*data_n > 0) {
        *data_n = 0;
        return MHD_YES;
    }
    if (!strcmp(method, MHD_HTTP_METHOD_GET) || !strcmp(method, MHD_HTTP_METHOD_HEAD)) {
        const struct er_http_request request = {
            .path = path,
            .accept = value_of(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT),
            .authorization = value_of(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION),
            .token = value_of(connection, MHD_GET_ARGUMENT_KIND, "token"),
        };

        http->opts.handle(http->opts.user, &request, &reply);
        reply.stream = reply.stream && !strcmp(method, MHD_HTTP_METHOD_GET);
    }
    if (reply.stream && context_of(connection))
        context_of(connection)->stream = http->streams_n < ER_HTTP_STREAMS;
    if (reply.stream && http->streams_n >= ER_HTTP_STREAMS)
        reply = (struct er_http_reply){.status = MHD_HTTP_SERVICE_UNAVAILABLE,
                                       .type = "text/plain; charset=utf-8",
                                       .data = BUSY,
                                       .n = sizeof(BUSY) - 1};
    return send_reply(http, connection, &reply);
}

static void quiet(void *user, const char *fmt, va_list ap)
{
    (void)user, (void)fmt, (void)ap; /* what clients do wrong is theirs */
}

static int http_open(struct er_http **ret, const struct er_http_opts *opts, struct er_error *err)
{
    struct er_http *http = calloc(1, sizeof(*http));

    if (!http) {
        close(opts->fd);
        return er_error_set(err, -ENOMEM, "out of memory");
    }
    http->opts = *opts;
    er_list_init(&http->streams);
    er_list_init(&http->connections);
    http->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_ERROR_LOG | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, on_request,
        http, MHD_OPTION_EXTERNAL_LOGGER, quiet, NULL, MHD_OPTION_LISTEN_SOCKET, opts->fd,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, http, MHD_OPTION_NOTIFY_COMPLETED, on_answered,
        http, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_END);
    if (!http->daemon) {
        close(opts->fd);
        free(http);
        return er_error_set(err, -EIO, "libmicrohttpd does not start");
    }
    *ret = http;
    return 0;
}

static void resume_all(struct er_http *http)
{
    struct er_list *at;

    for (at = http->streams.next; at != &http->streams; at = at->next) {
        struct stream *s = ER_LIST_ITEM(at, struct stream, node);

        if (s->suspended) {
            s->suspended = false;
            MHD_resume_connection(s->connection);
        }
    }
}

static int http_fd(const struct er_http *http)
{
    return MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
}

static void http_close(struct er_http *http)
{
    if (!http)
        return;
    http->closing = true;
    resume_all(http);
    for (int i = 0; i < LAST_LOOKS && http->streams_n > 0; i++) { /* their last chunks */
        struct pollfd p = {.fd = http_fd(http), .events = POLLIN};

        MHD_run(http->daemon);
        if (http->streams_n > 0)
            (void)poll(&p, 1, LAST_LOOK_MS);
    }
    MHD_stop_daemon(http->daemon);
    free(http);
}

static void http_step(struct er_http *http)
{
    send_slow_away(http, er_now_us());
    MHD_run(http->daemon);
}

static uint64_t http_deadline(struct er_http *http, uint64_t now_us)
{
    MHD_UNSIGNED_LONG_LONG ms;

    const struct connection *slow = oldest(http);
    uint64_t at =
        MHD_get_timeout(http->daemon, &ms) == MHD_YES ? now_us + ms * ER_US_PER_MS : ER_FOREVER;

    return slow && slow->since_us + TAKES_US < at ? slow->since_us + TAKES_US : at;
}

static unsigned http_streams(const struct er_http *http)
{
    return http->streams_n;
}

static void http_publish(struct er_http *http, const char *data, size_t n)
{
    struct er_list *at;

    for (at = http->streams.next; at != &http->streams; at = at->next) {
        struct stream *s = ER_LIST_ITEM(at, struct stream, node);

        if (s->suspended)
            (void)stream_fill(s, data, n);
    }
    resume_all(http);
}

extern const struct er_http_module er_http_module __attribute__((visibility("default")));
const struct er_http_module er_http_module = {
    .version = ER_HTTP_VERSION,
    .open = http_open,
    .close = http_close,
    .fd = http_fd,
    .step = http_step,
    .deadline = http_deadline,
    .streams = http_streams,
    .publish = http_publish,
};
