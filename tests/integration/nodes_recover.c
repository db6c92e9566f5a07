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
    for (int i = 0; i < nodes; i++)
        elastic_start(&e, i);
    er_tap_check(nodes_end_with(&e.n, 0));
    for (int i = 0; i < nodes; i++) {
        for (int l = 0; l < per_node; l++)
            elastic_expect_lives(&e, i, l, i == node && l == local ? 2 : 1);
        elastic_expect_exact(&e, i);
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
    pid_t pid;

    elastic_begin(&e, PROGRAM, "2:3", 1);
    for (int i = 0; i < 3; i++)
        elastic_start(&e, i);
    before = elastic_wait(&e, victim, 0, 5, 3);
    pid = elastic_pid(&e, victim, 0);
    kill(node_agent(&e.n, victim), SIGKILL);
    kill(pid, SIGKILL);
    er_tap_check(node_finish(&e.n, victim) == 70);
    node_forget(&e.n, victim);
    for (int i = 0; i < 3; i++) {
        if (i != victim)
            elastic_wait(&e, i, before, 6, 2);
    }
    elastic_hurry(&e);
    er_tap_check(nodes_end_with(&e.n, 0));
    for (int i = 0; i < 3; i++) {
        if (i == victim)
            continue;
        elastic_expect_lives(&e, i, 0, 1);
        elastic_expect_exact(&e, i);
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
    elastic_hurry(&e);
    er_tap_check(nodes_end_with(&e.n, 0));
    for (int i = 0; i < 3; i += 2) {
        elastic_expect_lives(&e, i, 0, 1);
        elastic_expect_lives(&e, i, 1, 1);
        elastic_expect_exact(&e, i);
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
    elastic_hurry(&e);
    er_tap_check(nodes_end_with(&e.n, 0));
    elastic_expect_lives(&e, 0, 0, 1);
    elastic_expect_lives(&e, 0, 1, 2);
    elastic_expect_lives(&e, 1, 0, 2);
    elastic_expect_lives(&e, 1, 1, 1);
    elastic_expect_exact(&e, 0);
    elastic_expect_exact(&e, 1);
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
        {"a_survivor_that_hangs_is_started_anew", a_survivor_that_hangs_is_started_anew, 0},
    };

    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        return er_elastic_worker();
    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
