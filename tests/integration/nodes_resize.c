/* Planned changes of a job on several nodes: nodes join, leave and are asked for, and no process
 * that stays is restarted, no step is lost, and the parameters are those of an undisturbed run, bit
 * for bit. */
#include "tests/integration/nodes_elastic.h"

#define PROGRAM "tests/integration/integration_nodes_resize"

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

/* The third node gets the state of the two others, who go on in process. */
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
    elastic_hurry(&e);
    er_tap_check(nodes_end_with(&e.n, 0));
    for (int i = 0; i < 3; i++) {
        expect_whole(&e, i, 1);
        elastic_expect_exact(&e, i);
    }
    elastic_end(&e);
}

/* The first node, which leads and has rank 0, is told to go: it leaves with 75, and the others go
 * on with what they have in memory. */
static void a_node_leaves(void)
{
    struct elastic_case e;
    unsigned long long three;

    elastic_begin(&e, PROGRAM, "2:3", 2);
    for (int i = 0; i < 3; i++)
        elastic_start(&e, i);
    three = elastic_wait(&e, 0, 0, 10, 6);
    kill(e.n.p[0].pid, SIGTERM);
    er_tap_check(node_finish(&e.n, 0) == 75);
    for (int i = 1; i < 3; i++)
        elastic_wait(&e, i, three, 11, 4);
    expect_whole(&e, 0, 1);
    node_forget(&e.n, 0);
    elastic_hurry(&e);
    er_tap_check(nodes_end_with(&e.n, 0));
    for (int i = 1; i < 3; i++) {
        expect_whole(&e, i, 1);
        elastic_expect_exact(&e, i);
    }
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
    kill(e.n.p[1].pid, SIGTERM);
    er_tap_check(node_finish(&e.n, 1) == 75);
    node_forget(&e.n, 1);
    elastic_start(&e, 1);
    elastic_wait(&e, 0, two, 11, 2);
    elastic_hurry(&e);
    er_tap_check(nodes_end_with(&e.n, 0));
    for (int i = 0; i < 2; i++) {
        expect_whole(&e, i, i + 1);
        elastic_expect_exact(&e, i);
    }
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
    elastic_hurry(&e);
    er_tap_check(nodes_end_with(&e.n, 0));
    for (int i = 0; i < 2; i++) {
        expect_whole(&e, i, 1);
        elastic_expect_exact(&e, i);
    }
    elastic_end(&e);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"a_node_joins", a_node_joins, 0},
        {"a_node_leaves", a_node_leaves, 0},
        {"who_is_left_below_the_minimum_waits_in_memory",
         who_is_left_below_the_minimum_waits_in_memory, 0},
        {"or_the_job_ends_where_it_is_wanted", or_the_job_ends_where_it_is_wanted, 0},
        {"a_change_may_happen_at_once", a_change_may_happen_at_once, 0},
    };

    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        return er_elastic_worker();
    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
