/*
 * Jobs with parameter servers whose workers and servers are killed, whose nodes join, leave and
 * die: who stays goes on in its process. In the end every part of every step has counted exactly
 * once: the parameters are those of an undisturbed run, bit for bit.
 */
#include "base/cleanup.h"
#include "tests/integration/nodes_elastic.h"
#include "trainer/ps_client.h"

#define PROGRAM "tests/integration/integration_nodes_ps"
#define PARTS   4

enum { LOCK_STEP = 1, APART = 2 };

int __real_er_ps_client_commit(struct er_ps_client *client, struct er_error *err);
int __wrap_er_ps_client_commit(struct er_ps_client *client, struct er_error *err);

/* With all parts of a push at the servers; and with all servers having been told that it counts. */
int __wrap_er_ps_client_commit(struct er_ps_client *client, struct er_error *err)
{
    int rc;

    er_elastic_part_point(ER_KILL_BEFORE_APPLY);
    rc = __real_er_ps_client_commit(client, err);
    if (rc == 0)
        er_elastic_part_point(ER_KILL_AFTER_APPLY);
    return rc;
}

static void set_number(const char *name, int value)
{
    char text[16];

    snprintf(text, sizeof(text), "%d", value);
    er_tap_require(setenv(name, text, 1) == 0);
}

static void begin(struct elastic_case *e, const char *nnodes, int per_node, int kind, int servers)
{
    elastic_begin(e, PROGRAM, nnodes, per_node);
    set_number("WORKER_PS", kind);
    set_number("WORKER_SERVERS", servers);
}

static void save_every(struct elastic_case *e, int steps)
{
    e->saves = true;
    set_number("WORKER_SAVE_STEPS", steps);
}

/* The parameters of all workers of a node. */
static void expect_exact(struct elastic_case *e, int node, int kind)
{
    static float want[2 * ELASTIC_PARAMS];

    if (kind == LOCK_STEP)
        er_elastic_reference(want, ELASTIC_PARAMS, ELASTIC_STEPS, e->epochs);
    else
        er_elastic_reference_apart(want, ELASTIC_PARAMS, ELASTIC_STEPS, e->epochs, PARTS);
    for (int local = 0; local < e->per_node; local++) {
        char *got = elastic_file(e, "params", node, local);

        if (!er_tap_check(got && memcmp(got, want, sizeof(want) / 2) == 0))
            er_tap_note("n%d-%d has other parameters, or none", node, local);
        free(got);
    }
}

static bool said(struct elastic_case *e, const char *text)
{
    bool found = false;

    for (int i = 0; i < NODES_MAX; i++)
        found = found || (e->n.started[i] && (strstr(er_test_out(&e->n.p[i]), text) ||
                                              strstr(er_test_err(&e->n.p[i]), text)));
    return found;
}

/* All that still run come to their end. `from`: where a generation's state came from, as the audit
 * says. */
static void finish(struct elastic_case *e, int kind, const char *from)
{
    elastic_hurry(e);
    if (!er_tap_check(nodes_end_with(&e->n, 0)))
        elastic_notes(e);
    for (int i = 0; i < NODES_MAX; i++) {
        if (e->n.started[i])
            expect_exact(e, i, kind);
    }
    if (e->saves)
        elastic_audit_says(e, from);
}

static bool has_second_life(void *user)
{
    struct elastic_look *look = user;

    return elastic_lives(look->e, look->node, look->size) > 1;
}

/* One of three workers of a node kills itself at `where`; `kept`: with no part of the state. */
static void lose_worker(int kind, int servers, int saves, const char *where, bool kept)
{
    struct elastic_case e;
    struct elastic_look look = {.e = &e};
    char list[64];
    int victim = where[0] - '0';

    er_tap_note("kind %d, %d servers, %s", kind, servers, where);
    begin(&e, "1", 3, kind, servers);
    if (saves)
        save_every(&e, saves);
    snprintf(list, sizeof(list), "n0-%s", where);
    elastic_kill_at(&e, list);
    elastic_start(&e, 0);
    look.size = victim;
    if (!er_tap_check(er_test_wait_until(has_second_life, &look, NODES_WAIT)))
        elastic_notes(&e);
    finish(&e, kind, kept ? "memory" : "checkpoint");
    for (int l = 0; l < 3; l++)
        elastic_expect_lives(&e, 0, l, l == victim ? 2 : 1);
    if (!er_tap_check(said(&e, "the memory of the parameter servers") == kept))
        elastic_notes(&e);
    elastic_end(&e);
}

