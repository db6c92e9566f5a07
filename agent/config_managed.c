/* A store of the job's own: what torchrun's c10d and static become on several nodes, and whether
 * what managed etcd takes is given. */
#include "agent/config_internal.h"

#include <stdlib.h>
#include <string.h>

#include "agent/managed_plan.h"
#include "base/cleanup.h"

#define C10D_PORT   "29400" /* torchrun's defaults */
#define STATIC_PORT "29500"
#define LIST_MAX    4096

static bool has_port(const char *endpoint)
{
    const char *bracket = strrchr(endpoint, ']');

    return strchr(bracket ? bracket : endpoint, ':') != NULL;
}

static void set_endpoints(struct er_loader *loader, struct er_buf *list,
                          const struct er_config_source *source)
{
    if (er_buf_add_str(list, "]"))
        er_loader_no_memory(loader);
    else
        er_loader_set_text(loader, er_key_get("rendezvous.endpoints"), er_buf_str(list), source);
}

/* torchrun's port where none was given. */
static void complete_ports(struct er_loader *loader, const char *port)
{
    const struct er_strlist *given = &loader->config->rendezvous.endpoints;
    const struct er_setting *setting = er_config_setting(loader->config, "rendezvous.endpoints");
    ER_CLEANUP(er_cleanup_free) char *label = strdup(setting->where);
    const struct er_config_source source = {.layer = setting->layer, .label = label};
    ER_CLEANUP(er_buf_done) struct er_buf list;
    bool changed = false;

    er_buf_init(&list, LIST_MAX);
    (void)er_buf_add_str(&list, "[");
    for (size_t i = 0; i < given->n; i++) {
        bool lacks = !has_port(given->items[i]);

        changed = changed || lacks;
        (void)er_buf_printf(&list, "%s\"%s%s%s\"", i ? "," : "", given->items[i], lacks ? ":" : "",
                            lacks ? port : "");
    }
    if (changed && label)
        set_endpoints(loader, &list, &source);
}

/* --master-addr and --master-port say where the store listens; workers get a fresh port all the
 * same. */
static void use_master(struct er_loader *loader)
{
    const struct er_setting *port = er_config_setting(loader->config, "master_port");
    bool named = strcmp(loader->config->master_port, "auto") != 0;
    const struct er_config_source source = {.layer = ER_LAYER_OPTION,
                                            .label = loader->master_addr_from};
    const struct er_config_source nowhere = {.label = "default"};
    const char *host = loader->master_addr;
    bool bare_v6 = strchr(host, ':') && host[0] != '[';
    ER_CLEANUP(er_buf_done) struct er_buf list;

    er_buf_init(&list, LIST_MAX);
    (void)er_buf_printf(&list, bare_v6 ? "[\"[%s]:%s\"" : "[\"%s:%s\"", host,
                        named ? loader->config->master_port : STATIC_PORT);
    set_endpoints(loader, &list, &source);
    if (named && port->layer >= ER_LAYER_ENVIRONMENT)
        er_loader_set_text(loader, er_key_get("master_port"), "auto", &nowhere);
}

void er_loader_managed_torchrun(struct er_loader *loader)
{
    const struct er_strlist *endpoints = &loader->config->rendezvous.endpoints;
    bool is_static = loader->torchrun_backend && strcmp(loader->torchrun_backend, "static") == 0;

    if (is_static && !endpoints->n && loader->master_addr)
        use_master(loader);
    if (endpoints->n)
        complete_ports(loader, is_static ? STATIC_PORT : C10D_PORT);
    else if (is_static)
        finding(
            loader, ER_E_USAGE,
            "%s: static on several nodes needs --master-addr=HOST (and --master-port), the node "
            "that holds the job's record",
            loader->torchrun_backend_from);
    else
        finding(loader, ER_E_USAGE,
                "%s: c10d on several nodes needs --rdzv-endpoint=HOST[:PORT], the node that holds "
                "the job's record (or three, separated by commas: then any one may be lost)",
                loader->torchrun_backend_from);
}

static void check_secret(struct er_loader *loader)
{
    struct er_config *config = loader->config;

    if (config->rendezvous.managed.secret_file || config->rendezvous.managed.insecure)
        return;
    if (!config->program_form) {
        finding(
            loader, er_loader_code_of(loader, "rendezvous.backend"),
            "%s: managed: anybody who reaches etcd's port could change the job: give "
            "rendezvous.managed.secret_file (the same file on all nodes; `openssl rand -hex 32` "
            "makes a good one), or say rendezvous.managed.insecure: true",
            er_loader_where(loader, "rendezvous.backend"));
        return;
    }
    config->rendezvous.managed.insecure = true;
    er_loader_refresh(loader, "rendezvous.managed.insecure");
    er_loader_warn(loader, "the job's record is open to everybody who reaches its port, as under "
                           "torchrun; --set rendezvous.managed.secret_file=FILE, the same on all "
                           "nodes, closes it");
}

void er_loader_managed_check(struct er_loader *loader)
{
    const struct er_config *config = loader->config;
    const struct er_strlist *list = &config->rendezvous.endpoints;
    struct er_error err = ER_ERROR_INIT;
    const char *key = list->n ? "rendezvous.endpoints" : "rendezvous.backend";
    struct er_managed_plan plan;

    if (config->rendezvous.backend != ER_BACKEND_MANAGED || (!list->n && loader->torchrun_backend))
        return;
    if (er_managed_plan_make(&plan, (const char *const *)list->items, list->n,
                             (uint16_t)config->rendezvous.managed.peer_port, &err))
        finding(loader, er_loader_code_of(loader, key), "%s: %s", er_loader_where(loader, key),
                err.text);
    check_secret(loader);
}
