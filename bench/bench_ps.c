/*
 * A parameter server on this host, in a process of its own, and one worker: rate of pushes (staging
 * and commit included; the optimizer runs with one in eight, which the median leaves out) and of
 * pulls, 16 MiB and 64 MiB, and the time of both with 4 KiB.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/pool.h"
#include "bench/lib/bench.h"
#include "tests/lib/ranks.h"
#include "trainer/ps_client.h"

enum { PARTS = 8, WARM = 2 * PARTS };

struct model {
    struct er_flat_param table[1];
    struct er_flat flat;
    struct er_pool *pool;
};

static void must(int rc, const struct er_error *err)
{
    if (rc != 0)
        bench_fail("%s", err->text);
}

static void open_model(struct model *m, size_t bytes)
{
    struct er_shape shape = er_shape_1d(bytes / sizeof(float));
    struct er_error err = ER_ERROR_INIT;

    er_flat_init(&m->flat, m->table, 1, NULL, 0);
    must(er_flat_add(&m->flat, "w", &shape, NULL, &err), &err);
    must(er_pool_new(&m->pool, er_flat_bytes(&m->flat), &err), &err);
    er_flat_bind(&m->flat, er_pool_alloc(m->pool, er_flat_bytes(&m->flat), ER_FLAT_ALIGN));
}

/* The server's process: its record through shared memory, then it serves until it is killed. */
static pid_t start_server(struct model *m, struct er_host_record *shared, volatile int *ready)
{
    const struct er_ps_server_opts opts = {
        .servers = 1,
        .flat = &m->flat,
        .optim = {.kind = ER_OPTIM_SGD},
        .schedule = {.kind = ER_SCHEDULE_CONSTANT, .lr = 1e-3},
        .parts = PARTS,
        .steps = 1u << 20,
    };
    struct er_error err = ER_ERROR_INIT;
    struct er_ps_server *server;
    pid_t pid = fork();

    if (pid != 0)
        return pid;
    must(er_ps_server_open(&server, &opts, shared, &err), &err);
    must(er_ps_server_run(server, shared, 0, &err), &err);
    *ready = 1;
    for (;;)
        pause();
}

static void measure(size_t bytes, struct bench_series *push_ms, struct bench_series *pull_ms)
{
    struct er_host_record *record = er_ranks_shared(sizeof(*record));
    volatile int *ready = er_ranks_shared(sizeof(*ready));
    struct model m = {0};
    struct er_ps_client *client;
    struct er_error err = ER_ERROR_INIT;
    pid_t pid;

    open_model(&m, bytes);
    pid = start_server(&m, record, ready);
    if (pid < 0)
        bench_fail("fork: %m");
    while (!*ready)
        usleep(1000);
    must(er_ps_client_open(&client, NULL, 0, &m.flat, record, 1, &err), &err);
    push_ms->n = pull_ms->n = 0;
    for (size_t i = 0; i < WARM + bench_runs(50, 10) * PARTS / 2; i++) {
        enum er_ps_answer answer;
        uint64_t part;
        double at[3];

        must(er_ps_client_lease(client, &answer, &part, &err), &err);
        at[0] = bench_now_ms();
        must(er_ps_client_pull(client, m.flat.block[ER_FLAT_VALUE], part / PARTS, &err), &err);
        at[1] = bench_now_ms();
        must(er_ps_client_stage(client, m.flat.block[ER_FLAT_GRAD],
                                &(struct er_ps_push){part, part / PARTS, 1}, &err),
             &err);
        must(er_ps_client_commit(client, &err), &err);
        at[2] = bench_now_ms();
        if (i >= WARM) {
            bench_add(pull_ms, at[1] - at[0]);
            bench_add(push_ms, at[2] - at[1]);
        }
    }
    er_ps_client_close(client);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    er_pool_free(m.pool);
}

/* Milliseconds to the figure's unit. */
static void emit(const char *figure, const struct bench_series *ms, double bytes)
{
    static struct bench_series out;

    out.n = 0;
    for (size_t i = 0; i < ms->n; i++)
        bench_add(&out, bytes > 0 ? bytes / ms->values[i] / 1e6 : ms->values[i] * 1e3);
    bench_emit(figure, &out);
}

int main(void)
{
    static const struct {
        size_t bytes;
        const char *push, *pull;
    } rows[] = {{16u << 20, "push_16MiB_GBps", "pull_16MiB_GBps"},
                {64u << 20, "push_64MiB_GBps", "pull_64MiB_GBps"}};
    static struct bench_series push, pull;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        measure(rows[i].bytes, &push, &pull);
        emit(rows[i].push, &push, (double)rows[i].bytes);
        emit(rows[i].pull, &pull, (double)rows[i].bytes);
    }
    measure(4096, &push, &pull);
    emit("push_4KiB_us", &push, 0);
    emit("pull_4KiB_us", &pull, 0);
    return 0;
}
