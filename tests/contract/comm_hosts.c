/*
 * Several hosts, played on one: ranks are told apart by a name for their host. Results are the same
 * bits as anywhere; mistakes and deaths are told across hosts.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "tests/lib/comm_ranks.h"
#include "tests/lib/comm_reference.h"
#include "tests/lib/tap.h"

/* Ranks of each host, in rank order; 0 ends the list. */
static const int *layout;

static struct er_comm *open_on_host(struct rank *r)
{
    struct er_comm_opts opts = {0};
    char host[16];
    int at = 0, i = 0;

    while (layout[i] && at + layout[i] <= r->rank)
        at += layout[i++];
    snprintf(host, sizeof(host), "host-%d", i);
    opts.host = host;
    return rank_open(r, &opts);
}

static void check_all_reduce(struct er_comm *comm, size_t n, enum er_dtype dtype,
                             enum er_reduce reduce)
{
    size_t bytes = n * er_dtype_size(dtype);
    char *got = malloc(bytes + 1), *want = malloc(bytes + 1);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;

    RANK_REQUIRE(got && want);
    reference_fill(got, n, dtype, er_comm_rank(comm), n);
    reference_reduce(want, n, dtype, reduce, er_comm_size(comm), n);
    RANK_OK(er_all_reduce(comm, got, n, dtype, reduce, &op, &err), err);
    RANK_OK(er_op_wait(op, ER_FOREVER, &err), err);
    RANK_REQUIRE(memcmp(got, want, bytes) == 0);
    free(got);
    free(want);
}

static void results(struct rank *r)
{
    static const size_t sizes[] = {0, 1, 1001, 20011, 300007};
    struct er_comm *comm = open_on_host(r);
    struct er_error err = ER_ERROR_INIT;
    struct er_vote vote = {.step = 3, .ok = 1};

    if (r->rank == 0)
        printf("# %s\n", er_comm_describe(comm));
    for (size_t s = 0; s < ER_ARRAY_N(sizes); s++)
        for (int d = 0; d < ER_DTYPE_COUNT; d++)
            for (int k = 0; k < ER_REDUCE_COUNT; k++)
                if (sizes[s] < 100000 || k == d % ER_REDUCE_COUNT)
                    check_all_reduce(comm, sizes[s], (enum er_dtype)d, (enum er_reduce)k);
    RANK_OK(er_vote(comm, &vote, &err), err);
    RANK_REQUIRE(vote.ok == (uint32_t)r->size);
    check_all_reduce(comm, 4000001, ER_BF16, ER_AVG);
    RANK_OK(er_comm_barrier(comm, &err), err);
    er_comm_abort(comm);
}

static void run_layout(const int *hosts, rank_fn fn)
{
    struct ranks ranks = {.size_n = 0};

    layout = hosts;
    for (int i = 0; hosts[i]; i++)
        ranks.size_n += hosts[i];
    run_ranks(&ranks, fn);
}

static void even_hosts(void)
{
    run_layout((const int[]){2, 2, 0}, results);
    run_layout((const int[]){2, 2, 2, 0}, results);
}

static void uneven_hosts(void)
{
    run_layout((const int[]){3, 1, 0}, results);
    run_layout((const int[]){1, 3, 2, 0}, results);
}

static void one_host_after_all(void)
{
    run_layout((const int[]){3, 0}, results);
}

/* More ranks than exchange parts directly: the chain with a rank for each host. */
static void many(struct rank *r)
{
    struct er_comm *comm = rank_open(r, NULL);

    check_all_reduce(comm, 10007, ER_F32, ER_SUM);
    check_all_reduce(comm, 400009, ER_F16, ER_SUM);
    rank_verify(comm);
    er_comm_abort(comm);
}

static void ranks_34(void)
{
    run_ranks(&(struct ranks){.size_n = 34, .transport_of = ER_TRANSPORT_TCP}, many);
}

