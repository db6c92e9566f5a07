/*
 * What an agent does from exec to its first acknowledged write, and nothing else:
 * first_write MODULE ENDPOINTS JOB loads the etcd store, runs a driver on it, and exits when the
 * store has acknowledged the node's record.
 */
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rand.h"
#include "rendezvous/driver.h"
#include "rendezvous/etcd_load.h"

#define PATIENCE_US (10 * ER_US_PER_S)

static void on_start(void *user, const struct er_assignment *a) {}
static void on_stop(void *user, uint64_t generation, const char *reason) {}
static void on_verdict(void *user, const struct er_verdict *v) {}

static int run(struct er_store *store, const char *job)
{
    static const struct er_driver_callbacks callbacks = {
        .start = on_start, .stop = on_stop, .verdict = on_verdict};
    struct er_driver_opts o = {
        .node_id = "node-0",
        .host = "host",
        .prefix = "/elastic-run",
        .address = "10.0.0.1",
        .slots = 1,
        .preferred_rank = -1,
        .min_nodes = 2,
        .max_nodes = 2,
        .restart_window_us = 3600 * ER_US_PER_S,
        .join_timeout_us = PATIENCE_US,
        .last_call_us = PATIENCE_US,
        .exit_timeout_us = PATIENCE_US,
        .lease_ttl_us = 5 * ER_US_PER_S,
        .stop_grace_us = PATIENCE_US,
        .spec = "command=train\n",
        .incarnation = er_rand_mix(er_now_us()) | 1,
        .boot_id_hash = 1,
        .seed = er_now_us(),
        .now_us = er_now_us(),
    };
    uint64_t until = er_deadline_in(o.now_us, PATIENCE_US);
    struct er_driver *driver = NULL;
    struct er_look look;

    snprintf(o.job, sizeof(o.job), "%s", job);
    if (er_driver_new(&driver, store, &o, &callbacks, NULL, NULL) < 0)
        return 1;
    for (er_driver_look(driver, &look); !look.registered; er_driver_look(driver, &look)) {
        struct pollfd fd = {.fd = er_driver_fd(driver), .events = POLLIN};

        if (er_now_us() >= until)
            return 1;
        if (!er_driver_pending(driver))
            poll(&fd, 1, er_poll_ms(er_now_us(), er_driver_deadline(driver)));
        er_driver_dispatch(driver, er_now_us());
    }
    return 0;
}

int main(int argc, char **argv)
{
    const struct er_store_etcd_module *module;
    struct er_store *store = NULL;
    void *handle = argc == 4 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;

    module = handle ? dlsym(handle, ER_STORE_ETCD_SYMBOL) : NULL;
    if (!module || module->open(&store, &(struct er_etcd_opts){.endpoints = argv[2]}, NULL) < 0)
        return 1;
    _exit(run(store, argv[3])); /* the lease may end by itself */
}
