/* libFuzzer: the four files of the data set. The first byte says which one the rest is, as it is or
 * (bit 2) packed, so that what is behind gzip's checksum is reached; the other three are fine. Bit
 * 3: one is missing; bits 4 and 5: which cache; bit 6: the cache is damaged before it is used
 * again. */
#include <assert.h>
#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "examples/fashion_data.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

enum { FILES = 4, ITEMS = 2, COUNT_MAX = 64 };

static const char *const NAMES[FILES] = {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz",
                                         "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"};
static char folder[] = "/dev/shm/er-fuzz-idx-XXXXXX";

static void remove_folder(void)
{
    er_remove_all(folder, NULL);
}

static void put(const char *name, const void *data, size_t n, bool pack)
{
    char path[128];
    gzFile file;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    file = gzopen(path, pack ? "wb1" : "wbT");
    assert(file && gzwrite(file, data, (unsigned)n) == (int)n && gzclose(file) == Z_OK);
}

static void remove_one(const char *name)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    unlink(path);
}

static void put_good(int which)
{
    static unsigned char file[16 + ITEMS * FASHION_PIXELS] = {0, 0, 8, 3,  0, 0, 0, ITEMS,
                                                              0, 0, 0, 28, 0, 0, 0, 28};
    bool labels = which % 2;

    file[3] = labels ? 1 : 3;
    file[11] = labels ? 0 : 28;
    put(NAMES[which], file, labels ? 8 + ITEMS : sizeof(file), true);
}

static void begin(void)
{
    static bool begun;

    if (begun)
        return;
    begun = true;
    assert(mkdtemp(folder));
    atexit(remove_folder);
}

static const char *cache_of(unsigned char how, char *path)
{
    snprintf(path, 128, "%s/cache", folder);
    unsetenv("XDG_CACHE_HOME");
    if ((how >> 4 & 3) == 1)
        setenv("XDG_CACHE_HOME", path, 1);
    setenv("HOME", path, 1);
    return how >> 4 & 3 ? NULL : path;
}

static void damage(const char *path, const unsigned char *data, size_t n)
{
    ER_CLEANUP(er_cleanup_free) char *found = NULL;
    glob_t all = {0};

    if (asprintf(&found, "%s/fashion-mnist-*", path) > 0 && glob(found, 0, NULL, &all) == 0)
        er_file_replace(all.gl_pathv[0], data, n, 0600, NULL);
    globfree(&all);
}

/* Counts beyond what is here cost memory, and find nothing that smaller ones do not. */
static bool is_modest(const unsigned char *data, size_t n)
{
    return n < 8 || (data[4] == 0 && data[5] == 0 && data[6] == 0 && data[7] < COUNT_MAX) ||
           data[4] >= 0x10;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    struct fashion_data set;
    struct er_error err = ER_ERROR_INIT;
    char cache[128];
    int rc;

    if (n == 0 || !is_modest(data + 1, n - 1))
        return 0;
    begin();
    for (int i = 0; i < FILES; i++) {
        if (data[0] % FILES == i)
            put(NAMES[i], data + 1, n - 1, data[0] & 4);
        else
            put_good(i);
    }
    if (data[0] & 8)
        remove_one(NAMES[(data[0] + 1) % FILES]);
    const char *where = cache_of(data[0], cache);

    for (int turn = 0; turn < 2; turn++) { /* unpacked, then from the cache */
        rc = fashion_open(&set, folder, where, &err);
        assert(rc == 0 || err.text[0]);
        if (rc)
            break;
        for (size_t i = 0; i < set.train.count; i++)
            assert(set.train.labels[i] < FASHION_CLASSES && set.train.images[i] <= 255);
        fashion_close(&set);
        if (data[0] & 64)
            damage(cache, data, n);
    }
    er_remove_all(cache, NULL);
    return 0;
}
