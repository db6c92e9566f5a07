#pragma once
/* A store for test_store.c: each program that runs the suite links one factory. */
#include "rendezvous/store.h"

struct store_factory {
    /* A fresh store, seen by two clients. */
    void (*open)(struct er_store *ret_clients[2]);
    void (*close)(struct er_store *clients[2]);
    uint64_t (*now_us)(void);
    /* Nothing to dispatch: let time pass, at most until `until_us`. */
    void (*idle)(struct er_store *clients[2], uint64_t until_us);
    uint64_t ttl_us; /* shortest lease it grants */
};

extern const struct store_factory store_factory;
