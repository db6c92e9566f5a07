/* Which store the job uses, and what that takes. */
#include "agent/config_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/parse.h"
#include "rendezvous/etcd_endpoint.h"

bool er_config_keeps_record(const struct er_config *config)
{
    return config->rendezvous.backend == ER_BACKEND_ETCD ||
           config->rendezvous.backend == ER_BACKEND_MANAGED;
}

uint64_t er_config_lease_ttl(const struct er_config *config)
{
    uint32_t nodes = config->nnodes_max;

    if (config->rendezvous.lease_ttl_us)
        return config->rendezvous.lease_ttl_us;
    return (nodes <= 1000 ? 5 : nodes <= 5000 ? 10 : 15) * ER_US_PER_S;
}

int er_config_set_node_id(struct er_config *config, const char *id, struct er_error *err)
{
    char *copy = strdup(id);

    if (!copy)
        return er_error_set(err, -ENOMEM, "node.id: out of memory");
    free(config->node.id);
    config->node.id = copy;
    return 0;
}

/* The embedded store serves this host alone: any other name for it changes nothing. */
static void say_master_unused(struct er_loader *loader, bool one)
{
    const char *addr = loader->master_addr;

    if (one && strcmp(addr, "127.0.0.1") != 0 && strcmp(addr, "localhost") != 0)
        er_loader_warn(loader,
                       "%s: no effect on one node; workers get this node's own MASTER_ADDR "
                       "(node.address, --local-addr)",
                       loader->master_addr_from);
    else if (!one && (!loader->torchrun_backend || strcmp(loader->torchrun_backend, "static") != 0))
        er_loader_warn(loader, "%s: no effect: workers get the address of the node of rank 0",
                       loader->master_addr_from);
}

/* torchrun's `static` and `c10d`, and an endpoint beside them: on one node the embedded store. */
static void resolve_torchrun(struct er_loader *loader)
{
    struct er_config *config = loader->config;
    struct er_setting *endpoints = er_config_setting(config, "rendezvous.endpoints");
    const struct er_config_source source = {ER_LAYER_OPTION, loader->torchrun_backend_from, 0, 0,
                                            false};
    const struct er_config_source nowhere = {.label = "default"};
    bool one = config->nnodes_max == 1;

    /* As under torchrun --master-addr alone means static, its default. */
    if (!one && !loader->torchrun_backend && loader->master_addr && config->program_form &&
        config->rendezvous.backend == ER_BACKEND_AUTO && !config->rendezvous.endpoints.n) {
        loader->torchrun_backend = "static";
        loader->torchrun_backend_from = strdup(loader->master_addr_from);
    }
    if (loader->torchrun_backend)
        er_loader_set_text(loader, er_key_get("rendezvous.backend"), one ? "embedded" : "managed",
                           &source);
    if (loader->torchrun_backend && !one)
        er_loader_managed_torchrun(loader);
    if (loader->master_addr)
        say_master_unused(loader, one);
    /* torchrun's default backend is static: an endpoint alone does not ask for etcd. */
    if (one && endpoints->layer >= ER_LAYER_ENVIRONMENT && config->rendezvous.endpoints.n &&
        (config->rendezvous.backend == ER_BACKEND_EMBEDDED ||
         (config->program_form && config->rendezvous.backend == ER_BACKEND_AUTO))) {
        er_loader_warn(loader, "%s: no effect on one node", endpoints->where);
        er_loader_set_text(loader, er_key_get("rendezvous.endpoints"), "[]", &nowhere);
    }
}

/* The agreed value is the one that is meant: a node that says etcd and one that leaves it at auto
 * agree. */
static void resolve_auto(struct er_loader *loader)
{
    struct er_config *config = loader->config;

    if (config->rendezvous.backend != ER_BACKEND_AUTO)
        return;
    if (config->rendezvous.endpoints.n) {
        config->rendezvous.backend = ER_BACKEND_ETCD;
        er_loader_refresh(loader, "rendezvous.backend");
    } else if (config->nnodes_max == 1) {
        config->rendezvous.backend = ER_BACKEND_EMBEDDED;
    } else if (er_loader_managed_slurm(loader)) {
        config->rendezvous.backend = ER_BACKEND_MANAGED;
        er_loader_refresh(loader, "rendezvous.backend");
    }
}

static void check_endpoints(struct er_loader *loader)
{
    const struct er_config *config = loader->config;
    const struct er_strlist *list = &config->rendezvous.endpoints;
    const char *where = er_loader_where(loader, "rendezvous.endpoints");
    int code = er_loader_code_of(loader, "rendezvous.endpoints");

    if (config->rendezvous.backend != ER_BACKEND_ETCD)
        return;
    if (!list->n)
        finding(loader, er_loader_code_of(loader, "rendezvous.backend"),
                "%s: etcd needs to know where it is: give rendezvous.endpoints (--rdzv-endpoint)",
                er_loader_where(loader, "rendezvous.backend"));
    if (list->n > ER_ETCD_ENDPOINTS_MAX)
        finding(loader, code, "%s: at most %d endpoints", where, ER_ETCD_ENDPOINTS_MAX);
    for (size_t i = 0; i < list->n; i++) {
        struct er_etcd_endpoint endpoint;
        struct er_error err = ER_ERROR_INIT;

        if (er_etcd_endpoint_parse(list->items[i], &endpoint, &err))
            finding(loader, code, "%s: %s", where, err.text);
    }
}

