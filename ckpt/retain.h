#pragma once
/* Which checkpoints may go. Pure. */
#include <stddef.h>
#include <stdint.h>

/*
 * `steps` ascending; `current` has just been committed and verified. Writes to ret_remove (room: n)
 * the steps to remove: all below `current` but the newest keep_last - 1 of them; never `current`
 * nor anything above it (newer ones that did not verify are evidence, and cost nothing until
 * `current` passes them). keep_last 0: none.
 */
size_t er_retain(const uint64_t *steps, size_t n, uint64_t current, uint32_t keep_last,
                 uint64_t *ret_remove);
