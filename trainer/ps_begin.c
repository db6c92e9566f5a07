/* Where a generation of a run with parameter servers begins. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "trainer/engine_ops.h"
#include "trainer/ps_run_internal.h"

/* What every rank tells the others first. */
struct record {
    struct er_ps_held held;
    uint64_t saved_step;
    uint64_t layout, options; /* must be the same on all */
    bool owed;
};

uint64_t er_ps_loop_samples(const struct er_ps_loop *run, uint64_t step)
{
    const struct er_plan *plan = &run->opts->plan;
    uint64_t of_epoch = step % run->train.epoch_steps * plan->global_batch;

    return step / run->train.epoch_steps * plan->samples +
           (of_epoch < plan->samples ? of_epoch : plan->samples);
}

void er_ps_loop_forget_first(struct er_ps_loop *run)
{
    if (run->train.held.saved_step == 0)
        return;
    free(run->first);
    run->first = NULL;
}

static int check(const struct er_ps_loop *run, struct er_error *err)
{
    const struct er_ps_opts *o = run->opts;

    if (o->servers < 0 || o->parts > ER_PS_WORKERS_MAX || o->plan.shards > 0)
        return er_error_set(err, ER_E_USAGE,
                            "%d servers, %u parts of a step, %u shards: at least 0, at most %d, "
                            "none (exact mode is for DDP) are expected",
                            o->servers, o->parts, o->plan.shards, ER_PS_WORKERS_MAX);
    return 0;
}

/* ---- the worker's memory, once for the process ---- */

static int place_on_host(struct er_ps_loop *run, struct er_error *err)
{
    struct er_device *device = er_engine_device(run->engine);
    size_t bytes = run->flat->total * sizeof(float);
    int rc;

    run->host = *run->flat;
    if (!device)
        return 0;
    rc = er_device_alloc(device, ER_MEMORY_PINNED, 2 * bytes, &run->pinned, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "parameters on the host");
    run->host.block[ER_FLAT_VALUE] = run->pinned;
    run->host.block[ER_FLAT_GRAD] = (float *)run->pinned + run->flat->total;
    return er_engine_get(run->engine, run->host.block[ER_FLAT_VALUE],
                         run->flat->block[ER_FLAT_VALUE], bytes, err);
}

/* Pulls overwrite the first values; should the state be lost before there is a checkpoint, training
 * begins with them again. */
static int open_memory(struct er_ps_loop *run, struct er_error *err)
{
    size_t bytes = run->flat->total * sizeof(float);
    int rc;

    if (run->host.params)
        return 0;
    run->keep.blocks_n = 1 + er_optim_states_n(run->opts->optim.kind);
    rc = place_on_host(run, err);
    if (rc < 0 || !run->train.rejoins)
        return rc;
    run->first = malloc(bytes + 1);
    if (!run->first)
        return er_error_set(err, -ENOMEM, "copy of the first values");
    memcpy(run->first, run->host.block[ER_FLAT_VALUE], bytes);
    return 0;
}

static void close_memory(struct er_ps_loop *run)
{
    free(run->first);
    if (!run->pinned)
        return;
    er_engine_wait(run->engine, NULL);
    er_device_free(er_engine_device(run->engine), ER_MEMORY_PINNED, run->pinned);
}

/* ---- this rank's server ---- */

static int open_server(struct er_ps_loop *run, const struct er_ps_held *newest,
                       struct er_host_record *ret_record, struct er_error *err)
{
    const struct er_train *train = &run->train;
    struct er_ps_server_opts opts = {
        .index = train->rank,
        .servers = run->servers,
        .flat = &run->host,
        .optim = run->opts->optim,
        .schedule = run->opts->schedule,
        .staleness_aware = run->opts->staleness_aware,
        .parts = run->parts,
        .steps = train->total_steps,
        .staleness = run->opts->staleness,
        .pause_steps = {train->epoch_steps, train->ckpt ? train->saving.steps : 0},
        .workers = (uint32_t)train->size,
    };

    if (train->rank >= run->servers)
        return 0;
    opts.bare =
        newest && er_ps_keep_stands(&run->keep, newest,
                                    er_ps_extent_of(run->flat->total, train->rank, run->servers));
    return er_ps_server_open(&run->server, &opts, ret_record, err);
}

/* Its part of the state, for checkpoints; once it has memory. */
static int list_state(struct er_ps_loop *run, struct er_error *err)
{
    run->slices = calloc(er_flat_slices_n(run->flat) + 1, sizeof(*run->slices));
    if (!run->slices)
        return er_error_set(err, -ENOMEM, "list of tensors");
    run->train.state = run->slices;
    run->train.state_n = run->server ? er_ps_server_slices(run->server, run->slices) : 0;
    return 0;
}

/* All ranks have their part: from here on it is what this rank holds. */
static int place(struct er_ps_loop *run, const struct er_ps_progress *at, uint64_t lineage,
                 struct er_error *err)
{
    int rc = run->server ? er_ps_server_place(run->server, at, err) : 0;

