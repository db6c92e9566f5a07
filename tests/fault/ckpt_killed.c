/* Processes as ranks, one of them killed in the middle of a write: the others go on as a smaller
 * group and commit the checkpoint, with the state as it was when it began. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "ckpt/ckpt.h"
#include "tests/lib/file_hook.h"
#include "tests/lib/tap.h"
#include "tests/lib/tempdir.h"

enum { RANKS_MAX = 5, EPOCHS = 2, BLOB_MAX = 1 << 16, TENSOR_N = 300001, TENSORS = 3 };

/* What the processes share: their network, which tells of the dead. */
struct shared {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t seq[EPOCHS][RANKS_MAX]; /* gathers that a rank has entered */
    char blobs[EPOCHS][2][RANKS_MAX][BLOB_MAX];
    bool dead[RANKS_MAX], struck;
    int commits, by;
};
static struct shared *shared;
static char dir[ER_TEST_PATH_MAX];

static struct {
    int size, victim;
    bool sharded;
    enum er_file_op_kind kind;
    const char *path;
    bool behind; /* the operation has been done */
} plan;

struct member {
    int rank, size;        /* of the group */
    int origin[RANKS_MAX]; /* ranks of the beginning */
    int epoch;
};

static bool somebody_died(const struct member *m)
{
    for (int i = 0; i < m->size; i++)
        if (shared->dead[m->origin[i]])
            return true;
    return false;
}

static bool all_came(const struct member *m, uint64_t seq)
{
    for (int i = 0; i < m->size; i++)
        if (shared->seq[m->epoch][m->origin[i]] < seq)
            return false;
    return true;
}

static int gather(void *user, const void *mine, size_t n, void *all, struct er_error *err)
{
    const struct member *m = user;
    int me = m->origin[m->rank], rc = 0;
    uint64_t seq;

    if (n > BLOB_MAX)
        return er_error_set(err, -EMSGSIZE, "%zu bytes", n);
    pthread_mutex_lock(&shared->lock);
    seq = ++shared->seq[m->epoch][me];
    memcpy(shared->blobs[m->epoch][seq & 1][me], mine, n);
    pthread_cond_broadcast(&shared->changed);
    while (!all_came(m, seq) && !somebody_died(m))
        pthread_cond_wait(&shared->changed, &shared->lock);
    if (!all_came(m, seq))
        rc = er_error_set(err, ER_E_PEER_LOST, "a rank died");
    for (int i = 0; rc == 0 && i < m->size; i++)
        memcpy((char *)all + (size_t)i * n, shared->blobs[m->epoch][seq & 1][m->origin[i]], n);
    pthread_mutex_unlock(&shared->lock);
    return rc;
}

static int commit(void *user, const struct er_ckpt_done *done, struct er_error *err)
{
    const struct member *m = user;

    (void)done;
    (void)err;
    shared->commits++;
    shared->by = m->origin[m->rank];
    return 0;
}

static float value(uint64_t i, int tensor, float seed)
{
    return seed + (float)(i % 1000) + (float)tensor;
}

static float memory[TENSORS][TENSOR_N], *tensors[TENSORS];
static struct er_slice slices[TENSORS];

static void describe(int rank, int size, bool sharded)
{
    static const char *const names[TENSORS] = {"params", "adam.m", "adam.v"};

    for (int t = 0; t < TENSORS; t++) {
        uint64_t first = 0, n = TENSOR_N;

        if (sharded) {
            first = (uint64_t)TENSOR_N * (uint64_t)rank / (uint64_t)size;
            n = (uint64_t)TENSOR_N * (uint64_t)(rank + 1) / (uint64_t)size - first;
        }
        tensors[t] = memory[t];
        slices[t] = (struct er_slice){.name = names[t],
                                      .dtype = ER_CKPT_F32,
                                      .ndim = 1,
                                      .shape = {TENSOR_N},
                                      .offset = first,
                                      .count = n,
                                      .data = tensors[t] + first,
                                      .replicated = !sharded};
    }
}

