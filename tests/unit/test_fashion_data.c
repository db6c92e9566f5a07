#include <criterion/criterion.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "examples/fashion_data.h"
#include "tests/lib/tempdir.h"

enum { TRAIN = 7, TEST = 3 };

static char root[ER_TEST_PATH_MAX], cache[ER_TEST_PATH_MAX + 16];

static const char *at(const char *name)
{
    static char path[ER_TEST_PATH_MAX + 64];

    snprintf(path, sizeof(path), "%s/%s", root, name);
    return path;
}

static size_t put32(uint8_t *p, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(value >> (24 - 8 * i));
    return 4;
}

static void write_gz(const char *name, const void *data, size_t n)
{
    gzFile gz = gzopen(at(name), "wb");

    cr_assert_not_null(gz);
    cr_assert_eq(gzwrite(gz, data, (unsigned)n), (int)n);
    cr_assert_eq(gzclose(gz), Z_OK);
}

/* An idx file as its header says; `extra` bytes more or fewer than that. */
static void write_images(const char *name, uint32_t magic, uint32_t count, uint32_t rows, int extra)
{
    static uint8_t data[16 + 16 * FASHION_PIXELS];
    size_t n = put32(data, magic);

    n += put32(data + n, count);
    n += put32(data + n, rows);
    n += put32(data + n, 28);
    for (size_t i = 0; i < 16 * FASHION_PIXELS; i++)
        data[16 + i] = (uint8_t)(i * 31 + i / FASHION_PIXELS);
    n += (count < 16 ? count : 15) * FASHION_PIXELS;
    write_gz(name, data, (size_t)((long)n + extra));
}

static void write_labels(const char *name, uint32_t magic, uint32_t count, uint8_t last)
{
    uint8_t data[64];
    size_t n = put32(data, magic);

    n += put32(data + n, count);
    for (uint32_t i = 0; i < count; i++)
        data[n++] = (uint8_t)(i + 1 < count ? i % 10 : last);
    write_gz(name, data, n);
}

static void setup(void)
{
    er_test_tempdir(root);
    snprintf(cache, sizeof(cache), "%s/a/cache", root);
    write_images("train-images-idx3-ubyte.gz", 0x803, TRAIN, 28, 0);
    write_labels("train-labels-idx1-ubyte.gz", 0x801, TRAIN, 9);
    write_images("t10k-images-idx3-ubyte.gz", 0x803, TEST, 28, 0);
    write_labels("t10k-labels-idx1-ubyte.gz", 0x801, TEST, 4);
}

static void teardown(void)
{
    er_test_rmtree(root);
}

TestSuite(fashion_data, .init = setup, .fini = teardown);

/* Files in the cache folder; the name of the last one, when asked for. */
static int cached_files(char *ret_name)
{
    DIR *dir = opendir(cache);
    struct dirent *entry;
    int n = 0;

    if (!dir)
        return 0;
    while ((entry = readdir(dir))) {
        if (entry->d_name[0] == '.' && (!entry->d_name[1] || entry->d_name[1] == '.'))
            continue;
        n++;
        if (ret_name)
            snprintf(ret_name, 2 * ER_TEST_PATH_MAX, "%s/%s", cache, entry->d_name);
    }
    closedir(dir);
    return n;
}

static void expect_refusal(int code, const char *text)
{
    struct fashion_data data = {0};
    struct er_error err = ER_ERROR_INIT;

    cr_assert_eq(fashion_open(&data, root, cache, &err), code, "%d: %s", err.code, err.text);
    cr_assert_not_null(strstr(err.text, text), "'%s' is not in: %s", text, err.text);
    cr_assert_null(data.map);
    cr_assert_eq(cached_files(NULL), 0, "nothing half-done is left");
}

static void expect_good(struct fashion_data *data)
{
    struct er_error err = ER_ERROR_INIT;

    cr_assert_eq(fashion_open(data, root, cache, &err), 0, "%s", err.text);
    cr_assert_eq(data->train.count, TRAIN);
    cr_assert_eq(data->test.count, TEST);
    cr_assert_eq(data->train.images[2 * FASHION_PIXELS + 5],
                 (uint8_t)((2 * FASHION_PIXELS + 5) * 31 + 2));
    cr_assert_eq(data->train.labels[TRAIN - 1], 9);
    cr_assert_eq(data->test.labels[0], 0);
    cr_assert_eq(data->test.labels[TEST - 1], 4);
}

Test(fashion_data, unpacks_once_and_maps_afterwards)
{
    struct fashion_data first, second;
    char name[2 * ER_TEST_PATH_MAX];
    struct stat before, after;

    expect_good(&first);
    cr_assert_eq(cached_files(name), 1);
    cr_assert_eq(stat(name, &before), 0);
    expect_good(&second);
    cr_assert_eq(stat(name, &after), 0);
    cr_assert_eq(before.st_ino, after.st_ino, "the cache was not written again");
    fashion_close(&first);
    fashion_close(&second);
    fashion_close(&second);
}

Test(fashion_data, another_time_makes_another_cache)
{
    const struct timespec times[2] = {{1000, 0}, {1000, 0}};
    struct fashion_data data;

    expect_good(&data);
    fashion_close(&data);
    cr_assert_eq(utimensat(AT_FDCWD, at("t10k-images-idx3-ubyte.gz"), times, 0), 0);
    expect_good(&data);
    fashion_close(&data);
    cr_assert_eq(cached_files(NULL), 2);
}

