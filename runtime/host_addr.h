#pragma once
/*
 * Where a rank of the host backend listens: a Unix socket of an abstract random name (shared-memory
 * transport) or TCP, and the record that tells peers so. Internal to the host backend.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "runtime/comm.h"

#define ER_HOST_SECRET_BYTES 16
#define ER_HOST_ADDR_MAX     8 /* addresses in a record; more are left out */
#define ER_HOST_ADDR_TEXT    64
#define ER_HOST_RECORD_MAX   768 /* bytes of text */

struct er_host_record {
    enum er_comm_transport transport; /* SHM: a Unix socket; TCP; AUTO: both */
    uint8_t secret[ER_HOST_SECRET_BYTES];
    uint64_t host; /* er_host_id() of the listener */
    uint16_t port; /* TCP */
    int addr_n;
    char addr[ER_HOST_ADDR_MAX][ER_HOST_ADDR_TEXT]; /* an abstract Unix name; numeric ones */
};

/* Equal for processes that reach each other over loopback: one boot, one network namespace. */
uint64_t er_host_id(void);
/* The same for a name that stands for a host. */
uint64_t er_host_id_of(const char *name);

struct er_host_listen {
    enum er_comm_transport transport;
    uint64_t host;       /* er_host_id(), or what stands for it */
    const char *address; /* TCP: numeric; on it alone; "": see below */
    const char
        *interfaces; /* TCP: names, comma-separated: their addresses in that order; "": all */
    bool local;      /* TCP: all ranks are on this host: loopback alone */
};

/*
 * Listen and fill in the record with a fresh random secret: ret_fd[0] on a Unix socket, ret_fd[1]
 * on TCP, as the transport wants; -1 for none. Without address TCP listens on all interfaces, IPv6
 * and IPv4 with one socket. Descriptors are close-on-exec and non-blocking.
 */
int er_host_listen(struct er_host_record *rec, const struct er_host_listen *how, int ret_fd[2],
                   struct er_error *err);
/* Whether an address of a record is of use to a rank: Unix and loopback only on the same host. */
bool er_host_reaches(const struct er_host_record *rec, int i, uint64_t my_host);

const char *er_host_transport_word(enum er_comm_transport transport);
/* `er1 tcp SECRET HOST PORT ADDR...`; the length, or -ENOSPC. */
int er_host_record_format(const struct er_host_record *rec, char *ret, size_t cap);
int er_host_record_parse(struct er_host_record *ret, const char *text, size_t n,
                         struct er_error *err);

/* Begin to connect to the i-th address: 0 connected, ER_IN_PROGRESS (wait for writable), negative
 * failed. *ret_fd is set for 0 and ER_IN_PROGRESS. */
int er_host_dial(const struct er_host_record *rec, int i, int *ret_fd);

/* Whether a connection is from an address that this host does not have any more: it is dead, though
 * nobody will say so. */
bool er_host_adrift(int fd, char ret_address[ER_HOST_ADDR_TEXT]);

/* TCP: no delay, keep-alive, a congestion control that does not pace loopback (`local`: reno, else
 * cubic) where that is allowed, and pacing to `pace_bytes_per_s` when not 0. Unix: nothing. */
void er_host_tune(int fd, bool local, uint64_t pace_bytes_per_s);
