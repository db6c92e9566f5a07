/*
 * Jobs whose state is divided over the ranks (FSDP): workers and nodes are killed, join and leave,
 * and who stays goes on in its process, with the parameters of an undisturbed run, bit for bit.
 * With a second copy of each shard nothing is lost; without, a planned change loses nothing and a
 * dead rank costs what follows the newest checkpoint.
 */
#include <time.h>

#include "base/cleanup.h"
#include "runtime/comm.h"
#include "runtime/elastic.h"
#include "tests/integration/nodes_elastic.h"

#define PROGRAM "tests/integration/integration_nodes_shards"

/* ---- the worker on a machine on which others come first ---- */

int __real_er_vote(struct er_comm *comm, struct er_vote *inout, struct er_error *err);
int __wrap_er_vote(struct er_comm *comm, struct er_vote *inout, struct er_error *err);
int __real_er_rejoin(struct er_ctx *ctx, uint64_t timeout_us, struct er_error *err);
int __wrap_er_rejoin(struct er_ctx *ctx, uint64_t timeout_us, struct er_error *err);

/* WORKER_BLIND, a list of " place:step ": a vote that completed elsewhere, and is not seen to here,
 * since a peer was lost meanwhile. */
int __wrap_er_vote(struct er_comm *comm, struct er_vote *inout, struct er_error *err)
{
    static bool blinded; /* once: the step may be repeated */
    uint64_t step = inout->step;
    int rc = __real_er_vote(comm, inout, err);

    if (rc < 0 || blinded || !er_elastic_worker_listed("WORKER_BLIND", step))
        return rc;
    blinded = true;
    return er_error_set(err, ER_E_PEER_LOST, "as if a peer had been lost in the vote");
}

/* WORKER_LATE=1: the agent tells it that the generation is over before it leaves by itself. */
int __wrap_er_rejoin(struct er_ctx *ctx, uint64_t timeout_us, struct er_error *err)
{
    const struct timespec ts = {.tv_nsec = 2000 * 1000};

    while (getenv("WORKER_LATE") && er_notice(ctx) != ER_NOTICE_STOP)
        nanosleep(&ts, NULL);
    return __real_er_rejoin(ctx, timeout_us, err);
}

enum { PLAIN = 1, SHADOW = 2 };

static void begin(struct elastic_case *e, const char *nnodes, int per_node, int kind)
{
    char text[8];

    elastic_begin(e, PROGRAM, nnodes, per_node);
    snprintf(text, sizeof(text), "%d", kind);
    er_tap_require(setenv("WORKER_SHARDED", text, 1) == 0);
}

/* With a folder for checkpoints, and one every so many steps. */
static void save_every(struct elastic_case *e, const char *steps)
{
    e->saves = true;
    er_tap_require(setenv("WORKER_SAVE_STEPS", steps, 1) == 0);
}

static void expect_whole(struct elastic_case *e, int node, int lives)
{
    for (int l = 0; l < e->per_node; l++) {
        elastic_expect_lives(e, node, l, lives);
        er_tap_check(elastic_odd_steps(e, node, l) == 0);
    }
}

/* One of `nodes` x `per_node` workers kills itself at `where`; all others live on, and no step is
 * lost. */
static void lose_worker(int nodes, int per_node, int node, int local, const char *where)
{
    struct elastic_case e;
    char nnodes[16], list[64];

    er_tap_note("%d x %d, n%d-%d:%s", nodes, per_node, node, local, where);
    snprintf(nnodes, sizeof(nnodes), "%d", nodes);
    snprintf(list, sizeof(list), "n%d-%d:%s", node, local, where);
    begin(&e, nnodes, per_node, SHADOW);
    elastic_kill_at(&e, list);
    elastic_hurry(&e);
    for (int i = 0; i < nodes; i++)
        elastic_start(&e, i);
    if (!er_tap_check(nodes_end_with(&e.n, 0)))
        elastic_notes(&e);
    for (int i = 0; i < nodes; i++) {
        for (int l = 0; l < per_node; l++) {
            elastic_expect_lives(&e, i, l, i == node && l == local ? 2 : 1);
            er_tap_check(elastic_odd_steps(&e, i, l) == 0);
        }
        elastic_expect_exact(&e, i);
    }
    elastic_end(&e);
}

/* Points: 0 in backward, 1 before apply, 2 after it. */
static void a_worker_is_killed_anywhere_in_a_step(void)
{
    lose_worker(1, 3, 0, 1, "50:0");
    lose_worker(1, 3, 0, 0, "50:1");
    lose_worker(1, 3, 0, 2, "50:2");
    lose_worker(1, 3, 0, 1, "1:0");
}

static void a_worker_of_several_nodes_is_killed(void)
{
    lose_worker(2, 2, 1, 0, "50:1");
}

