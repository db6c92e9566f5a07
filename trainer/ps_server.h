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
 */
#include "runtime/host_addr.h"
#include "trainer/flat.h"
#include "trainer/optim.h"
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
    uint64_t lost_timeout_us; /* how long a server waits for the last words of a worker that another
                                 one has lost; 0: 2 s */
};

/* Listens and takes memory; -ENOMEM, or what the system says. `ret_record`: where others find it.
 */
int er_ps_server_open(struct er_ps_server **ret, const struct er_ps_server_opts *opts,
                      struct er_host_record *ret_record, struct er_error *err);
/* The state to save or to load into, before it runs or while all workers meet: at most
 * er_flat_slices_n() entries, returns how many. */
size_t er_ps_server_slices(const struct er_ps_server *server, struct er_slice *ret);
/* Begins to serve. `records`: of all servers, copied; `done_steps`: of the state. */
int er_ps_server_run(struct er_ps_server *server, const struct er_host_record *records,
                     uint64_t done_steps, struct er_error *err);
/* Ends the thread. NULL is fine. */
void er_ps_server_close(struct er_ps_server *server);

/* Elements of server `index`. */
struct er_ps_extent {
    size_t first, count;
};
struct er_ps_extent er_ps_extent_of(size_t elements, int index, int servers);
/* What workers and servers must agree on: names and sizes. */
uint64_t er_ps_layout(const struct er_flat *flat);