static void fill(float seed)
{
    for (int t = 0; t < TENSORS; t++)
        for (uint64_t i = 0; i < TENSOR_N; i++)
            tensors[t][i] = value(i, t, seed);
}

static void stop_here(const struct er_file_op *op)
{
    const char *path = op->kind == ER_FILE_RENAME ? op->to : op->path;

    if (op->kind != plan.kind || !strstr(path, plan.path))
        return;
    pthread_mutex_lock(&shared->lock);
    shared->struck = true;
    pthread_cond_broadcast(&shared->changed);
    pthread_mutex_unlock(&shared->lock);
    for (;;)
        pause();
}

static int stop_before(const struct er_file_op *op, size_t *ret_n)
{
    (void)ret_n;
    stop_here(op);
    return 0;
}

static struct er_ckpt_group group_of(struct member *m)
{
    return (struct er_ckpt_group){
        .rank = m->rank, .size = m->size, .user = m, .gather = gather, .commit = commit};
}

static void drop_victim(struct member *m)
{
    int me = m->origin[m->rank], n = 0;

    for (int i = 0; i < m->size; i++) {
        if (m->origin[i] == plan.victim)
            continue;
        m->rank = m->origin[i] == me ? n : m->rank;
        m->origin[n++] = m->origin[i];
    }
    m->size = n;
    m->epoch++;
}

/* Exit status: 0 committed, else the negative of the code. */
static int run_rank(int rank)
{
    struct er_ckpt *ckpt = NULL;
    struct er_error err = ER_ERROR_INIT;
    const struct er_ckpt_opts opts = {.generation = 1};
    const struct er_meta meta = {.applied = 20, .generation = 1, .world_size = plan.size};
    struct member m = {.rank = rank, .size = plan.size};
    struct er_ckpt_group group;
    int rc;

    for (int i = 0; i < plan.size; i++)
        m.origin[i] = i;
    describe(rank, plan.size, plan.sharded);
    fill(2);
    group = group_of(&m);
    rc = er_ckpt_open(&ckpt, dir, &group, &opts, &err);
    if (rank == plan.victim && plan.behind)
        er_file_after = stop_here;
    else if (rank == plan.victim)
        er_file_before = stop_before;
    if (rc == 0)
        rc = er_ckpt_begin(ckpt, slices, TENSORS, &meta, &err);
    if (rc == 0)
        rc = er_ckpt_before_apply(ckpt, &err);
    fill(-9);
    rc = rc == 0 ? er_ckpt_finish(ckpt, &err) : rc;
    if (rc == ER_E_PEER_LOST && er_ckpt_in_flight(ckpt)) {
        drop_victim(&m);
        group = group_of(&m);
        rc = er_ckpt_regroup(ckpt, &group, 2, &err);
        rc = rc == 0 ? er_ckpt_finish(ckpt, &err) : rc;
    }
    er_ckpt_close(ckpt);
    return rc == 0 ? 0 : rc == ER_E_PEER_LOST || rc == -ENODATA ? 2 : 1;
}

static void share(void)
{
    pthread_mutexattr_t mutex;
    pthread_condattr_t cond;

    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    er_tap_require(shared != MAP_FAILED);
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&shared->lock, &mutex);
    pthread_condattr_init(&cond);
    pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&shared->changed, &cond);
}

static void kill_victim(pid_t pid)
{
    int status = 0;

    pthread_mutex_lock(&shared->lock);
    while (!shared->struck)
        pthread_cond_wait(&shared->changed, &shared->lock);
    pthread_mutex_unlock(&shared->lock);
    er_tap_check(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid);
    er_tap_check(WIFSIGNALED(status));
    pthread_mutex_lock(&shared->lock);
    shared->dead[plan.victim] = true;
    pthread_cond_broadcast(&shared->changed);
    pthread_mutex_unlock(&shared->lock);
}

/* Saves step 10 alone, then step 20 as a world that loses its victim. The survivors' common exit
 * status. */
