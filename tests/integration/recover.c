/*
 * Workers are killed, and the others go on in process: same pids, no checkpoint, and on every rank
 * the parameters of an undisturbed run, bit for bit. This program is also the worker: it trains a
 * toy model under elastic-run, and kills itself where a test says so.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "ckpt/ckpt.h"
#include "tests/lib/proc.h"
#include "tests/lib/tap.h"
#include "tests/lib/tempdir.h"
#include "tests/lib/toy_model.h"
#include "tests/lib/wait.h"
#include "trainer/scaler.h"

#define DEADLINE_MS 90000u
#define RANKS_MAX   4
#define BATCH       48
#define STEPS       300 /* three epochs */

#define CHECKPOINT_STEPS 25
#define OVERFLOW_STEP                                                                              \
    45 /* its gradients are not finite: the loss scale falls, then it is state                     \
        */

/* ---- the worker ---- */

/* Where a worker dies, or is told that its vote failed. */
enum point { IN_BACKWARD, BEFORE_VOTE, IN_VOTE, BEFORE_APPLY, AFTER_APPLY, NOT_READY };

static struct {
    const char *dir;
    int rank; /* in the first generation of this process */
    bool first_life;
    uint64_t applied, pace_us;
} worker;

/* Does `what` name this rank, `step` and `point`? It is a list of "rank:step:point". Once. */
static bool is_told(const char *what, uint64_t step, enum point point)
{
    const char *list = getenv(what);
    char entry[64];

    snprintf(entry, sizeof(entry), " %d:%lu:%d ", worker.rank, (unsigned long)step, (int)point);
    return worker.first_life && list && strstr(list, entry);
}

static void maybe_die(uint64_t step, enum point point)
{
    if (is_told("KILL", step, point))
        raise(SIGKILL);
}

int __real_er_vote(struct er_comm *comm, struct er_vote *inout, struct er_error *err);
int __wrap_er_vote(struct er_comm *comm, struct er_vote *inout, struct er_error *err);

/* A vote that completed elsewhere, and is not seen to here. */
int __wrap_er_vote(struct er_comm *comm, struct er_vote *inout, struct er_error *err)
{
    static bool blinded; /* once: the step may be repeated */
    uint64_t step = inout->step;
    int rc;

    maybe_die(step, IN_VOTE);
    rc = __real_er_vote(comm, inout, err);
    if (rc == 0 && !blinded && is_told("BLIND", step, IN_VOTE)) {
        blinded = true;
        return er_error_set(err, ER_E_PEER_LOST, "as if a peer had been lost in the vote");
    }
    return rc;
}

static void before_ready(struct er_toy *toy, const struct er_step *step, size_t span)
{
    const struct timespec pace = {.tv_nsec = (long)worker.pace_us * 1000};

    nanosleep(&pace, NULL); /* the time that a real model takes */
    if (span == 1)
        maybe_die(step->step, IN_BACKWARD);
}

static int after_backward(struct er_toy *toy, const struct er_step *step, struct er_loss *loss)
{
    /* The step that overflows is applied nowhere. */
    uint64_t expected = worker.applied +
                        (worker.applied + 1 == OVERFLOW_STEP && step->step == OVERFLOW_STEP + 1) +
                        1;

    if (worker.applied > 0 && step->step != expected)
        return er_error_set(NULL, -EPROTO, "step %lu after %lu", (unsigned long)step->step,
                            (unsigned long)worker.applied);
    loss->nonfinite = step->step == OVERFLOW_STEP;
    maybe_die(step->step, BEFORE_VOTE);
    return 0;
}

static void before_apply(struct er_toy *toy, uint64_t step, const struct er_vote *vote)
{
    maybe_die(step - 1, AFTER_APPLY);
    maybe_die(step, BEFORE_APPLY);
    worker.applied = step;
}

static void write_file(const char *name, int flags, const void *data, size_t n)
{
    char path[ER_TEST_PATH_MAX + 64];
    int fd;

    snprintf(path, sizeof(path), "%s/%s.%d", worker.dir, name, worker.rank);
    fd = open(path, O_WRONLY | O_CREAT | flags, 0600);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n)
        _exit(90);
    close(fd);
}

static void note_start(const struct er_world *world)
{
    char line[32], path[ER_TEST_PATH_MAX + 64];
    int n = snprintf(line, sizeof(line), "%d\n", (int)getpid());

    worker.rank = world->rank;
    snprintf(path, sizeof(path), "%s/pid.%d", worker.dir, worker.rank);
    worker.first_life = access(path, F_OK) < 0;
    write_file("pid", O_APPEND, line, (size_t)n);
}