Test(fashion_data, a_damaged_cache_is_made_again)
{
    struct fashion_data data;
    char name[2 * ER_TEST_PATH_MAX];

    expect_good(&data);
    fashion_close(&data);
    cr_assert_eq(cached_files(name), 1);
    cr_assert_eq(truncate(name, 1000), 0);
    expect_good(&data);
    fashion_close(&data);
    cr_assert_eq(truncate(name, 3), 0);
    expect_good(&data);
    fashion_close(&data);
    cr_assert_eq(cached_files(NULL), 1);
}

Test(fashion_data, a_missing_data_set_names_the_package)
{
    cr_assert_eq(unlink(at("train-labels-idx1-ubyte.gz")), 0);
    expect_refusal(-ENOENT, "dataset-fashion-mnist");
    expect_refusal(-ENOENT, at("train-labels-idx1-ubyte.gz"));
}

Test(fashion_data, truncated_gzip_is_refused_at_any_length)
{
    struct stat st;

    cr_assert_eq(stat(at("train-images-idx3-ubyte.gz"), &st), 0);
    /* from "the checksum is cut" over "in the middle" to "empty" */
    for (off_t n = st.st_size - 1; n >= 0; n = n > 112 ? n - 97 : n > 16 ? n - 9 : n - 1) {
        cr_assert_eq(truncate(at("train-images-idx3-ubyte.gz"), n), 0);
        expect_refusal(ER_E_CORRUPT, "train-images-idx3-ubyte.gz");
    }
}

Test(fashion_data, flipped_bits_are_refused)
{
    FILE *file = fopen(at("train-images-idx3-ubyte.gz"), "r+");
    int c;

    cr_assert_eq(fseek(file, 200, SEEK_SET), 0);
    c = fgetc(file);
    cr_assert_eq(fseek(file, 200, SEEK_SET), 0);
    fputc(c ^ 0x5a, file);
    cr_assert_eq(fclose(file), 0);
    expect_refusal(ER_E_CORRUPT, "train-images-idx3-ubyte.gz");
}

Test(fashion_data, a_file_that_is_not_gzip_is_refused)
{
    er_test_write_file(at("t10k-labels-idx1-ubyte.gz"), "this is not a gzip file, but plain text");
    expect_refusal(ER_E_CORRUPT, "is not a gzip file");
}

Test(fashion_data, wrong_headers_are_refused)
{
    write_images("train-images-idx3-ubyte.gz", 0x801, TRAIN, 28, 0);
    expect_refusal(ER_E_CORRUPT, "magic number 0x00000801, expected 0x00000803");
    write_images("train-images-idx3-ubyte.gz", 0x803, 0, 28, 0);
    expect_refusal(ER_E_CORRUPT, "0 items");
    write_images("train-images-idx3-ubyte.gz", 0x803, 0xffffffff, 28, 0);
    expect_refusal(ER_E_CORRUPT, "4294967295 items");
    write_images("train-images-idx3-ubyte.gz", 0x803, TRAIN, 32, 0);
    expect_refusal(ER_E_CORRUPT, "images of 32 x 28");
    write_images("train-images-idx3-ubyte.gz", 0x803, TRAIN, 28, 1);
    expect_refusal(ER_E_CORRUPT, "longer than its header says");
    write_images("train-images-idx3-ubyte.gz", 0x803, TRAIN, 28, -1);
    expect_refusal(ER_E_CORRUPT, "truncated");
    write_images("train-images-idx3-ubyte.gz", 0x803, TRAIN + 1, 28, 0);
    expect_refusal(ER_E_CORRUPT, "7 labels for 8 images");
}

Test(fashion_data, labels_above_nine_are_refused)
{
    write_labels("t10k-labels-idx1-ubyte.gz", 0x801, TEST, 10);
    expect_refusal(ER_E_CORRUPT, "label 10 of item 2");
}

Test(fashion_data, an_unusable_cache_folder_is_named)
{
    struct fashion_data data = {0};
    struct er_error err = ER_ERROR_INIT;

    er_test_write_file(at("file"), "x");
    cr_assert_lt(fashion_open(&data, root, at("file/cache"), &err), 0);
    cr_assert_not_null(strstr(err.text, "file/cache"), "%s", err.text);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    cr_assert_eq(fashion_open(&data, root, NULL, &err), ER_E_CONFIG);
    cr_assert_not_null(strstr(err.text, "--cache"));
}

Test(fashion_data, the_default_cache_follows_xdg)
{
    struct fashion_data data = {0};

    setenv("XDG_CACHE_HOME", at("xdg"), 1);
    cr_assert_eq(fashion_open(&data, root, NULL, NULL), 0);
    fashion_close(&data);
    cr_assert_eq(access(at("xdg/elastic-run"), F_OK), 0);
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", at("home"), 1);
    cr_assert_eq(fashion_open(&data, root, NULL, NULL), 0);
    fashion_close(&data);
    cr_assert_eq(access(at("home/.cache/elastic-run"), F_OK), 0);
}
