#include "rendezvous/etcd_conn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "rendezvous/etcd_conn_internal.h"
#include "rendezvous/etcd_srv.h"

#define ATTEMPT_TIMEOUT_US 1000000u
#define REQUEST_TIMEOUT_US 5000000u
#define HELLO_MIN_US       300000u  /* doubles with every round that failed, for slow networks */
#define HELLO_FIRST_US     1000000u /* ... and before the first session */
#define HELLO_MAX_US       4000000u
#define LOGIN_TIMEOUT_US   4000000u /* etcd's password check is slow on purpose */
#define LOGINS_MAX         3
#define REFUSED_PAUSE_US   2000000u /* between two rounds in which everybody refused us */

struct etcd_member *etcd_current(struct er_etcd_conn *c)
{
    return &c->members[er_etcd_rotate_current(&c->rotate)];
}

void etcd_wake(struct er_etcd_conn *c)
{
    if (!c->dispatching && !c->woken)
        er_grpc_wake(c->grpc);
    c->woken = true;
}

/* ---- what is known of the cluster ---- */

void etcd_heard(struct er_etcd_conn *c, const struct er_etcd_header *h, uint64_t at_least)
{
    bool other = c->cluster_id && h->cluster_id != c->cluster_id;

    if (h->cluster_id == 0)
        return; /* no header at all */
    c->heard_us = er_now_us();
    c->logins = 0;
    c->cluster_id = h->cluster_id;
    if (other || h->revision < at_least) {
        /* Another store, or this one restored from the past: no watch can go on. */
        c->known_rev = h->revision;
        er_etcd_watches_stale(c->watches);
    } else if (h->revision > c->known_rev) {
        c->known_rev = h->revision;
    }
}

void etcd_answered(struct er_etcd_conn *c, uint64_t sent_us)
{
    if (sent_us > c->answered_us)
        c->answered_us = sent_us;
}

void etcd_count(struct er_etcd_conn *c, enum er_etcd_op op, int code, uint64_t sent_us)
{
    if (code < 0 || code >= ER_GRPC_CODES)
        code = ER_GRPC_UNKNOWN;
    c->counts.answers[op][code]++;
    if (sent_us)
        er_histogram_add(&c->counts.durations[op], &er_bounds_fine,
                         (double)(er_now_us() - sent_us) / 1e6);
}

const struct er_etcd_counts *er_etcd_conn_counts(const struct er_etcd_conn *c)
{
    return &c->counts;
}

uint64_t er_etcd_conn_heard(const struct er_etcd_conn *c)
{
    return c->answered_us;
}

uint64_t er_etcd_conn_resumed(const struct er_etcd_conn *c)
{
    return c->resumed_us;
}

/* ---- session ---- */

/* gRPC's preamble says nothing that the endpoint's name in front doesn't. */
static const char *essence(const char *why)
{
    static const char *const preambles[] = {"failed to connect to all addresses; last error: ",
                                            "UNKNOWN: ", "UNAVAILABLE: ", "INTERNAL: "};

    for (size_t i = 0; i < ER_ARRAY_N(preambles); i++) {
        size_t n = strlen(preambles[i]);

        if (strncmp(why, preambles[i], n) == 0)
            why += n;
    }
    return why;
}

/* What a connection that was closed without a word often means. */
static const char *hint(const struct er_etcd_conn *c, const struct etcd_member *m, const char *why)
{
    bool tls = m->endpoint.security == ER_ETCD_TLS;

    if (c->session == ETCD_UP || c->sessions)
        return "";
    if (tls && !c->auth.cert &&
        (strstr(why, "alert bad certificate") || strstr(why, "certificate required")))
        return " (the server wants a client certificate)";
    if (tls && !c->auth.cert && (strstr(why, "losed") || strstr(why, "read failed")))
        return " (no TLS there, or a client certificate wanted?)";
    if (tls && (strstr(why, "WRONG_VERSION_NUMBER") || strstr(why, "losed")))
        return " (does the server speak TLS?)";
    if (!tls && (strstr(why, "losed") || strstr(why, "reset") || strstr(why, "read failed")))
        return " (does the server expect TLS?)";
    return "";
}

static bool all_refused(const struct er_etcd_conn *c)
{
    for (size_t i = 0; i < c->member_n; i++) {
        if (!c->members[i].refused)
            return false;
    }
    return er_etcd_rotate_all_failed(&c->rotate);
}

static void stop_session(struct er_etcd_conn *c)
{
    er_grpc_cancel(c->asking);
    c->asking = NULL;
    etcd_streams_close(c);
    c->session = ETCD_WAITING;
    c->strikes = 0;
    c->attempt_us = c->attempt_timeout_us;
    c->epoch++;
}

