#include <criterion/criterion.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/rand.h"
#include "rendezvous/etcd_codec.h"

/* Bytes as etcd sends or expects them, written by hand from the wire format. */

static struct er_buf encoded(void)
{
    struct er_buf b;

    er_buf_init(&b, ER_ETCD_MESSAGE_MAX);
    return b;
}

static struct er_bytes text(const char *s)
{
    return (struct er_bytes){s, strlen(s)};
}

static void expect(const struct er_buf *b, const char *want, size_t n)
{
    cr_assert_eq(b->len, n, "%zu bytes, not %zu", b->len, n);
    cr_assert_eq(memcmp(b->data, want, n), 0);
}

#define EXPECT(b, literal) expect((b), (literal), sizeof(literal) - 1)

Test(etcd_codec, a_transaction_is_encoded_as_etcd_reads_it)
{
    const struct er_store_cmp cmp[] = {
        {.target = ER_CMP_MOD, .result = ER_CMP_EQUAL, .key = text("w"), .rev = 5},
        {.target = ER_CMP_VALUE, .result = ER_CMP_NOT_EQUAL, .key = text("f"), .value = text("v")},
        {.target = ER_CMP_CREATE,
         .result = ER_CMP_LESS,
         .key = text("n/"),
         .prefix = true,
         .rev = 3},
    };
    const struct er_store_op then_ops[] = {
        {.kind = ER_OP_PUT, .key = text("k"), .value = text("x"), .lease = 9},
        {.kind = ER_OP_DELETE, .key = text("d"), .prefix = true},
    };
    const struct er_store_op else_ops[] = {{.kind = ER_OP_RANGE, .key = text("r")}};
    const struct er_store_txn txn = {cmp, 3, then_ops, 2, else_ops, 1};
    ER_CLEANUP(er_buf_done) struct er_buf b = encoded();

    cr_assert_eq(er_etcd_encode_txn(&txn, &b), 0);
    EXPECT(&b, "\x0a\x07\x10\x02\x1a\x01w\x30\x05"
               "\x0a\x0a\x08\x03\x10\x03\x1a\x01"
               "f\x3a\x01v"
               "\x0a\x0f\x08\x02\x10\x01\x1a\x02n/\x28\x03\x82\x04\x02n0"
               "\x12\x0a\x12\x08\x0a\x01k\x12\x01x\x18\x09"
               "\x12\x08\x1a\x06\x0a\x01"
               "d\x12\x01"
               "e"
               "\x1a\x05\x0a\x03\x0a\x01r");
}

/* The key and the range end of a prefix read. */
static void expect_range(struct er_bytes prefix, const char *want, size_t n)
{
    const struct er_store_op op = {.kind = ER_OP_RANGE, .key = prefix, .prefix = true};
    ER_CLEANUP(er_buf_done) struct er_buf b = encoded();

    cr_assert_eq(er_etcd_encode_txn(&(struct er_store_txn){.then_ops = &op, .then_n = 1}, &b), 0);
    cr_assert_gt(b.len, 4u);
    cr_assert_eq(b.len - 4, n);
    cr_assert_eq(memcmp(b.data + 4, want, n), 0);
}

#define EXPECT_RANGE(prefix, want)                                                                 \
    expect_range((struct er_bytes){(prefix), sizeof(prefix) - 1}, (want), sizeof(want) - 1)

Test(etcd_codec, a_prefix_ends_before_the_next_one)
{
    EXPECT_RANGE("a/", "\x0a\x02"
                       "a/\x12\x02"
                       "a0");
    EXPECT_RANGE("a\xff", "\x0a\x02"
                          "a\xff\x12\x01"
                          "b");
    EXPECT_RANGE("\xff\xff", "\x0a\x02\xff\xff\x12\x01\x00");
    EXPECT_RANGE("", "\x0a\x01\x00\x12\x01\x00");
}

Test(etcd_codec, a_page_goes_on_behind_a_key_at_a_revision)
{
    const struct er_store_op op = {.kind = ER_OP_RANGE,
                                   .key = text("a/"),
                                   .prefix = true,
                                   .limit = 100,
                                   .after = text("a/x"),
                                   .revision = 7,
                                   .keys_only = true};
    ER_CLEANUP(er_buf_done) struct er_buf b = encoded();

    cr_assert_eq(er_etcd_encode_txn(&(struct er_store_txn){.then_ops = &op, .then_n = 1}, &b), 0);
    EXPECT(&b, "\x12\x12\x0a\x10\x0a\x04"
               "a/x\x00\x12\x02"
               "a0\x18\x64\x20\x07\x40\x01");
}

