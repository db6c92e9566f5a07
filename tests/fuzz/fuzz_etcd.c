/* libFuzzer: answers of etcd. The first byte says which; a second answer of a watch follows the
 * first through the machine that makes sense of them. */
#include <assert.h>
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

static void see_txn(const unsigned char *data, size_t n)
{
    struct er_etcd_txn_answer a;
    size_t kvs = 0;

    if (er_etcd_decode_txn(data, n, &a) < 0)
        return;
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

/* Two answers, the second from `half` on, to a client with two watches that were asked for. */
static void see_watch(const unsigned char *data, size_t n)
{
    struct er_etcd_watches *ws = NULL;
    struct er_etcd_watch_request request;
    uint64_t last[2] = {0, 0}, id;
    size_t half = n / 2;

    if (er_etcd_watches_new(&ws) < 0)
        return;
    for (int i = 0; i < 2; i++)
        er_etcd_watches_add(ws, (struct er_bytes){"k", 1}, i, 1, 0, on_events, &last[i], &id);
    while (er_etcd_watches_next_request(ws, &request))
        ;
    for (int i = 0; i < 4; i++) {
        struct er_etcd_watch_answer created = {.created = true, .wire_id = i + 1}, a;
        bool whole = i == 3;

        if (i < 2)
            er_etcd_watches_answer(ws, &created, false);
        else if (er_etcd_decode_watch(data + (whole ? 0 : half), whole ? n : n - half, &a) == 0)
            er_etcd_watches_answer(ws, &a, i % 2);
    }
    er_etcd_watches_stale(ws);
    er_etcd_watches_free(ws);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    struct er_etcd_lease_answer lease;
    struct er_etcd_header header;
    char token[ER_ETCD_TOKEN_MAX];

    if (n == 0)
        return 0;
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
