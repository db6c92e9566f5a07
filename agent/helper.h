#pragma once
/*
 * Short programs that the agent runs beside its workers: health, notice and preemption commands,
 * the GPU probe. Each has a time limit, never blocks the loop, and its output is kept, as far as it
 * fits. Helpers are children of the agent as the workers are: whoever reaps children asks
 * er_helpers_reap(), and sweeps spare them (er_helpers_pids()).
 */
#include <stdbool.h>

#include "agent/loop.h"
#include "agent/spawn.h"

struct er_helpers;

#define ER_HELPERS_MAX     8 /* at once */
#define ER_HELPER_TEXT_MAX (64u * 1024)

struct er_helper_end {
    bool timed_out; /* and was killed */
    bool could_not_run;
    int wait_status;  /* of waitpid(2) */
    const char *text; /* the beginning of its output, both streams; never NULL */
    const char
        *trouble; /* NULL: it ended with 0; else "exited with code 3", "took longer than 5s" */
};

struct er_helper_opts {
    char *const *argv;      /* NULL-terminated; NULL: `run` */
    int (*run)(int out_fd); /* in a child process; 0: done */
    const void *input;      /* what it reads on stdin; copied */
    size_t input_n;
    uint64_t timeout_us;
    void (*done)(void *user, const struct er_helper_end *end); /* once, from er_helpers_step() */
    void *user;
};

/* `loop` and `environ_` are borrowed. -ENOMEM. */
int er_helpers_new(struct er_helpers **ret, struct er_loop *loop, char *const *environ_,
                   struct er_error *err);
/* Kills what runs; nobody is called. NULL is fine. */
void er_helpers_free(struct er_helpers *helpers);

/* -EBUSY: ER_HELPERS_MAX run. -ENOENT, -EACCES: the program. Else the system's refusal. */
int er_helper_start(struct er_helpers *helpers, const struct er_helper_opts *opts, uint64_t now_us,
                    struct er_error *err);

/* `pid` has ended, and is not reaped yet. True: it was a helper, and has been reaped. */
bool er_helpers_reap(struct er_helpers *helpers, pid_t pid);
/* Those that run: at most ER_HELPERS_MAX. Returns how many. */
size_t er_helpers_pids(const struct er_helpers *helpers, pid_t ret_pids[ER_HELPERS_MAX]);
uint64_t er_helpers_deadline(const struct er_helpers *helpers);
void er_helpers_step(struct er_helpers *helpers, uint64_t now_us);
