#pragma once
/* Other people's all-reduce, float32 in place, beside ours: programs that take "BYTES:RUNS"... and
 * print a line "BYTES p50 p99" (microseconds) for each. */
#include "bench/lib/coll_sweep.h"

/* X(ENUM, "name") */
#define COLL_PEERS(X)                                                                              \
    X(GLOO, "Gloo")                                                                                \
    X(TORCH_GLOO, "PyTorch's gloo")                                                                \
    X(OPEN_MPI, "Open MPI")

enum coll_peer {
#define COLL_PEER_ENUM(name, text) COLL_PEER_##name,
    COLL_PEERS(COLL_PEER_ENUM)
#undef COLL_PEER_ENUM
        COLL_PEER_COUNT
};

const char *coll_peer_name(enum coll_peer peer);
/* Whether its program was built (PyTorch's comes with PEERS=1); says on stderr what is missing. */
bool coll_peer_there(enum coll_peer peer);
/* Measure it once more; `points` (coll_sizes()) keep the better. Ends the program on failure. */
void coll_peer_sweep(enum coll_peer peer, const struct coll_setting *setting,
                     struct coll_point points[COLL_SIZES_MAX]);
