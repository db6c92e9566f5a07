#pragma once
/*
 * One rank's memory for everyone: broadcast from rank 0, then every rank's digest is compared, so
 * that a wrong start is an error at step 0 and not a curve that looks odd a day later.
 */
#include <stddef.h>

#include "runtime/comm.h"

struct er_engine; /* trainer/engine.h */

struct er_sync_part {
    const char *name;
    void *ptr; /* the caller's; overwritten on all ranks but 0 */
    size_t bytes;
};

/* Collective; waits. ER_E_MISMATCH: ranks hold other parts (names or sizes), nothing was sent;
 * ER_E_CORRUPT: a rank's bytes differ after the transfer; else the communicator's failure. */
int er_sync_parts(struct er_comm *comm, const struct er_sync_part *parts, size_t n,
                  struct er_error *err);

/*
 * The same for memory of an engine. `wire` carries what lies there, `control` digests, from and to
 * the host; with a GPU and NULL they go over `wire` too, through `notes` in pinned memory:
 * er_sync_notes_bytes(size) bytes.
 */
struct er_sync_place {
    struct er_engine *engine;
    struct er_comm *wire, *control;
    void *notes;
};
int er_sync_parts_at(const struct er_sync_place *place, const struct er_sync_part *parts, size_t n,
                     struct er_error *err);
#define ER_SYNC_NOTE_BYTES 64 /* that a rank may say */
size_t er_sync_notes_bytes(int size);
int er_sync_gather_at(const struct er_sync_place *place, const void *mine, size_t n, void *all,
                      struct er_error *err);

/* Collective: all ranks have parts of the same names and sizes, else ER_E_MISMATCH. */
int er_sync_same(struct er_comm *comm, const struct er_sync_part *parts, size_t n,
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
