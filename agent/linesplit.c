#include "agent/linesplit.h"

#include <string.h>

void er_linesplit_init(struct er_linesplit *s)
{
    er_buf_init(&s->part, ER_LINE_MAX);
    s->after_cr = false;
}

void er_linesplit_done(struct er_linesplit *s)
{
    er_buf_done(&s->part);
}

/* Where the next '\n' is (or the end of what there is), so that a thousand '\r' in a row before it
 * do not look for it a thousand times. */
struct newline {
    const char *at;
};

/* Bytes before the first '\n' or '\r'. */
static size_t line_length(struct newline *next, const char *data, size_t n)
{
    const char *end;

    if (!next->at || next->at < data) {
        next->at = memchr(data, '\n', n);
        if (!next->at)
            next->at = data + n;
    }
    end = memchr(data, '\r', (size_t)(next->at - data));
    return (size_t)((end ? end : next->at) - data);
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
    struct newline next = {NULL};
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
