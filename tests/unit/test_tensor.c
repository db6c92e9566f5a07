#include <criterion/criterion.h>

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "trainer/tensor.h"

Test(tensor, shapes_are_checked_and_printed)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_shape shape = er_shape_2d(128, 784), other = er_shape_1d(128);
    char text[ER_SHAPE_TEXT_MAX];

    cr_assert_eq(er_shape_check(&shape, "x", &err), 0);
    cr_assert_eq(er_shape_count(&shape), 128u * 784u);
    cr_assert_not(er_shape_equal(&shape, &other));
    er_shape_format(&shape, text);
    cr_assert_str_eq(text, "(128, 784)");
    er_shape_format(&other, text);
    cr_assert_str_eq(text, "(128)");
}

Test(tensor, bad_shapes_name_the_tensor)
{
    const struct er_shape bad[] = {
        {.ndim = 0},
        {.ndim = 5},
        {.ndim = 2, .dim = {3, 0}},
        {.ndim = 2, .dim = {SIZE_MAX / 4, 2}},
        {.ndim = 4, .dim = {SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX}},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct er_error err = ER_ERROR_INIT;

        cr_assert_eq(er_shape_check(&bad[i], "fc1.weight", &err), -EINVAL);
        cr_assert_not_null(strstr(err.text, "fc1.weight"));
    }
}

Test(tensor, arena_settles_after_one_step)
{
    struct er_arena *arena = NULL;
    struct er_error err = ER_ERROR_INIT;
    size_t settled = 0;

    cr_assert_eq(er_arena_new(&arena, 4096, 0, &err), 0);
    for (int step = 0; step < 5; step++) {
        cr_assert_eq(er_arena_reset(arena, &err), 0);
        if (step == 1)
            settled = er_arena_growths(arena);
        for (size_t i = 1; i < 40; i++) {
            void *p;

            cr_assert_eq(er_arena_alloc(arena, i * 1001, &p, &err), 0);
            cr_assert_eq((uintptr_t)p % ER_TENSOR_ALIGN, 0);
            memset(p, 1, i * 1001);
        }
    }
    cr_assert_eq(er_arena_growths(arena), settled);
    er_arena_free(arena);
    er_arena_free(NULL);
}

Test(tensor, arena_refuses_more_than_its_limit)
{
    struct er_arena *arena = NULL;
    struct er_error err = ER_ERROR_INIT;
    void *p = NULL;

    cr_assert_eq(er_arena_new(&arena, 4096, 65536, &err), 0);
    cr_assert_eq(er_arena_alloc(arena, 70000, &p, &err), -ENOMEM);
    cr_assert_eq(er_arena_alloc(arena, SIZE_MAX, &p, &err), -ENOMEM);
    cr_assert_null(p);
    cr_assert_eq(er_arena_alloc(arena, 30000, &p, &err), 0);
    cr_assert_eq(er_arena_reset(arena, &err), 0);
    cr_assert_eq(er_arena_alloc(arena, 30000, &p, &err), 0);
    er_arena_free(arena);
}

Test(tensor, tensors_come_from_the_arena)
{
    struct er_arena *arena = NULL;
    struct er_error err = ER_ERROR_INIT;
    struct er_tensor *x = NULL, *y = NULL;
    struct er_shape shape = er_shape_2d(3, 5), empty = er_shape_2d(3, 0);

    cr_assert_eq(er_arena_new(&arena, 0, 0, &err), 0);
    cr_assert_eq(er_tensor_new(arena, arena, "x", &shape, ER_F32, true, &x, &err), 0);
    cr_assert_eq(x->count, 15);
    cr_assert_not_null(x->grad);
    cr_assert_eq(x->param, ER_TENSOR_NO_PARAM);
    cr_assert_eq(er_tensor_new(arena, arena, "y", &shape, ER_F32, false, &y, &err), 0);
    cr_assert_null(y->grad);
    cr_assert_eq(er_tensor_new(arena, arena, "z", &empty, ER_F32, false, &y, &err), -EINVAL);
    er_arena_free(arena);
}
