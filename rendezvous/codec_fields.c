#include "rendezvous/codec_internal.h"

#include <string.h>

#include "base/cleanup.h"

#define VERSION 1

/* ---- bytes ---- */

struct writer {
    unsigned char *at;
    size_t len, cap;
    bool full;
};

struct reader {
    const unsigned char *at, *end;
    bool bad;
};

static void put_bytes(struct writer *w, const void *data, size_t n)
{
    if (w->full || n > w->cap - w->len) {
        w->full = true;
        return;
    }
    if (n)
        memcpy(w->at + w->len, data, n);
    w->len += n;
}

static void put_varint(struct writer *w, uint64_t v)
{
    unsigned char out[10];
    size_t n = 0;

    do {
        out[n] = (unsigned char)((v & 0x7F) | (v > 0x7F ? 0x80 : 0));
        v >>= 7;
        n++;
    } while (v);
    put_bytes(w, out, n);
}

/* Canonical only: no superfluous trailing zero byte, no bit beyond 64. */
static uint64_t get_varint(struct reader *r)
{
    uint64_t v = 0;

    for (unsigned shift = 0; shift < 70; shift += 7) {
        unsigned char c;

        if (r->at == r->end)
            break;
        c = *r->at++;
        if ((shift == 63 && c > 1) || (shift && c == 0))
            break;
        v |= (uint64_t)(c & 0x7F) << shift;
        if (!(c & 0x80))
            return v;
    }
    r->bad = true;
    return 0;
}

static void get_text(struct reader *r, char *ret, size_t size)
{
    uint64_t n = get_varint(r);

    if (r->bad || n >= size || n > (uint64_t)(r->end - r->at) || memchr(r->at, 0, (size_t)n)) {
        r->bad = true;
        return;
    }
    memcpy(ret, r->at, (size_t)n);
    ret[n] = 0;
    r->at += n;
}

static uint64_t zigzag(int v)
{
    return v < 0 ? ((uint64_t)(-(int64_t)v) << 1) - 1 : (uint64_t)v << 1;
}

static int unzigzag(struct reader *r, uint64_t v)
{
    int64_t s = (int64_t)(v >> 1);

    if (v >> 33) {
        r->bad = true;
        return 0;
    }
    s = (v & 1) ? -s - 1 : s;
    if (s > INT32_MAX || s < INT32_MIN)
        r->bad = true;
    return r->bad ? 0 : (int)s;
}

/* ---- fields ---- */

#define C(m, kind, max) AT(struct er_cause, m, kind, max)
static const struct er_record_field cause_fields[] = {
    TEXT(struct er_cause, node_id),
    TEXT(struct er_cause, host),
    C(generation, F_U64, ER_GEN_MAX),
    C(rank, F_INT, 0),
    C(local_rank, F_INT, 0),
    C(pid, F_INT, 0),
    C(kind, F_ENUM, ER_EXIT_KIND_COUNT),
    C(code, F_INT, 0),
    C(signal, F_INT, 0),
    C(fatal, F_BOOL, 0),
    C(uncounted, F_BOOL, 0),
    C(step, F_U64, 0),
    C(in_step, F_U64, 0),
    TEXT(struct er_cause, message),
};
#undef C

static void put_fields(struct writer *w, const struct er_record_field *fields, size_t n,
                       const void *base);
static void get_fields(struct reader *r, const struct er_record_field *fields, size_t n,
                       void *base);

static void put_ages(struct writer *w, const struct er_job_record *world)
{
    put_varint(w, world->age_n);
    for (uint32_t i = 0; i < world->age_n; i++) {
        put_varint(w, world->ages[i].age_us);
        put_varint(w, world->ages[i].count);
    }
}

static void get_ages(struct reader *r, struct er_job_record *world)
{
    uint64_t n = get_varint(r);

    if (n > ER_BUDGET_AGES) {
        r->bad = true;
        return;
    }
    world->age_n = (uint32_t)n;
    for (uint32_t i = 0; i < world->age_n; i++) {
        uint64_t count;

        world->ages[i].age_us = get_varint(r);
        count = get_varint(r);
        if (count > UINT32_MAX)
            r->bad = true;
        world->ages[i].count = (uint32_t)count;
    }
}

static void put_poison(struct writer *w, const struct er_poison *p)
{
    put_varint(w, p->n);
    for (uint32_t i = 0; i < p->n; i++) {
        put_varint(w, p->steps[i].step);
        put_varint(w, p->steps[i].failures);
    }
}

static void get_poison(struct reader *r, struct er_poison *p)
{
    uint64_t n = get_varint(r), failures;

    r->bad |= n > ER_POISON_MAX;
    p->n = r->bad ? 0 : (uint32_t)n;
    for (uint32_t i = 0; i < p->n; i++) {
        p->steps[i].step = get_varint(r);
        failures = get_varint(r);
        r->bad |= failures > UINT32_MAX;
        p->steps[i].failures = (uint32_t)failures;
    }
}

