#pragma once
/*
 * Jobs on several nodes whose workers live on: agents on a private etcd run the worker of
 * tests/lib/elastic_worker.h (the test program itself, with the argument "worker"), and what it
 * left behind is looked at.
 */
#include <sys/stat.h>

#include "tests/integration/nodes_case.h"
#include "tests/lib/elastic_worker.h"

#define ELASTIC_PARAMS 257
#define ELASTIC_STEPS  300

struct elastic_case {
    struct nodes_case n;
    const char *program;   /* the test's own, below the build folder */
    const char *last_call; /* NULL: all nodes are waited for */
    int per_node;
    bool saves; /* with a folder for checkpoints, and so a ledger */
    uint64_t epochs;
    char kill[256];
};

static inline void elastic_begin(struct elastic_case *e, const char *program, const char *nnodes,
                                 int per_node)
{
    memset(e, 0, sizeof(*e));
    nodes_begin(&e->n, nnodes);
    e->program = program;
    e->per_node = per_node;
    e->epochs = 3;
    er_test_write_file(case_path(&e->n.c, "slow"), "");
    er_tap_require(setenv("WORKER_DIR", e->n.c.dir, 1) == 0 && setenv("WORKER_KILL", "", 1) == 0);
}

/* So many epochs, and slow steps of so many milliseconds. Before the nodes are started. */
static inline void elastic_pace(struct elastic_case *e, uint64_t epochs, int slow_ms)
{
    char text[32];

    e->epochs = epochs;
    snprintf(text, sizeof(text), "%d", (int)epochs);
    er_tap_require(setenv("WORKER_EPOCHS", text, 1) == 0);
    snprintf(text, sizeof(text), "%d", slow_ms);
    er_tap_require(setenv("WORKER_SLOW_MS", text, 1) == 0);
}

/* The first worker of each place in the list kills itself there. Before the nodes are started. */
static inline void elastic_kill_at(struct elastic_case *e, const char *list)
{
    snprintf(e->kill, sizeof(e->kill), " %s ", list);
    er_tap_require(setenv("WORKER_KILL", e->kill, 1) == 0);
}

/* With two options more. */
static inline void elastic_start_more(struct elastic_case *e, int node, const char *one,
                                      const char *two)
{
    char nproc[32], dir[ER_TEST_PATH_MAX + 64];

    snprintf(dir, sizeof(dir), "--set=checkpoint.dir=%s/ckpt", e->n.c.dir);
    snprintf(nproc, sizeof(nproc), "--nproc-per-node=%d", e->per_node);
    node_start(&e->n, node,
               ARGS(nproc, "--max-restarts=40", e->last_call ? e->last_call : LAST_CALL, one, two,
                    e->saves ? dir : "--set=resize.settle=0s", er_test_bin(e->program), "worker"));
}

static inline void elastic_start_with(struct elastic_case *e, int node, const char *extra)
{
    elastic_start_more(e, node, extra, extra);
}

static inline void elastic_start(struct elastic_case *e, int node)
{
    elastic_start_with(e, node, "--set=resize.settle=0s");
}

/* The run may come to its end. */
static inline void elastic_hurry(struct elastic_case *e)
{
    unlink(case_path(&e->n.c, "slow"));
}

static inline char *elastic_file(struct elastic_case *e, const char *name, int node, int local)
{
    char file[64];

    snprintf(file, sizeof(file), "%s.n%d-%d", name, node, local);
    return er_test_read_file(case_path(&e->n.c, file));
}

/* Processes that a place has had. */
static inline int elastic_lives(struct elastic_case *e, int node, int local)
{
    char *pids = elastic_file(e, "pid", node, local);
    int n = 0;

    for (const char *at = pids; at && (at = strchr(at, '\n')); at++)
        n++;
    free(pids);
    return n;
}

/* The newest process of a place; 0: it has had none. */
static inline pid_t elastic_pid(struct elastic_case *e, int node, int local)
{
    char *pids = elastic_file(e, "pid", node, local);
    pid_t pid = 0;

    for (char *line = pids, *end; line && (end = strchr(line, '\n')); line = end + 1)
        pid = (pid_t)atoi(line);
    free(pids);
    return pid;
}

