/* Two clients on one connection. */
#include "tests/contract/store_factory.h"

#include <poll.h>

#include "base/clock.h"
#include "rendezvous/etcd_pool.h"
#include "tests/contract/etcd_lib.h"
#include "tests/lib/tap.h"

static struct etcd_cluster cluster;
static struct er_etcd_pool *pool;

static void pool_open(struct er_store *ret_clients[2])
{
    etcd_start(&cluster, 1);
    er_tap_require(er_etcd_pool_open(&pool, &(struct er_etcd_opts){.endpoints = cluster.endpoints},
                                     1, NULL) == 0);
    for (int i = 0; i < 2; i++)
        er_tap_require(er_etcd_pool_store(pool, NULL, &ret_clients[i], NULL) == 0);
}

static void pool_close(struct er_store *clients[2])
{
    for (int i = 0; i < 2; i++) {
        if (clients[i])
            clients[i]->ops->free(clients[i]);
    }
    er_etcd_pool_free(pool);
    etcd_stop(&cluster);
}

static void pool_idle(struct er_store *clients[2], uint64_t until_us)
{
    struct pollfd fd = {.fd = er_etcd_pool_fd(pool), .events = POLLIN};
    uint64_t at = er_etcd_pool_deadline(pool);

    poll(&fd, 1, er_poll_ms(er_now_us(), at < until_us ? at : until_us));
    er_etcd_pool_dispatch(pool);
}

const struct store_factory store_factory = {pool_open, pool_close, er_now_us, pool_idle, 1000000};
