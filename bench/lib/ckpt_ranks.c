#include "bench/lib/ckpt_ranks.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"

char bench_dir[PATH_MAX];
uint64_t bench_state_bytes;

void bench_must(int rc, const struct er_error *err)
{
    if (rc < 0)
        bench_fail("%s", err->text);
}

static int gather(void *user, const void *mine, size_t n, void *all, struct er_error *err)
{
    struct bench_rank *r = user;

    if (n > BLOB_MAX)
        return er_error_set(err, -EMSGSIZE, "record of %zu bytes", n);
    memcpy(r->shared->blobs[r->rank], mine, n);
    pthread_barrier_wait(&r->shared->barrier);
    for (int i = 0; i < r->size; i++)
        memcpy((char *)all + (size_t)i * n, r->shared->blobs[i], n);
    pthread_barrier_wait(&r->shared->barrier);
    return 0;
}

bool bench_all(struct bench_rank *r, bool mine)
{
    char one = mine, all[RANKS_MAX];

    gather(r, &one, 1, all, NULL);
    for (int i = 0; i < r->size; i++)
        mine = mine && all[i];
    return mine;
}

static void set_up(struct bench_rank *r, bool sharded)
{
    static const char *const names[TENSORS] = {"params", "adam.m", "adam.v"};
    uint64_t n = bench_state_bytes / TENSORS / sizeof(float), first = 0, count = n;

    if (sharded) {
        first = n * (uint64_t)r->rank / (uint64_t)r->size;
        count = n * (uint64_t)(r->rank + 1) / (uint64_t)r->size - first;
    }
    r->tensor_n = n;
    bench_must(er_pool_new(&r->pool, (size_t)(count * sizeof(float) + 4096) * TENSORS, &r->err),
               &r->err);
    for (int t = 0; t < TENSORS; t++) {
        r->state[t] = er_pool_alloc(r->pool, (size_t)count * sizeof(float), 4096);
        for (uint64_t i = 0; i < count; i++)
            ((float *)(void *)r->state[t])[i] = (float)((first + i) % 1000003) + (float)t;
        r->slices[t] = (struct er_slice){.name = names[t],
                                         .dtype = ER_CKPT_F32,
                                         .ndim = 1,
                                         .shape = {n},
                                         .offset = first,
                                         .count = count,
                                         .data = r->state[t],
                                         .replicated = !sharded};
    }
}

void bench_open(struct bench_rank *r, const char *name)
{
    const struct er_ckpt_group group = {
        .rank = r->rank, .size = r->size, .user = r, .gather = r->size > 1 ? gather : NULL};
    char dir[PATH_MAX + 64];

    snprintf(dir, sizeof(dir), "%s/%s", bench_dir, name);
    bench_must(er_ckpt_open(&r->ckpt, dir, &group, NULL, &r->err), &r->err);
}

void bench_remove(const char *name)
{
    char dir[PATH_MAX + 64];

    snprintf(dir, sizeof(dir), "%s/%s", bench_dir, name);
    (void)er_remove_all(dir, NULL);
}

void bench_remove_step(const char *name, uint64_t step)
{
    char relative[64];

    snprintf(relative, sizeof(relative), "%s/step-%012llu", name, (unsigned long long)step);
    bench_remove(relative);
}

void bench_run_ranks(struct bench_shared *shared, int size, bool sharded,
                     void (*fn)(struct bench_rank *))
{
    pthread_barrierattr_t attr;
    pid_t pids[RANKS_MAX];

    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attr, (unsigned)size);
    fflush(stdout);
    for (int i = 0; i < size; i++) {
        pids[i] = fork();
        if (pids[i] < 0)
            bench_fail("fork failed");
        if (pids[i] == 0) {
            struct bench_rank r = {.shared = shared, .rank = i, .size = size};

            set_up(&r, sharded);
            fn(&r);
            er_ckpt_close(r.ckpt);
            _exit(0);
        }
    }
    for (int i = 0; i < size; i++) {
        int status = 0;

        if (waitpid(pids[i], &status, 0) != pids[i] || status != 0)
            bench_fail("rank %d: wait status %#x", i, (unsigned)status);
    }
    pthread_barrier_destroy(&shared->barrier);
}
