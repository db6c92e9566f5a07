/*
 * The state of parameter servers over a change of the membership, on real communicators: a push
 * that was in flight counts on all servers or on none, wherever it was left and whoever stopped
 * first; and parts come to any other number of servers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/pool.h"
#include "tests/lib/ps_raw.h"
#include "tests/lib/ranks.h"
#include "trainer/ps_client.h"
#include "trainer/ps_keep.h"
#include "trainer/sync.h"

enum { RANKS = 3, PARTS = 4, STEPS = 12, ELEMENTS = 200, DONE = 5 /* parts, before the change */ };

struct test {
    uint64_t staleness;
    int servers, then, size; /* before and after; ranks after it */
    unsigned commits;        /* servers that are told that the last push counts */
    unsigned early;          /* servers that stop before its worker is gone */
    unsigned leaves;         /* ranks that give their part away and go */
    int rcs[RANKS];
    uint64_t counted[RANKS], dropped[RANKS], updates[RANKS], steps[RANKS];
    float value[ELEMENTS + 64];
    bool ok[RANKS];
};

static struct test *test; /* shared by the ranks */

struct rank {
    struct er_ctx *ctx;
    struct er_comm *comm;
    int index;
    struct er_flat_param table[1];
    struct er_flat flat;
    struct er_pool *pool;
    struct er_ps_server *server;
    struct er_host_record records[RANKS];
    struct er_ps_keep keep;
};

static void must(int rc, const struct er_error *err)
{
    if (rc != 0)
        er_tap_note("%d: %s", rc, err->text);
    er_tap_require(rc == 0);
}

static void open_comm(struct rank *r)
{
    struct er_error err = ER_ERROR_INIT;

    must(er_comm_open(&r->comm, r->ctx, NULL, &err), &err);
    must(er_comm_wait_ready(r->comm, &err), &err);
    r->index = er_comm_rank(r->comm);
}

/* Momentum is a state that moves along; each part takes 1 / PARTS of a step from every value. */
static struct er_ps_server_opts options(struct rank *r, int servers)
{
    return (struct er_ps_server_opts){
        .index = r->index,
        .servers = servers,
        .flat = &r->flat,
        .optim = {.kind = ER_OPTIM_SGD},
        .schedule = {.kind = ER_SCHEDULE_CONSTANT, .lr = 1},
        .parts = PARTS,
        .steps = STEPS,
        .staleness = test->staleness,
        .workers = (uint32_t)er_comm_size(r->comm),
    };
}

static void open_rank(struct rank *r, struct er_ctx *ctx)
{
    struct er_shape shape = er_shape_1d(ELEMENTS);
    struct er_error err = ER_ERROR_INIT;

    memset(r, 0, sizeof(*r));
    r->ctx = ctx;
    r->keep.blocks_n = 2;
    er_flat_init(&r->flat, r->table, 1, er_optim_state_names(ER_OPTIM_SGD), 1);
    must(er_flat_add(&r->flat, "w", &shape, NULL, &err), &err);
    must(er_pool_new(&r->pool, er_flat_bytes(&r->flat), &err), &err);
    er_flat_bind(&r->flat, er_pool_alloc(r->pool, er_flat_bytes(&r->flat), ER_FLAT_ALIGN));
    open_comm(r);
}

static void gather_records(struct rank *r, const struct er_host_record *mine)
{
    struct er_error err = ER_ERROR_INIT;

    must(er_sync_gather(r->comm, mine, sizeof(*mine), r->records, &err), &err);
}

static void first_generation(struct rank *r)
{
    const struct er_ps_server_opts opts = options(r, test->servers);
    struct er_host_record mine = {0};
    struct er_error err = ER_ERROR_INIT;

    if (r->index < test->servers)
        must(er_ps_server_open(&r->server, &opts, &mine, &err), &err);
    gather_records(r, &mine);
    if (r->server)
        must(er_ps_server_run(r->server, r->records, 0, &err), &err);
}

/* Takes and pushes what server 0 gives, up to `parts` of it; with `all`, until there is no more. */
static void push_parts(struct rank *r, int servers, uint64_t parts, bool all)
{
    static float values[ELEMENTS + 64], ones[ELEMENTS + 64];
    enum er_ps_answer answer = ER_PS_PART;
    struct er_ps_client *client;
    struct er_error err = ER_ERROR_INIT;
    uint64_t number = 0;

    for (size_t i = 0; i < ELEMENTS; i++)
        ones[i] = 1;
    must(er_ps_client_open(&client, NULL, (uint32_t)r->index, &r->flat, r->records, servers, &err),
         &err);
    for (uint64_t i = 0; answer != ER_PS_DONE && (all || i < parts); i++) {
        must(er_ps_client_lease(client, &answer, &number, &err), &err);
        if (answer != ER_PS_PART)
            continue;
        must(er_ps_client_pull(client, values, 0, &err), &err);
        must(er_ps_client_stage(client, ones, &(struct er_ps_push){number, 0, 1}, &err), &err);
        must(er_ps_client_commit(client, &err), &err);
    }
    if (all)
        must(er_ps_client_pull(client, test->value, STEPS, &err), &err);
    er_ps_client_close(client);
}

