#include "tests/lib/elastic_worker.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "tests/lib/elastic_ps.h"
#include "tests/lib/elastic_shards.h"
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
    bool first_life, sharded, digests, mixes;
    int trace_fd, ps;
    uint64_t step;                     /* of the part that is worked on (parameter servers) */
    uint64_t slow_ms, poison, samples; /* samples: of this step */
    struct er_ctx *ctx;
} worker;

static struct er_elastic_hooks hooks;

void er_elastic_worker_hooks(const struct er_elastic_hooks *what)
{
    hooks = *what;
}

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

static void add_part(float *grads, const float *params, size_t first, size_t n, uint64_t id)
{
    for (size_t i = 0; i < n; i++) {
        float g = 8 * data_of(id, first + i) + (worker.ps > 1 ? 0 : params[i]);

        g = g > CLAMP ? CLAMP : g < -CLAMP ? -CLAMP : g;
        grads[i] += rintf(g * GRID) / GRID;
    }
}

static void add_sample(struct model *m, uint64_t id, double *loss)
{
    add_part(m->grads, m->params, 0, m->n, id);
    *loss += fabs(rintf(m->params[id % m->n] * GRID) / GRID);
}

static const struct er_order *order_of(const struct model *m, const struct er_range *range)
{
    static struct er_order order;

    if (order.n != m->plan.samples || order.epoch != range->epoch)
        er_order_init(&order, m->plan.samples, m->plan.seed, range->epoch);
    return &order;
}

static void add_range(struct model *m, const struct er_range *range, double *loss)
{
    const struct er_order *order = order_of(m, range);

    for (uint64_t s = 0; s < range->count; s++)
        add_sample(m, er_order_at(order, range->first + s), loss);
}

static void update(struct model *m, double weight)
{
    float scale = (float)(1.0 / weight);

    for (size_t i = 0; i < m->n; i++) {
        m->momentum[i] = MOMENTUM * m->momentum[i] + m->grads[i] * scale;
        m->params[i] -= RATE * m->momentum[i];
        m->grads[i] = 0;
    }
    if (worker.mixes)
        m->params[0] += m->momentum[m->n - 1] / 16;
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
    m->params = calloc(2 * n, sizeof(float));
    m->grads = calloc(n, sizeof(float));
    if (!m->params || !m->grads)
        _exit(89);
    m->momentum = m->params + n;
    m->span = (struct er_span){.name = "w", .ptr = m->grads, .count = n};
    m->slices[0] = slice_of("w", m->params, n);
    m->slices[1] = slice_of("w.momentum", m->momentum, n);
}

static void model_done(struct model *m)
{
    free(m->params);
    free(m->grads);
}

static uint64_t digest_of(const struct model *m)
{
    return er_hash(m->params, 2 * m->n * sizeof(float)).lo;
}

/* Either of what is returned may be NULL. */
static void undisturbed(float *ret, uint64_t *ret_digests, size_t params, uint64_t steps,
                        uint64_t epochs, uint64_t without)
{
    const struct er_plan plan = plan_of(steps, epochs);
    struct model m;
    double loss = 0;

    model_init(&m, params, &plan);
    for (uint64_t step = 1; step <= steps; step++) {
        struct er_range range = er_batch(&m.plan, step, 0, 1);

        if (step == without)
            continue;
        add_range(&m, &range, &loss);
        update(&m, (double)range.count);
        if (ret_digests)
            ret_digests[step - 1] = digest_of(&m);
    }
    if (ret)
        memcpy(ret, m.params, 2 * params * sizeof(float));
    model_done(&m);
}

void er_elastic_reference(float *ret, size_t params, uint64_t steps, uint64_t epochs)
{
    undisturbed(ret, NULL, params, steps, epochs, 0);
}

void er_elastic_reference_without(float *ret, size_t params, uint64_t steps, uint64_t epochs,
                                  uint64_t without)
{
    undisturbed(ret, NULL, params, steps, epochs, without);
}

void er_elastic_reference_apart(float *ret, size_t params, uint64_t steps, uint64_t epochs,
                                uint32_t parts)
{
    const struct er_plan plan = plan_of(steps, epochs);
    struct model m;
    double loss = 0;

    model_init(&m, params, &plan);
    worker.ps = 2;
    for (uint64_t step = 1; step <= steps; step++) {
        struct er_range range = er_batch(&m.plan, step, 0, 1);

        add_range(&m, &range, &loss);
        for (size_t i = 0; i < params; i++)
            m.params[i] -= m.grads[i] / (float)parts;
        memset(m.grads, 0, params * sizeof(float));
    }
    worker.ps = 0;
    memcpy(ret, m.params, params * sizeof(float));
    model_done(&m);
}

