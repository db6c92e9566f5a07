#pragma once
/*
 * The asking end of a control socket, a worker's or a tool's: one request at a time, each answered
 * by one reply; beside that one whose answer is fetched later. Every call ends by its deadline,
 * whatever the agent does. One thread.
 */
#include <stdbool.h>

#include "base/ctl.h"

#define ER_CTL_LATER_TEXT 512

/* A request that was asked for its answer later. */
struct er_ctl_later {
    uint32_t seq;  /* 0: none */
    bool answered; /* then: */
    enum er_ctl_type type;
    int32_t status;
    char text[ER_CTL_LATER_TEXT]; /* the answer's last string, as far as there is room; "" */
};

struct er_ctl_client {
    int fd; /* -1: closed */
    uint32_t seq;
    struct er_ctl_later later;
    unsigned char packet[ER_CTL_PACKET_MAX]; /* last packet received; replies point into it until
                                                the next call */
};

/*
 * Connect to the SOCK_SEQPACKET socket at `path`, waiting at most `timeout_us` for an agent whose
 * queue of connections is full (ER_FOREVER: no limit): then -ETIMEDOUT. -ENOENT, -ECONNREFUSED: no
 * agent there; -EACCES: not this user's; -ENAMETOOLONG. On failure *client is closed.
 */
int er_ctl_client_open(struct er_ctl_client *client, const char *path, uint64_t timeout_us,
                       struct er_error *err);
void er_ctl_client_close(struct er_ctl_client *client);

/*
 * Send `request` (its seq is filled in) and wait for the answer with the same number; late answers
 * to requests given up earlier are dropped. The agent enforces the request's own timeout;
 * `timeout_us` is how long this side waits for the agent, sending included, before it says
 * -ETIMEDOUT (ER_FOREVER: no limit). ER_E_PEER_LOST: the agent is gone; -EMSGSIZE: the request does
 * not fit a packet; ER_E_PROTOCOL: the answer is malformed. The strings of *ret point into the
 * client until the next call.
 */
int er_ctl_client_call(struct er_ctl_client *client, struct er_ctl_msg *request,
                       uint64_t timeout_us, struct er_ctl_msg *ret, struct er_error *err);
/*
 * Send `request` and do not wait for its answer. One at a time: what an earlier one is answered
 * from now on is dropped. Errors as above; then nothing is asked.
 */
int er_ctl_client_ask(struct er_ctl_client *client, struct er_ctl_msg *request, uint64_t timeout_us,
                      struct er_error *err);
#define ER_CTL_UNANSWERED 1
/* 0: client->later is answered, now or before; ER_CTL_UNANSWERED: not within `wait_us`; errors as
 * above, -ENOENT: nothing was asked. */
int er_ctl_client_answer(struct er_ctl_client *client, uint64_t wait_us, struct er_error *err);
/* The next message, whatever its number: what the agent tells those who stay connected. Errors and
 * strings as above. */
int er_ctl_client_hear(struct er_ctl_client *client, uint64_t timeout_us, struct er_ctl_msg *ret,
                       struct er_error *err);
