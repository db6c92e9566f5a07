/* Our side of the test with other programs' safetensors: `st_tool save DIR` writes a checkpoint,
 * `st_tool show FILE` prints "name dtype shape digest" of each tensor of any file. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "ckpt/ckpt.h"
#include "ckpt/safetensors.h"
#include "ckpt/slices.h"

enum { ROWS = 7, COLS = 5 };

static int save(const char *dir, struct er_error *err)
{
    static float w[ROWS][COLS];
    static double d[3] = {0.5, -1e300, 3};
    static int64_t n[1] = {-9007199254740993};
    static unsigned char u[5] = {0, 1, 127, 128, 255};
    static uint16_t h[2] = {0x3c00, 0xc100}; /* 1, -2.5 */
    const struct er_slice slices[] = {
        {"layer.weight", ER_CKPT_F32, 2, {ROWS, COLS}, 0, ROWS * COLS, w, true},
        {"doubles", ER_CKPT_F64, 1, {3}, 0, 3, d, true},
        {"count", ER_CKPT_I64, 1, {1}, 0, 1, n, true},
        {"bytes", ER_CKPT_U8, 1, {5}, 0, 5, u, true},
        {"halves", ER_CKPT_F16, 1, {2}, 0, 2, h, true},
    };
    const struct er_meta meta = {.applied = 1, .world_size = 1};
    struct er_ckpt *ckpt = NULL;
    int rc;

    for (int i = 0; i < ROWS * COLS; i++)
        w[i / COLS][i % COLS] = (float)i / 4;
    rc = er_ckpt_open(&ckpt, dir, NULL, NULL, err);
    if (rc == 0)
        rc = er_ckpt_save(ckpt, slices, sizeof(slices) / sizeof(slices[0]), &meta, err);
    er_ckpt_close(ckpt);
    return rc;
}

static int show(const char *path, struct er_error *err)
{
    struct er_st_tensor *tensors = NULL;
    size_t n = 0;
    uint64_t at = 0;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc;
    const char *data;

    if (fd < 0 || fstat(fd, &st) < 0)
        return er_error_errno(err, "open '%s'", path);
    data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (data == MAP_FAILED)
        return er_error_errno(err, "map '%s'", path);
    rc = er_st_parse(data, (size_t)st.st_size, (uint64_t)st.st_size, &tensors, &n, &at, err);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        const struct er_st_tensor *t = &tensors[i];
        char hex[ER_DIGEST_HEX_MAX];

        er_digest_format(er_hash(data + at + t->begin, (size_t)(t->end - t->begin)), hex);
        printf("%s %s ", t->name, er_ckpt_dtype_name(t->dtype));
        for (uint32_t d = 0; d < t->ndim; d++)
            printf("%s%llu", d ? "x" : "", (unsigned long long)t->shape[d]);
        printf(" %s\n", hex);
    }
    free(tensors);
    munmap((void *)(uintptr_t)data, (size_t)st.st_size);
    return rc;
}

int main(int argc, char **argv)
{
    struct er_error err = ER_ERROR_INIT;
    int rc = -1;

    if (argc == 3 && strcmp(argv[1], "save") == 0)
        rc = save(argv[2], &err);
    else if (argc == 3 && strcmp(argv[1], "show") == 0)
        rc = show(argv[2], &err);
    if (rc != 0)
        fprintf(stderr, "st_tool: %s\n", err.text);
    return rc != 0;
}
