#include <criterion/criterion.h>
#include <stdio.h>

#include "agent/kv_budget.h"
#include "base/error.h"

Test(kv_budget, newest_values_count_and_overwriting_is_free)
{
    struct er_kv_budget b = {0};

    for (int i = 0; i < 1000; i++)
        cr_assert_eq(er_kv_budget_take(&b, 1, "u/step", 1u << 20), 0);
    cr_assert_eq(b.bytes, (1u << 20) + ER_KV_BUDGET_KEY + 6);
    cr_assert_eq(er_kv_budget_take(&b, 1, "u/step", 1), 0);
    cr_assert_eq(b.bytes, 1 + ER_KV_BUDGET_KEY + 6);
    er_kv_budget_done(&b);
}

Test(kv_budget, many_keys_end_at_the_limit)
{
    struct er_kv_budget b = {0};
    char key[32];
    int rc = 0, n = 0;

    for (; !rc && n < 1000000; n++) {
        snprintf(key, sizeof(key), "u/%d", n);
        rc = er_kv_budget_take(&b, 1, key, 100);
    }
    cr_assert_eq(rc, ER_E_LIMIT);
    cr_assert_gt(n, 100000);
    cr_assert_leq(b.bytes, ER_KV_BUDGET_MAX);
    /* What is there can be overwritten, and refusing counts nothing. */
    cr_assert_eq(er_kv_budget_take(&b, 1, "u/0", 100), 0);
    cr_assert_eq(er_kv_budget_take(&b, 1, key, ER_KV_BUDGET_MAX), ER_E_LIMIT);
    cr_assert_eq(er_kv_budget_take(&b, 2, key, 100), 0, "a new generation begins anew");
    er_kv_budget_done(&b);
}