static int work(void)
{
    static const struct er_plan plan = {
        .samples = BATCH * STEPS / 3, .global_batch = BATCH, .seed = 3};
    static struct er_scaler scaler;
    struct er_train_opts opts = {.plan = plan,
                                 .epochs = 3,
                                 .log = er_train_log_stdout,
                                 .checkpoint_keep = STEPS,
                                 .scaler = &scaler};
    struct er_train_result result = {0};
    struct er_error err = ER_ERROR_INIT;
    struct er_ctx *ctx = NULL;
    struct er_toy *toy;
    int rc = er_open(&ctx, &err);

    worker.dir = getenv("RECOVER_DIR");
    worker.pace_us = strtoull(getenv("PACE_US"), NULL, 10);
    opts.checkpoint_steps = CHECKPOINT_STEPS; /* where the job has a folder for them */
    if (rc < 0 || !worker.dir)
        return 91;
    note_start(er_world(ctx));
    toy = er_toy_new(16, &plan, 40 + (uint64_t)worker.rank); /* rank 0's values must win */
    toy->before_ready = before_ready;
    toy->after_backward = after_backward;
    toy->before_apply = before_apply;
    er_scaler_init(&scaler, BATCH);
    maybe_die(0, NOT_READY);
    rc = er_train_run(ctx, &er_toy_ops, toy, &opts, &result, &err);
    if (rc < 0) {
        fprintf(stderr, "worker %d: %s\n", worker.rank, err.text);
        return 92;
    }
    write_file("params", O_TRUNC, toy->params, toy->params_n * sizeof(float));
    write_file("moment", O_TRUNC, toy->momentum, toy->params_n * sizeof(float));
    write_file("scale", O_TRUNC, scaler.state, sizeof(scaler.state));
    write_file("losses", O_TRUNC, toy->losses, sizeof(toy->losses));
    write_file("steps", O_TRUNC, &result, sizeof(result));
    er_close(ctx);
    er_toy_free(toy);
    return 0;
}

/* ---- the tests ---- */

static char root[ER_TEST_PATH_MAX];

struct run {
    struct er_test_proc p;
    char dir[ER_TEST_PATH_MAX + 32];
    int size;
    const char *checkpoints; /* "checkpoint.dir=..."; NULL: none */
};

static void start(struct run *run, const char *name, int size, const char *kill_list,
                  const char *blind_list)
{
    char nproc[16], job[64], dir[sizeof(run->dir) + 16], kills[160], blind[160], pace[32];

    run->size = size;
    snprintf(run->dir, sizeof(run->dir), "%s/%s", root, name);
    er_tap_require(mkdir(run->dir, 0700) == 0);
    snprintf(nproc, sizeof(nproc), "%d", size);
    snprintf(job, sizeof(job), "name=recover-%d-%s", (int)getpid(), name);
    snprintf(dir, sizeof(dir), "RECOVER_DIR=%s", run->dir);
    snprintf(kills, sizeof(kills), "KILL= %s ", kill_list);
    snprintf(blind, sizeof(blind), "BLIND= %s ", blind_list);
    snprintf(pace, sizeof(pace), "PACE_US=%d", 100);
    const char *argv[] = {er_test_bin("elastic-run"),
                          "--nproc-per-node",
                          nproc,
                          "--max-restarts",
                          "40",
                          "--set", /* kills at random places may hit a step three times */
                          "restart.poison_step.failures=1000",
                          "--set", /* all ranks are in each generation, however late one is */
                          "restart.respawn_wait=none",
                          "--set",
                          job,
                          "--set",
                          run->checkpoints ? run->checkpoints : "checkpoint.dir=none",
                          er_test_bin("tests/integration/integration_recover"),
                          "worker",
                          NULL};
    const char *env[] = {dir, kills, blind, pace, NULL};
    er_test_start(&run->p, argv, env);
}

static void *read_all(const struct run *run, const char *name, int rank)
{
    char path[sizeof(run->dir) + 32];

    snprintf(path, sizeof(path), "%s/%s.%d", run->dir, name, rank);
    return er_test_read_file(path);
}

static void finish(struct run *run)
{
    er_tap_require(er_test_wait_exit(&run->p, DEADLINE_MS));
    if (!er_tap_check(er_test_exit_code(&run->p) == 0))
        er_tap_note("%s%s", er_test_err(&run->p), er_test_out(&run->p));
}

/* Which pids a rank of the first generation has had. */
static int lives(const struct run *run, int rank)
{
    ER_CLEANUP(er_cleanup_free) char *pids = read_all(run, "pid", rank);
    int n = 0;

    for (const char *at = pids; at && (at = strchr(at, '\n')); at++)
        n++;
    return n;
}

