#include "base/parse.h"

#include <string.h>

enum { WORD_MAX = 64 }; /* longest word whose edit distance is computed */

static size_t least(size_t a, size_t b, size_t c)
{
    size_t m = a < b ? a : b;

    return m < c ? m : c;
}

/* One row of the table at a time. Words beyond WORD_MAX are no typing mistakes: as far apart as
 * they can be. */
size_t er_edit_distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b), row[WORD_MAX + 1];

    if (n > WORD_MAX || m > WORD_MAX)
        return strcmp(a, b) == 0 ? 0 : (n > m ? n : m);
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t above = row[j];

            row[j] = least(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[m];
}

const char *er_nearest(const char *word, const char *const *candidates, size_t n)
{
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;

    for (size_t i = 0; i < n; i++) {
        size_t distance = er_edit_distance(word, candidates[i]);
        size_t a = strlen(word), b = strlen(candidates[i]), longest = a > b ? a : b;

        if (distance < best_distance && distance * 3 <= longest) {
            best = candidates[i];
            best_distance = distance;
        }
    }
    return best;
}
