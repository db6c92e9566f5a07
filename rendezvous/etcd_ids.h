#pragma once
/* A table from ids (not 0) to objects, for a client with thousands of watches and leases. Pure. */
#include <stddef.h>
#include <stdint.h>

struct er_etcd_ids { /* zero-initialise */
    struct er_etcd_id_slot {
        uint64_t id; /* 0: free */
        void *item;  /* borrowed */
    } * slots;       /* owned */
    size_t n, cap;   /* cap: 0 or a power of two */
};

/* -ENOMEM. The id must not be there. */
int er_etcd_ids_put(struct er_etcd_ids *ids, uint64_t id, void *item);
void *er_etcd_ids_get(const struct er_etcd_ids *ids, uint64_t id); /* NULL: not there */
void er_etcd_ids_remove(struct er_etcd_ids *ids, uint64_t id);
void er_etcd_ids_clear(struct er_etcd_ids *ids);
void er_etcd_ids_done(struct er_etcd_ids *ids);
