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
    uint64_t without; /* step whose samples are left out; 0: none */
    int failures;     /* of this process when the case began */
    bool told;        /* elastic_notes() */
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
    e->failures = er_tap_failures();
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
    char nproc[32], dir[ER_TEST_PATH_MAX + 64], logs[ER_TEST_PATH_MAX + 32];

    snprintf(dir, sizeof(dir), "--set=checkpoint.dir=%s/ckpt", e->n.c.dir);
    snprintf(logs, sizeof(logs), "--log-dir=%s/logs", e->n.c.dir);
    snprintf(nproc, sizeof(nproc), "--nproc-per-node=%d", e->per_node);
    node_start(&e->n, node,
               ARGS(nproc, logs, "--redirects=0", "--max-restarts=40",
                    e->last_call ? e->last_call : LAST_CALL, one, two,
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

static inline int elastic_lines(struct elastic_case *e, const char *name, int node, int local)
{
    char *pids = elastic_file(e, name, node, local);
    int n = 0;

    for (const char *at = pids; at && (at = strchr(at, '\n')); at++)
        n++;
    free(pids);
    return n;
}

/* Processes that a place has had. */
static inline int elastic_lives(struct elastic_case *e, int node, int local)
{
    return elastic_lines(e, "pid", node, local);
}

static inline pid_t elastic_newest(struct elastic_case *e, const char *name, int node, int local)
{
    char *pids = elastic_file(e, name, node, local);
    pid_t pid = 0;

    for (char *line = pids, *end; line && (end = strchr(line, '\n')); line = end + 1)
        pid = (pid_t)atoi(line);
    free(pids);
    return pid;
}

/* The newest process of a place; 0: it has had none. */
static inline pid_t elastic_pid(struct elastic_case *e, int node, int local)
{
    return elastic_newest(e, "pid", node, local);
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

static inline void elastic_note_place(struct elastic_case *e, int node, int local)
{
    struct elastic_step last = {0};
    pid_t pid = elastic_pid(e, node, local);

    elastic_last(e, node, local, &last);
    er_tap_note("n%d-%d: process %d of this place, %d, %s; step %llu of generation %llu as rank %d "
                "of %d was the newest, by %d",
                node, local, elastic_lives(e, node, local), (int)pid,
                pid && kill(pid, 0) == 0 ? "lives" : "is gone", last.step, last.generation,
                last.rank, last.size, last.pid);
}

static inline void elastic_note_stretch(int node, int local, const struct elastic_step *first,
                                        const struct elastic_step *last)
{
    if (last->pid)
        er_tap_note("n%d-%d: process %d, generation %llu, rank %d of %d: steps %llu to %llu", node,
                    local, last->pid, last->generation, last->rank, last->size, first->step,
                    last->step);
}

/* From which step to which the processes of a place have gone in each generation. */
static inline void elastic_note_steps(struct elastic_case *e, int node, int local)
{
    char *text = elastic_file(e, "trace", node, local);
    struct elastic_step first = {0}, last = {0}, s;

    for (char *line = text, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        if (sscanf(line, "%llu %llu %llu %d %d %d", &s.us, &s.step, &s.generation, &s.rank, &s.size,
                   &s.pid) != 6)
            continue;
        if (s.pid != last.pid || s.generation != last.generation || s.step < last.step ||
            s.step > last.step + 1) {
            elastic_note_stretch(node, local, &first, &last);
            first = s;
        }
        last = s;
    }
    elastic_note_stretch(node, local, &first, &last);
    free(text);
}

/* What the agents have noted. */
static inline void elastic_note_events(struct elastic_case *e)
{
    struct er_test_proc p;
    char text[ER_TEST_PATH_MAX + 32];

    snprintf(text, sizeof(text), "log:\n  dir: %s/logs\n", e->n.c.dir);
    er_tap_note("-- events");
    er_test_run(
        &p,
        ARGS(er_test_bin("elastic-ctl"), "-f", case_job(&e->n.c, "[true]", text), "events", "300"),
        NULL, NODES_WAIT);
    case_note(er_test_out(&p));
    case_note(er_test_err(&p));
    er_test_done(&p);
}

/* What becomes of every worker, every agent, and the job: once, when a case fails. */
static inline void elastic_notes(struct elastic_case *e)
{
    if (e->told)
        return;
    e->told = true;
    elastic_note_events(e);
    for (int i = 0; i < NODES_MAX; i++) {
        for (int l = 0; l < e->per_node; l++) {
            if (e->n.started[i])
                elastic_note_place(e, i, l);
            elastic_note_steps(e, i, l);
        }
    }
    nodes_notes(&e->n);
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
        er_elastic_reference_without(want, ELASTIC_PARAMS, ELASTIC_STEPS, e->epochs, e->without);
    made = true;
    for (int local = 0; local < e->per_node; local++) {
        char *got = elastic_file(e, "params", node, local);

        if (!er_tap_check(got && memcmp(got, want, sizeof(want)) == 0))
            er_tap_note("n%d-%d has other parameters, or none", node, local);
        free(got);
    }
}

/* Steps that a process repeats, or leaves out. */
static inline int elastic_odd_steps(struct elastic_case *e, int node, int local)
{
    char *text = elastic_file(e, "trace", node, local);
    struct elastic_step last = {0}, s;
    int odd = 0;

    for (char *line = text, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        if (sscanf(line, "%llu %llu %llu %d %d %d", &s.us, &s.step, &s.generation, &s.rank, &s.size,
                   &s.pid) != 6)
            continue;
        odd += last.pid == s.pid && s.step != last.step + 1;
        last = s;
    }
    free(text);
    return odd;
}

static inline void elastic_expect_lives(struct elastic_case *e, int node, int local, int lives)
{
    int got = elastic_lives(e, node, local);

    if (er_tap_check(got == lives))
        return;
    er_tap_note("n%d-%d: %d processes, expected %d", node, local, got, lives);
    elastic_notes(e);
}

/* elastic-ctl audit: every sample once; and it says `too`. */
static inline void elastic_audit_says(struct elastic_case *e, const char *too)
{
    struct er_test_proc p;

    if (!er_tap_check(
            er_test_run(&p, ARGS(er_test_bin("elastic-ctl"), "audit", case_path(&e->n.c, "ckpt")),
                        NULL, NODES_WAIT) == 0) ||
        !er_tap_check(strstr(er_test_out(&p), "samples so far was used exactly once") &&
                      strstr(er_test_out(&p), too)))
        case_note(er_test_err(&p));
    case_note(er_test_out(&p));
    er_test_done(&p);
}

static inline void elastic_audit(struct elastic_case *e)
{
    elastic_audit_says(e, "exactly once\n");
}

static inline void elastic_end(struct elastic_case *e)
{
    if (er_tap_failures() > e->failures)
        elastic_notes(e);
    nodes_end(&e->n);
}

/* ---- whole stretches of a case ---- */

static inline void elastic_start_all(struct elastic_case *e, int nodes)
{
    for (int i = 0; i < nodes; i++)
        elastic_start(e, i);
}

/* The agent is killed, and by its guard its workers. */
static inline void elastic_lose(struct elastic_case *e, int node)
{
    kill(node_agent(&e->n, node), SIGKILL);
    er_tap_check(node_finish(&e->n, node) == 70);
    node_forget(&e->n, node);
}

/* The node is told to go, and goes. */
static inline void elastic_preempt(struct elastic_case *e, int node)
{
    kill(e->n.p[node].pid, SIGTERM);
    if (!er_tap_check(node_finish(&e->n, node) == 75))
        elastic_notes(e);
    node_forget(&e->n, node);
}

static inline void elastic_ctl(struct elastic_case *e, const char *verb, const char *what)
{
    struct er_test_proc p;

    if (!er_tap_check(
            er_test_run(&p, ARGS(er_test_bin("elastic-ctl"), "--job", e->n.c.name, verb, what),
                        NULL, NODES_WAIT) == 0))
        case_note(er_test_err(&p));
    er_test_done(&p);
}

/* Where a worker waits until it is let go; see elastic_worker.h. */
static inline const char *elastic_hold_path(struct elastic_case *e, const char *where, int node,
                                            int local)
{
    char file[64];

    snprintf(file, sizeof(file), "hold-%s.n%d-%d", where, node, local);
    return case_path(&e->n.c, file);
}

static inline void elastic_hold(struct elastic_case *e, const char *where, int node, int local)
{
    er_test_write_file(elastic_hold_path(e, where, node, local), "");
}

static inline void elastic_let_go(struct elastic_case *e, const char *where, int node, int local)
{
    unlink(elastic_hold_path(e, where, node, local));
}

static inline bool elastic_is_up(void *user)
{
    struct elastic_look *look = user;

    return elastic_lives(look->e, look->node, look->size) > 0;
}

/* A process of that place exists. */
static inline void elastic_wait_up(struct elastic_case *e, int node, int local)
{
    struct elastic_look look = {.e = e, .node = node, .size = local};

    er_tap_require(er_test_wait_until(elastic_is_up, &look, NODES_WAIT));
}

struct elastic_words {
    struct elastic_case *e;
    const char *text;
};

static inline bool elastic_said(void *user)
{
    struct elastic_words *words = user;
    bool said = false;

    for (int i = 0; i < NODES_MAX && !said; i++)
        said = words->e->n.started[i] && er_test_wait_err(&words->e->n.p[i], words->text, 1);
    return said;
}

/* Some agent says so: the one that leads. */
static inline void elastic_wait_said(struct elastic_case *e, const char *text)
{
    struct elastic_words words = {e, text};

    if (!er_tap_check(er_test_wait_until(elastic_said, &words, NODES_WAIT)))
        elastic_notes(e);
}

static inline bool elastic_status_has(void *user)
{
    struct elastic_words *words = user;
    struct er_test_proc p;
    bool has =
        er_test_run(&p, ARGS(er_test_bin("elastic-ctl"), "--job", words->e->n.c.name, "status"),
                    NULL, NODES_WAIT) == 0 &&
        strstr(er_test_out(&p), words->text);

    er_test_done(&p);
    return has;
}

static inline void elastic_wait_status(struct elastic_case *e, const char *text)
{
    struct elastic_words words = {e, text};

    er_tap_check(er_test_wait_until(elastic_status_has, &words, NODES_WAIT));
}

/* All that still run end well, with the parameters of an undisturbed run, and a whole ledger where
 * there is one. */
static inline void elastic_judge(struct elastic_case *e)
{
    elastic_hurry(e);
    er_tap_check(nodes_end_with(&e->n, 0));
    for (int i = 0; i < NODES_MAX; i++) {
        if (e->n.started[i])
            elastic_expect_exact(e, i);
    }
    if (e->saves)
        elastic_audit(e);
}

static inline void elastic_finish(struct elastic_case *e)
{
    elastic_judge(e);
    elastic_end(e);
}
