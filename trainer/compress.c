#include "trainer/compress.h"

#include <errno.h>
#include <stdlib.h>

#include "trainer/bfloat.h"

struct er_compress {
    size_t count;
    uint16_t wire[];
};

int er_compress_open(struct er_compress **ret, const struct er_span *spans, size_t n,
                     struct er_error *err)
{
    struct er_compress *compress;
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += spans[i].count;
    compress = malloc(sizeof(*compress) + count * sizeof(compress->wire[0]));
    if (!compress)
        return er_error_set(err, -ENOMEM, "room for %zu gradients as bfloat16", count);
    compress->count = count;
    *ret = compress;
    return 0;
}

void er_compress_close(struct er_compress *compress)
{
    int saved = errno;

    free(compress);
    errno = saved;
}

static int pack(void *user, const struct er_ddp_bucket *bucket, struct er_ddp_wire *wire,
                struct er_error *err)
{
    struct er_compress *compress = user;
    uint16_t *to = compress->wire + bucket->first;

    if (bucket->first + bucket->count > compress->count)
        return er_error_set(err, ER_E_USAGE,
                            "compression was opened for %zu gradients, this bucket ends at %zu",
                            compress->count, bucket->first + bucket->count);
    er_bfloat_from(bucket->grads, to, bucket->count);
    *wire = (struct er_ddp_wire){to, bucket->count, ER_BF16};
    return 0;
}

static int unpack(void *user, const struct er_ddp_bucket *bucket, const struct er_ddp_wire *wire,
                  struct er_error *err)
{
    er_bfloat_to(wire->ptr, bucket->grads, bucket->count);
    return 0;
}

struct er_ddp_hook er_compress_hook(struct er_compress *compress)
{
    return (struct er_ddp_hook){.user = compress, .pack = pack, .unpack = unpack};
}
