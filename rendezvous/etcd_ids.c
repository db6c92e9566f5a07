#include "rendezvous/etcd_ids.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"

/* Open addressing, linear probing, at most half full. */

static size_t home(const struct er_etcd_ids *ids, uint64_t id)
{
    return (size_t)er_rand_mix(id) & (ids->cap - 1);
}

static struct er_etcd_id_slot *place(const struct er_etcd_ids *ids, uint64_t id)
{
    size_t i = home(ids, id);

    while (ids->slots[i].id && ids->slots[i].id != id)
        i = (i + 1) & (ids->cap - 1);
    return &ids->slots[i];
}

static int grow(struct er_etcd_ids *ids)
{
    struct er_etcd_ids larger = {.cap = ids->cap ? 2 * ids->cap : 16, .n = ids->n};

    larger.slots = calloc(larger.cap, sizeof(*larger.slots));
    if (!larger.slots)
        return -ENOMEM;
    for (size_t i = 0; i < ids->cap; i++) {
        if (ids->slots[i].id)
            *place(&larger, ids->slots[i].id) = ids->slots[i];
    }
    free(ids->slots);
    *ids = larger;
    return 0;
}

int er_etcd_ids_put(struct er_etcd_ids *ids, uint64_t id, void *item)
{
    if (2 * (ids->n + 1) > ids->cap) {
        int rc = grow(ids);

        if (rc < 0)
            return rc;
    }
    *place(ids, id) = (struct er_etcd_id_slot){id, item};
    ids->n++;
    return 0;
}

void *er_etcd_ids_get(const struct er_etcd_ids *ids, uint64_t id)
{
    return ids->cap && id ? place(ids, id)->item : NULL;
}

void er_etcd_ids_remove(struct er_etcd_ids *ids, uint64_t id)
{
    size_t mask = ids->cap - 1, hole, i;

    if (!er_etcd_ids_get(ids, id))
        return;
    hole = i = (size_t)(place(ids, id) - ids->slots);
    /* Move back whatever the hole would hide. */
    for (i = (i + 1) & mask; ids->slots[i].id; i = (i + 1) & mask) {
        if (((i - home(ids, ids->slots[i].id)) & mask) < ((i - hole) & mask))
            continue;
        ids->slots[hole] = ids->slots[i];
        hole = i;
    }
    ids->slots[hole] = (struct er_etcd_id_slot){0, NULL};
    ids->n--;
}

void er_etcd_ids_clear(struct er_etcd_ids *ids)
{
    if (ids->n)
        memset(ids->slots, 0, ids->cap * sizeof(*ids->slots));
    ids->n = 0;
}

void er_etcd_ids_done(struct er_etcd_ids *ids)
{
    free(ids->slots);
    memset(ids, 0, sizeof(*ids));
}
