/* The ledger of steps, its file, and what it proves. */
#include <criterion/criterion.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "ckpt/ledger.h"
#include "tests/lib/tempdir.h"

#define PLAN                                                                                       \
    {                                                                                              \
        100, 10, 7, 0                                                                              \
    }

static struct er_ledger_entry began(uint64_t generation, uint64_t step)
{
    return (struct er_ledger_entry){.kind = ER_LEDGER_BEGIN,
                                    .generation = generation,
                                    .step = step,
                                    .world = 3,
                                    .plan = PLAN,
                                    .from = step ? ER_LEDGER_FROM_MEMORY : ER_LEDGER_FROM_START,
                                    .run = "8f"};
}

static struct er_ledger_entry other(enum er_ledger_kind kind, uint64_t generation, uint64_t step)
{
    return (struct er_ledger_entry){.kind = kind,
                                    .generation = generation,
                                    .step = step,
                                    .total = kind == ER_LEDGER_END ? 30 : 0};
}

static struct er_ledger_audit audit(struct er_ledger_entry *entries, size_t n, uint64_t saved,
                                    struct er_ledger_part *parts)
{
    struct er_ledger_audit a;

    er_ledger_audit(entries, n, saved, parts, &a);
    return a;
}

Test(ledger, lines_are_read_as_they_were_written)
{
    struct er_ledger_entry list[] = {began(3, 120), other(ER_LEDGER_SKIP, 3, 131),
                                     other(ER_LEDGER_END, UINT64_MAX, 300)};

    for (size_t i = 0; i < ER_ARRAY_N(list); i++) {
        struct er_ledger_entry back;
        char line[ER_LEDGER_LINE_MAX];
        size_t n = er_ledger_format(&list[i], line);

        cr_assert(n == strlen(line) && line[n - 1] == '\n');
        cr_assert_eq(er_ledger_parse(line, &back), 0, "%s", line);
        cr_assert_eq(memcmp(&back, &list[i], sizeof(back)), 0, "%s", line);
    }
}

Test(ledger, what_is_no_line_is_refused)
{
    static const char *const lines[] = {"",
                                        "begun g=1",
                                        "begin",
                                        "begin g=1 step=0",
                                        "begin g=x step=0 world=1 samples=1 batch=1",
                                        "begin g=99999999999999999999999 step=0",
                                        "begin g=1 step=0 world=1 samples=0 batch=1",
                                        "begin g=1 step=0 world=1 samples=9 batch=1 from=above",
                                        "skip g=1 step"};
    struct er_ledger_entry e;

    for (size_t i = 0; i < ER_ARRAY_N(lines); i++)
        cr_expect_eq(er_ledger_parse(lines[i], &e), -EINVAL, "%s", lines[i]);
    cr_expect_eq(er_ledger_parse("end g=1 step=2 total=3 mood=good", &e), 0, "a later word");
}

Test(ledger, generations_that_follow_each_other_use_each_step_once)
{
    struct er_ledger_entry list[] = {began(1, 0),  other(ER_LEDGER_END, 1, 7),
                                     began(2, 7),  began(5, 19),
                                     began(6, 19), other(ER_LEDGER_END, 6, 30)};
    struct er_ledger_part parts[ER_ARRAY_N(list)];
    struct er_ledger_audit a = audit(list, ER_ARRAY_N(list), 30, parts);

    cr_assert(a.ok, "%s", a.problem);
    cr_assert(a.steps == 30 && a.total == 30 && a.generations == 4 && a.repeated == 0);
    cr_assert_eq(a.parts_n, 3, "generation 5 used nothing");
    cr_assert(parts[0].last == 7 && parts[1].first == 7 && parts[1].last == 19 &&
              parts[2].generation == 6 && parts[2].last == 30);
}

