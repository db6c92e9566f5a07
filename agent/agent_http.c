/* http.listen: /metrics, /healthz, /status.json, /events (a stream for the page) and the page. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "agent/agent_internal.h"
#include "agent/http_history.h"
#include "agent/http_listen.h"
#include "agent/http_module.h"
#include "agent/http_page.h"
#include "agent/status.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/module.h"

#define LIVE_EVERY_US  (200 * ER_US_PER_MS) /* while somebody watches */
#define POINT_EVERY_US (1 * ER_US_PER_S)
#define PROCESS_OLD_US ER_US_PER_S /* the kernel is not asked as often */
#define TOKEN_MAX      1024

struct er_http_server {
    struct er_agent *agent;
    const struct er_http_module *module;
    struct er_http *http;
    struct er_loop_source *source;
    struct er_buf token; /* empty: none is asked for */
    struct er_history history;
    struct er_buf text; /* the answer that is being made */
    uint64_t live_us, point_us;
};

/* ---- answers ---- */

static void answer(struct er_http_reply *reply, unsigned status, const char *type, const char *data,
                   size_t n)
{
    *reply = (struct er_http_reply){.status = status, .type = type, .data = data, .n = n};
}

static void answer_text(struct er_http_reply *reply, unsigned status, const char *text)
{
    answer(reply, status, "text/plain; charset=utf-8", text, strlen(text));
}

static void serve_page(struct er_http_server *s, const struct er_http_request *request,
                       struct er_http_reply *reply)
{
    (void)s, (void)request;
    answer(reply, 200, "text/html; charset=utf-8", (const char *)er_http_page, er_http_page_bytes);
}

/* The loop runs: all that a restart of this agent could mend. */
static void serve_health(struct er_http_server *s, const struct er_http_request *request,
                         struct er_http_reply *reply)
{
    (void)request;
    (void)s;
    answer_text(reply, 200, "ok\n");
}

static void serve_metrics(struct er_http_server *s, const struct er_http_request *request,
                          struct er_http_reply *reply)
{
    bool open_metrics = strstr(request->accept, "application/openmetrics-text") != NULL;

    if (er_agent_metrics_text(s->agent, open_metrics, &s->text))
        answer_text(reply, 500, "the metrics do not fit\n");
    else
        answer(reply, 200,
               open_metrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                            : "text/plain; version=0.0.4; charset=utf-8",
               s->text.data, s->text.len);
}

static void serve_status(struct er_http_server *s, const struct er_http_request *request,
                         struct er_http_reply *reply)
{
    (void)request;
    if (er_status_json(s->agent, -1, 0, &s->text))
        answer_text(reply, 500, "the status does not fit\n");
    else
        answer(reply, 200, "application/json", s->text.data, s->text.len);
}

/* One server-sent event: the newest status. */
static int add_status_event(struct er_http_server *s)
{
    int rc = er_buf_add_str(&s->text, "event: status\ndata: ");

    if (!rc)
        rc = er_status_json(s->agent, -1, PROCESS_OLD_US, &s->text);
    return rc ? rc : er_buf_add_str(&s->text, "\n\n");
}

static void serve_events(struct er_http_server *s, const struct er_http_request *request,
                         struct er_http_reply *reply)
{
    int rc = er_buf_add_str(&s->text, "retry: 2000\nevent: history\ndata: ");

    (void)request;
    if (!rc)
        rc = er_history_json(&s->history, &s->text);
    if (!rc)
        rc = er_buf_add_str(&s->text, "\n\n");
    if (!rc)
        rc = add_status_event(s);
    if (rc) {
        answer_text(reply, 500, "the status does not fit\n");
        return;
    }
    answer(reply, 200, "text/event-stream", s->text.data, s->text.len);
    reply->stream = true;
}

static const struct {
    const char *path;
    void (*serve)(struct er_http_server *, const struct er_http_request *, struct er_http_reply *);
    bool open; /* without the token */
} PATHS[] = {
    {"/", serve_page, true}, /* holds nothing of the job; it asks for the token itself */
    {"/healthz", serve_health, true},
    {"/metrics", serve_metrics, false},
    {"/status.json", serve_status, false},
    {"/events", serve_events, false},
};

/* ---- who may ask ---- */

/* In a time that does not tell how much of it was right. */
static bool is_token(const struct er_buf *token, const char *given)
{
    size_t n = strlen(given);
    unsigned char differs = n != token->len;

    for (size_t i = 0; i < token->len; i++)
        differs |= (unsigned char)(token->data[i] ^ (i < n ? given[i] : 0));
    return !differs;
}

static bool may_ask(const struct er_http_server *s, const struct er_http_request *request)
{
    static const char BEARER[] = "Bearer ";

    if (s->token.len == 0 || is_token(&s->token, request->token))
        return true;
    return !strncasecmp(request->authorization, BEARER, sizeof(BEARER) - 1) &&
           is_token(&s->token, request->authorization + sizeof(BEARER) - 1);
}

static void on_request(void *user, const struct er_http_request *request,
                       struct er_http_reply *reply)
{
    struct er_http_server *s = user;

    er_buf_clear(&s->text);
    if (!s->agent->driver || s->agent->done) { /* on its way in, or out */
        answer_text(reply, 503, "not now\n");
        return;
    }
    for (size_t i = 0; i < ER_ARRAY_N(PATHS); i++) {
        if (strcmp(PATHS[i].path, request->path) != 0)
            continue;
        if (PATHS[i].open || may_ask(s, request))
            PATHS[i].serve(s, request, reply);
        else
            answer_text(reply, 401, "a token is needed: Authorization: Bearer ...\n");
        return;
    }
    answer_text(reply, 404, "here are /, /healthz, /metrics and /status.json\n");
}

