/*
 * The communicator when something goes wrong: killed and stopped ranks, notices, deadlines, aborts
 * in every state.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/rand.h"
#include "runtime/host_internal.h"
#include "tests/lib/comm_ranks.h"
#include "tests/lib/tap.h"

/* On a machine that is busy with other things; the deadlines that must not be what ends a wait are
 * five minutes. */
enum { RANKS_MAX = 8, ELEMENTS_MAX = 200000, BOUND_US = 30000000 };

/* What a case's processes tell each other. */
static struct shared {
    _Atomic int ready_n, victim;
    _Atomic uint64_t hit_us;              /* when the kill or the notice was done */
    _Atomic uint64_t error_us[RANKS_MAX]; /* when each rank had its error */
    uint64_t seed;
} * shared;

static void share(void)
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    er_tap_require(shared != MAP_FAILED);
}

static void reset_shared(uint64_t seed)
{
    memset(shared, 0, sizeof(*shared));
    shared->victim = -1;
    shared->seed = seed;
}

static bool wait_ready_n(int n)
{
    uint64_t deadline_us = er_now_us() + RANK_WAIT_US;

    while (atomic_load(&shared->ready_n) < n && er_now_us() < deadline_us)
        rank_pause_us(100);
    return atomic_load(&shared->ready_n) >= n;
}

/* The same random operation on all ranks. */
static int random_op(struct er_comm *comm, struct er_rand *rand, float *x, struct er_error *err)
{
    struct er_vote vote = {.ok = 1};
    struct er_op *op = NULL;
    uint64_t kind = er_rand_below(rand, 5);
    size_t n = er_rand_below(rand, kind == 0 ? ELEMENTS_MAX : 3000);
    int rc;

    if (kind == 4)
        return er_vote(comm, &vote, err);
    if (kind == 3)
        rc = er_broadcast(comm, x, n, ER_F32,
                          (int)er_rand_below(rand, (uint64_t)er_comm_size(comm)), &op, err);
    else
        rc = er_all_reduce(comm, x, n, ER_F32, ER_MAX, &op, err);
    return rc < 0 ? rc : er_op_wait(op, ER_FOREVER, err);
}

static int ops_until_error(struct rank *r, struct er_comm *comm, struct er_error *err)
{
    static float x[ELEMENTS_MAX];
    struct er_rand rand;
    int rc;

    er_rand_init(&rand, shared->seed);
    do {
        rc = random_op(comm, &rand, x, err);
    } while (rc == 0);
    atomic_store(&shared->error_us[r->rank], er_now_us());
    return rc;
}

/* ---- a rank is killed ---- */

static void survive(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    char victim[32];
    int rc;

    atomic_fetch_add(&shared->ready_n, 1);
    rc = ops_until_error(r, comm, &err);
    snprintf(victim, sizeof(victim), "rank %d ", atomic_load(&shared->victim));
    if (rc != ER_E_PEER_LOST || !strstr(err.text, victim))
        printf("# rank %d: %d: %s\n", r->rank, rc, err.text);
    RANK_REQUIRE(rc == ER_E_PEER_LOST && strstr(err.text, victim) && strstr(err.text, "#"));
    er_comm_abort(comm);
    er_fake_move(r->ctx, r->rank - (r->rank > atomic_load(&shared->victim)), r->size - 1, 2);
    comm = rank_open(r, NULL);
    rank_verify(comm);
    er_comm_abort(comm);
}