    if (rc < 0)
        return rc;
    run->holds = run->server != NULL;
    run->lineage = lineage;
    run->whole = er_ps_progress_is_whole(at);
    return 0;
}

/* ---- with what the ranks hold ---- */

static uint64_t digest_options(const struct er_ps_loop *run)
{
    const uint64_t options[] = {(uint64_t)run->opts->servers, run->opts->parts,
                                run->opts->staleness, run->opts->staleness_aware,
                                run->opts->optim.kind};

    return er_hash(options, sizeof(options)).lo;
}

static int exchange(struct er_ps_loop *run, struct record **ret, struct er_error *err)
{
    struct er_train *train = &run->train;
    const struct record mine = {
        .held = er_ps_keep_held(&run->keep),
        .saved_step = train->held.saved_step,
        .layout = er_ps_layout(run->flat),
        .options = digest_options(run),
        .owed = train->held.owed || train->policy.owed,
    };
    int rc;

    *ret = calloc((size_t)train->size, sizeof(**ret));
    if (!*ret)
        return er_error_set(err, -ENOMEM, "records of %d ranks", train->size);
    rc = er_sync_gather(train->comm, &mine, sizeof(mine), *ret, err);
    for (int i = 0; i < train->size && rc == 0; i++) {
        if ((*ret)[i].layout != mine.layout || (*ret)[i].options != mine.options)
            rc = er_error_set(err, ER_E_MISMATCH,
                              "rank %d has other parameters, or other options (servers, parts, "
                              "staleness, optimizer) than rank %d",
                              i, train->rank);
    }
    return rc < 0 ? er_error_wrap(err, rc, "what the ranks hold") : 0;
}

struct recovery {
    struct record *records;  /* of each rank, owned, as everything here */
    struct er_ps_held *held; /* likewise */
    struct er_ps_progress *at;
    int source;
    uint64_t counted, dropped; /* pushes that were in flight */
};

static void recovery_done(struct recovery *r)
{
    free(r->records);
    free(r->held);
    free(r->at);
}

static int make_plan(struct er_ps_loop *run, struct recovery *r, struct er_error *err)
{
    int size = run->train.size,
        rc = er_ps_keep_settle(&run->keep, run->train.comm, &r->counted, &r->dropped, err);

    if (rc == 0)
        rc = exchange(run, &r->records, err);
    if (rc < 0)
        return rc;
    r->held = calloc((size_t)size, sizeof(*r->held));
    r->at = calloc(1, sizeof(*r->at));
    if (!r->held || !r->at)
        return er_error_set(err, -ENOMEM, "records of %d ranks", size);
    for (int i = 0; i < size; i++)
        r->held[i] = r->records[i].held;
    r->source = er_ps_plan_source(r->held, size, run->flat->total);
    return 0;
}

/* What all ranks know now, whether they were there or not. */
static void take_over(struct er_ps_loop *run, const struct recovery *r)
{
    struct er_train *train = &run->train;

    train->held = (struct er_train_held){0};
    for (int i = 0; i < train->size; i++) {
        uint64_t saved = r->records[i].saved_step;

        train->held.saved_step = saved > train->held.saved_step ? saved : train->held.saved_step;
        train->held.owed = train->held.owed || r->records[i].owed;
    }
    train->applied = r->at->steps;
}

/* `newcomer`: this process was not there before. */
static int tell(struct er_ps_loop *run, const struct recovery *r, bool newcomer,
                struct er_error *err)
{
    struct er_train *train = &run->train;
    int servers = 0;
    char text[128];

    for (int i = 0; i < train->size; i++)
        servers += r->held[i].n > 0;
    snprintf(text, sizeof(text),
             "the memory of the parameter servers of %d ranks (pushes in flight: %lu counted, %lu "
             "are done again)",
             servers, (unsigned long)r->counted, (unsigned long)r->dropped);
    er_train_tell(train, ER_TRAIN_RECOVERED, train->applied, text);
    if (!newcomer)
        return 0;
    train->result.resumed_from = train->applied;
    return er_loaded(train->ctx, train->applied, "parameter servers", "peer", "", err);
}

static int bring(struct er_ps_loop *run, struct recovery *r, struct er_host_record *ret_record,
                 struct er_error *err)
{
    struct er_train *train = &run->train;
    const struct er_ps_held *newest = &r->held[r->source];
    int rc = er_ps_keep_share_progress(&run->keep, train->comm, r->source, r->at, err);

    if (rc == 0 && !er_ps_progress_is_whole(r->at))
        run->parts = (uint32_t)r->at->parts; /* those that are done are parts of that division */
    if (rc == 0)
        rc = open_server(run, newest, ret_record, err);
    if (rc == 0)
        rc = er_ps_keep_bring(&run->keep, train->comm, r->held, r->source, run->flat->total,
                              run->servers, run->server, err);
    if (rc == 0)
        rc = er_comm_barrier(train->comm, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "state of the parameter servers");
    er_ps_keep_switch(&run->keep, run->server);
    rc = place(run, r->at, newest->lineage, err);
    return rc < 0 ? rc : list_state(run, err);
}

