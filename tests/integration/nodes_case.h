#pragma once
/*
 * What the tests of jobs on several nodes share: a private etcd, and real agents with node ids n0,
 * n1, ... as processes on this host. Files of a case are in its folder, $CASE of the workers.
 */
#include "tests/contract/etcd_lib.h"
#include "tests/integration/agent_case.h"

#define NODES_MAX  8
#define NODE_ARGS  48
#define NODES_WAIT ER_TEST_DEADLINE_MS

/* The lease is long enough for an agent or an etcd that a loaded machine lets wait: its end would
 * cost a generation. Cases about its end have the shortest one that etcd takes by default. */
#define LEASE       "--set=rendezvous.lease_ttl=20s"
#define SHORT_LEASE "--set=rendezvous.lease_ttl=2s"
#define LEASE_S     2 /* of SHORT_LEASE */

/* All nodes of a case are waited for, however late one of them is. */
#define LAST_CALL    "--set=rendezvous.last_call_timeout=50s"
#define NO_LAST_CALL "--set=rendezvous.last_call_timeout=0s" /* MIN are enough */

/* The next generation has all workers, however late a successor is. */
#define RESPAWN_AT_ONCE "--set=restart.respawn_wait=none"

/* However often a test makes a node's workers fail: with the default the third time within an hour
 * keeps it out for 30 minutes where the others are enough, and nobody waits for it. */
#define NEVER_ASIDE "--set=restart.node_strikes.max=1000"

/* One worker: says who it is in a file named after its generation and rank, then waits for $CASE/go
 * and ends with the code in it (0 when empty). */
#define NODES_WORKER                                                                               \
    "f=$CASE/g$ELASTIC_GENERATION-r$RANK; "                                                        \
    "echo $RANK/$WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT "              \
    "$TORCHELASTIC_RESTART_COUNT $ELASTIC_NODE_ID $ELASTIC_RUN $$ > $f.new; mv $f.new $f; "        \
    "while [ ! -e $CASE/go ]; do sleep 0.1; done; exit $(cat $CASE/go)"

struct nodes_case {
    struct agent_case c;
    struct etcd_cluster etcd;
    const char *nnodes;
    struct er_test_proc p[NODES_MAX];
    bool started[NODES_MAX];
    const char *agent[NODES_MAX]; /* program of the build folder; NULL: elastic-run */
    char enter[NODES_MAX][16];    /* process whose network the agent has; "": this one's */
};

static inline void nodes_begin_as(struct nodes_case *n, const char *nnodes, const char *scheme,
                                  const char *listen, const char *const *extra)
{
    memset(n, 0, sizeof(*n));
    case_begin(&n->c);
    n->nnodes = nnodes;
    etcd_start_with(&n->etcd, 1, scheme, listen, extra);
}

static inline void nodes_begin_with(struct nodes_case *n, const char *nnodes, const char *scheme,
                                    const char *const *extra)
{
    nodes_begin_as(n, nnodes, scheme, "", extra);
}

/* etcd on TCP too: `listen` as in etcd_lib.h. */
static inline void nodes_begin_listening(struct nodes_case *n, const char *nnodes,
                                         const char *listen)
{
    nodes_begin_as(n, nnodes, "unix", listen, NULL);
}

/* On an etcd of `members`. */
static inline void nodes_begin_on(struct nodes_case *n, const char *nnodes, int members)
{
    memset(n, 0, sizeof(*n));
    case_begin(&n->c);
    n->nnodes = nnodes;
    etcd_start(&n->etcd, members);
}

static inline void nodes_begin(struct nodes_case *n, const char *nnodes)
{
    nodes_begin_with(n, nnodes, "unix", NULL);
}

/* Agent `i`: `args` are options that follow ours, then the program. */
static inline void node_start(struct nodes_case *n, int i, const char *const args[])
{
    char id[32], endpoint[1100], nnodes[32], env[ER_TEST_PATH_MAX + 8];
    const char *argv[NODE_ARGS] = {"nsenter",
                                   "-t",
                                   n->enter[i],
                                   "-n",
                                   er_test_bin(n->agent[i] ? n->agent[i] : "elastic-run"),
                                   "--rdzv-id",
                                   n->c.name,
                                   "--rdzv-backend=etcd",
                                   endpoint,
                                   nnodes,
                                   id,
                                   LEASE,
                                   "--set=rendezvous.death_grace=0s",
                                   "--set=rendezvous.replacement_wait=0s",
                                   LAST_CALL,
                                   "--set=resize.settle=0s",
                                   "--set=resize.min_interval=0s",
                                   RESPAWN_AT_ONCE,
                                   NEVER_ASIDE,
                                   "--set=stop.grace=10s"};
    size_t k = 20, from = n->enter[i][0] ? 0 : 4;

    snprintf(id, sizeof(id), "--node-id=n%d", i);
    snprintf(endpoint, sizeof(endpoint), "--rdzv-endpoint=%s", n->etcd.endpoints);
    snprintf(nnodes, sizeof(nnodes), "--nnodes=%s", n->nnodes);
    for (size_t a = 0; args[a] && k < NODE_ARGS - 1; a++)
        argv[k++] = args[a];
    snprintf(env, sizeof(env), "CASE=%s", n->c.dir);
    er_test_start(&n->p[i], argv + from, (const char *const[]){env, NULL});
    n->started[i] = true;
}

/* -1: it did not end in time. */
static inline int node_finish(struct nodes_case *n, int i)
{
    int code = er_test_wait_exit(&n->p[i], NODES_WAIT) ? er_test_exit_code(&n->p[i]) : -1;

    return code;
}

/* ---- what a test that fails says of its nodes ---- */

