#include "trainer/dp.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/pool.h"

/* A device's turn: IDLE -> (the primary has filled its memory) GO -> (its thread is done) DONE ->
 * (the primary has added up) IDLE; or QUIT. */
enum turn { IDLE, GO, DONE, QUIT };

struct device {
    struct er_flat flat; /* the primary's, or a replica: values and gradients alone */
    struct er_tape *tape;
    struct er_pool *values; /* NULL: the primary */
    struct er_pool *inputs; /* grows to the largest batch */
    size_t inputs_bytes;
    struct er_dp_use use;

    struct er_dp_part part;
    struct er_loss loss;
    int rc;
    struct er_error err;

    pthread_mutex_t lock; /* of turn; whose turn it is owns the rest */
    pthread_cond_t changed;
    enum turn turn;
    pthread_t thread;
    bool has_thread;
    struct er_dp *dp;
};

struct er_dp {
    unsigned devices_n;
    er_dp_fn fn; /* of the step that runs */
    void *user;
    struct device devices[ER_DP_DEVICES_MAX];
};

static uint64_t cpu_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * ER_US_PER_S + (uint64_t)now.tv_nsec / 1000;
}

static void set_turn(struct device *device, enum turn turn)
{
    pthread_mutex_lock(&device->lock);
    device->turn = turn;
    pthread_cond_broadcast(&device->changed);
    pthread_mutex_unlock(&device->lock);
}

/* Until it is `a` or `b`. */
static enum turn await_turn(struct device *device, enum turn a, enum turn b)
{
    enum turn turn;

    pthread_mutex_lock(&device->lock);
    while (device->turn != a && device->turn != b)
        pthread_cond_wait(&device->changed, &device->lock);
    turn = device->turn;
    pthread_mutex_unlock(&device->lock);
    return turn;
}

/* ---- a device ---- */

static void run_part(struct device *device)
{
    struct er_dp *dp = device->dp;

    device->loss = (struct er_loss){0};
    device->err = (struct er_error)ER_ERROR_INIT;
    device->rc =
        device->part.samples > 0 ? dp->fn(dp->user, &device->part, &device->loss, &device->err) : 0;
    if (device->rc > 0)
        device->rc = er_error_set(&device->err, ER_E_USAGE,
                                  "the model returned %d: 0 or a negative "
                                  "code is expected",
                                  device->rc);
}

static void *run_device(void *user)
{
    struct device *device = user;

    while (await_turn(device, GO, QUIT) == GO) {
        uint64_t began_us = cpu_us();

        memset(device->flat.block[ER_FLAT_GRAD], 0, device->flat.total * sizeof(float));
        run_part(device);
        device->use.busy_us += cpu_us() - began_us;
        set_turn(device, DONE);
    }
    return NULL;
}

/* ---- opening ---- */

static int open_replica(struct device *device, struct er_error *err)
{
    int rc;

    device->flat.states_n = 0; /* the optimizer is the primary's */
    rc = er_pool_new(&device->values, er_flat_bytes(&device->flat) + ER_FLAT_ALIGN, err);
    if (rc < 0)
        return rc;
    er_flat_bind(&device->flat,
                 er_pool_alloc(device->values, er_flat_bytes(&device->flat), ER_FLAT_ALIGN));
    return 0;
}

/* Signals are the program's own threads' affair. */
static int start_thread(struct device *device, struct er_error *err)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&device->thread, NULL, run_device, device);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return er_error_set(err, -rc, "thread: %s", er_error_name(-rc));
    device->has_thread = true;
    return 0;
}

static int open_device(struct er_dp *dp, unsigned i, const struct er_flat *flat, size_t arena_bytes,
                       struct er_error *err)
{
    struct device *device = &dp->devices[i];
    int rc = 0;

