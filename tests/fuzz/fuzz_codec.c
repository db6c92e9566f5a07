/* libFuzzer: records and keys of the rendezvous, as they come from the store. The first byte says
 * which. What is accepted can be written, and reads the same again. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/codec.h"

#define ROOT "/elastic-run/fuzz/"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

/* Arrays within records: a count or text beyond its own is seen by no sanitizer. */
#define ENDS(text) (memchr((text), 0, sizeof(text)) != NULL)

static bool cause_is_sound(const struct er_cause *c)
{
    return ENDS(c->node_id) && ENDS(c->host) && ENDS(c->message) && c->kind < ER_EXIT_KIND_COUNT;
}

static void see_bounds(struct er_bytes in)
{
    static struct er_job_record w;
    static struct er_overrides o;
    static struct er_result r;
    static struct er_member m;
    struct er_ckpt_record c;
    struct er_ask ask;

    if (er_job_record_parse(in, &w, NULL) == 0)
        assert(w.age_n <= ER_BUDGET_AGES && w.poison.n <= ER_POISON_MAX &&
               w.skips.n <= ER_SKIPS_MAX && ENDS(w.run) && ENDS(w.master_addr) && ENDS(w.verdict) &&
               cause_is_sound(&w.cause) && w.generation <= ER_GEN_MAX);
    if (er_result_parse(in, &r, NULL) == 0)
        assert(cause_is_sound(&r.cause));
    if (er_member_parse(in, &m, NULL) == 0)
        assert(ENDS(m.address) && ENDS(m.host));
    if (er_ckpt_record_parse(in, &c, NULL) == 0)
        assert(ENDS(c.digest) && ENDS(c.path));
    if (er_ask_parse(in, &ask, NULL) == 0)
        assert(ENDS(ask.node) && ENDS(ask.reason) && ask.kind < ER_ASK_KIND_COUNT);
    if (er_overrides_parse(in, &o, NULL) == 0)
        assert(ENDS(o.id) && ENDS(o.by) && ENDS(o.text));
}

#define RECORD(name, type, most)                                                                   \
    static void see_##name(struct er_bytes in)                                                     \
    {                                                                                              \
        static struct type first, second;                                                          \
        unsigned char a[most], b[most];                                                            \
        struct er_error err;                                                                       \
        size_t an, bn;                                                                             \
                                                                                                   \
        if (er_##name##_parse(in, &first, &err))                                                   \
            return;                                                                                \
        an = er_##name##_encode(&first, a);                                                        \
        assert(an <= (most));                                                                      \
        assert(er_##name##_parse((struct er_bytes){a, an}, &second, &err) == 0);                   \
        bn = er_##name##_encode(&second, b);                                                       \
        assert(an == bn && memcmp(a, b, an) == 0);                                                 \
    }
RECORD(job_record, er_job_record, ER_WORLD_BYTES_MAX)
RECORD(member, er_member, ER_MEMBER_BYTES_MAX)
RECORD(assign, er_assign, ER_ASSIGN_BYTES_MAX)
RECORD(leader, er_leader, ER_LEADER_BYTES_MAX)
RECORD(result, er_result, ER_RESULT_BYTES_MAX)
RECORD(ckpt_record, er_ckpt_record, ER_CKPT_BYTES_MAX)
RECORD(ask, er_ask, ER_ASK_BYTES_MAX)
RECORD(aside, er_aside, ER_ASIDE_BYTES_MAX)
RECORD(query, er_query, ER_QUERY_BYTES_MAX)
RECORD(overrides, er_overrides, ER_OVERRIDES_BYTES_MAX)

/* What stands behind the root; a key that is ours is written as it was read. */
static void see_key(struct er_bytes in)
{
    static const size_t root_n = sizeof(ROOT) - 1;
    size_t n = root_n + in.len;
    char *whole = malloc(n), again[ER_KEY_MAX];
    struct er_key key;

    if (!whole)
        return;
    memcpy(whole, ROOT, root_n);
    if (in.len)
        memcpy(whole + root_n, in.data, in.len);
    er_key_parse(ROOT, (struct er_bytes){whole, n}, &key);
    if (key.kind != ER_KEY_OTHER) {
        assert(er_key_format(ROOT, &key, again) == n);
        assert(memcmp(again, whole, n) == 0);
        er_name_valid(key.name);
        assert(er_spec_hash(key.name) != 0);
        assert(er_fence_format(key.generation, key.seq, again) < ER_FENCE_MAX);
    }
    free(whole);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    static void (*const see[])(struct er_bytes) = {
        see_job_record, see_member, see_assign, see_leader, see_result,   see_ckpt_record,
        see_ask,        see_aside,  see_key,    see_query,  see_overrides};

    if (n == 0)
        return 0;
    see_bounds((struct er_bytes){data + 1, n - 1});
    see[data[0] % (sizeof(see) / sizeof(see[0]))]((struct er_bytes){data + 1, n - 1});
    return 0;
}
