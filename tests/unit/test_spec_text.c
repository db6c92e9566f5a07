#include "rendezvous/spec_text.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#define SAYS(mine, theirs, expected)                                                               \
    {                                                                                              \
        char text[512];                                                                            \
        er_spec_difference(mine, theirs, strlen(theirs), text, sizeof(text));                      \
        cr_assert_str_eq(text, "this node's spec differs from the job's in " expected);            \
    }

Test(spec_text, names_every_key_that_differs_with_the_jobs_value)
{
    SAYS("name=a\nrestart.max=9\nnnodes=2\n", "name=a\nrestart.max=3\nnnodes=2\n",
         "restart.max (the job's is '3')");
    SAYS("a=1\nb=2\nc=3\n", "a=9\nb=2\nc=8\n", "a (the job's is '9'), c (the job's is '8')");
    SAYS("a=\n", "a=x\n", "a (the job's is 'x')");
    SAYS("a=x\n", "a=\n", "a (the job's is '')");
}

/* Another version of the program may know other keys. */
Test(spec_text, names_keys_that_only_one_side_has)
{
    SAYS("a=1\nb=2\n", "a=1\n", "b");
    SAYS("a=1\n", "a=1\nnew=2\n", "new (the job's is '2')");
    SAYS("a=1\n", "", "a");
    SAYS("a=1", "b=2", "a, b (the job's is '2')");
}

Test(spec_text, leaves_out_values_that_are_long)
{
    SAYS("command=train\n", "command=0123456789012345678901234567890123456789012345678\n",
         "command");
}

Test(spec_text, says_how_many_there_was_no_room_for)
{
    char mine[4096] = "", text[256];
    size_t n = 0;

    for (int i = 0; i < 100; i++)
        n += (size_t)snprintf(mine + n, sizeof(mine) - n, "key.number.%d=%d\n", i, i);
    er_spec_difference(mine, "", 0, text, sizeof(text));
    cr_assert(strstr(text, "differs from the job's in key.number.0, key.number.1, "));
    cr_assert(strstr(text, " more"));
    cr_assert_lt(strlen(text), sizeof(text));
}

/* It comes from the store: anything. */
Test(spec_text, takes_whatever_is_there)
{
    static const char rubbish[] = "\0=\n\n==\n=\xff\n";
    char text[128];

    er_spec_difference("a=1\n", rubbish, sizeof(rubbish) - 1, text, sizeof(text));
    cr_assert_lt(strlen(text), sizeof(text));
    er_spec_difference("", NULL, 0, text, sizeof(text));
    cr_assert_str_eq(text, "this node's spec differs from the job's in ");
}

Test(spec_text, finds_a_value)
{
    const char text[] = "a=1\nab=\nb=x=y\n";
    size_t n = 9;

    cr_assert_eq(*er_spec_value(text, strlen(text), "a", &n), '1');
    cr_assert_eq(n, 1u);
    cr_assert(er_spec_value(text, strlen(text), "ab", &n));
    cr_assert_eq(n, 0u);
    cr_assert_eq(memcmp(er_spec_value(text, strlen(text), "b", &n), "x=y", 3), 0);
    cr_assert_eq(n, 3u);
    cr_assert_null(er_spec_value(text, strlen(text), "c", &n));
    cr_assert_null(er_spec_value("", 0, "a", &n));
    cr_assert_null(er_spec_value("a", 1, "a", &n));
}

#define AGREES(mine, theirs, overrides) er_spec_agrees(mine, theirs, strlen(theirs), overrides)

Test(spec_text, agrees_but_for_what_is_overridden)
{
    cr_assert(AGREES("a=1\nb=2\n", "a=1\nb=2\n", ""));
    cr_assert(AGREES("a=1\nb=5\n", "a=1\nb=2\n", "b=5\n"));
    cr_assert_not(AGREES("a=1\nb=5\n", "a=1\nb=2\n", ""));
    cr_assert_not(AGREES("a=1\nb=4\n", "a=1\nb=2\n", "b=5\n"));
    cr_assert_not(AGREES("a=9\nb=5\n", "a=1\nb=2\n", "b=5\n"));
    cr_assert_not(AGREES("a=1\n", "a=1\nb=2\n", "b=5\n"));
    cr_assert_not(AGREES("a=1\nb=2\n", "a=1\n", "c=5\n"));
    cr_assert(AGREES("", "", "b=5\n"));
}
