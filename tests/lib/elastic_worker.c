#include "tests/lib/elastic_worker.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "trainer/train.h"

#define GRID     1024.0f /* gradients are multiples of 1/GRID, and at most 64: sums are exact */
#define CLAMP    64.0f
#define RATE     0.01f
#define MOMENTUM 0.9f
#define PATH_CAP 1024

struct model {
    size_t n;
    struct er_plan plan;
    float *params, *grads, *momentum;
    struct er_span span;
    struct er_slice slices[2];
};

static struct {
    const char *dir;
    char place[128];
    bool first_life;
    int trace_fd;
    uint64_t slow_ms;
    struct er_ctx *ctx;
} worker;

static struct er_plan plan_of(uint64_t steps, uint64_t epochs)
{
    return (struct er_plan){
        .samples = ER_WORKER_BATCH * steps / epochs, .global_batch = ER_WORKER_BATCH, .seed = 3};
}

/* In [-1, 1): of sample `id`, for parameter i. A cheap mix; whole models of 10 million too. */
static float data_of(uint64_t id, uint64_t i)
{
    uint64_t x = (id + 1) * 0x9e3779b97f4a7c15ull ^ (i + 1) * 0xbf58476d1ce4e5b9ull;

    x ^= x >> 29;
    x *= 0x94d049bb133111ebull;
    return (float)(int32_t)(x >> 32) / 2147483648.0f;
}

static void add_sample(struct model *m, uint64_t id, double *loss)
{
    for (size_t i = 0; i < m->n; i++) {
        float g = 8 * data_of(id, i) + m->params[i];

        g = g > CLAMP ? CLAMP : g < -CLAMP ? -CLAMP : g;
        m->grads[i] += rintf(g * GRID) / GRID;
    }
    *loss += fabs(rintf(m->params[id % m->n] * GRID) / GRID);
}

static void add_range(struct model *m, const struct er_range *range, double *loss)
{
    static struct er_order order;

    if (order.n != m->plan.samples || order.epoch != range->epoch)
        er_order_init(&order, m->plan.samples, m->plan.seed, range->epoch);
    for (uint64_t s = 0; s < range->count; s++)
        add_sample(m, er_order_at(&order, range->first + s), loss);
}

static void update(struct model *m, double weight)
{
    float scale = (float)(1.0 / weight);

    for (size_t i = 0; i < m->n; i++) {
        m->momentum[i] = MOMENTUM * m->momentum[i] + m->grads[i] * scale;
        m->params[i] -= RATE * m->momentum[i];
        m->grads[i] = 0;
    }
}

static struct er_slice slice_of(const char *name, float *data, size_t n)
{
    return (struct er_slice){.name = name,
                             .dtype = ER_CKPT_F32,
                             .ndim = 1,
                             .shape = {n},
                             .count = n,
                             .data = data,
                             .replicated = true};
}

static void model_init(struct model *m, size_t n, const struct er_plan *plan)
{
    m->n = n;
    m->plan = *plan;
    m->params = calloc(n, sizeof(float));
    m->grads = calloc(n, sizeof(float));
    m->momentum = calloc(n, sizeof(float));
    if (!m->params || !m->grads || !m->momentum)
        _exit(89);
    m->span = (struct er_span){.name = "w", .ptr = m->grads, .count = n};
    m->slices[0] = slice_of("w", m->params, n);
    m->slices[1] = slice_of("w.momentum", m->momentum, n);
}

static void model_done(struct model *m)
{
    free(m->params);
    free(m->grads);
    free(m->momentum);
}

void er_elastic_reference(float *ret, size_t params, uint64_t steps, uint64_t epochs)
{
    const struct er_plan plan = plan_of(steps, epochs);
    struct model m;
    double loss = 0;

    model_init(&m, params, &plan);
    for (uint64_t step = 1; step <= steps; step++) {
        struct er_range range = er_batch(&m.plan, step, 0, 1);

        add_range(&m, &range, &loss);
        update(&m, (double)range.count);
    }
    memcpy(ret, m.params, params * sizeof(float));
    memcpy(ret + params, m.momentum, params * sizeof(float));
    model_done(&m);
}

/* ---- the process ---- */

static void maybe_die(uint64_t step, enum er_kill_point point)
{
    const char *list = getenv("WORKER_KILL");
    char entry[192];

    snprintf(entry, sizeof(entry), " %s:%" PRIu64 ":%d ", worker.place, step, (int)point);
    if (worker.first_life && list && strstr(list, entry))
        raise(SIGKILL);
}

