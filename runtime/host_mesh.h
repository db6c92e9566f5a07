#pragma once
/*
 * The connections between the ranks of a host communicator: every pair has a control connection
 * (liveness, reasons of failures) and, with TCP, a data connection beside it.
 *
 *   rank i:  listen; put comm/<name>/<i> = record;  for each j < i: get the record of j, dial,
 * HELLO RECORD -> DIALING -> REPLY [-> SEGMENT] -> UP         (an answer "no" starts again) rank j:
 * accept, check HELLO (secret, generation, name, ranks), answer                  -> UP
 *
 * HELLO carries the random secret of rank 0's record, which only members of the generation can
 * read; rank j answers nobody before it has itself been accepted by rank 0 with it. Records are
 * read again after a refusal, so that the record of an earlier communicator of the same name does
 * no harm. When all links are up the listening socket is closed. With shared memory, rank 0 passes
 * the segment's descriptor over the control connection.
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
    ER_MESH_LEFT,  /* said goodbye: aborted its communicator without having seen a failure */
    ER_MESH_LOST,  /* its connection closed without a word */
    ER_MESH_FAILED /* told why it failed */
};

#define ER_MESH_TEXT_MAX 480

/* Where a rank is blocked, said to one peer. */
struct er_mesh_waiting {
    struct er_op_desc desc;  /* what of it concerns the peer; seq 0: never said */
    uint64_t collectives;    /* in a collective: its number, else 0 */
    uint64_t sent, received; /* messages to and from that peer that it has begun */
    uint64_t send, recv;     /* those of them that it cannot leave before the peer acts; 0: none */
};

/* One message on a control connection; sent whole. */
struct er_mesh_frame {
    uint32_t magic;
    uint32_t life; /* ALIVE: waiting in an operation; LEFT; FAILED */
    int32_t code;  /* FAILED: its error code */
    uint32_t pad;
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

struct er_mesh_config {
    struct er_ctx *ctx;
    int rank, size;
    uint64_t generation;
    const char *name;    /* borrowed */
    const char *address; /* borrowed; "": automatic */
    enum er_comm_transport transport;
    bool local; /* all ranks on this host */
    uint64_t pace_bytes_per_s;
    int segment_fd; /* rank 0, shared memory: to pass on; the mesh's from er_mesh_open() on, also
                       when that fails; else -1 */
};

struct er_mesh; /* opaque */

/* Listen and publish: one key-value write. */
int er_mesh_open(struct er_mesh **ret, const struct er_mesh_config *config, struct er_error *err);
/* Carry connecting on, waiting at most `wait_us`: 0 all links up, ER_IN_PROGRESS, negative failed.
 */
int er_mesh_step(struct er_mesh *mesh, uint64_t wait_us, struct er_error *err);
/* After a deadline: which rank is missing, and the last refusal or network error met, in words. */
void er_mesh_missing(const struct er_mesh *mesh, char *ret, size_t cap);
void er_mesh_close(struct er_mesh *mesh); /* NULL is fine */

/* The descriptor of a link that is up (owned by the mesh), or -1. */
int er_mesh_fd(const struct er_mesh *mesh, int peer, enum er_mesh_channel channel);
/* The segment that rank 0 made or passed; owned by the caller from now on; -1 when there is none.
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
