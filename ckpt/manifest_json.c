/* manifest.json <-> struct er_manifest. */
#include "ckpt/manifest.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/parse.h"
#include "ckpt/slices.h"

#define FORMAT_NAME "elastic-ckpt"

static void free_json(json_t **json)
{
    json_decref(*json);
}

static void free_text(char **text)
{
    free(*text);
}

static json_t *slice_json(const struct er_manifest_slice *s)
{
    char hex[ER_DIGEST_HEX_MAX];
    er_digest_format(s->digest, hex);
    return json_pack("{s:I,s:I,s:I,s:I,s:s}", "offset", (json_int_t)s->offset, "count",
                     (json_int_t)s->count, "shard", (json_int_t)s->shard, "at", (json_int_t)s->at,
                     "digest", hex);
}

static json_t *tensor_json(const struct er_manifest *m, size_t index)
{
    const struct er_manifest_tensor *t = &m->tensors[index];
    json_t *shape = json_array(), *slices = json_array();
    for (uint32_t i = 0; i < t->ndim; i++)
        json_array_append_new(shape, json_integer((json_int_t)t->shape[i]));
    size_t first, n = er_manifest_slices_of(m, index, &first);
    for (size_t i = first; i < first + n; i++)
        json_array_append_new(slices, slice_json(&m->slices[i]));
    return json_pack("{s:s,s:s,s:o,s:o}", "name", t->name, "dtype", er_ckpt_dtype_name(t->dtype),
                     "shape", shape, "slices", slices);
}

static json_t *shards_json(const struct er_manifest *m)
{
    json_t *shards = json_array();
    for (uint32_t i = 0; i < m->shard_n; i++) {
        char hex[ER_DIGEST_HEX_MAX];
        er_digest_format(m->shards[i].header, hex);
        json_array_append_new(shards, json_pack("{s:s,s:I,s:s}", "file", m->shards[i].name, "bytes",
                                                (json_int_t)m->shards[i].bytes, "header", hex));
    }
    return shards;
}

static json_t *link_json(uint64_t generation, uint64_t first_step)
{
    return json_pack("{s:I,s:I}", "generation", (json_int_t)generation, "first_step",
                     (json_int_t)first_step);
}

static json_t *chain_json(const struct er_manifest *m)
{
    json_t *chain = json_array();
    for (size_t i = 0; i < m->chain_n; i++)
        json_array_append_new(chain, link_json(m->chain[i].generation, m->chain[i].first_step));
    json_array_append_new(chain, link_json(m->meta.generation, m->meta.first_step));
    return chain;
}

static json_t *body_json(const struct er_manifest *m)
{
    const struct er_meta *meta = &m->meta;
    char seed[32];
    snprintf(seed, sizeof(seed), "%llu",
             (unsigned long long)meta->seed); /* all 64 bits: a JSON integer has 63 */
    json_t *tensors = json_array();
    for (size_t i = 0; i < m->tensor_n; i++)
        json_array_append_new(tensors, tensor_json(m, i));
    json_t *body = json_pack("{s:I,s:I,s:s,s:i,s:s,s:I,s:I,s:s,s:s,s:o,s:o,s:o}", "step",
                             (json_int_t)meta->applied, "generation", (json_int_t)meta->generation,
                             "run", meta->run, "world_size", meta->world_size, "seed", seed,
                             "global_batch", (json_int_t)meta->global_batch, "samples",
                             (json_int_t)meta->samples, "layout", meta->layout, "user", meta->user,
                             "chain", chain_json(m), "shards", shards_json(m), "tensors", tensors);
    if (body && meta->has_metric) { /* a text: other writers format reals differently */
        ER_CLEANUP(free_json) json_t *metric = json_real(meta->metric);
        ER_CLEANUP(free_text) char *text = json_dumps(metric, JSON_ENCODE_ANY);
        if (text)
            json_object_set_new(body, "metric", json_string(text));
    }
    return body;
}

int er_manifest_format(const struct er_manifest *m, struct er_buf *buf,
                       struct er_digest *ret_digest, struct er_error *err)
{
    ER_CLEANUP(free_json) json_t *body = body_json(m);
    ER_CLEANUP(free_text)
    char *text = body ? json_dumps(body, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    if (!text)
        return er_error_set(err, -EINVAL,
                            "manifest: a text of the metadata is not UTF-8, or no memory");
    char hex[ER_DIGEST_HEX_MAX];
    *ret_digest = er_hash(text, strlen(text));
    er_digest_format(*ret_digest, hex);
    int rc = er_buf_printf(buf, "{\"format\":\"%s\",\"version\":%d,\"digest\":\"%s\",\"body\":",
                           FORMAT_NAME, ER_MANIFEST_VERSION, hex);
    if (rc == 0)
        rc = er_buf_add_str(buf, text);
    if (rc == 0)
        rc = er_buf_add_str(buf, "}\n");
    return rc < 0 ? er_error_set(err, rc, "manifest is too large") : 0;
}

static int bad(struct er_error *err, const char *what)
{
    return er_error_set(err, ER_E_CORRUPT, "manifest: %s is missing or wrong", what);
}

static int get_u64(const json_t *object, const char *key, uint64_t max, uint64_t *ret,
                   struct er_error *err)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        (uint64_t)json_integer_value(value) > max)
        return bad(err, key);
    *ret = (uint64_t)json_integer_value(value);
    return 0;
}

