/* Workers and nodes of a job on several nodes are killed, and all others go on in process: same
 * pids, no checkpoint, and the parameters of an undisturbed run, bit for bit. */
#include "tests/integration/nodes_elastic.h"

#define PROGRAM "tests/integration/integration_nodes_recover"

/* One of `nodes` x `per_node` workers kills itself at `where`; all others live on. */
static void lose_worker(int nodes, int per_node, int node, int local, const char *where)
{
    struct elastic_case e;
    char nnodes[16], list[64];

    snprintf(nnodes, sizeof(nnodes), "%d", nodes);
    snprintf(list, sizeof(list), "n%d-%d:%s", node, local, where);
    elastic_begin(&e, PROGRAM, nnodes, per_node);
    elastic_kill_at(&e, list);
    elastic_hurry(&e);
    elastic_start_all(&e, nodes);
    elastic_judge(&e);
    for (int i = 0; i < nodes; i++) {
        for (int l = 0; l < per_node; l++)
            elastic_expect_lives(&e, i, l, i == node && l == local ? 2 : 1);
    }
    elastic_end(&e);
}

/* Points: 0 in backward, 1 before apply, 2 after it. */
static void one_worker_of_a_node_is_killed(void)
{
    lose_worker(2, 2, 1, 0, "50:0");
}

static void the_only_worker_of_a_node_is_killed(void)
{
    lose_worker(3, 1, 1, 0, "50:1");
}

static void rank_0_on_the_leaders_node_is_killed(void)
{
    lose_worker(2, 2, 0, 0, "50:2");
}

/* Of three nodes one is killed, agent and workers; the two others keep their memory. `victim` may
 * be the leader, and holds rank 0 or not. */
static void lose_node(int victim)
{
    struct elastic_case e;
    unsigned long long before;

    elastic_begin(&e, PROGRAM, "2:3", 1);
    elastic_start_all(&e, 3);
    before = elastic_wait(&e, victim, 0, 5, 3);
    elastic_lose(&e, victim);
    for (int i = 0; i < 3; i++) {
        if (i != victim)
            elastic_wait(&e, i, before, 6, 2);
    }
    elastic_judge(&e);
    for (int i = 0; i < 3; i++) {
        if (i != victim)
            elastic_expect_lives(&e, i, 0, 1);
    }
    elastic_end(&e);
}

static void a_node_is_killed(void)
{
    lose_node(2);
}

static void the_first_node_is_killed(void)
{
    lose_node(0);
}

/* Agent, guard and worker at once: only the lease's end tells of it. */
static void a_node_vanishes(void)
{
    struct elastic_case e;
    unsigned long long before;
    pid_t agent, worker;

    elastic_begin(&e, PROGRAM, "2:3", 2);
    for (int i = 0; i < 3; i++)
        elastic_start_with(&e, i, SHORT_LEASE);
    before = elastic_wait(&e, 1, 0, 5, 6);
    agent = node_agent(&e.n, 1);
    worker = elastic_pid(&e, 1, 0);
    kill(e.n.p[1].pid, SIGKILL);
    kill(agent, SIGKILL);
    kill(worker, SIGKILL);
    kill(elastic_pid(&e, 1, 1), SIGKILL);
    node_forget(&e.n, 1);
    elastic_wait(&e, 0, before, 6, 4);
    elastic_wait(&e, 2, before, 6, 4);
    elastic_judge(&e);
    for (int i = 0; i < 3; i += 2) {
        elastic_expect_lives(&e, i, 0, 1);
        elastic_expect_lives(&e, i, 1, 1);
    }
    elastic_end(&e);
}

/* Nobody dies, and no agent is told of anything: all go on in the next generation, and of a job
 * without restarts. */