/* Half a pair of files or half an account is a slip of the pen. */
static void check_pair(struct er_loader *loader, const char *one, const char *has,
                       const char *other, const char *lacks)
{
    if (has && !lacks)
        finding(loader, er_loader_code_of(loader, one), "%s: needs %s too",
                er_loader_where(loader, one), other);
}

static void check_access(struct er_loader *loader)
{
    const struct er_config *c = loader->config;

    check_pair(loader, "rendezvous.tls.cert", c->rendezvous.tls.cert, "rendezvous.tls.key",
               c->rendezvous.tls.key);
    check_pair(loader, "rendezvous.tls.key", c->rendezvous.tls.key, "rendezvous.tls.cert",
               c->rendezvous.tls.cert);
    check_pair(loader, "rendezvous.auth.user", c->rendezvous.auth.user,
               "rendezvous.auth.password_file", c->rendezvous.auth.password_file);
    check_pair(loader, "rendezvous.auth.password_file", c->rendezvous.auth.password_file,
               "rendezvous.auth.user", c->rendezvous.auth.user);
}

static bool is_open(const struct er_config *c, const struct er_etcd_endpoint *e)
{
    static const char *const OWN[] = {"localhost", "127.0.0.1", "::1"};
    bool tls = c->rendezvous.tls.ca || c->rendezvous.tls.cert || c->rendezvous.tls.server_name;

    if (e->kind == ER_ETCD_UNIX || e->security == ER_ETCD_TLS ||
        (e->security == ER_ETCD_DEFAULT && tls))
        return false;
    for (size_t i = 0; i < ER_ARRAY_N(OWN); i++) {
        if (strcmp(e->host, OWN[i]) == 0)
            return false;
    }
    return true;
}

/* A password that whoever is on the way can read. */
static void check_password(struct er_loader *loader)
{
    const struct er_config *c = loader->config;
    const struct er_strlist *list = &c->rendezvous.endpoints;
    struct er_etcd_endpoint e;

    for (size_t i = 0; c->rendezvous.auth.user && i < list->n; i++) {
        if (er_etcd_endpoint_parse(list->items[i], &e, NULL) || !is_open(c, &e))
            continue;
        er_loader_warn(loader,
                       "rendezvous.auth: the password goes to '%s' in plaintext, for everybody on "
                       "the way to read: give rendezvous.tls.ca, or an https:// endpoint",
                       list->items[i]);
        return;
    }
}

/* Another spelling of a prefix would be another job. */
static void check_prefix(struct er_loader *loader)
{
    const char *prefix = loader->config->rendezvous.prefix;
    size_t n = strlen(prefix);

    if (n < 2 || prefix[0] != '/' || prefix[n - 1] == '/' || strstr(prefix, "//"))
        finding(loader, er_loader_code_of(loader, "rendezvous.prefix"),
                "%s: expected a path such as /elastic-run, without '/' at its end; got '%s'",
                er_loader_where(loader, "rendezvous.prefix"), prefix);
}

static void check_nodes(struct er_loader *loader)
{
    const struct er_config *config = loader->config;

    if (config->nnodes_max > 1 && !er_config_keeps_record(config))
        finding(loader, er_loader_code_of(loader, "nnodes"),
                "%s: more than one node needs a store that all of them reach: an etcd of yours, at "
                "rendezvous.endpoints (--rdzv-backend=etcd --rdzv-endpoint=HOST:PORT), or one that "
                "elastic-run starts on a host of the job (--rdzv-backend=c10d "
                "--rdzv-endpoint=HOST:PORT; rendezvous.backend: managed)",
                er_loader_where(loader, "nnodes"));
}

void er_loader_store_kind(struct er_loader *loader)
{
    resolve_torchrun(loader);
    resolve_auto(loader);
    check_nodes(loader);
    check_endpoints(loader);
    er_loader_managed_check(loader);
    check_access(loader);
    check_password(loader);
    check_prefix(loader);
}

/* Two jobs that leave their names open would meet in the store. */
void er_loader_name_in_store(struct er_loader *loader)
{
    finding(loader, loader->config->program_form ? ER_E_USAGE : ER_E_CONFIG,
            "%s: give the job a name of its own, the same on all nodes: its record in the store "
            "stays under it",
            loader->config->program_form ? "--rdzv-id" : "name");
}
