#include "agent/words.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void er_words_add(char *text, size_t cap, const char *fmt, ...)
{
    size_t n = strlen(text);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text + n, cap - n, fmt, ap);
    va_end(ap);
}

void er_words_list(char *text, size_t cap, const char *thing, const int *numbers, int n, int all)
{
    er_words_add(text, cap, "%s%s", thing, all == 1 ? "" : "s");
    for (int i = 0; i < n && i < ER_WORDS_LISTED; i++)
        er_words_add(text, cap, "%s %d", i ? "," : "", numbers[i]);
    if (all > ER_WORDS_LISTED)
        er_words_add(text, cap, " and %d more", all - ER_WORDS_LISTED);
}
