#pragma once
/* Shared by host_mesh.c (life of the mesh, control connections), host_dial.c (links to lower ranks)
 * and host_accept.c (links from higher ranks). */
#include <poll.h>
#include <stddef.h>

#include "runtime/host_mesh.h"
#include "runtime/host_wire.h"

enum {
    ER_MESH_STRANGERS = 32,  /* beyond the size: accepted, hello not yet answered; one more replaces
                                the oldest */
    ER_MESH_RETRY_US = 5000, /* after a refusal, and between looks at a record */
    ER_MESH_NOTE_US = 20000, /* between rank 0's words on who is missing */
    ER_MESH_KEY_MAX = 96
};

enum link_state { LINK_RECORD, LINK_DIALING, LINK_REPLY, LINK_TABLE, LINK_SEGMENT, LINK_UP };

struct link {
    int fd;
    enum link_state state;
    int addr;          /* index of the address that is tried */
    uint64_t retry_us; /* not before */
    uint64_t since_us; /* dialing began */
    struct er_wire_reply reply;
    size_t reply_n;
    struct er_wire_table head; /* as it comes, the table's or the beginning of a frame */
    size_t table_n;            /* of head and table: come, at rank 0 sent */
    bool quiet;                /* poll() has seen nothing to do */
};

struct stranger {
    int fd; /* -1: free */
    uint64_t since_us;
    struct er_wire_hello hello;
    size_t hello_n;
    char record[ER_HOST_RECORD_MAX];
    size_t record_n;
    bool quiet;
};

struct peer {
    struct er_mesh_peer pub;
    struct er_host_record rec;
    struct link link[ER_MESH_CHANNEL_COUNT];
};

struct er_mesh {
    struct er_mesh_config config;
    struct er_host_record mine;
    uint8_t secret[ER_HOST_SECRET_BYTES]; /* rank 0's */
    bool secret_known;                    /* rank 0 has proved that it is current */
    uint64_t name_hash;
    int listen_fd[2], segment_fd;
    enum er_comm_transport transport; /* once the table is known */
    int channels_n;
    int come_n;       /* rank 0: records known */
    int down_n;       /* links not up yet */
    int leader;       /* lowest rank of our host, once the table is known */
    bool table_known; /* all records */
    char *table;      /* rank 0: to send; others: as it comes; owned */
    uint32_t table_bytes;
    int missing;               /* rank that rank 0 waits for; -1: not heard */
    uint64_t note_us;          /* rank 0: when to say so again */
    char last[160];            /* last refusal or error met */
    struct stranger *stranger; /* (size + ER_MESH_STRANGERS); owned */
    int strangers_n;
    struct pollfd *poll; /* (size * channels + strangers_n + 2); owned */
    bool **quiet;        /* (the same) whom each entry of poll is about; owned */
    struct peer *peer;   /* (size); owned */
};

void er_mesh_close_fd(int *fd);
/* The key of a rank's record. */
void er_mesh_key(const struct er_mesh *mesh, int rank, char ret[ER_MESH_KEY_MAX]);
/* The handshake of a link is through. */
void er_mesh_link_up(struct er_mesh *mesh, int peer, int channel);

/* The acceptor's side of a link is through; passes the segment if that is due. */
int er_mesh_accepted(struct er_mesh *mesh, int peer, int channel);
/* All records are known: what carries operations, who leads our host. */
int er_mesh_settle(struct er_mesh *mesh, struct er_error *err);
/* Whether `from` passes the host's segment to `to`. */
bool er_mesh_passes(const struct er_mesh *mesh, int from, int to);

/* Waits at most `wait_us` for rank 0's record. 1: it is not there. */
int er_mesh_read_record(struct er_mesh *mesh, uint64_t wait_us, struct er_error *err);
/* Rank 0, when all have come: the table, as far as it goes without waiting. Before: who is missing.
 */
int er_mesh_step_table(struct er_mesh *mesh, struct er_error *err);
/* A rank's table, as it comes; also frames before it. 1: not all of it. */
int er_mesh_hear_table(struct er_mesh *mesh, struct link *l, struct er_error *err);
/* All links to lower ranks, as far as they go without waiting. */
int er_mesh_step_links(struct er_mesh *mesh, struct er_error *err);
/* Accept who has come, hear hellos, answer. */
void er_mesh_step_accept(struct er_mesh *mesh);
/* Bytes of head and table: 0 all that were due (the head is not a table's: a frame begins), 1 not
 * yet, negative failed. */
int er_mesh_receive_table(struct er_mesh *mesh, struct link *l, struct er_error *err);
void er_mesh_say_missing(struct er_mesh *mesh, int missing);
