#pragma once
/*
 * Many nodes of jobs in one process: each with the production core, driver and etcd client, on a
 * few shared connections. Workers are pretended: they start, stop and leave at once. One thread.
 * Any failure ends the program.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/driver.h"
#include "rendezvous/etcd_pool.h"

struct sim_node {
    struct sim *sim;
    char job[64];
    uint64_t id, incarnation; /* id within its job, from 0 */
    struct er_store *store;
    struct er_driver *driver;     /* NULL: gone */
    struct er_assignment running; /* generation 0: nothing */
    uint64_t started_us;          /* when that started */
    unsigned starts;
    bool ended;
    uint64_t wake_us; /* of the timer heap */
    size_t heap_at;
};

struct sim {
    struct er_etcd_pool *pool;
    struct sim_node *nodes;
    size_t n;
    struct sim_node **heap; /* by wake_us */
    size_t heap_n;
    uint64_t now_us;
    size_t live, reached; /* reached: live ones that run `target` or newer */
    uint64_t target;
    bool seeking;            /* a leader */
    struct sim_node *leader; /* found */
};

struct sim_opts {
    const char *endpoints, *job;  /* jobs > 1: "<job>-<number>" */
    size_t channels, jobs, nodes; /* nodes: of each job */
    uint64_t ttl_us, death_grace_us;
    uint32_t min_nodes; /* 0: all */
};

/* Connected, and nothing sent yet. */
void sim_open(struct sim *s, const struct sim_opts *opts);
void sim_close(struct sim *s);
/* The first thing the drivers do. */
void sim_start(struct sim *s);
/* Lets them work until the condition holds, at most `ms`; whether it does. */
typedef bool (*sim_cond)(struct sim *s, void *user);
bool sim_run(struct sim *s, sim_cond cond, void *user, uint32_t ms);
/* As a node that lost its power, or its network: nothing is said, no lease renewed. */
void sim_cut(struct sim *s, struct sim_node *node);
/* Its worker fails; er_driver_result() and all that follows. */
void sim_fail_worker(struct sim *s, struct sim_node *node);
/* All live nodes run `generation` or a newer one, within `ms`; else the program ends. */
void sim_wait_all(struct sim *s, uint64_t generation, uint32_t ms);
/* The leader, once it has read the whole job. */
struct sim_node *sim_wait_leader(struct sim *s, uint32_t ms);
uint64_t sim_lease(const struct sim_node *node);

/* ---- a plain client beside the nodes ---- */

/* One put or revoke, acknowledged; milliseconds it took. */
double sim_put(struct sim *s, struct er_store *client, const char *key);
/* What the guard of a node that was cut says for it. */
void sim_tell(struct sim *s, struct er_store *client, const struct sim_node *node);
void sim_revoke(struct sim *s, struct er_store *client, uint64_t lease);
/* N times what one put and its watch event take (median of some). */
double sim_bound_ms(struct sim *s, size_t n);
/* N puts at once, each by a client of its own that watches its key: until all are acknowledged and
 * every watch has shown its one. */
double sim_parallel_ms(struct sim *s, size_t n);
