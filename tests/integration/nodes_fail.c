/* Jobs on several nodes when something goes wrong: workers, agents, the store. */
#include "tests/integration/nodes_case.h"

/* Waits like NODES_WORKER; the rank in $CASE/fail ends with code 7 first, after a last word. */
#define FAILING                                                                                    \
    "f=$CASE/g$ELASTIC_GENERATION-r$RANK; "                                                        \
    "echo $RANK/$WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT "              \
    "$TORCHELASTIC_RESTART_COUNT $ELASTIC_NODE_ID $ELASTIC_RUN $$ > $f.new; mv $f.new $f; "        \
    "while [ ! -e $CASE/go ]; do "                                                                 \
    "if [ -e $CASE/fail$RANK ]; then rm $CASE/fail$RANK; echo last words >&2; exit 7; fi; "        \
    "sleep 0.1; done; exit $(cat $CASE/go)"

static void fail_rank(struct nodes_case *n, int rank)
{
    char file[16];

    snprintf(file, sizeof(file), "fail%d", rank);
    er_test_write_file(case_path(&n->c, file), "");
}

/* A failure restarts everybody; when the budget is spent all agents end with the failed worker's
 * code and name it, with its last words from another node as well. */
static void worker_failure_restarts_all_until_the_budget_is_spent(void)
{
    struct nodes_case n;
    struct nodes_said said;
    char logs[2 * ER_TEST_PATH_MAX];
    int first, second;

    nodes_begin(&n, "2");
    snprintf(logs, sizeof(logs), "--log-dir=%s/logs", n.c.dir);
    for (int i = 0; i < 2; i++)
        node_start(&n, i, ARGS("--max-restarts=1", logs, "-r3", SH(FAILING)));
    first = nodes_next(&n, 0, 2, 2);
    fail_rank(&n, 1);
    second = nodes_next(&n, first, 2, 2);
    er_tap_check(second && nodes_said(&n, second, 0, &said) && said.restarts == 1);
    fail_rank(&n, 0);
    er_tap_check(nodes_end_with(&n, 7));
    for (int i = 0; i < 2; i++) {
        er_tap_check(strstr(er_test_err(&n.p[i]), "root cause  rank 0 (local rank 0"));
        er_tap_check(strstr(er_test_err(&n.p[i]), "last words"));
        er_tap_check(strstr(er_test_err(&n.p[i]), "budget spent (1 of 1)"));
    }
    nodes_end(&n);
}

/* So that the end of the lease is not what tells. */
#define LONG_LEASE "--set=rendezvous.lease_ttl=60s"

/* Peers of a node that dies fail; that costs nothing. Its guard tells of it. `victim`: 0 leads, or
 * 1. */
