/* Jobs on several nodes: how they form, grow, shrink and end. */
#include "tests/integration/nodes_case.h"

static void two_nodes_form_and_succeed(void)
{
    struct nodes_case n;
    struct nodes_said a, b;
    int g;

    nodes_begin(&n, "2");
    node_start(&n, 0, ARGS("--nproc-per-node=2", SH(NODES_WORKER)));
    node_start(&n, 1, ARGS("--nproc-per-node=1", SH(NODES_WORKER)));
    g = nodes_next(&n, 0, 3, 2);
    er_tap_require(g && nodes_said(&n, g, 0, &a) && nodes_said(&n, g, 2, &b));
    er_tap_check(strcmp(a.node, b.node) != 0);
    er_tap_check(strncmp(a.master, "127.0.0.1:", 10) == 0);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

/* Ranks of a node lie side by side, and nodes follow each other in the order of their ids. */
static void form_many(int nodes)
{
    struct nodes_case n;
    struct nodes_said first, second;
    char nnodes[8], expected[8];
    int g;

    snprintf(nnodes, sizeof(nnodes), "%d", nodes);
    nodes_begin(&n, nnodes);
    for (int i = 0; i < nodes; i++)
        node_start(&n, i, ARGS("--nproc-per-node=2", SH(NODES_WORKER)));
    g = nodes_next(&n, 0, 2 * nodes, nodes);
    for (int i = 0; g && i < nodes; i++) {
        snprintf(expected, sizeof(expected), "n%d", i);
        er_tap_check(nodes_said(&n, g, 2 * i, &first) && nodes_said(&n, g, 2 * i + 1, &second));
        er_tap_check(strcmp(first.node, expected) == 0 && strcmp(second.node, expected) == 0);
        er_tap_check(first.node_rank == i && second.node_rank == i);
    }
    er_tap_check(g);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

static void five_nodes_have_contiguous_ranks(void)
{
    form_many(5);
}

static void eight_nodes_have_contiguous_ranks(void)
{
    form_many(8);
}

static void node_rank_is_a_preference(void)
{
    struct nodes_case n;
    struct nodes_said said;
    int g;

    nodes_begin(&n, "3");
    for (int i = 0; i < 3; i++)
        node_start(&n, i,
                   ARGS(i == 0   ? "--node-rank=2"
                        : i == 1 ? "--node-rank=0"
                                 : "--node-rank=1",
                        SH(NODES_WORKER)));
    g = nodes_next(&n, 0, 3, 3);
    er_tap_check(g && nodes_said(&n, g, 0, &said) && strcmp(said.node, "n1") == 0);
    er_tap_check(g && nodes_said(&n, g, 2, &said) && strcmp(said.node, "n0") == 0);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

static void agent_alone_says_whom_it_waits_for_and_gives_up(void)
{
    struct nodes_case n;

    nodes_begin(&n, "2");
    node_start(&n, 0, ARGS("--set=rendezvous.join_timeout=4s", SH(NODES_WORKER)));
    er_tap_check(er_test_wait_err(&n.p[0], "have 1 of 2 nodes, waiting for 1 more; giving up in",
                                  NODES_WAIT));
    er_tap_check(nodes_end_with(&n, 75));
    er_tap_check(strstr(er_test_err(&n.p[0]), "fewer nodes than the minimum"));
    nodes_end(&n);
}

/* A third agent is a spare, and takes the place of one that leaves; it costs no restart. */
static void spare_takes_the_place_of_a_node_that_leaves(void)
{
    struct nodes_case n;
    struct nodes_said said;
    int first, next;

    nodes_begin(&n, "2");
    node_start(&n, 0, ARGS(SH(NODES_WORKER)));
    node_start(&n, 1, ARGS(SH(NODES_WORKER)));
    first = nodes_next(&n, 0, 2, 2);
    er_tap_require(first);
    node_start(&n, 2, ARGS(SH(NODES_WORKER)));
    er_tap_check(er_test_wait_err(&n.p[2], "parked as a spare", NODES_WAIT));
    kill(n.p[0].pid, SIGTERM);
    er_tap_check(node_finish(&n, 0) == 75);
    node_forget(&n, 0);
    next = nodes_next(&n, first, 2, 2);
    er_tap_check(next && nodes_said(&n, next, 1, &said) && strcmp(said.node, "n2") == 0);
    er_tap_check(said.restarts == 0);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

static void node_that_comes_later_makes_the_world_larger(void)
{
    struct nodes_case n;
    struct nodes_said said;
    int first, next;

    nodes_begin(&n, "1:2");
    node_start(&n, 0, ARGS(NO_LAST_CALL, SH(NODES_WORKER)));
    first = nodes_next(&n, 0, 1, 1);
    er_tap_require(first);
    node_start(&n, 1, ARGS(NO_LAST_CALL, SH(NODES_WORKER)));
    next = nodes_next(&n, first, 2, 2);
    er_tap_check(next && nodes_said(&n, next, 0, &said) && strcmp(said.node, "n0") == 0);
    er_tap_check(said.restarts == 0);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

/* A spare that was never needed ends with the job's code, and says so. */
static void spare_ends_with_the_job(void)
{
    struct nodes_case n;

    nodes_begin(&n, "1");
    node_start(&n, 0, ARGS(SH(NODES_WORKER)));
    er_tap_check(nodes_next(&n, 0, 1, 1));
    node_start(&n, 1, ARGS(SH(NODES_WORKER)));
    er_tap_check(er_test_wait_err(&n.p[1], "parked as a spare", NODES_WAIT));
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    er_tap_check(strstr(er_test_err(&n.p[1]), "was a spare"));
    nodes_end(&n);
}

static void two_agents_of_one_host_number_themselves(void)
{
    struct nodes_case n;
    struct nodes_said a, b;
    char numbered[80];
    int g;

    nodes_begin(&n, "2");
    node_start(&n, 0, ARGS("--node-id=auto", SH(NODES_WORKER)));
    node_start(&n, 1, ARGS("--node-id=auto", SH(NODES_WORKER)));
    g = nodes_next(&n, 0, 2, 2);
    er_tap_require(g && nodes_said(&n, g, 0, &a) && nodes_said(&n, g, 1, &b));
    snprintf(numbered, sizeof(numbered), "%s.2", a.node);
    er_tap_check(strcmp(b.node, numbered) == 0);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

static void node_id_is_used_once_on_a_host(void)
{
    struct nodes_case n;

    nodes_begin(&n, "1:2");
    node_start(&n, 0, ARGS(NO_LAST_CALL, SH(NODES_WORKER)));
    er_tap_check(nodes_next(&n, 0, 1, 1));
    node_start(&n, 1, ARGS(NO_LAST_CALL, "--node-id=n0", SH(NODES_WORKER)));
    er_tap_check(node_finish(&n, 1) == 73);
    er_tap_check(strstr(er_test_err(&n.p[1]), "node 'n0'"));
    node_forget(&n, 1);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

static void node_with_another_spec_is_76(void)
{
    struct nodes_case n;

    nodes_begin(&n, "1:2");
    node_start(&n, 0, ARGS(NO_LAST_CALL, SH(NODES_WORKER)));
    er_tap_check(nodes_next(&n, 0, 1, 1));
    node_start(&n, 1, ARGS(NO_LAST_CALL, "--max-restarts=9", SH(NODES_WORKER)));
    er_tap_check(node_finish(&n, 1) == 76);
    er_tap_check(strstr(er_test_err(&n.p[1]), "differs from the job's in "));
    er_tap_check(strstr(er_test_err(&n.p[1]), "restart.max (the job's is '0')"));
    er_tap_check(!strstr(er_test_err(&n.p[1]), "nnodes"));
    er_tap_check(strstr(er_test_err(&n.p[1]), "--update-spec"));
    node_forget(&n, 1);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

/* Settings change while the job runs: nodes with the next ones wait beside it, and take over where
 * it forms anew and enough of them are there. Who has the old ones then is told to come back with
 * the new ones. */
static void spec_is_changed_while_the_job_runs(void)
{
    static const char next[] = "--max-restarts=9";
    struct nodes_case n;
    struct nodes_said said;
    int old, new;

    nodes_begin(&n, "2");
    for (int i = 0; i < 2; i++)
        node_start(&n, i, ARGS(SH(NODES_WORKER)));
    old = nodes_next(&n, 0, 2, 2);
    er_tap_require(old);
    node_start(&n, 2, ARGS("--update-spec", next, SH(NODES_WORKER)));
    er_tap_require(er_test_wait_err(&n.p[2], "this node's are the next ones", NODES_WAIT));
    node_start(&n, 3, ARGS(next, SH(NODES_WORKER))); /* no need to say it twice */
    er_tap_require(er_test_wait_err(&n.p[3], "this node's are the next ones", NODES_WAIT));
    er_tap_check(nodes_none_after(&n, old));
    kill(n.p[1].pid, SIGTERM); /* one of the old ones is restarted */
    er_tap_check(node_finish(&n, 1) == 75);
    node_forget(&n, 1);
    new = nodes_next(&n, old, 2, 2);
    er_tap_check(new &&nodes_said(&n, new, 0, &said) && strcmp(said.node, "n2") == 0);
    er_tap_check(new &&nodes_said(&n, new, 1, &said) && strcmp(said.node, "n3") == 0);
    er_tap_check(said.restarts == 0);
    er_tap_check(node_finish(&n, 0) == 76);
    er_tap_check(strstr(er_test_err(&n.p[0]), "goes on with another spec"));
    node_forget(&n, 0);
    node_start(&n, 1, ARGS(SH(NODES_WORKER))); /* as before: too late */
    er_tap_check(node_finish(&n, 1) == 76);
    er_tap_check(strstr(er_test_err(&n.p[1]), "restart.max (the job's is '9')"));
    node_forget(&n, 1);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

static void ctl_stop_ends_every_agent_with_79(void)
{
    struct nodes_case n;
    struct er_test_proc ctl;

    nodes_begin(&n, "2");
    node_start(&n, 0, ARGS(SH(NODES_WORKER)));
    node_start(&n, 1, ARGS(SH(NODES_WORKER)));
    er_tap_require(nodes_next(&n, 0, 2, 2));
    if (!er_tap_check(er_test_run(&ctl, ARGS(er_test_bin("elastic-ctl"), "--job", n.c.name, "stop"),
                                  NULL, NODES_WAIT) == 0))
        case_note(er_test_err(&ctl));
    er_test_done(&ctl);
    er_tap_check(nodes_end_with(&n, 79));
    nodes_end(&n);
}

/* In torchrun's form a name can be used again at once. */
static void finished_program_runs_again(void)
{
    struct nodes_case n;
    struct nodes_said first, second;
    int generation = 0;

    nodes_begin(&n, "2");
    for (int round = 0; round < 2; round++) {
        node_start(&n, 0, ARGS(SH(NODES_WORKER)));
        node_start(&n, 1, ARGS(SH(NODES_WORKER)));
        generation = nodes_next(&n, generation, 2, 2);
        er_tap_require(generation && nodes_said(&n, generation, 0, round ? &second : &first));
        nodes_go(&n, "0");
        er_tap_check(nodes_end_with(&n, 0));
        node_forget(&n, 0);
        node_forget(&n, 1);
        nodes_wait_again(&n);
    }
    er_tap_check(strcmp(first.run, second.run) != 0);
    nodes_end(&n);
}

static int run_job_file(struct nodes_case *n, const char *option)
{
    char rest[2048];
    const char *path;
    int code;

    snprintf(rest, sizeof(rest),
             "nnodes: 1\nrendezvous: {endpoints: ['%s']}\ncheckpoint: {dir: ckpt}\n"
             "log: {dir: none, tee: \"0\", redirects: \"0\"}\n",
             n->etcd.endpoints);
    path = case_job(&n->c, "[sh, -c, 'echo ran; exit 3']", rest);
    er_test_start(&n->c.p,
                  option ? ARGS(er_test_bin("elastic-run"), "--max-restarts=0", option, path)
                         : ARGS(er_test_bin("elastic-run"), "--max-restarts=0", path),
                  NULL);
    code = case_finish(&n->c);
    return code;
}

/* A job file's job stays finished: who runs it again is told, and gets its code. */
static void finished_job_says_so_and_begins_anew_on_demand(void)
{
    struct nodes_case n;
    char old[2 * ER_TEST_PATH_MAX];

    nodes_begin(&n, "1");
    er_tap_check(run_job_file(&n, NULL) == 3);
    er_tap_check(strstr(er_test_out(&n.c.p), "ran"));
    er_test_done(&n.c.p);
    er_tap_check(run_job_file(&n, NULL) == 3);
    er_tap_check(!strstr(er_test_out(&n.c.p), "ran\n"));
    er_tap_check(strstr(er_test_err(&n.c.p), "had finished before"));
    er_test_done(&n.c.p);
    snprintf(old, sizeof(old), "%s/ckpt/step-7", n.c.dir);
    er_tap_require(mkdir(old, 0755) == 0);
    er_tap_check(run_job_file(&n, "--fresh") == 3);
    er_tap_check(strstr(er_test_out(&n.c.p), "ran\n"));
    er_tap_check(case_has(&n.c, "ckpt.before-1/step-7"));
    er_test_done(&n.c.p);
    nodes_end(&n);
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name, 0                                                                             \
    }
    static const struct er_tap_case cases[] = {
        CASE(two_nodes_form_and_succeed),
        CASE(five_nodes_have_contiguous_ranks),
        CASE(eight_nodes_have_contiguous_ranks),
        CASE(node_rank_is_a_preference),
        CASE(agent_alone_says_whom_it_waits_for_and_gives_up),
        CASE(spare_takes_the_place_of_a_node_that_leaves),
        CASE(node_that_comes_later_makes_the_world_larger),
        CASE(spare_ends_with_the_job),
        CASE(two_agents_of_one_host_number_themselves),
        CASE(node_id_is_used_once_on_a_host),
        CASE(node_with_another_spec_is_76),
        CASE(spec_is_changed_while_the_job_runs),
        CASE(ctl_stop_ends_every_agent_with_79),
        CASE(finished_program_runs_again),
        CASE(finished_job_says_so_and_begins_anew_on_demand),
    };
    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
