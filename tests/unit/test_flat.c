#include <criterion/criterion.h>

#include <errno.h>
#include <stdalign.h>
#include <string.h>

#include "trainer/flat.h"

static const char *const states[] = {"exp_avg", "exp_avg_sq"};
static alignas(64) char memory[8192];

static void fill(struct er_flat *flat, struct er_flat_param *table)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_shape w = er_shape_2d(3, 7), b = er_shape_1d(3);
    size_t index = 99;

    er_flat_init(flat, table, 2, states, 2);
    cr_assert_eq(er_flat_add(flat, "fc1.weight", &w, &index, &err), 0, "%s", err.text);
    cr_assert_eq(index, 0);
    cr_assert_eq(er_flat_add(flat, "fc1.bias", &b, &index, &err), 0);
    cr_assert_eq(index, 1);
    cr_assert_leq(er_flat_bytes(flat), sizeof(memory));
    memset(memory, 0x55, sizeof(memory));
    er_flat_bind(flat, memory);
}

Test(flat, every_tensor_is_aligned_in_every_block)
{
    struct er_flat flat;
    struct er_flat_param table[2];

    fill(&flat, table);
    cr_assert_eq(flat.total, 32 + 16);
    cr_assert_eq(er_flat_bytes(&flat), 4 * 48 * sizeof(float));
    for (size_t block = 0; block < 4; block++) {
        for (size_t i = 0; i < 2; i++)
            cr_assert_eq((uintptr_t)er_flat_at(&flat, block, i) % 64, 0);
    }
    for (size_t i = 0; i < 4 * 48; i++)
        cr_assert_eq(((float *)memory)[i], 0.0f);
    cr_assert_eq(memory[er_flat_bytes(&flat)], 0x55);
}

Test(flat, spans_follow_one_another)
{
    struct er_flat flat;
    struct er_flat_param table[2];
    struct er_span spans[2];

    fill(&flat, table);
    er_flat_spans(&flat, ER_FLAT_GRAD, spans);
    cr_assert_str_eq(spans[0].name, "fc1.weight");
    cr_assert_eq(spans[0].ptr, er_flat_at(&flat, ER_FLAT_GRAD, 0));
    cr_assert_eq(spans[0].ptr + spans[0].count, spans[1].ptr);
    cr_assert_eq(spans[0].count + spans[1].count, flat.total);
}

Test(flat, slices_hold_parameters_and_optimizer_state)
{
    static const char *const names[] = {
        "fc1.weight",
        "fc1.bias",
        "optim.exp_avg.fc1.weight",
        "optim.exp_avg.fc1.bias",
        "optim.exp_avg_sq.fc1.weight",
        "optim.exp_avg_sq.fc1.bias",
    };
    struct er_flat flat;
    struct er_flat_param table[2];
    struct er_slice slices[6];

    fill(&flat, table);
    cr_assert_eq(er_flat_slices_n(&flat), 6);
    cr_assert_eq(er_flat_slices(&flat, slices), 6);
    for (size_t i = 0; i < 6; i++) {
        cr_assert_str_eq(slices[i].name, names[i]);
        cr_assert_eq(slices[i].count, i % 2 ? 3 : 21);
        cr_assert_eq(slices[i].ndim, i % 2 ? 1 : 2);
        cr_assert_eq(slices[i].shape[0], 3);
        cr_assert(slices[i].replicated);
    }
    cr_assert_eq(slices[4].data, er_flat_at(&flat, ER_FLAT_STATE + 1, 0));
}

Test(flat, bad_names_shapes_and_a_full_table_are_refused)
{
    static const char *const bad[] = {"", "a b", "a/b", "a..b", "a+b", "a|b", "w\n", "taken"};
    struct er_flat flat;
    struct er_flat_param table[2];
    struct er_error err = ER_ERROR_INIT;
    struct er_shape shape = er_shape_1d(1), empty = er_shape_1d(0);
    char longest[ER_FLAT_NAME_MAX + 1];

    er_flat_init(&flat, table, 2, NULL, 0);
    cr_assert_eq(er_flat_add(&flat, "taken", &shape, NULL, &err), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_assert_eq(er_flat_add(&flat, bad[i], &shape, NULL, &err), -EINVAL, "'%s'", bad[i]);
    memset(longest, 'x', ER_FLAT_NAME_MAX);
    longest[ER_FLAT_NAME_MAX] = '\0';
    cr_assert_eq(er_flat_add(&flat, longest, &shape, NULL, &err), -EINVAL);
    cr_assert_eq(er_flat_add(&flat, "empty", &empty, NULL, &err), -EINVAL);
    longest[ER_FLAT_NAME_MAX - 1] = '\0';
    cr_assert_eq(er_flat_add(&flat, longest, &shape, NULL, &err), 0);
    cr_assert_eq(er_flat_add(&flat, "more", &shape, NULL, &err), -ENOSPC);
    cr_assert_eq(flat.params_n, 2);
}
