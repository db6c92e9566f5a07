#include "ckpt/piece.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/copy.h"
#include "base/fd.h"

#define PAGE         4096u
#define WINDOW_BYTES (2u << 20)  /* looked up, and read ahead, at a time */
#define MAP_BYTES    (64u << 10) /* hashed, then copied from the nearest cache */
#define READ_BYTES   (256u << 10)

struct er_piece_reader {
    struct er_hasher *hasher;
    char *scratch; /* READ_BYTES; of what is hashed and not wanted */
};

struct er_piece_reader *er_piece_reader_new(void)
{
    struct er_piece_reader *r = calloc(1, sizeof(*r));

    if (!r)
        return NULL;
    r->hasher = er_hasher_new();
    r->scratch = malloc(READ_BYTES);
    if (r->hasher && r->scratch)
        return r;
    er_piece_reader_free(r);
    return NULL;
}

void er_piece_reader_free(struct er_piece_reader *r)
{
    if (!r)
        return;
    er_hasher_free(r->hasher);
    free(r->scratch);
    free(r);
}

/* Of [at, at + n) of the piece, what is wanted: *ret_first relative to the piece. */
static uint64_t wanted_of(const struct er_piece *p, uint64_t at, uint64_t n, uint64_t *ret_first)
{
    uint64_t first = at > p->from ? at : p->from;
    uint64_t end = at + n < p->from + p->wanted ? at + n : p->from + p->wanted;

    *ret_first = first;
    return end > first ? end - first : 0;
}

/* All of the window is in memory, and mapped here from now on. A page that is thrown out again in
 * the microseconds until it is read, and can then not be read from the disk, would be a SIGBUS. */
static bool is_resident(const struct er_piece *p, uint64_t at, uint64_t n)
{
    uint64_t first = (p->at + at) / PAGE * PAGE, length = p->at + at + n - first;
    unsigned char pages[WINDOW_BYTES / PAGE + 2];
    size_t page_n = (size_t)((length + PAGE - 1) / PAGE);
    void *start = (void *)(uintptr_t)(p->map + first);

    if (mincore(start, (size_t)length, pages) < 0)
        return false;
    for (size_t i = 0; i < page_n; i++)
        if (!(pages[i] & 1))
            return false;
#ifdef MADV_POPULATE_READ
    return madvise(start, page_n * PAGE, MADV_POPULATE_READ) == 0 || errno == EINVAL;
#else
    return true;
#endif
}

static void take_mapped(struct er_piece_reader *r, const struct er_piece *p, uint64_t at,
                        uint64_t end)
{
    for (uint64_t n; at < end; at += n) {
        uint64_t first, wanted;

        n = end - at < MAP_BYTES ? end - at : MAP_BYTES;
        er_hasher_add(r->hasher, p->map + p->at + at, (size_t)n);
        wanted = wanted_of(p, at, n, &first);
        if (wanted > 0)
            er_copy_streaming(p->to + (first - p->from), p->map + p->at + first, (size_t)wanted);
    }
}

static int take_read(struct er_piece_reader *r, const struct er_piece *p, uint64_t at, uint64_t end)
{
    (void)posix_fadvise(p->fd, (off_t)(p->at + at), (off_t)(end - at), POSIX_FADV_WILLNEED);
    for (uint64_t n; at < end; at += n) {
        uint64_t first, wanted;
        char *into;
        int rc;

        n = end - at < READ_BYTES ? end - at : READ_BYTES;
        wanted = wanted_of(p, at, n, &first);
        into = wanted == n ? p->to + (at - p->from) : r->scratch;
        rc = er_pread_all(p->fd, into, (size_t)n, (off_t)(p->at + at));
        if (rc < 0)
            return rc;
        er_hasher_add(r->hasher, into, (size_t)n);
        if (wanted > 0 && wanted < n)
            memcpy(p->to + (first - p->from), into + (first - at), (size_t)wanted);
    }
    return 0;
}

int er_piece_read(struct er_piece_reader *r, const struct er_piece *p, struct er_digest *ret)
{
    er_hasher_reset(r->hasher);
    for (uint64_t at = 0, n; at < p->bytes; at += n) {
        int rc = 0;

        n = p->bytes - at < WINDOW_BYTES ? p->bytes - at : WINDOW_BYTES;
        if (p->map && n > PAGE && is_resident(p, at, n))
            take_mapped(r, p, at, at + n);
        else
            rc = take_read(r, p, at, at + n);
        if (rc < 0)
            return rc;
    }
    *ret = er_hasher_get(r->hasher);
    return 0;
}
