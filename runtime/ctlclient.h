#pragma once
/*
 * The worker's end of the control socket: one request at a time, each answered by one reply. One
 * thread.
 */
#include "base/ctl.h"

struct er_ctl_client {
    int fd; /* -1: closed */
    uint32_t seq;
    unsigned char packet[ER_CTL_PACKET_MAX]; /* last packet received; replies point into it until
                                                the next call */
};

/* Connect to the SOCK_SEQPACKET socket at `path`. */
int er_ctl_client_open(struct er_ctl_client *client, const char *path, struct er_error *err);
void er_ctl_client_close(struct er_ctl_client *client);

/*
 * Send `request` (its seq is filled in) and wait for the answer with the same number; late answers
 * to requests given up earlier are dropped. The agent enforces the request's own timeout;
 * `timeout_us` is how long this side waits for the agent before it says -ETIMEDOUT. ER_E_PEER_LOST:
 * the agent is gone. The strings of *ret point into the client until the next call.
 */
int er_ctl_client_call(struct er_ctl_client *client, struct er_ctl_msg *request,
                       uint64_t timeout_us, struct er_ctl_msg *ret, struct er_error *err);
