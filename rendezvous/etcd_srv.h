#pragma once
/*
 * DNS SRV discovery of etcd's clients' endpoints, as etcd's own client does it:
 * _etcd-client-ssl._tcp for TLS, _etcd-client._tcp for plaintext.
 */
#include "rendezvous/etcd_endpoint.h"

/* Blocks for the query: up to 8 s with the resolver's name servers. ER_E_CONFIG: no such record;
 * -ENOTCONN: the name servers don't answer. */
int er_etcd_srv_resolve(const char *domain, enum er_etcd_security security,
                        struct er_etcd_endpoints *ret, struct er_error *err);
/* A DNS answer's SRV records by priority, then weight; ER_E_PROTOCOL when it is damaged. For
 * resolve(), and for tests. */
int er_etcd_srv_parse(const unsigned char *answer, size_t n, enum er_etcd_security security,
                      struct er_etcd_endpoints *ret);
