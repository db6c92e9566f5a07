#pragma once
/* The driver's insides: driver.c (core on a store), driver_read.c (reads and watches), driver_kv.c
 * and driver_kv_txn.c (workers' keys, commits, requests). */
#include "base/clock.h"
#include "base/list.h"
#include "rendezvous/planted.h"
#include "rendezvous/rdzv.h"

#define DRIVER_RETRY_US 100000ull /* between attempts of a read that failed */
#define DRIVER_ROUNDS   256       /* of one dispatch; the rest waits for the next one */
/* world, leader, own node, assignment; overrides, ckpt/latest, query, aside */
#define DRIVER_SELF_KEYS 8
#define DRIVER_KEPT      3     /* of a job that has ended: world, ckpt/latest, overrides */
#define DRIVER_JOB_PARTS 7     /* of what a leader reads */
#define DRIVER_REFUSED   64    /* operations there was no memory for */
#define DRIVER_EARLY_MAX 65536 /* changes shown during a leader's read; beyond: read again */
#ifndef DRIVER_PAGE
#define DRIVER_PAGE 1000 /* keys read at a time */
#endif

/* What the owner said, until the next dispatch: a slot each, taken in this order. */
struct driver_said {
    bool port, progress, result, failed, left, leave, planned, planned_on, warm, warm_on, tune;
    struct er_driver_tuning tuning;
    uint64_t leave_until_us, prepared_generation;
    int port_value, exit_code, slots; /* slots 0: nothing */
    uint64_t progress_generation, result_generation, left_generation;
    struct er_cause cause;
    char reason[256], address[ER_HOST_TEXT_MAX]; /* address "": nothing */
};

struct driver_early {
    struct er_store_event event; /* points into text */
    char *text;
};

struct er_driver {
    struct er_store *store; /* borrowed */
    struct er_rdzv *core;
    struct er_view_node *nodes;
    struct er_plan_node *scratch;
    struct er_driver_callbacks callbacks;
    uint64_t query_id; /* the last one that the owner was told of */
    void *user;
    uint64_t now_us, random;
    bool started, over;
    bool denied; /* the last answer on the node's own lane or to a grant */
    struct driver_said said;
    struct er_rdzv_actions actions;

    /* reads that watches follow */
    uint64_t self_watch[DRIVER_SELF_KEYS], job_watch;
    unsigned self_opening;        /* own watches that are not open yet */
    bool self_wanted, job_wanted; /* read again, at once or at retry_us */
    bool self_reading, job_reading, job_open;
    uint64_t retry_us;
    unsigned lane_failed[ER_LANE_COUNT]; /* transactions the store refused to take */
    uint64_t grant_failed[2];            /* leases it did: the own one, another */
    struct {                             /* a leader's read in pages */
        uint64_t revision;
        size_t part; /* under way */
        bool open[DRIVER_JOB_PARTS];
        char after[DRIVER_JOB_PARTS][ER_KEY_MAX];
        size_t after_n[DRIVER_JOB_PARTS];
    } page;
    struct { /* what the leader's watch showed before the read was complete */
        struct driver_early *list;
        size_t n, cap;
        bool on;
    } early;

    struct { /* driver_retire.c: the core is over, the verdict not told yet */
        bool on;
        int tries;
        uint64_t until_us, lease;
        struct {          /* of each key that stays, as it was read */
            uint64_t rev; /* 0: it is not there */
            size_t n;
            char bytes[ER_RECORD_BYTES_MAX];
        } kept[DRIVER_KEPT];
    } retire;

    /* driver_kv.c */
    struct er_list ops;
    uint64_t next_op, op_seq, stopped; /* stopped: newest generation told to stop */
    struct er_ckpt_record latest;
    uint64_t latest_rev; /* of the store, at which `latest` was known */
    uint64_t aside_rev;  /* the same of `aside`, why this node is set aside; "" it is not */
    struct er_aside aside;
    uint64_t self_rev;   /* newest revision at which something was known of the own keys */
    uint64_t self_floor; /* the same when the read that is under way began */
    bool has_latest;
    bool overrides_told;         /* to the owner, */
    uint64_t overrides_told_rev; /* as of this mod_revision; 0: that there are none */
    struct {
        er_driver_kv_fn done;
        void *user;
    } refused[DRIVER_REFUSED]; /* answered -ENOMEM by the next dispatch */
    size_t refused_n;
};

/* driver.c */
void driver_step(struct er_driver *d, struct er_rdzv_event *e);
void driver_feed(struct er_driver *d, enum er_rdzv_event_kind kind);

/* driver_read.c */
void driver_read_self(struct er_driver *d);
void driver_reread_self(struct er_driver *d);
void driver_close_self(struct er_driver *d);
void driver_read_job(struct er_driver *d);
void driver_want_job(struct er_driver *d, uint64_t at_us);
void driver_close_job(struct er_driver *d);

/* driver_retire.c */
void driver_retire(struct er_driver *d); /* the core is over: tells the verdict, at once or soon */
void driver_retire_step(struct er_driver *d);

/* driver_kv.c */
void driver_kv_init(struct er_driver *d);
void driver_kv_done(struct er_driver *d);
/* End waits of generations up to `generation`. */
void driver_kv_stop(struct er_driver *d, uint64_t generation);
/* Answer everything ER_E_STALE: the verdict follows. */
void driver_kv_end(struct er_driver *d);
void driver_kv_run(struct er_driver *d); /* answers, time-outs and retries that are due */
uint64_t driver_kv_deadline(const struct er_driver *d);
