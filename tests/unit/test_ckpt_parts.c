/* The pure parts of ckpt/: slices, retention, safetensors headers, manifests. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "ckpt/manifest.h"
#include "ckpt/retain.h"
#include "ckpt/safetensors.h"
#include "ckpt/slices.h"

static struct er_slice matrix(uint64_t rows, uint64_t cols)
{
    return (struct er_slice){.name = "w",
                             .dtype = ER_CKPT_F32,
                             .ndim = 2,
                             .shape = {rows, cols},
                             .count = rows * cols,
                             .data = (void *)64,
                             .replicated = true};
}

Test(slices, parts_cover_a_replicated_tensor_exactly_once)
{
    for (uint64_t rows = 1; rows <= 9; rows++) {
        for (int parts = 1; parts <= 12; parts++) {
            struct er_slice whole = matrix(rows, 3);
            uint64_t at = 0;
            for (int i = 0; i < parts; i++) {
                struct er_slice part = er_slice_part(&whole, i, parts);
                cr_assert_eq(part.offset, at);
                cr_assert_eq(part.count % 3, 0, "whole rows");
                cr_assert_eq((char *)part.data - (char *)whole.data, (long)(at * 4));
                at += part.count;
            }
            cr_assert_eq(at, whole.count);
        }
    }
}

Test(slices, a_sharded_slice_is_written_by_its_holder_alone)
{
    struct er_slice s = matrix(4, 4);
    s.replicated = false;
    s.offset = 5;
    s.count = 6;
    struct er_slice part = er_slice_part(&s, 1, 3);
    cr_assert_eq(part.offset, 5);
    cr_assert_eq(part.count, 6);
    uint64_t shape[ER_CKPT_DIMS_MAX];
    cr_assert_eq(er_slice_shape(&part, shape), 1, "not whole rows: flat");
    cr_assert_eq(shape[0], 6);
}

Test(slices, impossible_slices_are_refused_by_name)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_slice bad[] = {matrix(0, 3), matrix(1ull << 40, 1ull << 40),
                             matrix(2, 2), matrix(2, 2),
                             matrix(2, 2), matrix(2, 2)};
    bad[2].count = 5;
    bad[3].offset = UINT64_MAX;
    bad[4].name = "../w";
    bad[5].ndim = 9;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_assert_eq(er_slice_check(&bad[i], &err), -EINVAL, "case %zu", i);
    cr_assert(strstr(err.text, "'w'"));
}

Test(slices, overlap_of_ranges)
{
    uint64_t first;
    cr_assert_eq(er_overlap(0, 10, 5, 10, &first), 5);
    cr_assert_eq(first, 5);
    cr_assert_eq(er_overlap(0, 5, 5, 5, &first), 0);
    cr_assert_eq(er_overlap(3, 2, 0, 100, &first), 2);
    cr_assert_eq(first, 3);
}

Test(retain, keeps_the_newest_and_never_the_current_or_newer)
{
    const uint64_t steps[] = {10, 20, 30, 40, 50};
    uint64_t gone[5];
    cr_assert_eq(er_retain(steps, 5, 50, 3, gone), 2);
    cr_assert_eq(gone[0], 10);
    cr_assert_eq(gone[1], 20);
    cr_assert_eq(er_retain(steps, 5, 50, 0, gone), 0, "0 keeps all");
    cr_assert_eq(er_retain(steps, 5, 50, 1, gone), 4);
    cr_assert_eq(er_retain(steps, 5, 30, 1, gone), 2, "40 and 50 did not verify: untouched");
    cr_assert_eq(er_retain(steps, 5, 10, 1, gone), 0);
    cr_assert_eq(er_retain(steps, 5, 50, UINT32_MAX, gone), 0);
}

/* Applied after each checkpoint, as a job does: of each span of 100 steps the last one stays. */
Test(retain, one_in_every_span_stays_whatever_the_clock_chose)
{
    static const uint64_t made[] = {7, 61, 97, 130, 133, 201, 299, 300, 301, 555};
    static const uint64_t left[] = {97, 133, 300, 301, 555};
    const struct er_retain_rules rules = {.keep_last = 1, .keep_every = 100};
    struct er_retain_item items[10];
    uint64_t gone[10];
    size_t n = 0;

    for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++) {
        items[n++] = (struct er_retain_item){made[i], 0, 0};
        size_t gone_n = er_retain_by(items, n, made[i], &rules, gone);
        for (size_t g = 0; g < gone_n; g++)
            for (size_t j = 0; j < n; j++)
                if (items[j].step == gone[g]) {
                    memmove(&items[j], &items[j + 1], (n - j - 1) * sizeof(items[0]));
                    n--;
                }
    }
    cr_assert_eq(n, sizeof(left) / sizeof(left[0]));
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(items[i].step, left[i]);
}