struct elastic_step {
    unsigned long long us, step, generation;
    int rank, size, pid;
};

/* The newest step that a place has applied; false: none. */
static inline bool elastic_last(struct elastic_case *e, int node, int local,
                                struct elastic_step *ret)
{
    char *text = elastic_file(e, "trace", node, local);
    bool found = false;

    for (char *line = text, *end; line && (end = strchr(line, '\n')); line = end + 1)
        found |= sscanf(line, "%llu %llu %llu %d %d %d", &ret->us, &ret->step, &ret->generation,
                        &ret->rank, &ret->size, &ret->pid) == 6;
    free(text);
    return found;
}

struct elastic_look {
    struct elastic_case *e;
    int node, size;
    unsigned long long step, generation;
};

static inline bool elastic_reached(void *user)
{
    struct elastic_look *look = user;
    struct elastic_step last;

    return elastic_last(look->e, look->node, 0, &last) && last.step >= look->step &&
           last.generation > look->generation && (!look->size || last.size == look->size);
}

static inline void elastic_notes(struct elastic_case *e)
{
    for (int i = 0; i < NODES_MAX; i++) {
        if (!e->n.started[i])
            continue;
        er_tap_note("-- n%d", i);
        case_note(er_test_err(&e->n.p[i]));
        case_note(er_test_out(&e->n.p[i]));
    }
}

/* Waits until the first worker of `node` has applied `step` or a later one, in a generation after
 * `generation`, with `size` ranks (0: any). Returns that generation. */
static inline unsigned long long elastic_wait(struct elastic_case *e, int node,
                                              unsigned long long generation,
                                              unsigned long long step, int size)
{
    struct elastic_look look = {e, node, size, step, generation};
    struct elastic_step last = {0};

    if (!er_test_wait_until(elastic_reached, &look, NODES_WAIT)) {
        elastic_last(e, node, 0, &last);
        er_tap_note("n%d: no step %llu of %d ranks after generation %llu, but step %llu of "
                    "generation %llu with %d ranks",
                    node, step, size, generation, last.step, last.generation, last.size);
        elastic_notes(e);
        er_tap_require(false);
    }
    elastic_last(e, node, 0, &last);
    return last.generation;
}

/* Parameters and momentum of `node`'s workers are those of an undisturbed run, bit for bit. */
static inline void elastic_expect_exact(struct elastic_case *e, int node)
{
    static float want[2 * ELASTIC_PARAMS];
    static bool made; /* each case is a process of its own */

    if (!made)
        er_elastic_reference(want, ELASTIC_PARAMS, ELASTIC_STEPS, e->epochs);
    made = true;
    for (int local = 0; local < e->per_node; local++) {
        char *got = elastic_file(e, "params", node, local);

        if (!er_tap_check(got && memcmp(got, want, sizeof(want)) == 0))
            er_tap_note("n%d-%d has other parameters, or none", node, local);
        free(got);
    }
}

static inline void elastic_expect_lives(struct elastic_case *e, int node, int local, int lives)
{
    int got = elastic_lives(e, node, local);

    if (er_tap_check(got == lives))
        return;
    er_tap_note("n%d-%d: %d processes, expected %d", node, local, got, lives);
    elastic_notes(e);
}

/* elastic-ctl audit: every sample once. */
static inline void elastic_audit(struct elastic_case *e)
{
    struct er_test_proc p;

    if (!er_tap_check(
            er_test_run(&p, ARGS(er_test_bin("elastic-ctl"), "audit", case_path(&e->n.c, "ckpt")),
                        NULL, NODES_WAIT) == 0) ||
        !er_tap_check(strstr(er_test_out(&p), "samples so far was used exactly once")))
        case_note(er_test_err(&p));
    case_note(er_test_out(&p));
    er_test_done(&p);
}

static inline void elastic_end(struct elastic_case *e)
{
    nodes_end(&e->n);
}