void er_elastic_digests(uint64_t *ret, size_t params, uint64_t steps, uint64_t epochs)
{
    undisturbed(NULL, ret, params, steps, epochs, 0);
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

bool er_elastic_worker_listed(const char *name, uint64_t step)
{
    const char *list = getenv(name);
    char entry[192];

    snprintf(entry, sizeof(entry), " %s:%" PRIu64 " ", worker.place, step);
    return worker.first_life && list && strstr(list, entry);
}

static bool sleeps_at(uint64_t step)
{
    return er_elastic_worker_listed("WORKER_SLEEP", step);
}

static void sleep_for_ever(void)
{
    for (;;)
        pause();
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
    const char *drag = getenv("WORKER_DRAG");
    uint64_t times = drag && strcmp(drag, worker.place) == 0 ? 4 : 1;
    uint64_t us = times * worker.slow_ms * (1 + step / 20) * ER_US_PER_MS;
    const struct timespec ts = {.tv_sec = (time_t)(us / ER_US_PER_S),
                                .tv_nsec = (long)(us % ER_US_PER_S) * 1000};
    char path[PATH_CAP];

    snprintf(path, sizeof(path), "%s/slow", worker.dir);
    if (access(path, F_OK) == 0)
        nanosleep(&ts, NULL);
}

/* As long as the test wants. */
static void hold(const char *where)
{
    const struct timespec ts = {.tv_nsec = 2000 * 1000};
    char path[PATH_CAP], name[32];

    snprintf(name, sizeof(name), "hold-%s", where);
    path_of(path, name);
    while (access(path, F_OK) == 0)
        nanosleep(&ts, NULL);
}

/* Whatever connects this process with its peers, as by something in between. */
static void reset_connections(void)
{
    const struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    struct sockaddr_storage peer;
    char path[PATH_CAP];

    path_of(path, "reset");
    if (unlink(path) < 0)
        return;
    for (int fd = 3; fd < FD_SETSIZE; fd++) {
        socklen_t n = sizeof(peer);

        if (getpeername(fd, (struct sockaddr *)&peer, &n) == 0 &&
            (peer.ss_family == AF_INET || peer.ss_family == AF_INET6))
            (void)connect(fd, &nowhere, sizeof(nowhere));
    }
}

static int grads(void *user, const struct er_step *step, struct er_loss *ret, struct er_error *err)
{
    struct model *m = user;
    int rc = 0;

    *ret = (struct er_loss){.weight = (double)step->range.count};
    worker.samples = step->range.count;
    hold("data");
    if (sleeps_at(step->step)) {
        er_step_phase(step, ER_PHASE_DATA);
        sleep_for_ever();
    }
    slow_down(step->step);
    reset_connections();
    if (step->step == worker.poison)
        _exit(3);
    if (worker.sharded)
        rc = er_elastic_shards_pass(order_of(m, &step->range), &step->range, add_part, &ret->sum,
                                    err);
    else
        add_range(m, &step->range, &ret->sum);
    if (hooks.step && !worker.sharded)
        hooks.step(worker.place, step->step, m->grads, m->n);
    maybe_die(step->step, ER_KILL_IN_BACKWARD);
    if (!worker.sharded)
        er_ddp_ready(step->ddp, 0);
    return rc;
}

/* Not er_now_us(): who reads the trace compares nodes, of which one may have a wrong clock. */
static uint64_t true_now_us(void)
{
    struct timespec ts = {0};

    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * ER_US_PER_S + (uint64_t)ts.tv_nsec / 1000;
}

static void trace(uint64_t step, uint64_t digest)
{
    const struct er_world *world = er_world(worker.ctx);
    char line[160];
    int n = snprintf(line, sizeof(line),
                     "%" PRIu64 " %" PRIu64 " %" PRIu64 " %d %d %d %016" PRIx64 " %" PRIu64 "\n",
                     true_now_us(), step, world->generation, world->rank, world->size,
                     (int)getpid(), digest, worker.samples);

    put(worker.trace_fd, line, (size_t)n);
}

static int apply(void *user, uint64_t step, const struct er_vote *vote, struct er_error *err)
{
    if (worker.sharded && !er_elastic_shards_update(vote->weight, RATE, MOMENTUM))
        return 0; /* the copy that it keeps */
    maybe_die(step, ER_KILL_BEFORE_APPLY);
    if (!worker.sharded)
        update(user, vote->weight);
    trace(step, worker.digests ? digest_of(user) : 0);
    maybe_die(step, ER_KILL_AFTER_APPLY);
    return 0;
}

/* A part of a step, for parameter servers. */
static int part_grads(void *user, const struct er_step *step, struct er_loss *ret,
                      struct er_error *err)
{
    struct model *m = user;

    *ret = (struct er_loss){.weight = worker.ps > 1 ? 1 : (double)step->range.count};
    worker.samples = step->range.count;
    worker.step = step->step;
    hold("data");
    slow_down(step->step);
    add_range(m, &step->range, &ret->sum);
    trace(step->step, 0);
    er_elastic_part_point(ER_KILL_IN_BACKWARD);
    return 0;
}

void er_elastic_part_point(enum er_kill_point point)
{
    if (worker.first_life && er_elastic_ps_dies(worker.place, worker.step, (int)point))
        raise(SIGKILL);
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

static int evaluate(void *user, uint64_t epoch, uint64_t step, struct er_comm *comm,
                    struct er_error *err)
{
    hold("eval");
    return hooks.epoch ? hooks.epoch(worker.place, comm, err) : 0;
}

/* Who holds a part of the state has all of it at the end. */
static int gather(void *user, uint64_t epoch, uint64_t step, struct er_comm *comm,
                  struct er_error *err)
{
    struct model *m = user;

    return er_elastic_shards_gather(comm, m->params, err);
}

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text ? strtoull(text, NULL, 10) : otherwise;
}

static void leave_pid(const char *file)
{
    char line[32];
    int n = snprintf(line, sizeof(line), "%d\n", (int)getpid()), fd = open_file(file, O_APPEND);

    put(fd, line, (size_t)n);
    close(fd);
}

/* Before it asks for its world: its place is what it was started for. */
static void be_born(void)
{
    const char *node = getenv("ELASTIC_NODE_ID"), *local = getenv("LOCAL_RANK");

    worker.dir = getenv("WORKER_DIR");
    if (!worker.dir || !node || !local)
        return;
    snprintf(worker.place, sizeof(worker.place), "%s-%s", node, local);
    leave_pid("born");
    hold("open");
}

static void come_up(void)
{
    const struct er_world *world = er_world(worker.ctx);
    char path[PATH_CAP];

    worker.slow_ms = number("WORKER_SLOW_MS", 10);
    worker.poison = number("WORKER_POISON", 0);
    worker.digests = number("WORKER_DIGESTS", 0) > 0;
    worker.dir = getenv("WORKER_DIR");
    if (!worker.dir)
        _exit(88);
    snprintf(worker.place, sizeof(worker.place), "%s-%d", world->node_id, world->local_rank);
    path_of(path, "pid");
    worker.first_life = access(path, F_OK) < 0;
    leave_pid("pid");
    worker.trace_fd = open_file("trace", O_APPEND);
    hold("start");
}

static void leave_results(const struct model *m)
{
    int fd = open_file("params", O_TRUNC);

    put(fd, m->params, m->n * sizeof(float));
    put(fd, m->momentum, m->n * sizeof(float));
    close(fd);
}

/* The model's own arrays are not used then, but for a momentum that only the servers have. */
static int run_parts(struct model *m, const struct er_train_opts *opts, struct er_train_result *ret,
                     struct er_error *err)
{
    static const struct er_train_ops OPS = {.grads = part_grads, .epoch_end = evaluate};
    float *params = m->params, *grads = m->grads;
    int rc;

    er_elastic_ps_init(m->n, &m->params, &m->grads);
    rc = er_elastic_ps_run(worker.ctx, &OPS, m, opts, (double)RATE, (double)MOMENTUM, ret, err);
    memcpy(params, m->params, m->n * sizeof(float));
    m->params = params;
    m->grads = grads;
    return rc;
}

int er_elastic_worker(void)
{
    static const struct er_train_ops OPS = {
        .grads = grads, .apply = apply, .spans = spans, .state = state, .epoch_end = evaluate};
    static const struct er_train_ops SHARDED = {.grads = grads,
                                                .apply = apply,
                                                .shard = er_elastic_shards_open,
                                                .state = er_elastic_shards_state,
                                                .epoch_end = gather};
    uint64_t epochs = number("WORKER_EPOCHS", 3);
    struct er_train_opts opts = {.plan = plan_of(number("WORKER_STEPS", 300), epochs),
                                 .epochs = epochs,
                                 .log = er_train_log_stdout};
    struct er_train_result result = {0};
    struct er_error err = ER_ERROR_INIT;
    struct model m;
    int rc;

    be_born();
    rc = er_open(&worker.ctx, &err);
    if (rc < 0) {
        fprintf(stderr, "open: %s\n", err.text);
        return 91;
    }
    come_up();
    if (sleeps_at(0)) {
        er_progress(worker.ctx, ER_PHASE_STARTUP, 0);
        sleep_for_ever();
    }
    model_init(&m, (size_t)number("WORKER_PARAMS", 257), &opts.plan);
    worker.sharded = number("WORKER_SHARDED", 0) > 0;
    opts.shadow = number("WORKER_SHARDED", 0) > 1;
    opts.checkpoint_steps = number("WORKER_SAVE_STEPS", 0);
    opts.newcomers = (enum er_train_newcomers)number("WORKER_NEWCOMERS", 0);
    opts.nonfinite = (enum er_train_nonfinite)number("WORKER_NONFINITE", ER_NONFINITE_STOP);
    worker.mixes = number("WORKER_MIXES", 0) > 0;
    worker.ps = (int)number("WORKER_PS", 0);
    if (worker.sharded)
        er_elastic_shards_init(m.n);
    if (worker.ps > 0)
        rc = run_parts(&m, &opts, &result, &err);
    else
        rc = er_train_run(worker.ctx, worker.sharded ? &SHARDED : &OPS, &m, &opts, &result, &err);
    if (rc < 0)
        fprintf(stderr, "worker %s: %s\n", worker.place, err.text);
    else if (!result.stopped)
        leave_results(&m);
    er_close(worker.ctx);
    model_done(&m);
    return rc < 0 ? 92 : 0;
}
