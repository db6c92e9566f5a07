#include "trainer/prefetch.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/pool.h"

#define ALIGN 64

/* A slot's life: FREE -> (a thread takes it for a step) MAKING -> READY -> IN_USE -> FREE. One that
 * was taken for a step that nobody wants any more is free when nobody works on it. Its batch is
 * made of items: samples, or the batch itself. */
enum state { FREE, MAKING, READY, IN_USE };

struct slot {
    enum state state;
    bool unwanted; /* MAKING */
    uint64_t step;
    uint64_t items, begun, done; /* MAKING: of the batch; none is begun after a failure */
    void *memory;
    int rc;
    struct er_error err;
};

struct er_prefetch {
    struct er_prefetch_opts opts;
    struct er_pool *pool;
    struct slot *slots;
    size_t slots_n;
    pthread_mutex_t lock; /* of all below */
    pthread_cond_t work, done;
    uint64_t next; /* step to be made next */
    uint64_t want; /* step of the next get */
    bool over;
    struct er_prefetch_stats stats;
    pthread_t threads[ER_PREFETCH_THREADS_MAX];
    size_t threads_n;
};

static uint64_t count_items(const struct er_prefetch *l, uint64_t step)
{
    return l->opts.decode ? l->opts.count(l->opts.user, step) : 1;
}

/* A slot for the next step, unless enough are ahead. Locked. */
static struct slot *take(struct er_prefetch *l)
{
    if (l->next > l->opts.last_step || l->next > l->want + l->opts.ahead)
        return NULL;
    for (size_t i = 0; i < l->slots_n; i++) {
        struct slot *slot = &l->slots[i];

        if (slot->state == FREE) {
            *slot = (struct slot){
                .state = MAKING, .step = l->next++, .memory = slot->memory, .err = ER_ERROR_INIT};
            slot->items = count_items(l, slot->step);
            return slot;
        }
    }
    return NULL;
}

/* The batch under way that is wanted first and has items that nobody has begun. Locked. */
static struct slot *join(struct er_prefetch *l)
{
    struct slot *first = NULL;

    for (size_t i = 0; i < l->slots_n; i++) {
        struct slot *slot = &l->slots[i];

        if (slot->state == MAKING && slot->begun < slot->items &&
            (!first || slot->step < first->step))
            first = slot;
    }
    return first;
}

/* Nobody begins another item of it. Locked. */
static void give_up(struct slot *slot)
{
    slot->items = slot->begun;
}

/* Is the last item done? Locked. */
static void settle(struct er_prefetch *l, struct slot *slot)
{
    if (slot->done < slot->items)
        return;
    slot->state = slot->unwanted ? FREE : READY;
    l->stats.dropped += slot->unwanted;
    pthread_cond_broadcast(slot->unwanted ? &l->work : &l->done);
}

/* Locked; not while the item is made. */
static void make_item(struct er_prefetch *l, struct slot *slot)
{
    struct er_error err = ER_ERROR_INIT;
    uint64_t step = slot->step, item = slot->begun++;
    void *memory = slot->memory;
    int rc;

    pthread_mutex_unlock(&l->lock);
    rc = l->opts.decode ? l->opts.decode(l->opts.user, step, item, memory, &err)
                        : l->opts.fill(l->opts.user, step, memory, &err);
    pthread_mutex_lock(&l->lock);
    slot->done++;
    if (rc < 0 && slot->rc == 0) {
        slot->rc = rc;
        slot->err = err;
        give_up(slot);
    }
}

