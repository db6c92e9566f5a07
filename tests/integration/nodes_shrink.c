/* restart.on_loss: shrink. A worker dies, and the others go on without it, in process and at once;
 * a new one comes up beside them, and joins at the end of a step. So it is with respawn when the
 * successor is not up within restart.respawn_wait. */
#include "tests/integration/nodes_elastic.h"

#define PROGRAM "tests/integration/integration_nodes_shrink"
#define SHRINK  "--set=restart.on_loss=shrink"

static void begin(struct elastic_case *e, const char *nnodes, int per_node)
{
    elastic_begin(e, PROGRAM, nnodes, per_node);
    e->saves = true; /* and so a ledger, which is audited */
    er_tap_require(setenv("WORKER_SAVE_STEPS", "1000", 1) == 0);
}

static void start_all(struct elastic_case *e, int nodes)
{
    for (int i = 0; i < nodes; i++)
        elastic_start_with(e, i, SHRINK);
}

static unsigned long long newest_step(struct elastic_case *e)
{
    struct elastic_step last = {0};

    elastic_last(e, 0, 0, &last);
    return last.step;
}

/* Node 0 has gone some steps further, with so many ranks. */
static unsigned long long go_on(struct elastic_case *e, unsigned long long before, int size)
{
    return elastic_wait(e, 0, before, newest_step(e) + 2, size);
}

struct birth {
    struct elastic_case *e;
    int node, local, n;
};

static bool are_born(void *user)
{
    struct birth *b = user;

    return elastic_lines(b->e, "born", b->node, b->local) >= b->n;
}

static void wait_born(struct elastic_case *e, int node, int local, int n)
{
    struct birth b = {e, node, local, n};

    if (!er_test_wait_until(are_born, &b, NODES_WAIT)) {
        elastic_notes(e);
        er_tap_require(false);
    }
}

static void kill_worker(struct elastic_case *e, int node, int local)
{
    er_tap_require(kill(elastic_pid(e, node, local), SIGKILL) == 0);
}

/* Every place of `node` has had as many processes as the list says, and none of them has left a
 * step out or done one twice. */
static void expect_lives(struct elastic_case *e, int node, const int lives[])
{
    for (int l = 0; l < e->per_node; l++) {
        elastic_expect_lives(e, node, l, lives[l]);
        er_tap_check(elastic_odd_steps(e, node, l) == 0);
    }
}

/* `node` loses the workers in `list` at once; their successors are not up before the others have
 * gone on. */
static void lose(struct elastic_case *e, int nodes, int node, const int *list, int n)
{
    int all = nodes * e->per_node, lives[NODES_MAX] = {0};
    unsigned long long full, fewer;

    full = elastic_wait(e, 0, 0, 5, all);
    for (int i = 0; i < n; i++)
        elastic_hold(e, "open", node, list[i]);
    for (int i = 0; i < n; i++)
        kill_worker(e, node, list[i]);
    fewer = go_on(e, full, all - n);
    for (int i = 0; i < n; i++)
        wait_born(e, node, list[i], 2);
    go_on(e, full, all - n);
    for (int i = 0; i < n; i++)
        elastic_let_go(e, "open", node, list[i]);
    go_on(e, fewer, all);
    elastic_judge(e);
    for (int i = 0; i < nodes; i++) {
        for (int l = 0; l < e->per_node; l++)
            lives[l] = 1;
        for (int k = 0; i == node && k < n; k++)
            lives[list[k]] = 2;
        expect_lives(e, i, lives);
    }
}

/* A job of its own for that: one node (0), or two, whose second one loses workers. */
static void lose_alone(const char *nnodes, int per_node, int node, const int *list, int n)
{
    struct elastic_case e;

    begin(&e, nnodes, per_node);
    start_all(&e, node + 1);
    lose(&e, node + 1, node, list, n);
    elastic_end(&e);
}

static void one_of_six_dies_and_comes_back(void)
{
    lose_alone("2", 3, 1, (const int[]){1}, 1);
}