/* Rank 0 leaves its last push half done, with connections open. */
static void leave_a_push(struct rank *r, int fds[RANKS])
{
    for (int i = 0; i < test->servers; i++) {
        fds[i] = ps_raw_open(&r->records[i], &r->flat, 7, 42);
        ps_raw_hear(fds[i], ER_PS_FRAME_HELLO);
    }
    ps_raw_say(fds[0], ER_PS_FRAME_LEASE, 0);
    er_tap_require(ps_raw_hear(fds[0], ER_PS_FRAME_LEASE).a[1] == DONE);
    for (int i = 0; i < test->servers; i++) {
        ps_raw_stage(fds[i], 1, DONE, er_ps_extent_of(r->flat.total, i, test->servers).count);
        ps_raw_hear(fds[i], ER_PS_FRAME_STAGE);
    }
    for (int i = 0; i < test->servers; i++) {
        if (!(test->commits >> i & 1))
            continue;
        ps_raw_say(fds[i], ER_PS_FRAME_COMMIT, 1);
        ps_raw_hear(fds[i], ER_PS_FRAME_COMMIT);
    }
}

static void barrier(struct rank *r)
{
    struct er_error err = ER_ERROR_INIT;

    must(er_comm_barrier(r->comm, &err), &err);
}

static void keep_server(struct rank *r)
{
    if (r->server)
        er_ps_keep_server(&r->keep, ER_TAKE(r->server), 1);
}

/* All leave, in the order that the test wants. */
static void end_generation(struct rank *r, int fds[RANKS])
{
    if (test->early >> r->index & 1)
        keep_server(r);
    barrier(r);
    for (int i = 0; i < RANKS && fds[i] >= 0; i++)
        close(fds[i]);
    barrier(r);
    keep_server(r);
    barrier(r);
    er_comm_abort(ER_TAKE(r->comm));
}

static int plan(struct rank *r, struct er_ps_held held[RANKS], struct er_error *err)
{
    const struct er_ps_held mine = er_ps_keep_held(&r->keep);

    must(er_sync_gather(r->comm, &mine, sizeof(mine), held, err), err);
    return er_ps_plan_source(held, er_comm_size(r->comm), r->flat.total);
}

/* The servers of the next generation have what the ranks hold, and run. */
static int next_generation(struct rank *r)
{
    struct er_ps_server_opts opts = options(r, test->then);
    struct er_host_record mine = {0};
    struct er_ps_held held[RANKS];
    struct er_ps_progress *at = calloc(1, sizeof(*at));
    struct er_error err = ER_ERROR_INIT;
    int rank = r->index, source, rc;

    er_tap_require(at);
    must(er_ps_keep_settle(&r->keep, r->comm, &test->counted[rank], &test->dropped[rank], &err),
         &err);
    source = plan(r, held, &err);
    er_tap_require(source >= 0);
    must(er_ps_keep_share_progress(&r->keep, r->comm, source, at, &err), &err);
    test->updates[rank] = at->updates;
    test->steps[rank] = at->steps;
    opts.bare =
        rank < test->then && er_ps_keep_stands(&r->keep, &held[source],
                                               er_ps_extent_of(r->flat.total, rank, test->then));
    if (rank < test->then)
        must(er_ps_server_open(&r->server, &opts, &mine, &err), &err);
    rc = er_ps_keep_bring(&r->keep, r->comm, held, source, r->flat.total, test->then, r->server,
                          &err);
    if (rc == 0) {
        barrier(r);
        er_ps_keep_switch(&r->keep, r->server);
        if (r->server)
            must(er_ps_server_place(r->server, at, &err), &err);
        gather_records(r, &mine);
        if (r->server)
            must(er_ps_server_start(r->server, r->records, &err), &err);
    }
    free(at);
    return rc;
}

static void close_rank(struct rank *r)
{
    er_comm_abort(r->comm);
    er_ps_server_close(r->server);
    er_ps_keep_drop(&r->keep);
    er_pool_free(r->pool);
}

/* This rank's number among those who stay; -1: it goes. */
static int next_rank(int rank)
{
    int next = 0;

    for (int i = 0; i < rank; i++)
        next += !(test->leaves >> i & 1);
    return test->leaves >> rank & 1 || next >= test->size ? -1 : next;
}

static void hand_over(struct rank *r)
{
    uint8_t stays[RANKS];
    int from[RANKS], to[RANKS], n;
    struct er_error err = ER_ERROR_INIT;

    for (int i = 0; i < RANKS; i++)
        stays[i] = !(test->leaves >> i & 1);
    n = er_ps_plan_takers(stays, RANKS, test->servers, from, to);
    er_tap_require(n >= 0);
    must(er_ps_keep_hand_over(&r->keep, r->comm, r->server, 1, from, to, n, r->flat.total,
                              test->servers, &err),
         &err);
}

