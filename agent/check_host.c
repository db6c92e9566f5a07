/* --check: what the configuration asks of this host and of the network. */
#include "agent/check_host.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/cgroup.h"
#include "agent/gpu.h"
#include "agent/managed_etcd.h"
#include "agent/node_address.h"
#include "agent/store_open.h"
#include "base/clock.h"

#define STORE_US (5 * ER_US_PER_S)

/* One read of the store. */
struct probe {
    bool done;
    int rc;
};

static void on_read(void *user, int rc, const struct er_store_reply *reply)
{
    struct probe *probe = user;

    probe->done = true;
    probe->rc = rc;
}

static void wait_for(struct er_store *store, struct probe *probe)
{
    uint64_t end_us = er_now_us() + 2 * STORE_US; /* the store's own limit comes first */

    while (!probe->done && er_now_us() < end_us) {
        uint64_t deadline_us = store->ops->deadline(store);
        struct pollfd p = {.fd = store->ops->fd(store), .events = POLLIN};

        if (!store->ops->pending(store))
            poll(&p, 1, er_poll_ms(er_now_us(), deadline_us < end_us ? deadline_us : end_us));
        store->ops->dispatch(store, er_now_us());
    }
}

static void check_answer(struct er_opened_store *opened, const struct probe *probe,
                         struct er_findings *findings)
{
    struct er_etcd_status status = {.text = ""};
    bool refused = probe->done && probe->rc == -EACCES;

    if (probe->done && !probe->rc)
        return;
    opened->etcd->status(opened->store, &status);
    er_findings_add(findings, refused ? -EPERM : -ENOTCONN, "store: %s",
                    status.text[0] ? status.text
                    : refused      ? "it refuses certificate, password or permission"
                                   : "no answer");
}

static void check_store(const struct er_config *config, struct er_findings *findings)
{
    struct er_opened_store opened = {.store = NULL};
    const struct er_store_op read = {
        .kind = ER_OP_RANGE,
        .key = {config->rendezvous.prefix, strlen(config->rendezvous.prefix)},
        .prefix = true,
        .limit = 1,
        .keys_only = true,
    };
    const struct er_store_txn txn = {.then_ops = &read, .then_n = 1};
    struct er_error err = ER_ERROR_INIT;
    struct er_store_access access;
    struct probe probe = {.done = false};
    int rc;

    er_store_access_from(config, &access);
    rc =
        er_store_open(&opened, &access, config->rendezvous.prefix, config->name, er_now_us(), &err);
    if (!rc)
        rc = opened.store->ops->txn(opened.store, &txn, on_read, &probe);
    if (rc) {
        er_findings_add(findings, rc, "store: %s", err.code ? err.text : er_error_name(rc));
    } else {
        wait_for(opened.store, &probe);
        check_answer(&opened, &probe, findings);
    }
    er_store_close(&opened);
}

static void check_address(const struct er_config *config, struct er_findings *findings,
                          char ret[ER_ADDRESS_MAX])
{
    const struct er_strlist *endpoints = &config->rendezvous.endpoints;
    struct er_error err = ER_ERROR_INIT;
    int rc;

    ret[0] = '\0';
    rc = er_node_address(config->node.address, (const char *const *)endpoints->items, endpoints->n,
                         ret, &err);
    if (rc)
        er_findings_add(findings, rc, "%s", err.text);
}

static void check_managed(const struct er_config *config, struct er_findings *findings)
{
    const struct er_managed_opts opts = {
        .name = config->name,
        .endpoints = (const char *const *)config->rendezvous.endpoints.items,
        .endpoints_n = config->rendezvous.endpoints.n,
        .peer_port = (uint16_t)config->rendezvous.managed.peer_port,
        .etcd = config->rendezvous.managed.etcd,
        .secret_file = config->rendezvous.managed.secret_file,
    };

    er_managed_etcd_check(&opts, findings);
}

void er_check_host(const struct er_config *config, struct er_findings *findings)
{
    char address[ER_ADDRESS_MAX];

    check_address(config, findings, address);
    if (config->rendezvous.backend == ER_BACKEND_ETCD)
        check_store(config, findings);
    else if (config->rendezvous.backend == ER_BACKEND_MANAGED)
        check_managed(config, findings);
}

/* -1: not known. */
static int gpus(void)
{
    struct er_gpu_table *table = calloc(1, sizeof(*table));
    int n = table && !er_gpu_read(table, NULL) ? (int)table->n : -1;

    free(table);
    return n;
}

int er_check_facts(const struct er_config *config, struct er_buf *out)
{
    static const char *const BACKENDS[] = {"auto", "embedded", "etcd", "managed"};
    struct er_findings findings;
    char address[ER_ADDRESS_MAX];
    int rc, gpu_n = gpus();

    er_findings_init(&findings);
    check_address(config, &findings, address);
    er_findings_done(&findings);
    rc = er_buf_printf(out, "job          %s\nnode         %s, address %s\nworkers      %u\n",
                       config->name, config->node.id, address, config->nproc);
    if (!rc && gpu_n >= 0)
        rc = er_buf_printf(out, "GPUs         %d\n", gpu_n);
    if (!rc)
        rc = er_buf_printf(out, "store        %s\n", BACKENDS[config->rendezvous.backend]);
    if (!rc)
        rc = er_buf_printf(out, "cgroup v2    %s\n",
                           er_cgroup_is_delegated() ? "delegated" : "not delegated to us");
    return rc ? rc
              : er_buf_printf(out, "logs         %s\ncheckpoints  %s\n",
                              config->log.dir ? config->log.dir : "none",
                              config->checkpoint.dir ? config->checkpoint.dir : "none");
}
