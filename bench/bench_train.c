/*
 * Training throughput: an MLP (784-1024-1024-10, 256 rows a rank) and a GPT (4 layers, 256
 * channels, 8 heads, 256 bytes, 4 rows a rank), AdamW, float32, one thread a rank, on 1 and 2 ranks
 * of this host. With PEERS=1 beside PyTorch (DDP over Gloo for 2 ranks) with the same shapes, as it
 * is and, the GPT, compiled by torch.compile, round by round in turn: peers_train.py stays alive
 * between its rounds and does nothing then.
 */
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/lib/bench.h"
#include "bench/lib/gpt_job.h"
#include "bench/lib/mlp.h"
#include "tests/lib/ranks.h"

enum { RANKS_MAX = 2, MLP_ROWS = 256, WARM = 3 };

static const size_t mlp_widths[MLP_LAYERS + 1] = {784, 1024, 1024, 10};
/* What runs: on `ranks` ranks, `steps` a round, each of `units` samples or tokens a rank. */
struct member {
    const char *model, *name; /* of its figures: NAME_UNIT_per_s, NAME_over_... */
    const char *unit;
    int ranks;
    size_t steps, units;
    int (*rank_main)(struct er_ctx *ctx, void *user);
};

/* Shared with the ranks. */
struct round {
    size_t steps;
    double ms; /* of all steps, on rank 0 */
};

static void must(int rc, const struct er_error *err)
{
    if (rc != 0)
        bench_fail("%s", err->text);
}

/* ---- ours ---- */

static void open_comm(struct er_comm **ret, struct er_ctx *ctx)
{
    struct er_error err = ER_ERROR_INIT;

    must(er_comm_open(ret, ctx, NULL, &err), &err);
    must(er_comm_wait_ready(*ret, &err), &err);
}

static int gpt_main(struct er_ctx *ctx, void *user)
{
    static struct gpt_job job;
    struct round *round = user;
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm;
    double began = 0;

    open_comm(&comm, ctx);
    gpt_job_open(&job, comm, false, NULL);
    for (size_t i = 0; i < WARM + round->steps; i++) {
        if (i == WARM) {
            must(er_comm_barrier(comm, &err), &err);
            began = bench_now_ms();
        }
        gpt_job_step(&job);
    }
    if (er_comm_rank(comm) == 0)
        round->ms = bench_now_ms() - began;
    gpt_job_close(&job);
    er_comm_abort(comm);
    return 0;
}

static int mlp_main(struct er_ctx *ctx, void *user)
{
    static struct mlp mlp;
    struct round *round = user;
    int rank = er_world(ctx)->rank;
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm;
    struct er_ddp *ddp;
    double began = 0;

    mlp_open(&mlp, mlp_widths, MLP_ROWS, (uint64_t)rank);
    open_comm(&comm, ctx);
    must(er_ddp_open(&ddp, comm, mlp.spans, MLP_PARAMS, NULL, &err), &err);
    for (size_t i = 0; i < WARM + round->steps; i++) {
        if (i == WARM) {
            must(er_comm_barrier(comm, &err), &err);
            began = bench_now_ms();
        }
        mlp_step_ms(&mlp, ddp);
    }
    if (rank == 0)
        round->ms = bench_now_ms() - began;
    er_ddp_close(ddp);
    er_comm_abort(comm);
    mlp_close(&mlp);
    return 0;
}

/* Units a second over all ranks. */
static double rate(const struct member *m, double ms)
{
    return (double)(m->units * m->steps * (size_t)m->ranks) / ms * 1e3;
}

static double our_rate(const struct member *m, struct round *round)
{
    int status[RANKS_MAX];

    round->steps = m->steps;
    er_ranks_run(m->ranks, m->rank_main, round, status);
    for (int rank = 0; rank < m->ranks; rank++) {
        if (status[rank] != 0)
            bench_fail("%s: rank %d ended with %d", m->name, rank, status[rank]);
    }
    return rate(m, round->ms);
}

/* ---- the peer ---- */

enum { EAGER, COMPILED, PEERS };
static const char *const peer_modes[PEERS] = {"eager", "compile"};

struct peer {
    pid_t pid;
    FILE *to, *from;
    struct bench_series rates;
};

