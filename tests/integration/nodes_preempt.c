/* A node that goes away has so much time, whatever its workers are at: what they can do by then is
 * done, and the node leaves. The others go on with what they have in memory. */
#include "tests/integration/nodes_elastic.h"

#define PROGRAM "tests/integration/integration_nodes_preempt"
#define SOON    "--set=preempt.deadline=4s"
#define HARD    "--set=stop.grace=1s"

/* The second of three nodes is told to go while its worker waits at `where`, and goes on waiting:
 * it is stopped in time. */
static void preempt_at(const char *where, unsigned long long step)
{
    struct elastic_case e;
    unsigned long long g;

    elastic_begin(&e, PROGRAM, "2:3", 1);
    e.saves = true;
    if (strcmp(where, "eval") == 0) {
        elastic_hold(&e, where, 1, 0);
        elastic_hurry(&e);
    }
    for (int i = 0; i < 3; i++)
        elastic_start_more(&e, i, SOON, HARD);
    g = elastic_wait(&e, 1, 0, step, 3);
    elastic_hold(&e, where, 1, 0);
    elastic_preempt(&e, 1);
    elastic_wait(&e, 0, g, step + 1, 2);
    elastic_wait(&e, 2, g, step + 1, 2);
    elastic_expect_lives(&e, 0, 0, 1);
    elastic_expect_lives(&e, 2, 0, 1);
    elastic_finish(&e);
}

static void while_it_waits_for_data(void)
{
    preempt_at("data", 3);
}

/* At the end of the first epoch. */
static void while_it_evaluates(void)
{
    preempt_at("eval", ELASTIC_STEPS / 3);
}

/* A node of its own has nobody who goes on. */
static void the_only_node(void)
{
    struct elastic_case e;

    elastic_begin(&e, PROGRAM, "1", 2);
    e.saves = true;
    elastic_hold(&e, "data", 0, 1);
    elastic_start_more(&e, 0, SOON, HARD);
    elastic_wait_up(&e, 0, 1);
    elastic_preempt(&e, 0);
    elastic_end(&e);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"while_it_waits_for_data", while_it_waits_for_data, 0},
        {"while_it_evaluates", while_it_evaluates, 0},
        {"the_only_node", the_only_node, 0},
    };

    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        return er_elastic_worker();
    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