static void lose_agent(int victim)
{
    struct nodes_case n;
    struct nodes_said said;
    int alone, both, next;

    nodes_begin(&n, "1:2");
    node_start(&n, 0, ARGS(LONG_LEASE, NO_LAST_CALL, SH(NODES_WORKER)));
    alone = nodes_next(&n, 0, 1, 1); /* n0 leads */
    er_tap_require(alone);
    node_start(&n, 1, ARGS(LONG_LEASE, NO_LAST_CALL, SH(NODES_WORKER)));
    both = nodes_next(&n, alone, 2, 2);
    er_tap_require(both);
    kill(node_agent(&n, victim), SIGKILL);
    er_tap_check(node_finish(&n, victim) == 70);
    node_forget(&n, victim);
    next = nodes_next(&n, both, 1, 1);
    er_tap_check(next && nodes_said(&n, next, 0, &said) && said.restarts == 0);
    er_tap_check(er_test_wait_err(&n.p[!victim], "was lost (its agent died)", NODES_WAIT));
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

static void killed_agent_is_noticed_and_the_rest_goes_on(void)
{
    lose_agent(1);
}

static void killed_leader_is_followed_by_another(void)
{
    lose_agent(0);
}

/* Below MIN the job waits for a replacement, here the same node again. */
static void below_min_the_job_waits_for_a_replacement(void)
{
    struct nodes_case n;
    int first, next;

    nodes_begin(&n, "2");
    node_start(&n, 0, ARGS(SH(NODES_WORKER)));
    node_start(&n, 1, ARGS(SH(NODES_WORKER)));
    first = nodes_next(&n, 0, 2, 2);
    kill(node_agent(&n, 1), SIGKILL);
    er_tap_check(node_finish(&n, 1) == 70);
    node_forget(&n, 1);
    node_start(&n, 1, ARGS(SH(NODES_WORKER)));
    next = nodes_next(&n, first, 2, 2);
    er_tap_check(next > first);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

static void interrupted_node_leaves_at_once_with_130(void)
{
    struct nodes_case n;
    int both;

    nodes_begin(&n, "1:2");
    node_start(&n, 0, ARGS(SH(NODES_WORKER)));
    node_start(&n, 1, ARGS(SH(NODES_WORKER)));
    both = nodes_next(&n, 0, 2, 2);
    er_tap_require(both);
    kill(n.p[1].pid, SIGINT);
    er_tap_check(node_finish(&n, 1) == 130);
    node_forget(&n, 1);
    er_tap_check(nodes_next(&n, both, 1, 1));
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

/* Longer than the lease: workers never notice. */
static void stopped_etcd_is_ridden_out(void)
{
    struct nodes_case n;
    struct nodes_said before, after;
    int first;

    nodes_begin(&n, "2");
    for (int i = 0; i < 2; i++)
        node_start(&n, i, ARGS(SHORT_LEASE, "--set=rendezvous.death_grace=1s", SH(NODES_WORKER)));
    first = nodes_next(&n, 0, 2, 2);
    er_tap_require(first && nodes_said(&n, first, 0, &before));
    etcd_member_signal(&n.etcd, 0, SIGSTOP);
    for (int i = 0; i < 2; i++)
        er_tap_check(er_test_wait_err(&n.p[i], "the store does not answer", NODES_WAIT));
    (void)er_test_wait_exit(&n.p[0], 5000); /* for what must not happen */
    etcd_member_signal(&n.etcd, 0, SIGCONT);
    for (int i = 0; i < 2; i++)
        er_tap_check(er_test_wait_err(&n.p[i], "answers again", NODES_WAIT));
    er_tap_check(nodes_said(&n, first, 0, &after) && after.pid == before.pid &&
                 kill(before.pid, 0) == 0);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    er_tap_check(nodes_none_after(&n, first));
    nodes_end(&n);
}

static void restarted_etcd_is_ridden_out(void)
{
    struct nodes_case n;
    struct nodes_said before;
    int first;

    nodes_begin(&n, "2");
    for (int i = 0; i < 2; i++)
        node_start(&n, i, ARGS(SH(NODES_WORKER)));
    first = nodes_next(&n, 0, 2, 2);
    er_tap_require(first && nodes_said(&n, first, 0, &before));
    etcd_member_kill(&n.etcd, 0);
    for (int i = 0; i < 2; i++)
        er_tap_check(er_test_wait_err(&n.p[i], "the store does not answer", NODES_WAIT));
    etcd_member_start(&n.etcd, 0);
    for (int i = 0; i < 2; i++)
        er_tap_check(er_test_wait_err(&n.p[i], "answers again", NODES_WAIT));
    er_tap_check(kill(before.pid, 0) == 0);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    er_tap_check(nodes_none_after(&n, first));
    nodes_end(&n);
}

/* Lost with all it knew, and started again empty: the job makes a new record, under which the nodes
 * that live form anew; numbers go on. */
static void emptied_etcd_is_begun_anew(void)
{
    struct nodes_case n;
    struct nodes_said before;
    int first;

    nodes_begin(&n, "2");
    for (int i = 0; i < 2; i++)
        node_start(&n, i, ARGS(SH(NODES_WORKER)));
    first = nodes_next(&n, 0, 2, 2);
    er_tap_require(first && nodes_said(&n, first, 0, &before));
    etcd_member_kill(&n.etcd, 0);
    for (int i = 0; i < 2; i++)
        er_tap_check(er_test_wait_err(&n.p[i], "the store does not answer", NODES_WAIT));
    etcd_wipe(&n.etcd, 0);
    etcd_member_start(&n.etcd, 0);
    er_tap_require(nodes_next(&n, first, 2, 2));
    er_tap_check(kill(before.pid, 0) < 0);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

struct leads {
    struct etcd_cluster *etcd;
    int leader;
};

static bool has_leader(void *user)
{
    struct leads *l = user;

    l->leader = etcd_leader(l->etcd);
    return l->leader >= 0;
}

/* Two of three members are enough: agents go to one of them, and no worker notices. The one that
 * was killed comes back, and its successor goes. */
static void killed_etcd_leader_of_three_costs_nothing(void)
{
    struct nodes_case n;
    struct nodes_said before[3], after;
    struct leads l = {&n.etcd, -1};
    int first;

    nodes_begin_on(&n, "3", 3);
    for (int i = 0; i < 3; i++)
        node_start(&n, i, ARGS(SHORT_LEASE, "--set=rendezvous.death_grace=1s", SH(NODES_WORKER)));
    first = nodes_next(&n, 0, 3, 3);
    er_tap_require(first);
    for (int i = 0; i < 3; i++)
        er_tap_require(nodes_said(&n, first, i, &before[i]));
    for (int round = 0; round < 2; round++) {
        er_tap_require(er_test_wait_until(has_leader, &l, NODES_WAIT));
        etcd_member_kill(&n.etcd, l.leader);
        /* Longer than leases and grace: for what must not happen. */
        (void)er_test_wait_exit(&n.p[0], 1000 * (LEASE_S + 2));
        etcd_member_start(&n.etcd, l.leader);
    }
    for (int i = 0; i < 3; i++)
        er_tap_check(nodes_said(&n, first, i, &after) && after.pid == before[i].pid &&
                     kill(after.pid, 0) == 0);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    er_tap_check(nodes_none_after(&n, first));
    nodes_end(&n);
}

/* For programs whose own side effects must not run twice. */
static void policy_stop_stops_workers_before_the_lease_ends(void)
{
    struct nodes_case n;
    struct nodes_said before;
    int first;

    nodes_begin(&n, "2");
    for (int i = 0; i < 2; i++)
        node_start(&n, i,
                   ARGS("--set=rendezvous.store_loss.policy=stop", "--set=rendezvous.lease_ttl=6s",
                        "--set=stop.grace=1s", "--set=rendezvous.death_grace=1s",
                        SH(NODES_WORKER)));
    first = nodes_next(&n, 0, 2, 2);
    er_tap_require(first && nodes_said(&n, first, 0, &before));
    etcd_member_signal(&n.etcd, 0, SIGSTOP);
    er_tap_check(er_test_wait_until(process_gone, &before.pid, NODES_WAIT));
    etcd_member_signal(&n.etcd, 0, SIGCONT);
    er_tap_check(nodes_next(&n, first, 2, 2) > first);
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

static void store_lost_for_good_is_69(void)
{
    struct nodes_case n;

    nodes_begin(&n, "2");
    for (int i = 0; i < 2; i++)
        node_start(&n, i, ARGS("--set=rendezvous.store_loss.limit=4s", SH(NODES_WORKER)));
    er_tap_require(nodes_next(&n, 0, 2, 2));
    etcd_member_kill(&n.etcd, 0);
    er_tap_check(nodes_end_with(&n, 69));
    er_tap_check(strstr(er_test_err(&n.p[0]), "out of reach"));
    nodes_end(&n);
}

/* Nodes whose workers fail again and again; here n0, until it is mended. */
#define SICK "if [ $ELASTIC_NODE_ID = n0 ] && [ ! -e $CASE/mended ]; then exit 3; fi; " NODES_WORKER

struct world_look {
    struct nodes_case *n;
    int after, world, found;
};

static bool world_is_there(void *user)
{
    struct world_look *look = user;

    for (int g = look->after + 1; g < look->after + 40 && !look->found; g++) {
        char file[64], want[16];
        char *text;

        snprintf(file, sizeof(file), "g%d-r0", g);
        snprintf(want, sizeof(want), "0/%d ", look->world);
        text = er_test_read_file(case_path(&look->n->c, file));
        if (text && strncmp(text, want, strlen(want)) == 0)
            look->found = g;
        free(text);
    }
    return look->found != 0;
}

/* Of n0, which was there first and has the job's own folder. */
static bool status_says(struct nodes_case *n, const char *text)
{
    struct er_test_proc p;
    bool ok = er_test_run(&p, ARGS(er_test_bin("elastic-ctl"), "--job", n->c.name, "status"), NULL,
                          NODES_WAIT) == 0 &&
              strstr(er_test_out(&p), text);

    er_test_done(&p);
    return ok;
}

static bool status_comes(void *user)
{
    return status_says(user, "generation 0");
}

static bool status_is_of_two_nodes(void *user)
{
    return status_says(user, "world size 2 on 2 node(s)");
}

/* Those of n0, whose `user` is the port. */
static bool metrics_are_of_two_nodes(void *user)
{
    struct er_test_proc p;
    bool ok = er_test_run(&p,
                          ARGS("bash", "-c",
                               "exec 3<>/dev/tcp/127.0.0.1/$0 && echo 'GET /metrics HTTP/1.0' >&3 "
                               "&& echo >&3 && grep -q '^elastic_run_world_size{.*} 2$' <&3",
                               user),
                          NULL, NODES_WAIT) == 0;

    er_test_done(&p);
    return ok;
}

/* It costs restarts, then the node is kept out, and the others go on without it, as its own status
 * and metrics tell; when its time is over it is taken back. It is a spare meanwhile. */
static void node_that_keeps_failing_is_set_aside_for_a_while(void)
{
    struct nodes_case n;
    struct world_look look = {.n = &n, .world = 2};
    bool http = access(er_test_bin("er_http.so"), F_OK) == 0;
    char port[8], listen[48];

    nodes_begin(&n, "2:3");
    snprintf(port, sizeof(port), "%d", etcd_free_port("127.0.0.1"));
    snprintf(listen, sizeof(listen), "--set=http.listen=127.0.0.1:%s", port);
    for (int i = 0; i < 3; i++) {
        node_start(&n, i,
                   ARGS(http && i == 0 ? listen : "--set=http.listen=none", "--max-restarts=5",
                        "--set=restart.node_strikes.max=2",
                        "--set=restart.node_strikes.cooldown=8s", SH(SICK)));
        if (i == 0)
            er_tap_require(er_test_wait_until(status_comes, &n, NODES_WAIT));
    }
    er_tap_check(er_test_wait_until(world_is_there, &look, NODES_WAIT));
    er_tap_check(er_test_wait_until(status_is_of_two_nodes, &n, NODES_WAIT));
    er_tap_check(!http || er_test_wait_until(metrics_are_of_two_nodes, port, NODES_WAIT));
    er_test_write_file(case_path(&n.c, "mended"), "");
    look = (struct world_look){.n = &n, .after = look.found, .world = 3};
    er_tap_check(er_test_wait_until(world_is_there, &look, NODES_WAIT));
    er_tap_check(er_test_wait_err(
        &n.p[0], "this node is set aside (its workers keep failing): generation", NODES_WAIT));
    nodes_go(&n, "0");
    er_tap_check(nodes_end_with(&n, 0));
    nodes_end(&n);
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name, 0                                                                             \
    }
    static const struct er_tap_case cases[] = {
        CASE(worker_failure_restarts_all_until_the_budget_is_spent),
        CASE(killed_agent_is_noticed_and_the_rest_goes_on),
        CASE(killed_leader_is_followed_by_another),
        CASE(below_min_the_job_waits_for_a_replacement),
        CASE(interrupted_node_leaves_at_once_with_130),
        CASE(stopped_etcd_is_ridden_out),
        CASE(restarted_etcd_is_ridden_out),
        CASE(emptied_etcd_is_begun_anew),
        CASE(killed_etcd_leader_of_three_costs_nothing),
        CASE(policy_stop_stops_workers_before_the_lease_ends),
        CASE(store_lost_for_good_is_69),
        CASE(node_that_keeps_failing_is_set_aside_for_a_while),
    };
    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