Test(retain, a_step_stays_when_any_rule_wants_it)
{
    const struct er_retain_item items[] = {{10, 1, 0.5},  {20, 0, 0}, {30, 1, 0.25},
                                           {40, 1, 0.25}, {50, 1, 9}, {60, 1, 0.1}};
    struct er_retain_rules rules = {.keep_last = 1};
    uint64_t gone[6];
    cr_assert_eq(er_retain_by(items, 6, 50, &rules, gone), 4, "60 is newer: untouched");
    rules.keep_every = 20;
    cr_assert_eq(er_retain_by(items, 6, 50, &rules, gone), 2);
    cr_assert(gone[0] == 10 && gone[1] == 30);
    rules.keep_best = 1;
    cr_assert_eq(er_retain_by(items, 6, 50, &rules, gone), 2, "40 is the newer of two best");
    rules.keep_best = 2;
    cr_assert_eq(er_retain_by(items, 6, 50, &rules, gone), 1);
    rules.more_is_better = true;
    cr_assert_eq(er_retain_by(items, 6, 50, &rules, gone), 1, "the best two: 10 and 50");
    cr_assert_eq(gone[0], 30);
    rules.keep_last = 0;
    cr_assert_eq(er_retain_by(items, 6, 50, &rules, gone), 0, "0 keeps all");
}

Test(slices, pieces_are_few_and_cover_a_slice)
{
    static const uint64_t sizes[] = {0,          1,
                                     4096,       (256 << 10) - 1,
                                     256 << 10,  (256 << 10) + 1,
                                     64 << 20,   (64 << 20) + 1,
                                     1ull << 30, (1ull << 45) + 12345};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint64_t piece = er_piece_bytes(sizes[i]), n = er_piece_n(sizes[i]);
        cr_assert_eq(piece & (piece - 1), 0, "a power of two");
        cr_assert(n <= 256 && n * piece >= sizes[i], "%llu", (unsigned long long)sizes[i]);
        cr_assert(n == 0 || (n - 1) * piece < sizes[i]);
    }
}

static size_t header(struct er_buf *buf)
{
    const struct er_st_tensor t[] = {
        {.name = "a", .dtype = ER_CKPT_F32, .ndim = 2, .shape = {2, 3}, .begin = 0, .end = 24},
        {.name = "b@7", .dtype = ER_CKPT_U8, .ndim = 1, .shape = {5}, .begin = 24, .end = 29},
    };
    er_buf_init(buf, ER_ST_HEADER_MAX);
    cr_assert_eq(er_st_format(buf, t, 2, "{\"format\":\"x\"}", NULL), 0);
    return buf->len;
}