static int get_text(const json_t *object, const char *key, char *ret, size_t cap,
                    struct er_error *err)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (!text || strlen(text) >= cap)
        return bad(err, key);
    memcpy(ret, text, strlen(text) + 1);
    return 0;
}

static int get_digest(const json_t *object, const char *key, struct er_digest *ret,
                      struct er_error *err)
{
    char hex[ER_DIGEST_HEX_MAX];
    int rc = get_text(object, key, hex, sizeof(hex), err);
    return rc == 0 ? er_digest_parse(hex, ret, err) : rc;
}

/* All links but the last are the generations before; the last one is the checkpoint's own. */
static int parse_chain(const json_t *body, struct er_manifest *m, struct er_error *err)
{
    const json_t *chain = json_object_get(body, "chain");
    size_t n = json_array_size(chain);
    if (n == 0 || n > ER_MANIFEST_CHAIN_MAX)
        return bad(err, "chain");
    m->chain = calloc(n, sizeof(*m->chain));
    if (!m->chain)
        return er_error_set(err, -ENOMEM, "manifest: no memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *link = json_array_get(chain, i);
        int rc = get_u64(link, "generation", INT64_MAX, &m->chain[i].generation, err);
        if (rc == 0)
            rc = get_u64(link, "first_step", INT64_MAX, &m->chain[i].first_step, err);
        if (rc < 0)
            return rc;
    }
    m->chain_n = n - 1;
    m->meta.first_step = m->chain[n - 1].first_step;
    return 0;
}

static int parse_metric(const json_t *body, struct er_meta *meta, struct er_error *err)
{
    char text[32];
    int rc;
    if (!json_object_get(body, "metric"))
        return 0;
    rc = get_text(body, "metric", text, sizeof(text), err);
    if (rc < 0)
        return rc;
    ER_CLEANUP(free_json)
    json_t *value = json_loads(text, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, NULL);
    if (!json_is_real(value))
        return bad(err, "metric");
    meta->metric = json_real_value(value);
    meta->has_metric = 1;
    return 0;
}

static int parse_meta(const json_t *body, struct er_meta *meta, struct er_error *err)
{
    char seed[32];
    uint64_t world = 0;
    const struct {
        const char *key;
        uint64_t *to;
    } counts[] = {{"step", &meta->applied},
                  {"generation", &meta->generation},
                  {"global_batch", &meta->global_batch},
                  {"samples", &meta->samples},
                  {"world_size", &world}};
    for (size_t i = 0; i < ER_ARRAY_N(counts); i++) {
        int rc = get_u64(body, counts[i].key, INT64_MAX, counts[i].to, err);
        if (rc < 0)
            return rc;
    }
    if (world > ER_MANIFEST_SHARDS_MAX)
        return bad(err, "world_size");
    meta->world_size = (int)world;
    int rc = get_text(body, "run", meta->run, sizeof(meta->run), err);
    if (rc == 0)
        rc = get_text(body, "layout", meta->layout, sizeof(meta->layout), err);
    if (rc == 0)
        rc = get_text(body, "user", meta->user, sizeof(meta->user), err);
    if (rc == 0)
        rc = get_text(body, "seed", seed, sizeof(seed), err);
    if (rc == 0 && er_parse_u64(seed, 0, UINT64_MAX, &meta->seed, NULL) < 0)
        rc = bad(err, "seed");
    return rc == 0 ? parse_metric(body, meta, err) : rc;
}

static int parse_shards(const json_t *body, struct er_manifest *m, struct er_error *err)
{
    const json_t *shards = json_object_get(body, "shards");
    size_t n = json_array_size(shards);
    int rc =
        n > ER_MANIFEST_SHARDS_MAX ? bad(err, "shards") : er_manifest_shards(m, (uint32_t)n, err);
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        const json_t *item = json_array_get(shards, i);
        rc = get_text(item, "file", m->shards[i].name, sizeof(m->shards[i].name), err);
        if (rc == 0 && !er_manifest_shard_name_ok(m->shards[i].name))
            rc = bad(err, "file");
        if (rc == 0)
            rc = get_u64(item, "bytes", INT64_MAX, &m->shards[i].bytes, err);
        if (rc == 0)
            rc = get_digest(item, "header", &m->shards[i].header, err);
    }
    return rc;
}

