/* Commits that are asked for, and whose outcome is told later: nobody stands still for them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "tests/lib/ckpt_world.h"
#include "tests/lib/tap.h"

enum { PATIENCE = 20 };

static struct er_cw world;
static struct er_cw_rank *const ranks = world.ranks;

static void begin(void)
{
    memset(&world, 0, sizeof(world));
    world.later = true;
    world.step = 10;
    world.seed = 3;
    er_cw_begin(&world);
}

static void end(void)
{
    er_test_rmtree(world.dir);
}

static void start(struct er_cw_rank *r)
{
    const struct er_meta meta = er_cw_meta(r);

    er_cw_fill(r, world.seed);
    r->rc = er_ckpt_begin(r->ckpt, r->slices, 3, &meta, &r->err);
    er_tap_check(r->rc == 0 && er_ckpt_before_apply(r->ckpt, &r->err) == 0);
}

/* Steps until a commit has been asked for: each looks as a step does, and none waits. */
static void step_until_asked(struct er_cw_rank *r)
{
    do {
        if (er_cw_all(r, er_ckpt_local_done(r->ckpt)))
            er_tap_require(er_ckpt_advance(r->ckpt, &r->err) == 1);
    } while (!er_cw_all(r, r->rank != 0 || r->asked != 0));
    er_cw_all(r, true);
}

/* The one on whom it depends lets it be told. */
static void release(struct er_cw_rank *r)
{
    if (r->rank == 0)
        world.hold = false;
    er_cw_all(r, true);
}

static enum er_ckpt_event_kind take_event(struct er_cw_rank *r)
{
    struct er_ckpt_event event;

    er_ckpt_poll(r->ckpt, &event);
    return event.kind;
}

static void step_on(struct er_cw_rank *r)
{
    const struct er_meta meta = er_cw_meta(r);

    start(r);
    step_until_asked(r);
    for (int i = 0; i < PATIENCE; i++) {
        bool done = er_ckpt_local_done(r->ckpt);

        er_tap_check(done == (r->rank != 0));
        er_tap_check(!er_cw_all(r, done));
    }
    er_tap_check(er_ckpt_begin(r->ckpt, r->slices, 3, &meta, NULL) == ER_CKPT_BUSY);
    er_tap_check(take_event(r) == ER_CKPT_NOTHING);
    release(r);
    er_tap_check(er_cw_all(r, er_ckpt_local_done(r->ckpt)));
    r->rc = er_ckpt_advance(r->ckpt, &r->err);
    er_tap_check(!er_ckpt_in_flight(r->ckpt));
    er_tap_check(take_event(r) == (r->rc == 0 ? ER_CKPT_COMMITTED : ER_CKPT_FAILED));
}

static void steps_go_on_while_the_record_does_not_answer(void)
{
    for (int size = 1; size <= 5; size += 2) {
        float seed = 0;

        begin();
        world.hold = true;
        er_cw_run(&world, size, step_on);
        er_tap_check(ranks[0].rc == 0 && ranks[size - 1].rc == 0 && world.commits == 1);
        er_tap_check(er_cw_load(&world, 2, &seed) == 0 && seed == 3);
        end();
    }
}

static void what_is_refused_later_leaves_no_trace(void)
{
    begin();
    world.hold = true;
    world.commit_rc = ER_E_STALE;
    er_cw_run(&world, 3, step_on);
    for (int i = 0; i < 3; i++)
        er_tap_check(ranks[i].rc == ER_E_STALE && strstr(ranks[i].err.text, "step 10 refused"));
    er_tap_check(er_cw_listed(&world) == 0);
    end();
}

static void what_fails_later_may_be_recorded_and_stays(void)
{
    static const int codes[] = {-EIO, ER_E_AMBIGUOUS, ER_E_PEER_LOST};

    for (size_t i = 0; i < ER_ARRAY_N(codes); i++) {
        begin();
        world.hold = true;
        world.commit_rc = codes[i];
        er_cw_run(&world, 2, step_on);
        er_tap_check(ranks[1].rc == codes[i] && strstr(ranks[1].err.text, "unknown, it stays"));
        er_tap_check(er_cw_listed(&world) == 1);
        world.commit_rc = 0; /* and nothing is in the way of the next one */
        world.step = 20;
        er_tap_check(er_cw_save(&world, 2, 20, 4) == 0 && er_cw_listed(&world) == 2);
        end();
    }
}

