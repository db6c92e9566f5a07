#include <criterion/criterion.h>
#include <string.h>

#include "agent/hostlist.h"

/* The first three hosts, joined by blanks; "!": refused. */
static const char *first(const char *text)
{
    static char joined[4 * ER_HOSTLIST_NAME_MAX];
    char hosts[3][ER_HOSTLIST_NAME_MAX];
    struct er_error err = ER_ERROR_INIT;
    size_t n = 0;

    if (er_hostlist_first(text, hosts, 3, &n, &err)) {
        cr_expect_eq(err.code, ER_E_CONFIG);
        return "!";
    }
    joined[0] = 0;
    for (size_t i = 0; i < n; i++) {
        strcat(joined, i ? " " : "");
        strcat(joined, hosts[i]);
    }
    return joined;
}

Test(hostlist, names_and_ranges_in_order)
{
    cr_expect_str_eq(first("login"), "login");
    cr_expect_str_eq(first("a,b"), "a b");
    cr_expect_str_eq(first("n[1-3]"), "n1 n2 n3");
    cr_expect_str_eq(first("n[3,1-9]"), "n3 n1 n2");
    cr_expect_str_eq(first("a,n[9-11],z"), "a n9 n10");
    cr_expect_str_eq(first("n7-ib[2].cluster"), "n7-ib2.cluster");
}

Test(hostlist, leading_zeros_are_kept)
{
    cr_expect_str_eq(first("n[008-12]"), "n008 n009 n010");
    cr_expect_str_eq(first("n[07]"), "n07");
    cr_expect_str_eq(first("n[0-1]"), "n0 n1");
}

Test(hostlist, several_brackets_count_like_digits)
{
    cr_expect_str_eq(first("r[1-2]n[1-2]"), "r1n1 r1n2 r2n1");
    cr_expect_str_eq(first("r[1-900000000]s[0-900000000]n[5]"), "r1s0n5 r1s1n5 r1s2n5");
}

Test(hostlist, what_is_none_is_refused)
{
    static const char *const WRONG[] = {"",
                                        ",",
                                        "a,",
                                        ",a",
                                        "n[",
                                        "n[]",
                                        "n[1",
                                        "n1]",
                                        "n[a]",
                                        "n[3-1]",
                                        "n[1-]",
                                        "n[1,]",
                                        "n[,1]",
                                        "n[1-2-3]",
                                        "[1-2]",
                                        "n[1 ]",
                                        "a[1][2][3][4][5]"};
    char too_long[400];

    for (size_t i = 0; i < sizeof(WRONG) / sizeof(WRONG[0]); i++)
        cr_expect_str_eq(first(WRONG[i]), "!", "%s", WRONG[i]);
    memset(too_long, 'x', sizeof(too_long) - 1);
    too_long[sizeof(too_long) - 1] = 0;
    cr_expect_str_eq(first(too_long), "!");
}
