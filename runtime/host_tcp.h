#pragma once
/*
 * TCP transport: the data connections of the mesh carry, in each direction and per operation,
 *
 *   descriptor | first stream | second stream
 *
 * all-reduce, large:  first: the elements that the receiver reduces; second: the sender's reduced
 *                     part, as far as it is reduced (byte pipelining: (W-1)/W of the volume each
 * way twice, as a ring, but every element summed in rank order) all-reduce, small, and vote,
 * barrier, all-gather, broadcast:  first: whole contributions
 *
 * First streams of a large all-reduce arrive in a ring per peer; a region is reduced as soon as it
 * has come from all peers. All lengths follow from the descriptor, which is compared first.
 */
#include "runtime/host_transport.h"

/* More than both sides' socket buffers can grow to. */
#define ER_TCP_EAGER_BYTES ((size_t)32 << 20)