static void kill_one(const struct ranks *ranks, uint64_t seed, uint64_t *worst_us)
{
    struct er_fake_world *world = er_fake_world_new();
    struct er_rand rand;
    pid_t pid[RANKS_MAX];
    int victim, status;

    reset_shared(seed);
    er_rand_init(&rand, seed ^ 0x5eed);
    for (int i = 0; i < ranks->size_n; i++)
        pid[i] = fork_rank(world, ranks, i, survive);
    er_tap_require(wait_ready_n(ranks->size_n));
    rank_pause_us(er_rand_below(&rand, 6000));
    victim = (int)er_rand_below(&rand, (uint64_t)ranks->size_n);
    atomic_store(&shared->victim, victim);
    kill(pid[victim], SIGKILL);
    atomic_store(&shared->hit_us, er_now_us());
    for (int i = 0; i < ranks->size_n; i++) {
        uint64_t took_us;

        waitpid(pid[i], &status, 0);
        if (i == victim)
            continue;
        if (!er_tap_check(status == 0))
            er_tap_note("trial %llu, victim %d: rank %d ended with 0x%x", (unsigned long long)seed,
                        victim, i, (unsigned)status);
        took_us = atomic_load(&shared->error_us[i]);
        took_us -= took_us < shared->hit_us ? took_us : shared->hit_us;
        *worst_us = took_us > *worst_us ? took_us : *worst_us;
    }
    er_fake_world_free(world);
}

static void kill_trials(enum er_comm_transport transport, uint64_t first_seed)
{
    enum { TRIALS = 150 };
    uint64_t worst_us = 0;

    share();
    for (uint64_t i = 0; i < TRIALS; i++)
        kill_one(&(struct ranks){.size_n = 3 + (int)(i % 3), .transport_of = transport},
                 first_seed + i, &worst_us);
    er_tap_note("%d kills, slowest notice %.1f ms", TRIALS, (double)worst_us / 1e3);
    er_tap_check(worst_us < BOUND_US);
}

static void kill_shm(void)
{
    kill_trials(ER_TRANSPORT_SHM, 1000);
}

static void kill_tcp(void)
{
    kill_trials(ER_TRANSPORT_TCP, 2000);
}

/* ---- a connection is reset, and nobody dies ---- */

/* Both ends of its data connection to `peer` are told, as if by something in between. */
static void reset_data(struct er_comm *comm, int peer)
{
    const struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    const struct host *h = comm->impl;
    int fd = er_mesh_fd(h->mesh, peer, ER_MESH_DATA);

    RANK_REQUIRE(fd >= 0 && connect(fd, &nowhere, sizeof(nowhere)) == 0);
}

static void reset_then_reopen(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    int rc;

    rank_verify(comm);
    rank_meet(r, "verified");
    if (r->rank == 1)
        reset_data(comm, 0);
    rc = ops_until_error(r, comm, &err);
    if (rc != ER_E_PEER_LOST || !strstr(err.text, "which lives"))
        printf("# rank %d: %d: %s\n", r->rank, rc, err.text);
    RANK_REQUIRE(rc == ER_E_PEER_LOST && strstr(err.text, "which lives"));
    rank_meet(r, "failed");
    er_comm_abort(comm);
    rank_next_generation(r);
    comm = rank_open(r, NULL);
    rank_verify(comm);
    er_comm_abort(comm);
}

/* All ranks are told, long before an operation's time is over, and connect again. */
static void reset_connection(void)
{
    if (rank_on_gpu())
        return; /* its companion has nothing on data connections */
    share();
    for (uint64_t seed = 1; seed <= 5; seed++) {
        reset_shared(seed);
        run_ranks(&(struct ranks){.size_n = 3, .transport_of = ER_TRANSPORT_TCP},
                  reset_then_reopen);
    }
}

/* ---- parent acts on ranks that are blocked ---- */

typedef void (*act_fn)(struct er_fake_world *world, const pid_t *pid);

static void act_on_ranks(const struct ranks *ranks, rank_fn fn, int ready_n, act_fn act)
{
    struct er_fake_world *world = er_fake_world_new();
    pid_t pid[RANKS_MAX];

    reset_shared(7);
    for (int i = 0; i < ranks->size_n; i++)
        pid[i] = fork_rank(world, ranks, i, fn);
    er_tap_require(wait_ready_n(ready_n));
    rank_pause_us(3000); /* most are blocked by now; the outcome is the same if not */
    act(world, pid);
    for (int i = 0; i < ranks->size_n; i++) {
        int status = -1;

        waitpid(pid[i], &status, 0);
        if (i != atomic_load(&shared->victim) && !er_tap_check(status == 0))
            er_tap_note("rank %d ended with status 0x%x", i, (unsigned)status);
    }
    er_fake_world_free(world);
}

