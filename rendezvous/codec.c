#include "rendezvous/codec.h"

#include <assert.h>
#include <string.h>

#include "base/cleanup.h"

#define VERSION 1

/* Records as tables: encoder and parser read the same one. */
enum field_type { F_U64, F_U32, F_INT, F_BOOL, F_ENUM, F_TEXT, F_AGES, F_CAUSE };

struct field {
    enum field_type type;
    size_t offset;
    uint64_t limit; /* F_ENUM: count; F_TEXT: size of the array; F_U64: largest value, 0: any */
};

struct record {
    const char *name;
    char letter;
    const struct field *fields;
    size_t field_n, bytes_max;
};

#define AT(type, member, kind, max)                                                                \
    {                                                                                              \
        kind, offsetof(type, member), max                                                          \
    }
#define TEXT(type, member) AT(type, member, F_TEXT, sizeof(((type *)0)->member))

#define C(m, kind, max) AT(struct er_cause, m, kind, max)
static const struct field cause_fields[] = {
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
    TEXT(struct er_cause, message),
};
#undef C

#define W(m, kind, max) AT(struct er_job_record, m, kind, max)
static const struct field world_fields[] = {
    TEXT(struct er_job_record, run),
    W(phase, F_ENUM, ER_WORLD_PHASE_COUNT),
    W(reason, F_ENUM, ER_REASON_COUNT),
    W(generation, F_U64, ER_GEN_MAX),
    W(nonce, F_U64, 0),
    W(last_sealed, F_U64, ER_GEN_MAX),
    W(last_nnodes, F_U32, 0),
    W(min_nodes, F_U32, 0),
    W(max_nodes, F_U32, 0),
    W(restarts, F_U32, 0),
    W(uncounted_row, F_U32, 0),
    W(early_row, F_U32, 0),
    W(writer, F_U64, 0),
    W(seq, F_U64, 0),
    W(ready_us, F_U64, 0),
    W(world_size, F_U32, 0),
    W(nnodes, F_U32, 0),
    TEXT(struct er_job_record, master_addr),
    W(master_port, F_INT, 0),
    W(exit_code, F_INT, 0),
    W(stopped, F_BOOL, 0),
    W(ages, F_AGES, 0),
    W(has_cause, F_BOOL, 0),
    W(cause, F_CAUSE, 0),
    TEXT(struct er_job_record, verdict),
    W(protocol_low, F_U32, 0),
    W(protocol_high, F_U32, 0),
    W(next, F_U64, ER_GEN_MAX),
    W(next_nonce, F_U64, 0),
    W(next_nnodes, F_U32, 0),
    W(next_size, F_U32, 0),
    W(next_reason, F_ENUM, ER_REASON_COUNT),
    W(taken, F_U64, ER_GEN_MAX),
    W(next_go, F_BOOL, 0),
    W(spec, F_U64, 0),
    W(next_warm, F_BOOL, 0),
};
#undef W

#define M(m, kind, max) AT(struct er_member, m, kind, max)
static const struct field member_fields[] = {
    M(incarnation, F_U64, 0),       M(boot_id_hash, F_U64, 0),  TEXT(struct er_member, address),
    TEXT(struct er_member, host),   M(port, F_INT, 0),          M(slots, F_INT, 0),
    M(preferred_rank, F_INT, 0),    M(left, F_U64, ER_GEN_MAX), M(running, F_U64, ER_GEN_MAX),
    M(draining, F_BOOL, 0),         M(protocol, F_U32, 0),      M(planned, F_BOOL, 0),
    M(prepared, F_U64, ER_GEN_MAX), M(role, F_U32, 0),          M(spec, F_U64, 0),
};
#undef M