void etcd_session_fail(struct er_etcd_conn *c, bool refused, const char *what, const char *why)
{
    struct etcd_member *m = etcd_current(c);
    uint64_t now = er_now_us();

    snprintf(m->said, sizeof(m->said), "%s: %.160s%s", what,
             *why ? essence(why) : "no reason given", hint(c, m, why));
    m->refused = refused;
    stop_session(c);
    er_grpc_channel_free(ER_TAKE(m->channel)); /* the next try is a new connection */
    if (c->down_since_us == 0)
        c->down_since_us = now;
    c->next_try_us = er_etcd_rotate_fail(&c->rotate, now);
    if (!all_refused(c))
        return;
    c->next_try_us = er_deadline_in(now, REFUSED_PAUSE_US);
    etcd_requests_fail(c, -EACCES);
}

void etcd_session_login(struct er_etcd_conn *c)
{
    if (!c->auth.user || ++c->logins > LOGINS_MAX) {
        etcd_session_fail(c, true, "login", "the server does not accept the token it gave");
        return;
    }
    c->auth.token[0] = 0;
    stop_session(c);
    if (c->down_since_us == 0)
        c->down_since_us = er_now_us();
    c->next_try_us = er_now_us();
}

static void session_up(struct er_etcd_conn *c)
{
    struct etcd_member *m = etcd_current(c);

    m->said[0] = 0;
    m->refused = false;
    er_etcd_rotate_up(&c->rotate);
    c->session = ETCD_UP;
    c->down_since_us = 0;
    if (c->sessions++)
        c->resumed_us = er_now_us();
}

static void on_hello(void *user, const struct er_grpc_status *status, const void *data, size_t n)
{
    struct er_etcd_conn *c = user;
    struct er_etcd_verdict v = er_etcd_judge(status->code, status->text);
    struct er_etcd_header header;

    c->asking = NULL;
    if (v.class == ER_ETCD_BAD_TOKEN) {
        etcd_session_login(c);
        return;
    }
    if (v.class != ER_ETCD_OK) {
        etcd_session_fail(c, v.class == ER_ETCD_REFUSED || v.rc == -EACCES, "first request",
                          status->text);
        return;
    }
    if (er_etcd_decode_hello(data, n, &header) < 0 || header.cluster_id == 0) {
        etcd_session_fail(c, false, "first request", "the answer is not etcd's");
        return;
    }
    session_up(c);
    etcd_answered(c, c->hello_us);
    etcd_heard(c, &header, c->hello_rev);
}

static void begin_hello(struct er_etcd_conn *c)
{
    unsigned rounds = c->rotate.fails / (unsigned)c->member_n;
    uint64_t first = c->sessions ? HELLO_MIN_US : HELLO_FIRST_US;
    uint64_t timeout = rounds > 3 ? HELLO_MAX_US : first << rounds;
    struct er_grpc_opts opts = {.token = *c->auth.token ? c->auth.token : NULL,
                                .timeout_us = timeout < HELLO_MAX_US ? timeout : HELLO_MAX_US};

    c->session = ETCD_HELLO;
    c->hello_rev = c->known_rev;
    c->hello_us = er_now_us();
    er_buf_clear(&c->scratch);
    if (er_etcd_encode_hello((struct er_bytes){c->prefix, strlen(c->prefix)}, &c->scratch) < 0 ||
        er_grpc_unary(etcd_current(c)->channel, ER_ETCD_METHOD_RANGE, c->scratch.data,
                      c->scratch.len, &opts, on_hello, c, &c->asking) < 0)
        etcd_session_fail(c, false, "first request", "out of memory");
}

static void on_login(void *user, const struct er_grpc_status *status, const void *data, size_t n)
{
    struct er_etcd_conn *c = user;
    struct er_etcd_verdict v = er_etcd_judge(status->code, status->text);

    c->asking = NULL;
    if (v.class == ER_ETCD_NO_AUTH) {
        c->auth.off = true;
    } else if (v.class != ER_ETCD_OK) {
        bool refused = v.class == ER_ETCD_REFUSED || v.class == ER_ETCD_FINAL;

        etcd_session_fail(c, refused, "login", status->text);
        return;
    } else if (er_etcd_decode_login(data, n, c->auth.token) < 0) {
        etcd_session_fail(c, false, "login", "the answer is not etcd's");
        return;
    }
    begin_hello(c);
}