static void act_both(rank_fn fn, act_fn act)
{
    share();
    act_on_ranks(&(struct ranks){.size_n = 3, .transport_of = ER_TRANSPORT_SHM}, fn, 3, act);
    act_on_ranks(&(struct ranks){.size_n = 3, .transport_of = ER_TRANSPORT_TCP}, fn, 3, act);
}

static void blocked_by_stopped(struct rank *r)
{
    struct er_comm_opts opts = {.op_timeout_us = 300000};
    struct er_comm *comm = rank_open(r, &opts);
    struct er_error err = ER_ERROR_INIT;
    int rc;

    atomic_fetch_add(&shared->ready_n, 1);
    rc = ops_until_error(r, comm, &err);
    if (r->rank == 1) { /* awake again: told by the others, or finds them gone */
        RANK_REQUIRE(rc < 0);
    } else {
        if (rc != -ETIMEDOUT || !strstr(err.text, "rank 1 made no progress"))
            printf("# rank %d: %d: %s\n", r->rank, rc, err.text);
        RANK_REQUIRE(rc == -ETIMEDOUT && strstr(err.text, "rank 1 made no progress"));
    }
    er_comm_abort(comm);
}

static void stop_rank_1(struct er_fake_world *world, const pid_t *pid)
{
    uint64_t deadline_us = er_now_us() + 300000 + BOUND_US;

    kill(pid[1], SIGSTOP);
    while ((!shared->error_us[0] || !shared->error_us[2]) && er_now_us() < deadline_us)
        rank_pause_us(1000);
    er_tap_check(shared->error_us[0] && shared->error_us[2]);
    kill(pid[1], SIGCONT);
}

static void stopped_rank(void)
{
    act_both(blocked_by_stopped, stop_rank_1);
}

static void blocked_until_notice(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    float x = 1;

    atomic_fetch_add(&shared->ready_n, 1);
    if (r->rank == 2) { /* never starts the operation; sees the notice with its own eyes */
        while (er_notice(r->ctx) != ER_NOTICE_STOP)
            rank_pause_us(1000);
    } else {
        RANK_OK(er_all_reduce(comm, &x, 1, ER_F32, ER_SUM, &op, &err), err);
        RANK_REQUIRE(er_op_wait(op, ER_FOREVER, &err) == ER_E_ABORTED);
        atomic_store(&shared->error_us[r->rank], er_now_us());
        RANK_REQUIRE(strstr(err.text, "stop") && strstr(err.text, "all-reduce #1"));
        rank_meet(r, "both-stopped");
        er_comm_abort(comm);
        return;
    }
    rank_meet(r, "both-stopped");
    er_comm_abort(comm);
}

static void send_stop(struct er_fake_world *world, const pid_t *pid)
{
    for (int i = 0; i < 3; i++)
        er_fake_notice(world, i, 1, ER_NOTICE_STOP);
    shared->hit_us = er_now_us();
}

static void stop_notice(void)
{
    act_both(blocked_until_notice, send_stop);
    for (int i = 0; i < 2; i++)
        er_tap_check(shared->error_us[i] - shared->hit_us < BOUND_US);
}

static void idle_until_loss(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);
    struct er_error err = ER_ERROR_INIT;
    uint64_t deadline_us = er_now_us() + RANK_WAIT_US;
    int rc = 0;

    atomic_fetch_add(&shared->ready_n, 1);
    while (rc == 0 && er_now_us() < deadline_us) {
        rc = er_comm_status(comm, &err);
        rank_pause_us(500);
    }
    RANK_REQUIRE(rc == ER_E_PEER_LOST && strstr(err.text, "rank 1"));
    rank_meet(r, "seen"); /* never completes for the dead: only rank 0 and 2 count */
    er_comm_abort(comm);
}

