#include "agent/keeper_argv.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define URLS_MAX 2048

static void add(struct er_keeper_argv *a, const char *fmt, ...) ER_PRINTF(2, 3);

static void add(struct er_keeper_argv *a, const char *fmt, ...)
{
    size_t room = sizeof(a->text) - a->used;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(a->text + a->used, room, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= room || a->n == ER_KEEPER_ETCD_ARGS) {
        a->full = true;
        return;
    }
    a->argv[a->n++] = a->text + a->used;
    a->used += (size_t)n + 1;
}

static bool is_v6(const char *host)
{
    return strchr(host, ':') != NULL;
}

static size_t add_url(char urls[URLS_MAX], size_t used, const char *scheme, const char *host,
                      unsigned port)
{
    const char *form = is_v6(host) ? "%s%s://[%s]:%u" : "%s%s://%s:%u";
    int n = snprintf(urls + used, URLS_MAX - used, form, used ? "," : "", scheme, host, port);

    return used + (size_t)n < URLS_MAX ? used + (size_t)n : used;
}

static void listen_urls(char urls[URLS_MAX], const char *scheme, unsigned port,
                        const struct er_managed_listen *listen)
{
    size_t used = 0;

    urls[0] = '\0';
    /* On Linux [::] takes IPv4 as well; without IPv6 Go falls back to IPv4. */
    if (listen->all)
        used = add_url(urls, used, scheme, "::", port);
    for (size_t i = 0; i < listen->n; i++)
        used = add_url(urls, used, scheme, listen->addresses[i], port);
}

/* One member has no peers: a socket in its own folder, which must look like host:number. */
#define LONELY "unix://peer:0"

static void add_peers(struct er_keeper_argv *a, const struct er_keeper_opts *o,
                      const struct er_managed_plan *plan, const struct er_managed_listen *listen,
                      const char *scheme)
{
    char urls[URLS_MAX], cluster[URLS_MAX] = "";
    size_t used = 0;

    if (plan->n == 1) {
        add(a, "--listen-peer-urls=" LONELY);
        add(a, "--initial-advertise-peer-urls=" LONELY);
        add(a, "--initial-cluster=m0=" LONELY);
        return;
    }
    listen_urls(urls, scheme, plan->members[o->index].peer_port, listen);
    add(a, "--listen-peer-urls=%s", urls);
    for (size_t i = 0; i < plan->n; i++) {
        const struct er_managed_member *m = &plan->members[i];

        add_url(urls, 0, scheme, m->at.host, m->peer_port);
        if (i == o->index)
            add(a, "--initial-advertise-peer-urls=%s", urls);
        used += (size_t)snprintf(cluster + used, sizeof(cluster) - used, "%sm%zu=%s", i ? "," : "",
                                 i, urls);
        if (used >= sizeof(cluster))
            used = sizeof(cluster) - 1;
    }
    add(a, "--initial-cluster=%s", cluster);
}

static void add_tls(struct er_keeper_argv *a, const struct er_managed_plan *plan)
{
    add(a, "--cert-file=" ER_KEEPER_CERT);
    add(a, "--key-file=" ER_KEEPER_KEY);
    add(a, "--trusted-ca-file=" ER_KEEPER_CA);
    add(a, "--client-cert-auth");
    if (plan->n == 1)
        return;
    add(a, "--peer-cert-file=" ER_KEEPER_CERT);
    add(a, "--peer-key-file=" ER_KEEPER_KEY);
    add(a, "--peer-trusted-ca-file=" ER_KEEPER_CA);
    add(a, "--peer-client-cert-auth");
    /* The certificate proves that the peer has the secret; from which of its addresses it connects
     * is no matter. */
    add(a, "--experimental-peer-skip-client-san-verification");
}

int er_keeper_argv_make(struct er_keeper_argv *ret, const struct er_keeper_opts *o,
                        const struct er_managed_plan *plan, const struct er_managed_listen *listen,
                        struct er_error *err)
{
    const struct er_managed_member *self = &plan->members[o->index];
    const char *scheme = o->secret[0] ? "https" : "http";
    bool alone = plan->n == 1;
    char urls[URLS_MAX];

    memset(ret, 0, sizeof(*ret));
    add(ret, "%s", o->etcd);
    add(ret, "--name=m%u", o->index);
    add(ret, "--data-dir=%s", o->data);
    listen_urls(urls, scheme, self->at.port, listen);
    add(ret, "--listen-client-urls=%s", urls);
    add_url(urls, 0, scheme, self->at.host, self->at.port);
    add(ret, "--advertise-client-urls=%s", urls);
    add_peers(ret, o, plan, listen, scheme);
    add(ret, "--initial-cluster-token=elastic-run-%s", o->name);
    add(ret, "--initial-cluster-state=new");
    if (o->secret[0])
        add_tls(ret, plan);
    /* 3.4 copies the pending writes for each read: half the throughput without a small batch. */
    add(ret, "--backend-batch-limit=100");
    add(ret, "--backend-batch-interval=10ms");
    add(ret, "--auto-compaction-mode=revision");
    add(ret, "--auto-compaction-retention=10000");
    add(ret, "--quota-backend-bytes=2147483648");
    add(ret, "--snapshot-count=10000");
    /* A single member elects itself: the sooner, the sooner it serves. */
    add(ret, "--heartbeat-interval=%s", alone ? "20" : "100");
    add(ret, "--election-timeout=%s", alone ? "100" : "1000");
    /* Its connection to itself would look like a client's. */
    add(ret, "--enable-grpc-gateway=false");
    add(ret, "--logger=zap");
    add(ret, "--log-level=warn");
    add(ret, "--log-outputs=stderr");
    return ret->full ? er_error_set(err, ER_E_LIMIT, "etcd's command line is too long") : 0;
}