static void begin_login(struct er_etcd_conn *c)
{
    struct er_grpc_opts opts = {.timeout_us = LOGIN_TIMEOUT_US};
    int rc;

    c->session = ETCD_LOGIN;
    er_buf_clear(&c->scratch);
    rc = er_etcd_encode_login(c->auth.user, c->auth.password, &c->scratch);
    if (rc == 0)
        rc = er_grpc_unary(etcd_current(c)->channel, ER_ETCD_METHOD_LOGIN, c->scratch.data,
                           c->scratch.len, &opts, on_login, c, &c->asking);
    if (c->scratch.data)
        explicit_bzero(c->scratch.data, c->scratch.len);
    if (rc < 0)
        etcd_session_fail(c, false, "login", "out of memory");
}

static int open_channel(struct er_etcd_conn *c, struct etcd_member *m, struct er_error *err)
{
    const struct er_grpc_tls tls = {c->auth.ca, c->auth.cert, c->auth.key, c->auth.server_name};
    char target[ER_ETCD_ENDPOINT_TEXT_MAX];

    if (m->channel)
        return 0;
    er_etcd_endpoint_target(&m->endpoint, target);
    return er_grpc_channel_new(c->grpc, target, m->endpoint.security == ER_ETCD_TLS ? &tls : NULL,
                               &m->channel, err);
}

static void begin_session(struct er_etcd_conn *c)
{
    struct er_error err = ER_ERROR_INIT;

    er_etcd_rotate_try(&c->rotate, er_now_us());
    if (!etcd_current(c)->channel)
        er_etcd_auth_refresh(&c->auth);
    if (open_channel(c, etcd_current(c), &err) < 0)
        etcd_session_fail(c, true, "channel", err.text);
    else if (er_etcd_auth_needs_login(&c->auth))
        begin_login(c);
    else
        begin_hello(c);
}

/* ---- the loop's calls ---- */

int er_etcd_conn_fd(const struct er_etcd_conn *c)
{
    return er_grpc_fd(c->grpc);
}

uint64_t er_etcd_conn_deadline(const struct er_etcd_conn *c)
{
    uint64_t at = etcd_requests_deadline(c), streams = etcd_streams_deadline(c);

    if (c->session == ETCD_WAITING && c->next_try_us < at)
        at = c->next_try_us;
    return streams < at ? streams : at;
}

bool er_etcd_conn_pending(const struct er_etcd_conn *c)
{
    return er_etcd_conn_deadline(c) <= er_now_us();
}

void er_etcd_conn_dispatch(struct er_etcd_conn *c)
{
    er_etcd_conn_begin(c);
    er_grpc_dispatch(c->grpc);
    er_etcd_conn_finish(c);
}

void er_etcd_conn_begin(struct er_etcd_conn *c)
{
    c->dispatching = true;
    etcd_requests_answer(c);
}

void er_etcd_conn_finish(struct er_etcd_conn *c)
{
    if (c->session == ETCD_WAITING && c->next_try_us <= er_now_us())
        begin_session(c);
    etcd_requests_pump(c);
    etcd_streams_pump(c);
    c->dispatching = c->woken = false;
}

/* ---- status ---- */

void er_etcd_conn_status(const struct er_etcd_conn *c, struct er_etcd_status *ret)
{
    uint64_t now = er_now_us();
    size_t at = 0;

    memset(ret, 0, sizeof(*ret));
    ret->connected = c->session == ETCD_UP;
    ret->down_since_us = c->down_since_us;
    ret->cluster_id = c->cluster_id;
    ret->sessions = c->sessions;
    ret->cert_until_us = c->auth.cert_until_us;
    snprintf(ret->endpoint, sizeof(ret->endpoint), "%s",
             c->members[er_etcd_rotate_current(&c->rotate)].name);
    if (ret->connected)
        return;
    ret->rc = all_refused(c) ? -EACCES : -ENOTCONN;
    at += (size_t)snprintf(ret->text, sizeof(ret->text), "etcd: %s, tried for %.1f s",
                           ret->rc == -EACCES ? "refused" : "not connected",
                           (double)(now - c->down_since_us) / 1e6);
    for (size_t i = 0; i < c->member_n && at < sizeof(ret->text); i++) {
        const struct etcd_member *m = &c->members[i];

        at += (size_t)snprintf(ret->text + at, sizeof(ret->text) - at, "; %s: %s", m->name,
                               *m->said ? m->said : "no answer yet");
    }
}

uint64_t er_etcd_conn_lease_until(const struct er_etcd_conn *c, uint64_t lease)
{
    return er_etcd_leases_until(c->leases, lease);
}

/* ---- life ---- */

