#pragma once
/*
 * The nodes of a generation find out together who hangs: agents see their own ranks only. Nothing
 * is written while all is well, nor read; all keys are below x/ in the generation's part of the
 * store, for round r = 0, 1, ...:
 *
 *   a rank is still    a node asks for x/<r>/go (there: that round is over, r + 1), then watches
 *                      x/<r>/alarm
 *   a rank is late     it writes x/<r>/alarm
 *   alarm              every node whose ranks are still writes what it knows of them, x/<r>/<node>
 *   node 0             reads these as they come, judges, writes x/<r>/go
 *   the others         read x/<r>/go; each acts on its own ranks
 *
 *   CALM -- still --> ASKING --> LISTENING -- alarm, late --> TOLD -- go, or time over --> CALM
 *
 * Without an answer in time (the store is away, node 0 is frozen or its ranks move) a node judges
 * what it knows itself. A job of one node judges at once.
 */
#include "agent/hang_judge.h"
#include "rendezvous/driver.h"

struct er_hang_round;

struct er_hang_round_ops {
    /* The facts of the local ranks now; returns how many, at most ER_HANG_FACTS_MAX. */
    size_t (*facts)(void *user, struct er_hang_fact *ret);
    void (*decided)(void *user, const struct er_hang_verdict *verdict);
};

/* `driver` is borrowed; free the round first. -ENOMEM. */
int er_hang_round_new(struct er_hang_round **ret, struct er_driver *driver,
                      const struct er_hang_round_ops *ops, void *user, struct er_error *err);
void er_hang_round_free(struct er_hang_round *r);
/* The generation in which `node` of `nodes` is; nothing of an older one is heard any more. */
void er_hang_round_begin(struct er_hang_round *r, uint64_t generation, int node, int nodes);
/* After each look: is a local rank still, or late and not dealt with? */
void er_hang_round_step(struct er_hang_round *r, bool still, bool late, uint64_t now_us);
/* ER_FOREVER: none. */
uint64_t er_hang_round_deadline(const struct er_hang_round *r);
/* From the store's answers, decided() is called in er_driver_dispatch(); else in a step. */
