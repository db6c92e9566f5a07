/* Streams of the double: threads that do their items in order; events between them. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/fakecuda/fake.h"

enum { DEAD_EVENTS_KEPT = 300 };

struct fake_item {
    struct fake_item *next;
    fake_run run;
    _Alignas(16) char arg[FAKE_ITEM_BYTES];
};

static struct fake_stream *streams[FAKE_STREAMS_MAX];
static uint64_t next_number[FAKE_STREAMS_MAX]; /* ids are used again; their items go on counting */
static struct fake_clock host;

static void join(struct fake_clock *into, const struct fake_clock *from)
{
    for (int i = 0; i < FAKE_STREAMS_MAX; i++)
        if (into->of[i] < from->of[i])
            into->of[i] = from->of[i];
}

void fake_join_host(const struct fake_clock *clock)
{
    join(&host, clock);
}

const struct fake_clock *fake_host_clock(void)
{
    return &host;
}

static void *serve(void *arg)
{
    struct fake_stream *s = arg;

    pthread_mutex_lock(&fake_lock);
    while (!s->stop || s->first) {
        struct fake_item *item = s->first;

        if (!item) {
            pthread_cond_wait(&fake_changed, &fake_lock);
            continue;
        }
        pthread_mutex_unlock(&fake_lock);
        item->run(s, item->arg);
        pthread_mutex_lock(&fake_lock);
        s->first = item->next;
        if (!s->first)
            s->last = NULL;
        s->done++;
        free(item);
        pthread_cond_broadcast(&fake_changed);
    }
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

struct fake_stream *fake_stream_of(void *handle, const char *who)
{
    struct fake_stream *s = handle;

    if ((uintptr_t)handle <= 2)
        fake_fail("%s on the default stream", who);
    for (int i = 0; i < FAKE_STREAMS_MAX; i++)
        if (streams[i] == s)
            return s;
    fake_fail("%s on a stream that was destroyed", who);
}

/* The number that the next item of the stream has; what it touches is said with it. The caller
 * holds the lock and calls fake_push() next. */
static void number_item(struct fake_stream *s)
{
    s->issued++;
    join(&s->clock, &host);
    s->clock.of[s->id] = s->issued;
}

void fake_push(struct fake_stream *s, fake_run run, const void *arg, size_t bytes)
{
    struct fake_item *item = calloc(1, sizeof(*item));

    if (!item || bytes > FAKE_ITEM_BYTES)
        fake_fail("an item of %zu bytes", bytes);
    if (s->nccl_busy)
        fake_fail("work on a stream while NCCL launches on it (ncclInProgress)");
    item->run = run;
    if (bytes)
        memcpy(item->arg, arg, bytes);
    number_item(s);
    if (s->last)
        s->last->next = item;
    else
        s->first = item;
    s->last = item;
    pthread_cond_broadcast(&fake_changed);
}

FAKE_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *ret, unsigned flags, int priority)
{
    struct fake_stream *s = calloc(1, sizeof(*s));
    cudaError_t rc = (cudaError_t)fake_enter("cudaStreamCreateWithPriority");

    if (rc != cudaSuccess || !s)
        return rc ? rc : cudaErrorMemoryAllocation;
    if (flags != cudaStreamNonBlocking)
        fake_fail("a stream that is not cudaStreamNonBlocking waits for the default stream");
    pthread_mutex_lock(&fake_lock);
    fake_refuse_in_step("cudaStreamCreateWithPriority");
    for (s->id = 0; s->id < FAKE_STREAMS_MAX && streams[s->id]; s->id++)
        ;
    if (s->id == FAKE_STREAMS_MAX)
        fake_fail("more than %d streams", FAKE_STREAMS_MAX);
    streams[s->id] = s;
    s->issued = s->done = next_number[s->id];
    join(&s->clock, &host);
    pthread_mutex_unlock(&fake_lock);
    pthread_create(&s->thread, NULL, serve, s);
    *ret = (cudaStream_t)s;
    return cudaSuccess;
}

FAKE_API cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    struct fake_stream *s;

    pthread_mutex_lock(&fake_lock);
    s = fake_stream_of(stream, "cudaStreamDestroy");
    fake_refuse_in_step("cudaStreamDestroy");
    s->stop = true;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_lock(&fake_lock);
    next_number[s->id] = s->issued;
    host.of[s->id] = s->issued;
    streams[s->id] = NULL;
    pthread_mutex_unlock(&fake_lock);
    free(s);
    return cudaSuccess;
}

FAKE_API cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    cudaError_t rc = (cudaError_t)fake_enter("cudaStreamQuery");
    struct fake_stream *s;

    pthread_mutex_lock(&fake_lock);
    s = fake_stream_of(stream, "cudaStreamQuery");
    if (rc == cudaSuccess && s->done < s->issued)
        rc = cudaErrorNotReady;
    if (rc == cudaSuccess)
        fake_join_host(&s->clock);
    pthread_mutex_unlock(&fake_lock);
    return (cudaError_t)fake_note(rc);
}