static int run_world(void)
{
    const struct er_meta meta = {.applied = 10};
    struct er_ckpt *ckpt = NULL;
    pid_t pids[RANKS_MAX];
    int common = -1;

    er_test_tempdir(dir);
    share();
    describe(0, 1, false);
    fill(1);
    er_tap_require(er_ckpt_open(&ckpt, dir, NULL, NULL, NULL) == 0);
    er_tap_check(er_ckpt_save(ckpt, slices, TENSORS, &meta, NULL) == 0);
    er_ckpt_close(ckpt);
    for (int i = 0; i < plan.size; i++) {
        pids[i] = fork();
        er_tap_require(pids[i] >= 0);
        if (pids[i] == 0)
            _exit(run_rank(i));
    }
    kill_victim(pids[plan.victim]);
    for (int i = 0; i < plan.size; i++) {
        int status = 0;

        if (i == plan.victim)
            continue;
        er_tap_check(waitpid(pids[i], &status, 0) == pids[i] && WIFEXITED(status));
        er_tap_check(common < 0 || common == WEXITSTATUS(status));
        common = WEXITSTATUS(status);
    }
    return common;
}

/* The newest checkpoint is that of `step`, whole. */
static void expect(uint64_t step, float seed)
{
    struct er_ckpt *ckpt = NULL;
    struct er_error err = ER_ERROR_INIT;
    struct er_meta meta = {0};
    size_t wrong = 0;

    describe(0, 1, false);
    er_tap_require(er_ckpt_open(&ckpt, dir, NULL, NULL, NULL) == 0);
    er_tap_check(er_ckpt_load(ckpt, slices, TENSORS, &meta, NULL, NULL, &err) == 0);
    er_tap_check(meta.applied == step);
    for (int t = 0; t < TENSORS; t++)
        for (uint64_t i = 0; i < TENSOR_N; i++)
            wrong += tensors[t][i] != value(i, t, seed);
    er_tap_check(wrong == 0 && er_ckpt_verify(dir, step, NULL) == 0);
    er_ckpt_close(ckpt);
    er_test_rmtree(dir);
    munmap(shared, sizeof(*shared));
}

static void a_rank_killed_in_mid_write_is_stood_in_for(void)
{
    static const enum er_file_op_kind kinds[] = {ER_FILE_CREATE, ER_FILE_WRITE, ER_FILE_FSYNC};

    for (int size = 2; size <= 4; size++) {
        for (int victim = 0; victim < size; victim++) {
            char path[32];

            snprintf(path, sizeof(path), "/shard-%d-of", victim);
            plan.size = size;
            plan.victim = victim;
            plan.kind = kinds[victim % 3];
            plan.path = path;
            plan.behind = size == 3;
            er_tap_check(run_world() == 0);
            er_tap_check(shared->commits == 1 && shared->by == (victim == 0 ? 1 : 0));
            expect(20, 2);
        }
    }
}

static void what_a_killed_rank_held_alone_is_lost_and_the_old_one_stays(void)
{
    plan.size = 3;
    plan.victim = 1;
    plan.kind = ER_FILE_WRITE;
    plan.path = "/shard-1-of";
    plan.sharded = true;
    er_tap_check(run_world() == 2 && shared->commits == 0);
    expect(10, 1);
}

/* Rank 0 dies on its way to publish: before the rename the others publish, behind it the folder is
 * there already, uncommitted but whole, and the checkpoint counts as failed. */
static void the_one_that_publishes_is_killed(void)
{
    plan.size = 3;
    plan.victim = 0;
    plan.kind = ER_FILE_RENAME;
    plan.path = "/step-000000000020";
    er_tap_check(run_world() == 0 && shared->commits == 1 && shared->by == 1);
    expect(20, 2);
    plan.behind = true;
    er_tap_check(run_world() == 1 && shared->commits == 0);
    expect(20, 2);
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                 \
    {                                                                                              \
#name, name, 0                                                                             \
    }
    static const struct er_tap_case cases[] = {
        CASE(a_rank_killed_in_mid_write_is_stood_in_for),
        CASE(what_a_killed_rank_held_alone_is_lost_and_the_old_one_stays),
        CASE(the_one_that_publishes_is_killed),
    };
    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
