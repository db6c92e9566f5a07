/* elastic-ctl set: keys of a running job are changed on all of its nodes. */
#include <jansson.h>

#include "tests/integration/nodes_case.h"

/* Ends with the code in go-<generation>, once that is there. */
#define FAILING_WORKER                                                                             \
    "f=$CASE/g$ELASTIC_GENERATION-r$RANK; "                                                        \
    "echo $RANK/$WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT "              \
    "$TORCHELASTIC_RESTART_COUNT $ELASTIC_NODE_ID $ELASTIC_RUN $$ > $f.new; mv $f.new $f; "        \
    "go=$CASE/go-$ELASTIC_GENERATION; "                                                            \
    "while [ ! -e $go ] && [ ! -e $CASE/go ]; do sleep 0.1; done; "                                \
    "[ -e $go ] && exit 3; exit 0"

static const char *last_call = NO_LAST_CALL;

static void start(struct nodes_case *n, int i)
{
    char logs[ER_TEST_PATH_MAX + 32];

    snprintf(logs, sizeof(logs), "--log-dir=%s/logs", n->c.dir);
    node_start(n, i, ARGS("--max-restarts=0", logs, last_call, SH(FAILING_WORKER)));
}

static void begin(struct nodes_case *n, const char *nnodes, int count)
{
    nodes_begin(n, nnodes);
    for (int i = 0; i < count; i++)
        start(n, i);
}

/* The workers of that generation fail. */
static void let_fail(struct nodes_case *n, int generation)
{
    char file[64];

    snprintf(file, sizeof(file), "go-%d", generation);
    er_test_write_file(case_path(&n->c, file), "");
}

/* Both ways: through an agent of this host, or the store alone. */
enum way { AGENT, STORE };

/* elastic-ctl VERB WORDS...; its exit code. What it said is in `p`, the caller's. */
static int ctl(struct nodes_case *n, enum way way, struct er_test_proc *p,
               const char *const words[])
{
    const char *argv[24] = {er_test_bin("elastic-ctl"), "--job", n->c.name, "--endpoints",
                            n->etcd.endpoints};
    size_t k = way == STORE ? 5 : 3;

    for (size_t i = 0; words[i] && k < 23; i++)
        argv[k++] = words[i];
    argv[k] = NULL;
    return er_test_run(p, argv, NULL, NODES_WAIT);
}

static void expect(struct nodes_case *n, enum way way, int code, const char *says,
                   const char *const words[])
{
    struct er_test_proc p;
    int got = ctl(n, way, &p, words);

    if (!er_tap_check(got == code) ||
        !er_tap_check(strstr(er_test_out(&p), says) || strstr(er_test_err(&p), says))) {
        er_tap_note("%s: exit code %d, not %d, or no '%s':", words[1] ? words[1] : words[0], got,
                    code, says);
        case_note(er_test_out(&p));
        case_note(er_test_err(&p));
    }
    er_test_done(&p);
}

static void expect_told(struct nodes_case *n, int i, const char *text)
{
    if (!er_tap_check(er_test_wait_err(&n->p[i], text, NODES_WAIT)))
        case_note(er_test_err(&n->p[i]));
}

static json_t *state(struct nodes_case *n, enum way way)
{
    struct er_test_proc p;
    json_t *ret = NULL;

    if (ctl(n, way, &p, ARGS("status", "--json")) == 0)
        ret = json_loads(er_test_out(&p), 0, NULL);
    er_test_done(&p);
    er_tap_require(ret);
    return ret;
}

static void expect_set(struct nodes_case *n, enum way way, const char *key, const char *value)
{
    json_t *s = state(n, way);
    const char *is = json_string_value(json_object_get(json_object_get(s, "overrides"), key));

    er_tap_check(value ? is && strcmp(is, value) == 0 : !is);
    json_decref(s);
}

/* Every agent says so, also one that comes later, and a budget that was spent is not. */
static void all_nodes_take_it_and_those_that_come_later(void)
{
    struct nodes_case n;
    struct nodes_said said;
    int first, second, third;

    begin(&n, "3:4", 3);
    first = nodes_next(&n, 0, 3, 3);
    er_tap_require(first);
    expect(&n, AGENT, 0, "restart.max is 2, was 0",
           ARGS("set", "restart.max=2", "hang.floor=300s"));
    for (int i = 0; i < 3; i++) {
        expect_told(&n, i, "restart.max is 2, was 0");
        expect_told(&n, i, "hang.floor is 5m, was 1m");
    }
    expect_set(&n, AGENT, "hang.floor", "5m");
    expect_set(&n, STORE, "restart.max", "2");
    let_fail(&n, first);
    second = nodes_next(&n, first, 3, 3);
    er_tap_require(second && nodes_said(&n, second, 0, &said));
    er_tap_check(said.restarts == 1);
    start(&n, 3);
    expect_told(&n, 3, "set for this job by");
    third = nodes_next(&n, second, 4, 4);
    er_tap_require(third && nodes_said(&n, third, 0, &said));
    er_tap_check(said.restarts == 1);
    expect(&n, STORE, 0, "restart.max is 1, was 2", ARGS("set", "restart.max=1"));
    for (int i = 0; i < 4; i++)
        expect_told(&n, i, "restart.max is 1, was 2");
    let_fail(&n, third);
    er_tap_check(nodes_end_with(&n, 3)); /* one is spent */
    expect(&n, STORE, 1, "is over", ARGS("set", "restart.max=3"));
    expect_set(&n, STORE, "restart.max", "1");
    nodes_end(&n);
}

