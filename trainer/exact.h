#pragma once
/*
 * Exact mode: gradients whose bits do not depend on how many ranks there are. A step's samples are
 * divided into V shards, whatever the world size; each shard runs forward and backward by itself
 * (same shapes, same bits), and its float32 gradients are added to 64-bit fixed-point sums, which
 * are associative: any world size up to V, any bucket size and any reduction gives the same bits.
 * Pure.
 *
 *     er_exact_bind(&exact, &flat, shards, weight_max, memory);      er_exact_bytes(&flat) bytes
 *     er_exact_spans(&exact, &flat, spans);                          for a reducer of ER_I64
 *     each shard: forward, backward; leaf hook: er_exact_fold(&exact, &flat, param);
 *                 of the rank's last shard also er_ddp_ready(ddp, param)
 *     apply: er_exact_take(&exact, &flat, vote.weight), then er_optim_apply() with scale 1
 *
 * A value is kept to 2^-q of a sum, q = 52 - ceil(log2 weight_max): the mean gradient has the range
 * +-1024 and a resolution of 2^-52. It costs 8 more bytes a parameter, twice the bytes on the wire,
 * and what smaller matrix products cost.
 */
#include "trainer/flat.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ER_EXACT_SHARDS     12 /* a good number: 1, 2, 3, 4, 6 and 12 ranks get equal parts */
#define ER_EXACT_SHARDS_MAX 4096

struct er_exact {
    int64_t *sums; /* as the blocks of flat memory */
    double unit;   /* 2^q */
    double limit;  /* a shard's gradient beyond it is not added */
};

size_t er_exact_bytes(const struct er_flat *flat);
/* `weight_max`: largest weight of a step (its samples or tokens). `memory`: er_exact_bytes() bytes,
 * aligned to ER_FLAT_ALIGN, the caller's; becomes 0. -EINVAL: shards or weight out of range. */
int er_exact_bind(struct er_exact *exact, const struct er_flat *flat, uint32_t shards,
                  uint64_t weight_max, void *memory, struct er_error *err);
/* One span per parameter, of int64: for er_ddp_open() with .dtype = ER_I64. `ret`: params_n. */
void er_exact_spans(const struct er_exact *exact, const struct er_flat *flat, struct er_span *ret);
/* Adds a parameter's gradient to the sums and clears it. Returns how many elements were not finite
 * or beyond the limit: they belong into the vote (er_loss.nonfinite), since they were left out. */
uint64_t er_exact_fold(struct er_exact *exact, const struct er_flat *flat, size_t param);
/* The gradients become sums / weight, rounded once, and the sums 0. */
void er_exact_take(struct er_exact *exact, const struct er_flat *flat, double weight);

#ifdef __cplusplus
}
#endif
