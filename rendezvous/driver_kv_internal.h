#pragma once
/* One operation on workers' keys: driver_kv.c (its life), driver_kv_txn.c (its transactions). */
#include "rendezvous/driver_internal.h"

#define NUMBER_MAX 24 /* an int64 as text */

enum op_kind { OP_PUT, OP_GET, OP_ADD, OP_COMMIT, OP_REQUEST, OP_OVERRIDE };
enum op_state {
    OP_SEND,   /* (again) at due_us */
    OP_FLIGHT, /* a transaction is under way */
    OP_WAIT,   /* GET: watching the key */
    OP_ANSWER  /* rc is the answer, due now */
};

struct op {
    struct er_list node;
    struct er_driver *driver;
    enum op_kind kind;
    enum op_state state;
    bool cancelled,
        written; /* written: the write of ADD, COMMIT, OVERRIDE has been sent at least once */
    uint64_t id, generation, deadline_us, due_us, watch;
    int rc;
    er_driver_kv_fn done;
    void *user;
    char key[ER_KEY_MAX], second[ER_KEY_MAX]; /* second: op key of ADD */
    size_t key_n, second_n, value_n;
    char *value; /* PUT: owned */
    int64_t delta;
    struct er_ckpt_record ckpt;    /* COMMIT */
    struct er_ask ctl;             /* REQUEST */
    er_driver_merge_fn merge;      /* OVERRIDE */
    struct er_overrides *override; /* OVERRIDE: owned; the record to write */
    uint64_t world_rev;            /* OVERRIDE: of a job that is not over */
    char fence[ER_FENCE_MAX];
    bool write_next; /* ADD, COMMIT, OVERRIDE: what was read is in mod_rev and number */
    uint64_t mod_rev;
    char number[NUMBER_MAX]; /* ADD: the value to write */
};

/* The answer is given at once: only called from dispatch. */
void driver_op_finish(struct op *op, int rc, const void *value, size_t n);
void driver_op_answer(struct op *op, int rc);           /* by the next dispatch */
void driver_op_again(struct op *op, uint64_t delay_us); /* send then */
void driver_op_send(struct op *op);