Test(safetensors, header_comes_back_as_written_and_is_aligned)
{
    struct er_buf buf;
    size_t n = header(&buf), found;
    struct er_st_tensor *t;
    uint64_t at;
    cr_assert_eq(n % ER_ST_ALIGN, 0);
    cr_assert_eq(er_st_parse(buf.data, n, n + 29, &t, &found, &at, NULL), 0);
    cr_assert_eq(found, 2);
    cr_assert_eq(at, n);
    cr_assert_str_eq(t[1].name, "b@7");
    cr_assert_eq(t[0].shape[1], 3);
    free(t);
    cr_assert_eq(er_st_parse(buf.data, 100, n + 29, &t, &found, &at, NULL), -EAGAIN);
    cr_assert_eq(at, n);
    cr_assert_eq(er_st_parse(buf.data, n, n + 28, &t, &found, &at, NULL), ER_E_CORRUPT,
                 "a byte short");
    er_buf_done(&buf);
}

static int parse_text(const char *json, uint64_t data_bytes)
{
    char file[512] = {0};
    size_t n = strlen(json), found;
    file[0] = (char)n;
    file[1] = (char)(n >> 8);
    memcpy(file + 8, json, n);
    struct er_st_tensor *t = NULL;
    uint64_t at;
    int rc = er_st_parse(file, 8 + n, 8 + n + data_bytes, &t, &found, &at, NULL);
    free(t);
    return rc;
}

