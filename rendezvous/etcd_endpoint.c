#include "rendezvous/etcd_endpoint.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/parse.h"

static const struct scheme {
    const char *text;
    enum er_etcd_endpoint_kind kind;
    enum er_etcd_security security;
} schemes[] = {
    {"http://", ER_ETCD_TCP, ER_ETCD_PLAIN},  {"https://", ER_ETCD_TCP, ER_ETCD_TLS},
    {"unix://", ER_ETCD_UNIX, ER_ETCD_PLAIN}, {"unix:", ER_ETCD_UNIX, ER_ETCD_PLAIN},
    {"unixs://", ER_ETCD_UNIX, ER_ETCD_TLS},  {"unixs:", ER_ETCD_UNIX, ER_ETCD_TLS},
    {"srv:", ER_ETCD_SRV, ER_ETCD_DEFAULT},   {"srv+http:", ER_ETCD_SRV, ER_ETCD_PLAIN},
    {"srv+https:", ER_ETCD_SRV, ER_ETCD_TLS},
};

static bool is_in(char c, const char *set)
{
    return c && strchr(set, c);
}

static bool all_in(const char *text, size_t n, const char *set)
{
    for (size_t i = 0; i < n; i++) {
        if (!is_in(text[i], set))
            return false;
    }
    return n > 0;
}

#define DIGIT "0123456789"
#define ALNUM "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" DIGIT
#define HEX   DIGIT "abcdefABCDEF"

static int refuse(struct er_error *err, const char *text, const char *why)
{
    return er_error_set(err, ER_E_CONFIG, "etcd endpoint '%.200s': %s", text, why);
}

static int take_host(const char *text, const char *from, size_t n, struct er_etcd_endpoint *e,
                     struct er_error *err)
{
    if (n == 0)
        return refuse(err, text, "no host");
    if (n >= sizeof(e->host))
        return refuse(err, text, "the host is too long");
    memcpy(e->host, from, n);
    e->host[n] = 0;
    return 0;
}

static int take_port(const char *text, const char *from, struct er_etcd_endpoint *e,
                     struct er_error *err)
{
    uint64_t port;

    if (er_parse_u64(from, 1, 65535, &port, NULL) < 0)
        return refuse(err, text, "expected a port from 1 to 65535 after the last ':'");
    e->port = (uint16_t)port;
    return 0;
}

/* `[v6]`, `[v6]:port` */
static int parse_v6(const char *text, const char *at, struct er_etcd_endpoint *e,
                    struct er_error *err)
{
    const char *close = strchr(at, ']');
    size_t n = close ? (size_t)(close - at - 1) : 0;
    size_t address_n = close ? strcspn(at + 1, "%]") : 0;
    int rc;

    if (!close || !all_in(at + 1, address_n, HEX ":.") || !memchr(at + 1, ':', address_n))
        return refuse(err, text, "expected an IPv6 address in brackets, as [fd00::1]:2379");
    if (address_n < n && !all_in(at + 2 + address_n, n - address_n - 1, ALNUM "._-"))
        return refuse(err, text, "expected an interface after '%'");
    e->literal_v6 = true;
    rc = take_host(text, at + 1, n, e, err);
    if (rc < 0 || !close[1])
        return rc;
    return close[1] == ':' ? take_port(text, close + 2, e, err)
                           : refuse(err, text, "expected ':' and a port after ']'");
}

static int parse_tcp(const char *text, const char *at, struct er_etcd_endpoint *e,
                     struct er_error *err)
{
    size_t n = strcspn(at, ":");
    int rc;

    e->port = ER_ETCD_PORT;
    if (*at == '[')
        return parse_v6(text, at, e, err);
    if (n && !all_in(at, n, ALNUM "._-"))
        return refuse(err, text,
                      strchr(at, '/') ? "a path makes no sense here" : "expected host:port");
    if (at[n] && strchr(at + n + 1, ':'))
        return refuse(err, text, "an IPv6 address must stand in brackets, as [fd00::1]:2379");
    rc = take_host(text, at, n, e, err);
    return rc < 0 || !at[n] ? rc : take_port(text, at + n + 1, e, err);
}

static int parse_unix(const char *text, const char *at, struct er_etcd_endpoint *e,
                      struct er_error *err)
{
    if (*at != '/')
        return refuse(err, text, "expected an absolute path of a socket");
    if (strlen(at) > 107)
        return refuse(err, text, "the path of a Unix socket is at most 107 bytes");
    return take_host(text, at, strlen(at), e, err);
}

static int parse_srv(const char *text, const char *at, struct er_etcd_endpoint *e,
                     struct er_error *err)
{
    if (!all_in(at, strlen(at), ALNUM "._-"))
        return refuse(err, text, "expected a domain, as srv:example.org");
    return take_host(text, at, strlen(at), e, err);
}

