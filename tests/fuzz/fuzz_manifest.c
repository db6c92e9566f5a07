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
    for (uint32_t i = 0; i < m->shard_n; i++)
        assert(er_manifest_shard_name_ok(m->shards[i].name) && !strchr(m->shards[i].name, '/'));
}

static void parse(const char *text, size_t n)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_manifest m;

    if (er_manifest_parse(text, n, &m, &err) == 0) {
        check(&m);
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
