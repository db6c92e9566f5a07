/* Training across nodes: communicators over TCP between agents' workers, the job's key-value store,
 * barriers and checkpoint commits through etcd. */
#include "tests/integration/nodes_case.h"
#include "tests/lib/clothes.h"

#define EXAMPLE er_test_bin("examples/fashion_mnist")
#define TRAIN   "--batch=32", "--epochs=3", "--log-steps=1", "--exact-log"

/* Lines of steps and results only. */
static char *results(const struct er_test_proc *p)
{
    char *text = strdup(er_test_out(p)), *kept = calloc(1, strlen(text) + 2), *save = NULL;

    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        if (strncmp(line, "step=", 5) == 0 || strncmp(line, "accuracy=", 9) == 0) {
            strcat(kept, line);
            strcat(kept, "\n");
        }
    }
    free(text);
    return kept;
}

static char *one_node(struct nodes_case *n, const char *data)
{
    char *text;

    er_tap_require(case_run(&n->c, ARGS("--nproc-per-node=2", EXAMPLE, "--data", data, TRAIN)) ==
                   0);
    text = results(&n->c.p);
    er_test_done(&n->c.p);
    return text;
}

/* The node of rank 0 tells. */
static char *told(struct nodes_case *n)
{
    char *a = results(&n->p[0]), *b = results(&n->p[1]);

    if (a[0]) {
        free(b);
        return a;
    }
    free(a);
    return b;
}

static void losses_are_those_of_one_node_bit_for_bit(void)
{
    struct nodes_case n;
    char *want, *got;

    nodes_begin(&n, "2");
    er_test_clothes(n.c.dir);
    want = one_node(&n, n.c.dir);
    for (int i = 0; i < 2; i++)
        node_start(&n, i, ARGS(EXAMPLE, "--data", n.c.dir, TRAIN));
    er_tap_check(nodes_end_with(&n, 0));
    got = told(&n);
    er_tap_check(strstr(want, "step=60 loss=") != NULL);
    if (!er_tap_check(strcmp(want, got) == 0)) {
        case_note(want);
        case_note(got);
    }
    free(want);
    free(got);
    nodes_end(&n);
}

/* Keys, waits for them and a barrier of all ranks. */
static void workers_share_keys_and_barriers(void)
{
    struct nodes_case n;
    char line[64];

    nodes_begin(&n, "3");
    for (int i = 0; i < 3; i++)
        node_start(&n, i,
                   ARGS("--nproc-per-node=2", "--set=node.address=127.0.0.1",
                        er_test_bin("examples/hello")));
    er_tap_check(nodes_end_with(&n, 0));
    for (int rank = 0; rank < 6; rank++) {
        bool found = false;

        snprintf(line, sizeof(line), "hello from rank %d of 6\n", rank);
        for (int i = 0; i < 3; i++)
            found |= strstr(er_test_out(&n.p[i]), line) != NULL;
        er_tap_check(found);
    }
    nodes_end(&n);
}

/* A node leaves at the end of a step; the rest goes on from there, with what it has in memory, and
 * nothing is lost. */
static void node_that_leaves_costs_no_step(void)
{
    struct nodes_case n;
    char dir[ER_TEST_PATH_MAX + 64];

    nodes_begin(&n, "1:2");
    er_test_clothes(n.c.dir);
    snprintf(dir, sizeof(dir), "--set=checkpoint.dir=%s/ckpt", n.c.dir);
    for (int i = 0; i < 2; i++)
        node_start(&n, i,
                   ARGS(dir, "--set=checkpoint.every=1h", EXAMPLE, "--data", n.c.dir, "--batch=32",
                        "--epochs=400", "--log-steps=1", "--exact-log"));
    er_tap_require(er_test_wait_out(&n.p[0], "step=5 ", NODES_WAIT) ||
                   er_test_wait_out(&n.p[1], "step=5 ", NODES_WAIT));
    kill(n.p[1].pid, SIGTERM);
    er_tap_check(node_finish(&n, 1) == 75);
    case_note(er_test_err(&n.p[1]));
    er_tap_check(er_test_wait_out(&n.p[0], "goes on with the memory of rank 0", NODES_WAIT));
    case_note(er_test_err(&n.p[0]));
    er_tap_check(strstr(er_test_err(&n.p[0]), "1 of 1 worker kept their memory") != NULL);
    node_forget(&n, 1);
    kill(n.p[0].pid, SIGINT);
    er_tap_check(nodes_end_with(&n, 130));
    nodes_end(&n);
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name, 0                                                                             \
    }
    static const struct er_tap_case cases[] = {
        CASE(losses_are_those_of_one_node_bit_for_bit),
        CASE(workers_share_keys_and_barriers),
        CASE(node_that_leaves_costs_no_step),
    };
    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