static void put_skips(struct writer *w, const struct er_skips *s)
{
    put_varint(w, s->n);
    for (uint32_t i = 0; i < s->n; i++)
        put_varint(w, s->steps[i]);
}

static void get_skips(struct reader *r, struct er_skips *s)
{
    uint64_t n = get_varint(r);

    r->bad |= n > ER_SKIPS_MAX;
    s->n = r->bad ? 0 : (uint32_t)n;
    for (uint32_t i = 0; i < s->n; i++)
        s->steps[i] = get_varint(r);
}

static void put_field(struct writer *w, const struct er_record_field *f, const void *base)
{
    const char *p = (const char *)base + f->offset;
    uint64_t u64;
    uint32_t u32;
    int i;

    switch (f->type) {
    case F_U64:
        memcpy(&u64, p, sizeof(u64));
        put_varint(w, u64);
        break;
    case F_LAST_U64:
        memcpy(&u64, p, sizeof(u64));
        if (u64)
            put_varint(w, u64);
        break;
    case F_U32:
    case F_ENUM:
        memcpy(&u32, p, sizeof(u32));
        put_varint(w, u32);
        break;
    case F_INT:
        memcpy(&i, p, sizeof(i));
        put_varint(w, zigzag(i));
        break;
    case F_BOOL:
        put_varint(w, *(const bool *)p);
        break;
    case F_TEXT:
        put_varint(w, strlen(p));
        put_bytes(w, p, strlen(p));
        break;
    case F_AGES:
        put_ages(w, base);
        break;
    case F_CAUSE:
        put_fields(w, cause_fields, ER_ARRAY_N(cause_fields), p);
        break;
    case F_POISON:
        put_poison(w, (const struct er_poison *)p);
        break;
    case F_SKIPS:
        put_skips(w, (const struct er_skips *)p);
        break;
    }
}

static void get_field(struct reader *r, const struct er_record_field *f, void *base)
{
    char *p = (char *)base + f->offset;
    uint64_t v;
    uint32_t u32;
    int i;

    switch (f->type) {
    case F_U64:
        v = get_varint(r);
        if (f->limit && v > f->limit)
            r->bad = true;
        memcpy(p, &v, sizeof(v));
        break;
    case F_LAST_U64:
        if (r->at == r->end)
            break; /* it is zeroed */
        v = get_varint(r);
        r->bad |= v == 0;
        memcpy(p, &v, sizeof(v));
        break;
    case F_U32:
    case F_ENUM:
        v = get_varint(r);
        if (v > UINT32_MAX || (f->type == F_ENUM && v >= f->limit))
            r->bad = true;
        u32 = (uint32_t)v;
        memcpy(p, &u32, sizeof(u32));
        break;
    case F_INT:
        i = unzigzag(r, get_varint(r));
        memcpy(p, &i, sizeof(i));
        break;
    case F_BOOL:
        v = get_varint(r);
        if (v > 1)
            r->bad = true;
        *(bool *)p = v == 1;
        break;
    case F_TEXT:
        get_text(r, p, (size_t)f->limit);
        break;
    case F_AGES:
        get_ages(r, base);
        break;
    case F_CAUSE:
        get_fields(r, cause_fields, ER_ARRAY_N(cause_fields), p);
        break;
    case F_POISON:
        get_poison(r, (struct er_poison *)p);
        break;
    case F_SKIPS:
        get_skips(r, (struct er_skips *)p);
        break;
    }
}

static void put_fields(struct writer *w, const struct er_record_field *fields, size_t n,
                       const void *base)
{
    for (size_t i = 0; i < n; i++)
        put_field(w, &fields[i], base);
}

static void get_fields(struct reader *r, const struct er_record_field *fields, size_t n, void *base)
{
    for (size_t i = 0; i < n && !r->bad; i++)
        get_field(r, &fields[i], base);
}

size_t er_record_encode(const struct er_record_table *table, const void *base, void *ret)
{
    struct writer w = {.at = ret, .cap = table->bytes_max};
    unsigned char head[2] = {(unsigned char)table->letter, VERSION};

    put_bytes(&w, head, sizeof(head));
    put_fields(&w, table->fields, table->field_n, base);
    return w.full ? 0 : w.len;
}

int er_record_parse(const struct er_record_table *table, struct er_bytes bytes, void *base,
                    struct er_error *err)
{
    struct reader r = {.at = bytes.data};

    if (bytes.len < 2 || bytes.len > table->bytes_max || r.at[0] != table->letter)
        return er_error_set(err, ER_E_CORRUPT, "not a %s record", table->name);
    if (r.at[1] != VERSION)
        return er_error_set(err, ER_E_PROTOCOL, "%s record of version %d, this program knows %d",
                            table->name, r.at[1], VERSION);
    r.end = r.at + bytes.len;
    r.at += 2;
    get_fields(&r, table->fields, table->field_n, base);
    if (r.bad || r.at != r.end)
        return er_error_set(err, ER_E_CORRUPT, "malformed %s record", table->name);
    return 0;
}