static void path_of(char ret[PATH_CAP], const char *name)
{
    snprintf(ret, PATH_CAP, "%s/%s.%s", worker.dir, name, worker.place);
}

static int open_file(const char *name, int flags)
{
    char path[PATH_CAP];
    int fd;

    path_of(path, name);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
    if (fd < 0)
        _exit(90);
    return fd;
}

static void put(int fd, const void *data, size_t n)
{
    const char *at = data;

    while (n > 0) {
        ssize_t done = write(fd, at, n);

        if (done < 0)
            _exit(90);
        at += done;
        n -= (size_t)done;
    }
}

/* More and more: a test that waits for something does not see the run end first. */
static void slow_down(uint64_t step)
{
    uint64_t us = worker.slow_ms * (1 + step / 20) * ER_US_PER_MS;
    const struct timespec ts = {.tv_sec = (time_t)(us / ER_US_PER_S),
                                .tv_nsec = (long)(us % ER_US_PER_S) * 1000};
    char path[PATH_CAP];

    snprintf(path, sizeof(path), "%s/slow", worker.dir);
    if (access(path, F_OK) == 0)
        nanosleep(&ts, NULL);
}

static int grads(void *user, const struct er_step *step, struct er_loss *ret, struct er_error *err)
{
    struct model *m = user;

    *ret = (struct er_loss){.weight = (double)step->range.count};
    slow_down(step->step);
    add_range(m, &step->range, &ret->sum);
    maybe_die(step->step, ER_KILL_IN_BACKWARD);
    er_ddp_ready(step->ddp, 0);
    return 0;
}

static int apply(void *user, uint64_t step, const struct er_vote *vote, struct er_error *err)
{
    const struct er_world *world = er_world(worker.ctx);
    char line[160];
    int n;

    maybe_die(step, ER_KILL_BEFORE_APPLY);
    update(user, vote->weight);
    n = snprintf(line, sizeof(line), "%" PRIu64 " %" PRIu64 " %" PRIu64 " %d %d %d\n", er_now_us(),
                 step, world->generation, world->rank, world->size, (int)getpid());
    put(worker.trace_fd, line, (size_t)n);
    maybe_die(step, ER_KILL_AFTER_APPLY);
    return 0;
}

static void spans(void *user, const struct er_span **ret, size_t *ret_n)
{
    struct model *m = user;

    *ret = &m->span;
    *ret_n = 1;
}

static void state(void *user, const struct er_slice **ret, size_t *ret_n)
{
    struct model *m = user;

    *ret = m->slices;
    *ret_n = 2;
}

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void come_up(void)
{
    const struct er_world *world = er_world(worker.ctx);
    char path[PATH_CAP], line[32];
    int fd, n = snprintf(line, sizeof(line), "%d\n", (int)getpid());

    worker.slow_ms = number("WORKER_SLOW_MS", 10);
    worker.dir = getenv("WORKER_DIR");
    if (!worker.dir)
        _exit(88);
    snprintf(worker.place, sizeof(worker.place), "%s-%d", world->node_id, world->local_rank);
    path_of(path, "pid");
    worker.first_life = access(path, F_OK) < 0;
    fd = open_file("pid", O_APPEND);
    put(fd, line, (size_t)n);
    close(fd);
    worker.trace_fd = open_file("trace", O_APPEND);
}

static void leave_results(const struct model *m)
{
    int fd = open_file("params", O_TRUNC);

    put(fd, m->params, m->n * sizeof(float));
    put(fd, m->momentum, m->n * sizeof(float));
    close(fd);
}

int er_elastic_worker(void)
{
    static const struct er_train_ops OPS = {
        .grads = grads, .apply = apply, .spans = spans, .state = state};
    uint64_t epochs = number("WORKER_EPOCHS", 3);
    struct er_train_opts opts = {.plan = plan_of(number("WORKER_STEPS", 300), epochs),
                                 .epochs = epochs,
                                 .log = er_train_log_stdout};
    struct er_train_result result = {0};
    struct er_error err = ER_ERROR_INIT;
    struct model m;
    int rc = er_open(&worker.ctx, &err);

    if (rc < 0) {
        fprintf(stderr, "open: %s\n", err.text);
        return 91;
    }
    come_up();
    model_init(&m, (size_t)number("WORKER_PARAMS", 257), &opts.plan);
    rc = er_train_run(worker.ctx, &OPS, &m, &opts, &result, &err);
    if (rc < 0)
        fprintf(stderr, "worker %s: %s\n", worker.place, err.text);
    else if (!result.stopped)
        leave_results(&m);
    er_close(worker.ctx);
    model_done(&m);
    return rc < 0 ? 92 : 0;
}