Test(ledger, a_way_back_repeats_steps_that_count_once)
{
    struct er_ledger_entry list[] = {began(1, 0),
                                     other(ER_LEDGER_END, 1, 12),
                                     began(2, 12),
                                     other(ER_LEDGER_SKIP, 2, 14),
                                     began(3, 10),
                                     other(ER_LEDGER_SKIP, 3, 13),
                                     other(ER_LEDGER_END, 3, 30)};
    struct er_ledger_part parts[ER_ARRAY_N(list)];
    struct er_ledger_audit a = audit(list, ER_ARRAY_N(list), 0, parts);

    cr_assert(a.ok, "%s", a.problem);
    cr_assert(a.steps == 30 && a.repeated == 2 && a.parts_n == 2);
    cr_assert(parts[0].last == 10 && parts[1].first == 10);
    cr_assert_eq(a.skipped, 1, "the other one is not in the lineage");
}

Test(ledger, a_run_that_goes_on_is_known_up_to_its_checkpoint)
{
    struct er_ledger_entry list[] = {began(1, 0), began(2, 12)};
    struct er_ledger_part parts[ER_ARRAY_N(list)];

    cr_assert_eq(audit(list, 2, 20, parts).steps, 20);
    cr_assert_eq(audit(list, 2, 0, parts).steps, 12);
}

Test(ledger, lines_of_a_paused_writer_are_put_where_they_belong)
{
    struct er_ledger_entry list[] = {began(1, 0), began(3, 9), began(2, 9),
                                     other(ER_LEDGER_END, 3, 30)};
    struct er_ledger_part parts[ER_ARRAY_N(list)];
    struct er_ledger_audit a = audit(list, ER_ARRAY_N(list), 0, parts);

    cr_assert(a.ok, "%s", a.problem);
    cr_assert(a.parts_n == 2 && parts[1].generation == 3);
}

Test(ledger, what_does_not_add_up_is_told)
{
    struct er_ledger_entry gap[] = {began(1, 0), other(ER_LEDGER_END, 1, 12), began(2, 14)};
    struct er_ledger_entry headless[] = {began(4, 14)};
    struct er_ledger_entry plan[] = {began(1, 0), began(2, 5)};
    struct er_ledger_entry behind[] = {began(1, 0), other(ER_LEDGER_END, 1, 12)};
    struct er_ledger_part parts[4];
    struct er_ledger_audit a = audit(gap, 3, 0, parts);

    cr_expect(!a.ok && strstr(a.problem, "steps 13 to 14"), "%s", a.problem);
    a = audit(headless, 1, 0, parts);
    cr_expect(!a.ok && strstr(a.problem, "steps 1 to 14"), "%s", a.problem);
    plan[1].plan.seed++;
    a = audit(plan, 2, 0, parts);
    cr_expect(!a.ok && strstr(a.problem, "another plan"), "%s", a.problem);
    a = audit(behind, 2, 15, parts);
    cr_expect(!a.ok && strstr(a.problem, "steps 13 to 15"), "%s", a.problem);
    a = audit(gap, 0, 0, parts);
    cr_expect(!a.ok && a.problem[0]);
}

Test(ledger, a_line_that_was_being_written_when_its_writer_died_is_left_out)
{
    struct er_ledger_entry first = began(1, 0), second = began(2, 7), *list = NULL;
    char dir[ER_TEST_PATH_MAX], path[ER_TEST_PATH_MAX + 16];
    struct er_error err = ER_ERROR_INIT;
    size_t n = 0;

    er_test_tempdir(dir);
    snprintf(path, sizeof(path), "%s/ledger", dir);
    cr_assert_eq(er_ledger_read(dir, &list, &n, &err), -ENOENT);
    cr_assert_eq(er_ledger_append(dir, &first, &err), 0, "%s", err.text);
    for (int cut = 1; cut <= 2; cut++) {
        int fd = open(path, O_WRONLY | O_APPEND);

        cr_assert(fd >= 0 && write(fd, "begin g=2 step=99", 17) == 17);
        close(fd);
        cr_assert_eq(er_ledger_read(dir, &list, &n, &err), 0, "%s", err.text);
        cr_assert_eq(n, (size_t)cut);
        free(list);
        second.generation++;
        cr_assert_eq(er_ledger_append(dir, &second, &err), 0, "%s", err.text);
        cr_assert_eq(er_ledger_read(dir, &list, &n, &err), 0, "%s", err.text);
        cr_assert(n == (size_t)cut + 1 && list[cut].step == 7);
        free(list);
    }
    er_test_rmtree(dir);
}