/* Agent and workers of one of three nodes: two in a smaller world. */
static void a_node_is_killed(void)
{
    struct elastic_case e;
    unsigned long long before;
    pid_t pid;

    begin(&e, "2:3", 1, SHADOW);
    for (int i = 0; i < 3; i++)
        elastic_start(&e, i);
    before = elastic_wait(&e, 1, 0, 5, 3);
    pid = elastic_pid(&e, 1, 0);
    kill(node_agent(&e.n, 1), SIGKILL);
    kill(pid, SIGKILL);
    er_tap_check(node_finish(&e.n, 1) == 70);
    node_forget(&e.n, 1);
    for (int i = 0; i < 3; i += 2)
        elastic_wait(&e, i, before, 6, 2);
    elastic_hurry(&e);
    er_tap_check(nodes_end_with(&e.n, 0));
    for (int i = 0; i < 3; i += 2) {
        expect_whole(&e, i, 1);
        elastic_expect_exact(&e, i);
    }
    elastic_end(&e);
}

/* Without a second copy a dead rank's shard is gone: all go back to the newest checkpoint, the
 * survivors in their processes; or to the first values where there is none. */
static void without_a_copy_the_newest_checkpoint_is_loaded(void)
{
    for (int saves = 1; saves >= 0; saves--) {
        struct elastic_case e;

        begin(&e, "1", 3, PLAIN);
        if (saves)
            save_every(&e, "20");
        elastic_kill_at(&e, "n0-1:50:0");
        elastic_hurry(&e);
        elastic_start(&e, 0);
        if (!er_tap_check(nodes_end_with(&e.n, 0)))
            elastic_notes(&e);
        for (int l = 0; l < 3; l++) {
            elastic_expect_lives(&e, 0, l, l == 1 ? 2 : 1);
            er_tap_check(elastic_odd_steps(&e, 0, l) == (l == 1 ? 0 : 1));
        }
        elastic_expect_exact(&e, 0);
        if (saves)
            elastic_audit(&e);
        elastic_end(&e);
    }
}

/* A shard, and the only copy of it. */
static void an_owner_and_its_keeper_are_killed_at_once(void)
{
    struct elastic_case e;

    begin(&e, "1", 4, SHADOW);
    save_every(&e, "20");
    elastic_kill_at(&e, "n0-1:50:1 n0-2:50:1");
    elastic_hurry(&e);
    elastic_start(&e, 0);
    if (!er_tap_check(nodes_end_with(&e.n, 0)))
        elastic_notes(&e);
    for (int l = 0; l < 4; l++)
        elastic_expect_lives(&e, 0, l, l == 1 || l == 2 ? 2 : 1);
    elastic_expect_exact(&e, 0);
    elastic_audit(&e);
    elastic_end(&e);
}

/* One of the two has not seen the last vote: it dies in the next generation, when it applies that
 * step, and finds the successor of the other one in its start-up. That one lives on, as do those
 * who were there before, though the agent is the first to know of the death. */
static void kill_one_after_the_other(int first, int second)
{
    struct elastic_case e;
    char list[64];

    er_tap_note("n0-%d, then n0-%d", first, second);
    begin(&e, "1", 4, SHADOW);
    save_every(&e, "20");
    snprintf(list, sizeof(list), "n0-%d:50:1 n0-%d:50:1", first, second);
    elastic_kill_at(&e, list);
    snprintf(list, sizeof(list), " n0-%d:50 ", second);
    er_tap_require(setenv("WORKER_BLIND", list, 1) == 0 && setenv("WORKER_LATE", "1", 1) == 0);
    elastic_hurry(&e);
    elastic_start(&e, 0);
    er_tap_check(nodes_end_with(&e.n, 0));
    for (int l = 0; l < 4; l++)
        elastic_expect_lives(&e, 0, l, l == first || l == second ? 2 : 1);
    elastic_expect_exact(&e, 0);
    elastic_audit(&e);
    elastic_end(&e);
}

static void two_are_killed_in_two_generations(void)
{
    kill_one_after_the_other(1, 2); /* a shard, and the only copy of it */
    kill_one_after_the_other(2, 1);
    kill_one_after_the_other(0, 2);
}

/* Two of four, neither of whom keeps the other's. */
static void two_are_killed_whose_shards_are_kept(void)
{
    struct elastic_case e;

    begin(&e, "1", 4, SHADOW);
    elastic_kill_at(&e, "n0-0:50:1 n0-2:50:1");
    elastic_hurry(&e);
    elastic_start(&e, 0);
    if (!er_tap_check(nodes_end_with(&e.n, 0)))
        elastic_notes(&e);
    for (int l = 0; l < 4; l++) {
        elastic_expect_lives(&e, 0, l, l % 2 ? 1 : 2);
        er_tap_check(elastic_odd_steps(&e, 0, l) == 0);
    }
    elastic_expect_exact(&e, 0);
    elastic_end(&e);
}