Test(etcd_codec, impossible_numbers_and_lists_are_refused)
{
    struct er_store_op ops[ER_STORE_TXN_OPS_MAX + 1] = {
        {.kind = ER_OP_PUT, .key = text("k"), .lease = UINT64_MAX}};
    const struct er_store_cmp cmp = {.target = ER_CMP_MOD, .key = text("k"), .rev = UINT64_MAX};
    ER_CLEANUP(er_buf_done) struct er_buf b = encoded();

    cr_assert_eq(er_etcd_encode_txn(&(struct er_store_txn){.then_ops = ops, .then_n = 1}, &b),
                 -EINVAL);
    cr_assert_eq(er_etcd_encode_txn(&(struct er_store_txn){.cmps = &cmp, .cmp_n = 1}, &b), -EINVAL);
    for (size_t i = 0; i < ER_ARRAY_N(ops); i++)
        ops[i] = (struct er_store_op){.kind = ER_OP_RANGE, .key = text("k")};
    cr_assert_eq(er_etcd_encode_txn(&(struct er_store_txn){.else_ops = ops, .else_n = 129}, &b),
                 -EINVAL);
    cr_assert_eq(er_etcd_encode_txn(&(struct er_store_txn){.else_ops = ops, .else_n = 128}, &b), 0);
    cr_assert_eq(er_etcd_encode_keep_alive(1ull << 63, &b), -EINVAL);
}

Test(etcd_codec, what_does_not_fit_the_buffer_is_refused)
{
    const struct er_store_op op = {.kind = ER_OP_PUT, .key = text("key"), .value = text("value")};
    struct er_buf b;

    er_buf_init(&b, 8);
    cr_assert_eq(er_etcd_encode_txn(&(struct er_store_txn){.then_ops = &op, .then_n = 1}, &b),
                 -ENOBUFS);
    cr_assert_eq(b.len, 0u);
    er_buf_done(&b);
}

Test(etcd_codec, a_part_of_a_second_is_a_whole_one)
{
    ER_CLEANUP(er_buf_done) struct er_buf b = encoded();

    cr_assert_eq(er_etcd_encode_grant(3, 1, &b), 0);
    EXPECT(&b, "\x08\x01\x10\x03");
    er_buf_clear(&b);
    cr_assert_eq(er_etcd_encode_grant(3, 5 * ER_US_PER_S + 1, &b), 0);
    EXPECT(&b, "\x08\x06\x10\x03");
}

Test(etcd_codec, watch_requests)
{
    ER_CLEANUP(er_buf_done) struct er_buf b = encoded();
    struct er_etcd_watch_request r = {ER_ETCD_WATCH_CREATE, 4, text("k"), false, 6};

    cr_assert_eq(er_etcd_encode_watch(&r, &b), 0);
    EXPECT(&b, "\x0a\x09\x0a\x01k\x18\x06\x38\x04\x40\x01");
    er_buf_clear(&b);
    r.kind = ER_ETCD_WATCH_CANCEL;
    cr_assert_eq(er_etcd_encode_watch(&r, &b), 0);
    EXPECT(&b, "\x12\x02\x08\x04");
    er_buf_clear(&b);
    r.kind = ER_ETCD_WATCH_PROGRESS;
    cr_assert_eq(er_etcd_encode_watch(&r, &b), 0);
    EXPECT(&b, "\x1a\x00");
}

/* header{cluster 7, revision 12}, succeeded, put, range{k=v, create 3, mod 4, lease 9}, range{} */
static const char txn_answer[] =
    "\x0a\x04\x08\x07\x18\x0c"
    "\x10\x01"
    "\x1a\x02\x12\x00"
    "\x1a\x10\x0a\x0e\x12\x0c\x0a\x01k\x10\x03\x18\x04\x2a\x01v\x30\x09"
    "\x1a\x02\x0a\x00";

Test(etcd_codec, a_transaction_s_answer)
{
    struct er_etcd_txn_answer a;

    cr_assert_eq(
        er_etcd_decode_txn(txn_answer, sizeof(txn_answer) - 1, (struct er_etcd_ranges){2, 0}, &a),
        0);
    cr_assert_eq(a.header.cluster_id, 7u);
    cr_assert(a.reply.succeeded);
    cr_assert_eq(a.reply.revision, 12u);
    cr_assert_eq(a.reply.range_count, 2u);
    cr_assert_eq(a.reply.range_n[0], 1u);
    cr_assert_eq(a.reply.range_n[1], 0u);
    cr_assert_eq(a.reply.kv_n, 1u);
    cr_assert_eq(a.reply.kvs[0].create_rev, 3u);
    cr_assert_eq(a.reply.kvs[0].mod_rev, 4u);
    cr_assert_eq(a.reply.kvs[0].lease, 9u);
    cr_assert_eq(memcmp(a.reply.kvs[0].value.data, "v", 1), 0);
    er_etcd_txn_answer_done(&a);
}