static int settle_security(struct er_etcd_conn *c, struct er_etcd_endpoint *e, struct er_error *err)
{
    char text[ER_ETCD_ENDPOINT_TEXT_MAX];

    if (e->security == ER_ETCD_DEFAULT)
        e->security = c->auth.tls ? ER_ETCD_TLS : ER_ETCD_PLAIN;
    if (e->security == ER_ETCD_PLAIN && c->auth.tls && e->kind != ER_ETCD_UNIX) {
        er_etcd_endpoint_format(e, text);
        return er_error_set(err, ER_E_CONFIG,
                            "etcd endpoint '%s' is plaintext, but TLS files are configured", text);
    }
    return 0;
}

static int add_member(struct er_etcd_conn *c, struct er_etcd_endpoint *e, struct er_error *err)
{
    struct etcd_member *m = &c->members[c->member_n];
    int rc = settle_security(c, e, err);

    if (rc < 0)
        return rc;
    if (c->member_n == ER_ETCD_ENDPOINTS_MAX)
        return er_error_set(err, ER_E_CONFIG, "etcd endpoints: more than %d",
                            ER_ETCD_ENDPOINTS_MAX);
    m->endpoint = *e;
    er_etcd_endpoint_format(e, m->name);
    c->member_n++;
    return 0;
}

static int add_members(struct er_etcd_conn *c, const char *endpoints, struct er_error *err)
{
    struct er_etcd_endpoints list, found;
    int rc = er_etcd_endpoints_parse(endpoints ? endpoints : "", &list, err);

    for (size_t i = 0; i < list.n && rc == 0; i++) {
        if (list.list[i].kind != ER_ETCD_SRV) {
            rc = add_member(c, &list.list[i], err);
            continue;
        }
        rc = settle_security(c, &list.list[i], err);
        if (rc == 0)
            rc = er_etcd_srv_resolve(list.list[i].host, list.list[i].security, &found, err);
        for (size_t k = 0; rc == 0 && k < found.n; k++)
            rc = add_member(c, &found.list[k], err);
    }
    return rc;
}

static int fill(struct er_etcd_conn *c, const struct er_etcd_opts *opts, struct er_grpc *shared,
                struct er_error *err)
{
    int rc = er_etcd_auth_load(&c->auth, opts, err);

    if (rc == 0)
        rc = add_members(c, opts->endpoints, err);
    if (rc < 0)
        return rc;
    c->prefix = strdup(opts->prefix ? opts->prefix : "");
    if (!c->prefix || er_etcd_watches_new(&c->watches) < 0 || er_etcd_leases_new(&c->leases) < 0)
        return er_error_set(err, -ENOMEM, "etcd client: out of memory");
    if (!shared)
        rc = er_grpc_new(&c->own_grpc, opts->log, err);
    c->grpc = shared ? shared : c->own_grpc;
    c->keeper_n = shared ? ETCD_KEEPERS : 1;
    /* Bad PEM shows here, not at the first try. */
    for (size_t i = 0; i < c->member_n && rc == 0; i++)
        rc = open_channel(c, &c->members[i], err);
    return rc;
}

int er_etcd_conn_new(struct er_etcd_conn **ret, const struct er_etcd_opts *opts,
                     struct er_grpc *shared, struct er_error *err)
{
    struct er_etcd_conn *c = calloc(1, sizeof(*c));
    int rc;

    if (!c)
        return er_error_set(err, -ENOMEM, "etcd client: out of memory");
    er_list_init(&c->waiting);
    er_list_init(&c->flying);
    er_list_init(&c->answered);
    er_buf_init(&c->scratch, ER_ETCD_MESSAGE_MAX);
    er_rand_init(&c->rand, opts->seed ^ 0x65746364);
    c->attempt_timeout_us =
        opts->attempt_timeout_us ? opts->attempt_timeout_us : ATTEMPT_TIMEOUT_US;
    c->attempt_us = c->attempt_timeout_us;
    c->request_timeout_us =
        opts->request_timeout_us ? opts->request_timeout_us : REQUEST_TIMEOUT_US;
    c->down_since_us = c->next_try_us = er_now_us();
    rc = fill(c, opts, shared, err);
    if (rc < 0) {
        er_etcd_conn_free(c);
        return rc;
    }
    er_etcd_rotate_init(&c->rotate, c->member_n, opts->seed);
    *ret = c;
    return 0;
}

void er_etcd_conn_free(struct er_etcd_conn *c)
{
    if (!c)
        return;
    etcd_requests_free(c);
    er_grpc_cancel(c->asking);
    etcd_streams_close(c);
    for (size_t i = 0; i < c->member_n; i++)
        er_grpc_channel_free(c->members[i].channel);
    er_grpc_free(c->own_grpc);
    er_etcd_watches_free(c->watches);
    er_etcd_leases_free(c->leases);
    er_etcd_auth_done(&c->auth);
    er_buf_done(&c->scratch);
    free(c->prefix);
    free(c);
}
