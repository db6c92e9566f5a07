#pragma once
/*
 * A growing byte buffer with a limit. Appending beyond `max` returns -ENOBUFS and changes nothing:
 * every buffer in the tree has a bound. The content is always followed by a NUL that is not
 * counted.
 */
#include <stdarg.h>
#include <stddef.h>

#include "base/error.h"

struct er_buf {
    char *data; /* owned; NULL while empty */
    size_t len; /* bytes used */
    size_t cap; /* bytes allocated, NUL included */
    size_t max; /* bytes allowed in `len` */
};

void er_buf_init(struct er_buf *buf, size_t max);
void er_buf_done(struct er_buf *buf); /* frees; the buffer may be used again */
void er_buf_clear(struct er_buf *buf);

int er_buf_reserve(struct er_buf *buf, size_t more);
int er_buf_add(struct er_buf *buf, const void *data, size_t n);
int er_buf_add_str(struct er_buf *buf, const char *text);
int er_buf_printf(struct er_buf *buf, const char *fmt, ...) ER_PRINTF(2, 3);
int er_buf_vprintf(struct er_buf *buf, const char *fmt, va_list ap);

/* Drop the first n bytes. */
void er_buf_consume(struct er_buf *buf, size_t n);

/* The content as a C string; "" when empty. Valid until the next change. */
const char *er_buf_str(const struct er_buf *buf);
