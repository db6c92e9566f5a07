#pragma once
/*
 * Where etcd is: endpoints as users write them, and as gRPC wants them. Pure.
 *
 *   etcd-1:2379   10.0.0.1:2379   [fd00::1]:2379   etcd-1          (port 2379)
 *   http://… https://…            unix:/run/etcd.sock   unixs:/run/etcd.sock   srv:example.org
 *
 * http:// and unix: say plaintext, https:// and unixs: say TLS, the rest leaves it to the caller's
 * TLS options.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define ER_ETCD_ENDPOINTS_MAX     16
#define ER_ETCD_ENDPOINT_TEXT_MAX 320
#define ER_ETCD_HOST_MAX          256
#define ER_ETCD_PORT              2379

enum er_etcd_endpoint_kind { ER_ETCD_TCP, ER_ETCD_UNIX, ER_ETCD_SRV };
enum er_etcd_security { ER_ETCD_DEFAULT, ER_ETCD_PLAIN, ER_ETCD_TLS };

struct er_etcd_endpoint {
    enum er_etcd_endpoint_kind kind;
    enum er_etcd_security security;
    bool literal_v6;             /* host is an IPv6 address */
    char host[ER_ETCD_HOST_MAX]; /* host name or address without brackets, path, or SRV domain */
    uint16_t port;               /* TCP */
};

struct er_etcd_endpoints {
    struct er_etcd_endpoint list[ER_ETCD_ENDPOINTS_MAX];
    size_t n;
};

/* One endpoint. ER_E_CONFIG, with the text and what is wrong with it. */
int er_etcd_endpoint_parse(const char *text, struct er_etcd_endpoint *ret, struct er_error *err);
/* Comma-separated, at least one, none twice; blanks around items are allowed. ER_E_CONFIG. */
int er_etcd_endpoints_parse(const char *text, struct er_etcd_endpoints *ret, struct er_error *err);
/* gRPC's target: `dns:///host:port`, `ipv6:[…]:port`, `unix:/path`. Not for SRV. */
void er_etcd_endpoint_target(const struct er_etcd_endpoint *e,
                             char ret_text[ER_ETCD_ENDPOINT_TEXT_MAX]);
/* As messages name it: `https://etcd-1:2379`. */
void er_etcd_endpoint_format(const struct er_etcd_endpoint *e,
                             char ret_text[ER_ETCD_ENDPOINT_TEXT_MAX]);
