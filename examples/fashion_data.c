#include "examples/fashion_data.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/hash.h"

#define PACKAGE      "dataset-fashion-mnist"
#define CACHE_MAGIC  0x31534146u /* "FAS1" */
#define IMAGES_MAGIC 0x00000803u /* idx: unsigned bytes, 3 dimensions */
#define LABELS_MAGIC 0x00000801u /* idx: unsigned bytes, 1 dimension */

enum { TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS, FILES_N };

static const struct source {
    const char *name;
    uint32_t magic;
    size_t header_bytes, item_bytes;
} sources[FILES_N] = {
    [TRAIN_IMAGES] = {"train-images-idx3-ubyte.gz", IMAGES_MAGIC, 16, FASHION_PIXELS},
    [TRAIN_LABELS] = {"train-labels-idx1-ubyte.gz", LABELS_MAGIC, 8, 1},
    [TEST_IMAGES] = {"t10k-images-idx3-ubyte.gz", IMAGES_MAGIC, 16, FASHION_PIXELS},
    [TEST_LABELS] = {"t10k-labels-idx1-ubyte.gz", LABELS_MAGIC, 8, 1},
};

/* What a cache is made from; hashed into its name and repeated in its header. */
struct key {
    uint64_t bytes[FILES_N], mtime_ns[FILES_N];
};

/* The cache file: this header, then the files' contents one after another, in the order of
 * `sources`. Read on the host that wrote it. */
struct cache_header {
    uint32_t magic, files_n;
    struct key key;
    uint64_t count[FILES_N];
};

struct paths {
    char source[FILES_N][PATH_MAX];
    char cache_dir[PATH_MAX];
    char cache[PATH_MAX];
};

static int set_path(char *ret, struct er_error *err, const char *fmt, ...) ER_PRINTF(3, 4);

static int set_path(char *ret, struct er_error *err, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(ret, PATH_MAX, fmt, ap);
    va_end(ap);
    return n < PATH_MAX ? 0 : er_error_set(err, -ENAMETOOLONG, "path '%.64s...'", ret);
}

static int find_cache_dir(struct paths *paths, const char *cache_dir, struct er_error *err)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");

    if (cache_dir)
        return set_path(paths->cache_dir, err, "%s", cache_dir);
    /* The XDG specification: a relative path there is to be ignored. */
    if (xdg && xdg[0] == '/')
        return set_path(paths->cache_dir, err, "%s/elastic-run", xdg);
    if (home && home[0])
        return set_path(paths->cache_dir, err, "%s/.cache/elastic-run", home);
    return er_error_set(err, ER_E_CONFIG,
                        "neither XDG_CACHE_HOME nor HOME is set: say where the unpacked data set "
                        "may be kept (--cache DIR)");
}