static void *make_batches(void *user)
{
    struct er_prefetch *l = user;

    pthread_mutex_lock(&l->lock);
    while (!l->over) {
        struct slot *slot = join(l);

        if (!slot)
            slot = take(l);
        if (!slot) {
            pthread_cond_wait(&l->work, &l->lock);
            continue;
        }
        if (slot->items > 1 && slot->begun == 0)
            pthread_cond_broadcast(&l->work); /* there is something for the others */
        if (slot->begun < slot->items)
            make_item(l, slot);
        settle(l, slot);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

static int check(const struct er_prefetch_opts *o, struct er_error *err)
{
    if (!o->fill == !o->decode || !o->decode != !o->count)
        return er_error_set(err, ER_E_USAGE,
                            "prefetch: fill, or decode and count must be given, not both");
    if (o->bytes == 0 || o->threads > ER_PREFETCH_THREADS_MAX || o->ahead > ER_PREFETCH_AHEAD_MAX)
        return er_error_set(
            err, ER_E_USAGE,
            "prefetch: batches of %zu bytes, %u threads, %u ahead: at least 1 byte, at "
            "most %d and %d are expected",
            o->bytes, o->threads, o->ahead, ER_PREFETCH_THREADS_MAX, ER_PREFETCH_AHEAD_MAX);
    return 0;
}

/* Room for those that are made ahead and the one in use; a batch that turns out unwanted while it
 * is made does not hold the others up. */
static int take_memory(struct er_prefetch *l, struct er_error *err)
{
    size_t bytes = (l->opts.bytes + ALIGN - 1) / ALIGN * ALIGN, all;
    int rc;

    l->slots_n = (size_t)l->opts.ahead + l->opts.threads + 1;
    l->slots = calloc(l->slots_n, sizeof(*l->slots));
    if (!l->slots || __builtin_mul_overflow(bytes, l->slots_n, &all))
        return er_error_set(err, -ENOMEM, "prefetch: %zu batches of %zu bytes", l->slots_n, bytes);
    rc = er_pool_new(&l->pool, all, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "prefetch");
    for (size_t i = 0; i < l->slots_n; i++)
        l->slots[i].memory = er_pool_alloc(l->pool, bytes, ALIGN);
    return 0;
}

ER_CLEANUP_FOR(er_prefetch_close, struct er_prefetch)

int er_prefetch_open(struct er_prefetch **ret, const struct er_prefetch_opts *opts,
                     uint64_t first_step, struct er_error *err)
{
    ER_CLEANUP(er_prefetch_close_cleanup) struct er_prefetch *l = NULL;
    int rc = check(opts, err);

    if (rc < 0)
        return rc;
    l = calloc(1, sizeof(*l));
    if (!l)
        return er_error_set(err, -ENOMEM, "prefetch: out of memory");
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    pthread_cond_init(&l->done, NULL);
    l->opts = *opts;
    l->opts.threads = opts->threads ? opts->threads : 1;
    l->opts.ahead = opts->ahead ? opts->ahead : l->opts.threads;
    l->next = l->want = first_step;
    rc = take_memory(l, err);
    while (rc == 0 && l->threads_n < l->opts.threads) {
        rc = pthread_create(&l->threads[l->threads_n], NULL, make_batches, l);
        if (rc != 0)
            return er_error_set(err, -rc, "prefetch: thread %zu: %s", l->threads_n,
                                er_error_name(-rc));
        l->threads_n++;
    }
    if (rc < 0)
        return rc;
    *ret = ER_TAKE(l);
    return 0;
}

void er_prefetch_close(struct er_prefetch *l)
{
    int saved = errno;

    if (!l)
        return;
    pthread_mutex_lock(&l->lock);
    l->over = true;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->lock);
    for (size_t i = 0; i < l->threads_n; i++)
        pthread_join(l->threads[i], NULL);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->work);
    pthread_cond_destroy(&l->done);
    er_pool_free(l->pool);
    free(l->slots);
    free(l);
    errno = saved;
}

/* Another order of steps: what was made for the old one is dropped. Locked. */
static void begin_at(struct er_prefetch *l, uint64_t step)
{
    for (size_t i = 0; i < l->slots_n; i++) {
        struct slot *slot = &l->slots[i];

        if (slot->state == READY) {
            slot->state = FREE;
            l->stats.dropped++;
        }
        slot->unwanted = true;
        if (slot->state == MAKING) {
            give_up(slot);
            settle(l, slot); /* unless somebody is at an item */
        }
    }
    l->next = step;
}

static struct slot *find(struct er_prefetch *l, uint64_t step)
{
    for (size_t i = 0; i < l->slots_n; i++) {
        struct slot *slot = &l->slots[i];

        if (slot->step == step &&
            (slot->state == READY || (slot->state == MAKING && !slot->unwanted)))
            return slot;
    }
    return NULL;
}

static struct slot *await(struct er_prefetch *l, uint64_t step)
{
    uint64_t begun_us = er_now_us();
    struct slot *slot = find(l, step);
    bool waited = false;

    while (!slot || slot->state != READY) {
        waited = true;
        pthread_cond_wait(&l->done, &l->lock);
        slot = find(l, step);
    }
    l->stats.got++;
    l->stats.waited += waited;
    l->stats.wait_us += waited ? er_now_us() - begun_us : 0;
    return slot;
}

int er_prefetch_get(struct er_prefetch *l, uint64_t step, void **ret, struct er_error *err)
{
    struct slot *slot;
    int rc;

    if (step > l->opts.last_step)
        return er_error_set(err, ER_E_USAGE, "prefetch: step %lu, the last one is %lu",
                            (unsigned long)step, (unsigned long)l->opts.last_step);
    pthread_mutex_lock(&l->lock);
    for (size_t i = 0; i < l->slots_n; i++) {
        if (l->slots[i].state == IN_USE)
            l->slots[i].state = FREE;
    }
    if (step != l->want)
        begin_at(l, step);
    l->want = step;
    pthread_cond_broadcast(&l->work);
    slot = await(l, step);
    slot->state = IN_USE;
    l->want = step + 1;
    pthread_cond_broadcast(&l->work);
    rc = slot->rc;
    if (rc < 0)
        er_error_set(err, rc, "batch of step %lu: %s", (unsigned long)step, slot->err.text);
    else
        *ret = slot->memory;
    pthread_mutex_unlock(&l->lock);
    return rc < 0 ? rc : 0;
}

struct er_prefetch_stats er_prefetch_stats(const struct er_prefetch *l)
{
    struct er_prefetch_stats stats;

    pthread_mutex_lock((pthread_mutex_t *)(uintptr_t)&l->lock);
    stats = l->stats;
    pthread_mutex_unlock((pthread_mutex_t *)(uintptr_t)&l->lock);
    return stats;
}
