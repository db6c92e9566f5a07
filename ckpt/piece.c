#include "ckpt/piece.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fd.h"

/* Hashed from the nearest cache, where read(2) has just put it. Copying from a mapping instead was
 * measured as no faster, and answers an I/O error with SIGBUS. */
#define READ_BYTES (256u << 10)

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14; older kernels answer EINVAL */
#endif

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

/* The pages first, all at once: what cannot be read is an error then, not yet a signal. */
static int hash_mapped(const struct er_piece *p, struct er_digest *ret)
{
    size_t skew = (uintptr_t)p->mapped % (size_t)sysconf(_SC_PAGESIZE);
    int rc;

    do
        rc = madvise((void *)(uintptr_t)(p->mapped - skew), (size_t)p->bytes + skew,
                     MADV_POPULATE_READ);
    while (rc < 0 && errno == EINTR);
    if (rc < 0 && errno != EINVAL)
        return errno == EFAULT ? -EIO : -errno;
    *ret = er_hash(p->mapped, (size_t)p->bytes);
    return 0;
}

int er_piece_read(struct er_piece_reader *r, const struct er_piece *p, struct er_digest *ret)
{
    if (p->mapped)
        return hash_mapped(p, ret);
    er_hasher_reset(r->hasher);
    for (uint64_t at = 0, n; at < p->bytes; at += n) {
        uint64_t first, wanted;
        char *into;
        int rc;

        n = p->bytes - at < READ_BYTES ? p->bytes - at : READ_BYTES;
        wanted = wanted_of(p, at, n, &first);
        into = wanted == n ? p->to + (at - p->from) : r->scratch;
        rc = er_pread_all(p->fd, into, (size_t)n, (off_t)(p->at + at));
        if (rc < 0)
            return rc;
        er_hasher_add(r->hasher, into, (size_t)n);
        if (wanted > 0 && wanted < n)
            memcpy(p->to + (first - p->from), into + (first - at), (size_t)wanted);
    }
    *ret = er_hasher_get(r->hasher);
    return 0;
}
