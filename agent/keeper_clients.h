#pragma once
/* Is anybody connected to our etcd? The kernel's tables of TCP connections tell, without a
 * certificate or a word of etcd's protocol. Source: proc_net_tcp(5). */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A line of /proc/net/tcp or tcp6: an established connection of local port `port`? Pure. */
bool er_keeper_is_client(const char *line, uint16_t port);
/* Connections to `port` of this host (network namespace); the table that cannot be read counts as
 * empty. */
size_t er_keeper_clients(uint16_t port);
