#pragma once
/* One piece of a shard file, hashed as a whole while the wanted part of it is read. */
#include <stdint.h>

#include "base/hash.h"

struct er_piece {
    int fd;
    uint64_t at, bytes;
    const char *mapped; /* the piece itself, where the file is mapped: hash alone */
    char *to;           /* of the piece [from, from + wanted); NULL: hash alone */
    uint64_t from, wanted;
};

struct er_piece_reader; /* a thread's own */
/* NULL: no memory. */
struct er_piece_reader *er_piece_reader_new(void);
void er_piece_reader_free(struct er_piece_reader *reader);
/* -errno of the read; of a mapping -EIO, as far as that can be found out before it is touched. `to`
 * holds what was read, whatever the digest says. */
int er_piece_read(struct er_piece_reader *reader, const struct er_piece *piece,
                  struct er_digest *ret);