#define A(m, kind, max) AT(struct er_assign, m, kind, max)
static const struct field assign_fields[] = {
    A(generation, F_U64, ER_GEN_MAX),
    A(nonce, F_U64, 0),
    A(incarnation, F_U64, 0),
    A(group_rank, F_INT, 0),
    A(first_rank, F_INT, 0),
    A(prev_generation, F_U64, ER_GEN_MAX),
    A(prev_incarnation, F_U64, 0),
    A(prev_rank, F_INT, 0),
    A(prev_first, F_INT, 0),
    A(prev_nonce, F_U64, 0),
    A(drain, F_U64, 0),
    A(strikes, F_U32, 0),
    A(strike_generation, F_U64, 0),
    A(strike_age_us, F_U64, 0),
    A(role_first, F_INT, 0),
    A(role_size, F_INT, 0),
    A(prev_role_first, F_INT, 0),
    A(prev_role_size, F_INT, 0),
};
#undef A

static const struct field leader_fields[] = {
    TEXT(struct er_leader, node_id),
    AT(struct er_leader, incarnation, F_U64, 0),
    AT(struct er_leader, nonce, F_U64, 0),
};

static const struct field result_fields[] = {
    AT(struct er_result, ok, F_BOOL, 0),
    AT(struct er_result, progressed, F_BOOL, 0),
    AT(struct er_result, incarnation, F_U64, 0),
    AT(struct er_result, cause, F_CAUSE, 0),
};

static const struct field ckpt_fields[] = {
    AT(struct er_ckpt_record, generation, F_U64, ER_GEN_MAX),
    AT(struct er_ckpt_record, step, F_U64, 0),
    TEXT(struct er_ckpt_record, digest),
    TEXT(struct er_ckpt_record, path),
};

static const struct field ask_fields[] = {
    AT(struct er_ask, kind, F_ENUM, ER_ASK_KIND_COUNT),
    TEXT(struct er_ask, node),
    AT(struct er_ask, incarnation, F_U64, 0),
    AT(struct er_ask, min_nodes, F_U32, 0),
    AT(struct er_ask, max_nodes, F_U32, 0),
    AT(struct er_ask, cooldown_us, F_U64, 0),
    TEXT(struct er_ask, reason),
};
static const struct field aside_fields[] = {
    TEXT(struct er_aside, reason),
};

#define RECORD(name, letter, fields, max)                                                          \
    {                                                                                              \
        name, letter, fields, ER_ARRAY_N(fields), max                                              \
    }
static const struct record world_record = RECORD("world", 'w', world_fields, ER_WORLD_BYTES_MAX);
static const struct record member_record = RECORD("node", 'n', member_fields, ER_MEMBER_BYTES_MAX);
static const struct record assign_record =
    RECORD("assignment", 'a', assign_fields, ER_ASSIGN_BYTES_MAX);
static const struct record leader_record =
    RECORD("leader", 'l', leader_fields, ER_LEADER_BYTES_MAX);
static const struct record result_record =
    RECORD("result", 'r', result_fields, ER_RESULT_BYTES_MAX);
static const struct record ask_record = RECORD("request", 'q', ask_fields, ER_ASK_BYTES_MAX);
static const struct record aside_record = RECORD("aside", 's', aside_fields, ER_ASIDE_BYTES_MAX);
static const struct record ckpt_record = RECORD("checkpoint", 'c', ckpt_fields, ER_CKPT_BYTES_MAX);

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

static void put_fields(struct writer *w, const struct field *fields, size_t n, const void *base);
static void get_fields(struct reader *r, const struct field *fields, size_t n, void *base);

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

static void put_field(struct writer *w, const struct field *f, const void *base)
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
    }
}

static void get_field(struct reader *r, const struct field *f, void *base)
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
    }
}

static void put_fields(struct writer *w, const struct field *fields, size_t n, const void *base)
{
    for (size_t i = 0; i < n; i++)
        put_field(w, &fields[i], base);
}

static void get_fields(struct reader *r, const struct field *fields, size_t n, void *base)
{
    for (size_t i = 0; i < n && !r->bad; i++)
        get_field(r, &fields[i], base);
}

/* 0: doesn't fit. */
static size_t encode(const struct record *rec, const void *base, void *ret)
{
    struct writer w = {.at = ret, .cap = rec->bytes_max};
    unsigned char head[2] = {(unsigned char)rec->letter, VERSION};

    put_bytes(&w, head, sizeof(head));
    put_fields(&w, rec->fields, rec->field_n, base);
    return w.full ? 0 : w.len;
}

