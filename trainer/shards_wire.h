#pragma once
/*
 * Pieces of memory on their way between ranks: many at once, side by side, in an order that both
 * ends agree on, and each pair's digest compared at the end. Internal to shards.
 */
#include "trainer/engine.h"

struct er_shards_wire; /* opaque */

/* The pieces are in the memory of `engine`, which `comm` carries. */
int er_shards_wire_open(struct er_shards_wire **ret, struct er_comm *comm, struct er_engine *engine,
                        struct er_error *err);
/* After a failure pieces are under way until the communicator is aborted: their memory stays until
 * then. NULL is fine. */
void er_shards_wire_close(struct er_shards_wire *wire);
/* Memory is borrowed until the check. Both ends name the pieces between them in the same order, and
 * all ranks theirs in one order of all pieces. */
int er_shards_wire_send(struct er_shards_wire *wire, const void *data, size_t bytes, int to,
                        struct er_error *err);
int er_shards_wire_recv(struct er_shards_wire *wire, void *data, size_t bytes, int from,
                        struct er_error *err);
/* Collective: waits for the rest. ER_E_CORRUPT: what came from a rank is not what it sent. */
int er_shards_wire_check(struct er_shards_wire *wire, struct er_error *err);
