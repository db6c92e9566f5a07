/* libFuzzer: manifest.json. Input that begins with 'b' is a body, which gets the right digest, so
 * that the fuzzer comes past it; anything else is a whole file. */
#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/manifest.h"
#include "ckpt/slices.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

static void check(const struct er_manifest *m)
{
    for (size_t i = 0; i < m->slice_n; i++) {
        const struct er_manifest_slice *s = &m->slices[i];
        size_t size = er_ckpt_dtype_size(m->tensors[s->tensor].dtype);

        assert(s->shard < m->shard_n && s->tensor < m->tensor_n);
        assert(s->at <= m->shards[s->shard].bytes);
        assert(s->count * size <= m->shards[s->shard].bytes - s->at);
    }
    for (size_t i = 0; i < m->tensor_n; i++)
        assert(m->tensors[i].ndim >= 1 && m->tensors[i].ndim <= ER_CKPT_DIMS_MAX &&
               memchr(m->tensors[i].name, '\0', sizeof(m->tensors[i].name)));
    assert(m->chain_n < ER_MANIFEST_CHAIN_MAX && m->shard_n <= ER_MANIFEST_SHARDS_MAX);
    assert(memchr(m->meta.run, '\0', sizeof(m->meta.run)) &&
           memchr(m->meta.layout, '\0', sizeof(m->meta.layout)) &&
           memchr(m->meta.user, '\0', sizeof(m->meta.user)));
    for (uint32_t i = 0; i < m->shard_n; i++)
        assert(er_manifest_shard_name_ok(m->shards[i].name) && !strchr(m->shards[i].name, '/'));
}

/* What was read can be written, and reads the same. */
static void see_again(const struct er_manifest *m)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_manifest again;
    struct er_digest digest;
    struct er_buf text;

    er_buf_init(&text, ER_MANIFEST_BYTES_MAX);
    assert(er_manifest_format(m, &text, &digest, &err) == 0);
    assert(er_manifest_parse(text.data, text.len, &again, &err) == 0);
    assert(again.slice_n == m->slice_n && again.meta.applied == m->meta.applied);
    er_manifest_done(&again);
    er_buf_done(&text);
}

static void parse(const char *text, size_t n)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_manifest m;

    if (er_manifest_parse(text, n, &m, &err) == 0) {
        check(&m);
        see_again(&m);
        er_manifest_done(&m);
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    json_t *body = n > 0 && data[0] == 'b'
                       ? json_loadb((const char *)data + 1, n - 1, JSON_REJECT_DUPLICATES, NULL)
                       : NULL;
    char *text = body ? json_dumps(body, JSON_COMPACT | JSON_SORT_KEYS) : NULL;

    if (text) {
        char hex[ER_DIGEST_HEX_MAX], *whole = malloc(strlen(text) + 256);
        int len;

        er_digest_format(er_hash(text, strlen(text)), hex);
        len = sprintf(whole,
                      "{\"format\":\"elastic-ckpt\",\"version\":1,\"digest\":\"%s\",\"body\":%s}\n",
                      hex, text);
        parse(whole, (size_t)len);
        free(whole);
    } else {
        parse((const char *)data, n);
    }
    free(text);
    json_decref(body);
    return 0;
}
