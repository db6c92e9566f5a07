#include "rendezvous/store_etcd.h"

/* What er_store_etcd.so exports; programs that link the store itself do without. */
__attribute__((
    visibility("default"))) extern const struct er_store_etcd_module er_store_etcd_module;
const struct er_store_etcd_module er_store_etcd_module = {
    .version = ER_STORE_ETCD_VERSION,
    .open = er_store_etcd_open,
    .status = er_store_etcd_status,
    .lease_until = er_store_etcd_lease_until,
    .counts = er_store_etcd_counts,
};
