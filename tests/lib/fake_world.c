#include "tests/lib/fake_world.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "runtime/runtime_internal.h"

enum { ENTRIES_MAX = 2048, KEY_MAX = 128, KEPT_GENERATIONS = 8 };

struct entry {
    uint64_t generation;
    uint32_t used, n;
    char key[KEY_MAX];
    char value[ER_FAKE_VALUE_MAX];
};

struct er_fake_world {
    pthread_mutex_t lock;     /* robust: its holder may be killed */
    _Atomic uint32_t version; /* futex word; grows with every write */
    uint64_t newest;          /* generation */
    _Atomic int hold_commits;
    struct er_page page[ER_FAKE_RANKS_MAX];
    struct entry entry[ENTRIES_MAX];
};

struct er_ctx {
    struct er_fake_world *fake;
    struct er_page *page;
    struct er_world world;
    uint32_t barriers;
    int committed; /* er_commit_begin() */
    struct er_error commit_err;
};

int (*er_fake_rejoin)(struct er_ctx *ctx);

static void die(const char *what)
{
    perror(what);
    exit(99);
}

struct er_fake_world *er_fake_world_new(void)
{
    pthread_mutexattr_t attr;
    struct er_fake_world *w =
        mmap(NULL, sizeof(*w), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (w == MAP_FAILED)
        die("fake world");
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&w->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    return w;
}

void er_fake_world_free(struct er_fake_world *world)
{
    munmap(world, sizeof(*world));
}

static void lock(struct er_fake_world *w)
{
    if (pthread_mutex_lock(&w->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&w->lock);
}

static void unlock(struct er_fake_world *w)
{
    pthread_mutex_unlock(&w->lock);
}

struct er_ctx *er_fake_ctx(struct er_fake_world *world, int rank, int size, int nnodes,
                           uint64_t generation)
{
    struct er_ctx *ctx = calloc(1, sizeof(*ctx));

    if (!ctx)
        die("fake context");
    ctx->fake = world;
    ctx->page = &world->page[rank % ER_FAKE_RANKS_MAX];
    ctx->world = (struct er_world){
        .nnodes = nnodes, .job = "fake", .run = "fake", .node_id = "fake", .checkpoint_dir = ""};
    er_fake_move(ctx, rank, size, generation);
    return ctx;
}

void er_fake_move(struct er_ctx *ctx, int rank, int size, uint64_t generation)
{
    struct er_world *w = &ctx->world;
    bool one = w->nnodes <= 1;

    w->rank = rank;
    w->size = size;
    w->local_rank = one ? rank : 0;
    w->local_size = one ? size : 1;
    w->node_rank = one ? 0 : rank;
    w->nnodes = one ? 1 : size;
    w->generation = generation;
    lock(ctx->fake);
    if (ctx->fake->newest < generation)
        ctx->fake->newest = generation;
    unlock(ctx->fake);
}

void er_close(struct er_ctx *ctx)
{
    free(ctx);
}

const struct er_world *er_world(const struct er_ctx *ctx)
{
    return &ctx->world;
}

struct er_page *er_ctx_page(const struct er_ctx *ctx)
{
    return ctx->page;
}

/* The entry of a key, or with `make` a free one for it (older generations' are recycled). */
static struct entry *find(struct er_fake_world *w, uint64_t generation, const char *key, bool make)
{
    struct entry *spare = NULL;

    for (int i = 0; i < ENTRIES_MAX; i++) {
        struct entry *e = &w->entry[i];

        if (e->used && e->generation == generation && strcmp(e->key, key) == 0)
            return e;
        if (!spare && (!e->used || e->generation + KEPT_GENERATIONS < w->newest))
            spare = e;
        if (!e->used)
            break; /* entries are never given back: nothing behind this one */
    }
    if (!make || !spare)
        return NULL;
    spare->used = 0;
    snprintf(spare->key, sizeof(spare->key), "%s", key);
    spare->generation = generation;
    spare->n = 0;
    spare->used = 1;
    return spare;
}

static void changed(struct er_fake_world *w)
{
    atomic_fetch_add(&w->version, 1);
    syscall(SYS_futex, &w->version, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

int er_kv_put(struct er_ctx *ctx, const char *key, const void *value, size_t n,
              struct er_error *err)
{
    struct er_fake_world *w = ctx->fake;
    struct entry *e;
    int rc = 0;

    if (strlen(key) >= KEY_MAX || n > ER_FAKE_VALUE_MAX)
        return er_error_set(err, -EMSGSIZE, "fake store: '%s' is too long", key);
    lock(w);
    e = find(w, ctx->world.generation, key, true);
    if (ctx->world.generation < w->newest) {
        rc = er_error_set(err, ER_E_STALE, "fake store: generation superseded");
    } else if (!e) {
        rc = er_error_set(err, -ENOSPC, "fake store: full");
    } else {
        memcpy(e->value, value, n);
        e->n = (uint32_t)n;
    }
    unlock(w);
    changed(w);
    return rc;
}

int er_fake_peek(struct er_fake_world *world, uint64_t generation, const char *key, void *ret,
                 size_t cap)
{
    struct entry *e;
    int n = -1;

    lock(world);
    e = find(world, generation, key, false);
    if (e && e->n <= cap) {
        memcpy(ret, e->value, e->n);
        n = (int)e->n;
    }
    unlock(world);
    return n;
}

int er_kv_get(struct er_ctx *ctx, const char *key, void *ret_value, size_t cap, size_t *ret_n,
              uint64_t timeout_us, struct er_error *err)
{
    uint64_t deadline_us = er_deadline_in(er_now_us(), timeout_us), now;
    char value[ER_FAKE_VALUE_MAX];

    for (;;) {
        uint32_t seen = atomic_load(&ctx->fake->version);
        int n = er_fake_peek(ctx->fake, ctx->world.generation, key, value, sizeof(value));
        struct timespec slice = {.tv_nsec = 2000000};

        if (n >= 0) {
            *ret_n = (size_t)n;
            if ((size_t)n > cap)
                return er_error_set(err, -ENOSPC, "fake store: '%s' has %d bytes", key, n);
            memcpy(ret_value, value, (size_t)n);
            return 0;
        }
        now = er_now_us();
        if (now >= deadline_us)
            return 1;
        if (deadline_us - now < 2000)
            slice.tv_nsec = (long)(deadline_us - now) * 1000;
        syscall(SYS_futex, &ctx->fake->version, FUTEX_WAIT, seen, &slice, NULL, 0);
    }
}

int er_kv_add(struct er_ctx *ctx, const char *key, int64_t delta, int64_t *ret,
              struct er_error *err)
{
    struct entry *e;

    lock(ctx->fake);
    e = find(ctx->fake, ctx->world.generation, key, true);
    if (e) {
        long long value = (e->n ? strtoll(e->value, NULL, 10) : 0) + delta;

        e->n = (uint32_t)snprintf(e->value, sizeof(e->value), "%lld", value);
        *ret = value;
    }
    unlock(ctx->fake);
    changed(ctx->fake);
    return e ? 0 : er_error_set(err, -ENOSPC, "fake store: full");
}

int er_barrier(struct er_ctx *ctx, const char *name, uint64_t timeout_us, struct er_error *err)
{
    uint64_t deadline_us = er_deadline_in(er_now_us(), timeout_us);
    char key[KEY_MAX];
    int64_t n = 0;
    int rc;

    snprintf(key, sizeof(key), "barrier/%.80s/%u", name, ctx->barriers++);
    rc = er_kv_add(ctx, key, 1, &n, err);
    while (rc == 0 && n < ctx->world.size) {
        struct timespec slice = {.tv_nsec = 2000000};
        uint32_t seen = atomic_load(&ctx->fake->version);

        rc = er_kv_add(ctx, key, 0, &n, err);
        if (rc == 0 && n < ctx->world.size && er_now_us() >= deadline_us)
            rc = er_error_set(err, -ETIMEDOUT, "barrier '%s'", name);
        if (rc == 0 && n < ctx->world.size)
            syscall(SYS_futex, &ctx->fake->version, FUTEX_WAIT, seen, &slice, NULL, 0);
    }
    return rc;
}

void er_fake_notice(struct er_fake_world *world, int rank, uint64_t generation,
                    enum er_notice notice)
{
    atomic_store(&world->page[rank].to_worker.word, generation << 8 | (uint64_t)notice);
}

const struct er_page *er_fake_page(const struct er_fake_world *world, int rank)
{
    return &world->page[rank];
}

/* A word about an older generation is history. */
static uint64_t notice_word(const struct er_ctx *ctx)
{
    uint64_t word = atomic_load(&ctx->page->to_worker.word);

    return word >> 8 >= ctx->world.generation ? word : ER_NOTICE_NONE;
}

enum er_notice er_notice(const struct er_ctx *ctx)
{
    return (enum er_notice)(notice_word(ctx) & ER_NOTICE_KIND);
}

int er_notice_saves(const struct er_ctx *ctx)
{
    return (notice_word(ctx) & ER_NOTICE_SAVE) != 0;
}

void er_progress(struct er_ctx *ctx, enum er_phase phase, uint64_t step)
{
    atomic_store(&ctx->page->from_worker.phase, (uint64_t)phase);
    atomic_store(&ctx->page->from_worker.step, step);
}

void er_progress_figures(struct er_ctx *ctx, uint64_t samples, double loss, uint64_t total_steps)
{
    atomic_store(&ctx->page->from_worker.samples, samples);
    atomic_store(&ctx->page->from_worker.total_steps, total_steps);
}

void er_progress_pace(struct er_ctx *ctx, const struct er_pace *pace)
{
    atomic_store(&ctx->page->from_worker.tokens, pace->tokens);
    atomic_store(&ctx->page->from_worker.forward_us, pace->forward_us);
    atomic_store(&ctx->page->from_worker.optimizer_us, pace->optimizer_us);
}

int er_ready(struct er_ctx *ctx, struct er_error *err)
{
    return 0;
}

void er_rejoin_offer(struct er_ctx *ctx) {}

int er_rejoin(struct er_ctx *ctx, uint64_t timeout_us, struct er_error *err)
{
    return er_fake_rejoin ? er_fake_rejoin(ctx)
                          : er_error_set(err, ER_E_UNSUPPORTED, "fake world: there is no agent");
}

int er_fail(struct er_ctx *ctx, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    return 0;
}

#pragma weak er_commit

void er_fake_hold_commits(struct er_fake_world *world, bool hold)
{
    atomic_store(&world->hold_commits, hold);
}

int er_commit_begin(struct er_ctx *ctx, const struct er_commit *commit, struct er_error *err)
{
    ctx->commit_err = (struct er_error)ER_ERROR_INIT;
    ctx->committed = er_commit ? er_commit(ctx, commit, &ctx->commit_err) : 0;
    return 0;
}

int er_commit_end(struct er_ctx *ctx, uint64_t wait_us, struct er_error *err)
{
    const uint64_t deadline_us = er_deadline_in(er_now_us(), wait_us);
    const struct timespec pause = {.tv_nsec = 1000000};

    while (atomic_load(&ctx->fake->hold_commits)) {
        if (er_now_us() >= deadline_us)
            return ER_COMMIT_OPEN;
        nanosleep(&pause, NULL);
    }
    if (ctx->committed < 0)
        return er_error_set(err, ctx->committed, "%s", ctx->commit_err.text);
    return 0;
}
