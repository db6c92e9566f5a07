#pragma once
/* Sentences about ranks and nodes, put together in memory of the caller's. Pure. */
#include <stddef.h>

#include "base/error.h"

/* Appends to the string `text`, of room for `cap` bytes; what does not fit is cut. */
void er_words_add(char *text, size_t cap, const char *fmt, ...) ER_PRINTF(3, 4);
#define ER_WORDS_LISTED 8 /* in a sentence */
/* "rank 3", "nodes 0, 1, 2, 3, 4, 5, 6, 7 and 5 more": `n` of `all` are known, of which the first
 * ER_WORDS_LISTED are read; `thing` is the name of one. */
void er_words_list(char *text, size_t cap, const char *thing, const int *numbers, int n, int all);