static void rank_0_dies_and_comes_back(void)
{
    lose_alone("2", 2, 1, (const int[]){0}, 1);
}

static void two_of_a_node_die_at_once(void)
{
    lose_alone("2", 3, 1, (const int[]){0, 2}, 2);
}

static void on_a_single_node(void)
{
    lose_alone("1", 3, 0, (const int[]){1, 2}, 2);
}

static void shards_with_a_second_copy(void)
{
    struct elastic_case e;

    begin(&e, "2", 2);
    er_tap_require(setenv("WORKER_SHARDED", "2", 1) == 0);
    start_all(&e, 2);
    lose(&e, 2, 1, (const int[]){1}, 1);
    elastic_end(&e);
}

/* Nobody of the node is left to go on: it starts anew, as large as it was. */
static void all_workers_of_a_node_die(void)
{
    struct elastic_case e;
    unsigned long long full;

    begin(&e, "2", 2);
    start_all(&e, 2);
    full = elastic_wait(&e, 0, 0, 5, 4);
    kill_worker(&e, 1, 0);
    kill_worker(&e, 1, 1);
    go_on(&e, full, 4);
    elastic_judge(&e);
    expect_lives(&e, 0, (const int[]){1, 1});
    elastic_end(&e);
}

/* Who is to join dies before it is up: nobody's generation ends, no restart is counted, and another
 * one is started. */
static void a_newcomer_dies_before_it_is_up(void)
{
    struct elastic_case e;
    unsigned long long full, fewer;

    begin(&e, "2", 2);
    start_all(&e, 2);
    full = elastic_wait(&e, 0, 0, 5, 4);
    elastic_hold(&e, "open", 1, 1);
    kill_worker(&e, 1, 1);
    fewer = go_on(&e, full, 3);
    wait_born(&e, 1, 1, 2);
    er_tap_require(kill(elastic_newest(&e, "born", 1, 1), SIGKILL) == 0);
    wait_born(&e, 1, 1, 3);
    er_tap_check(go_on(&e, full, 3) == fewer);
    elastic_let_go(&e, "open", 1, 1);
    go_on(&e, fewer, 4);
    elastic_wait_status(&e, "restarts   1 of 40");
    elastic_judge(&e);
    expect_lives(&e, 0, (const int[]){1, 1});
    expect_lives(&e, 1, (const int[]){1, 2});
    elastic_end(&e);
}

/* Three at once are one try that has failed, not three. */
static void all_newcomers_die_before_they_are_up(void)
{
    struct elastic_case e;
    unsigned long long full, fewer;

    begin(&e, "1", 4);
    start_all(&e, 1);
    full = elastic_wait(&e, 0, 0, 5, 4);
    for (int l = 1; l < 4; l++)
        elastic_hold(&e, "open", 0, l);
    for (int l = 1; l < 4; l++)
        kill_worker(&e, 0, l);
    fewer = go_on(&e, full, 1);
    for (int l = 1; l < 4; l++)
        wait_born(&e, 0, l, 2);
    for (int l = 1; l < 4; l++)
        er_tap_require(kill(elastic_newest(&e, "born", 0, l), SIGKILL) == 0);
    for (int l = 1; l < 4; l++)
        wait_born(&e, 0, l, 3);
    for (int l = 1; l < 4; l++)
        elastic_let_go(&e, "open", 0, l);
    go_on(&e, fewer, 4);
    elastic_judge(&e);
    elastic_expect_lives(&e, 0, 0, 1);
    elastic_end(&e);
}

/* Of two that are started one comes up: it joins without the other. */
static void one_that_does_not_come_up_holds_nobody_up(void)
{
    struct elastic_case e;
    unsigned long long full, fewer, more;

    begin(&e, "1", 3);
    start_all(&e, 1);
    full = elastic_wait(&e, 0, 0, 5, 3);
    elastic_hold(&e, "open", 0, 2);
    kill_worker(&e, 0, 1);
    kill_worker(&e, 0, 2);
    fewer = go_on(&e, full, 1);
    more = go_on(&e, fewer, 2);
    elastic_let_go(&e, "open", 0, 2);
    go_on(&e, more, 3);
    elastic_judge(&e);
    expect_lives(&e, 0, (const int[]){1, 2, 2});
    elastic_end(&e);
}

