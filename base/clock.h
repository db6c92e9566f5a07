#pragma once
/*
 * Time is uint64_t microseconds of CLOCK_MONOTONIC everywhere; wall time appears in logs, events
 * and manifests only. Decision code gets the time as an argument; whoever needs a clock object (to
 * be driven by a test) takes a `struct er_clock`.
 */
#include <stddef.h>
#include <stdint.h>

#define ER_FOREVER   UINT64_MAX /* "no limit", "no deadline" */
#define ER_US_PER_MS 1000ull
#define ER_US_PER_S  1000000ull

struct er_clock {
    uint64_t (*now_us)(void *user);
    void *user;
};

uint64_t er_now_us(void);  /* CLOCK_MONOTONIC */
uint64_t er_wall_us(void); /* CLOCK_REALTIME, microseconds since the epoch */
struct er_clock er_clock_real(void);

/* Virtual clock for tests and simulation: `user` points at the microseconds. */
struct er_clock er_clock_virtual(const uint64_t *now_us);

/* now + delay, saturating at ER_FOREVER. */
uint64_t er_deadline_in(uint64_t now_us, uint64_t delay_us);

/* Milliseconds for poll(2) until `deadline_us`: rounded up, -1 for ER_FOREVER, 0 when past. */
int er_poll_ms(uint64_t now_us, uint64_t deadline_us);

#define ER_RFC3339_MAX 32
/* UTC, microseconds: 2026-01-31T12:00:00.123456Z */
void er_rfc3339(uint64_t wall_us, char ret_text[ER_RFC3339_MAX]);