static void wait_for_it(struct er_cw_rank *r)
{
    start(r);
    step_until_asked(r);
    while (!er_cw_all(r, er_ckpt_local_done(r->ckpt)))
        ;
    r->rc = er_ckpt_advance(r->ckpt, &r->err);
}

static void a_record_that_never_answers_fails_the_checkpoint(void)
{
    begin();
    world.hold = true;
    world.opts.deadline_us = 300 * ER_US_PER_MS;
    er_cw_run(&world, 3, wait_for_it);
    for (int i = 0; i < 3; i++)
        er_tap_check(ranks[i].rc == -ETIMEDOUT && strstr(ranks[i].err.text, "has not answered"));
    er_tap_check(er_cw_listed(&world) == 1);
    end();
}

/* Whoever saves and waits, waits for this too. */
static void a_save_that_is_waited_for_ends_with_its_outcome(void)
{
    begin();
    er_tap_check(er_cw_save(&world, 3, 10, 3) == 0 && world.commits == 1);
    world.opts.deadline_us = 300 * ER_US_PER_MS;
    world.hold = true;
    er_tap_check(er_cw_save(&world, 3, 20, 4) == -ETIMEDOUT);
    world.hold = false;
    world.commit_rc = ER_E_STALE;
    er_tap_check(er_cw_save(&world, 3, 30, 5) == ER_E_STALE && er_cw_listed(&world) == 2);
    end();
}

static void part(struct er_cw_rank *r)
{
    start(r);
    er_tap_check(er_ckpt_settle(r->ckpt, &r->err) == 1); /* nothing to wait for yet */
    step_until_asked(r);
    release(r);
    r->rc = er_ckpt_settle(r->ckpt, &r->err);
    er_tap_check(take_event(r) == ER_CKPT_COMMITTED);
    er_tap_check(er_ckpt_settle(r->ckpt, &r->err) == 0);
}

static void ranks_that_part_settle_what_was_asked_for(void)
{
    begin();
    world.hold = true;
    er_cw_run(&world, 3, part);
    er_tap_check(ranks[0].rc == 0 && world.commits == 1);
    end();
}

static void ask_and_go(struct er_cw_rank *r)
{
    start(r);
    step_until_asked(r);
}

/* It may be recorded at any time after. */
static void what_was_asked_for_and_left_stays(void)
{
    float seed = 0;

    begin();
    world.hold = true;
    er_cw_run(&world, 3, ask_and_go);
    er_tap_check(er_cw_listed(&world) == 1);
    er_tap_check(er_cw_load(&world, 1, &seed) == 0 && seed == 3);
    end();
}

/* ---- the next generation ---- */

static int regroup(struct er_cw_rank *r)
{
    const struct er_ckpt_group group = er_cw_group(r);

    return er_ckpt_regroup(r->ckpt, &group, 2, &r->err);
}

static void ask_again(struct er_cw_rank *r)
{
    start(r);
    step_until_asked(r);
    er_tap_check(regroup(r) == 0 && er_ckpt_in_flight(r->ckpt));
    release(r);
    r->rc = er_ckpt_finish(r->ckpt, &r->err);
    er_tap_check(take_event(r) == ER_CKPT_COMMITTED);
}

static void the_next_generation_asks_for_itself(void)
{
    begin();
    world.hold = true;
    er_cw_run(&world, 3, ask_again);
    er_tap_check(ranks[0].rc == 0 && ranks[2].rc == 0 && world.commits == 2);
    er_tap_check(er_cw_listed(&world) == 1);
    end();
}

static void learn_then_regroup(struct er_cw_rank *r)
{
    start(r);
    step_until_asked(r);
    release(r); /* answered, and the ranks come to hear of it in the next generation only */
    er_tap_check(regroup(r) == 0);
    er_tap_check(!er_ckpt_in_flight(r->ckpt));
    r->rc = er_cw_all(r, take_event(r) == ER_CKPT_COMMITTED) ? 0 : -1;
}

static void what_was_recorded_before_is_not_asked_for_again(void)
{
    begin();
    world.hold = true;
    er_cw_run(&world, 3, learn_then_regroup);
    er_tap_check(ranks[0].rc == 0 && world.commits == 1 && er_cw_listed(&world) == 1);
    end();
}

