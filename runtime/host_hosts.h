#pragma once
/*
 * Several hosts: every pair is connected (TCP between hosts, Unix sockets within), and a large
 * all-reduce goes in pieces along the chain of hosts, in rank order:
 *
 *   host 0: x0 + x1 ->  host 1: + x2 + x3 ->  ...  -> last host: result
 *   host 0: copy out <- host 1: copy out  <-  ...  <-
 *
 * Within a host contributions meet in shared memory. The first ranks of each host, as many as the
 * host with the fewest ranks has, each carry their part of every piece along the chain (a "rail").
 * Per host and direction twice the array goes over the network, as in a ring, and every element is
 * still summed in rank order: the same bits as on any other path. Other operations go over the
 * connections as without hosts. Also used for more than 32 ranks over TCP alone, each rank then
 * counting as a host.
 */
#include "runtime/host_transport.h"

/* Whether the chain applies: ranks of a host are next to each other, and there are several hosts of
 * which one has several ranks, or more than 32 ranks. */
bool er_hosts_useful(const struct er_mesh *mesh);
int er_hosts_count(const struct er_mesh *mesh);
/* The memory of this host: a memfd owned by the caller, or -errno. */
int er_hosts_create(const struct er_mesh *mesh);

extern const struct er_transport_ops er_host_hosts_ops;