static bool same_bytes(const struct run *a, int rank_a, const struct run *b, int rank_b,
                       const char *name)
{
    char cmd[4 * ER_TEST_PATH_MAX];

    snprintf(cmd, sizeof(cmd), "cmp -s %s/%s.%d %s/%s.%d", a->dir, name, rank_a, b->dir, name,
             rank_b);
    return system(cmd) == 0;
}

/* Parameters, optimizer state and loss scale of all ranks are those of the undisturbed run; who
 * lived through has seen the loss of every step, none twice with other bits. */
static void expect_same(const struct run *run, const struct run *whole, bool from_start)
{
    ER_CLEANUP(er_cleanup_free) int64_t *scale = read_all(whole, "scale", 0);

    er_tap_check(scale && scale[0] == ER_SCALER_FIRST - 1 && scale[1] == STEPS - OVERFLOW_STEP);
    for (int rank = 0; rank < run->size; rank++) {
        er_tap_check(same_bytes(run, rank, whole, 0, "params"));
        er_tap_check(same_bytes(run, rank, whole, 0, "moment"));
        er_tap_check(same_bytes(run, rank, whole, 0, "scale"));
        if (from_start && lives(run, rank) == 1 &&
            !er_tap_check(same_bytes(run, rank, whole, 0, "losses")))
            er_tap_note("rank %d of %d has other losses", rank, run->size);
    }
}

static void expect_lives(const struct run *run, const char *expected)
{
    char got[RANKS_MAX + 1] = "";

    for (int rank = 0; rank < run->size; rank++)
        got[rank] = (char)('0' + lives(run, rank));
    if (!er_tap_check(strcmp(got, expected) == 0))
        er_tap_note("processes of each rank: %s, expected %s\n%s%s", got, expected,
                    er_test_err(&run->p), er_test_out(&run->p));
}

struct row {
    const char *name, *kill, *blind, *lives;
};

static void kill_at(int size, const struct row *rows, size_t n)
{
    struct run whole = {0};

    er_test_tempdir(root);
    start(&whole, "whole", size, "", "");
    finish(&whole);
    for (size_t i = 0; i < n; i++) {
        struct run run = {0};

        start(&run, rows[i].name, size, rows[i].kill, rows[i].blind);
        finish(&run);
        er_tap_note("%s", rows[i].name);
        expect_lives(&run, rows[i].lives);
        expect_same(&run, &whole, true);
        er_tap_check(strstr(er_test_out(&run.p), "goes on with the memory of rank") ||
                     strchr(rows[i].lives, '1') == NULL);
        er_test_done(&run.p);
    }
    er_test_done(&whole.p);
    er_test_rmtree(root);
}

/* Points as in enum point: 0 in backward, 1 before the vote, 2 in it, 3 before apply, 4 after it, 5
 * before the first step. */
static void one_of_three_is_killed_at_every_point(void)
{
    static const struct row ROWS[] = {
        {"backward", "1:50:0", "", "121"},    {"before-vote", "2:50:1", "", "112"},
        {"in-vote", "1:50:2", "", "121"},     {"before-apply", "2:50:3", "", "112"},
        {"after-apply", "1:50:4", "", "121"}, {"rank-0", "0:50:0", "", "211"},
        {"first-step", "1:1:0", "", "121"},   {"last-step", "1:300:3", "", "121"},
        {"epoch-end", "1:100:4", "", "121"},
    };

    kill_at(3, ROWS, ER_ARRAY_N(ROWS));
}

/* The vote of step 50 completes on rank 0, which applies it, and is not seen to complete elsewhere.
 */
static void who_is_one_step_behind_rolls_forward(void)
{
    static const struct row ROWS[] = {
        {"one-behind", "1:50:3", "2:50:2", "1211"},
        {"two-behind", "1:50:3", "2:50:2 3:50:2", "1211"},
        {"only-the-dead-one-applied", "1:50:3", "0:50:2 2:50:2 3:50:2", "1211"},
        {"rank-0-behind", "3:50:3", "0:50:2", "1112"},
        {"two-killed", "1:50:3 3:50:2", "2:50:2", "1212"},
    };

    kill_at(4, ROWS, ER_ARRAY_N(ROWS));
}

static void several_are_killed_one_after_another(void)
{
    static const struct row ROWS[] = {
        {"two-at-once", "1:50:1 2:50:1", "", "1221"},
        {"all-but-one", "0:50:1 1:50:1 2:50:0", "", "2221"},
        {"each-in-turn", "0:40:3 1:50:3 2:60:3 3:70:3", "", "2222"},
    };

    kill_at(4, ROWS, ER_ARRAY_N(ROWS));
}

/* All verify, and the newest is the end's, of the newest generation. (How many there are depends on
 * the disk: one that falls due while another is written is written later.) */
