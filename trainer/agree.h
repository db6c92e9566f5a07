#pragma once
/* All ranks train the same gradients, in the same order: found out before the first step, in words.
 */
#include "trainer/ddp.h"

/* Collective; waits. `hash`: of everything that must be equal beside names and sizes.
 * ER_E_MISMATCH, the same on every rank, names the first gradient that differs, with both ranks;
 * else the communicator's failure. */
int er_agree_spans(struct er_comm *comm, const struct er_span *spans, size_t n, uint64_t hash,
                   struct er_error *err);
