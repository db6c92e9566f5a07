/* Mapped files of tokens: which tokens a sample has, headers, and what is no such file. */
#include <criterion/criterion.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/lib/tempdir.h"
#include "trainer/tokens.h"

static char dir[ER_TEST_PATH_MAX];

static const char *write_bytes(const void *bytes, size_t n)
{
    static char path[ER_TEST_PATH_MAX + 16];
    FILE *f;

    if (!dir[0])
        er_test_tempdir(dir);
    snprintf(path, sizeof(path), "%s/tokens.bin", dir);
    f = fopen(path, "w");
    cr_assert(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
    return path;
}

static void clean_up(void)
{
    if (dir[0])
        er_test_rmtree(dir);
}

TestSuite(tokens, .fini = clean_up);

static void expect_sample(const struct er_tokens *t, uint64_t sample, size_t length, int32_t first)
{
    int32_t tokens[8], labels[8];

    cr_assert_eq(er_tokens_read(t, sample, length, tokens, labels, NULL), 0);
    for (size_t i = 0; i < length; i++) {
        cr_assert_eq(tokens[i], first + (int32_t)i);
        cr_assert_eq(labels[i], first + (int32_t)i + 1);
    }
}

Test(tokens, samples_follow_one_another_and_labels_are_what_comes_next)
{
    const uint8_t bytes[] = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19};
    struct er_tokens t;

    cr_assert_eq(er_tokens_open(&t, write_bytes(bytes, 10), &(struct er_tokens_opts){1, 0}, NULL),
                 0);
    cr_assert_eq(er_tokens_samples(&t, 3), 3);
    cr_assert_eq(er_tokens_samples(&t, 5), 1, "the last token is only a label");
    cr_assert_eq(er_tokens_samples(&t, 10), 0);
    for (uint64_t s = 0; s < 3; s++)
        expect_sample(&t, s, 3, 10 + 3 * (int32_t)s);
    er_tokens_close(&t);
}

Test(tokens, widths_are_read_the_lowest_byte_first)
{
    const uint8_t two[] = {0x34, 0x12, 0x35, 0x12, 0x36, 0x12};
    const uint8_t four[] = {1, 0, 1, 0, 2, 0, 1, 0, 3, 0, 1, 0};
    struct er_tokens t;

    cr_assert_eq(er_tokens_open(&t, write_bytes(two, sizeof(two)), NULL, NULL), 0);
    expect_sample(&t, 0, 2, 0x1234);
    er_tokens_close(&t);
    cr_assert_eq(er_tokens_open(&t, write_bytes(four, sizeof(four)),
                                &(struct er_tokens_opts){.width = 4}, NULL),
                 0);
    expect_sample(&t, 0, 2, 0x10001);
    er_tokens_close(&t);
}

Test(tokens, the_header_of_llm_c_says_width_and_number)
{
    static int32_t file[256 + 3];
    const int32_t two[256] = {20240520, 1, 4}, four[256] = {20240801, 7, 3};
    struct er_error err = ER_ERROR_INIT;
    struct er_tokens t;

    memcpy(file, two, sizeof(two));
    memcpy(file + 256, (uint16_t[]){7, 8, 9, 10}, 8);
    cr_assert_eq(er_tokens_open(&t, write_bytes(file, 1024 + 8), NULL, NULL), 0);
    cr_assert_eq(t.n, 4);
    expect_sample(&t, 0, 3, 7);
    er_tokens_close(&t);
    cr_assert_eq(er_tokens_open(&t, write_bytes(file, 1024 + 6), NULL, &err), -EINVAL);
    cr_assert(strstr(err.text, "the header says 4, the file has 3"), "%s", err.text);
    memcpy(file, four, sizeof(four));
    memcpy(file + 256, (uint32_t[]){70000, 70001, 70002}, 12);
    cr_assert_eq(er_tokens_open(&t, write_bytes(file, 1024 + 12), NULL, NULL), 0);
    expect_sample(&t, 0, 2, 70000);
    er_tokens_close(&t);
}

Test(tokens, a_token_out_of_range_is_named)
{
    const uint8_t bytes[] = {1, 2, 3, 99, 5};
    struct er_error err = ER_ERROR_INIT;
    int32_t tokens[4], labels[4];
    struct er_tokens t;

    cr_assert_eq(er_tokens_open(&t, write_bytes(bytes, 5), &(struct er_tokens_opts){1, 50}, NULL),
                 0);
    cr_assert_eq(er_tokens_read(&t, 0, 2, tokens, labels, &err), 0);
    cr_assert_eq(er_tokens_read(&t, 0, 4, tokens, labels, &err), -EDOM);
    cr_assert(strstr(err.text, "token 99 at place 3, expected below 50"), "%s", err.text);
    er_tokens_close(&t);
}

Test(tokens, what_is_no_file_of_tokens_is_refused)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_tokens t = {0};

    cr_assert_eq(er_tokens_open(&t, "/does/not/exist", NULL, &err), -ENOENT);
    cr_assert_eq(er_tokens_open(&t, "/", NULL, &err), -EINVAL);
    cr_assert_eq(er_tokens_open(&t, write_bytes("", 0), NULL, &err), -EINVAL);
    cr_assert_eq(er_tokens_open(&t, write_bytes("abc", 3), NULL, &err), -EINVAL);
    cr_assert(strstr(err.text, "3 bytes are not whole tokens of 2 bytes"), "%s", err.text);
    cr_assert_eq(
        er_tokens_open(&t, write_bytes("abc", 3), &(struct er_tokens_opts){.width = 3}, &err),
        ER_E_USAGE);
    er_tokens_close(&t);
}
