#include "agent/linesplit.h"

#include <string.h>

void er_linesplit_init(struct er_linesplit *s)
{
    er_buf_init(&s->part, ER_LINE_MAX);
    s->after_cr = s->mid = false;
}

void er_linesplit_done(struct er_linesplit *s)
{
    er_buf_done(&s->part);
}

/* Where the next '\n' and the next '\r' are (or the end of what there is): each byte is looked at
 * once for either, whatever they are mixed with. */
struct ends {
    const char *newline, *carriage;
};

static const char *find(const char *known, char c, const char *data, size_t n)
{
    const char *at;

    if (known && known >= data)
        return known;
    at = memchr(data, c, n);
    return at ? at : data + n;
}

/* Bytes before the first '\n' or '\r'. */
static size_t line_length(struct ends *next, const char *data, size_t n)
{
    next->newline = find(next->newline, '\n', data, n);
    next->carriage = find(next->carriage, '\r', data, n);
    return (size_t)((next->newline < next->carriage ? next->newline : next->carriage) - data);
}

/* A whole line, or the last bit of one that began earlier. */
static int give(struct er_linesplit *s, const char *text, size_t n, const char *end, size_t end_n,
                er_line_fn fn, void *user)
{
    int rc;

    if (!s->part.len) { /* most lines: nothing is copied */
        fn(user, text, n, end, end_n);
        return 0;
    }
    rc = er_buf_add(&s->part, text, n);
    if (!rc)
        fn(user, s->part.data, s->part.len, end, end_n);
    er_buf_clear(&s->part);
    return rc;
}

int er_linesplit_feed(struct er_linesplit *s, const char *data, size_t n, er_line_fn fn, void *user)
{
    struct ends next = {NULL, NULL};
    int rc = 0;

    if (n > 0 && s->after_cr && data[0] == '\n') {
        fn(user, NULL, 0, data, 1);
        data++;
        n--;
    }
    s->after_cr = n > 0 ? false : s->after_cr;
    while (!rc && n > 0) {
        size_t room = ER_LINE_MAX - s->part.len, length = line_length(&next, data, n), end_n;

        if (length > room) { /* too long: what fits, without an end */
            rc = give(s, data, room, "", 0, fn, user);
            data += room;
            n -= room;
            continue;
        }
        if (length == n)
            return er_buf_add(&s->part, data, n);
        end_n = data[length] == '\r' && length + 1 < n && data[length + 1] == '\n' ? 2 : 1;
        rc = give(s, data, length, data + length, end_n, fn, user);
        s->after_cr = data[length] == '\r' && length + 1 == n;
        data += length + end_n;
        n -= length + end_n;
    }
    return rc;
}

void er_linesplit_finish(struct er_linesplit *s, er_line_fn fn, void *user)
{
    if (s->part.len)
        fn(user, s->part.data, s->part.len, "", 0);
    er_buf_clear(&s->part);
}

size_t er_linesplit_skip(struct er_linesplit *s, const char *data, size_t n)
{
    size_t forgotten = s->part.len;

    if (n == 0)
        return 0;
    er_buf_clear(&s->part);
    s->after_cr = data[n - 1] == '\r';
    s->mid = !s->after_cr && data[n - 1] != '\n';
    return forgotten;
}

size_t er_linesplit_resume(const struct er_linesplit *s, const char *data, size_t n)
{
    struct ends next = {NULL, NULL};
    size_t at;

    if (n == 0 || (!s->mid && !s->part.len))
        return n > 0 && s->after_cr && data[0] == '\n';
    at = line_length(&next, data, n);
    if (at == n)
        return n;
    return at + (data[at] == '\r' && at + 1 < n && data[at + 1] == '\n' ? 2 : 1);
}

enum { LANES = 16, ROUNDS_MAX = 255 /* of counters of one byte */ };

typedef unsigned char bytes __attribute__((vector_size(LANES)));

/* Counters side by side, two sets of them: several times as fast as memchr() from line to line. */
size_t er_linesplit_count(const char *data, size_t n)
{
    size_t sum = 0;

    while (n >= sizeof(bytes[2])) {
        size_t rounds = n / sizeof(bytes[2]) < ROUNDS_MAX ? n / sizeof(bytes[2]) : ROUNDS_MAX;
        bytes found[2] = {{0}, {0}}, now[2];

        n -= rounds * sizeof(now);
        for (size_t i = 0; i < rounds; i++, data += sizeof(now)) {
            memcpy(now, data, sizeof(now));
            found[0] -= (bytes)(now[0] == '\n'); /* true is -1 */
            found[1] -= (bytes)(now[1] == '\n');
        }
        for (int i = 0; i < LANES; i++)
            sum += (size_t)found[0][i] + found[1][i];
    }
    for (; n > 0; n--)
        sum += *data++ == '\n';
    return sum;
}