static void expect_checkpoints(const char *dir, uint64_t generation)
{
    static const struct er_plan plan = {
        .samples = BATCH * STEPS / 3, .global_batch = BATCH, .seed = 3};
    ER_CLEANUP(er_cleanup_free) uint64_t *steps = NULL;
    struct er_toy *toy = er_toy_new(16, &plan, 1);
    struct er_error err = ER_ERROR_INIT;
    struct er_ckpt *ckpt = NULL;
    struct er_meta meta = {0};
    size_t n = 0;

    er_tap_require(er_ckpt_list(dir, &steps, &n, NULL) == 0);
    for (size_t i = 0; i < n; i++)
        er_tap_check(er_ckpt_verify(dir, steps[i], NULL) == 0);
    er_tap_require(er_ckpt_open(&ckpt, dir, NULL, NULL, NULL) == 0);
    if (!er_tap_check(er_ckpt_load(ckpt, toy->slices, 2 * toy->spans_n, &meta, NULL, NULL, &err) ==
                          0 &&
                      meta.applied == STEPS && meta.generation >= generation))
        er_tap_note("step %lu, generation %lu: %s", (unsigned long)meta.applied,
                    (unsigned long)meta.generation, err.text);
    er_ckpt_close(ckpt);
    er_toy_free(toy);
}

/* A worker is killed at a random instant, again and again; sometimes while the last recovery goes
 * on. */
static void workers_are_killed_at_random_instants(void)
{
    unsigned seed = (unsigned)time(NULL) ^ (unsigned)getpid();
    struct run whole = {0}, run = {0};
    char dir[ER_TEST_PATH_MAX + 64];
    int kills = 0;

    er_test_tempdir(root);
    snprintf(dir, sizeof(dir), "checkpoint.dir=%s/random.ckpt", root);
    run.checkpoints = dir;
    start(&whole, "whole", 4, "", "");
    finish(&whole);
    er_tap_note("seed %u", seed);
    start(&run, "random", 4, "", "");
    while (kills < 12 && !er_test_wait_exit(&run.p, (uint32_t)rand_r(&seed) % 150)) {
        int rank = rand_r(&seed) % 4;
        ER_CLEANUP(er_cleanup_free) char *pids = read_all(&run, "pid", rank);
        char *line = pids ? strrchr(pids, '\n') : NULL;

        if (!line)
            continue;
        *line = '\0';
        line = strrchr(pids, '\n');
        kills += kill((pid_t)atoi(line ? line + 1 : pids), SIGKILL) == 0;
    }
    finish(&run);
    er_tap_note("%d kills", kills);
    expect_same(&run, &whole, true);
    expect_checkpoints(strchr(dir, '=') + 1, 1);
    er_test_done(&run.p);
    er_test_done(&whole.p);
    er_test_rmtree(root);
}

/* Killed while a checkpoint is written, or between two; what the survivors and the newcomer save
 * together is the state, and loads at other world sizes. */
static void checkpoints_go_on_behind_a_recovery(void)
{
    static const struct {
        const char *name, *kill;
    } rows[] = {{"in-flight", "1:75:4"}, {"leader", "0:75:4"}, {"between", "2:90:2"}};
    struct run whole = {0};

    er_test_tempdir(root);
    start(&whole, "whole", 3, "", "");
    finish(&whole);
    for (size_t i = 0; i < ER_ARRAY_N(rows); i++) {
        char dir[ER_TEST_PATH_MAX + 64];

        snprintf(dir, sizeof(dir), "checkpoint.dir=%s/%s.ckpt", root, rows[i].name);
        for (int size = 3; size > 0; size--) { /* first the run, then from its end */
            struct run run = {.checkpoints = dir};
            char name[32];

            er_tap_note("%s, %d ranks", rows[i].name, size);
            snprintf(name, sizeof(name), "%s%s", rows[i].name,
                     size == 3   ? ""
                     : size == 2 ? "-2"
                                 : "-1");
            start(&run, name, size, size == 3 ? rows[i].kill : "", "");
            finish(&run);
            expect_same(&run, &whole, size == 3);
            if (size == 3)
                expect_checkpoints(strchr(dir, '=') + 1, 2);
            er_test_done(&run.p);
        }
    }
    er_test_done(&whole.p);
    er_test_rmtree(root);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"one_of_three_is_killed_at_every_point", one_of_three_is_killed_at_every_point, 0},
        {"who_is_one_step_behind_rolls_forward", who_is_one_step_behind_rolls_forward, 0},
        {"several_are_killed_one_after_another", several_are_killed_one_after_another, 0},
        {"workers_are_killed_at_random_instants", workers_are_killed_at_random_instants, 0},
        {"checkpoints_go_on_behind_a_recovery", checkpoints_go_on_behind_a_recovery, 0},
    };

    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        return work();
    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
