/* libFuzzer: the line splitter. The first byte says in which pieces the rest comes; what is given
 * adds up to what came, and no line is longer than the bound. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agent/linesplit.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

enum { REPEATED = 3 }; /* the input again and again: long lines are not reached otherwise */

struct sum {
    char *data;
    size_t n, max;
};

static void add(struct sum *sum, const char *text, size_t n)
{
    assert(sum->n + n <= sum->max);
    if (n)
        memcpy(sum->data + sum->n, text, n);
    sum->n += n;
}

static void on_line(void *user, const char *text, size_t n, const char *end, size_t end_n)
{
    assert(n <= ER_LINE_MAX && end_n <= 2);
    assert(!text || (!memchr(text, '\n', n) && !memchr(text, '\r', n)));
    assert(text || (n == 0 && end_n == 1 && end[0] == '\n'));
    add(user, text, n);
    add(user, end, end_n);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    size_t scale, piece, size, total;
    struct er_linesplit s;
    struct sum sum = {0};
    char *all;

    if (n < 2)
        return 0;
    /* Small inputs in small pieces; some stretched to lines beyond the bound. */
    scale = data[0] & 0x80 ? 2 * ER_LINE_MAX / (n - 1) + REPEATED : 1;
    size = (data[0] & 0x7f) + 1u;
    piece = data[0] & 0x80 ? size * 1024 : size;
    total = scale * (n - 1);
    all = malloc(total);
    sum = (struct sum){malloc(total), 0, total};
    assert(all && sum.data);
    for (size_t i = 0; i < total; i++)
        all[i] = (char)data[1 + i / scale];
    er_linesplit_init(&s);
    for (size_t at = 0; at < total; at += piece) {
        size_t now = piece < total - at ? piece : total - at;

        assert(er_linesplit_feed(&s, all + at, now, on_line, &sum) == 0);
    }
    er_linesplit_finish(&s, on_line, &sum);
    er_linesplit_done(&s);
    assert(sum.n == total && !memcmp(sum.data, all, total));
    free(sum.data);
    free(all);
    return 0;
}