Test(safetensors, hostile_headers_are_refused)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{",
        "{\"a\":1}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}",
        "{\"a\":{\"dtype\":\"F99\",\"shape\":[1],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296,4294967296],\"data_offsets\":["
        "0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\","
        "\"shape\":[1],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\","
        "\"shape\":[1],\"data_offsets\":[0,4]}}",
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_assert_eq(parse_text(bad[i], 4), ER_E_CORRUPT, "case %zu: %s", i, bad[i]);
    cr_assert_eq(parse_text("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4),
                 0);
    unsigned char huge[8] = {255, 255, 255, 255, 255, 255, 255, 127};
    struct er_st_tensor *t;
    size_t n;
    uint64_t at;
    cr_assert_eq(er_st_parse(huge, 8, 1000, &t, &n, &at, NULL), ER_E_CORRUPT);
}

Test(safetensors, changed_headers_are_parsed_safely)
{
    struct er_buf buf;
    struct er_rand rand;
    size_t n = header(&buf), found;
    struct er_st_tensor *t;
    uint64_t at;
    er_rand_init(&rand, 5);
    for (int round = 0; round < 20000; round++) {
        char *copy = malloc(n);
        memcpy(copy, buf.data, n);
        for (uint64_t i = er_rand_below(&rand, 4) + 1; i > 0; i--)
            copy[er_rand_below(&rand, 200)] = (char)er_rand_below(&rand, 256);
        if (er_st_parse(copy, n, n + 29, &t, &found, &at, NULL) == 0) {
            for (size_t i = 0; i < found; i++)
                cr_assert(t[i].begin <= t[i].end && t[i].end <= 29);
            free(t);
        }
        free(copy);
    }
    er_buf_done(&buf);
}

static void add(struct er_manifest *m, const char *name, uint64_t total, uint64_t offset,
                uint64_t count, uint32_t shard, uint64_t at)
{
    struct er_slice s = {.name = name,
                         .dtype = ER_CKPT_F32,
                         .ndim = 1,
                         .shape = {total},
                         .offset = offset,
                         .count = count};
    cr_assert_eq(er_manifest_add(m, &s, shard, at, er_hash(name, 1), NULL), 0);
}

static void build(struct er_manifest *m)
{
    er_manifest_init(m);
    cr_assert_eq(er_manifest_shards(m, 2, NULL), 0);
    m->shards[0].bytes = m->shards[1].bytes = 1000;
    m->meta = (struct er_meta){.applied = 42,
                               .generation = 3,
                               .seed = UINT64_MAX,
                               .global_batch = 256,
                               .samples = 60000,
                               .first_step = 7,
                               .world_size = 2,
                               .run = "abc",
                               .layout = "b+a|c",
                               .user = "{\"k\":\"\xc3\xa9\"}"};
    add(m, "z", 10, 5, 5, 1, 100);
    add(m, "a", 4, 0, 4, 0, 500);
    add(m, "z", 10, 0, 5, 0, 100);
}

Test(manifest, comes_back_as_written)
{
    struct er_manifest m, back;
    struct er_buf text;
    struct er_digest digest;
    build(&m);
    cr_assert_eq(er_manifest_finish(&m, NULL), 0);
    er_buf_init(&text, ER_MANIFEST_BYTES_MAX);
    cr_assert_eq(er_manifest_format(&m, &text, &digest, NULL), 0);
    struct er_error err = ER_ERROR_INIT;
    cr_assert_eq(er_manifest_parse(er_buf_str(&text), text.len, &back, &err), 0, "%s", err.text);
    cr_assert_eq(memcmp(&back.meta, &m.meta, sizeof(m.meta)), 0);
    cr_assert_eq(back.slice_n, 3);
    size_t first;
    long z = er_manifest_find(&back, "z");
    cr_assert_eq(z, 1);
    cr_assert_eq(er_manifest_slices_of(&back, (size_t)z, &first), 2);
    cr_assert_eq(back.slices[first + 1].shard, 1);
    cr_assert_eq(er_manifest_find(&back, "nothing"), -1);
    er_manifest_done(&m);
    er_manifest_done(&back);
    er_buf_done(&text);
}

Test(manifest, holes_overlaps_and_slices_outside_files_are_refused)
{
    struct er_error err = ER_ERROR_INIT;
    for (int kind = 0; kind < 4; kind++) {
        struct er_manifest m;
        build(&m);
        if (kind == 0)
            add(&m, "hole", 10, 1, 9, 0, 0);
        if (kind == 1) {
            add(&m, "overlap", 10, 0, 6, 0, 0);
            add(&m, "overlap", 10, 5, 5, 0, 0);
        }
        if (kind == 2)
            add(&m, "outside", 10, 0, 10, 0, 961);
        if (kind == 3)
            add(&m, "noshard", 10, 0, 10, 2, 0);
        cr_assert_eq(er_manifest_finish(&m, &err), ER_E_CORRUPT, "kind %d", kind);
        er_manifest_done(&m);
    }
}

Test(manifest, every_flipped_bit_and_every_truncation_is_detected)
{
    struct er_manifest m, back;
    struct er_buf text;
    struct er_digest digest;
    build(&m);
    cr_assert_eq(er_manifest_finish(&m, NULL), 0);
    er_buf_init(&text, ER_MANIFEST_BYTES_MAX);
    cr_assert_eq(er_manifest_format(&m, &text, &digest, NULL), 0);
    er_manifest_done(&m);
    for (size_t n = 0; n + 1 < text.len; n++) /* the last byte is a line feed */
        cr_assert_lt(er_manifest_parse(text.data, n, &back, NULL), 0, "cut at %zu", n);
    for (size_t i = 0; i < text.len - 1; i++) {
        for (int bit = 0; bit < 8; bit++) {
            text.data[i] ^= (char)(1 << bit);
            int rc = er_manifest_parse(text.data, text.len, &back, NULL);
            cr_assert_lt(rc, 0, "byte %zu bit %d", i, bit);
            text.data[i] ^= (char)(1 << bit);
        }
    }
    er_buf_done(&text);
}

Test(manifest, chain_and_metric_come_back_as_written)
{
    struct er_chain_link chain[] = {{1, 1}, {4, 101}};
    struct er_manifest m, back;
    struct er_buf text;
    struct er_digest digest;
    build(&m);
    m.meta.has_metric = 1;
    m.meta.metric = 0.1;
    cr_assert_eq(er_manifest_set_chain(&m, chain, 2, NULL), 0);
    cr_assert_eq(er_manifest_finish(&m, NULL), 0);
    er_buf_init(&text, ER_MANIFEST_BYTES_MAX);
    cr_assert_eq(er_manifest_format(&m, &text, &digest, NULL), 0);
    cr_assert_eq(er_manifest_parse(er_buf_str(&text), text.len, &back, NULL), 0);
    cr_assert(back.meta.has_metric == 1 && back.meta.metric == 0.1);
    cr_assert(back.chain_n == 2 && back.chain[1].generation == 4 &&
              back.chain[1].first_step == 101);
    cr_assert_eq(back.meta.first_step, 7);
    er_manifest_done(&m);
    er_manifest_done(&back);
    er_buf_done(&text);
}

Test(manifest, names_of_files_stay_in_the_folder)
{
    static const struct {
        const char *name;
        bool ok;
    } cases[] = {
        {"shard-0-of-2.safetensors", true},
        {"shard-12-of-400.safetensors", true},
        {"shard-0-of-2.from-600.safetensors", true},
        {"shard-0-of-2", false},
        {"shard-00-of-2.safetensors", false},
        {"shard--1-of-2.safetensors", false},
        {"shard-0-of-2.safetensors/x", false},
        {"../shard-0-of-2.safetensors", false},
        {"shard-0-of-2.from-../x.safetensors", false},
        {"shard-0-of-99999999999.safetensors", false},
        {"/etc/passwd", false},
        {"", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        cr_expect_eq(er_manifest_shard_name_ok(cases[i].name), cases[i].ok, "%s", cases[i].name);
}

/* A body with any change and the right digest: accepted or refused, never a crash; the digest is
 * not what keeps hostile input out. */
Test(manifest, changed_bodies_with_a_right_digest_are_parsed_safely)
{
    struct er_manifest m, back;
    struct er_buf text, changed;
    struct er_digest digest;
    struct er_rand rand;
    unsigned accepted = 0, refused = 0;
    build(&m);
    cr_assert_eq(er_manifest_finish(&m, NULL), 0);
    er_buf_init(&text, ER_MANIFEST_BYTES_MAX);
    er_buf_init(&changed, ER_MANIFEST_BYTES_MAX);
    cr_assert_eq(er_manifest_format(&m, &text, &digest, NULL), 0);
    er_manifest_done(&m);
    const char *body = strstr(text.data, "\"body\":") + 7;
    size_t n = text.len - (size_t)(body - text.data) - 2; /* the closing brace, the line feed */
    er_rand_init(&rand, 11);
    for (int round = 0; round < 20000; round++) {
        static const char alphabet[] = "0123456789-.eE{}[]\",:tfn /";
        char hex[ER_DIGEST_HEX_MAX], *copy = malloc(n + 1);
        memcpy(copy, body, n);
        for (uint64_t i = er_rand_below(&rand, 3) + 1; i > 0; i--)
            copy[er_rand_below(&rand, n)] = alphabet[er_rand_below(&rand, sizeof(alphabet) - 1)];
        er_digest_format(er_hash(copy, n), hex);
        er_buf_clear(&changed);
        er_buf_printf(
            &changed,
            "{\"format\":\"elastic-ckpt\",\"version\":1,\"digest\":\"%s\",\"body\":", hex);
        er_buf_add(&changed, copy, n);
        er_buf_add_str(&changed, "}\n");
        free(copy);
        if (er_manifest_parse(er_buf_str(&changed), changed.len, &back, NULL) < 0) {
            refused++;
            continue;
        }
        accepted++;
        for (size_t i = 0; i < back.slice_n; i++)
            cr_assert_lt(back.slices[i].shard, back.shard_n);
        er_manifest_done(&back);
    }
    cr_assert(accepted > 100 && refused > 1000, "%u accepted, %u refused", accepted, refused);
    er_buf_done(&text);
    er_buf_done(&changed);
}

Test(manifest, newer_version_is_refused_clearly)
{
    static const char text[] =
        "{\"format\":\"elastic-ckpt\",\"version\":2,\"digest\":\"\",\"body\":{}}";
    struct er_manifest m;
    struct er_error err = ER_ERROR_INIT;
    cr_assert_eq(er_manifest_parse(text, strlen(text), &m, &err), ER_E_UNSUPPORTED);
    cr_assert(strstr(err.text, "version 2"));
}