/* A reader of the answer takes the result of each range that was asked for. */
Test(etcd_codec, an_answer_has_the_ranges_that_were_asked_for)
{
    const struct er_store_op ops[] = {{.kind = ER_OP_PUT, .key = text("k")},
                                      {.kind = ER_OP_RANGE, .key = text("k")},
                                      {.kind = ER_OP_RANGE, .key = text("l")},
                                      {.kind = ER_OP_DELETE, .key = text("m")}};
    const struct er_store_txn txn = {.then_ops = ops, .then_n = 4, .else_ops = ops, .else_n = 2};
    const struct er_etcd_ranges asked = er_etcd_ranges_of(&txn);
    struct er_etcd_txn_answer a;

    cr_assert_eq(asked.then_n, 2u);
    cr_assert_eq(asked.else_n, 1u);
    for (size_t n = 0; n < 5; n++) {
        int rc = er_etcd_decode_txn(txn_answer, sizeof(txn_answer) - 1,
                                    (struct er_etcd_ranges){n, 2}, &a);

        cr_assert_eq(rc, n == 2 ? 0 : ER_E_PROTOCOL, "%zu ranges: %d", n, rc);
        if (rc == 0)
            er_etcd_txn_answer_done(&a);
    }
    /* "not succeeded", and nothing else: the ranges of the other branch count */
    cr_assert_eq(er_etcd_decode_txn("", 0, (struct er_etcd_ranges){0, 7}, &a), ER_E_PROTOCOL);
    cr_assert_eq(er_etcd_decode_txn("", 0, (struct er_etcd_ranges){7, 0}, &a), 0);
    er_etcd_txn_answer_done(&a);
}

/* header{cluster 7, revision 12}, watch 4, put k=v at 11, delete d at 12 */
static const char watch_answer[] = "\x0a\x04\x08\x07\x18\x0c"
                                   "\x10\x04"
                                   "\x5a\x0c\x12\x0a\x0a\x01k\x10\x0b\x18\x0b\x2a\x01v"
                                   "\x5a\x09\x08\x01\x12\x05\x0a\x01"
                                   "d\x18\x0c";
/* created, cancelled, watch -1, compacted at 5, with a reason */
static const char cancel_answer[] = "\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x18\x01\x20\x01"
                                    "\x28\x05\x32\x03why";

Test(etcd_codec, a_watch_s_answers)
{
    struct er_etcd_watch_answer a;

    cr_assert_eq(er_etcd_decode_watch(watch_answer, sizeof(watch_answer) - 1, &a), 0);
    cr_assert_eq(a.wire_id, 4);
    cr_assert_eq(a.event_n, 2u);
    cr_assert_eq(a.events[0].kind, ER_STORE_PUT);
    cr_assert_eq(a.events[0].kv.mod_rev, 11u);
    cr_assert_eq(a.events[1].kind, ER_STORE_DELETE);
    cr_assert_eq(a.events[1].kv.mod_rev, 12u);
    er_etcd_watch_answer_done(&a);
    cr_assert_eq(er_etcd_decode_watch(cancel_answer, sizeof(cancel_answer) - 1, &a), 0);
    cr_assert(a.created && a.canceled);
    cr_assert_eq(a.wire_id, -1);
    cr_assert_eq(a.compact_rev, 5u);
    cr_assert_str_eq(a.reason, "why");
    er_etcd_watch_answer_done(&a);
}

static const char keep_answer[] = "\x0a\x04\x08\x07\x18\x0c\x10\x09\x18\x05";
static const char gone_answer[] = "\x0a\x04\x08\x07\x18\x0c\x10\x09";
static const char ttl_answer[] = "\x10\x09\x18\x03\x20\x05";
static const char login_answer[] = "\x12\x05token";
static const char hello_answer[] = "\x0a\x04\x08\x07\x18\x0c\x20\x01";

Test(etcd_codec, lease_and_login_answers)
{
    struct er_etcd_lease_answer a;
    struct er_etcd_header h;
    char token[ER_ETCD_TOKEN_MAX];

    cr_assert_eq(er_etcd_decode_keep_alive(keep_answer, sizeof(keep_answer) - 1, &a), 0);
    cr_assert_eq(a.id, 9u);
    cr_assert_eq(a.ttl_us, 5 * ER_US_PER_S);
    cr_assert_eq(er_etcd_decode_keep_alive(gone_answer, sizeof(gone_answer) - 1, &a), 0);
    cr_assert_eq(a.ttl_us, 0u);
    cr_assert_eq(er_etcd_decode_ttl(ttl_answer, sizeof(ttl_answer) - 1, &a), 0);
    cr_assert_eq(a.ttl_us, 5 * ER_US_PER_S);
    cr_assert_eq(er_etcd_decode_login(login_answer, sizeof(login_answer) - 1, token), 0);
    cr_assert_str_eq(token, "token");
    cr_assert_eq(er_etcd_decode_login("", 0, token), ER_E_PROTOCOL, "no token");
    cr_assert_eq(er_etcd_decode_hello(hello_answer, sizeof(hello_answer) - 1, &h), 0);
    cr_assert_eq(h.revision, 12u);
}

