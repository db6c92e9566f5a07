#pragma once
/*
 * Gradients as bfloat16 on the wire: half the bytes, and 8 significant bits instead of 24. Each
 * rank's gradients are rounded once, added up in float32 in rank order, and the sum is rounded once
 * more: all ranks get the same bits. It has no state, so nothing is lost with a rank. An example of
 * a hook, and useful where the network is the limit.
 *
 *     er_compress_open(&compress, spans, spans_n, err);
 *     opts.ddp.hook = er_compress_hook(compress);       the reducer must be closed before it
 */
#include "trainer/ddp.h"

#ifdef __cplusplus
extern "C" {
#endif

struct er_compress; /* opaque */

/* For a reducer of these gradients: 2 bytes an element. -ENOMEM. */
ER_API int er_compress_open(struct er_compress **ret, const struct er_span *spans, size_t n,
                            struct er_error *err);
/* The same for a reducer with an engine, in whose memory it works. On a GPU the sums are NCCL's. */
ER_API int er_compress_open_on(struct er_compress **ret, struct er_engine *engine,
                               const struct er_span *spans, size_t n, struct er_error *err);
/* NULL is fine. */
ER_API void er_compress_close(struct er_compress *compress);
ER_API struct er_ddp_hook er_compress_hook(struct er_compress *compress);

#ifdef __cplusplus
}
#endif
