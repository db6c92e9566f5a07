#include "rendezvous/codec.h"

#include <assert.h>
#include <string.h>

#include "base/cleanup.h"
#include "rendezvous/codec_internal.h"

#define W(m, kind, max) AT(struct er_job_record, m, kind, max)
static const struct er_record_field world_fields[] = {
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
    W(poison, F_POISON, 0),
    W(skips, F_SKIPS, 0),
    W(stop_us, F_LAST_U64, 0),
};
#undef W

#define M(m, kind, max) AT(struct er_member, m, kind, max)
static const struct er_record_field member_fields[] = {
    M(incarnation, F_U64, 0),       M(boot_id_hash, F_U64, 0),  TEXT(struct er_member, address),
    TEXT(struct er_member, host),   M(port, F_INT, 0),          M(slots, F_INT, 0),
    M(preferred_rank, F_INT, 0),    M(left, F_U64, ER_GEN_MAX), M(running, F_U64, ER_GEN_MAX),
    M(draining, F_BOOL, 0),         M(protocol, F_U32, 0),      M(planned, F_BOOL, 0),
    M(prepared, F_U64, ER_GEN_MAX), M(role, F_U32, 0),          M(spec, F_U64, 0),
    M(preempted, F_BOOL, 0),
};
#undef M

#define A(m, kind, max) AT(struct er_assign, m, kind, max)
static const struct er_record_field assign_fields[] = {
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
    A(drain_code, F_INT, 0),
    A(drain_us, F_LAST_U64, 0),
};
#undef A

static const struct er_record_field leader_fields[] = {
    TEXT(struct er_leader, node_id),
    AT(struct er_leader, incarnation, F_U64, 0),
    AT(struct er_leader, nonce, F_U64, 0),
};

static const struct er_record_field result_fields[] = {
    AT(struct er_result, ok, F_BOOL, 0),
    AT(struct er_result, progressed, F_BOOL, 0),
    AT(struct er_result, incarnation, F_U64, 0),
    AT(struct er_result, cause, F_CAUSE, 0),
};

static const struct er_record_field ckpt_fields[] = {
    AT(struct er_ckpt_record, generation, F_U64, ER_GEN_MAX),
    AT(struct er_ckpt_record, step, F_U64, 0),
    TEXT(struct er_ckpt_record, digest),
    TEXT(struct er_ckpt_record, path),
};

static const struct er_record_field ask_fields[] = {
    AT(struct er_ask, kind, F_ENUM, ER_ASK_KIND_COUNT),
    TEXT(struct er_ask, node),
    AT(struct er_ask, incarnation, F_U64, 0),
    AT(struct er_ask, min_nodes, F_U32, 0),
    AT(struct er_ask, max_nodes, F_U32, 0),
    AT(struct er_ask, cooldown_us, F_U64, 0),
    TEXT(struct er_ask, reason),
    AT(struct er_ask, code, F_INT, 0),
    AT(struct er_ask, deadline_us, F_LAST_U64, 0),
};
static const struct er_record_field aside_fields[] = {
    TEXT(struct er_aside, reason),
};
static const struct er_record_field query_fields[] = {
    AT(struct er_query, id, F_U64, 0),
    AT(struct er_query, lease, F_U64, 0),
};
static const struct er_record_field overrides_fields[] = {
    AT(struct er_overrides, seq, F_U64, 0), AT(struct er_overrides, wall_us, F_U64, 0),
    TEXT(struct er_overrides, id),          TEXT(struct er_overrides, by),
    TEXT(struct er_overrides, text),
};

#define RECORD(name, letter, fields, max)                                                          \
    {                                                                                              \
        name, letter, fields, ER_ARRAY_N(fields), max                                              \
    }
static const struct er_record_table world_record =
    RECORD("world", 'w', world_fields, ER_WORLD_BYTES_MAX);
static const struct er_record_table member_record =
    RECORD("node", 'n', member_fields, ER_MEMBER_BYTES_MAX);
static const struct er_record_table assign_record =
    RECORD("assignment", 'a', assign_fields, ER_ASSIGN_BYTES_MAX);
static const struct er_record_table leader_record =
    RECORD("leader", 'l', leader_fields, ER_LEADER_BYTES_MAX);
static const struct er_record_table result_record =
    RECORD("result", 'r', result_fields, ER_RESULT_BYTES_MAX);
static const struct er_record_table ask_record =
    RECORD("request", 'q', ask_fields, ER_ASK_BYTES_MAX);
static const struct er_record_table aside_record =
    RECORD("aside", 's', aside_fields, ER_ASIDE_BYTES_MAX);
static const struct er_record_table query_record =
    RECORD("query", 'y', query_fields, ER_QUERY_BYTES_MAX);
static const struct er_record_table overrides_record =
    RECORD("overrides", 'o', overrides_fields, ER_OVERRIDES_BYTES_MAX);
static const struct er_record_table ckpt_record =
    RECORD("checkpoint", 'c', ckpt_fields, ER_CKPT_BYTES_MAX);

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
        size_t message, verdict, host;
    } steps[] = {{512, 256, ER_HOST_TEXT_MAX}, {256, 192, ER_HOST_TEXT_MAX},
                 {128, 128, ER_HOST_TEXT_MAX}, {48, 96, ER_HOST_TEXT_MAX},
                 {0, 64, ER_HOST_TEXT_MAX},    {0, 64, 80}};
    struct er_job_record copy = *w;
    size_t n = 0;

    for (size_t i = 0; i < ER_ARRAY_N(steps) && !n; i++) {
        cut(copy.cause.message, steps[i].message);
        cut(copy.verdict, steps[i].verdict);
        cut(copy.cause.host, steps[i].host);
        n = er_record_encode(&world_record, &copy, ret);
    }
    assert(n);
    return n;
}

#define DEFINE_ENCODE(name, table)                                                                 \
    size_t er_##name##_encode(const struct er_##name *record, void *ret)                           \
    {                                                                                              \
        size_t n = er_record_encode(&table, record, ret);                                          \
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
        rc = er_record_parse(&table, bytes, &record, err);                                         \
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
DEFINE_ENCODE(query, query_record)
DEFINE_ENCODE(overrides, overrides_record)
DEFINE_PARSE(job_record, world_record)
DEFINE_PARSE(member, member_record)
DEFINE_PARSE(assign, assign_record)
DEFINE_PARSE(leader, leader_record)
DEFINE_PARSE(result, result_record)
DEFINE_PARSE(ckpt_record, ckpt_record)
DEFINE_PARSE(ask, ask_record)
DEFINE_PARSE(aside, aside_record)
DEFINE_PARSE(query, query_record)
DEFINE_PARSE(overrides, overrides_record)

const char *er_reason_name(enum er_reason reason)
{
    static const char *const names[ER_REASON_COUNT] = {
#define ER_REASON_TEXT(name, text) [ER_REASON_##name] = text,
        ER_REASONS(ER_REASON_TEXT)
#undef ER_REASON_TEXT
    };

    return reason < ER_REASON_COUNT ? names[reason] : "unknown";
}

bool er_reason_leaves(enum er_reason reason)
{
    return reason == ER_REASON_DRAINED || reason == ER_REASON_PREEMPTED;
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
