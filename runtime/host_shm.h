#pragma once
/*
 * Shared-memory transport: one segment per communicator, a memfd that rank 0 makes and passes on.
 *
 *   per rank  counters of pieces (in: contributed, red: own part reduced, done: read everything),
 *             a bell to sleep on, the descriptors of its last two operations
 *   slots     (ranks, 2, piece_bytes): each rank writes its own, two pieces deep
 *
 * An operation is cut into pieces; each goes
 *   wait done[all] >= piece - 1 (its slot is free) -> copy in, in++ -> wait in[all]
 *   large reductions: reduce own part into own slot, red++ -> wait red[all] -> copy out
 *   others:           reduce or copy everything from the slots
 *   -> done++; the next piece is copied in while peers are waited for.
 * The part of a slot that its rank owns holds no contribution: its result goes there.
 */
#include "runtime/host_transport.h"

/* The memory behind a communicator of `size` ranks: a memfd of the right length, owned by the
 * caller, or -errno. */
int er_shm_create(int size);
