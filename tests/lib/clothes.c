#include "tests/lib/clothes.h"

#include <stdint.h>
#include <stdio.h>
#include <zlib.h>

#include "tests/lib/tap.h"
#include "tests/lib/tempdir.h"

enum { TRAIN = 640, TEST = 100, PIXELS = 784 };

static void write_idx(const char *dir, const char *name, const void *header, size_t header_n,
                      const void *data, size_t n)
{
    char path[ER_TEST_PATH_MAX + 64];
    gzFile gz;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    gz = gzopen(path, "wb1");
    er_tap_require(gz && gzwrite(gz, header, (unsigned)header_n) == (int)header_n);
    er_tap_require(gzwrite(gz, data, (unsigned)n) == (int)n && gzclose(gz) == Z_OK);
}

/* Class c is a bright band of rows from 2c on, with some speckle. */
static void write_part(const char *dir, const char *prefix, uint32_t count)
{
    static uint8_t images[TRAIN][PIXELS], labels[TRAIN];
    uint8_t header[16] = {0, 0,  8, 3, 0, 0, (uint8_t)(count >> 8), (uint8_t)count, 0, 0,
                          0, 28, 0, 0, 0, 28};
    char name[64];

    for (uint32_t i = 0; i < count; i++) {
        labels[i] = (uint8_t)(i * 7 % 10);
        for (uint32_t p = 0; p < PIXELS; p++)
            images[i][p] = (uint8_t)((p / 28 / 2 == labels[i] ? 150 : 0) + (i * 31 + p * 17) % 97);
    }
    snprintf(name, sizeof(name), "%s-images-idx3-ubyte.gz", prefix);
    write_idx(dir, name, header, 16, images, (size_t)count * PIXELS);
    header[3] = 1;
    snprintf(name, sizeof(name), "%s-labels-idx1-ubyte.gz", prefix);
    write_idx(dir, name, header, 8, labels, count);
}

void er_test_clothes(const char *dir)
{
    write_part(dir, "train", TRAIN);
    write_part(dir, "t10k", TEST);
}
