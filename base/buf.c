#include "base/buf.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAP = 64 };

void er_buf_init(struct er_buf *buf, size_t max)
{
    *buf = (struct er_buf){.max = max};
}

void er_buf_done(struct er_buf *buf)
{
    int saved = errno;

    if (!buf)
        return;
    free(buf->data);
    buf->data = NULL;
    buf->len = buf->cap = 0;
    errno = saved;
}

void er_buf_clear(struct er_buf *buf)
{
    buf->len = 0;
    if (buf->data)
        buf->data[0] = '\0';
}

int er_buf_reserve(struct er_buf *buf, size_t more)
{
    size_t want, cap = buf->cap ? buf->cap : FIRST_CAP;
    char *data;

    if (buf->len > buf->max || more > buf->max - buf->len)
        return -ENOBUFS;
    if (more > PTRDIFF_MAX - buf->len - 1) /* no object is larger */
        return -ENOMEM;
    want = buf->len + more + 1;
    if (want <= buf->cap)
        return 0;
    while (cap < want)
        cap *= 2;
    if (cap - 1 > buf->max)
        cap = buf->max + 1;
    data = realloc(buf->data, cap);
    if (!data)
        return -ENOMEM;
    buf->data = data;
    buf->cap = cap;
    buf->data[buf->len] = '\0';
    return 0;
}

int er_buf_add(struct er_buf *buf, const void *data, size_t n)
{
    int rc = er_buf_reserve(buf, n);

    if (rc)
        return rc;
    if (n)
        memcpy(buf->data + buf->len, data, n);
    buf->len += n;
    buf->data[buf->len] = '\0';
    return 0;
}

int er_buf_add_str(struct er_buf *buf, const char *text)
{
    return er_buf_add(buf, text, strlen(text));
}

int er_buf_printf(struct er_buf *buf, const char *fmt, ...)
{
    va_list ap;
    int rc;

    va_start(ap, fmt);
    rc = er_buf_vprintf(buf, fmt, ap);
    va_end(ap);
    return rc;
}

int er_buf_vprintf(struct er_buf *buf, const char *fmt, va_list ap)
{
    va_list again;
    int n, rc;

    va_copy(again, ap);
    n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    if (n < 0)
        return -EINVAL;
    rc = er_buf_reserve(buf, (size_t)n);
    if (rc)
        return rc;
    vsnprintf(buf->data + buf->len, (size_t)n + 1, fmt, ap);
    buf->len += (size_t)n;
    return 0;
}

void er_buf_consume(struct er_buf *buf, size_t n)
{
    assert(n <= buf->len);
    if (!n)
        return;
    memmove(buf->data, buf->data + n, buf->len - n);
    buf->len -= n;
    buf->data[buf->len] = '\0';
}

const char *er_buf_str(const struct er_buf *buf)
{
    return buf->data ? buf->data : "";
}
