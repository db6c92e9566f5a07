/*
 * FSDP with gathered values and gradients of 16 bits: the bits of DDP on parameters of 16 bits,
 * near float32, half the bytes on the wire, memory within its bound; what does not fit is refused.
 */
#include <math.h>
#include <string.h>

#include "tests/contract/fsdp_model.h"
#include "tests/lib/tap.h"
#include "trainer/engine.h"

static struct fsdp_test *test;

static void store_as(enum er_dtype param, enum er_dtype reduce)
{
    test->param = param;
    for (int rank = 0; rank < FSDP_RANKS_MAX; rank++)
        test->reduce[rank] = reduce;
}

/* The difference as a part of the way that the parameters went. */
static double apart(const float *a, const float *b)
{
    static float first[FSDP_ELEMENTS_MAX];
    double off = 0, way = 0;

    fsdp_first(first);
    for (size_t i = 0; i < FSDP_ELEMENTS_MAX; i++) {
        off += (double)((a[i] - b[i]) * (a[i] - b[i]));
        way += (double)((a[i] - first[i]) * (a[i] - first[i]));
    }
    return sqrt(off / way);
}

/* Master values rounded when they are gathered are those that DDP rounds when they are used; and
 * gradients of float32 are float32 on the way. */
static void values_of_16_bits_have_the_bits_of_ddp(void)
{
    static const enum er_dtype types[] = {ER_BF16, ER_F16};
    static float want[FSDP_ELEMENTS_MAX], got[FSDP_ELEMENTS_MAX];

    test = fsdp_test_new();
    for (size_t i = 0; i < 4; i++) {
        int size = i < 2 ? 3 : 1;

        store_as(types[i % 2], ER_F32);
        fsdp_train(size, DDP, 0, want);
        for (enum strategy s = FULL; s < STRATEGIES; s++) {
            fsdp_train(size, s, 0, got);
            if (!er_tap_check(memcmp(want, got, sizeof(want)) == 0))
                er_tap_note("%d ranks, strategy %d, %s", size, (int)s, er_dtype_name(types[i % 2]));
        }
    }
}

static void mixed_precision_follows_float32(void)
{
    static const struct {
        enum er_dtype param, reduce;
        int64_t scale;
        double most;
    } rows[] = {{ER_BF16, ER_F32, 0, 0.1},
                {ER_BF16, ER_BF16, 0, 0.1},
                {ER_F32, ER_BF16, 0, 0.1},
                {ER_F16, ER_F16, 8, 0.02}};
    static float want[FSDP_ELEMENTS_MAX], got[FSDP_ELEMENTS_MAX];

    test = fsdp_test_new();
    for (uint32_t passes = 0; passes <= 2; passes += 2) {
        store_as(ER_F32, ER_F32);
        fsdp_train(3, FULL, passes, want);
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
            store_as(rows[i].param, rows[i].reduce);
            test->scale = rows[i].scale;
            for (enum strategy s = FULL; s < STRATEGIES; s++) {
                double part;

                fsdp_train(3, s, passes, got);
                part = apart(want, got);
                if (!er_tap_check(part > 0 && part < rows[i].most))
                    er_tap_note("%s, %s, %u passes, strategy %d: %g apart",
                                er_dtype_name(rows[i].param), er_dtype_name(rows[i].reduce), passes,
                                (int)s, part);
            }
            er_tap_check(test->last_scale == rows[i].scale && test->skipped == 0);
            test->scale = 0;
        }
    }
}

/* Gradients of float16 end at 65504. */
static void a_scale_that_is_too_high_falls_on_all_ranks(void)
{
    static float got[FSDP_ELEMENTS_MAX];

    test = fsdp_test_new();
    store_as(ER_F16, ER_F16);
    test->scale = 18;
    fsdp_train(3, FULL, 0, got);
    er_tap_check(test->skipped > 0 && test->last_scale == 18 - (int64_t)test->skipped);
    er_tap_note("%llu steps skipped", (unsigned long long)test->skipped);
}

static void half_the_bytes_are_on_the_wire_and_in_memory(void)
{
    static float got[FSDP_ELEMENTS_MAX];
    uint64_t whole;

    test = fsdp_test_new();
    for (enum strategy s = FULL; s < STRATEGIES; s++) {
        store_as(ER_F32, ER_F32);
        fsdp_train(2, s, 0, got);
        whole = test->wire_bytes;
        store_as(ER_BF16, ER_BF16);
        fsdp_train(2, s, 0, got);
        if (!er_tap_check(whole > 0 && test->wire_bytes == whole / 2))
            er_tap_note("%llu of %llu bytes", (unsigned long long)test->wire_bytes,
                        (unsigned long long)whole);
    }
    for (int size = 1; size <= 4; size++) {
        fsdp_train(size, FULL, 0, got);
        if (!er_tap_check(test->bytes <= test->bound))
            er_tap_note("%d ranks: %zu bytes, bound %zu", size, test->bytes, test->bound);
    }
}

static void policies_that_do_not_fit_are_refused(void)
{
    test = fsdp_test_new();
    test->strategy = FULL;
    store_as(ER_BF16, ER_BF16);
    test->reduce[1] = ER_F32;
    er_ranks_run(2, fsdp_rank, NULL, NULL);
    er_tap_check(test->rcs[0] == ER_E_MISMATCH && test->rcs[1] == ER_E_MISMATCH);
    er_tap_check(strstr(test->text, "bf16") && strstr(test->text, "f32"));
    store_as(ER_I64, ER_F32);
    er_ranks_run(2, fsdp_rank, NULL, NULL);
    er_tap_check(test->rcs[0] == ER_E_UNSUPPORTED && test->rcs[1] == ER_E_UNSUPPORTED);
    store_as(ER_BF16, ER_F32);
    test->exact = 6;
    er_ranks_run(2, fsdp_rank, NULL, NULL);
    er_tap_check(test->rcs[0] == ER_E_USAGE && test->rcs[1] == ER_E_USAGE);
    if (!er_tap_check(strstr(test->text, "exact mode with param_dtype bf16")))
        er_tap_note("%s", test->text);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"values_of_16_bits_have_the_bits_of_ddp", values_of_16_bits_have_the_bits_of_ddp, 0},
        {"mixed_precision_follows_float32", mixed_precision_follows_float32, 0},
        {"a_scale_that_is_too_high_falls_on_all_ranks", a_scale_that_is_too_high_falls_on_all_ranks,
         0},
        {"half_the_bytes_are_on_the_wire_and_in_memory",
         half_the_bytes_are_on_the_wire_and_in_memory, 0},
        {"policies_that_do_not_fit_are_refused", policies_that_do_not_fit_are_refused, 0},
    };

    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
