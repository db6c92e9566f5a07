#pragma once
/*
 * Barriers of the workers: the agent counts its local ranks; nodes meet with one put each, and the
 * first node's agent writes the release key when all have arrived (so the store sees O(nodes)
 * writes per use, whatever the number of ranks; a node alone needs none). Uses of a name are
 * counted. A rank that gave up by timeout has arrived all the same: the name's count is undefined
 * after it.
 */
#include "agent/ctlserver.h"
#include "rendezvous/driver.h"

#define ER_BARRIER_NAMES_MAX ER_CTL_BARRIERS_MAX /* per generation */
#define ER_BARRIER_NAME_MAX  208                 /* bytes, NUL included */

struct er_barriers;

/* `driver` is borrowed until er_barriers_free(). -ENOMEM. */
int er_barriers_new(struct er_barriers **ret, struct er_driver *driver, struct er_error *err);
/* Before the driver is freed. NULL is fine. */
void er_barriers_free(struct er_barriers *barriers);
/* A new generation on this node; whoever still waits in the old one is answered ER_E_STALE. */
void er_barriers_begin(struct er_barriers *barriers, const struct er_assignment *a);

/* The generation ends, and its workers are to leave it: whoever waits, or comes, is answered
 * ER_E_STALE, since ranks that were lost will not come any more. */
void er_barriers_end(struct er_barriers *barriers);

/* `name` has less than ER_BARRIER_NAME_MAX bytes. Takes over the request: it is answered 0,
 * -ETIMEDOUT, ER_E_STALE, ER_E_LIMIT (too many names) or -EALREADY (this rank waits there already).
 */
void er_barriers_arrive(struct er_barriers *barriers, struct er_ctlconn *conn, uint32_t seq,
                        int local_rank, const char *name, uint64_t deadline_us);

/* When the next of those who wait runs out of time (ER_FOREVER: nobody does), and answering them.
 */
uint64_t er_barriers_deadline(const struct er_barriers *barriers);
/* Is a local worker at one of them? */
bool er_barriers_has(const struct er_barriers *barriers, int local_rank);
void er_barriers_step(struct er_barriers *barriers, uint64_t now_us);
