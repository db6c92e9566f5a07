/* Planned changes of a job on several nodes: nodes join, leave and are asked for, and no process
 * that stays is restarted, no step is lost, and the parameters are those of an undisturbed run, bit
 * for bit. */
#include <time.h>

#include "tests/integration/nodes_elastic.h"

#define PROGRAM "tests/integration/integration_nodes_resize"
#define CROWD   4 /* nodes */

/* What a process applied follows each other: no step twice, none left out. */
static void expect_no_step_lost(struct elastic_case *e, int node, int local)
{
    char *text = elastic_file(e, "trace", node, local);
    struct elastic_step last = {0}, s;

    for (char *line = text, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        if (sscanf(line, "%llu %llu %llu %d %d %d", &s.us, &s.step, &s.generation, &s.rank, &s.size,
                   &s.pid) != 6)
            continue;
        if (last.pid == s.pid && !er_tap_check(s.step == last.step + 1))
            er_tap_note("n%d-%d: step %llu of generation %llu after %llu of %llu", node, local,
                        s.step, s.generation, last.step, last.generation);
        last = s;
    }
    free(text);
}

static void expect_whole(struct elastic_case *e, int node, int lives)
{
    for (int l = 0; l < e->per_node; l++) {
        elastic_expect_lives(e, node, l, lives);
        expect_no_step_lost(e, node, l);
    }
}

/* The third node gets the state of the two others, who go on in process; its workers have come up
 * while the others trained on. */
static void a_node_joins(void)
{
    struct elastic_case e;
    unsigned long long two;

    elastic_begin(&e, PROGRAM, "2:3", 2);
    e.last_call = NO_LAST_CALL;
    elastic_start(&e, 0);
    elastic_start(&e, 1);
    two = elastic_wait(&e, 0, 0, 10, 4);
    elastic_start(&e, 2);
    elastic_wait(&e, 2, two, 11, 6);
    er_tap_check(er_test_wait_err(&e.n.p[2], "starting 2 workers for generation", NODES_WAIT));
    elastic_judge(&e);
    for (int i = 0; i < 3; i++)
        expect_whole(&e, i, 1);
    elastic_end(&e);
}

/* The first node, which leads and has rank 0, is told to go: it leaves with 75, and the others go
 * on with what they have in memory. */
static void a_node_leaves(void)
{
    struct elastic_case e;
    unsigned long long three;

    elastic_begin(&e, PROGRAM, "2:3", 2);
    elastic_start_all(&e, 3);
    three = elastic_wait(&e, 0, 0, 10, 6);
    elastic_preempt(&e, 0);
    for (int i = 1; i < 3; i++)
        elastic_wait(&e, i, three, 11, 4);
    expect_whole(&e, 0, 1);
    elastic_judge(&e);
    for (int i = 1; i < 3; i++)
        expect_whole(&e, i, 1);
    elastic_end(&e);
}

/* elastic-ctl scale: one node less, which waits as a spare and whose worker ends; then one more,
 * and it is taken back. */
static void the_job_is_scaled_down_and_up(void)
{
    struct elastic_case e;
    unsigned long long three, two;

    elastic_begin(&e, PROGRAM, "1:3", 1);
    elastic_start_all(&e, 3);
    three = elastic_wait(&e, 0, 0, 10, 3);
    elastic_ctl(&e, "scale", "1:2");
    two = elastic_wait(&e, 0, three, 11, 2);
    elastic_ctl(&e, "scale", "1:3");
    elastic_wait(&e, 0, two, 12, 3);
    elastic_judge(&e);
    for (int i = 0; i < 3; i++)
        expect_whole(&e, i, i == 2 ? 2 : 1);
    elastic_end(&e);
}

/* elastic-ctl drain: a node is named, and leaves with 0. */
static void a_node_is_drained_by_request(void)
{
    struct elastic_case e;
    unsigned long long three;

    elastic_begin(&e, PROGRAM, "2:3", 2);
    elastic_start_all(&e, 3);
    three = elastic_wait(&e, 0, 0, 10, 6);
    elastic_ctl(&e, "drain", "n1");
    er_tap_check(node_finish(&e.n, 1) == 0);
    node_forget(&e.n, 1);
    elastic_wait(&e, 0, three, 11, 4);
    elastic_wait(&e, 2, three, 11, 4);
    elastic_judge(&e);
    for (int i = 0; i < 3; i += 2)
        expect_whole(&e, i, 1);
    elastic_end(&e);
}

/* Fewer nodes than the minimum are left: the other one waits with its memory, till one comes. */
static void who_is_left_below_the_minimum_waits_in_memory(void)
{
    struct elastic_case e;
    unsigned long long two;

    elastic_begin(&e, PROGRAM, "2", 1);
    elastic_start(&e, 0);
    elastic_start(&e, 1);
    two = elastic_wait(&e, 0, 0, 10, 2);
    elastic_preempt(&e, 1);
    elastic_start(&e, 1);
    elastic_wait(&e, 0, two, 11, 2);
    elastic_judge(&e);
    for (int i = 0; i < 2; i++)
        expect_whole(&e, i, i + 1);
    elastic_end(&e);
}

static void or_the_job_ends_where_it_is_wanted(void)
{
    struct elastic_case e;

    elastic_begin(&e, PROGRAM, "2", 1);
    elastic_start_with(&e, 0, "--set=resize.below_min=stop");
    elastic_start_with(&e, 1, "--set=resize.below_min=stop");
    elastic_wait(&e, 0, 0, 10, 2);
    kill(e.n.p[1].pid, SIGTERM);
    er_tap_check(nodes_end_with(&e.n, 75));
    er_tap_check(strstr(er_test_err(&e.n.p[0]), "fewer nodes than the minimum"));
    elastic_end(&e);
}

