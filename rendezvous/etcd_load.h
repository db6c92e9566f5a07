#pragma once
/* Finds and loads the etcd store's module: er_store_etcd.so beside the running program, or in the
 * installation's module folder. Once a process; it stays. */
#include "rendezvous/store_etcd.h"

/* ER_E_UNSUPPORTED: no such module, or one of another version; the text names where it was looked
 * for and how to get it. */
int er_store_etcd_load(const struct er_store_etcd_module **ret, struct er_error *err);