/* The host has seen how everything ended: what comes now is not released by an abort. */
FAKE_API cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t rc = (cudaError_t)fake_enter("cudaStreamSynchronize");
    struct fake_stream *s;

    pthread_mutex_lock(&fake_lock);
    s = fake_stream_of(stream, "cudaStreamSynchronize");
    while (rc == cudaSuccess && s->done < s->issued) {
        pthread_cond_wait(&fake_changed, &fake_lock);
        pthread_mutex_unlock(&fake_lock);
        rc = (cudaError_t)fake_enter("cudaStreamSynchronize");
        pthread_mutex_lock(&fake_lock);
    }
    s->poisoned = false;
    fake_join_host(&s->clock);
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

/* ---- events ---- */

static struct fake_event *event_of(cudaEvent_t handle, const char *who)
{
    struct fake_event *e = (struct fake_event *)handle;

    if (!e || e->dead)
        fake_fail("%s on an event that was destroyed", who);
    return e;
}

FAKE_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags)
{
    cudaError_t rc = (cudaError_t)fake_enter("cudaEventCreateWithFlags");
    struct fake_event *e = calloc(1, sizeof(*e));

    if (rc != cudaSuccess || !e)
        return rc ? rc : cudaErrorMemoryAllocation;
    e->timed = !(flags & cudaEventDisableTiming);
    *ret = (cudaEvent_t)e;
    return cudaSuccess;
}

/* Kept for a while, so that a later use is seen. */
FAKE_API cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    static struct fake_event *kept[DEAD_EVENTS_KEPT];
    static unsigned kept_n;
    struct fake_event *e;

    pthread_mutex_lock(&fake_lock);
    fake_refuse_in_step("cudaEventDestroy");
    e = event_of(event, "cudaEventDestroy");
    e->dead = true;
    free(kept[kept_n % DEAD_EVENTS_KEPT]);
    kept[kept_n++ % DEAD_EVENTS_KEPT] = e;
    pthread_mutex_unlock(&fake_lock);
    return cudaSuccess;
}

struct mark {
    struct fake_event *event;
    uint64_t number;
};

static void reach(struct fake_stream *s, void *arg)
{
    const struct mark *m = arg;

    pthread_mutex_lock(&fake_lock);
    if (m->event->reached < m->number)
        m->event->reached = m->number;
    m->event->poisoned = s->poisoned;
    m->event->at_us = fake_now_us();
    pthread_mutex_unlock(&fake_lock);
}

FAKE_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    cudaError_t rc = (cudaError_t)fake_enter("cudaEventRecord");
    struct fake_stream *s;
    struct mark m;

    pthread_mutex_lock(&fake_lock);
    s = fake_stream_of(stream, "cudaEventRecord");
    m.event = event_of(event, "cudaEventRecord");
    m.number = ++m.event->recorded;
    fake_push(s, reach, &m, sizeof(m));
    m.event->clock = s->clock;
    m.event->step = fake_step();
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

static void await(struct fake_stream *s, void *arg)
{
    const struct mark *m = arg;

    pthread_mutex_lock(&fake_lock);
    while (m->event->reached < m->number)
        pthread_cond_wait(&fake_changed, &fake_lock);
    s->poisoned |= m->event->poisoned;
    pthread_mutex_unlock(&fake_lock);
}

FAKE_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    cudaError_t rc = (cudaError_t)fake_enter("cudaStreamWaitEvent");
    struct fake_stream *s;
    struct mark m;

    pthread_mutex_lock(&fake_lock);
    s = fake_stream_of(stream, "cudaStreamWaitEvent");
    m.event = event_of(event, "cudaStreamWaitEvent");
    m.number = m.event->recorded;
    if (m.number == 0)
        fake_fail("cudaStreamWaitEvent for an event that was never recorded does nothing");
    if (fake_step() && m.event->step != fake_step())
        fake_fail("cudaStreamWaitEvent for an event that was not recorded in this step");
    fake_push(s, await, &m, sizeof(m));
    join(&s->clock, &m.event->clock);
    pthread_mutex_unlock(&fake_lock);
    return rc;
}

FAKE_API cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaError_t rc = (cudaError_t)fake_enter("cudaEventQuery");
    struct fake_event *e;

    pthread_mutex_lock(&fake_lock);
    e = event_of(event, "cudaEventQuery");
    if (e->recorded == 0)
        fake_fail("cudaEventQuery for an event that was never recorded");
    if (rc == cudaSuccess && e->reached < e->recorded)
        rc = cudaErrorNotReady;
    if (rc == cudaSuccess)
        fake_join_host(&e->clock);
    pthread_mutex_unlock(&fake_lock);
    return (cudaError_t)fake_note(rc);
}

FAKE_API cudaError_t cudaEventElapsedTime(float *ret_ms, cudaEvent_t from, cudaEvent_t to)
{
    const struct fake_event *a = event_of(from, "cudaEventElapsedTime");
    const struct fake_event *b = event_of(to, "cudaEventElapsedTime");

    if (!a->timed || !b->timed)
        fake_fail("cudaEventElapsedTime for events without timing");
    *ret_ms = (float)((b->at_us - a->at_us) / 1e3);
    return cudaSuccess;
}