static int parse_slice(const json_t *item, struct er_slice *slice, struct er_manifest *m,
                       struct er_error *err)
{
    uint64_t shard, at;
    struct er_digest digest;
    int rc = get_u64(item, "offset", ER_CKPT_ELEMENTS_MAX, &slice->offset, err);
    if (rc == 0)
        rc = get_u64(item, "count", ER_CKPT_ELEMENTS_MAX, &slice->count, err);
    if (rc == 0)
        rc = get_u64(item, "shard", ER_MANIFEST_SHARDS_MAX, &shard, err);
    if (rc == 0)
        rc = get_u64(item, "at", INT64_MAX, &at, err);
    if (rc == 0)
        rc = get_digest(item, "digest", &digest, err);
    return rc == 0 ? er_manifest_add(m, slice, (uint32_t)shard, at, digest, err) : rc;
}

static int parse_tensor(const json_t *item, struct er_manifest *m, struct er_error *err)
{
    char name[ER_CKPT_NAME_MAX], dtype[8];
    struct er_slice slice = {.name = name};
    const json_t *shape = json_object_get(item, "shape"), *slices = json_object_get(item, "slices"),
                 *entry;
    int rc = get_text(item, "name", name, sizeof(name), err);
    if (rc == 0)
        rc = get_text(item, "dtype", dtype, sizeof(dtype), err);
    if (rc == 0)
        rc = er_ckpt_dtype_parse(dtype, &slice.dtype, err);
    if (rc < 0)
        return rc;
    slice.ndim = (uint32_t)json_array_size(shape);
    if (slice.ndim == 0 || slice.ndim > ER_CKPT_DIMS_MAX || json_array_size(slices) == 0)
        return bad(err, "shape or slices");
    for (uint32_t i = 0; i < slice.ndim; i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim) || json_integer_value(dim) <= 0)
            return bad(err, "shape");
        slice.shape[i] = (uint64_t)json_integer_value(dim);
    }
    size_t index;
    json_array_foreach((json_t *)slices, index, entry)
    {
        rc = parse_slice(entry, &slice, m, err);
        if (rc < 0)
            return er_error_wrap(err, rc, "tensor '%s'", name);
    }
    return 0;
}

static int parse_body(const json_t *body, struct er_manifest *m, struct er_error *err)
{
    int rc = parse_meta(body, &m->meta, err);
    if (rc == 0)
        rc = parse_chain(body, m, err);
    if (rc == 0)
        rc = parse_shards(body, m, err);
    const json_t *tensors = json_object_get(body, "tensors"), *item;
    size_t index;
    if (rc == 0 && !json_is_array(tensors))
        rc = bad(err, "tensors");
    if (rc < 0)
        return rc;
    json_array_foreach((json_t *)tensors, index, item)
    {
        rc = parse_tensor(item, m, err);
        if (rc < 0)
            return rc;
    }
    return er_manifest_finish(m, err);
}

static int check_envelope(const json_t *root, struct er_error *err)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    const json_t *version = json_object_get(root, "version");
    if (!format || strcmp(format, FORMAT_NAME) != 0 || !json_is_integer(version) ||
        json_integer_value(version) < 1)
        return er_error_set(err, ER_E_CORRUPT, "not a manifest of %s", FORMAT_NAME);
    if (json_integer_value(version) > ER_MANIFEST_VERSION)
        return er_error_set(
            err, ER_E_UNSUPPORTED,
            "manifest has version %lld, this program reads up to %d: use a newer release",
            (long long)json_integer_value(version), ER_MANIFEST_VERSION);
    return 0;
}

static int check_digest(const json_t *root, const json_t *body, struct er_error *err)
{
    struct er_digest wanted;
    ER_CLEANUP(free_text) char *text = json_dumps(body, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text)
        return bad(err, "body");
    int rc = get_digest(root, "digest", &wanted, err);
    if (rc == 0 && !er_digest_equal(wanted, er_hash(text, strlen(text))))
        rc = er_error_set(err, ER_E_CORRUPT, "manifest does not match its digest");
    return rc;
}

int er_manifest_parse(const char *text, size_t n, struct er_manifest *ret, struct er_error *err)
{
    json_error_t why;
    if (n > ER_MANIFEST_BYTES_MAX)
        return er_error_set(err, ER_E_CORRUPT, "manifest of %zu bytes", n);
    ER_CLEANUP(free_json) json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(root))
        return er_error_set(err, ER_E_CORRUPT, "manifest is not a JSON object: %s",
                            root ? "another type" : why.text);
    const json_t *body = json_object_get(root, "body");
    int rc = check_envelope(root, err);
    if (rc == 0 && !json_is_object(body))
        rc = bad(err, "body");
    if (rc == 0)
        rc = check_digest(root, body, err);
    if (rc == 0 && text[n - 1] != '\n')
        rc = er_error_set(err, ER_E_CORRUPT, "manifest is cut off: its last line has no end");
    if (rc < 0)
        return rc;
    er_manifest_init(ret);
    rc = parse_body(body, ret, err);
    if (rc < 0)
        er_manifest_done(ret);
    return rc;
}
