/*
 * Newcomers that get the state in slices while the others step on: nobody stops for them, no step
 * is lost, and all end with the parameters of an undisturbed run, bit for bit; whatever happens
 * before they have it.
 */
#include "base/cleanup.h"
#include "tests/integration/nodes_elastic.h"
#include "trainer/catchup.h"

#define PROGRAM "tests/integration/integration_nodes_catchup"

static void begin(struct elastic_case *e, const char *nnodes, int per_node)
{
    elastic_begin(e, PROGRAM, nnodes, per_node);
    e->last_call = NO_LAST_CALL;
    er_tap_require(setenv("WORKER_NEWCOMERS", "2", 1) == 0);
}

/* Steps of a newcomer in which others computed for it. */
static int idle_steps(struct elastic_case *e, int node, int local)
{
    char *text = elastic_file(e, "trace", node, local);
    int idle = 0;

    for (char *line = text, *end; line && (end = strchr(line, '\n')); line = end + 1)
        idle += end[-1] == '0' && end[-2] == ' ';
    free(text);
    return idle;
}

static void expect_whole(struct elastic_case *e, int node, int lives)
{
    for (int l = 0; l < e->per_node; l++) {
        elastic_expect_lives(e, node, l, lives);
        er_tap_check(elastic_odd_steps(e, node, l) == 0);
    }
    elastic_expect_exact(e, node);
}

static void finish(struct elastic_case *e)
{
    elastic_hurry(e);
    if (!er_tap_check(nodes_end_with(&e->n, 0)))
        elastic_notes(e);
}

static void a_node_joins_while_the_others_step_on(void)
{
    struct elastic_case e;
    unsigned long long two;

    begin(&e, "2:3", 2);
    elastic_start(&e, 0);
    elastic_start(&e, 1);
    two = elastic_wait(&e, 0, 0, 10, 4);
    elastic_start(&e, 2);
    elastic_wait(&e, 2, two, 40, 6);
    finish(&e);
    for (int i = 0; i < 3; i++) {
        int idle = idle_steps(&e, i, 0);

        expect_whole(&e, i, 1);
        if (!er_tap_check(i < 2 ? idle == 0 : idle > 5 && idle <= ER_CATCHUP_SLICES + 1))
            er_tap_note("n%d: %d steps without samples", i, idle);
    }
    elastic_end(&e);
}

/* A worker is killed, also the first one: its successor comes to the state the same way. */
static void a_killed_workers_successor_catches_up(void)
{
    static const char *const where[] = {"n0-0:50:0", "n0-1:50:1", "n0-2:99:2"};

    for (size_t i = 0; i < ER_ARRAY_N(where); i++) {
        struct elastic_case e;

        begin(&e, "1", 3);
        elastic_kill_at(&e, where[i]);
        elastic_hurry(&e);
        elastic_start(&e, 0);
        finish(&e);
        for (int l = 0; l < 3; l++)
            elastic_expect_lives(&e, 0, l, l == (int)i ? 2 : 1);
        elastic_expect_exact(&e, 0);
        elastic_end(&e);
    }
}

/* `who` kills itself before the newcomers of a change at step 50 have everything. */
static void kill_meanwhile(const char *list, const char *lives)
{
    struct elastic_case e;

    begin(&e, "1", 4);
    elastic_kill_at(&e, list);
    elastic_hurry(&e);
    elastic_start(&e, 0);
    finish(&e);
    for (int l = 0; l < 4; l++)
        elastic_expect_lives(&e, 0, l, lives[l] - '0');
    elastic_expect_exact(&e, 0);
    elastic_end(&e);
}

static void others_are_killed_meanwhile(void)
{
    kill_meanwhile("n0-1:50:1 n0-2:53:1", "1221");
    kill_meanwhile("n0-1:50:1 n0-0:54:2", "2211");
    kill_meanwhile("n0-1:50:0 n0-0:52:1 n0-2:52:1", "2221");
}

/* The end of an epoch, a checkpoint, the end of the run: each finds the newcomer whole. */
static void the_rest_waits_or_is_copied(void)
{
    static const char *const where[] = {"n0-1:95:0", "n0-1:197:2", "n0-1:100:2", "n0-1:297:1",
                                        "n0-1:300:1"};

    for (size_t i = 0; i < ER_ARRAY_N(where); i++) {
        struct elastic_case e;

        begin(&e, "1", 3);
        e.saves = true;
        er_tap_require(setenv("WORKER_SAVE_STEPS", "3", 1) == 0);
        elastic_kill_at(&e, where[i]);
        elastic_hurry(&e);
        elastic_start(&e, 0);
        finish(&e);
        for (int l = 0; l < 3; l++)
            elastic_expect_lives(&e, 0, l, l == 1 ? 2 : 1);
        elastic_expect_exact(&e, 0);
        elastic_audit(&e);
        elastic_end(&e);
    }
}

/* Somebody leaves at once when a node has come. */
static void a_node_leaves_meanwhile(void)
{
    struct elastic_case e;
    unsigned long long two, three;

    begin(&e, "2:3", 1);
    elastic_start(&e, 0);
    elastic_start(&e, 1);
    two = elastic_wait(&e, 0, 0, 10, 2);
    elastic_start(&e, 2);
    three = elastic_wait(&e, 2, two, 11, 3);
    kill(e.n.p[0].pid, SIGTERM);
    er_tap_check(node_finish(&e.n, 0) == 75);
    node_forget(&e.n, 0);
    elastic_wait(&e, 2, three, 12, 2);
    finish(&e);
    for (int i = 1; i < 3; i++)
        expect_whole(&e, i, 1);
    elastic_end(&e);
}

/* An update that looks at other elements than its own: found by the digests, and copied. */
static void an_update_that_mixes_elements_is_copied(void)
{
    struct elastic_case e;
    char *one, *two;

    begin(&e, "1", 3);
    er_tap_require(setenv("WORKER_MIXES", "1", 1) == 0);
    elastic_kill_at(&e, "n0-1:50:0");
    elastic_hurry(&e);
    elastic_start(&e, 0);
    finish(&e);
    elastic_expect_lives(&e, 0, 1, 2);
    one = elastic_file(&e, "params", 0, 0);
    two = elastic_file(&e, "params", 0, 1);
    er_tap_check(one && two && memcmp(one, two, 2 * ELASTIC_PARAMS * sizeof(float)) == 0);
    free(one);
    free(two);
    elastic_end(&e);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"a_node_joins_while_the_others_step_on", a_node_joins_while_the_others_step_on, 0},
        {"a_killed_workers_successor_catches_up", a_killed_workers_successor_catches_up, 0},
        {"others_are_killed_meanwhile", others_are_killed_meanwhile, 0},
        {"the_rest_waits_or_is_copied", the_rest_waits_or_is_copied, 0},
        {"a_node_leaves_meanwhile", a_node_leaves_meanwhile, 0},
        {"an_update_that_mixes_elements_is_copied", an_update_that_mixes_elements_is_copied, 0},
    };

    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        return er_elastic_worker();
    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