/* Points: 0 before it pushes, 1 before it says that it counts, 2 when all servers know. */
static void a_worker_is_killed_anywhere_in_lock_step(void)
{
    lose_worker(LOCK_STEP, 1, 0, "1:25:0", true);
    lose_worker(LOCK_STEP, 2, 0, "2:25:1", true);
    lose_worker(LOCK_STEP, 2, 0, "2:25:2", true);
}

static void a_worker_is_killed_anywhere_with_a_bound(void)
{
    lose_worker(APART, 1, 0, "1:25:0", true);
    lose_worker(APART, 2, 0, "2:25:1", true);
    lose_worker(APART, 2, 0, "2:25:2", true);
}

/* Its part of the state is gone: the newest checkpoint, in the survivors' processes. */
static void a_server_is_killed(void)
{
    lose_worker(LOCK_STEP, 0, 10, "0:25:1", false);
    lose_worker(LOCK_STEP, 2, 10, "1:25:0", false);
    lose_worker(APART, 1, 10, "0:25:2", false);
}

/* There is none: all begin again, with the first values. */
static void a_server_is_killed_without_a_checkpoint(void)
{
    lose_worker(LOCK_STEP, 0, 0, "1:25:0", false);
    lose_worker(APART, 2, 0, "0:1:0", false);
}

static void join_and_leave(int kind, int servers)
{
    struct elastic_case e;
    unsigned long long two, three, again;

    begin(&e, "2:3", 1, kind, servers);
    e.last_call = NO_LAST_CALL;
    save_every(&e, 1000); /* at the end of epochs alone */
    elastic_start(&e, 0);
    elastic_start(&e, 1);
    two = elastic_wait(&e, 0, 0, 10, 2);
    elastic_start(&e, 2);
    three = elastic_wait(&e, 2, two, 11, 3);
    elastic_preempt(&e, 0); /* server 0, which gives out the parts */
    for (int i = 1; i < 3; i++)
        again = elastic_wait(&e, i, three, 12, 2);
    elastic_start(&e, 0);
    elastic_wait(&e, 0, again, 13, 3);
    finish(&e, kind, "memory");
    for (int i = 1; i < 3; i++)
        elastic_expect_lives(&e, i, 0, 1);
    elastic_end(&e);
}

static void nodes_join_and_servers_leave_and_nothing_is_lost(void)
{
    join_and_leave(LOCK_STEP, 0);
    join_and_leave(APART, 1);
}

static void the_same_with_servers_apart(void)
{
    join_and_leave(LOCK_STEP, 1);
    join_and_leave(APART, 0);
}

/* The others do not wait for the dead one's successor, which joins later. */
static void a_lost_worker_comes_back_by_a_planned_change(void)
{
    for (int kind = LOCK_STEP; kind <= APART; kind++) {
        struct elastic_case e;
        unsigned long long three, two;

        begin(&e, "1", 3, kind, 1);
        elastic_start_with(&e, 0, "--set=restart.on_loss=shrink");
        three = elastic_wait(&e, 0, 0, 5, 3);
        elastic_hold(&e, "start", 0, 2); /* the successor, until it has been seen without */
        kill(elastic_pid(&e, 0, 2), SIGKILL);
        two = elastic_wait(&e, 0, three, 6, 2);
        elastic_let_go(&e, "start", 0, 2);
        elastic_wait(&e, 0, two, 7, 3);
        finish(&e, kind, "");
        for (int l = 0; l < 3; l++)
            elastic_expect_lives(&e, 0, l, l == 2 ? 2 : 1);
        elastic_end(&e);
    }
}

/* Down to a single rank, which takes all parts, and up again; no checkpoint could help. */
static void a_job_shrinks_to_one_rank_and_grows(void)
{
    for (int kind = LOCK_STEP; kind <= APART; kind++) {
        struct elastic_case e;
        unsigned long long three, one;

        begin(&e, "1:3", 1, kind, 0);
        elastic_start_all(&e, 3);
        three = elastic_wait(&e, 0, 0, 10, 3);
        elastic_ctl(&e, "scale", "1:1");
        one = elastic_wait(&e, 0, three, 11, 1);
        elastic_ctl(&e, "scale", "1:3");
        elastic_wait(&e, 0, one, 12, 3);
        finish(&e, kind, "");
        elastic_expect_lives(&e, 0, 0, 1);
        elastic_end(&e);
    }
}

