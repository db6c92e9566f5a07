#pragma once
/* Copying what nobody reads soon. Pure. */
#include <stddef.h>

/* As memcpy(), past the caches where the processor can (the target's lines are not read before they
 * are overwritten): for large blocks, whose target is not used at once. */
void er_copy_streaming(void *to, const void *from, size_t n);