static void disagree(struct rank *r)
{
    struct er_comm *comm = open_on_host(r);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    static float x[100001];
    uint64_t began_us;

    rank_meet(r, "open");
    began_us = er_now_us();
    if (r->rank == 2) /* not on a rail: nobody waits for its bytes */
        RANK_OK(er_broadcast(comm, x, 5, ER_F32, 0, &op, &err), err);
    else
        RANK_OK(er_all_reduce(comm, x, 100001, ER_F32, ER_SUM, &op, &err), err);
    RANK_REQUIRE(er_op_wait(op, ER_FOREVER, &err) == ER_E_MISMATCH);
    RANK_REQUIRE(er_now_us() - began_us < 30000000 && strstr(err.text, "rank 2 "));
    er_comm_abort(comm);
}

static void mismatch(void)
{
    run_layout((const int[]){3, 1, 0}, disagree);
    run_layout((const int[]){1, 3, 0}, disagree);
}

static void reduce_until_loss(struct rank *r)
{
    struct er_comm *comm = open_on_host(r);
    struct er_error err = ER_ERROR_INIT;
    struct er_op *op = NULL;
    static float x[500000];
    int rc = 0;

    for (int i = 0; rc == 0; i++) {
        if (r->rank == 3 && i == 20)
            raise(SIGKILL);
        rc = er_all_reduce(comm, x, 500000, ER_F32, ER_MAX, &op, &err);
        rc = rc < 0 ? rc : er_op_wait(op, ER_FOREVER, &err);
    }
    if (rc != ER_E_PEER_LOST || !strstr(err.text, "rank 3"))
        printf("# rank %d: %d: %s\n", r->rank, rc, err.text);
    RANK_REQUIRE(rc == ER_E_PEER_LOST && strstr(err.text, "rank 3"));
    er_comm_abort(comm);
}

static void killed_rank(void)
{
    struct ranks ranks = {.size_n = 5};
    struct er_fake_world *world = er_fake_world_new();
    pid_t pid[5];

    layout = (const int[]){2, 3, 0};
    for (int i = 0; i < 5; i++)
        pid[i] = fork_rank(world, &ranks, i, reduce_until_loss);
    for (int i = 0; i < 5; i++) {
        int status = -1;

        waitpid(pid[i], &status, 0);
        er_tap_check(i == 3 || status == 0);
    }
    er_fake_world_free(world);
}

/* Named interfaces; here the one that every machine has. */
static void on_interface(struct rank *r)
{
    struct er_comm_opts opts = {.interfaces = "none,lo"}, wrong = {.interfaces = "none"};
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;

    wrong.transport = r->transport;
    RANK_REQUIRE(er_comm_open(&comm, r->ctx, &wrong, &err) == -ENODEV && strstr(err.text, "none"));
    comm = rank_open(r, &opts);
    rank_verify(comm);
    er_comm_abort(comm);
}

static void interfaces(void)
{
    run_ranks(&(struct ranks){.size_n = 3, .transport_of = ER_TRANSPORT_TCP}, on_interface);
}

/* Of 4 MiB a rank sends 4 MiB; the kernel lets some of it through at once. */
static void slowly(struct rank *r)
{
    enum { N = 1 << 20, RATE = 20000000 };
    struct er_comm_opts opts = {.pace_bytes_per_s = RATE};
    struct er_comm *comm = rank_open(r, &opts);
    uint64_t began_us = er_now_us();

    check_all_reduce(comm, N, ER_F32, ER_MAX);
    check_all_reduce(comm, N, ER_F32, ER_MAX);
    RANK_REQUIRE(er_now_us() - began_us >= 150000);
    er_comm_abort(comm);
}

static void paced(void)
{
    run_ranks(&(struct ranks){.size_n = 2, .transport_of = ER_TRANSPORT_TCP}, slowly);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"even_hosts", even_hosts, 0},
        {"uneven_hosts", uneven_hosts, 0},
        {"one_host_after_all", one_host_after_all, 0},
        {"ranks_34", ranks_34, 0},
        {"mismatch", mismatch, 0},
        {"killed_rank", killed_rank, 0},
        {"interfaces", interfaces, 0},
        {"paced", paced, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