/* 1: nobody holds a state, or not all of it. */
static int recover(struct er_ps_loop *run, struct er_host_record *ret_record, struct er_error *err)
{
    bool newcomer = run->train.result.recoveries == 0;
    struct recovery r = {0};
    int rc = make_plan(run, &r, err);

    if (rc == 0 && r.source < 0)
        rc = 1;
    if (rc == 0)
        rc = bring(run, &r, ret_record, err);
    if (rc == 0) {
        take_over(run, &r);
        rc = tell(run, &r, newcomer, err);
    }
    recovery_done(&r);
    return rc;
}

/* ---- with a checkpoint, or from the start ---- */

/* Rank 0's first values for all, as er_train_begin_anew() does for replicated state. */
static int share_values(struct er_ps_loop *run, struct er_error *err)
{
    size_t bytes = run->flat->total * sizeof(float);
    float *values = run->host.block[ER_FLAT_VALUE];
    const struct er_sync_part part = {"parameters", values, bytes};
    int rc;

    if (run->first)
        memcpy(values, run->first, bytes);
    rc = er_sync_parts(run->train.comm, &part, 1, err);
    if (rc == 0 && run->first)
        memcpy(run->first, values, bytes);
    return rc;
}

static int begin_anew(struct er_ps_loop *run, struct er_host_record *ret_record,
                      struct er_error *err)
{
    struct er_train *train = &run->train;
    bool was_saved = train->held.saved_step > 0;
    struct er_ps_progress *at;
    int rc;

    er_ps_keep_drop(&run->keep);
    rc = share_values(run, err);
    if (rc == 0)
        rc = open_server(run, NULL, ret_record, err);
    if (rc == 0)
        rc = list_state(run, err);
    if (rc == 0)
        rc = er_train_begin_anew(train, err);
    if (rc == 0 && was_saved && train->applied == 0)
        rc = er_error_set(err, ER_E_CORRUPT,
                          "the checkpoints of this run are gone, and so are its "
                          "parameters: a server was lost");
    if (rc == 0)
        rc = er_comm_barrier(train->comm, err);
    if (rc < 0)
        return rc;
    at = calloc(1, sizeof(*at));
    if (!at)
        return er_error_set(err, -ENOMEM, "parameter servers");
    at->steps = train->applied;
    at->updates = run->opts->staleness == 0 ? at->steps : at->steps * run->parts;
    rc = place(run, at, er_world(train->ctx)->generation + 1, err);
    free(at);
    return rc;
}

/* ---- all of it ---- */

static int connect_all(struct er_ps_loop *run, const struct er_host_record *mine,
                       struct er_error *err)
{
    struct er_train *train = &run->train;
    ER_CLEANUP(er_cleanup_free)
    struct er_host_record *records = calloc((size_t)train->size, sizeof(*records));
    int rc;

    if (!records)
        return er_error_set(err, -ENOMEM, "addresses of %d ranks", train->size);
    rc = er_sync_gather(train->comm, mine, sizeof(*mine), records, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "addresses of the parameter servers");
    if (run->server)
        rc = er_ps_server_start(run->server, records, err);
    if (rc == 0)
        rc = er_ps_client_open(&run->client, train->ctx, (uint32_t)train->rank, &run->host, records,
                               run->servers, err);
    return rc;
}

int er_ps_loop_begin(struct er_ps_loop *run, struct er_error *err)
{
    struct er_train *train = &run->train;
    struct er_host_record mine = {0};
    bool anew;
    int rc = check(run, err);

    if (rc == 0)
        rc = er_train_open_comm(train, err);
    if (rc < 0)
        return rc;
    run->servers =
        run->opts->servers && run->opts->servers < train->size ? run->opts->servers : train->size;
    run->parts = run->opts->parts ? run->opts->parts : (uint32_t)train->size;
    rc = open_memory(run, err);
    if (rc == 0)
        rc = er_train_join_checkpoints(train, err);
    if (rc == 0)
        rc = recover(run, &mine, err);
    anew = rc == 1;
    if (anew)
        rc = begin_anew(run, &mine, err);
    if (rc < 0)
        return rc;
    train->samples = er_ps_loop_samples(run, train->applied);
    rc = er_train_begun(train, anew, err);
    er_ps_loop_forget_first(run);
    if (rc == 0) /* of a part that was not finished */
        rc = run->engine->ops->fill(run->engine, run->flat->block[ER_FLAT_GRAD], 0.0f,
                                    run->flat->total, err);
    return rc < 0 ? rc : connect_all(run, &mine, err);
}

void er_ps_loop_leave(struct er_ps_loop *run)
{
    er_ps_client_close(ER_TAKE(run->client));
    er_train_leave(&run->train);
    if (run->holds)
        er_ps_keep_server(&run->keep, ER_TAKE(run->server), run->lineage);
    else
        er_ps_server_close(ER_TAKE(run->server));
    run->holds = false;
    free(ER_TAKE(run->slices));
    run->train.state = NULL;
    run->train.state_n = 0;
}

void er_ps_loop_close(struct er_ps_loop *run)
{
    er_train_close(&run->train);
    er_ps_keep_drop(&run->keep);
    close_memory(run);
}
