/* A job whose nodes have roles: numbers, commands and environments of their own. */
#include "tests/integration/nodes_case.h"

#define SAY(what)                                                                                  \
    "[sh, -c, 'echo " what " $ROLE_NAME $RANK/$WORLD_SIZE $ROLE_RANK/$ROLE_WORLD_SIZE $KIND > "    \
    "$CASE/r$RANK']"

static const char *spec(struct nodes_case *n)
{
    return case_job(
        &n->c, "[sh, -c, 'exit 1']",
        "log: {dir: none}\nenv: {KIND: top}\nroles:\n"
        "  trainer: {nnodes: 2, nproc_per_node: 2, command: " SAY(
            "train") "}\n"
                     "  evaluator: {nnodes: 1, command: " SAY("eval") ", env: {KIND: own}}\n");
}

static bool said(struct nodes_case *n, const char *file, const char *text)
{
    char *found = er_test_read_file(case_path(&n->c, file));
    bool same = found && strcmp(found, text) == 0;

    if (!same)
        case_note(found ? found : "(missing)");
    free(found);
    return same;
}

static void each_role_runs_its_own(void)
{
    static const char *const ROLES[] = {"--role=trainer", "--role=evaluator", "--role=trainer"};
    struct nodes_case n;
    const char *job;

    nodes_begin(&n, "1"); /* of a role that does not say */
    job = spec(&n);
    for (int i = 0; i < 3; i++)
        node_start(&n, i, ARGS(ROLES[i], job));
    er_tap_check(nodes_end_with(&n, 0));
    er_tap_check(said(&n, "r0", "train trainer 0/5 0/4 top\n"));
    er_tap_check(said(&n, "r1", "train trainer 1/5 1/4 top\n"));
    er_tap_check(said(&n, "r2", "eval evaluator 2/5 0/1 own\n"));
    er_tap_check(said(&n, "r4", "train trainer 4/5 3/4 top\n"));
    for (int i = 0; i < 3; i++)
        case_note(er_test_err(&n.p[i]));
    nodes_end(&n);
}

/* Two nodes of one role do not make the job. */
static void a_role_that_is_missing_is_waited_for(void)
{
    struct nodes_case n;
    const char *job;

    nodes_begin(&n, "1");
    job = spec(&n);
    for (int i = 0; i < 3; i++)
        node_start(&n, i, ARGS("--role=trainer", "--set=rendezvous.join_timeout=4s", job));
    er_tap_check(nodes_end_with(&n, 75));
    er_tap_check(!case_has(&n.c, "r0"));
    nodes_end(&n);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case CASES[] = {
        {"each_role_runs_its_own", each_role_runs_its_own, 0},
        {"a_role_that_is_missing_is_waited_for", a_role_that_is_missing_is_waited_for, 0},
    };

    return er_tap_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