    device->dp = dp;
    device->flat = *flat;
    device->part.device = i;
    pthread_mutex_init(&device->lock, NULL);
    pthread_cond_init(&device->changed, NULL);
    dp->devices_n = i + 1;
    if (i > 0)
        rc = open_replica(device, err);
    if (rc == 0)
        rc = er_tape_new(&device->tape, i > 0 ? &device->flat : flat, arena_bytes, err);
    device->part.tape = device->tape;
    if (rc == 0 && i > 0)
        rc = start_thread(device, err);
    return rc < 0 ? er_error_wrap(err, rc, "device %u", i) : 0;
}

ER_CLEANUP_FOR(er_dp_close, struct er_dp)

int er_dp_open(struct er_dp **ret, const struct er_flat *flat, const struct er_dp_opts *opts,
               struct er_error *err)
{
    ER_CLEANUP(er_dp_close_cleanup) struct er_dp *dp = NULL;

    if (opts->devices < 1 || opts->devices > ER_DP_DEVICES_MAX)
        return er_error_set(err, ER_E_USAGE, "%u devices: 1 to %d are expected", opts->devices,
                            ER_DP_DEVICES_MAX);
    dp = calloc(1, sizeof(*dp));
    if (!dp)
        return er_error_set(err, -ENOMEM, "%u devices", opts->devices);
    for (unsigned i = 0; i < opts->devices; i++) {
        int rc = open_device(dp, i, flat, opts->arena_bytes, err);

        if (rc < 0)
            return rc;
    }
    *ret = ER_TAKE(dp);
    return 0;
}

static void close_device(struct device *device)
{
    if (device->has_thread) {
        set_turn(device, QUIT);
        pthread_join(device->thread, NULL);
    }
    pthread_mutex_destroy(&device->lock);
    pthread_cond_destroy(&device->changed);
    er_tape_free(device->tape);
    er_pool_free(device->values);
    er_pool_free(device->inputs);
}

void er_dp_close(struct er_dp *dp)
{
    int saved = errno;

    if (!dp)
        return;
    for (unsigned i = 0; i < dp->devices_n; i++)
        close_device(&dp->devices[i]);
    free(dp);
    errno = saved;
}

/* ---- a step, by the primary ---- */

static size_t padded(size_t bytes)
{
    return (bytes + ER_FLAT_ALIGN - 1) / ER_FLAT_ALIGN * ER_FLAT_ALIGN;
}

/* Memory for a part's samples. */
static int make_room(struct device *device, const struct er_dp_input *in, size_t inputs_n,
                     struct er_error *err)
{
    size_t bytes = 0;
    int rc;

    for (size_t i = 0; i < inputs_n; i++)
        bytes += padded(in[i].sample_bytes * device->part.samples);
    if (bytes > device->inputs_bytes) {
        er_pool_free(device->inputs);
        device->inputs = NULL;
        device->inputs_bytes = 0;
        rc = er_pool_new(&device->inputs, bytes, err);
        if (rc < 0)
            return er_error_wrap(err, rc, "samples of device %u", device->part.device);
        device->inputs_bytes = bytes;
    }
    if (device->inputs)
        er_pool_reset(device->inputs);
    return 0;
}

/* Samples and parameters of device `i` into its memory. The primary has them. */
static int send_part(struct er_dp *dp, unsigned i, const struct er_dp_input *in, size_t inputs_n,
                     struct er_error *err)
{
    struct device *primary = &dp->devices[0], *device = &dp->devices[i];
    size_t values_bytes = device->flat.total * sizeof(float), bytes = values_bytes;
    int rc = make_room(device, in, inputs_n, err);

    if (rc < 0)
        return rc;
    for (size_t k = 0; k < inputs_n; k++) {
        size_t n = in[k].sample_bytes * device->part.samples;
        void *to = er_pool_alloc(device->inputs, padded(n), ER_FLAT_ALIGN);

        if (n > 0)
            memcpy(to, (const char *)in[k].ptr + in[k].sample_bytes * device->part.first, n);
        device->part.in[k] = to;
        bytes += n;
    }
    memcpy(device->flat.block[ER_FLAT_VALUE], primary->flat.block[ER_FLAT_VALUE], values_bytes);
    device->use.bytes += bytes;
    primary->use.bytes += bytes;
    return 0;
}