#define NOTES_READ_MS 100   /* what is in the pipes is read at once */
#define NOTES_ASK_MS  10000 /* of agents that do not answer */

static inline void node_note(struct nodes_case *n, int i)
{
    struct er_test_proc *p = &n->p[i];

    if (er_test_wait_exit(p, NOTES_READ_MS))
        er_tap_note("-- n%d: exit code %d", i, er_test_exit_code(p));
    else
        er_tap_note("-- n%d: runs, guard %d, agent %d", i, (int)p->pid, (int)agent_of(p->pid));
    case_note(er_test_err(p));
    case_note(er_test_out(p));
}

/* What the job says of itself. */
static inline void nodes_ask(struct nodes_case *n, const char *verb)
{
    struct er_test_proc p;

    er_tap_note("-- elastic-ctl %s: exit code %d", verb,
                er_test_run(&p, ARGS(er_test_bin("elastic-ctl"), "--job", n->c.name, verb), NULL,
                            NOTES_ASK_MS));
    case_note(er_test_err(&p));
    case_note(er_test_out(&p));
    er_test_done(&p);
}

/* Every node: whether it runs, and all that it has written; then the job's status, and why it does
 * not move. */
static inline void nodes_notes(struct nodes_case *n)
{
    bool any_runs = false;

    for (int i = 0; i < NODES_MAX; i++) {
        if (!n->started[i])
            continue;
        node_note(n, i);
        any_runs |= n->p[i].pid > 0;
    }
    if (!any_runs)
        return;
    nodes_ask(n, "status");
    nodes_ask(n, "explain");
}

/* All agents that were started end with `code`. */
static inline bool nodes_end_with(struct nodes_case *n, int code)
{
    bool all = true;

    for (int i = 0; i < NODES_MAX; i++) {
        int got = n->started[i] ? node_finish(n, i) : code;

        if (got != code) {
            er_tap_note("node n%d: exit code %d, not %d", i, got, code);
            all = false;
        }
    }
    if (!all)
        nodes_notes(n);
    return all;
}

static inline void node_forget(struct nodes_case *n, int i)
{
    er_test_done(&n->p[i]);
    n->started[i] = false;
}

static inline void nodes_end(struct nodes_case *n)
{
    for (int i = 0; i < NODES_MAX; i++) {
        if (n->started[i])
            er_test_done(&n->p[i]);
    }
    etcd_stop(&n->etcd);
    er_test_remove_jobs(getpid()); /* of nodes whose guard and agent were killed together */
    er_test_rmtree(n->c.dir);
}

/* What a worker of NODES_WORKER said. */
struct nodes_said {
    int rank, world, node_rank, nnodes, restarts;
    char master[128], node[64], run[64];
    pid_t pid;
};

static inline bool nodes_said(struct nodes_case *n, int generation, int rank,
                              struct nodes_said *ret)
{
    char file[64];
    char *text;
    int fields;

    snprintf(file, sizeof(file), "g%d-r%d", generation, rank);
    if (!er_test_wait_path(case_path(&n->c, file), NODES_WAIT))
        return false;
    text = er_test_read_file(case_path(&n->c, file));
    fields =
        sscanf(text, "%d/%d %d/%d %127s %d %63s %63s %d", &ret->rank, &ret->world, &ret->node_rank,
               &ret->nnodes, ret->master, &ret->restarts, ret->node, ret->run, &ret->pid);
    free(text);
    return fields == 9;
}

struct nodes_look {
    struct nodes_case *n;
    int after, found;
};

/* A generation above `after` has a first rank: numbers may have gaps. */
static inline bool nodes_any_after(void *user)
{
    struct nodes_look *look = user;
    char file[64];

    for (int g = look->after + 1; g < look->after + 20 && !look->found; g++) {
        snprintf(file, sizeof(file), "g%d-r0", g);
        if (case_has(&look->n->c, file))
            look->found = g;
    }
    return look->found != 0;
}

/* The generation that follows `after`, once every rank of it has started, all agree, and ranks and
 * node ranks are where they belong; 0: there is none. */
static inline int nodes_next(struct nodes_case *n, int after, int world, int nnodes)
{
    struct nodes_look look = {n, after, 0};
    struct nodes_said first, said;
    bool ok = er_test_wait_until(nodes_any_after, &look, NODES_WAIT) &&
              nodes_said(n, look.found, 0, &first);

    for (int rank = 0; ok && rank < world; rank++) {
        ok = nodes_said(n, look.found, rank, &said) && said.rank == rank && said.world == world &&
             said.nnodes == nnodes && said.node_rank >= 0 && said.node_rank < nnodes &&
             strcmp(said.master, first.master) == 0 && strcmp(said.run, first.run) == 0 &&
             said.restarts == first.restarts;
    }
    if (ok)
        return look.found;
    er_tap_note("after generation %d none has formed with %d ranks on %d nodes", after, world,
                nnodes);
    nodes_notes(n);
    return 0;
}

/* No generation follows `generation`. */
static inline bool nodes_none_after(struct nodes_case *n, int generation)
{
    return !nodes_any_after(&(struct nodes_look){n, generation, 0});
}

/* The workers end with `code`. */
static inline void nodes_go(struct nodes_case *n, const char *code)
{
    er_test_write_file(case_path(&n->c, "go.new"), code);
    er_tap_require(rename(case_path(&n->c, "go.new"), case_path(&n->c, "go")) == 0);
}

static inline void nodes_wait_again(struct nodes_case *n)
{
    unlink(case_path(&n->c, "go"));
}

/* The agent itself, the guard's only child. */
static inline pid_t node_agent(struct nodes_case *n, int i)
{
    return agent_of(n->p[i].pid);
}
