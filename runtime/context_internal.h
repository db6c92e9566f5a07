#pragma once
/* A context, for what goes over the agent's socket (runtime.c) and over the shared page (page.c).
 */
#include <limits.h>
#include <stdatomic.h>

#include "base/ctlclient.h"
#include "runtime/localkv.h"
#include "runtime/runtime_internal.h"

/* Strings of WORLD, in order. */
enum {
    TEXT_JOB,
    TEXT_RUN,
    TEXT_NODE_ID,
    TEXT_CHECKPOINT_DIR,
    TEXT_COUNT,
    TEXT_SKIPS = TEXT_COUNT /* may be missing */
};
#define SKIPS_MAX 16
/* Numbers of WORLD, in order. */
enum {
    NUM_RANK,
    NUM_SIZE,
    NUM_LOCAL_RANK,
    NUM_LOCAL_SIZE,
    NUM_NODE_RANK,
    NUM_NNODES,
    NUM_GENERATION,
    NUM_RESTARTS,
    NUM_COUNT,
    NUM_AHEAD = NUM_COUNT /* may be missing */
};

struct er_ctx {
    bool with_agent;
    bool left;    /* BYE was said */
    bool rejoins; /* er_rejoin_offer() */
    bool ahead;   /* the generation is not sealed yet, as far as is known: requests wait for it */
    struct er_ctl_client client;
    struct er_page *page; /* mapped; NULL without an agent */
    /* Last finished step when start-up ended: what was loaded, not done here. */
    _Atomic uint64_t base_step;
    _Atomic uint64_t stepped_us; /* when the newest step ended; 0: none in this generation */
    struct er_world world;
    char text[TEXT_COUNT][PATH_MAX];
    uint64_t skips[SKIPS_MAX]; /* world.skip_steps */
    struct er_local_kv kv;     /* without an agent */
};

/* Maps the page that ELASTIC_PAGE_FD names; none is named: NULL stays. er_close() unmaps it. */
int er_ctx_map_page(struct er_ctx *ctx, struct er_error *err);