/* Adds up what device `i` has, once it is done. */
static int gather_part(struct er_dp *dp, unsigned i, struct er_loss *loss, struct er_error *err)
{
    struct device *primary = &dp->devices[0], *device = &dp->devices[i];
    size_t bytes = device->flat.total * sizeof(float);
    float *to = primary->flat.block[ER_FLAT_GRAD];
    const float *from = device->flat.block[ER_FLAT_GRAD];

    loss->sum += device->loss.sum;
    loss->weight += device->loss.weight;
    loss->nonfinite += device->loss.nonfinite;
    if (device->rc < 0)
        return er_error_set(err, device->rc, "device %u: %s", i, device->err.text);
    if (i == 0)
        return 0;
    for (size_t k = 0; k < device->flat.total; k++)
        to[k] += from[k];
    device->use.bytes += bytes;
    primary->use.bytes += bytes;
    return 0;
}

/* Every device's part, the larger ones first; those without samples have nothing to do. */
static void divide(struct er_dp *dp, size_t samples)
{
    size_t share = samples / dp->devices_n, rest = samples % dp->devices_n, first = 0;

    for (unsigned i = 0; i < dp->devices_n; i++) {
        struct er_dp_part *part = &dp->devices[i].part;

        part->first = first;
        part->samples = share + (i < rest);
        first += part->samples;
    }
}

/* Devices [1, *ret_n) have something to do; fewer than there are when one has no memory. */
static int start_others(struct er_dp *dp, const struct er_dp_input *in, size_t inputs_n,
                        unsigned *ret_n, struct er_error *err)
{
    int rc = 0;
    unsigned i;

    for (i = 1; i < dp->devices_n && rc == 0; i++) {
        struct device *device = &dp->devices[i];

        if (device->part.samples == 0)
            continue;
        rc = send_part(dp, i, in, inputs_n, err);
        if (rc == 0)
            set_turn(device, GO); /* it computes while the next one's samples are sent */
        else
            device->part.samples = 0;
    }
    *ret_n = i;
    return rc;
}

int er_dp_step(struct er_dp *dp, const struct er_dp_input *in, size_t inputs_n, size_t samples,
               er_dp_fn fn, void *user, struct er_loss *ret, struct er_error *err)
{
    struct device *primary = &dp->devices[0];
    uint64_t began_us = cpu_us();
    struct er_loss loss = {0};
    unsigned started;
    int rc;

    if (inputs_n > ER_DP_INPUTS_MAX)
        return er_error_set(err, ER_E_USAGE, "%zu arrays of samples, at most %d", inputs_n,
                            ER_DP_INPUTS_MAX);
    dp->fn = fn;
    dp->user = user;
    divide(dp, samples);
    rc = start_others(dp, in, inputs_n, &started, err);
    for (size_t k = 0; k < inputs_n; k++)
        primary->part.in[k] = in[k].ptr;
    if (rc == 0) {
        run_part(primary);
        rc = gather_part(dp, 0, &loss, err);
    }
    for (unsigned i = 1; i < started; i++) {
        if (dp->devices[i].part.samples == 0)
            continue;
        await_turn(&dp->devices[i], DONE, DONE);
        set_turn(&dp->devices[i], IDLE);
        if (rc == 0) /* the first failure is the one that is told */
            rc = gather_part(dp, i, &loss, err);
    }
    primary->use.busy_us += cpu_us() - began_us;
    if (rc == 0)
        *ret = loss;
    return rc;
}

struct er_dp_use er_dp_use(const struct er_dp *dp, unsigned device)
{
    assert(device < dp->devices_n);
    return dp->devices[device].use;
}
