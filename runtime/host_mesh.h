#pragma once
/*
 * The connections between the ranks of a host communicator: every pair has a control connection
 * (liveness, reasons of failures) and, unless all share memory, a data connection beside it.
 *
 *   all:     listen
 *   rank 0:  put comm/<name>/0 = record (the only write);  hear HELLO + record of every rank,
 * answer; when all have come: send each the table of all records rank i:  get that record, dial
 * rank 0;  with the table, dial each 0 < j < i
 *
 *   dialing:   RECORD -> DIALING -> REPLY [-> TABLE] [-> SEGMENT] -> UP  (a "no" starts again)
 *   accepting: stranger -> [TABLE ->] UP
 *
 * HELLO carries the random secret of rank 0's record, which only members of the generation can
 * read; nobody answers before it has itself been accepted by rank 0 with it. Rank 0's record is
 * read again after a refusal, so that the record of an earlier communicator of the same name does
 * no harm. When all links are up nobody listens. The lowest rank of each host makes the memory that
 * its ranks share and passes the descriptor over the control connections.
 *
 * Used by the owner while connecting, afterwards by whoever carries operations out: never two at a
 * time. Internal to the host backend.
 */
#include <stdbool.h>
#include <stdint.h>

#include "runtime/comm_ops.h"
#include "runtime/host_addr.h"

enum er_mesh_channel { ER_MESH_CONTROL, ER_MESH_DATA, ER_MESH_CHANNEL_COUNT };

enum er_mesh_life {
    ER_MESH_ALIVE,
    ER_MESH_LEFT,  /* said goodbye: aborted its communicator without having seen a failure. One that
                      was ready leaves nobody behind who still connects: its side of each link is
                      through, and that it left is told by the next operation */
    ER_MESH_LOST,  /* its connection closed without a word */
    ER_MESH_FAILED /* told why it failed */
};

#define ER_MESH_TEXT_MAX 480

/* Where a rank is blocked, said to one peer. */
struct er_mesh_waiting {
    struct er_op_desc desc;  /* what of it concerns the peer; seq 0: never said */
    uint64_t collectives;    /* in a collective: its number, else 0 */
    uint64_t begun;          /* the newest collective that it has begun, this one included */
    uint64_t sent, received; /* messages to and from that peer that it has begun */
    uint64_t send, recv;     /* those of them that it cannot leave before the peer acts; 0: none */
};

/* One message on a control connection; sent whole. */
struct er_mesh_frame {
    uint32_t magic;
    uint32_t life; /* ALIVE: waiting in an operation; LEFT; FAILED */
    int32_t code;  /* FAILED: its error code */
    union {
        uint32_t
            missing;    /* ALIVE, from rank 0 while connecting: a rank that has not come; else 0 */
        uint32_t ready; /* LEFT: all its links were up */
    };
    uint64_t seq; /* LEFT: the last collective that it has completed */
    union {
        struct er_mesh_waiting waiting; /* ALIVE */
        char text[ER_MESH_TEXT_MAX];    /* FAILED */
    };
};

struct er_mesh_peer {
    enum er_mesh_life life;
    struct er_mesh_waiting waiting; /* its last word of that */
    uint64_t since_us;              /* when `life` changed */
    struct er_mesh_frame in;        /* its last words, as far as they have come */
    size_t in_n;
};

struct er_mesh; /* opaque */

struct er_mesh_config {
    struct er_ctx *ctx;
    int rank, size;
    uint64_t generation;
    const char *name;             /* borrowed */
    struct er_host_listen listen; /* strings borrowed */
    uint64_t pace_bytes_per_s;
    /* The memory that the ranks of one host share, a descriptor or -errno; called by their lowest,
     * when all records are known. */
    int (*make_segment)(const struct er_mesh *mesh);
};

/* Listen; rank 0 publishes: one key-value write. */
int er_mesh_open(struct er_mesh **ret, const struct er_mesh_config *config, struct er_error *err);
/* Carry connecting on, waiting at most `wait_us`: 0 all links up, ER_IN_PROGRESS, negative failed.
 */
int er_mesh_step(struct er_mesh *mesh, uint64_t wait_us, struct er_error *err);
/* After a deadline: which rank is missing, and the last refusal or network error met, in words. */
void er_mesh_missing(const struct er_mesh *mesh, char *ret, size_t cap);
void er_mesh_close(struct er_mesh *mesh); /* NULL is fine */

/* The descriptor of a link that is up (owned by the mesh), or -1. */
int er_mesh_fd(const struct er_mesh *mesh, int peer, enum er_mesh_channel channel);
/* After connecting, and in make_segment(): which host a rank is on, and what carries operations:
 * SHM (all on one host), TCP, or AUTO (several hosts, some with several ranks perhaps). */
uint64_t er_mesh_host(const struct er_mesh *mesh, int rank);
enum er_comm_transport er_mesh_transport(const struct er_mesh *mesh);
int er_mesh_size(const struct er_mesh *mesh);
int er_mesh_rank(const struct er_mesh *mesh);
/* The segment of this host; owned by the caller from now on; -1 when there is none.
 */
int er_mesh_take_segment(struct er_mesh *mesh);
const struct er_mesh_peer *er_mesh_peer(const struct er_mesh *mesh, int peer);

/* Read what has come on control connections, without blocking. Returns whether anything changed. */
bool er_mesh_watch(struct er_mesh *mesh);
/* Tell all peers, without blocking; who cannot be told sees the connection close. */
void er_mesh_tell(struct er_mesh *mesh, enum er_mesh_life life, int code, uint64_t seq,
                  const char *text);
/* Tell one peer that we are blocked, likewise. */
void er_mesh_say_waiting(struct er_mesh *mesh, int peer, const struct er_mesh_waiting *waiting);
