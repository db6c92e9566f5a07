#include "tests/contract/store_factory.h"

#include <poll.h>

#include "base/clock.h"
#include "tests/contract/etcd_lib.h"

static struct etcd_cluster cluster;

static void real_open(struct er_store *ret_clients[2])
{
    etcd_start(&cluster, 1);
    ret_clients[0] = etcd_open(&cluster);
    ret_clients[1] = etcd_open(&cluster);
}

static void real_close(struct er_store *clients[2])
{
    for (int i = 0; i < 2; i++) {
        if (clients[i])
            clients[i]->ops->free(clients[i]);
    }
    etcd_stop(&cluster);
}

static void real_idle(struct er_store *clients[2], uint64_t until_us)
{
    struct pollfd fds[2];
    nfds_t n = 0;

    for (int i = 0; i < 2; i++) {
        uint64_t at = clients[i] ? clients[i]->ops->deadline(clients[i]) : until_us;

        until_us = at < until_us ? at : until_us;
        if (clients[i])
            fds[n++] = (struct pollfd){.fd = clients[i]->ops->fd(clients[i]), .events = POLLIN};
    }
    poll(fds, n, er_poll_ms(er_now_us(), until_us));
}

/* etcd's TTLs are whole seconds. */
const struct store_factory store_factory = {real_open, real_close, er_now_us, real_idle, 1000000};
