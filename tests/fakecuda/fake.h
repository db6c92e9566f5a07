#pragma once
/*
 * The double of CUDA's runtime and of NCCL (README.md): what its parts know of each other. Also the
 * few functions that tests call in it, found with dlsym().
 *
 * One lock protects everything but the queues' execution; the program under test uses one thread.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_API __attribute__((visibility("default")))

enum { FAKE_STREAMS_MAX = 64, FAKE_ITEM_BYTES = 160 };

/* Who has seen what of each stream: number of items known to be done, per stream. */
struct fake_clock {
    uint64_t of[FAKE_STREAMS_MAX];
};

struct fake_stream;

/* Work of a stream; runs in its thread without the lock. */
typedef void (*fake_run)(struct fake_stream *s, void *arg);

struct fake_stream {
    int id;
    pthread_t thread;
    struct fake_item *first, *last;
    uint64_t issued, done;
    struct fake_clock clock; /* what items issued now come after */
    bool stop, dead;
    bool poisoned;  /* an aborted collective let it go on */
    bool nccl_busy; /* NCCL is launching on it */
};

struct fake_event {
    struct fake_clock clock;
    uint64_t recorded, reached; /* numbers of recordings */
    uint64_t step;              /* in which it was recorded */
    bool poisoned, timed;
    double at_us;
    bool dead;
};

extern pthread_mutex_t fake_lock;
extern pthread_cond_t fake_changed;

/* The program broke a rule: say so and abort(). */
_Noreturn void fake_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
long fake_env(const char *name, long otherwise);
double fake_now_us(void);

/* Memory. With FAKE_CUDA_ATS=1 any address is the device's, as on machines with one page table. */
void fake_touch(struct fake_stream *s, const void *p, size_t bytes, bool writes, const char *who);
bool fake_is_pinned(const void *p, size_t bytes);
/* An allocation that holds the address, or false. */
bool fake_is_device(const void *p);
void fake_forget_accesses(const void *p, size_t bytes);

/* A step of training: what must not happen in one is refused. */
FAKE_API void fake_cuda_step_begin(void);
FAKE_API void fake_cuda_step_end(void);
void fake_refuse_in_step(const char *what);
uint64_t fake_step(void); /* 0: outside */

/* Streams. */
struct fake_stream *fake_stream_of(void *handle, const char *who);
void fake_push(struct fake_stream *s, fake_run run, const void *arg, size_t bytes);
void fake_join_host(const struct fake_clock *clock); /* the host has seen so much */
const struct fake_clock *fake_host_clock(void);
/* A call of the runtime begins: the device may be lost, or chosen to be lost. */
int fake_enter(const char *who); /* cudaError_t */
int fake_note(int rc);           /* cudaError_t: what cudaGetLastError() will say */
int fake_pending(void);          /* and says */
void fake_lose_device(void);
