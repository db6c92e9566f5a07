#include "trainer/agree.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "trainer/sync.h"

#define CHUNK 64 /* gradients compared at a time */

struct summary {
    uint64_t hash, spans_n;
};

struct entry {
    char name[88]; /* longer ones are cut: they differ in the hash */
    uint64_t count;
};

static int compare_chunk(struct er_comm *comm, const struct entry *mine, struct entry *all,
                         size_t first, size_t n, struct er_error *err)
{
    int rc = er_sync_gather(comm, mine, CHUNK * sizeof(*mine), all, err);

    for (size_t i = 0; i < n && rc == 0; i++) {
        for (int rank = 1; rank < er_comm_size(comm) && rc == 0; rank++) {
            const struct entry *one = &all[i], *other = &all[(size_t)rank * CHUNK + i];

            if (memcmp(one, other, sizeof(*one)) != 0)
                rc = er_error_set(err, ER_E_MISMATCH,
                                  "gradient %zu is '%s' with %lu elements on rank 0, '%s' with %lu "
                                  "on rank %d",
                                  first + i, one->name, (unsigned long)one->count, other->name,
                                  (unsigned long)other->count, rank);
        }
    }
    return rc;
}

/* 0: the first `n` are the same everywhere. */
static int compare(struct er_comm *comm, const struct er_span *spans, size_t n,
                   struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free)
    struct entry *all = calloc((size_t)er_comm_size(comm) * CHUNK, sizeof(*all));
    struct entry mine[CHUNK];
    int rc = 0;

    if (!all)
        return er_error_set(err, -ENOMEM, "gradients of %d ranks", er_comm_size(comm));
    for (size_t first = 0; first < n && rc == 0; first += CHUNK) {
        size_t here = n - first < CHUNK ? n - first : CHUNK;

        memset(mine, 0, sizeof(mine));
        for (size_t i = 0; i < here; i++) {
            snprintf(mine[i].name, sizeof(mine[i].name), "%s", spans[first + i].name);
            mine[i].count = spans[first + i].count;
        }
        rc = compare_chunk(comm, mine, all, first, here, err);
    }
    return rc;
}

int er_agree_spans(struct er_comm *comm, const struct er_span *spans, size_t n, uint64_t hash,
                   struct er_error *err)
{
    const struct summary mine = {hash, n};
    size_t size = (size_t)er_comm_size(comm), odd = 0, least = n;
    ER_CLEANUP(er_cleanup_free) struct summary *all = calloc(size, sizeof(*all));
    int rc;

    if (!all)
        return er_error_set(err, -ENOMEM, "gradients of %zu ranks", size);
    rc = er_sync_gather(comm, &mine, sizeof(mine), all, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "comparing gradients");
    for (size_t rank = size; rank-- > 0;) {
        odd = memcmp(&all[rank], &all[0], sizeof(mine)) != 0 ? rank : odd;
        least = all[rank].spans_n < least ? all[rank].spans_n : least;
    }
    if (odd == 0)
        return 0;
    rc = compare(comm, spans, least, err);
    if (rc < 0)
        return rc;
    if (all[odd].spans_n != all[0].spans_n)
        return er_error_set(err, ER_E_MISMATCH, "rank 0 has %lu gradients, rank %zu has %lu",
                            (unsigned long)all[0].spans_n, odd, (unsigned long)all[odd].spans_n);
    return er_error_set(err, ER_E_MISMATCH,
                        "rank %zu puts the gradients into other buckets than rank 0: bucket sizes, "
                        "type or memory differ",
                        odd);
}
