#pragma once
/*
 * Scope-bound clean-up: `ER_CLEANUP(er_cleanup_fd) int fd = open(...);` closes on every way out of
 * the scope; `ER_TAKE(p)` and `ER_TAKE_FD(fd)` hand ownership on and disarm it. Clean-up functions
 * take a pointer to the variable, accept empty values and keep errno.
 */
#include <stddef.h>
#include <sys/types.h>

#define ER_CLEANUP(fn) __attribute__((cleanup(fn)))

#define ER_TAKE(p)                                                                                 \
    ({                                                                                             \
        __typeof__(p) er_taken_ = (p);                                                             \
        (p) = NULL;                                                                                \
        er_taken_;                                                                                 \
    })

#define ER_TAKE_FD(fd)                                                                             \
    ({                                                                                             \
        int er_taken_ = (fd);                                                                      \
        (fd) = -1;                                                                                 \
        er_taken_;                                                                                 \
    })

/* Make `void x_cleanup(T **)` out of a destructor `void x(T *)`: after
 * ER_CLEANUP_FOR(er_pool_free, struct er_pool), ER_CLEANUP(er_pool_free_cleanup) frees a pool. */
#define ER_CLEANUP_FOR(fn, type)                                                                   \
    static inline void fn##_cleanup(type **p)                                                      \
    {                                                                                              \
        fn(*p);                                                                                    \
    }

#define ER_ARRAY_N(a) (sizeof(a) / sizeof((a)[0]))

void er_cleanup_fd(int *fd);     /* close, when not negative */
void er_cleanup_free(void *p);   /* free(*(void **)p) */
void er_cleanup_child(pid_t *p); /* SIGKILL and reap, when positive */
