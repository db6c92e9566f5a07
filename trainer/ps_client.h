#pragma once
/* A worker's side: one connection to each server, used by one thread. Every wait ends when the
 * agent's notice says STOP, or with the connection. */
#include "runtime/elastic.h"
#include "trainer/ps_server.h"

struct er_ps_client; /* opaque */

/* `ctx` (borrowed) for notices; may be NULL. ER_E_PEER_LOST: a server cannot be reached, or does
 * not take this worker (another secret, or other parameters); ER_E_MISMATCH: it holds others. */
int er_ps_client_open(struct er_ps_client **ret, const struct er_ctx *ctx, uint32_t worker,
                      const struct er_flat *flat, const struct er_host_record *records, int servers,
                      struct er_error *err);
void er_ps_client_close(struct er_ps_client *client);

/* Each waits; ER_E_PEER_LOST, ER_E_ABORTED, ER_E_PROTOCOL. */
/* What server 0 says, when it can: PART, PAUSE or DONE. */
int er_ps_client_lease(struct er_ps_client *client, enum er_ps_answer *ret, uint64_t *ret_number,
                       struct er_error *err);
/* The values of all servers, once `steps` are done. */
int er_ps_client_pull(struct er_ps_client *client, float *values, uint64_t steps,
                      struct er_error *err);
/* A push is both, in this order: whole at every server, then it counts. */
struct er_ps_push {
    uint64_t part, sees; /* sees: the steps that its values had seen */
    double weight;
};
int er_ps_client_stage(struct er_ps_client *client, const float *grads,
                       const struct er_ps_push *push, struct er_error *err);
int er_ps_client_commit(struct er_ps_client *client, struct er_error *err);
