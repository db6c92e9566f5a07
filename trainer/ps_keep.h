#pragma once
/*
 * The part of the parameter servers' state that a process holds from one generation to the next,
 * and how it comes to the servers of that one (trainer/ps_plan.h has the plan). What is held is
 * given up only when every server has all of its part: a failure before that costs nothing.
 *
 *   stop -> settle -> plan -> bring -> switch
 */
#include "runtime/comm.h"
#include "trainer/ps_server.h"

/* Another server's part, which this rank took over; memory owned. */
struct er_ps_piece {
    struct er_ps_extent extent;
    struct er_pool *pool;
    float *block[1 + ER_FLAT_STATES_MAX];
};

struct er_ps_keep {
    size_t blocks_n;             /* values and optimizer states */
    struct er_ps_server *server; /* of the generation before, stopped; owned; NULL: none */
    struct er_ps_piece pieces[ER_PS_PIECES_MAX - 1];
    size_t pieces_n;
    uint64_t lineage;         /* of what is held, as in er_ps_held; 0: nothing is */
    struct er_ps_progress at; /* of what is held */
};

/* A server of this generation, for the next. Stops it; owned from now on. */
void er_ps_keep_server(struct er_ps_keep *keep, struct er_ps_server *server, uint64_t lineage);
/* Everything is given up. */
void er_ps_keep_drop(struct er_ps_keep *keep);

/* Collective: every push that was in flight when the generation ended counts on all servers that
 * are left, or on none: it does when one of them knows that it does. *ret_counted, *ret_dropped:
 * how many pushes of either kind there were. */
int er_ps_keep_settle(struct er_ps_keep *keep, struct er_comm *comm, uint64_t *ret_counted,
                      uint64_t *ret_dropped, struct er_error *err);
/* What this rank tells the others then. */
struct er_ps_held er_ps_keep_held(const struct er_ps_keep *keep);

/* Collective, with everybody's `held`: the progress of the state of rank `source`. */
int er_ps_keep_share_progress(const struct er_ps_keep *keep, struct er_comm *comm, int source,
                              struct er_ps_progress *ret, struct er_error *err);
/* Whether the new server's part is what the old one held, so that its memory can go over. */
bool er_ps_keep_stands(const struct er_ps_keep *keep, const struct er_ps_held *newest,
                       struct er_ps_extent extent);
/* Collective: the parts of `servers` servers to where they belong; `server` is this rank's, or
 * NULL, bare where er_ps_keep_stands(). ER_E_CORRUPT: what came is not what was sent. */
int er_ps_keep_bring(const struct er_ps_keep *keep, struct er_comm *comm,
                     const struct er_ps_held *held, int source, size_t elements, int servers,
                     struct er_ps_server *server, struct er_error *err);
/* Behind a barrier: the new server has it all. */
void er_ps_keep_switch(struct er_ps_keep *keep, struct er_ps_server *server);

/* Collective, with nothing under way: rank from[i] gives its server's part to rank to[i], in this
 * order; nobody does both. `mine`: this rank's server or NULL, `lineage` of all. */
int er_ps_keep_hand_over(struct er_ps_keep *keep, struct er_comm *comm, struct er_ps_server *mine,
                         uint64_t lineage, const int *from, const int *to, int n, size_t elements,
                         int servers, struct er_error *err);
