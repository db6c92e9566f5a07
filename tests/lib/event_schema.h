#pragma once
/* The fields of each event (docs/operations.md), checked line by line. */
#include <stddef.h>

/* Every line of an events file: known event, all its fields with their types, `seq` without a gap.
 * Failures go to the TAP report. Returns the number of lines; `ret_seen` (may be NULL): names of
 * the events that occurred, each between blanks. */
size_t er_test_events_check(const char *path, char ret_seen[2048]);
