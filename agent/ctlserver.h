#pragma once
/*
 * A listening SOCK_SEQPACKET socket that speaks base/ctl.h, and its connections. Transport only:
 * what a request means is the owner's business (requests.c).
 *
 * Bounded throughout: at most `conn_max` connections (one more takes the place of the
 * oldest that nobody knows, or is closed); of each connection
 * no packet is read while ER_CTL_TICKETS_MAX requests are unanswered or an answer waits for a slow
 * reader, so a peer that floods or never reads only holds itself up. A packet that is no message
 * ends its connection.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/loop.h"
#include "base/ctl.h"
#include "base/list.h"

#define ER_CTL_TICKETS_MAX 64

struct er_ctlserver;
struct er_ctlconn;

/* Who is at the other end; generation and local_rank are the owner's notes, 0 and -1 at first. */
struct er_ctl_peer {
    pid_t pid; /* as the kernel says */
    uint64_t generation;
    int local_rank;
};

/* A request that is answered later. Embedded by the owner; `gone` is called when the peer has
 * disconnected first (conn is NULL then, and er_ticket_answer() sends nothing). */
struct er_ticket {
    struct er_list node;
    struct er_ctlconn *conn;
    uint32_t seq;
    void (*gone)(struct er_ticket *ticket);
};

typedef void (*er_ctl_request_fn)(void *user, struct er_ctlconn *conn,
                                  const struct er_ctl_msg *request);

/* Listens at `path`, in place of a socket that a dead agent left; `on_request` is called from the
 * loop, for at most `conn_max` connections. -errno of the socket, -ENOMEM. */
int er_ctlserver_new(struct er_ctlserver **ret, struct er_loop *loop, const char *path,
                     unsigned conn_max, er_ctl_request_fn on_request, void *user,
                     struct er_error *err);
/* Closes every connection, removes the socket. NULL is fine. */
void er_ctlserver_free(struct er_ctlserver *server);
/* A server without descriptors to accept with tries again later: when, and the try. */
uint64_t er_ctlserver_deadline(const struct er_ctlserver *server);
void er_ctlserver_step(struct er_ctlserver *server, uint64_t now_us);
/* The same message to every connection (seq 0), as far as their sockets take it at once. */
void er_ctlserver_broadcast(struct er_ctlserver *server, const struct er_ctl_msg *msg);

/* Who asks; the connection's, valid as long as it is. */
struct er_ctl_peer *er_ctlconn_peer(struct er_ctlconn *conn);
/* Answer at once: `reply` gets type REPLY (unless it has one) and the request's seq. */
void er_ctlconn_answer(struct er_ctlconn *conn, uint32_t seq, struct er_ctl_msg *reply);
/* Status and, when it is negative, a text. */
void er_ctlconn_status(struct er_ctlconn *conn, uint32_t seq, int status, const char *text);

/* For an answer that comes later: `gone` is called when the asker leaves before it. */
void er_ticket_init(struct er_ticket *ticket, struct er_ctlconn *conn, uint32_t seq,
                    void (*gone)(struct er_ticket *ticket));
void er_ticket_answer(struct er_ticket *ticket, struct er_ctl_msg *reply);
