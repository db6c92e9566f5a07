/* libFuzzer: answers of etcd. The first byte says which; a second answer of a watch follows the
 * first through the machine that makes sense of them. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/etcd_codec.h"
#include "rendezvous/etcd_watch.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

/* Everything that an answer points to can be read. */
static unsigned see_kv(const struct er_store_kv *kv)
{
    unsigned sum = 0;

    for (size_t i = 0; i < kv->key.len; i++)
        sum += ((const unsigned char *)kv->key.data)[i];
    for (size_t i = 0; i < kv->value.len; i++)
        sum += ((const unsigned char *)kv->value.data)[i];
    return sum;
}

enum { RANGES = 5 }; /* fewer are asked for */

static void see_txn(const unsigned char *data, size_t n)
{
    struct er_etcd_ranges asked = {0, 0};
    struct er_etcd_txn_answer a;
    size_t kvs = 0;

    while (er_etcd_decode_txn(data, n, asked, &a) < 0) {
        asked.else_n = ++asked.then_n;
        if (asked.then_n == RANGES)
            return;
    }
    assert(a.reply.range_count == asked.then_n);
    for (size_t i = 0; i < a.reply.range_count; i++)
        kvs += a.reply.range_n[i];
    assert(kvs == a.reply.kv_n);
    for (size_t i = 0; i < kvs; i++)
        see_kv(&a.reply.kvs[i]);
    er_etcd_txn_answer_done(&a);
}

static void on_events(void *user, int rc, const struct er_store_event *events, size_t n,
                      uint64_t revision)
{
    uint64_t *last = user;

    assert(rc <= 0 && (rc < 0) == (n == 0));
    for (size_t i = 0; i < n; i++) {
        assert(events[i].kv.mod_rev == revision);
        see_kv(&events[i].kv);
    }
    assert(rc < 0 || revision > *last); /* a revision comes once */
    *last = rc < 0 ? *last : revision;
}

enum { WATCHES = 20 };

/* Everything that is asked for, and can be written. */
static void pump(struct er_etcd_watches *ws)
{
    struct er_etcd_watch_request request;
    struct er_buf out;

    er_buf_init(&out, 1 << 16);
    while (er_etcd_watches_pending(ws) && er_etcd_watches_next_request(ws, &request)) {
        er_buf_clear(&out);
        assert(er_etcd_encode_watch(&request, &out) == 0);
    }
    er_buf_done(&out);
}

/* Two answers, the second from `half` on, to a client with watches that were asked for; some end,
 * the connection breaks, and they are asked for anew. */
static void see_watch(const unsigned char *data, size_t n)
{
    struct er_etcd_watches *ws = NULL;
    uint64_t last[WATCHES] = {0}, id[WATCHES];
    size_t half = n / 2, many = n % 3 ? 2 : WATCHES;

    if (er_etcd_watches_new(&ws) < 0)
        return;
    for (size_t i = 0; i < many; i++)
        er_etcd_watches_add(ws, (struct er_bytes){"k", 1}, i % 2, 1 + n % 5, 0, on_events, &last[i],
                            &id[i]);
    assert(er_etcd_watches_n(ws) == many);
    if (n % 7 == 0)
        er_etcd_watches_remove(ws, id[1]);
    pump(ws);
    for (int i = 0; i < 6; i++) {
        struct er_etcd_watch_answer created = {.created = true, .wire_id = i + 1}, a;
        bool whole = i == 3;

        created.header.revision = 1;
        if (i < 2)
            er_etcd_watches_answer(ws, &created, false);
        else if (er_etcd_decode_watch(data + (whole ? 0 : half), whole ? n : n - half, &a) == 0) {
            assert(memchr(a.reason, '\0', sizeof(a.reason)));
            er_etcd_watches_answer(ws, &a, i % 2);
        }
        if (i == 3 && n % 2) {
            er_etcd_watches_remove(ws, id[0]);
            er_etcd_watches_remove(ws, id[0]);
            pump(ws);
            er_etcd_watches_connected(ws, n);
            pump(ws);
        }
    }
    er_etcd_watches_stale(ws);
    er_etcd_watches_free(ws);
}

/* Keys and values are workers' and may be anything: each request that can be made of them. */
static void see_requests(const unsigned char *data, size_t n)
{
    const struct er_bytes whole = {data, n}, key = {data, n ? n / 2 + 1 : 0};
    const struct er_store_cmp cmps[] = {
        {.target = ER_CMP_CREATE, .result = ER_CMP_EQUAL, .key = key, .prefix = n % 2, .rev = n},
        {.target = ER_CMP_MOD, .result = ER_CMP_NOT_EQUAL, .key = key, .rev = n},
        {.target = ER_CMP_VALUE, .result = ER_CMP_EQUAL, .key = key, .value = whole}};
    const struct er_store_op ops[] = {
        {.kind = ER_OP_PUT, .key = key, .value = whole, .lease = n},
        {.kind = ER_OP_DELETE, .key = key, .prefix = n % 3 == 0},
        {.kind = ER_OP_RANGE, .key = key, .prefix = n % 3 == 1, .limit = n % 7, .after = whole}};
    const struct er_store_txn txn = {cmps, 3, ops, 3, ops, n % 4};
    char user[64], password[64];
    struct er_buf out;

    snprintf(user, sizeof(user), "%.*s", (int)(n < 20 ? n : 20), (const char *)data);
    snprintf(password, sizeof(password), "%zu", n);
    er_buf_init(&out, n % 5 == 4 ? 64 : 1 << 20);
    er_etcd_encode_txn(&txn, &out);
    er_etcd_encode_hello(key, &out);
    er_etcd_encode_grant(n, n * 1000000, &out);
    er_etcd_encode_revoke(n, &out);
    er_etcd_encode_keep_alive(n, &out);
    er_etcd_encode_ttl(n, &out);
    er_etcd_encode_login(user, password, &out);
    er_buf_done(&out);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    struct er_etcd_lease_answer lease;
    struct er_etcd_header header;
    char token[ER_ETCD_TOKEN_MAX];

    if (n == 0)
        return 0;
    see_requests(data + 1, n - 1);
    switch (data[0] % 7) {
    case 0:
        see_txn(data + 1, n - 1);
        break;
    case 1:
        see_watch(data + 1, n - 1);
        break;
    case 2:
        er_etcd_decode_grant(data + 1, n - 1, &lease);
        break;
    case 3:
        er_etcd_decode_keep_alive(data + 1, n - 1, &lease);
        break;
    case 4:
        er_etcd_decode_ttl(data + 1, n - 1, &lease);
        break;
    case 5:
        er_etcd_decode_hello(data + 1, n - 1, &header);
        break;
    default:
        if (er_etcd_decode_login(data + 1, n - 1, token) == 0)
            assert(strlen(token) > 0 && strlen(token) < sizeof(token));
        break;
    }
    return 0;
}
