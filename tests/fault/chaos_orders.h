#pragma once
/*
 * What chaos_shim.c and chaos_slow.c are told, and say back, in a file that the suite maps
 * (chaos/shim.py writes the same layout). A rule is in force while its `op` is not 0; the suite
 * writes that field last, and clears it first.
 */
#include <stdint.h>

#define CHAOS_MAGIC 0x3130736f616863ull /* "chaos01" */
#define CHAOS_RULES 16
#define CHAOS_NODES 8

enum chaos_op {
    CHAOS_OPEN = 1,
    CHAOS_READ,
    CHAOS_WRITE,
    CHAOS_SYNC,
    CHAOS_RENAME,
    CHAOS_LISTEN, /* on IPv4 or IPv6; the path is not looked at */
};

enum chaos_action {
    CHAOS_FAIL = 1, /* with `error` */
    CHAOS_DELAY,    /* by delay_us */
    CHAOS_HANG,     /* until the rule is cleared */
    CHAOS_KILL,     /* SIGKILL to the caller, before the call */
    CHAOS_TEAR,     /* half of what is to be written, then `error` */
    CHAOS_TEAR_KILL /* half of it, then SIGKILL */
};

enum chaos_role { CHAOS_WORKER = 1, CHAOS_AGENT = 2 }; /* bits */

struct chaos_rule {
    uint32_t op, action;
    uint32_t roles, nodes; /* bits: enum chaos_role; 1 << node */
    int32_t error;
    uint32_t delay_us;
    uint32_t skip;  /* so many matching calls are left alone first */
    uint32_t times; /* how often it acts at most; 0: always */
    uint32_t calls; /* that matched */
    uint32_t hits;  /* of these, on which it acted */
    char path[88];  /* a part of it; "" matches all */
};

/* Of a node: CLOCK_REALTIME = real + offset + (real - since) * rate / 10^6. */
struct chaos_clock {
    int64_t offset_us, since_us, rate_ppm;
    uint64_t reads; /* by agent and workers while it was not the real one */
};

/* Of a node: CLOCK_MONOTONIC = own + (real - since) * (1 + rate / 10^6). It never goes back: what
 * has been gained or lost stays when the rate is right again. */
struct chaos_monotonic {
    uint64_t seq; /* odd: being written; 0: the clock is the real one */
    int64_t since_ns, own_ns, rate_ppm;
    uint64_t reads, waits; /* by agent and workers since then; waits: with a time limit */
};

struct chaos_orders {
    uint64_t magic;
    uint64_t sync_delay_us, syncs; /* chaos_slow.c: of each fsync; how many were delayed */
    struct chaos_clock clocks[CHAOS_NODES];
    struct chaos_monotonic monotonic[CHAOS_NODES];
    struct chaos_rule rules[CHAOS_RULES];
};

_Static_assert(sizeof(struct chaos_rule) == 128, "chaos/shim.py knows the layout");
_Static_assert(sizeof(struct chaos_orders) == 24 + (32 + 48) * CHAOS_NODES + 128 * CHAOS_RULES,
               "chaos/shim.py knows the layout");
