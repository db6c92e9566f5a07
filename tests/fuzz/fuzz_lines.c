/* libFuzzer: the line splitter. The first byte says in which pieces the rest comes; what is given
 * adds up to what came, and no line is longer than the bound. Then again with pieces that are
 * skipped: what is given and what is not adds up all the same, and begins where a line does. */
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

static void feed_all(const char *all, size_t total, size_t piece)
{
    struct er_linesplit s;
    struct sum sum = {malloc(total), 0, total};

    assert(sum.data);
    er_linesplit_init(&s);
    for (size_t at = 0; at < total; at += piece) {
        size_t now = piece < total - at ? piece : total - at;

        assert(er_linesplit_feed(&s, all + at, now, on_line, &sum) == 0);
    }
    er_linesplit_finish(&s, on_line, &sum);
    er_linesplit_done(&s);
    assert(sum.n == total && !memcmp(sum.data, all, total));
    free(sum.data);
}

static void check_count(const char *all, size_t total)
{
    size_t lines = 0;

    for (size_t i = 0; i < total; i++)
        lines += all[i] == '\n';
    assert(er_linesplit_count(all, total) == lines);
}

/* Every other run of `piece` pieces is skipped. */
static void skip_some(const char *all, size_t total, size_t piece)
{
    struct er_linesplit s;
    struct sum sum = {malloc(total), 0, total};
    size_t skipped = 0;
    bool skipping = false;

    assert(sum.data);
    er_linesplit_init(&s);
    for (size_t at = 0; at < total; at += piece) {
        size_t now = piece < total - at ? piece : total - at, k = 0;

        if (at / piece % (piece % 7 + 2) == 1)
            skipping = true;
        else if (skipping)
            k = er_linesplit_resume(&s, all + at, now);
        if (skipping && at / piece % (piece % 7 + 2) == 1)
            k = now;
        assert(k <= now);
        skipped += k + (k ? er_linesplit_skip(&s, all + at, k) : 0);
        skipping = skipping && k == now;
        if (k > 0 && k < now)
            assert(all[at + k - 1] == '\n' || (all[at + k - 1] == '\r' && all[at + k] != '\n'));
        assert(er_linesplit_feed(&s, all + at + k, now - k, on_line, &sum) == 0);
    }
    er_linesplit_finish(&s, on_line, &sum);
    er_linesplit_done(&s);
    assert(sum.n + skipped == total);
    free(sum.data);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    size_t scale, piece, size, total;
    char *all;

    if (n < 2)
        return 0;
    /* Small inputs in small pieces; some stretched to lines beyond the bound. */
    scale = data[0] & 0x80 ? 2 * ER_LINE_MAX / (n - 1) + REPEATED : 1;
    size = (data[0] & 0x7f) + 1u;
    piece = data[0] & 0x80 ? size * 1024 : size;
    total = scale * (n - 1);
    all = malloc(total);
    assert(all);
    for (size_t i = 0; i < total; i++)
        all[i] = (char)data[1 + i / scale];
    feed_all(all, total, piece);
    check_count(all, total);
    skip_some(all, total, piece);
    free(all);
    return 0;
}
