#pragma once
/* Records as tables (codec.c); encoder and parser read the same one (codec_fields.c). */
#include <stddef.h>

#include "rendezvous/codec.h"

enum er_record_type {
    F_U64,
    F_U32,
    F_INT,
    F_BOOL,
    F_ENUM,
    F_TEXT,
    F_AGES,
    F_CAUSE,
    F_POISON,
    F_SKIPS,
    /* The last one, not there when 0: the record then has the form that earlier releases read.
     * Whoever sets it sees to it that nobody of those reads it (ER_PROTOCOL). */
    F_LAST_U64
};

struct er_record_field {
    enum er_record_type type;
    size_t offset;
    uint64_t limit; /* F_ENUM: count; F_TEXT: size of the array; F_U64: largest value, 0: any */
};

struct er_record_table {
    const char *name;
    char letter;
    const struct er_record_field *fields;
    size_t field_n, bytes_max;
};

#define AT(type, member, kind, max)                                                                \
    {                                                                                              \
        kind, offsetof(type, member), max                                                          \
    }
#define TEXT(type, member) AT(type, member, F_TEXT, sizeof(((type *)0)->member))

/* The bytes of what `base` points to, written to `ret`, which has room for the table's bytes_max;
 * 0: they don't fit. */
size_t er_record_encode(const struct er_record_table *table, const void *base, void *ret);
/* Into `base`, which the caller zeroed; half filled after a failure: ER_E_CORRUPT, or ER_E_PROTOCOL
 * for another version. */
int er_record_parse(const struct er_record_table *table, struct er_bytes bytes, void *base,
                    struct er_error *err);