/* resize.at: now does not wait for the end of the step, which is then computed again. */
static void a_change_may_happen_at_once(void)
{
    struct elastic_case e;
    unsigned long long one;

    elastic_begin(&e, PROGRAM, "1:2", 2);
    e.last_call = NO_LAST_CALL;
    elastic_start_with(&e, 0, "--set=resize.at=now");
    one = elastic_wait(&e, 0, 0, 10, 2);
    elastic_start_with(&e, 1, "--set=resize.at=now");
    elastic_wait(&e, 1, one, 11, 4);
    elastic_judge(&e);
    for (int i = 0; i < 2; i++)
        expect_whole(&e, i, 1);
    elastic_end(&e);
}

/* resize.at: checkpoint waits for the next one that is on disk, on every node. */
static void a_change_may_wait_for_a_checkpoint(void)
{
    struct elastic_case e;
    unsigned long long one = 0;

    elastic_begin(&e, PROGRAM, "1:2", 2);
    e.saves = true;
    e.last_call = NO_LAST_CALL;
    for (int i = 0; i < 2; i++) {
        elastic_start_more(&e, i, "--set=resize.at=checkpoint", "--set=checkpoint.every_steps=30");
        if (i == 0)
            one = elastic_wait(&e, 0, 0, 10, 2);
    }
    elastic_wait(&e, 1, one, 31, 4);
    er_tap_check(case_has(&e.n.c, "ckpt/step-000000000030"));
    elastic_judge(&e);
    for (int i = 0; i < 2; i++)
        expect_whole(&e, i, 1);
    elastic_end(&e);
}

enum deed { KILL_WORKER, KILL_NODE, LEAVE, JOIN, DEED_COUNT };

static int any_node(const struct elastic_case *e, bool started, unsigned *seed)
{
    int i;

    do
        i = rand_r(seed) % CROWD;
    while (e->n.started[i] != started);
    return i;
}

static void do_one(struct elastic_case *e, enum deed deed, int node)
{
    static const char *const NAMES[DEED_COUNT] = {"kill a worker of", "kill", "leave:", "join:"};
    pid_t pid = elastic_pid(e, node, 0);

    er_tap_note("%s n%d", NAMES[deed], node);
    if (deed == JOIN) {
        elastic_start(e, node);
        return;
    }
    if (deed == LEAVE)
        kill(e->n.p[node].pid, SIGTERM);
    else
        kill(deed == KILL_NODE ? node_agent(&e->n, node) : pid, SIGKILL);
    if (deed == KILL_WORKER)
        return;
    er_tap_check(node_finish(&e->n, node) == (deed == LEAVE ? 75 : 70));
    node_forget(&e->n, node);
}

static int count_started(const struct elastic_case *e)
{
    int n = 0;

    for (int i = 0; i < CROWD; i++)
        n += e->n.started[i];
    return n;
}

/* The newest generation in which anybody of the running nodes has applied a step. */
static unsigned long long newest(struct elastic_case *e)
{
    unsigned long long generation = 0;
    struct elastic_step last;

    for (int i = 0; i < CROWD; i++) {
        if (e->n.started[i] && elastic_last(e, i, 0, &last) && last.generation > generation)
            generation = last.generation;
    }
    return generation;
}

/* Eight changes in one epoch: nodes come and go, workers and agents are killed. The ledger proves
 * that every sample was used once. */
static void change_by(unsigned seed)
{
    struct elastic_case e;
    unsigned long long before = 0;

    er_tap_note("seed %u", seed);
    elastic_begin(&e, PROGRAM, "1:4", 1);
    elastic_pace(&e, 1, 25);
    e.saves = true;
    e.last_call = NO_LAST_CALL;
    elastic_start_all(&e, 2);
    elastic_wait(&e, 0, 0, 2, 2);
    for (int k = 0; k < 8; k++) {
        int n = count_started(&e);
        enum deed deed = (enum deed)(rand_r(&seed) % DEED_COUNT);

        if (n == 1 && deed != JOIN) /* somebody must keep the state */
            deed = JOIN;
        if (n == CROWD && deed == JOIN)
            deed = LEAVE;
        before = newest(&e);
        do_one(&e, deed, any_node(&e, deed != JOIN, &seed));
        for (int i = 0; i < CROWD; i++) {
            if (e.n.started[i])
                elastic_wait(&e, i, before, 1, count_started(&e));
        }
    }
    elastic_finish(&e);
}

/* CHANGES_SEED: one that failed. */
static void changes_in_random_order(void)
{
    const char *seed = getenv("CHANGES_SEED");

    change_by(seed ? (unsigned)strtoul(seed, NULL, 10) : (unsigned)time(NULL) ^ (unsigned)getpid());
}

/* The worker of n0 three times, then n1's. */
static void the_same_worker_dies_again_and_again(void)
{
    change_by(1796055520);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"a_node_joins", a_node_joins, 0},
        {"a_node_leaves", a_node_leaves, 0},
        {"the_job_is_scaled_down_and_up", the_job_is_scaled_down_and_up, 0},
        {"a_node_is_drained_by_request", a_node_is_drained_by_request, 0},
        {"who_is_left_below_the_minimum_waits_in_memory",
         who_is_left_below_the_minimum_waits_in_memory, 0},
        {"or_the_job_ends_where_it_is_wanted", or_the_job_ends_where_it_is_wanted, 0},
        {"a_change_may_wait_for_a_checkpoint", a_change_may_wait_for_a_checkpoint, 0},
        {"changes_in_random_order", changes_in_random_order, 0},
        {"the_same_worker_dies_again_and_again", the_same_worker_dies_again_and_again, 0},
        {"a_change_may_happen_at_once", a_change_may_happen_at_once, 0},
    };

    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        return er_elastic_worker();
    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