/* The node that leads; -1: none is known. */
static int leader(struct nodes_case *n)
{
    json_t *s = state(n, STORE);
    const char *id = json_string_value(json_object_get(s, "leader"));
    int i = id ? atoi(id + 1) : -1;

    json_decref(s);
    return i;
}

/* It needs no leader, and who leads next goes by it. */
static void it_is_set_while_the_leader_dies(void)
{
    struct nodes_case n;
    struct nodes_said said;
    int first, next, gone;

    last_call = LAST_CALL; /* each case is a process of its own */
    begin(&n, "2:3", 3);
    first = nodes_next(&n, 0, 3, 3);
    er_tap_require(first);
    gone = leader(&n);
    er_tap_require(gone >= 0 && gone < 3);
    kill(node_agent(&n, gone), SIGKILL);
    expect(&n, STORE, 0, "restart.max is 5, was 0", ARGS("set", "restart.max=5"));
    er_tap_check(node_finish(&n, gone) == 70);
    node_forget(&n, gone);
    next = nodes_next(&n, first, 2, 2);
    er_tap_require(next);
    let_fail(&n, next);
    next = nodes_next(&n, next, 2, 2);
    er_tap_require(next && nodes_said(&n, next, 0, &said));
    er_tap_check(said.restarts == 1);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

static void what_is_wrong_changes_nothing(void)
{
    struct nodes_case n;

    begin(&n, "1", 1);
    er_tap_require(nodes_next(&n, 0, 1, 1));
    for (int way = AGENT; way <= STORE; way++) {
        expect(&n, way, 64, "did you mean 'hang.floor'", ARGS("set", "hang.flor=5m"));
        expect(&n, way, 64, "has no unit", ARGS("set", "restart.max=4", "hang.floor=5"));
        expect(&n, way, 64, "elastic-ctl scale", ARGS("set", "nnodes=2"));
        expect(&n, way, 64, "--update-spec", ARGS("set", "--unset", "rendezvous.lease_ttl"));
        expect(&n, way, 64, "elastic-ctl reload", ARGS("set", "log.console=none"));
        expect(&n, way, 64, "expected KEY=VALUE", ARGS("set", "hang.floor"));
        expect(&n, way, 64, "takes a key alone", ARGS("set", "--unset", "hang.floor=1m"));
        expect(&n, way, 1, "must not be longer than restart.backoff.max",
               ARGS("set", "restart.max=4", "restart.backoff.initial=2m"));
        expect_set(&n, way, "restart.max", NULL);
        expect(&n, way, 0, "has these values already", ARGS("set", "--unset", "restart.max"));
        expect(&n, way, 0, "\"changed\":[\"restart.max\"]", ARGS("set", "--json", "restart.max=4"));
        expect_set(&n, way, "restart.max", "4");
        expect(&n, way, 0, "restart.max is 0 again", ARGS("set", "--unset", "restart.max"));
        expect_set(&n, way, "restart.max", NULL);
    }
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

/* A node's agent without its store: it says so, and does not wait for ever. */
static void without_the_store_it_is_refused(void)
{
    struct nodes_case n;

    begin(&n, "1", 1);
    er_tap_require(nodes_next(&n, 0, 1, 1));
    etcd_member_kill(&n.etcd, 0);
    expect_told(&n, 0, "the store does not answer");
    expect(&n, AGENT, 69, "nothing was changed", ARGS("set", "restart.max=4"));
    etcd_member_start(&n.etcd, 0);
    expect_told(&n, 0, "the store answers again");
    expect(&n, AGENT, 0, "restart.max is 4", ARGS("set", "restart.max=4"));
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

/* A job file of its own for each node, with so many restarts; `kind`: "--fresh", or NULL. */
static void start_file(struct nodes_case *n, int i, const char *restarts, const char *kind)
{
    char file[32], text[1024];

    er_test_write_file(case_path(&n->c, "worker.sh"), FAILING_WORKER);
    snprintf(file, sizeof(file), "job%d.yaml", i);
    snprintf(text, sizeof(text),
             "command: [sh, %s]\nrestart: {max: %s}\nlog: {dir: none}\nenv: {A: b}\n",
             case_path(&n->c, "worker.sh"), restarts);
    er_test_write_file(case_path(&n->c, file), text);
    if (kind)
        node_start(n, i, ARGS(last_call, kind, case_path(&n->c, file)));
    else
        node_start(n, i, ARGS(last_call, case_path(&n->c, file)));
}

/* All agents end, and the same command goes on: what was set holds. A new run begins with the
 * file. */
static void it_lasts_as_long_as_the_run(void)
{
    struct nodes_case n;
    int first, next;

    nodes_begin(&n, "2");
    for (int i = 0; i < 2; i++)
        start_file(&n, i, "0", NULL);
    first = nodes_next(&n, 0, 2, 2);
    er_tap_require(first);
    expect(&n, AGENT, 0, "restart.max is 1", ARGS("set", "restart.max=1"));
    expect(&n, STORE, 0, "asked to save and leave", ARGS("stop", "--preempt"));
    er_tap_check(nodes_end_with(&n, 75));
    for (int i = 0; i < 2; i++) {
        node_forget(&n, i);
        start_file(&n, i, "0", NULL);
        expect_told(&n, i, "restart.max is 1, was 0");
    }
    next = nodes_next(&n, first, 2, 2);
    er_tap_require(next);
    let_fail(&n, next);
    next = nodes_next(&n, next, 2, 2); /* no budget without it */
    er_tap_require(next);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    expect_set(&n, STORE, "restart.max", "1");
    nodes_wait_again(&n);
    for (int i = 0; i < 2; i++) {
        node_forget(&n, i);
        start_file(&n, i, "0", "--fresh");
    }
    next = nodes_next(&n, next, 2, 2);
    er_tap_require(next);
    expect_set(&n, STORE, "restart.max", NULL);
    let_fail(&n, next);
    er_tap_check(nodes_end_with(&n, 3));
    nodes_end(&n);
}

/* A key that all nodes share is not changed by one node's file; and a file that was brought up to
 * date with what is set is no other spec. */
static void files_and_what_is_set(void)
{
    struct nodes_case n;
    int first;

    nodes_begin(&n, "1:2");
    start_file(&n, 0, "3", NULL);
    first = nodes_next(&n, 0, 1, 1);
    er_tap_require(first);
    start_file(&n, 1, "9", NULL);
    er_tap_check(node_finish(&n, 1) == 76);
    node_forget(&n, 1);
    rename(case_path(&n.c, "job1.yaml"), case_path(&n.c, "job0.yaml"));
    expect(&n, AGENT, 1, "elastic-ctl set restart.max=9", ARGS("reload"));
    expect_set(&n, AGENT, "restart.max", NULL);
    expect(&n, AGENT, 0, "restart.max is 9, was 3", ARGS("set", "restart.max=9"));
    expect(&n, AGENT, 0, "nothing new", ARGS("reload"));
    start_file(&n, 1, "9", NULL);
    er_tap_check(nodes_next(&n, first, 2, 2));
    start_file(&n, 2, "8", NULL);
    er_tap_check(node_finish(&n, 2) == 76);
    expect_told(&n, 2, "restart.max (the job's is '3')");
    node_forget(&n, 2);
    expect(&n, STORE, 0, "restart.max is 3 again", ARGS("set", "--unset", "restart.max"));
    expect_told(&n, 1, "restart.max is 3, was 9"); /* the job's, whatever its file says */
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

/* Agents of the release before would not follow. */
static void in_the_midst_of_an_upgrade_it_is_refused(void)
{
    struct nodes_case n;

    nodes_begin(&n, "2");
    n.agent[1] = "elastic-run-before";
    for (int i = 0; i < 2; i++)
        start(&n, i);
    er_tap_require(nodes_next(&n, 0, 2, 2));
    for (int way = AGENT; way <= STORE; way++) {
        expect(&n, way, 1, "upgrade them first", ARGS("set", "restart.max=4"));
        expect_set(&n, way, "restart.max", NULL);
    }
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"all_nodes_take_it_and_those_that_come_later", all_nodes_take_it_and_those_that_come_later,
         0},
        {"it_is_set_while_the_leader_dies", it_is_set_while_the_leader_dies, 0},
        {"what_is_wrong_changes_nothing", what_is_wrong_changes_nothing, 0},
        {"without_the_store_it_is_refused", without_the_store_it_is_refused, 0},
        {"it_lasts_as_long_as_the_run", it_lasts_as_long_as_the_run, 0},
        {"in_the_midst_of_an_upgrade_it_is_refused", in_the_midst_of_an_upgrade_it_is_refused, 0},
        {"files_and_what_is_set", files_and_what_is_set, 0},
    };

    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
