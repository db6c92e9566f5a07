#include "trainer/tokens.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

enum { HEADER_BYTES = 1024, WIDTH_DEFAULT = 2 };

static const struct {
    uint32_t magic, version, width;
} headers[] = {{20240520, 1, 2}, {20240801, 7, 4}};

static uint32_t number(const uint8_t *at, uint32_t width)
{
    uint32_t x = 0;

    for (uint32_t i = 0; i < width; i++)
        x |= (uint32_t)at[i] << (8 * i);
    return x;
}

/* llm.c's header, when there is one: width, and how many tokens follow. */
static int read_header(struct er_tokens *t, struct er_error *err)
{
    const uint8_t *at = t->map;
    uint64_t room;

    for (size_t i = 0; i < ER_ARRAY_N(headers) && t->map_bytes >= HEADER_BYTES; i++) {
        if (number(at, 4) != headers[i].magic || number(at + 4, 4) != headers[i].version)
            continue;
        t->width = headers[i].width;
        t->data = at + HEADER_BYTES;
        t->n = number(at + 8, 4);
        room = (t->map_bytes - HEADER_BYTES) / t->width;
        return t->n <= room
                   ? 0
                   : er_error_set(err, -EINVAL,
                                  "tokens '%s': the header says %llu, the file has %llu", t->name,
                                  (unsigned long long)t->n, (unsigned long long)room);
    }
    return 0;
}

static int find_tokens(struct er_tokens *t, struct er_error *err)
{
    int rc = t->width == 0 ? read_header(t, err) : 0;

    if (rc < 0 || t->data)
        return rc;
    t->width = t->width ? t->width : WIDTH_DEFAULT;
    t->data = t->map;
    t->n = t->map_bytes / t->width;
    if (t->map_bytes % t->width != 0)
        return er_error_set(err, -EINVAL, "tokens '%s': %zu bytes are not whole tokens of %u bytes",
                            t->name, t->map_bytes, t->width);
    return 0;
}

static int map_file(struct er_tokens *t, const char *path, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;

    if (fd < 0 || fstat(fd, &st) < 0)
        return er_error_set(err, -errno, "tokens '%s': %s", path, er_error_name(-errno));
    if (!S_ISREG(st.st_mode) || st.st_size == 0)
        return er_error_set(err, -EINVAL, "tokens '%s': %s", path,
                            S_ISREG(st.st_mode) ? "the file is empty" : "not a plain file");
    t->map_bytes = (size_t)st.st_size;
    t->map = mmap(NULL, t->map_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (t->map == MAP_FAILED) {
        t->map = NULL;
        return er_error_set(err, -errno, "tokens '%s': map %zu bytes: %s", path, t->map_bytes,
                            er_error_name(-errno));
    }
    return 0;
}

int er_tokens_open(struct er_tokens *ret, const char *path, const struct er_tokens_opts *opts,
                   struct er_error *err)
{
    struct er_tokens t = {.width = opts ? opts->width : 0, .vocab = opts ? opts->vocab : 0};
    size_t n = strlen(path);
    int rc;

    if (t.width > 4 || t.width == 3)
        return er_error_set(err, ER_E_USAGE, "tokens '%s': %u bytes each, expected 1, 2 or 4", path,
                            t.width);
    snprintf(t.name, sizeof(t.name), "%s",
             n < sizeof(t.name) ? path : path + n - (sizeof(t.name) - 1));
    rc = map_file(&t, path, err);
    if (rc == 0)
        rc = find_tokens(&t, err);
    if (rc < 0) {
        er_tokens_close(&t);
        return rc;
    }
    *ret = t;
    return 0;
}

void er_tokens_close(struct er_tokens *tokens)
{
    if (tokens->map)
        munmap(tokens->map, tokens->map_bytes);
    *tokens = (struct er_tokens){0};
}

uint64_t er_tokens_samples(const struct er_tokens *tokens, size_t length)
{
    assert(length > 0);
    return tokens->n > 0 ? (tokens->n - 1) / length : 0;
}

int er_tokens_read(const struct er_tokens *t, uint64_t sample, size_t length, int32_t *ret_tokens,
                   int32_t *ret_labels, struct er_error *err)
{
    uint32_t limit = t->vocab ? t->vocab : (uint32_t)INT32_MAX;
    uint64_t first = sample * length;

    assert(sample < er_tokens_samples(t, length));
    for (size_t i = 0; i <= length; i++) {
        uint32_t token = number(t->data + (first + i) * t->width, t->width);

        if (token >= limit)
            return er_error_set(err, -EDOM,
                                "tokens '%s': token %u at place %llu, expected below %u", t->name,
                                token, (unsigned long long)(first + i), limit);
        if (i < length)
            ret_tokens[i] = (int32_t)token;
        if (i > 0)
            ret_labels[i - 1] = (int32_t)token;
    }
    return 0;
}