static void join_and_leave(int kind)
{
    struct elastic_case e;
    unsigned long long two, three;

    begin(&e, "2:3", 2, kind);
    e.last_call = NO_LAST_CALL;
    save_every(&e, "1000"); /* at the end alone */
    elastic_start(&e, 0);
    elastic_start(&e, 1);
    two = elastic_wait(&e, 0, 0, 10, 4);
    elastic_start(&e, 2);
    three = elastic_wait(&e, 2, two, 11, 6);
    kill(e.n.p[0].pid, SIGTERM);
    er_tap_check(node_finish(&e.n, 0) == 75);
    expect_whole(&e, 0, 1);
    node_forget(&e.n, 0);
    for (int i = 1; i < 3; i++)
        elastic_wait(&e, i, three, 12, 4);
    elastic_hurry(&e);
    if (!er_tap_check(nodes_end_with(&e.n, 0)))
        elastic_notes(&e);
    for (int i = 1; i < 3; i++) {
        expect_whole(&e, i, 1);
        elastic_expect_exact(&e, i);
    }
    elastic_audit(&e);
    elastic_end(&e);
}

static void nodes_join_and_leave_and_no_step_is_lost(void)
{
    join_and_leave(PLAIN);
}

static void the_same_with_second_copies(void)
{
    join_and_leave(SHADOW);
}

/* Down to a single rank, which takes all shards, and up again. */
static void a_job_shrinks_to_one_rank_and_grows(void)
{
    struct elastic_case e;
    unsigned long long three, one;

    begin(&e, "1:3", 1, PLAIN);
    for (int i = 0; i < 3; i++)
        elastic_start(&e, i);
    three = elastic_wait(&e, 0, 0, 10, 3);
    elastic_ctl(&e, "scale", "1:1");
    one = elastic_wait(&e, 0, three, 11, 1);
    elastic_ctl(&e, "scale", "1:3");
    elastic_wait(&e, 0, one, 12, 3);
    elastic_hurry(&e);
    if (!er_tap_check(nodes_end_with(&e.n, 0)))
        elastic_notes(&e);
    expect_whole(&e, 0, 1);
    for (int i = 0; i < 3; i++)
        elastic_expect_exact(&e, i);
    elastic_end(&e);
}

/* What was saved behind a change of the division is whole, and another run at another size goes on
 * from there. */
static void a_checkpoint_behind_a_change_loads(void)
{
    struct elastic_case e;
    unsigned long long three, two;

    begin(&e, "1:3", 1, SHADOW);
    save_every(&e, "7");
    for (int i = 0; i < 3; i++)
        elastic_start(&e, i);
    three = elastic_wait(&e, 0, 0, 10, 3);
    kill(e.n.p[2].pid, SIGTERM);
    er_tap_check(node_finish(&e.n, 2) == 75);
    node_forget(&e.n, 2);
    two = elastic_wait(&e, 0, three, 30, 2);
    for (int i = 0; i < 2; i++)
        kill(elastic_pid(&e, i, 0), SIGKILL); /* all shards and all copies */
    elastic_wait(&e, 0, two, 31, 2);
    elastic_hurry(&e);
    if (!er_tap_check(nodes_end_with(&e.n, 0)))
        elastic_notes(&e);
    for (int i = 0; i < 2; i++) {
        elastic_expect_lives(&e, i, 0, 2);
        elastic_expect_exact(&e, i);
    }
    elastic_audit(&e);
    elastic_end(&e);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"a_worker_is_killed_anywhere_in_a_step", a_worker_is_killed_anywhere_in_a_step, 0},
        {"a_worker_of_several_nodes_is_killed", a_worker_of_several_nodes_is_killed, 0},
        {"a_node_is_killed", a_node_is_killed, 0},
        {"without_a_copy_the_newest_checkpoint_is_loaded",
         without_a_copy_the_newest_checkpoint_is_loaded, 0},
        {"an_owner_and_its_keeper_are_killed_at_once", an_owner_and_its_keeper_are_killed_at_once,
         0},
        {"two_are_killed_in_two_generations", two_are_killed_in_two_generations, 0},
        {"two_are_killed_whose_shards_are_kept", two_are_killed_whose_shards_are_kept, 0},
        {"nodes_join_and_leave_and_no_step_is_lost", nodes_join_and_leave_and_no_step_is_lost, 0},
        {"the_same_with_second_copies", the_same_with_second_copies, 0},
        {"a_job_shrinks_to_one_rank_and_grows", a_job_shrinks_to_one_rank_and_grows, 0},
        {"a_checkpoint_behind_a_change_loads", a_checkpoint_behind_a_change_loads, 0},
    };

    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        return er_elastic_worker();
    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
