#include "rendezvous/etcd_srv.h"

#include <arpa/nameser.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ANSWER_MAX  8192
#define SRV_FIXED_N 6 /* priority, weight, port */

struct record {
    unsigned priority, weight;
    struct er_etcd_endpoint endpoint;
};

/* Lowest priority first, then highest weight. */
static int by_priority(const void *a, const void *b)
{
    const struct record *x = a, *y = b;

    if (x->priority != y->priority)
        return x->priority < y->priority ? -1 : 1;
    return (x->weight < y->weight) - (x->weight > y->weight);
}

static int take_record(ns_msg *answer, const ns_rr *rr, struct record *to)
{
    const unsigned char *data = ns_rr_rdata(*rr);
    size_t n;

    if (ns_rr_rdlen(*rr) <= SRV_FIXED_N)
        return ER_E_PROTOCOL;
    to->priority = ns_get16(data);
    to->weight = ns_get16(data + 2);
    to->endpoint.port = (uint16_t)ns_get16(data + 4);
    if (ns_name_uncompress(ns_msg_base(*answer), ns_msg_end(*answer), data + SRV_FIXED_N,
                           to->endpoint.host, sizeof(to->endpoint.host)) < 0)
        return ER_E_PROTOCOL;
    n = strlen(to->endpoint.host);
    if (n && to->endpoint.host[n - 1] == '.')
        to->endpoint.host[n - 1] = 0;
    return *to->endpoint.host && to->endpoint.port ? 0 : ER_E_PROTOCOL;
}

int er_etcd_srv_parse(const unsigned char *answer, size_t n, enum er_etcd_security security,
                      struct er_etcd_endpoints *ret)
{
    struct record records[ER_ETCD_ENDPOINTS_MAX];
    struct er_etcd_endpoints list = {.n = 0};
    ns_msg msg;
    ns_rr rr;

    memset(records, 0, sizeof(records));
    if (n > ANSWER_MAX || ns_initparse(answer, (int)n, &msg) < 0)
        return ER_E_PROTOCOL;
    for (int i = 0; i < ns_msg_count(msg, ns_s_an) && list.n < ER_ETCD_ENDPOINTS_MAX; i++) {
        if (ns_parserr(&msg, ns_s_an, i, &rr) < 0)
            return ER_E_PROTOCOL;
        if (ns_rr_type(rr) == ns_t_srv && take_record(&msg, &rr, &records[list.n++]) < 0)
            return ER_E_PROTOCOL;
    }
    qsort(records, list.n, sizeof(records[0]), by_priority);
    for (size_t i = 0; i < list.n; i++) {
        list.list[i] = records[i].endpoint;
        list.list[i].kind = ER_ETCD_TCP;
        list.list[i].security = security;
    }
    *ret = list;
    return 0;
}

static int query(const char *name, unsigned char *answer, int *ret_n, int *ret_herrno)
{
    struct __res_state state;

    memset(&state, 0, sizeof(state));
    if (res_ninit(&state) < 0)
        return -ENOTCONN;
    state.retrans = 2; /* seconds */
    state.retry = 2;
    *ret_n = res_nquery(&state, name, ns_c_in, ns_t_srv, answer, ANSWER_MAX);
    *ret_herrno = state.res_h_errno;
    res_nclose(&state);
    return 0;
}

int er_etcd_srv_resolve(const char *domain, enum er_etcd_security security,
                        struct er_etcd_endpoints *ret, struct er_error *err)
{
    char name[ER_ETCD_HOST_MAX + 32];
    unsigned char answer[ANSWER_MAX];
    int n = -1, why = 0, rc;

    snprintf(name, sizeof(name), "_etcd-client%s._tcp.%s", security == ER_ETCD_TLS ? "-ssl" : "",
             domain);
    rc = query(name, answer, &n, &why);
    if (rc < 0)
        return er_error_set(err, rc, "etcd srv:%s: the resolver cannot be set up", domain);
    if (n < 0)
        return er_error_set(err, why == TRY_AGAIN ? -ENOTCONN : ER_E_CONFIG,
                            "etcd srv:%s: looking up SRV records of %s: %s", domain, name,
                            hstrerror(why));
    rc = er_etcd_srv_parse(answer, n > ANSWER_MAX ? ANSWER_MAX : (size_t)n, security, ret);
    if (rc < 0 || ret->n == 0)
        return er_error_set(err, rc < 0 ? rc : ER_E_CONFIG, "etcd srv:%s: %s of %s", domain,
                            rc < 0 ? "a damaged answer" : "no SRV records", name);
    return 0;
}
