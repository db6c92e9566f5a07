#include "agent/store_open.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "rendezvous/store_mem.h"

#define LIST_MAX 8192
#define KEY_MAX  256

void er_store_access_from(const struct er_config *c, struct er_store_access *ret)
{
    *ret = (struct er_store_access){
        .endpoints = (const char *const *)c->rendezvous.endpoints.items,
        .endpoint_n = c->rendezvous.endpoints.n,
        .ca = c->rendezvous.tls.ca,
        .cert = c->rendezvous.tls.cert,
        .key = c->rendezvous.tls.key,
        .server_name = c->rendezvous.tls.server_name,
        .user = c->rendezvous.auth.user,
        .password_file = c->rendezvous.auth.password_file,
    };
}

static int join_list(const struct er_store_access *access, struct er_buf *ret)
{
    int rc = 0;

    for (size_t i = 0; i < access->endpoint_n && !rc; i++) {
        rc = i ? er_buf_add_str(ret, ",") : 0;
        if (!rc)
            rc = er_buf_add_str(ret, access->endpoints[i]);
    }
    return rc;
}

static int open_etcd(struct er_opened_store *ret, const struct er_store_access *access,
                     const char *prefix, const char *job, uint64_t seed, struct er_error *err)
{
    ER_CLEANUP(er_buf_done) struct er_buf list;
    const struct er_store_etcd_module *module;
    char key[KEY_MAX];
    int rc = er_store_etcd_load(&module, err);

    er_buf_init(&list, LIST_MAX);
    if (rc)
        return rc;
    if (join_list(access, &list))
        return er_error_set(err, ER_E_CONFIG, "rendezvous.endpoints: too long");
    /* The first request reads the job's own keys: whether they may be read shows at once. */
    if (snprintf(key, sizeof(key), "%s/%s/", prefix, job) >= (int)sizeof(key))
        return er_error_set(err, ER_E_CONFIG, "rendezvous.prefix: too long");
    const struct er_etcd_opts opts = {
        .endpoints = er_buf_str(&list),
        .prefix = key,
        .ca = access->ca,
        .cert = access->cert,
        .key = access->key,
        .server_name = access->server_name,
        .user = access->user,
        .password_file = access->password_file,
        .seed = seed,
    };

    rc = module->open(&ret->store, &opts, err);
    if (!rc)
        ret->etcd = module;
    return rc ? er_error_wrap(err, rc, "rendezvous") : 0;
}

int er_store_open(struct er_opened_store *ret, const struct er_store_access *access,
                  const char *prefix, const char *job, uint64_t seed, struct er_error *err)
{
    *ret = (struct er_opened_store){.store = NULL};
    return access ? open_etcd(ret, access, prefix, job, seed, err)
                  : er_store_mem_new(&ret->store, err);
}

void er_store_close(struct er_opened_store *store)
{
    if (store->store)
        store->store->ops->free(store->store);
    *store = (struct er_opened_store){.store = NULL};
}
