#include <criterion/criterion.h>

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "base/pool.h"
#include "base/rand.h"

#define MIB ((size_t)1 << 20)

Test(base_pool, memory_is_zeroed_aligned_and_apart)
{
    struct er_pool *pool = NULL;
    struct er_error err = ER_ERROR_INIT;
    unsigned char *a, *b, *c;

    cr_assert(er_pool_new(&pool, 3 * MIB, &err) == 0, "%s", err.text);
    cr_expect(er_pool_used(pool) == 0);
    a = er_pool_alloc(pool, 100, 64);
    b = er_pool_alloc(pool, 1, 1);
    c = er_pool_alloc(pool, 1000, 4096);
    cr_assert(a && b && c);
    cr_expect((uintptr_t)a % (2 * MIB) == 0, "a pool begins at a huge page");
    cr_expect(b == a + 100 && (uintptr_t)c % 4096 == 0);
    for (size_t i = 0; i < 1000; i++)
        cr_assert(c[i] == 0);
    memset(a, 1, 100);
    memset(c, 2, 1000);
    cr_expect(a[99] == 1 && *b == 0);
    cr_expect(er_pool_how(pool) == ER_POOL_POPULATED || er_pool_how(pool) == ER_POOL_TOUCHED);
    er_pool_free(pool);
    er_pool_free(NULL);
}

Test(base_pool, spent_pool_says_so_and_stays_usable)
{
    struct er_pool *pool = NULL;

    cr_assert(er_pool_new(&pool, 1000, NULL) == 0);
    cr_expect(er_pool_alloc(pool, 1001, 1) == NULL);
    cr_expect(er_pool_alloc(pool, SIZE_MAX, 1) == NULL);
    cr_expect(er_pool_alloc(pool, 999, 1) != NULL);
    cr_expect(er_pool_alloc(pool, 2, 1) == NULL);
    cr_expect(er_pool_alloc(pool, 1, 64) == NULL);
    cr_expect(er_pool_alloc(pool, 1, 1) != NULL);
    cr_expect(er_pool_used(pool) == 1000);
    cr_expect(er_pool_alloc(pool, 0, 1) != NULL);
    er_pool_free(pool);
}

Test(base_pool, reset_gives_the_same_memory_with_its_content)
{
    struct er_pool *pool = NULL;
    char *a;

    cr_assert(er_pool_new(&pool, MIB, NULL) == 0);
    a = er_pool_alloc(pool, 8, 8);
    cr_assert_not_null(a);
    memcpy(a, "content", 8);
    er_pool_reset(pool);
    cr_expect(er_pool_used(pool) == 0 && er_pool_alloc(pool, 8, 8) == a && !strcmp(a, "content"));
    er_pool_free(pool);
}

Test(base_pool, every_byte_asked_for_is_writable)
{
    struct er_pool *pool = NULL;
    struct er_rand r;

    er_rand_init(&r, 15);
    for (int i = 0; i < 8; i++) {
        size_t n = 1 + er_rand_below(&r, 6 * MIB);
        char *p;

        cr_assert(er_pool_new(&pool, n, NULL) == 0);
        p = er_pool_alloc(pool, n, 2 * MIB);
        cr_assert_not_null(p);
        memset(p, 7, n);
        er_pool_free(pool);
    }
}

Test(base_pool, impossible_sizes_fail_cleanly)
{
    static const size_t SIZES[] = {
        0, SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2, SIZE_MAX / 2 + 1, (size_t)1 << 60};

    for (size_t i = 0; i < sizeof(SIZES) / sizeof(SIZES[0]); i++) {
        struct er_pool *pool = NULL;
        struct er_error err = ER_ERROR_INIT;
        int rc = er_pool_new(&pool, SIZES[i], &err);

        cr_expect(rc < 0 && err.code == rc && err.text[0] && !pool, "%zu: %d", SIZES[i], rc);
    }
}
