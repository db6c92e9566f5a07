/* libFuzzer: records and keys of the rendezvous, as they come from the store. The first byte says
 * which. What is accepted can be written, and reads the same again. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/codec.h"

#define ROOT "/elastic-run/fuzz/"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

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
    }
    free(whole);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    static void (*const see[])(struct er_bytes) = {see_job_record, see_member, see_assign,
                                                   see_leader,     see_result, see_ckpt_record,
                                                   see_ask,        see_aside,  see_key};

    if (n > 0)
        see[data[0] % (sizeof(see) / sizeof(see[0]))]((struct er_bytes){data + 1, n - 1});
    return 0;
}
