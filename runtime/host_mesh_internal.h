#pragma once
/* Shared by host_mesh.c (life of the mesh, control connections), host_dial.c (links to lower ranks)
 * and host_accept.c (links from higher ranks). */
#include <poll.h>
#include <stddef.h>

#include "runtime/host_mesh.h"
#include "runtime/host_wire.h"

enum {
    ER_MESH_STRANGERS_MAX = 32, /* accepted, hello not yet answered; one more replaces the oldest */
    ER_MESH_RETRY_US = 5000,    /* after a refusal, and between looks at a record */
    ER_MESH_KEY_MAX = 96
};

enum link_state { LINK_RECORD, LINK_DIALING, LINK_REPLY, LINK_SEGMENT, LINK_UP };

struct link {
    int fd;
    enum link_state state;
    int addr;          /* index of the address that is tried */
    uint64_t retry_us; /* not before */
    uint64_t since_us; /* dialing began */
    struct er_wire_reply reply;
    size_t reply_n;
};

struct stranger {
    int fd; /* -1: free */
    uint64_t since_us;
    struct er_wire_hello hello;
    size_t hello_n;
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
    int listen_fd, segment_fd;
    int channels_n;
    int down_n;     /* links not up yet */
    char last[160]; /* last refusal or error met */
    struct stranger stranger[ER_MESH_STRANGERS_MAX];
    struct pollfd *poll; /* (size * channels + ER_MESH_STRANGERS_MAX + 1); owned */
    struct peer *peer;   /* (size); owned */
};

void er_mesh_close_fd(int *fd);
/* The key of a rank's record. */
void er_mesh_key(const struct er_mesh *mesh, int rank, char ret[ER_MESH_KEY_MAX]);
/* The handshake of a link is through. */
void er_mesh_link_up(struct er_mesh *mesh, int peer, int channel);

/* Waits at most `wait_us` for a rank's record. 1: it is not there. */
int er_mesh_read_record(struct er_mesh *mesh, int peer, uint64_t wait_us, struct er_error *err);
/* All links to lower ranks, as far as they go without waiting. */
int er_mesh_step_links(struct er_mesh *mesh, struct er_error *err);
/* Accept who has come, hear hellos, answer. */
void er_mesh_step_accept(struct er_mesh *mesh);