/* DONE parts, then one that is left half done; or a whole number of steps, and ranks that leave. */
static int rank_main(struct er_ctx *ctx, void *user)
{
    static struct rank r;
    int fds[RANKS] = {-1, -1, -1}, next;

    open_rank(&r, ctx);
    next = next_rank(r.index);
    first_generation(&r);
    if (r.index == 0)
        push_parts(&r, test->servers, test->leaves ? 2 * PARTS : DONE, false);
    if (r.index == 0 && !test->leaves)
        leave_a_push(&r, fds);
    barrier(&r);
    if (test->leaves)
        hand_over(&r);
    end_generation(&r, fds);
    if (next >= 0) {
        er_fake_move(ctx, next, test->size, 2);
        open_comm(&r);
        test->rcs[next] = next_generation(&r);
        if (test->rcs[next] == 0 && next == 0)
            push_parts(&r, test->then, 0, true);
        if (test->rcs[next] == 0)
            barrier(&r);
        test->ok[next] = true;
    }
    close_rank(&r);
    return 0;
}

static void set_up(uint64_t staleness, int servers, int then, int size)
{
    test = test ? test : er_ranks_shared(sizeof(*test));
    memset(test, 0, sizeof(*test));
    test->staleness = staleness;
    test->servers = servers;
    test->then = then;
    test->size = size;
}

/* Every value has had every part of every step once. */
static bool each_part_once(void)
{
    for (size_t i = 0; i < ELEMENTS; i++) {
        if (test->value[i] != -(float)STEPS) {
            er_tap_note("value %zu: %g, expected %d", i, (double)test->value[i], -STEPS);
            return false;
        }
    }
    return true;
}

static void go(void)
{
    int status[RANKS];
    bool good = true;

    er_ranks_run(RANKS, rank_main, NULL, status);
    for (int i = 0; i < RANKS; i++)
        good = good && status[i] == 0;
    for (int i = 0; i < test->size; i++)
        good = good && test->ok[i] && test->rcs[i] == 0 && test->updates[i] == test->updates[0] &&
               test->steps[i] == test->steps[0];
    if (!er_tap_check(good && each_part_once()))
        er_tap_note("staleness %lu, servers %d then %d of %d ranks, commits %x, early %x, leaves "
                    "%x: %lu updates, %lu steps",
                    (unsigned long)test->staleness, test->servers, test->then, test->size,
                    test->commits, test->early, test->leaves, (unsigned long)test->updates[0],
                    (unsigned long)test->steps[0]);
}

/* In lock-step the two parts of a step that is not whole are not in the state, counted or not. */
static void expect_decision(void)
{
    uint64_t want = test->staleness == 0 ? DONE / PARTS : DONE + (test->commits != 0);

    if (!er_tap_check(test->updates[0] == want))
        er_tap_note("%lu updates, expected %lu", (unsigned long)test->updates[0],
                    (unsigned long)want);
}

static void half_done(uint64_t staleness, int most)
{
    for (int servers = 1; servers <= most; servers++) {
        for (unsigned commits = 0; commits < 1u << servers; commits++) {
            for (unsigned early = 0; early < 1u << servers; early++) {
                set_up(staleness, servers, 1 + (int)(commits + early) % RANKS, RANKS);
                test->commits = commits;
                test->early = early;
                go();
                expect_decision();
            }
        }
    }
}

static void a_push_in_flight_counts_on_all_servers_or_on_none(void)
{
    half_done(ER_PS_UNBOUNDED, RANKS);
}

static void in_lock_step_the_step_in_flight_is_done_again(void)
{
    half_done(0, 2);
}

/* Any servers leave, any number of servers follows. */
static void servers_that_leave_give_their_parts_to_those_who_stay(void)
{
    for (int servers = 1; servers <= RANKS; servers++) {
        for (unsigned leaves = 1; leaves < (1u << RANKS) - 1; leaves++) {
            int size = RANKS - __builtin_popcount(leaves);

            for (int then = 1; then <= size; then++) {
                set_up(leaves % 2 ? 0 : 3, servers, then, size);
                test->leaves = leaves;
                go();
                er_tap_check(test->steps[0] == 2);
            }
        }
    }
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"a_push_in_flight_counts_on_all_servers_or_on_none",
         a_push_in_flight_counts_on_all_servers_or_on_none, 0},
        {"in_lock_step_the_step_in_flight_is_done_again",
         in_lock_step_the_step_in_flight_is_done_again, 0},
        {"servers_that_leave_give_their_parts_to_those_who_stay",
         servers_that_leave_give_their_parts_to_those_who_stay, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
