#pragma once
/*
 * A parameter server: a thread that holds elements [first, first + count) of the flat parameters
 * and the optimizer's state for them, and serves workers over Unix sockets and TCP.
 *
 * - A push is staged whole, then committed: a worker commits when every server has staged. One that
 *   dies in between is decided by asking the other servers: any commit is a commit, else it is
 *   dropped. A server answers such a question only once it has heard the last of that worker.
 * - With staleness 0 the parts of a step are added in part order and the optimizer runs once, when
 *   all are there: the same bits whoever computes which part, and as often as it is repeated.
 *   Otherwise each part is an optimizer step of its own, when it is committed.
 * - Values do not change while they are being sent.
 * Server 0 also gives out the parts.
 *
 *   open -> place -> start -> stop -> (settle what was pending) -> its memory goes on in the next
 *
 * A push that could not be decided, since another server had ended, waits for the servers' next
 * meeting (trainer/ps_keep.h).
 */
#include "runtime/host_addr.h"
#include "trainer/flat.h"
#include "trainer/optim.h"
#include "trainer/ps_plan.h"
#include "trainer/ps_table.h"
#include "trainer/schedule.h"

struct er_ps_server; /* opaque */

struct er_ps_server_opts {
    int index, servers;         /* this one of so many */
    const struct er_flat *flat; /* borrowed; the first values are read from its block of values,
                                   which is bound */
    struct er_optim optim;
    struct er_schedule schedule; /* of steps */
    bool staleness_aware; /* a gradient that is n steps late counts 1 / (1 + n). Source: W. Zhang et
                             al., "Staleness-aware Async-SGD", IJCAI 2016 */
    uint32_t parts;       /* of a step */
    uint64_t steps, staleness, pause_steps[2]; /* as in er_ps_table_init() */
    uint32_t workers;                          /* that are to be told of a change; 0: nobody is */
    bool bare; /* without memory: er_ps_server_adopt() follows, before anything else */
    uint64_t lost_timeout_us; /* how long a server waits for the last words of a worker that another
                                 one has lost; 0: 2 s */
};

/* How far a server is: the same on all servers of a state. */
struct er_ps_progress {
    uint64_t steps, updates;          /* that are done; of the optimizer */
    uint64_t parts;                   /* of a step */
    uint64_t bits[ER_PS_WINDOW / 64]; /* parts done beyond `steps`, as in er_ps_table */
};
bool er_ps_progress_is_whole(const struct er_ps_progress *progress); /* nothing beyond `steps` */

/* Listens and takes memory; -ENOMEM, or what the system says. `ret_record`: where others find it.
 */
int er_ps_server_open(struct er_ps_server **ret, const struct er_ps_server_opts *opts,
                      struct er_host_record *ret_record, struct er_error *err);
/* The state to save or to load into, before it runs or while all workers meet: at most
 * er_flat_slices_n() entries, returns how many. */
size_t er_ps_server_slices(const struct er_ps_server *server, struct er_slice *ret);
/* How far the state in its memory is; `parts` is the server's own where it is whole. ER_E_CORRUPT:
 * nothing can be as far as that. */
int er_ps_server_place(struct er_ps_server *server, const struct er_ps_progress *progress,
                       struct er_error *err);
/* Begins to serve. `records`: of all servers, copied. */
int er_ps_server_start(struct er_ps_server *server, const struct er_host_record *records,
                       struct er_error *err);
/* Both, from whole steps on. */
int er_ps_server_run(struct er_ps_server *server, const struct er_host_record *records,
                     uint64_t done_steps, struct er_error *err);
/* Ends the thread and all connections; what is due is carried out. */
void er_ps_server_stop(struct er_ps_server *server);
/* Stops. NULL is fine. */
void er_ps_server_close(struct er_ps_server *server);

/* A push that was staged, of which a stopped server does not know whether it counts. */
struct er_ps_pending {
    uint64_t worker, incarnation, seq;
};
/* Fills at most `max`; returns how many there are. */
size_t er_ps_server_pending(const struct er_ps_server *server, struct er_ps_pending *ret,
                            size_t max);
/* Whether it counts here already. */
bool er_ps_server_knows(const struct er_ps_server *server, const struct er_ps_pending *push);
/* It counts, or does not; nothing where it is not pending. */
void er_ps_server_settle(struct er_ps_server *server, const struct er_ps_pending *push,
                         bool counts);
/* Of one that has been placed and does not run. What is counted of a step that is not whole, in
 * lock-step, is not in the state: it is done again. */
void er_ps_server_progress(const struct er_ps_server *server, struct er_ps_progress *ret);

/* The elements that it holds, and block `which` of them: 0 the values, 1 + i the optimizer's i-th
 * state; NULL: none. */
struct er_ps_extent er_ps_server_extent(const struct er_ps_server *server);
float *er_ps_server_block(const struct er_ps_server *server, size_t which);
/* The memory of a stopped server of the same extent, which is closed. Of a `bare` server. */
void er_ps_server_adopt(struct er_ps_server *server, struct er_ps_server *from);

/* What workers and servers must agree on: names and sizes. */
uint64_t er_ps_layout(const struct er_flat *flat);
