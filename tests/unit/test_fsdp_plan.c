#include <criterion/criterion.h>

#include "trainer/fsdp_plan.h"

static struct er_flat_param table[4];

/* Parameters of 20, 3, 100 and 16 elements: padded to 32, 16, 112 and 16. */
static struct er_flat make_flat(void)
{
    static const size_t counts[4] = {20, 3, 100, 16};
    static const char *const names[4] = {"a", "b", "c", "d"};
    struct er_flat flat;

    er_flat_init(&flat, table, 4, NULL, 0);
    for (size_t i = 0; i < 4; i++) {
        struct er_shape shape = er_shape_1d(counts[i]);

        cr_assert_eq(er_flat_add(&flat, names[i], &shape, NULL, NULL), 0);
    }
    return flat;
}

Test(fsdp_plan, every_element_is_in_one_shard_at_any_world_size)
{
    struct er_flat flat = make_flat();

    for (int size = 1; size <= 9; size++) {
        struct er_fsdp_unit units[2] = {{.name = "one", .params_n = 2},
                                        {.name = "two", .first = 2, .params_n = 2}};
        struct er_fsdp_plan plan = {.flat = &flat, .units = units, .units_n = 2, .size = size};

        cr_assert_eq(er_fsdp_plan_make(&plan, NULL), 0);
        for (size_t p = 0; p < 4; p++) {
            size_t next = 0, last = 0;

            for (int rank = 0; rank < size; rank++) {
                struct er_fsdp_piece piece = er_fsdp_piece_of(&plan, p, rank);

                if (piece.count == 0)
                    continue;
                cr_assert_eq(piece.offset, next);
                cr_assert_leq(piece.mine + piece.count, plan.total);
                next += piece.count;
                last = piece.mine;
            }
            cr_assert_eq(next, table[p].count, "parameter %zu, %d ranks", p, size);
            cr_assert_lt(last, plan.total);
        }
    }
}

Test(fsdp_plan, shards_are_whole_cache_lines)
{
    struct er_flat flat = make_flat();
    struct er_fsdp_unit units[1] = {{.name = "all", .params_n = 4}};
    struct er_fsdp_plan plan = {.flat = &flat, .units = units, .units_n = 1, .size = 3};

    cr_assert_eq(er_fsdp_plan_make(&plan, NULL), 0);
    cr_assert_eq(units[0].shard % (ER_FLAT_ALIGN / sizeof(float)), 0);
    cr_assert_eq(units[0].count, 3 * units[0].shard);
    cr_assert_geq(units[0].count, flat.total);
    cr_assert_eq(er_fsdp_param_at(&plan, 2), 48);
    cr_assert_eq(er_fsdp_unit_of(&plan, 3), 0);
}

Test(fsdp_plan, units_that_do_not_cover_the_parameters_are_refused)
{
    static const struct {
        struct er_fsdp_unit units[2];
        size_t n;
        const char *text;
    } rows[] = {
        {{{.name = "x", .params_n = 3}}, 1, "parameter 'd' is in no unit"},
        {{{.name = "x", .first = 1, .params_n = 3}}, 1, "the next one of the 4 is 0"},
        {{{.name = "x", .params_n = 3}, {.name = "y", .first = 2, .params_n = 2}}, 2, "unit 'y'"},
        {{{.name = "x", .params_n = 9}}, 1, "unit 'x'"},
        {{{.name = "", .params_n = 4}}, 1, "needs a name"},
        {{{.name = "x"}}, 1, "needs a name and parameters"},
    };
    struct er_flat flat = make_flat();

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct er_fsdp_unit units[2] = {rows[i].units[0], rows[i].units[1]};
        struct er_fsdp_plan plan = {.flat = &flat, .units = units, .units_n = rows[i].n, .size = 2};
        struct er_error err = ER_ERROR_INIT;

        cr_assert_eq(er_fsdp_plan_make(&plan, &err), ER_E_USAGE);
        cr_assert(strstr(err.text, rows[i].text), "row %zu: %s", i, err.text);
    }
}