/* Two in a smaller world: a node without a server, then one with a server. */
static void nodes_are_killed(void)
{
    for (int victim = 2; victim >= 1; victim--) {
        struct elastic_case e;
        unsigned long long before;

        begin(&e, "2:3", 1, APART, 2);
        save_every(&e, 5);
        elastic_start_all(&e, 3);
        before = elastic_wait(&e, 0, 0, 10, 3);
        elastic_lose(&e, victim);
        elastic_wait(&e, 0, before, 6, 2);
        elastic_wait(&e, 3 - victim, before, 6, 2);
        finish(&e, APART, victim == 2 ? "memory" : "checkpoint");
        elastic_expect_lives(&e, 0, 0, 1);
        elastic_expect_lives(&e, 3 - victim, 0, 1);
        er_tap_check(said(&e, "the memory of the parameter servers") == (victim == 2));
        elastic_end(&e);
    }
}

/* The whole job is told to go: it meets, saves, and another run goes on from there. */
static void a_job_that_has_to_go_saves_where_it_is(void)
{
    for (int kind = LOCK_STEP; kind <= APART; kind++) {
        struct elastic_case e;
        unsigned long long before;

        begin(&e, "1", 3, kind, 2);
        save_every(&e, 1000);
        elastic_start(&e, 0);
        before = elastic_wait(&e, 0, 0, 10, 3);
        elastic_preempt(&e, 0);
        elastic_start(&e, 0);
        elastic_wait(&e, 0, before, 11, 3);
        finish(&e, kind, "checkpoint");
        for (int l = 0; l < 3; l++)
            elastic_expect_lives(&e, 0, l, 2);
        elastic_end(&e);
    }
}

/* One change after the other, the next one while the last one is still under way. */
static void changes_meet_each_other(void)
{
    for (int kind = LOCK_STEP; kind <= APART; kind++) {
        struct elastic_case e;
        unsigned long long generation;
        pid_t pid;

        begin(&e, "1:3", 2, kind, 3);
        e.last_call = NO_LAST_CALL;
        save_every(&e, 10);
        elastic_start(&e, 0);
        generation = elastic_wait(&e, 0, 0, 3, 2);
        elastic_start(&e, 1);
        elastic_wait_up(&e, 1, 0);
        kill(elastic_pid(&e, 0, 1), SIGKILL); /* while node 1 joins */
        elastic_start(&e, 2);
        generation = elastic_wait(&e, 2, generation, 4, 6);
        pid = elastic_pid(&e, 1, 0);          /* the one that outlives the rest */
        kill(e.n.p[0].pid, SIGTERM);          /* the first servers leave ... */
        kill(elastic_pid(&e, 1, 1), SIGKILL); /* ... and one dies meanwhile */
        er_tap_check(node_finish(&e.n, 0) == 75);
        node_forget(&e.n, 0);
        generation = elastic_wait(&e, 1, generation, 5, 4);
        elastic_lose(&e, 2);
        elastic_wait(&e, 1, generation, 6, 2);
        er_tap_check(elastic_pid(&e, 1, 0) == pid);
        finish(&e, kind, "");
        elastic_end(&e);
    }
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"a_worker_is_killed_anywhere_in_lock_step", a_worker_is_killed_anywhere_in_lock_step, 0},
        {"a_worker_is_killed_anywhere_with_a_bound", a_worker_is_killed_anywhere_with_a_bound, 0},
        {"a_server_is_killed", a_server_is_killed, 0},
        {"a_server_is_killed_without_a_checkpoint", a_server_is_killed_without_a_checkpoint, 0},
        {"nodes_join_and_servers_leave_and_nothing_is_lost",
         nodes_join_and_servers_leave_and_nothing_is_lost, 0},
        {"the_same_with_servers_apart", the_same_with_servers_apart, 0},
        {"a_lost_worker_comes_back_by_a_planned_change",
         a_lost_worker_comes_back_by_a_planned_change, 0},
        {"a_job_shrinks_to_one_rank_and_grows", a_job_shrinks_to_one_rank_and_grows, 0},
        {"nodes_are_killed", nodes_are_killed, 0},
        {"a_job_that_has_to_go_saves_where_it_is", a_job_that_has_to_go_saves_where_it_is, 0},
        {"changes_meet_each_other", changes_meet_each_other, 0},
    };

    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        return er_elastic_worker();
    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
