#pragma once
/* The driver's insides: driver.c (core on a store), driver_kv.c (workers' keys and commits). */
#include "base/clock.h"
#include "base/list.h"
#include "rendezvous/rdzv.h"

#define DRIVER_RETRY_US  100000ull /* between attempts of a read that failed */
#define DRIVER_ROUNDS    256       /* of one dispatch; the rest waits for the next one */
#define DRIVER_SELF_KEYS 5         /* world, leader, own node and assignment; ckpt/latest */
#define DRIVER_JOB_KEYS  5         /* world, leader, n/, a/, r/ */

/* What the owner said, until the next dispatch: a slot each, taken in this order. */
struct driver_said {
    bool port, progress, result, failed, left, leave;
    int port_value, exit_code;
    uint64_t progress_generation, result_generation, left_generation;
    struct er_cause cause;
    char reason[256];
};

struct er_driver {
    struct er_store *store; /* borrowed */
    struct er_rdzv *core;
    struct er_view_node *nodes;
    struct er_plan_node *scratch;
    struct er_driver_callbacks callbacks;
    void *user;
    uint64_t now_us, random;
    bool started, over;
    struct driver_said said;
    struct er_rdzv_actions actions;

    /* reads that watches follow */
    uint64_t self_watch[DRIVER_SELF_KEYS], job_watch;
    bool self_wanted, job_wanted; /* read again, at once or at retry_us */
    bool self_reading, job_reading, job_open;
    uint64_t retry_us;
    int lane_failed[ER_LANE_COUNT]; /* a transaction the store refused to take */

    /* driver_kv.c */
    struct er_list ops;
    uint64_t next_op, op_seq, stopped; /* stopped: newest generation told to stop */
    struct er_ckpt latest;
    bool has_latest;
};

/* driver_kv.c */
void driver_kv_init(struct er_driver *d);
void driver_kv_done(struct er_driver *d);
/* End waits of generations up to `generation`. */
void driver_kv_stop(struct er_driver *d, uint64_t generation);
/* Answer everything ER_E_STALE: the verdict follows. */
void driver_kv_end(struct er_driver *d);
void driver_kv_run(struct er_driver *d); /* answers, time-outs and retries that are due */
uint64_t driver_kv_deadline(const struct er_driver *d);
