#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/elastic.h"
#include "runtime/localkv.h"

static void expect_value(const struct er_local_kv *kv, const char *key, const char *wanted)
{
    const void *value = NULL;
    size_t n = 0;

    cr_assert(er_local_kv_get(kv, key, &value, &n) == 0);
    cr_expect(n == strlen(wanted) && !memcmp(value, wanted, n), "%s", key);
}

Test(localkv, a_key_has_its_last_value)
{
    struct er_local_kv kv;
    const void *value;
    size_t n;

    er_local_kv_init(&kv);
    cr_expect(er_local_kv_get(&kv, "a", &value, &n) == 1);
    cr_assert(er_local_kv_put(&kv, "a", "one", 3) == 0 && er_local_kv_put(&kv, "b", NULL, 0) == 0);
    cr_assert(er_local_kv_put(&kv, "a", "two!", 4) == 0);
    expect_value(&kv, "a", "two!");
    expect_value(&kv, "b", "");
    cr_expect(kv.items_n == 2 && kv.bytes == 6);
    er_local_kv_done(&kv);
}

Test(localkv, bytes_are_bounded_and_a_refused_value_changes_nothing)
{
    char *big = calloc(1, ER_LOCAL_BYTES_MAX);
    struct er_local_kv kv;

    er_local_kv_init(&kv);
    cr_assert(big && er_local_kv_put(&kv, "a", "old", 3) == 0);
    cr_expect(er_local_kv_put(&kv, "a", big, ER_LOCAL_BYTES_MAX) == ER_E_LIMIT);
    expect_value(&kv, "a", "old");
    cr_expect(er_local_kv_put(&kv, "a", big, ER_LOCAL_BYTES_MAX - 1) == 0, "just fits");
    cr_expect(er_local_kv_put(&kv, "b", NULL, 0) == ER_E_LIMIT);
    cr_expect(er_local_kv_put(&kv, "a", "new", 3) == 0 && er_local_kv_put(&kv, "b", NULL, 0) == 0,
              "room again");
    er_local_kv_done(&kv);
    free(big);
}

/* One item fewer than the limit is made up, since looking a key up takes as long as there are keys.
 */
Test(localkv, keys_are_bounded)
{
    struct er_local_kv kv;

    er_local_kv_init(&kv);
    kv.items_n = ER_LOCAL_KEYS_MAX - 1;
    cr_expect(er_local_kv_put(&kv, "last", "", 0) == 0);
    cr_expect(er_local_kv_put(&kv, "more", "", 0) == ER_E_LIMIT);
    cr_expect(er_local_kv_put(&kv, "last", "again", 5) == 0);
    er_local_kv_done(&kv);
}
