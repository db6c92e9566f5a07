#include "tests/contract/store_factory.h"

#include "base/clock.h"
#include "rendezvous/store_mem.h"
#include "tests/lib/tap.h"

static uint64_t virtual_us;

static void mem_open(struct er_store *ret_clients[2])
{
    er_tap_require(er_store_mem_new(&ret_clients[0], NULL) == 0);
    er_tap_require(er_store_mem_client(ret_clients[0], &ret_clients[1], NULL) == 0);
}

static void mem_close(struct er_store *clients[2])
{
    clients[0]->ops->free(clients[0]);
    if (clients[1])
        clients[1]->ops->free(clients[1]);
}

static uint64_t mem_now(void)
{
    return virtual_us;
}

static void mem_idle(struct er_store *clients[2], uint64_t until_us)
{
    uint64_t at = clients[0]->ops->deadline(clients[0]);

    at = at < until_us ? at : until_us;
    virtual_us = at > virtual_us ? at : virtual_us;
}

const struct store_factory store_factory = {mem_open, mem_close, mem_now, mem_idle, 1000000};
