#pragma once
/*
 * Fashion-MNIST: 28 x 28 grey images of ten kinds of clothes, 60,000 to train and 10,000 to test,
 * as Debian's package dataset-fashion-mnist installs them (idx files, gzip).
 *
 * Inflating takes over half a second, so the first process unpacks the four files into one cache
 * file, published whole by rename, and everybody maps it. Its name is made from the sources' sizes
 * and times: other sources make another cache. Processes may race; the last one to publish wins,
 * with the same bytes.
 */
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define FASHION_DIR     "/usr/share/datasets/fashion-mnist"
#define FASHION_PIXELS  784 /* 28 x 28, row-major, 0 black to 255 white */
#define FASHION_CLASSES 10
#define FASHION_MAX     1000000u /* images of one part; a header that says more is corrupt */

struct fashion_part {
    const uint8_t *images; /* (count, 784), in the mapping */
    const uint8_t *labels; /* (count), 0 to 9 */
    size_t count;
};

struct fashion_data {
    struct fashion_part train, test;
    void *map; /* owned */
    size_t map_bytes;
};

/*
 * `dir`: folder of the data set, NULL: FASHION_DIR. `cache_dir`: folder of the cache, made when it
 * is missing, NULL: ${XDG_CACHE_HOME:-~/.cache}/elastic-run.
 * -ENOENT: no data set there (the text names the package); ER_E_CORRUPT: truncated or corrupt gzip,
 * wrong magic, counts or sizes, a label above 9 (the text names file and place); ER_E_CONFIG: no
 * folder for the cache known; -errno: what the system said, with the path.
 */
int fashion_open(struct fashion_data *ret, const char *dir, const char *cache_dir,
                 struct er_error *err);
void fashion_close(struct fashion_data *data); /* a zeroed struct is fine */
