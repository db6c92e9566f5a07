#pragma once
/*
 * Time is uint64_t microseconds of CLOCK_MONOTONIC everywhere; wall time appears in logs, events
 * and manifests only. Decision code gets the time as an argument.
 */
#include <stddef.h>
#include <stdint.h>

#define ER_FOREVER   UINT64_MAX /* "no limit", "no deadline" */
#define ER_US_PER_MS 1000ull
#define ER_US_PER_S  1000000ull

uint64_t er_now_us(void);  /* CLOCK_MONOTONIC */
uint64_t er_wall_us(void); /* CLOCK_REALTIME, microseconds since the epoch */

/* now + delay, saturating at ER_FOREVER. */
uint64_t er_deadline_in(uint64_t now_us, uint64_t delay_us);

/* Milliseconds for poll(2) until `deadline_us`: rounded up, -1 for ER_FOREVER, 0 when past. */
int er_poll_ms(uint64_t now_us, uint64_t deadline_us);

#define ER_RFC3339_MAX 32
/* UTC, microseconds: 2026-01-31T12:00:00.123456Z */
void er_rfc3339(uint64_t wall_us, char ret_text[ER_RFC3339_MAX]);
