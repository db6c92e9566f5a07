#pragma once
/*
 * The store of a job: the embedded one, or etcd through its module. Whoever knows how to reach an
 * etcd (rendezvous.endpoints, or the managed one) says so in a struct er_store_access.
 */
#include "agent/config.h"
#include "rendezvous/etcd_load.h"

/* How to reach an etcd. Borrowed for the call; NULL: none. */
struct er_store_access {
    const char *const *endpoints;
    size_t endpoint_n;
    const char *ca, *cert, *key, *server_name; /* files, but for the name */
    const char *user, *password_file;
};

struct er_opened_store {
    struct er_store *store;                  /* owned */
    const struct er_store_etcd_module *etcd; /* NULL: the embedded store */
};

/* What the configuration says, for `etcd`; borrows from it. */
void er_store_access_from(const struct er_config *config, struct er_store_access *ret);

/* `access` NULL: the embedded store. `prefix`/`job`: where the job's keys are. Whether etcd is
 * there shows later. ER_E_UNSUPPORTED: no module; ER_E_CONFIG: endpoints, TLS or password files;
 * -ENOMEM. Blocks (seconds) only for a srv: endpoint's DNS query. */
int er_store_open(struct er_opened_store *ret, const struct er_store_access *access,
                  const char *prefix, const char *job, uint64_t seed, struct er_error *err);
/* Zeroed is fine. */
void er_store_close(struct er_opened_store *store);
