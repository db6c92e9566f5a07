#pragma once
/* Shared by host_shm.c (the segment, counters, who waits for whom) and host_shm_copy.c (what goes
 * into slots and out of them). */
#include <stdatomic.h>
#include <stdint.h>

#include "runtime/host_pairs.h"
#include "runtime/host_transport.h"

enum {
    LINE_BYTES = 64,
    CPU_WORDS = 16,
    DEPTH = 2, /* pieces in flight per rank */
    MAIL_BYTES = 1024,
    HOME_BYTES = 16 << 10 /* reduced and taken home at a time; whole elements */
};

/* What says that a piece is there. A small one comes with it: one line more is a trip to the other
 * core, which is most of the time that a small operation takes. */
struct shm_mail {
    _Alignas(LINE_BYTES) _Atomic uint32_t in; /* pieces brought in, up to the newest of this mail */
    uint32_t streamed;                        /* the slot was written past the cache */
    struct er_op_desc desc;                   /* valid with the first piece of an operation */
    char data[MAIL_BYTES - 6 * sizeof(uint64_t)];
};
_Static_assert(sizeof(struct shm_mail) == MAIL_BYTES, "no padding");

/* Written by its rank, read by all. */
struct shm_rank {
    _Alignas(LINE_BYTES) _Atomic uint32_t red, done;
    _Atomic uint32_t dear; /* the piece that was last slow to read out of a peer's slot */
    _Alignas(LINE_BYTES) _Atomic uint32_t bell; /* futex word; rung by peers */
    _Atomic uint32_t asleep;
    _Alignas(LINE_BYTES) _Atomic uint64_t cpus[CPU_WORDS]; /* where it may run, a bit each; all 0:
                                                              not said yet */
    struct shm_mail mail[DEPTH];                           /* of pieces in turn, as slots are */
};

enum phase { PHASE_IN, PHASE_RED };

/* How a collective goes through the slots. */
enum plan {
    PLAN_WHOLE,    /* contributions as they are */
    PLAN_PARTED,   /* each rank reduces its part of a piece; the part of a slot that its rank owns
                      holds no contribution: its result goes there */
    PLAN_SCATTERED /* a slot has one region for each other rank */
};

struct er_transport {
    const struct er_comm *comm;
    size_t map_bytes, piece_bytes, region_bytes;
    char *map;             /* owned mapping */
    struct shm_rank *rank; /* (size), in the mapping */
    char *slots;           /* (size, DEPTH, piece_bytes), in the mapping */
    const void **src;      /* (size); owned scratch of a reduction */
    char *aside;           /* HOME_BYTES; owned, likewise */
    struct er_pairs pairs;
    uint32_t base;    /* pieces of all earlier operations */
    uint32_t cleared; /* all ranks have finished so many, as far as we know */
    /* the unit at work */
    const struct er_op *op; /* a collective; NULL: messages */
    enum plan plan;
    uint32_t dear_n;                   /* large pieces in a row that were slow to read */
    bool streaming;                    /* the slot is written past the cache */
    bool mailed;                       /* contributions go with the mail */
    size_t total;                      /* bytes that go through the longest slot, or region */
    size_t unit;                       /* of them in one piece */
    uint32_t pieces_n, piece, next_in; /* piece: at work; next_in: next to copy in */
    enum phase phase;
};

static inline struct shm_mail *mail_of(const struct er_transport *t, int rank, uint32_t piece)
{
    return &t->rank[rank].mail[(t->base + piece) % DEPTH];
}

static inline char *slot_of(const struct er_transport *t, int rank, uint32_t piece)
{
    size_t i = (size_t)rank * DEPTH + (t->base + piece) % DEPTH;

    return t->mailed ? mail_of(t, rank, piece)->data : t->slots + i * t->piece_bytes;
}

static inline size_t piece_begin(const struct er_transport *t, uint32_t piece)
{
    return (size_t)piece * t->unit;
}

/* Of `total` bytes, those in a piece. */
static inline size_t clipped(const struct er_transport *t, size_t total, uint32_t piece)
{
    size_t begin = piece_begin(t, piece), left = begin < total ? total - begin : 0;

    return left < t->unit ? left : t->unit;
}

static inline size_t piece_length(const struct er_transport *t, uint32_t piece)
{
    return clipped(t, t->total, piece);
}

static inline size_t block_n(const struct er_op *op, int rank)
{
    return er_op_block(op, rank + 1) - er_op_block(op, rank);
}

/* Whether each rank can have a CPU of its own. */
bool er_shm_roomy(const struct er_transport *t);
/* How the collective t->op goes through the slots. */
void er_shm_plan(struct er_transport *t);
/* Our contribution to piece t->next_in into our slot. */
void er_shm_copy_in(struct er_transport *t);
/* Of piece t->piece: our part reduced, home and into our slot, where peers fetch it; or, what does
 * not go in parts, everything home. */
void er_shm_fetch(struct er_transport *t);
/* The peers' parts home. */
void er_shm_fetch_parts(struct er_transport *t);