static void connections_that_are_reset_cost_nothing(void)
{
    struct elastic_case e;
    unsigned long long before;

    elastic_begin(&e, PROGRAM, "3", 1);
    er_tap_require(setenv("ELASTIC_COMM_TRANSPORT", "tcp", 1) == 0);
    for (int i = 0; i < 3; i++)
        elastic_start_with(&e, i, "--max-restarts=0");
    before = elastic_wait(&e, 1, 0, 5, 3);
    er_test_write_file(case_path(&e.n.c, "reset.n1-0"), "");
    for (int i = 0; i < 3; i++)
        elastic_wait(&e, i, before, 6, 3);
    elastic_wait_said(&e, "nobody is known to be lost: all ranks here leave it for the next one");
    elastic_judge(&e);
    for (int i = 0; i < 3; i++) {
        elastic_expect_lives(&e, i, 0, 1);
        er_tap_check(elastic_odd_steps(&e, i, 0) == 0);
        er_tap_check(strstr(er_test_err(&e.n.p[i]), "(connections_lost)") != NULL);
    }
    elastic_end(&e);
}

/* A survivor that hangs does not leave its generation: when its time is over it is killed and
 * started anew, and the others go on with their memory. */
static void a_survivor_that_hangs_is_started_anew(void)
{
    struct elastic_case e;
    unsigned long long before;

    elastic_begin(&e, PROGRAM, "2", 2);
    elastic_start_with(&e, 0, "--set=stop.grace=1s");
    elastic_start_with(&e, 1, "--set=stop.grace=1s");
    before = elastic_wait(&e, 0, 0, 5, 4);
    kill(elastic_pid(&e, 0, 1), SIGSTOP);
    kill(elastic_pid(&e, 1, 0), SIGKILL);
    elastic_wait(&e, 0, before, 6, 4);
    elastic_judge(&e);
    elastic_expect_lives(&e, 0, 0, 1);
    elastic_expect_lives(&e, 0, 1, 2);
    elastic_expect_lives(&e, 1, 0, 2);
    elastic_expect_lives(&e, 1, 1, 1);
    elastic_end(&e);
}

/* Of the checkpoints that fall due while etcd does not answer one waits for it, and nobody for
 * that: none is committed, and none has failed, when many steps have been made. */
static void a_store_that_stands_still_holds_nobody_up(void)
{
    struct elastic_case e;

    elastic_begin(&e, PROGRAM, "2", 1);
    e.saves = true;
    er_tap_require(setenv("WORKER_SAVE_STEPS", "20", 1) == 0);
    elastic_start_all(&e, 2);
    elastic_wait(&e, 0, 0, 5, 2);
    etcd_member_signal(&e.n.etcd, 0, SIGSTOP);
    for (int i = 0; i < 2; i++)
        elastic_wait(&e, i, 0, 100, 2);
    er_tap_check(!case_has(&e.n.c, "ckpt/LATEST")); /* written behind a commit */
    etcd_member_signal(&e.n.etcd, 0, SIGCONT);
    er_tap_check(er_test_wait_path(case_path(&e.n.c, "ckpt/LATEST"), NODES_WAIT));
    elastic_judge(&e);
    for (int i = 0; i < 2; i++) {
        elastic_expect_lives(&e, i, 0, 1);
        er_tap_check(!strstr(er_test_out(&e.n.p[i]), "not saved"));
    }
    elastic_end(&e);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"one_worker_of_a_node_is_killed", one_worker_of_a_node_is_killed, 0},
        {"the_only_worker_of_a_node_is_killed", the_only_worker_of_a_node_is_killed, 0},
        {"rank_0_on_the_leaders_node_is_killed", rank_0_on_the_leaders_node_is_killed, 0},
        {"a_node_is_killed", a_node_is_killed, 0},
        {"the_first_node_is_killed", the_first_node_is_killed, 0},
        {"a_node_vanishes", a_node_vanishes, 0},
        {"a_store_that_stands_still_holds_nobody_up", a_store_that_stands_still_holds_nobody_up, 0},
        {"connections_that_are_reset_cost_nothing", connections_that_are_reset_cost_nothing, 0},
        {"a_survivor_that_hangs_is_started_anew", a_survivor_that_hangs_is_started_anew, 0},
    };

    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        return er_elastic_worker();
    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