static void kill_idle(struct er_fake_world *world, const pid_t *pid)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_ctx *ghost = er_fake_ctx(world, 1, 3, 1, 1);

    shared->victim = 1;
    kill(pid[1], SIGKILL);
    er_tap_check(er_barrier(ghost, "seen", RANK_WAIT_US, &err) == 0);
    er_close(ghost);
}

static void status_of_idle(void)
{
    act_both(idle_until_loss, kill_idle);
}

/* Rank 2 dies before it has connected: only the agent can tell, and does. */
static void connect_until_notice(struct rank *r)
{
    struct er_comm_opts opts = {.transport = r->transport};
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;

    if (r->rank == 2) {
        while (er_notice(r->ctx) != ER_NOTICE_STOP)
            rank_pause_us(1000);
        return;
    }
    opts = rank_opts(r, &opts);
    RANK_OK(er_comm_open(&comm, r->ctx, &opts, &err), err);
    RANK_REQUIRE(er_comm_status(comm, &err) == ER_IN_PROGRESS);
    atomic_fetch_add(&shared->ready_n, 1);
    RANK_REQUIRE(er_comm_wait_ready(comm, &err) == ER_E_ABORTED);
    er_comm_abort(comm);
}

static void stop_while_connecting(void)
{
    share();
    act_on_ranks(&(struct ranks){.size_n = 3, .transport_of = ER_TRANSPORT_SHM},
                 connect_until_notice, 2, send_stop);
    act_on_ranks(&(struct ranks){.size_n = 3, .transport_of = ER_TRANSPORT_TCP},
                 connect_until_notice, 2, send_stop);
}

/* ---- aborts and deadlines ---- */

static void abort_in_time(struct er_comm *comm)
{
    uint64_t began_us = er_now_us();

    er_comm_abort(comm);
    RANK_REQUIRE(er_now_us() - began_us < BOUND_US);
}

static void abort_everywhere(struct rank *r)
{
    struct er_comm_opts lonely = {.transport = r->transport, .name = "lonely"};
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;
    struct er_op *op = NULL;
    static float x[100000];

    lonely = rank_opts(r, &lonely);
    /* opened, nobody there; then somewhat further */
    for (int i = 0; i < 2 && r->rank == 0; i++) {
        RANK_OK(er_comm_open(&comm, r->ctx, &lonely, &err), err);
        if (i == 1)
            RANK_REQUIRE(er_comm_status(comm, &err) == ER_IN_PROGRESS);
        RANK_REQUIRE(er_all_reduce(comm, x, 1, ER_F32, ER_SUM, &op, &err) == -ENOTCONN);
        abort_in_time(comm);
    }
    comm = rank_open(r, NULL); /* idle */
    rank_meet(r, "ready");
    abort_in_time(comm);
    rank_next_generation(r);
    comm = rank_open(r, NULL); /* blocked: rank 2 takes no part */
    if (r->rank != 2)
        for (int i = 0; i < 5; i++)
            RANK_OK(er_all_reduce(comm, x, 100000, ER_F32, ER_SUM, &op, &err), err);
    rank_meet(r, "started");
    if (r->rank == 1) {
        abort_in_time(comm);
    } else if (r->rank == 0) { /* failed: its peer has left */
        RANK_REQUIRE(er_op_wait(op, ER_FOREVER, &err) == ER_E_PEER_LOST);
        RANK_REQUIRE(strstr(err.text, "rank 1"));
        RANK_REQUIRE(er_comm_status(comm, &err) == ER_E_PEER_LOST);
    }
    rank_meet(r, "over");
    if (r->rank != 1)
        abort_in_time(comm);
    er_comm_abort(NULL);
}

static void abort_in_each_state(void)
{
    run_both(3, abort_everywhere);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"kill_shm", kill_shm, 120},
        {"kill_tcp", kill_tcp, 120},
        {"reset_connection", reset_connection, 0},
        {"stopped_rank", stopped_rank, 0},
        {"stop_notice", stop_notice, 0},
        {"stop_while_connecting", stop_while_connecting, 0},
        {"status_of_idle", status_of_idle, 0},
        {"abort_in_each_state", abort_in_each_state, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
