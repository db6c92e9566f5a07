#pragma once
/*
 * Ranks of one communicator as forked processes on the double of libelastic. A rank that finds
 * something wrong says so and exits with 1; run_ranks() makes that a failure of the case.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#include "runtime/comm.h"
#include "tests/lib/fake_world.h"

#define RANK_WAIT_US 60000000ull /* a backstop */

struct rank {
    int rank, size;
    enum er_comm_transport transport; /* for communicators that do not say */
    struct er_ctx *ctx;
    struct er_fake_world *world;
    struct er_device *device; /* NULL until it is asked for */
};

struct ranks {
    int size_n;
    enum er_comm_transport transport_of;
    bool nodes_apart; /* each rank on a node of its own */
};

typedef void (*rank_fn)(struct rank *r);

/* Fork, run, wait; each rank must exit with 0. */
void run_ranks(const struct ranks *ranks, rank_fn fn);
/* With shared memory, then with TCP. */
void run_both(int size_n, rank_fn fn);
/* One rank as a child, which exits with 0 when `fn` returns. */
pid_t fork_rank(struct er_fake_world *world, const struct ranks *ranks, int rank, rank_fn fn);

/* The suite runs on backend nccl (ER_TEST_BACKEND), for communicators that do not say which. */
bool rank_on_gpu(void);
/* The rank's GPU, opened when first asked for; closed when the rank ends. */
struct er_device *rank_device(struct rank *r);
/* Those options, for this rank's transport and the suite's backend. `opts` may be NULL. */
struct er_comm_opts rank_opts(struct rank *r, const struct er_comm_opts *opts);
/* Opened and ready, or the rank fails. `opts` may be NULL. */
struct er_comm *rank_open(struct rank *r, const struct er_comm_opts *opts);
void rank_meet(struct rank *r, const char *name);
/* An all-reduce with a known result, or the rank fails. */
void rank_verify(struct er_comm *comm);
void rank_pause_us(uint64_t us);
/* Meet, then move on to the next generation. */
void rank_next_generation(struct rank *r);

#define RANK_REQUIRE(cond)                                                                         \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            printf("# %s:%d: not true: %s\n", __FILE__, __LINE__, #cond);                          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define RANK_OK(call, err)                                                                         \
    do {                                                                                           \
        if ((call) != 0) {                                                                         \
            printf("# %s:%d: %s: %s\n", __FILE__, __LINE__, #call, (err).text);                    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
