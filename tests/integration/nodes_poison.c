/* A step in which workers fail again and again, wherever it is computed: the job ends with 93 and
 * says which one, or goes on without its samples, which the ledger then tells. */
#include "tests/integration/nodes_elastic.h"

#define PROGRAM "tests/integration/integration_nodes_poison"

static void begin(struct elastic_case *e)
{
    elastic_begin(e, PROGRAM, "2", 2);
    er_tap_require(setenv("WORKER_POISON", "50", 1) == 0);
    elastic_hurry(e);
    e->saves = true;
}

static void a_poisoned_step_ends_the_job(void)
{
    struct elastic_case e;

    begin(&e);
    elastic_start_all(&e, 2);
    er_tap_check(nodes_end_with(&e.n, 93));
    for (int i = 0; i < 2; i++)
        er_tap_check(
            strstr(er_test_err(&e.n.p[i]), "step 50 has failed 3 times (restart.poison_step)"));
    elastic_end(&e);
}

static void a_poisoned_step_is_left_out(void)
{
    struct elastic_case e;

    begin(&e);
    for (int i = 0; i < 2; i++)
        elastic_start_with(&e, i, "--set=restart.poison_step.action=skip");
    er_tap_check(nodes_end_with(&e.n, 0));
    e.without = 50;
    for (int i = 0; i < 2; i++)
        elastic_expect_exact(&e, i);
    elastic_audit_says(&e, "the samples of 1 step were left out, since workers kept failing in "
                           "it: 50");
    elastic_end(&e);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"a_poisoned_step_ends_the_job", a_poisoned_step_ends_the_job, 0},
        {"a_poisoned_step_is_left_out", a_poisoned_step_is_left_out, 0},
    };

    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        return er_elastic_worker();
    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