/* ---- fuzz: all decoders on damaged bytes; the sanitizers watch ---- */

static size_t touched; /* so that reading what was decoded is not optimised away */

static void touch(struct er_bytes b)
{
    for (size_t i = 0; i < b.len; i++)
        touched += ((const unsigned char *)b.data)[i];
}

static void decode_all(const void *data, size_t n)
{
    struct er_etcd_txn_answer txn;
    struct er_etcd_watch_answer watch;
    struct er_etcd_lease_answer lease;
    struct er_etcd_header header;
    char token[ER_ETCD_TOKEN_MAX];

    if (er_etcd_decode_txn(data, n, (struct er_etcd_ranges){2, 0}, &txn) == 0) {
        size_t sum = 0;

        for (size_t i = 0; i < txn.reply.kv_n; i++) {
            touch(txn.reply.kvs[i].key);
            touch(txn.reply.kvs[i].value);
        }
        for (size_t i = 0; i < txn.reply.range_count; i++)
            sum += txn.reply.range_n[i];
        cr_assert_eq(sum, txn.reply.kv_n);
        er_etcd_txn_answer_done(&txn);
    }
    if (er_etcd_decode_watch(data, n, &watch) == 0) {
        for (size_t i = 0; i < watch.event_n; i++) {
            touch(watch.events[i].kv.key);
            touch(watch.events[i].kv.value);
        }
        touched += strlen(watch.reason);
        er_etcd_watch_answer_done(&watch);
    }
    (void)er_etcd_decode_grant(data, n, &lease);
    (void)er_etcd_decode_keep_alive(data, n, &lease);
    (void)er_etcd_decode_ttl(data, n, &lease);
    (void)er_etcd_decode_hello(data, n, &header);
    if (er_etcd_decode_login(data, n, token) == 0)
        touched += strlen(token);
}

static size_t mutate(struct er_rand *r, unsigned char *data, size_t n, size_t max)
{
    uint64_t changes = 1 + er_rand_below(r, 4);

    for (uint64_t i = 0; i < changes; i++) {
        size_t at = (size_t)er_rand_below(r, n + 1);

        switch (er_rand_below(r, 4)) {
        case 0: /* flip */
            if (at < n)
                data[at] = (unsigned char)(data[at] ^ (1u << er_rand_below(r, 8)));
            break;
        case 1: /* set: lengths and tags that matter */
            if (at < n)
                data[at] = (unsigned char)"\x00\x01\x7f\x80\xff\x0a\x12\x1a"[er_rand_below(r, 8)];
            break;
        case 2: /* cut */
            n = at;
            break;
        default: /* insert */
            if (n < max) {
                memmove(data + at + 1, data + at, n - at);
                data[at] = (unsigned char)er_rand_next(r);
                n++;
            }
            break;
        }
    }
    return n;
}

Test(etcd_codec, no_bytes_from_the_network_hurt)
{
    static const struct {
        const char *data;
        size_t n;
    } seeds[] = {
        {txn_answer, sizeof(txn_answer) - 1},       {watch_answer, sizeof(watch_answer) - 1},
        {cancel_answer, sizeof(cancel_answer) - 1}, {keep_answer, sizeof(keep_answer) - 1},
        {ttl_answer, sizeof(ttl_answer) - 1},       {login_answer, sizeof(login_answer) - 1},
        {hello_answer, sizeof(hello_answer) - 1},
    };
    struct er_rand r;

    er_rand_init(&r, 20000);
    for (int i = 0; i < 20000; i++) {
        size_t s = (size_t)er_rand_below(&r, ER_ARRAY_N(seeds)), n;
        unsigned char data[256], *exact;

        memcpy(data, seeds[s].data, seeds[s].n);
        n = mutate(&r, data, seeds[s].n, sizeof(data));
        exact = malloc(n ? n : 1); /* a byte too far is seen */
        memcpy(exact, data, n);
        decode_all(exact, n);
        free(exact);
    }
}

/* Nothing in what a server may send nests without bound. */
Test(etcd_codec, deep_nesting_is_no_recursion)
{
    size_t n = 1u << 20;
    unsigned char *data = malloc(n);

    memset(data, 0x1a, n);
    decode_all(data, n);
    free(data);
}