static void start_peer(struct peer *peer, const struct member *m, const char *mode)
{
    extern char **environ;
    posix_spawn_file_actions_t actions;
    char python[4096], ranks[8];
    int to[2], from[2];
    char *argv[] = {python,
                    (char *)(uintptr_t)(ER_BENCH_SOURCE "/peers_train.py"),
                    (char *)(uintptr_t)m->model,
                    ranks,
                    (char *)(uintptr_t)mode,
                    NULL};

    snprintf(python, sizeof(python), "%s/bin/python", bench_peers());
    snprintf(ranks, sizeof(ranks), "%d", m->ranks);
    if (pipe2(to, O_CLOEXEC) < 0 || pipe2(from, O_CLOEXEC) < 0)
        bench_fail("pipe: %m");
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], 0);
    posix_spawn_file_actions_adddup2(&actions, from[1], 1);
    if (posix_spawn(&peer->pid, python, &actions, NULL, argv, environ) != 0)
        bench_fail("cannot start '%s'", python);
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    peer->to = fdopen(to[1], "w");
    peer->from = fdopen(from[0], "r");
    if (!peer->to || !peer->from)
        bench_fail("peer: out of memory");
}

static double peer_rate(struct peer *peer, const struct member *m)
{
    double ms = 0;

    fprintf(peer->to, "%zu\n", m->steps);
    fflush(peer->to);
    if (fscanf(peer->from, "%lf", &ms) != 1 || ms <= 0)
        bench_fail("peer of %s: no answer", m->name);
    return rate(m, ms);
}

static void stop_peer(struct peer *peer)
{
    int status;

    fclose(peer->to); /* end of file: it ends */
    fclose(peer->from);
    waitpid(peer->pid, &status, 0);
}

/* ---- all in turn ---- */

static void emit_over(const struct member *m, const char *what, double ours, double theirs)
{
    char figure[64];

    snprintf(figure, sizeof(figure), "%s_over_%s", m->name, what);
    bench_emit_value(figure, ours / theirs, 0, 1);
}

static void emit(const struct member *m, const struct bench_series *ours, const struct peer *peers,
                 size_t peers_n)
{
    char figure[64];

    snprintf(figure, sizeof(figure), "%s_%s_per_s", m->name, m->unit);
    if (peers_n == 0) {
        bench_emit(figure, ours);
        return;
    }
    bench_emit_peer(figure, ours, "torch", &peers[EAGER].rates);
    emit_over(m, "torch", bench_median(ours), bench_median(&peers[EAGER].rates));
    if (peers_n > COMPILED)
        emit_over(m, "torch_compiled", bench_median(ours), bench_median(&peers[COMPILED].rates));
}

static void measure(const struct member *m, struct round *round)
{
    static struct bench_series ours;
    static struct peer peers[PEERS];
    size_t peers_n = !bench_peers() ? 0 : strcmp(m->model, "gpt") == 0 ? PEERS : 1;

    ours.n = 0;
    for (size_t p = 0; p < peers_n; p++) {
        peers[p].rates.n = 0;
        start_peer(&peers[p], m, peer_modes[p]);
        peer_rate(&peers[p], m); /* warm */
    }
    for (size_t i = 0; i < bench_runs(9, 3); i++) {
        bench_add(&ours, our_rate(m, round));
        for (size_t p = 0; p < peers_n; p++)
            bench_add(&peers[p].rates, peer_rate(&peers[p], m));
    }
    for (size_t p = 0; p < peers_n; p++)
        stop_peer(&peers[p]);
    emit(m, &ours, peers, peers_n);
}

int main(void)
{
    static const struct member members[] = {
        {"mlp", "mlp_w1", "samples", 1, 20, MLP_ROWS, mlp_main},
        {"mlp", "mlp_w2", "samples", 2, 20, MLP_ROWS, mlp_main},
        {"gpt", "gpt_w1", "tokens", 1, 4, GPT_JOB_TOKENS, gpt_main},
        {"gpt", "gpt_w2", "tokens", 2, 4, GPT_JOB_TOKENS, gpt_main},
    };
    struct round *round = er_ranks_shared(sizeof(*round));

    for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++)
        measure(&members[i], round);
    return 0;
}
