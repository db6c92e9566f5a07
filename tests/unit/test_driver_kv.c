/* The driver's keys of workers and commits of checkpoints. */
#include <errno.h>

#include "tests/unit/driver_case.h"

Test(driver_kv, put_get_and_missing)
{
    struct er_driver_opts o = options();
    struct fixture f;

    open_with(&f, &o);
    run(&f);
    er_driver_kv_get(f.driver, 1, "a/b", 0, on_kv, &f);
    cr_assert_eq(f.kv_n, 0u);
    run(&f);
    cr_assert_eq(f.kv_rc, 1);
    er_driver_kv_put(f.driver, 1, "a/b", "hello", 5, on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_rc, 0);
    er_driver_kv_get(f.driver, 1, "a/b", 0, on_kv, &f);
    run(&f);
    cr_assert_str_eq(f.kv_value, "hello");
    er_driver_kv_get(f.driver, 1, "", 0, on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_rc, -EINVAL);
    cr_assert_eq(f.kv_n, 4u);
    close_all(&f);
}

Test(driver_kv, get_waits_until_put_or_deadline)
{
    struct er_driver_opts o = options();
    struct fixture f;

    open_with(&f, &o);
    run(&f);
    cr_assert_neq(er_driver_kv_get(f.driver, 1, "k", f.now_us + ER_US_PER_S, on_kv, &f), 0u);
    run(&f);
    cr_assert_eq(f.kv_n, 0u);
    er_driver_kv_put(f.driver, 1, "k", "v", 1, NULL, NULL);
    run(&f);
    cr_assert_eq(f.kv_n, 1u);
    cr_assert_str_eq(f.kv_value, "v");
    er_driver_kv_get(f.driver, 1, "never", f.now_us + ER_US_PER_S, on_kv, &f);
    advance(&f, ER_US_PER_S - 1);
    cr_assert_eq(f.kv_n, 1u);
    advance(&f, 1);
    cr_assert_eq(f.kv_rc, -ETIMEDOUT);
    close_all(&f);
}

Test(driver_kv, cancelled_wait_is_silent)
{
    struct er_driver_opts o = options();
    struct fixture f;
    uint64_t id;

    open_with(&f, &o);
    run(&f);
    id = er_driver_kv_get(f.driver, 1, "k", ER_FOREVER, on_kv, &f);
    run(&f);
    er_driver_kv_cancel(f.driver, id);
    er_driver_kv_put(f.driver, 1, "k", "v", 1, NULL, NULL);
    run(&f);
    cr_assert_eq(f.kv_n, 0u);
    close_all(&f);
}

Test(driver_kv, of_a_superseded_generation_is_stale)
{
    struct er_driver_opts o = options();
    struct er_cause c = failure(1);
    struct fixture f;

    open_with(&f, &o);
    run(&f);
    er_driver_kv_put(f.driver, 1, "old", "v", 1, NULL, NULL);
    er_driver_kv_get(f.driver, 1, "k", ER_FOREVER, on_kv, &f);
    run(&f);
    fail(&f, &c);
    cr_assert_eq(f.kv_rc, ER_E_STALE);
    er_driver_kv_get(f.driver, 1, "old", 0, on_kv, &f); /* it is still in the store */
    run(&f);
    cr_assert_eq(f.kv_n, 2u);
    cr_assert_eq(f.kv_rc, ER_E_STALE);
    er_driver_kv_put(f.driver, 1, "k", "v", 1, on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_n, 3u);
    cr_assert_eq(f.kv_rc, ER_E_STALE);
    er_driver_kv_put(f.driver, 2, "k", "v", 1, on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_rc, 0);
    close_all(&f);
}

Test(driver_kv, add_counts_once_when_the_answer_is_lost)
{
    static const enum er_store_mem_fault faults[] = {ER_FAULT_LOST_REPLY, ER_FAULT_LOST,
                                                     ER_FAULT_LATE, ER_FAULT_REFUSED};
    struct er_driver_opts o = options();
    struct fixture f;
    int want = 0;

    open_with(&f, &o);
    run(&f);
    for (size_t i = 0; i < 2 * sizeof(faults) / sizeof(faults[0]); i++) {
        bool of_write = i % 2;
        char text[16];

        er_driver_kv_add(f.driver, 1, "n", 5, on_kv, &f);
        run(&f);
        er_store_mem_delay(f.store, 1000, 0);
        er_driver_kv_add(f.driver, 1, "n", -2, on_kv, &f);
        if (of_write) /* the read goes out; what follows its answer is hit */
            er_driver_dispatch(f.driver, f.now_us);
        er_store_mem_fault(f.store, faults[i / 2], 1000);
        advance(&f, ER_US_PER_S);
        er_store_mem_delay(f.store, 0, 0);
        want += 3;
        snprintf(text, sizeof(text), "%d", want);
        cr_assert_str_eq(f.kv_value, text);
    }
    cr_assert_eq(f.kv_n, 16u);
    er_driver_kv_put(f.driver, 1, "n", "x", 1, NULL, NULL);
    er_driver_kv_add(f.driver, 1, "n", 1, on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_rc, -EINVAL);
    close_all(&f);
}

Test(driver_kv, commits_grow_and_are_fenced)
{
    struct er_driver_opts o = options();
    struct er_cause c = failure(1);
    struct fixture f;
    uint64_t step = 0;

    open_with(&f, &o);
    run(&f);
    cr_assert_not(er_driver_latest(f.driver, &step));
    er_driver_commit(f.driver, 1, 10, "d10", "step-10", on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_rc, 0);
    cr_assert(er_driver_latest(f.driver, &step));
    cr_assert_eq(step, 10u);
    er_driver_commit(f.driver, 1, 10, "other", "step-10", on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_rc, -EEXIST);
    er_store_mem_fault(f.store, ER_FAULT_LOST_REPLY, 0);
    er_driver_commit(f.driver, 1, 20, "d20", "step-20", on_kv, &f);
    advance(&f, ER_US_PER_S);
    cr_assert_eq(f.kv_rc, 0);
    fail(&f, &c);
    er_driver_commit(f.driver, 1, 30, "d30", "step-30", on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_rc, ER_E_STALE);
    er_driver_latest(f.driver, &step);
    cr_assert_eq(step, 20u);
    /* the next generation found that 20 does not verify, and went on from 10 */
    er_driver_commit(f.driver, er_driver_generation(f.driver), 20, "d20b", "step-20", on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_rc, 0);
    er_driver_commit(f.driver, er_driver_generation(f.driver), 15, "d15", "step-15", on_kv, &f);
    run(&f);
    cr_assert_eq(f.kv_rc, -EEXIST);
    cr_assert_eq(f.kv_n, 6u);
    close_all(&f);
}