static int parse(const struct record *rec, struct er_bytes bytes, void *base, struct er_error *err)
{
    struct reader r = {.at = bytes.data};

    if (bytes.len < 2 || bytes.len > rec->bytes_max || r.at[0] != rec->letter)
        return er_error_set(err, ER_E_CORRUPT, "not a %s record", rec->name);
    if (r.at[1] != VERSION)
        return er_error_set(err, ER_E_PROTOCOL, "%s record of version %d, this program knows %d",
                            rec->name, r.at[1], VERSION);
    r.end = r.at + bytes.len;
    r.at += 2;
    get_fields(&r, rec->fields, rec->field_n, base);
    if (r.bad || r.at != r.end)
        return er_error_set(err, ER_E_CORRUPT, "malformed %s record", rec->name);
    return 0;
}

/* ---- records ---- */

/* Cut at `keep` bytes, never inside a UTF-8 sequence. */
static void cut(char *text, size_t keep)
{
    if (strlen(text) <= keep)
        return;
    while (keep > 0 && ((unsigned char)text[keep] & 0xC0) == 0x80)
        keep--;
    text[keep] = 0;
}

size_t er_job_record_encode(const struct er_job_record *w, void *ret)
{
    static const struct {
        size_t message, verdict;
    } steps[] = {{512, 256}, {256, 192}, {128, 128}, {48, 96}, {0, 64}};
    struct er_job_record copy = *w;
    size_t n = 0;

    for (size_t i = 0; i < ER_ARRAY_N(steps) && !n; i++) {
        cut(copy.cause.message, steps[i].message);
        cut(copy.verdict, steps[i].verdict);
        n = encode(&world_record, &copy, ret);
    }
    assert(n);
    return n;
}

#define DEFINE_ENCODE(name, table)                                                                 \
    size_t er_##name##_encode(const struct er_##name *record, void *ret)                           \
    {                                                                                              \
        size_t n = encode(&table, record, ret);                                                    \
                                                                                                   \
        assert(n);                                                                                 \
        return n;                                                                                  \
    }
#define DEFINE_PARSE(name, table)                                                                  \
    int er_##name##_parse(struct er_bytes bytes, struct er_##name *ret, struct er_error *err)      \
    {                                                                                              \
        struct er_##name record;                                                                   \
        int rc;                                                                                    \
                                                                                                   \
        memset(&record, 0, sizeof(record));                                                        \
        rc = parse(&table, bytes, &record, err);                                                   \
        if (rc == 0)                                                                               \
            *ret = record;                                                                         \
        return rc;                                                                                 \
    }

DEFINE_ENCODE(member, member_record)
DEFINE_ENCODE(assign, assign_record)
DEFINE_ENCODE(leader, leader_record)
DEFINE_ENCODE(result, result_record)
DEFINE_ENCODE(ckpt_record, ckpt_record)
DEFINE_ENCODE(ask, ask_record)
DEFINE_ENCODE(aside, aside_record)
DEFINE_PARSE(job_record, world_record)
DEFINE_PARSE(member, member_record)
DEFINE_PARSE(assign, assign_record)
DEFINE_PARSE(leader, leader_record)
DEFINE_PARSE(result, result_record)
DEFINE_PARSE(ckpt_record, ckpt_record)
DEFINE_PARSE(ask, ask_record)
DEFINE_PARSE(aside, aside_record)

const char *er_reason_name(enum er_reason reason)
{
    static const char *const names[ER_REASON_COUNT] = {
#define ER_REASON_TEXT(name, text) [ER_REASON_##name] = text,
        ER_REASONS(ER_REASON_TEXT)
#undef ER_REASON_TEXT
    };

    return reason < ER_REASON_COUNT ? names[reason] : "unknown";
}

const char *er_exit_kind_name(enum er_exit_kind kind)
{
    static const char *const names[ER_EXIT_KIND_COUNT] = {
#define ER_EXIT_TEXT(name, text) [ER_EXIT_##name] = text,
        ER_EXIT_KINDS(ER_EXIT_TEXT)
#undef ER_EXIT_TEXT
    };

    return kind < ER_EXIT_KIND_COUNT ? names[kind] : "unknown";
}
