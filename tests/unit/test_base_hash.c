#include <criterion/criterion.h>

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "base/hash_internal.h"
#include "base/rand.h"

/* Digests as `xxhsum -H2` prints them. */
Test(base_hash, known_answers)
{
    static const struct {
        const char *text, *hex;
    } CASES[] = {
        {"", "99aa06d3014798d86001c324468d497f"},
        {"a", "a96faf705af16834e6c632b61e964e1f"},
        {"abc", "06b05ab6733a618578af5f94892f3950"},
    };

    for (size_t i = 0; i < ER_ARRAY_N(CASES); i++) {
        char hex[ER_DIGEST_HEX_MAX];

        er_digest_format(er_hash(CASES[i].text, strlen(CASES[i].text)), hex);
        cr_expect(!strcmp(hex, CASES[i].hex), "'%s': %s", CASES[i].text, hex);
    }
}

Test(base_hash, streaming_equals_one_shot_for_any_split)
{
    enum { BYTES = 5000 };
    unsigned char data[BYTES];
    struct er_rand r;

    er_rand_init(&r, 4);
    for (size_t i = 0; i < BYTES; i++)
        data[i] = (unsigned char)er_rand_next(&r);
    for (int round = 0; round < 200; round++) {
        struct er_hasher *h = er_hasher_new();
        size_t n = er_rand_below(&r, BYTES + 1), at = 0;

        cr_assert_not_null(h);
        while (at < n) {
            size_t piece = 1 + er_rand_below(&r, n - at);

            er_hasher_add(h, data + at, piece);
            at += piece;
            er_hasher_add(h, NULL, 0);
        }
        cr_assert(er_digest_equal(er_hasher_get(h), er_hash(data, n)));
        er_hasher_free(h);
    }
    er_hasher_free(NULL);
}

static size_t some_length(struct er_rand *r, size_t most, int round)
{
    return round < 600 ? (size_t)round : er_rand_below(r, most + 1);
}

Test(base_hash, every_vector_width_gives_the_same_digests)
{
    enum { BYTES = 100000 };
    static unsigned char data[BYTES + 64];
    struct er_rand r;

    er_rand_init(&r, 6);
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (unsigned char)er_rand_next(&r);
    for (int round = 0; round < 1500; round++) {
        size_t n = some_length(&r, BYTES, round), cut = er_rand_below(&r, n + 1);
        const unsigned char *from = data + er_rand_below(&r, 64);
        XXH128_hash_t want = XXH3_128bits(from, n);

        for (const struct er_hash_width *w = er_hash_widths; w->name; w++) {
            XXH3_state_t state;
            struct er_digest d;

            if (!w->runs())
                continue;
            d = w->hash(from, n);
            cr_assert(d.lo == want.low64 && d.hi == want.high64, "%s: %zu bytes", w->name, n);
            XXH3_128bits_reset(&state);
            w->add(&state, from, cut);
            w->add(&state, from + cut, n - cut);
            cr_assert(XXH128_isEqual(XXH3_128bits_digest(&state), want), "%s: %zu bytes after %zu",
                      w->name, n - cut, cut);
        }
    }
}

Test(base_hash, one_bit_changes_the_digest)
{
    unsigned char data[100] = {0};
    struct er_digest zero = er_hash(data, sizeof(data));

    for (size_t bit = 0; bit < 8 * sizeof(data); bit++) {
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        cr_assert(!er_digest_equal(er_hash(data, sizeof(data)), zero));
        data[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
}

Test(base_hash, hex_reads_back)
{
    struct er_rand r;

    er_rand_init(&r, 5);
    for (int i = 0; i < 1000; i++) {
        struct er_digest d = {.lo = er_rand_next(&r), .hi = er_rand_next(&r)}, back = {0};
        char hex[ER_DIGEST_HEX_MAX];

        er_digest_format(d, hex);
        cr_assert(er_digest_parse(hex, &back, NULL) == 0 && er_digest_equal(d, back));
    }
}

Test(base_hash, wrong_hex_is_corrupt_and_leaves_the_result)
{
    static const char *const WRONG[] = {
        "",
        "0",
        "99aa06d3014798d86001c324468d497",
        "99aa06d3014798d86001c324468d497f0",
        "99AA06D3014798D86001C324468D497F",
        "99aa06d3014798d86001c324468d497g",
        " 99aa06d3014798d86001c324468d497",
        "0x99aa06d3014798d86001c324468d49",
    };

    for (size_t i = 0; i < ER_ARRAY_N(WRONG); i++) {
        struct er_digest d = {.lo = 1, .hi = 2};
        struct er_error err = ER_ERROR_INIT;

        cr_expect(er_digest_parse(WRONG[i], &d, &err) == ER_E_CORRUPT && err.text[0]);
        cr_expect(d.lo == 1 && d.hi == 2);
    }
}