static void refused_then_regroup(struct er_cw_rank *r)
{
    start(r);
    step_until_asked(r);
    release(r);
    (void)er_ckpt_local_done(r->ckpt); /* heard: too late */
    er_cw_all(r, true);
    world.commit_rc = 0;
    er_tap_check(regroup(r) == 0 && er_ckpt_in_flight(r->ckpt));
    r->rc = er_ckpt_finish(r->ckpt, &r->err);
}

static void what_came_too_late_is_asked_for_by_the_next_generation(void)
{
    begin();
    world.hold = true;
    world.commit_rc = ER_E_STALE;
    er_cw_run(&world, 3, refused_then_regroup);
    er_tap_check(ranks[0].rc == 0 && world.commits == 2 && er_cw_listed(&world) == 1);
    end();
}

/* ---- a rank leaves ---- */

enum { SIZE = 3 };

enum leave_at { WRITTEN, PUBLISHED, ASKED_FOR, LEAVE_COUNT };

static struct leave {
    int rank;
    enum leave_at at;
    pthread_barrier_t rest;
    char blobs[SIZE][4096];
} leave;

static int rank_then(int rank)
{
    return rank - (rank > leave.rank);
}

static int gather_rest(void *user, const void *mine, size_t n, void *all, struct er_error *err)
{
    struct er_cw_rank *r = user;

    (void)err;
    er_tap_require(n <= sizeof(leave.blobs[0]));
    memcpy(leave.blobs[rank_then(r->rank)], mine, n);
    pthread_barrier_wait(&leave.rest);
    for (int i = 0; i < SIZE - 1; i++)
        memcpy((char *)all + (size_t)i * n, leave.blobs[i], n);
    pthread_barrier_wait(&leave.rest);
    return 0;
}

static void step_until(struct er_cw_rank *r, enum leave_at at)
{
    for (int stage = WRITTEN; stage < ASKED_FOR; stage++) {
        while (!er_cw_all(r, er_ckpt_local_done(r->ckpt)))
            ;
        if (stage == (int)at)
            return;
        er_tap_check(er_ckpt_advance(r->ckpt, &r->err) == 1);
    }
    er_cw_all(r, true);
}

/* One goes, in order, and is gone before the others go on without it. */
static void one_leaves(struct er_cw_rank *r)
{
    struct er_ckpt_group group = er_cw_group(r);

    start(r);
    step_until(r, leave.at);
    if (r->rank == leave.rank) {
        er_ckpt_close(r->ckpt);
        r->ckpt = NULL;
    }
    release(r);
    if (r->rank == leave.rank)
        return;
    group.rank = rank_then(r->rank);
    group.size = SIZE - 1;
    group.gather = gather_rest;
    er_tap_check(er_ckpt_regroup(r->ckpt, &group, 2, &r->err) == 0);
    r->rc = er_ckpt_finish(r->ckpt, &r->err);
}

/* What it wrote is the others', who may name it in the record at any time. Only what it has made
 * visible itself cannot be committed any more. */
static void who_leaves_takes_nothing_away(void)
{
    pthread_barrier_init(&leave.rest, NULL, SIZE - 1);
    for (int i = 0; i < SIZE * LEAVE_COUNT; i++) {
        struct er_cw_rank *stays;
        bool gone_with_it;

        leave.rank = i % SIZE;
        leave.at = (enum leave_at)(i / SIZE);
        gone_with_it = leave.rank == 0 && leave.at != WRITTEN;
        stays = &ranks[leave.rank == 0 ? 1 : 0];
        begin();
        world.hold = true;
        er_cw_run(&world, SIZE, one_leaves);
        if (!er_tap_check((stays->rc == 0) == !gone_with_it))
            er_tap_note("rank %d left at %d: %s", leave.rank, (int)leave.at, stays->err.text);
        er_tap_check(er_cw_listed(&world) == 1 && er_ckpt_verify(world.dir, 10, NULL) == 0);
        end();
    }
    pthread_barrier_destroy(&leave.rest);
}

/* As after the loss of a rank: its successor has no part in what is on its way. */
static void one_is_replaced(struct er_cw_rank *r)
{
    struct er_ckpt_group group = er_cw_group(r);

    start(r);
    step_until(r, PUBLISHED);
    if (r->rank == SIZE - 1) {
        er_ckpt_close(r->ckpt);
        er_tap_check(er_ckpt_open(&r->ckpt, world.dir, &group, &world.opts, &r->err) == 0);
    }
    er_tap_check(regroup(r) == 0 && !er_ckpt_in_flight(r->ckpt));
    er_cw_fill(r, -5);
    r->rc = er_ckpt_load(r->ckpt, r->slices, 3, &r->meta, er_cw_skip, r, &r->err);
    er_tap_check(r->rc == 0 && r->count == 3 && er_cw_is_whole(r) && r->skipped == 0);
}