/* A survivor dies while the newcomer, which is in the generation already, still sets itself up. */
static void another_dies_while_the_job_grows_back(void)
{
    struct elastic_case e;
    unsigned long long full, fewer;

    begin(&e, "2", 2);
    start_all(&e, 2);
    full = elastic_wait(&e, 0, 0, 5, 4);
    elastic_hold(&e, "start", 1, 1);
    elastic_hold(&e, "open", 0, 1);
    kill_worker(&e, 1, 1);
    fewer = go_on(&e, full, 3);
    wait_born(&e, 1, 1, 2);
    while (elastic_lives(&e, 1, 1) < 2) /* it has joined */
        er_tap_require(elastic_wait(&e, 0, full, 0, 0) >= fewer);
    kill_worker(&e, 0, 1);
    elastic_let_go(&e, "start", 1, 1);
    elastic_let_go(&e, "open", 0, 1);
    go_on(&e, fewer, 4);
    elastic_judge(&e);
    elastic_expect_lives(&e, 0, 0, 1);
    elastic_expect_lives(&e, 1, 0, 1);
    elastic_end(&e);
}

/* A node comes while another has fewer workers than places. */
static void a_node_joins_meanwhile(void)
{
    struct elastic_case e;
    unsigned long long full, fewer, more;

    begin(&e, "2:3", 2);
    e.last_call = NO_LAST_CALL;
    start_all(&e, 2);
    full = elastic_wait(&e, 0, 0, 5, 4);
    elastic_hold(&e, "open", 1, 0);
    kill_worker(&e, 1, 0);
    fewer = go_on(&e, full, 3);
    elastic_start_with(&e, 2, SHRINK);
    more = go_on(&e, fewer, 5);
    elastic_let_go(&e, "open", 1, 0);
    go_on(&e, more, 6);
    elastic_judge(&e);
    expect_lives(&e, 0, (const int[]){1, 1});
    expect_lives(&e, 1, (const int[]){2, 1});
    expect_lives(&e, 2, (const int[]){1, 1});
    elastic_end(&e);
}

/* ---- respawn ---- */

#define LONG_WAIT  "--set=restart.respawn_wait=10s"
#define SHORT_WAIT "--set=restart.respawn_wait=100ms"

static void a_successor_that_is_late_joins_later(void)
{
    struct elastic_case e;

    begin(&e, "2", 2);
    for (int i = 0; i < 2; i++)
        elastic_start_with(&e, i, SHORT_WAIT);
    lose(&e, 2, 1, (const int[]){1}, 1);
    elastic_end(&e);
}

/* Steps of n0-0 with another number of ranks. */
static int steps_with_others(struct elastic_case *e, int size)
{
    char *text = elastic_file(e, "trace", 0, 0);
    struct elastic_step s;
    int n = 0;

    for (char *line = text, *end; line && (end = strchr(line, '\n')); line = end + 1)
        n += sscanf(line, "%llu %llu %llu %d %d %d", &s.us, &s.step, &s.generation, &s.rank,
                    &s.size, &s.pid) == 6 &&
             s.size != size;
    free(text);
    return n;
}

static void a_successor_that_is_up_in_time_is_in_the_next_generation(void)
{
    struct elastic_case e;
    unsigned long long full;

    begin(&e, "2", 2);
    for (int i = 0; i < 2; i++)
        elastic_start_with(&e, i, LONG_WAIT);
    full = elastic_wait(&e, 0, 0, 5, 4);
    kill_worker(&e, 1, 1);
    go_on(&e, full, 4);
    elastic_judge(&e);
    er_tap_check(steps_with_others(&e, 4) == 0);
    expect_lives(&e, 0, (const int[]){1, 1});
    expect_lives(&e, 1, (const int[]){1, 2});
    elastic_end(&e);
}