/* ---- opening ---- */

static int read_token(struct er_http_server *s, const char *path, struct er_error *err)
{
    int rc = er_file_read_secret(path, &s->token, err);

    while (!rc && s->token.len > 0 && strchr(" \t\r\n", s->token.data[s->token.len - 1]))
        s->token.data[--s->token.len] = 0;
    if (!rc && s->token.len == 0)
        rc = er_error_set(err, ER_E_CONFIG, "'%s' is empty", path);
    return rc ? er_error_wrap(err, ER_E_CONFIG, "http.token_file") : 0;
}

static void on_ready(void *user, uint32_t events)
{
    struct er_http_server *s = user;

    (void)events;
    s->module->step(s->http);
}

static int listen_on(struct er_http_server *s, struct er_error *err)
{
    struct er_http_listen listen;
    struct er_http_opts opts = {.fd = -1, .handle = on_request, .user = s};
    int rc = er_http_listen_parse(s->agent->config->http.listen, &listen, err);

    if (!rc)
        rc = er_http_listen_open(&listen, &opts.fd, err);
    if (!rc)
        rc = s->module->open(&s->http, &opts, err);
    if (!rc)
        rc = er_loop_io(s->agent->loop, s->module->fd(s->http), EPOLLIN, ER_PRIORITY_IO, on_ready,
                        s, &s->source, err);
    if (!rc && !er_http_listen_is_local(&listen) && s->token.len == 0)
        er_log(ER_LOG_WARNING, "http.listen is open to other hosts, and http.token_file is not set",
               ER_STR("listen", s->agent->config->http.listen));
    return rc ? er_error_wrap(err, rc, "http.listen") : 0;
}

int er_agent_http_open(struct er_agent *agent, struct er_error *err)
{
    static const struct er_module MODULE = {.what = "the HTTP server",
                                            .file = "er_http.so",
                                            .symbol = ER_HTTP_SYMBOL,
                                            .version = ER_HTTP_VERSION,
                                            .hint =
                                                "it is built where libmicrohttpd-dev is installed"};
    const struct er_config *c = agent->config;
    struct er_http_server *s;
    const void *module;
    int rc;

    if (!c->http.listen)
        return 0;
    s = agent->http = calloc(1, sizeof(*s));
    if (!s)
        return er_error_set(err, -ENOMEM, "http.listen: out of memory");
    s->agent = agent;
    s->live_us = s->point_us = er_now_us();
    er_buf_init(&s->token, TOKEN_MAX);
    er_buf_init(&s->text, ER_METRICS_TEXT_MAX);
    rc = c->http.token_file ? read_token(s, c->http.token_file, err) : 0;
    if (!rc)
        rc = er_module_load(&MODULE, NULL, &module, err);
    if (rc)
        return rc;
    s->module = module;
    return listen_on(s, err);
}

void er_agent_http_close(struct er_agent *agent)
{
    struct er_http_server *s = agent->http;

    if (!s)
        return;
    er_loop_source_free(s->source);
    if (s->module)
        s->module->close(s->http);
    er_buf_done(&s->token);
    er_buf_done(&s->text);
    free(s);
    agent->http = NULL;
}

/* ---- what the page is told ---- */

static void remember(struct er_http_server *s, uint64_t now_us)
{
    struct er_group *group = s->agent->group;
    const struct er_assignment *a = group ? er_group_assignment(group) : NULL;
    const struct er_worker *w =
        group && er_group_size(group) > 0 ? er_group_worker(group, 0) : NULL;
    double at_ms = (double)er_wall_us() / 1e3, loss;
    const struct er_page_progress *p;
    uint64_t bits;

    if (a)
        er_history_generation(&s->history, at_ms, a->generation, a->world_size, a->reason);
    if (now_us < s->point_us)
        return;
    s->point_us = er_deadline_in(now_us, POINT_EVERY_US);
    if (!w || !w->page)
        return;
    p = &w->page->from_worker;
    bits = atomic_load(&p->loss_bits);
    memcpy(&loss, &bits, sizeof(loss));
    if (atomic_load(&p->step_us) > 0)
        er_history_point(&s->history, at_ms, atomic_load(&p->step), atomic_load(&p->samples), loss);
}

static void publish(struct er_http_server *s, uint64_t now_us)
{
    s->live_us = er_deadline_in(now_us, LIVE_EVERY_US);
    er_buf_clear(&s->text);
    if (add_status_event(s) == 0)
        s->module->publish(s->http, s->text.data, s->text.len);
}

void er_agent_http_step(struct er_agent *agent, uint64_t now_us)
{
    struct er_http_server *s = agent->http;

    if (!s)
        return;
    remember(s, now_us);
    if (s->module->streams(s->http) > 0 && now_us >= s->live_us)
        publish(s, now_us);
    s->module->step(s->http);
}

uint64_t er_agent_http_deadline(const struct er_agent *agent)
{
    const struct er_http_server *s = agent->http;
    uint64_t at = s ? s->module->deadline(s->http, er_now_us()) : ER_FOREVER;

    if (s && s->module->streams(s->http) > 0 && s->live_us < at)
        at = s->live_us;
    if (s && agent->group && s->point_us < at)
        at = s->point_us;
    return at;
}