/* Who takes a checkpoint back that is whole takes it from those who load it at that moment. */
static void what_was_published_is_there_for_who_must_go_back(void)
{
    begin();
    er_cw_run(&world, SIZE, one_is_replaced);
    er_tap_check(er_cw_listed(&world) == 1);
    end();
}

/* Who writes the same step again, in a later generation. */
static void a_newer_one_writes(struct er_cw_rank *r)
{
    const struct er_ckpt_opts opts = {.generation = 2};
    const struct er_meta meta = {.applied = 10, .generation = 2, .first_step = 1};
    struct er_ckpt *newer = NULL;

    start(r);
    step_until_asked(r);
    er_cw_fill(r, 4);
    er_tap_check(er_ckpt_open(&newer, world.dir, NULL, &opts, &r->err) == 0 &&
                 er_ckpt_save(newer, r->slices, 3, &meta, &r->err) == 0);
    er_ckpt_close(newer);
    release(r);
    r->rc = er_ckpt_finish(r->ckpt, &r->err);
}

static void who_comes_back_withdraws_nothing_of_a_newer_generation(void)
{
    float seed = 0;

    begin();
    world.hold = true;
    world.commit_rc = ER_E_STALE;
    er_cw_run(&world, 1, a_newer_one_writes);
    er_tap_check(ranks[0].rc == ER_E_STALE);
    world.opts.generation = 3;
    er_tap_check(er_cw_load(&world, 1, &seed) == 0 && seed == 4);
    end();
}

/* However it came to that. */
static void lose_a_file(struct er_cw_rank *r)
{
    start(r);
    step_until(r, WRITTEN);
    if (r->rank == 0)
        er_tap_check(er_cw_remove_file(&world, "shard-1-of-3.safetensors") == 1);
    er_cw_all(r, true);
    r->rc = er_ckpt_finish(r->ckpt, &r->err);
}

static void what_lacks_a_file_is_not_committed(void)
{
    begin();
    er_cw_run(&world, SIZE, lose_a_file);
    for (int i = 0; i < SIZE; i++)
        er_tap_check(ranks[i].rc == -ENOENT && strstr(ranks[i].err.text, "shard-1-of-3"));
    er_tap_check(world.commits == 0 && er_cw_listed(&world) == 0);
    end();
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"steps_go_on_while_the_record_does_not_answer",
         steps_go_on_while_the_record_does_not_answer, 0},
        {"what_is_refused_later_leaves_no_trace", what_is_refused_later_leaves_no_trace, 0},
        {"what_fails_later_may_be_recorded_and_stays", what_fails_later_may_be_recorded_and_stays,
         0},
        {"a_record_that_never_answers_fails_the_checkpoint",
         a_record_that_never_answers_fails_the_checkpoint, 0},
        {"a_save_that_is_waited_for_ends_with_its_outcome",
         a_save_that_is_waited_for_ends_with_its_outcome, 0},
        {"ranks_that_part_settle_what_was_asked_for", ranks_that_part_settle_what_was_asked_for, 0},
        {"what_was_asked_for_and_left_stays", what_was_asked_for_and_left_stays, 0},
        {"the_next_generation_asks_for_itself", the_next_generation_asks_for_itself, 0},
        {"what_was_recorded_before_is_not_asked_for_again",
         what_was_recorded_before_is_not_asked_for_again, 0},
        {"what_came_too_late_is_asked_for_by_the_next_generation",
         what_came_too_late_is_asked_for_by_the_next_generation, 0},
        {"who_leaves_takes_nothing_away", who_leaves_takes_nothing_away, 0},
        {"what_was_published_is_there_for_who_must_go_back",
         what_was_published_is_there_for_who_must_go_back, 0},
        {"who_comes_back_withdraws_nothing_of_a_newer_generation",
         who_comes_back_withdraws_nothing_of_a_newer_generation, 0},
        {"what_lacks_a_file_is_not_committed", what_lacks_a_file_is_not_committed, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