/* A host may be called srv or unix: what follows is a port then. */
static bool has_scheme(const char *text, const char *scheme)
{
    size_t n = strlen(scheme);

    return strncmp(text, scheme, n) == 0 &&
           (scheme[n - 1] == '/' || !all_in(text + n, strlen(text + n), DIGIT));
}

int er_etcd_endpoint_parse(const char *text, struct er_etcd_endpoint *ret, struct er_error *err)
{
    struct er_etcd_endpoint e = {.kind = ER_ETCD_TCP};
    const char *at = text;
    int rc = 0;

    for (size_t i = 0; i < ER_ARRAY_N(schemes); i++) {
        if (has_scheme(text, schemes[i].text)) {
            e.kind = schemes[i].kind;
            e.security = schemes[i].security;
            at = text + strlen(schemes[i].text);
            break;
        }
    }
    if (at == text && strstr(text, "://"))
        return refuse(err, text, "expected http://, https://, unix:, unixs:, srv: or host:port");
    switch (e.kind) {
    case ER_ETCD_TCP:
        rc = parse_tcp(text, at, &e, err);
        break;
    case ER_ETCD_UNIX:
        rc = parse_unix(text, at, &e, err);
        break;
    case ER_ETCD_SRV:
        rc = parse_srv(text, at, &e, err);
        break;
    }
    if (rc == 0)
        *ret = e;
    return rc;
}

static int add_one(void *user, const char *item, size_t n, struct er_error *err)
{
    struct er_etcd_endpoints *list = user;
    struct er_etcd_endpoint *e = &list->list[list->n];
    char text[ER_ETCD_ENDPOINT_TEXT_MAX];
    int rc;

    while (n && is_in(item[0], " \t")) {
        item++;
        n--;
    }
    while (n && is_in(item[n - 1], " \t"))
        n--;
    if (n == 0)
        return er_error_set(err, ER_E_CONFIG, "etcd endpoints: an empty item in the list");
    if (n >= sizeof(text))
        return er_error_set(err, ER_E_CONFIG, "etcd endpoint '%.40s...' is too long", item);
    if (list->n == ER_ETCD_ENDPOINTS_MAX)
        return er_error_set(err, ER_E_CONFIG, "etcd endpoints: more than %d",
                            ER_ETCD_ENDPOINTS_MAX);
    memcpy(text, item, n);
    text[n] = 0;
    rc = er_etcd_endpoint_parse(text, e, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < list->n; i++) {
        if (list->list[i].kind == e->kind && list->list[i].port == e->port &&
            strcmp(list->list[i].host, e->host) == 0)
            return refuse(err, text, "given twice");
    }
    list->n++;
    return 0;
}

int er_etcd_endpoints_parse(const char *text, struct er_etcd_endpoints *ret, struct er_error *err)
{
    struct er_etcd_endpoints list = {.n = 0};
    int rc;

    if (!*text)
        return er_error_set(err, ER_E_CONFIG, "no etcd endpoint given");
    rc = er_parse_list(text, ',', add_one, &list, err);
    if (rc < 0)
        return rc == ER_E_CONFIG
                   ? rc
                   : er_error_set(err, ER_E_CONFIG, "etcd endpoints '%.200s': an empty item", text);
    *ret = list;
    return 0;
}

static void format(const struct er_etcd_endpoint *e, const char *scheme,
                   char ret_text[ER_ETCD_ENDPOINT_TEXT_MAX])
{
    int n;

    if (e->kind != ER_ETCD_TCP)
        n = snprintf(ret_text, ER_ETCD_ENDPOINT_TEXT_MAX, "%s%s", scheme, e->host);
    else if (e->literal_v6)
        n = snprintf(ret_text, ER_ETCD_ENDPOINT_TEXT_MAX, "%s[%s]:%u", scheme, e->host, e->port);
    else
        n = snprintf(ret_text, ER_ETCD_ENDPOINT_TEXT_MAX, "%s%s:%u", scheme, e->host, e->port);
    assert(n > 0 && n < ER_ETCD_ENDPOINT_TEXT_MAX);
}

void er_etcd_endpoint_target(const struct er_etcd_endpoint *e,
                             char ret_text[ER_ETCD_ENDPOINT_TEXT_MAX])
{
    assert(e->kind != ER_ETCD_SRV);
    format(e, e->kind == ER_ETCD_UNIX ? "unix:" : e->literal_v6 ? "ipv6:" : "dns:///", ret_text);
}

void er_etcd_endpoint_format(const struct er_etcd_endpoint *e,
                             char ret_text[ER_ETCD_ENDPOINT_TEXT_MAX])
{
    static const char *const prefix[][3] = {
        [ER_ETCD_TCP] = {"", "http://", "https://"},
        [ER_ETCD_UNIX] = {"unix:", "unix:", "unixs:"},
        [ER_ETCD_SRV] = {"srv:", "srv+http:", "srv+https:"},
    };

    format(e, prefix[e->kind][e->security], ret_text);
}
