/* The agents of a running job are replaced one after the other by those of the next release: no
 * restart is counted, no step is lost, and nobody's parameters differ. The next release is the same
 * program with the next protocol version (elastic-run-next), the one after it is refused. */
#include "tests/integration/nodes_elastic.h"

#define PROGRAM "tests/integration/integration_nodes_upgrade"
#define NODES   3
#define STEPS   8 /* between two upgrades, by all */

/* Steps that a process which lived on applied twice or left out, of all places. */
static int odd_steps(struct elastic_case *e)
{
    int odd = 0;

    for (int i = 0; i < NODES; i++) {
        char *text = elastic_file(e, "trace", i, 0);
        struct elastic_step last = {0}, s;

        for (char *line = text, *end; line && (end = strchr(line, '\n')); line = end + 1) {
            if (sscanf(line, "%llu %llu %llu %d %d %d", &s.us, &s.step, &s.generation, &s.rank,
                       &s.size, &s.pid) != 6)
                continue;
            odd += last.pid == s.pid && s.step != last.step + 1;
            last = s;
        }
        free(text);
    }
    return odd;
}

static unsigned long long newest_step(struct elastic_case *e)
{
    struct elastic_step last = {0};
    unsigned long long step = 0;

    for (int i = 0; i < NODES; i++) {
        if (elastic_last(e, i, 0, &last) && last.step > step)
            step = last.step;
    }
    return step;
}

/* As `systemctl restart elastic-agent@JOB` with another program installed: drain, then start. */
static void upgrade(struct elastic_case *e, int node)
{
    struct elastic_step first = {0};
    unsigned long long before = 0;

    elastic_last(e, node, 0, &first);
    kill(e->n.p[node].pid, SIGTERM);
    er_tap_check(node_finish(&e->n, node) == 75);
    node_forget(&e->n, node);
    before = newest_step(e);
    e->n.agent[node] = "elastic-run-next";
    elastic_start(e, node);
    for (int i = 0; i < NODES; i++)
        elastic_wait(e, i, first.generation, before + STEPS, NODES);
}

static bool no_restart_counted(struct elastic_case *e)
{
    struct er_test_proc p;
    bool ok;

    ok = er_test_run(&p, ARGS(er_test_bin("elastic-ctl"), "--job", e->n.c.name, "status"), NULL,
                     NODES_WAIT) == 0 &&
         strstr(er_test_out(&p), "restarts   0 of 40");
    if (!ok)
        case_note(er_test_out(&p));
    er_test_done(&p);
    return ok;
}

static void roll(const char *nnodes)
{
    struct elastic_case e;
    int odd;

    elastic_begin(&e, PROGRAM, nnodes, 1);
    for (int i = 0; i < NODES; i++)
        elastic_start(&e, i);
    elastic_wait(&e, 0, 0, 10, NODES);
    for (int i = 0; i < NODES; i++)
        upgrade(&e, i);
    er_tap_check(no_restart_counted(&e));
    elastic_hurry(&e);
    er_tap_check(nodes_end_with(&e.n, 0));
    odd = odd_steps(&e);
    if (!er_tap_check(odd == 0))
        er_tap_note("%d steps were applied twice or left out", odd);
    for (int i = 0; i < NODES; i++) {
        elastic_expect_lives(&e, i, 0, 2);
        elastic_expect_exact(&e, i);
    }
    elastic_end(&e);
}

static void agents_are_replaced_one_after_the_other(void)
{
    roll("2:3");
}

/* resize.below_min is wait: the two others park, with what they hold in memory. */
static void and_where_no_node_can_be_spared(void)
{
    roll("3");
}

static void two_releases_further_is_refused(void)
{
    struct elastic_case e;

    elastic_begin(&e, PROGRAM, "1:2", 1);
    e.last_call = NO_LAST_CALL;
    elastic_start(&e, 0);
    elastic_wait(&e, 0, 0, 10, 1);
    e.n.agent[1] = "elastic-run-later";
    elastic_start(&e, 1);
    er_tap_check(node_finish(&e.n, 1) == 76);
    if (!er_tap_check(
            strstr(er_test_err(&e.n.p[1]), "the job speaks protocol 2 to 2, this agent 4")))
        case_note(er_test_err(&e.n.p[1]));
    node_forget(&e.n, 1);
    elastic_hurry(&e);
    er_tap_check(nodes_end_with(&e.n, 0));
    elastic_expect_lives(&e, 0, 0, 1);
    elastic_expect_exact(&e, 0);
    elastic_end(&e);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"agents_are_replaced_one_after_the_other", agents_are_replaced_one_after_the_other, 0},
        {"and_where_no_node_can_be_spared", and_where_no_node_can_be_spared, 0},
        {"two_releases_further_is_refused", two_releases_further_is_refused, 0},
    };

    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        return er_elastic_worker();
    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