static int find_sources(struct paths *paths, const char *dir, struct key *ret_key,
                        struct er_error *err)
{
    for (size_t i = 0; i < FILES_N; i++) {
        struct stat st;
        int rc = set_path(paths->source[i], err, "%s/%s", dir, sources[i].name);

        if (rc < 0)
            return rc;
        if (stat(paths->source[i], &st) < 0 && (errno == ENOENT || errno == ENOTDIR))
            return er_error_set(err, -ENOENT,
                                "no data set: '%s' is missing; install the Debian package " PACKAGE
                                ", or say where it is (--data DIR)",
                                paths->source[i]);
        if (stat(paths->source[i], &st) < 0)
            return er_error_errno(err, "data set '%s'", paths->source[i]);
        ret_key->bytes[i] = (uint64_t)st.st_size;
        ret_key->mtime_ns[i] =
            (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
    }
    return 0;
}

/* ---- the cache ---- */

static size_t content_bytes(const uint64_t count[FILES_N])
{
    size_t bytes = 0;

    for (size_t i = 0; i < FILES_N; i++)
        bytes += (size_t)count[i] * sources[i].item_bytes;
    return bytes;
}

static void point_into(struct fashion_data *data)
{
    const struct cache_header *header = data->map;
    const uint8_t *at = (const uint8_t *)(header + 1), *content[FILES_N];

    for (size_t i = 0; i < FILES_N; i++) {
        content[i] = at;
        at += (size_t)header->count[i] * sources[i].item_bytes;
    }
    data->train = (struct fashion_part){content[TRAIN_IMAGES], content[TRAIN_LABELS],
                                        (size_t)header->count[TRAIN_IMAGES]};
    data->test = (struct fashion_part){content[TEST_IMAGES], content[TEST_LABELS],
                                       (size_t)header->count[TEST_IMAGES]};
}

static bool fits(const struct cache_header *header, size_t bytes, const struct key *key)
{
    if (bytes < sizeof(*header) || header->magic != CACHE_MAGIC || header->files_n != FILES_N ||
        memcmp(&header->key, key, sizeof(*key)) != 0)
        return false;
    for (size_t i = 0; i < FILES_N; i++) {
        if (header->count[i] > FASHION_MAX)
            return false;
    }
    return bytes == sizeof(*header) + content_bytes(header->count);
}

/* 1: there is no cache that fits (none, or one that something else has damaged). */
static int map_cache(struct fashion_data *ret, const struct paths *paths, const struct key *key,
                     struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int fd = open(paths->cache, O_RDONLY | O_CLOEXEC);
    struct fashion_data data = {0};
    struct stat st;

    if (fd < 0 && errno == ENOENT)
        return 1;
    if (fd < 0 || fstat(fd, &st) < 0)
        return er_error_errno(err, "cache '%s'", paths->cache);
    if ((size_t)st.st_size < sizeof(struct cache_header))
        return 1;
    data.map_bytes = (size_t)st.st_size;
    data.map = mmap(NULL, data.map_bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (data.map == MAP_FAILED)
        return er_error_errno(err, "map cache '%s'", paths->cache);
    if (!fits(data.map, data.map_bytes, key)) {
        munmap(data.map, data.map_bytes);
        return 1;
    }
    point_into(&data);
    *ret = data;
    return 0;
}

/* ---- unpacking ---- */

static void cleanup_gz(gzFile *gz)
{
    if (*gz)
        gzclose_r(*gz);
}

static uint32_t big_endian(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Exactly n bytes. */
static int read_gz(gzFile gz, const char *path, void *to, size_t n, struct er_error *err)
{
    for (size_t done = 0; done < n;) {
        unsigned want = n - done < INT_MAX ? (unsigned)(n - done) : INT_MAX;
        int got = gzread(gz, (char *)to + done, want);
        int code = Z_OK;
        const char *text = gzerror(gz, &code);

        if (code == Z_ERRNO)
            return er_error_errno(err, "read '%s'", path);
        if (got < 0 && code != Z_BUF_ERROR)
            return er_error_set(err, ER_E_CORRUPT, "'%s' is corrupt after %zu bytes: %s", path,
                                done, text);
        if (got <= 0)
            return er_error_set(err, ER_E_CORRUPT, "'%s' is truncated: %zu of %zu bytes", path,
                                done, n);
        done += (size_t)got;
    }
    return 0;
}

/* Nothing may follow, and the checksum at the end must hold. */
static int expect_end(gzFile gz, const char *path, struct er_error *err)
{
    char more;
    int got = gzread(gz, &more, 1), code = Z_OK;
    const char *text = gzerror(gz, &code);

    if (got > 0)
        return er_error_set(err, ER_E_CORRUPT, "'%s' is longer than its header says", path);
    if (code != Z_OK)
        return er_error_set(err, ER_E_CORRUPT, "'%s' is truncated or corrupt at its end: %s", path,
                            text);
    return 0;
}

static int check_header(const struct source *source, const char *path, const uint8_t *header,
                        uint64_t *ret_count, struct er_error *err)
{
    uint32_t magic = big_endian(header), count = big_endian(header + 4);

    if (magic != source->magic)
        return er_error_set(err, ER_E_CORRUPT, "'%s': magic number 0x%08x, expected 0x%08x", path,
                            magic, source->magic);
    if (count == 0 || count > FASHION_MAX)
        return er_error_set(err, ER_E_CORRUPT, "'%s': %u items, expected 1 to %u", path, count,
                            FASHION_MAX);
    if (source->header_bytes == 16 &&
        (big_endian(header + 8) != 28 || big_endian(header + 12) != 28))
        return er_error_set(err, ER_E_CORRUPT, "'%s': images of %u x %u, expected 28 x 28", path,
                            big_endian(header + 8), big_endian(header + 12));
    *ret_count = count;
    return 0;
}

/* Append one file's items to `out`. */
static int unpack(const struct source *source, const char *path, struct er_buf *out,
                  uint64_t *ret_count, struct er_error *err)
{
    ER_CLEANUP(cleanup_gz) gzFile gz = gzopen(path, "rbe");
    uint8_t header[16];
    size_t bytes;
    int rc;

    if (!gz)
        return er_error_errno(err, "open '%s'", path);
    gzbuffer(gz, 128 * 1024);
    rc = read_gz(gz, path, header, source->header_bytes, err);
    if (rc == 0 && gzdirect(gz))
        rc = er_error_set(err, ER_E_CORRUPT, "'%s' is not a gzip file", path);
    if (rc == 0)
        rc = check_header(source, path, header, ret_count, err);
    if (rc < 0)
        return rc;
    bytes = (size_t)*ret_count * source->item_bytes;
    rc = er_buf_reserve(out, bytes);
    if (rc < 0)
        return er_error_set(err, rc, "'%s': no memory for %zu bytes", path, bytes);
    rc = read_gz(gz, path, out->data + out->len, bytes, err);
    if (rc < 0)
        return rc;
    out->len += bytes;
    return expect_end(gz, path, err);
}

static int check_labels(const char *path, const uint8_t *labels, size_t n, struct er_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (labels[i] >= FASHION_CLASSES)
            return er_error_set(err, ER_E_CORRUPT, "'%s': label %u of item %zu, expected 0 to %d",
                                path, labels[i], i, FASHION_CLASSES - 1);
    }
    return 0;
}

static int unpack_all(const struct paths *paths, const struct key *key, struct er_buf *out,
                      struct er_error *err)
{
    struct cache_header header = {.magic = CACHE_MAGIC, .files_n = FILES_N, .key = *key};
    int rc = er_buf_add(out, &header, sizeof(header));

    if (rc < 0)
        return er_error_set(err, rc, "unpack the data set: no memory");
    for (size_t i = 0; i < FILES_N; i++) {
        size_t start = out->len;

        rc = unpack(&sources[i], paths->source[i], out, &header.count[i], err);
        if (rc == 0 && sources[i].magic == LABELS_MAGIC)
            rc = check_labels(paths->source[i], (const uint8_t *)out->data + start,
                              (size_t)header.count[i], err);
        if (rc < 0)
            return rc;
        if (i % 2 == 1 && header.count[i] != header.count[i - 1])
            return er_error_set(err, ER_E_CORRUPT, "'%s' has %llu labels for %llu images",
                                paths->source[i], (unsigned long long)header.count[i],
                                (unsigned long long)header.count[i - 1]);
    }
    memcpy(out->data, &header, sizeof(header));
    return 0;
}

static void cleanup_buf(struct er_buf *buf)
{
    er_buf_done(buf);
}

static int make_cache(const struct paths *paths, const struct key *key, struct er_error *err)
{
    ER_CLEANUP(cleanup_buf) struct er_buf out;
    int rc;

    er_buf_init(&out, sizeof(struct cache_header) + 2ul * FASHION_MAX * (FASHION_PIXELS + 1));
    rc = unpack_all(paths, key, &out, err);
    if (rc == 0)
        rc = er_mkdir_all(paths->cache_dir, 0755, err);
    if (rc == 0)
        rc = er_file_replace(paths->cache, out.data, out.len, 0644, err);
    return rc;
}

int fashion_open(struct fashion_data *ret, const char *dir, const char *cache_dir,
                 struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) struct paths *paths = malloc(sizeof(*paths));
    char hex[ER_DIGEST_HEX_MAX];
    struct key key = {0};
    int rc;

    if (!paths)
        return er_error_set(err, -ENOMEM, "data set: out of memory");
    rc = find_sources(paths, dir ? dir : FASHION_DIR, &key, err);
    if (rc == 0)
        rc = find_cache_dir(paths, cache_dir, err);
    if (rc < 0)
        return rc;
    er_digest_format(er_hash(&key, sizeof(key)), hex);
    rc = set_path(paths->cache, err, "%s/fashion-mnist-%s", paths->cache_dir, hex);
    if (rc == 0)
        rc = map_cache(ret, paths, &key, err);
    if (rc != 1)
        return rc;
    rc = make_cache(paths, &key, err);
    if (rc == 0)
        rc = map_cache(ret, paths, &key, err);
    if (rc == 1)
        rc = er_error_set(err, -EIO, "cache '%s' changes while it is read", paths->cache);
    return rc;
}

void fashion_close(struct fashion_data *data)
{
    if (data->map)
        munmap(data->map, data->map_bytes);
    memset(data, 0, sizeof(*data));
}