/* Then the place is filled in the generation, where a failure counts. */
static void a_successor_that_ends_is_not_waited_for(void)
{
    struct elastic_case e;
    unsigned long long full;

    begin(&e, "2", 2);
    for (int i = 0; i < 2; i++)
        elastic_start_with(&e, i, LONG_WAIT);
    full = elastic_wait(&e, 0, 0, 5, 4);
    elastic_hold(&e, "open", 1, 1);
    kill_worker(&e, 1, 1);
    wait_born(&e, 1, 1, 2);
    er_tap_require(kill(elastic_newest(&e, "born", 1, 1), SIGKILL) == 0);
    wait_born(&e, 1, 1, 3);
    elastic_let_go(&e, "open", 1, 1);
    go_on(&e, full, 4);
    elastic_wait_status(&e, "restarts   1 of 40");
    elastic_judge(&e);
    expect_lives(&e, 1, (const int[]){1, 2});
    elastic_end(&e);
}

/* An agent of the release before knows nothing of such numbers: the place is filled at once. */
static void with_an_agent_of_the_release_before(void)
{
    struct elastic_case e;
    unsigned long long full;

    begin(&e, "2", 2);
    e.n.agent[0] = "elastic-run-before";
    start_all(&e, 2);
    full = elastic_wait(&e, 0, 0, 5, 4);
    kill_worker(&e, 1, 1);
    go_on(&e, full, 4);
    elastic_judge(&e);
    expect_lives(&e, 0, (const int[]){1, 1});
    expect_lives(&e, 1, (const int[]){1, 2});
    elastic_end(&e);
}

/* All processes end with their generation, whatever the policy: none is missing in the next. */
static void programs_without_libelastic_start_anew(void)
{
    struct nodes_case n;
    struct nodes_said said;
    int first, next;

    nodes_begin(&n, "2");
    for (int i = 0; i < 2; i++)
        node_start(
            &n, i,
            ARGS("--nproc-per-node=2", "--max-restarts=3", SHRINK, "sh", "-c", NODES_WORKER));
    first = nodes_next(&n, 0, 4, 2);
    er_tap_require(first > 0 && nodes_said(&n, first, 3, &said));
    kill(said.pid, SIGKILL);
    next = nodes_next(&n, first, 4, 2);
    er_tap_check(next > first);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"one_of_six_dies_and_comes_back", one_of_six_dies_and_comes_back, 0},
        {"rank_0_dies_and_comes_back", rank_0_dies_and_comes_back, 0},
        {"two_of_a_node_die_at_once", two_of_a_node_die_at_once, 0},
        {"on_a_single_node", on_a_single_node, 0},
        {"shards_with_a_second_copy", shards_with_a_second_copy, 0},
        {"all_workers_of_a_node_die", all_workers_of_a_node_die, 0},
        {"a_newcomer_dies_before_it_is_up", a_newcomer_dies_before_it_is_up, 0},
        {"all_newcomers_die_before_they_are_up", all_newcomers_die_before_they_are_up, 0},
        {"one_that_does_not_come_up_holds_nobody_up", one_that_does_not_come_up_holds_nobody_up, 0},
        {"another_dies_while_the_job_grows_back", another_dies_while_the_job_grows_back, 0},
        {"a_node_joins_meanwhile", a_node_joins_meanwhile, 0},
        {"a_successor_that_is_late_joins_later", a_successor_that_is_late_joins_later, 0},
        {"a_successor_that_is_up_in_time_is_in_the_next_generation",
         a_successor_that_is_up_in_time_is_in_the_next_generation, 0},
        {"a_successor_that_ends_is_not_waited_for", a_successor_that_ends_is_not_waited_for, 0},
        {"with_an_agent_of_the_release_before", with_an_agent_of_the_release_before, 0},
        {"programs_without_libelastic_start_anew", programs_without_libelastic_start_anew, 0},
    };

    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        return er_elastic_worker();
    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
