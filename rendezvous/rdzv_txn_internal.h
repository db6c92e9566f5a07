#pragma once
/* Building transactions: shared by rdzv_txn.c (the node's) and rdzv_txn_lead.c (the leader's). */
#include "rendezvous/rdzv_internal.h"

struct er_rdzv_lane *rdzv_txn_begin(struct er_rdzv *c, enum er_rdzv_lane_id id,
                                    enum er_rdzv_txn kind);
/* Makes it an action. */
void rdzv_txn_end(struct er_rdzv *c, struct er_rdzv_lane *l);
/* Where `n` bytes fit into the lane's memory; there must be room. */
char *rdzv_txn_room(struct er_rdzv_lane *l, size_t n);
struct er_bytes rdzv_txn_keep(struct er_rdzv_lane *l, const void *data, size_t n);
struct er_bytes rdzv_txn_key_of(struct er_rdzv *c, struct er_rdzv_lane *l, enum er_key_kind kind,
                                uint64_t generation, const char *name);
struct er_store_cmp *rdzv_txn_add_cmp(struct er_rdzv_lane *l, enum er_cmp_target target,
                                      struct er_bytes key, uint64_t rev);
void rdzv_txn_cmp_value(struct er_rdzv_lane *l, struct er_bytes key, const void *value, size_t n);
void rdzv_txn_add_op(struct er_rdzv_lane *l, struct er_store_op op);
void rdzv_txn_add_put(struct er_rdzv_lane *l, struct er_bytes key, const void *value, size_t n,
                      uint64_t lease);
/* Read the key in both branches: an answer always says how things stand. */
void rdzv_txn_add_read(struct er_rdzv_lane *l, struct er_bytes key);
void rdzv_txn_put_world(struct er_rdzv_lane *l, struct er_bytes key, const struct er_job_record *w);
/* Under `lease`, which may be another node's: that node leads then. */
void rdzv_txn_put_leader(struct er_rdzv *c, struct er_rdzv_lane *l, struct er_bytes key,
                         const char *node, uint64_t incarnation, uint64_t lease);
