#pragma once
/*
 * The word that somebody else says for an agent that died, whose workers are known to be gone: its
 * record becomes that of another incarnation, which is leaving and runs nothing, and leadership is
 * laid down. That is positive evidence, so the leader waits no grace; a record that merely vanished
 * could be a lease that the store lost. It ends with the node's lease, or with its next agent.
 * Pure: the caller dispatches the store.
 */
#include "rendezvous/codec.h"
#include "rendezvous/store.h"

/* rc 0: said, or there was nothing to say: the record is gone, or another agent's. */
typedef void (*er_farewell_fn)(void *user, int rc);

struct er_farewell {
    /* set by the caller */
    struct er_store *store;             /* borrowed until `done` */
    const char *prefix, *job, *node_id; /* likewise */
    uint64_t incarnation, generation;   /* of the agent that died; the newest it may have run */
    uint64_t seed;                      /* differs for each */
    er_farewell_fn done;                /* once, from the store's dispatch */
    void *user;
    /* its own */
    char root[ER_ROOT_MAX], node_key[ER_KEY_MAX], leader_key[ER_KEY_MAX];
    size_t node_n, leader_n;
    char record[ER_MEMBER_BYTES_MAX];
};

/* `f` stays where it is until `done`. Errors of the store's txn; `done` is not called then. */
int er_farewell_begin(struct er_farewell *f);
