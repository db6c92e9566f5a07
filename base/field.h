#pragma once
/*
 * Typed key-value fields: one list serves the log (key=value or JSON), the event file and status.
 *   er_log(ER_LOG_INFO, "worker exited", ER_INT("rank", 3), ER_STR("kind", "signaled"));
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

enum er_field_type {
    ER_FIELD_STR,
    ER_FIELD_INT,
    ER_FIELD_UINT,
    ER_FIELD_NUM,
    ER_FIELD_BOOL,
    ER_FIELD_JSON
};

struct er_field {
    const char *key;
    enum er_field_type type;
    union {
        const char *str; /* UTF-8; NULL prints as JSON null; invalid bytes become U+FFFD */
        int64_t i;
        uint64_t u; /* in JSON at most 2^63 - 1 */
        double num; /* NaN and infinities print as null */
        bool b;
    } v;
};

#define ER_STR(k, x)  ((struct er_field){.key = (k), .type = ER_FIELD_STR, .v.str = (x)})
#define ER_INT(k, x)  ((struct er_field){.key = (k), .type = ER_FIELD_INT, .v.i = (x)})
#define ER_UINT(k, x) ((struct er_field){.key = (k), .type = ER_FIELD_UINT, .v.u = (x)})
#define ER_NUM(k, x)  ((struct er_field){.key = (k), .type = ER_FIELD_NUM, .v.num = (x)})
#define ER_BOOL(k, x) ((struct er_field){.key = (k), .type = ER_FIELD_BOOL, .v.b = (x)})
/* Text that is JSON already (an array, an object); printed as it is, but on one line and with
 * control characters escaped. */
#define ER_JSON(k, x) ((struct er_field){.key = (k), .type = ER_FIELD_JSON, .v.str = (x)})

/* `"key":value,"key":value` without braces. */
int er_fields_json(struct er_buf *buf, const struct er_field *fields, size_t n);
/* `key=value key="two words"`. */
int er_fields_text(struct er_buf *buf, const struct er_field *fields, size_t n);
/* A JSON string literal with its quotes; control characters escaped, invalid UTF-8 replaced. */
int er_json_quote(struct er_buf *buf, const char *text, size_t n);
