#include "ckpt/piece.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"

/* Hashed from the nearest cache, where read(2) has just put it: mapping the file instead was
 * measured as no faster (tables are made and unmade), and answers an I/O error with SIGBUS. */
#define READ_BYTES (256u << 10)

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

int er_piece_read(struct er_piece_reader *r, const struct er_piece *p, struct er_digest *ret)
{
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
