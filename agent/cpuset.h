#pragma once
/* Sets of CPUs, as sched_setaffinity(2) takes them and sysfs writes them ("0-3,8"). */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ER_CPUS_MAX     4096
#define ER_CPU_LIST_MAX 256 /* of er_cpuset_format(); longer ones end in "..." */

struct er_cpuset {
    uint64_t bits[ER_CPUS_MAX / 64];
};

static inline void er_cpuset_add(struct er_cpuset *set, int cpu)
{
    if (cpu >= 0 && cpu < ER_CPUS_MAX)
        set->bits[cpu / 64] |= 1ull << cpu % 64;
}

static inline bool er_cpuset_has(const struct er_cpuset *set, int cpu)
{
    return cpu >= 0 && cpu < ER_CPUS_MAX && (set->bits[cpu / 64] >> cpu % 64 & 1);
}

static inline int er_cpuset_count(const struct er_cpuset *set)
{
    int n = 0;

    for (size_t i = 0; i < ER_CPUS_MAX / 64; i++)
        n += __builtin_popcountll(set->bits[i]);
    return n;
}

/* -1: it is empty. */
static inline int er_cpuset_first(const struct er_cpuset *set)
{
    for (int i = 0; i < ER_CPUS_MAX / 64; i++) {
        if (set->bits[i])
            return 64 * i + __builtin_ctzll(set->bits[i]);
    }
    return -1;
}

/* "0-3,8", a newline may follow. -EINVAL. */
int er_cpuset_parse(struct er_cpuset *ret, const char *text);
/* Returns ret_text; "" for the empty set. */
const char *er_cpuset_format(const struct er_cpuset *set, char ret_text[ER_CPU_LIST_MAX]);
