#pragma once
/*
 * One rank's memory for everyone: broadcast from rank 0, then every rank's digest is compared, so
 * that a wrong start is an error at step 0 and not a curve that looks odd a day later.
 */
#include <stddef.h>

#include "runtime/comm.h"

struct er_sync_part {
    const char *name;
    void *ptr; /* the caller's; overwritten on all ranks but 0 */
    size_t bytes;
};

/* Collective; waits. ER_E_MISMATCH: ranks hold other parts (names or sizes), nothing was sent;
 * ER_E_CORRUPT: a rank's bytes differ after the transfer; else the communicator's failure. */
int er_sync_parts(struct er_comm *comm, const struct er_sync_part *parts, size_t n,
                  struct er_error *err);

/* Collective; `n` bytes of each rank at `all` in rank order, as er_all_gather(), and waits. */
int er_sync_gather(struct er_comm *comm, const void *mine, size_t n, void *all,
                   struct er_error *err);

/* One of several transfers from rank to rank. */
struct er_sync_move {
    int from, to;
};
/* Collective: the parts of `from` for `to`, in each of the `moves` (the same on all ranks; nobody
 * both gives and takes), then every rank's digest is compared, as above: also that of ranks that
 * took nothing. Errors as above. */
int er_sync_moves(struct er_comm *comm, const struct er_sync_part *parts, size_t n,
                  const struct er_sync_move *moves, size_t moves_n, struct er_error *err);
