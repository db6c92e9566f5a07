#pragma once
/*
 * Waiting with a deadline, never by a fixed sleep. The deadline is a backstop (use 10 s or more): a
 * test that reaches it has failed. Prefer an event (a file that appears, a line of output, a
 * process that ends) to a predicate.
 */
#include <stdbool.h>
#include <stdint.h>

#define ER_TEST_DEADLINE_MS 60000u

/* True as soon as `path` exists (inotify on its folder, which must exist). */
bool er_test_wait_path(const char *path, uint32_t timeout_ms);
/* True as soon as `path` no longer exists. */
bool er_test_wait_gone(const char *path, uint32_t timeout_ms);
/* True as soon as `holds(user)`; looks again every 2 ms. For states that no descriptor announces.
 */
bool er_test_wait_until(bool (*holds)(void *user), void *user, uint32_t timeout_ms);
/* Milliseconds of CLOCK_MONOTONIC, for deadlines. */
uint64_t er_test_now_ms(void);
