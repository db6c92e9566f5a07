#include "rendezvous/etcd_load.h"

#include "base/module.h"

int er_store_etcd_load(const struct er_store_etcd_module **ret, struct er_error *err)
{
    static const struct er_module MODULE = {
        .what = "the etcd store",
        .file = "er_store_etcd.so",
        .symbol = ER_STORE_ETCD_SYMBOL,
        .version = ER_STORE_ETCD_VERSION,
        .hint = "it is built where libgrpc-dev, libprotobuf-c-dev and protobuf-c-compiler are "
                "installed",
    };
    const void *found;
    int rc = er_module_load(&MODULE, NULL, &found, err);

    if (!rc)
        *ret = found;
    return rc;
}
