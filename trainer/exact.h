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
 *     er_tape_renew(tape, true);                                     each shard by itself
 *     each shard: forward, backward; leaf hook: er_exact_fold(&exact, &flat, param);
 *                 of the rank's last shard also er_ddp_ready(ddp, param)
 *     apply: er_exact_take(&exact, &flat, vote.weight), then er_optim_apply() with scale 1
 *
 * A value is kept to 2^-q of a sum, q = 52 - ceil(log2 weight_max): the mean gradient has the range
 * +-1024 and a resolution of 2^-52. It costs 8 more bytes a parameter, twice the bytes on the wire,
 * and what smaller matrix products cost. FSDP has it as an option (er_fsdp_opts.exact): the same
 * bits.
 */
#include "trainer/flat.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ER_EXACT_SHARDS     12 /* a good number: 1, 2, 3, 4, 6 and 12 ranks get equal parts */
#define ER_EXACT_SHARDS_MAX 4096

/* What a fixed-point sum means; the same on all ranks. */
struct er_exact_scale {
    double unit;  /* 2^q: a sum of `unit` is 1 */
    double limit; /* a shard's gradient beyond it is not added */
    double whole; /* 2^ceil(log2 weight_max) */
};

/* -EINVAL: shards or weight out of range. */
int er_exact_scale(struct er_exact_scale *ret, uint32_t shards, uint64_t weight_max,
                   struct er_error *err);
/* sums = gradients. Returns how many were not finite or beyond the limit, and left out. */
uint64_t er_exact_convert(const struct er_exact_scale *scale, int64_t *sums, const float *grad,
                          size_t n);
/* sums = sums + gradients, likewise; sums = sums + from. */
uint64_t er_exact_add(const struct er_exact_scale *scale, int64_t *sums, const float *grad,
                      size_t n);
void er_exact_sum(int64_t *sums, const int64_t *from, size_t n);
/* Gradients = sums / weight, rounded once; the sums become 0. */
void er_exact_mean(const struct er_exact_scale *scale, int64_t *sums, float *grad, size_t n,
                   double weight);

/*
 * Squared norm of sums, for clipping: itself a fixed-point sum, so that it does not depend on how
 * many ranks hold the elements. Parts of any division add up by er_exact_norm_add(), in any order.
 * Squares of mean gradients below 2^-65 count as 0.
 */
struct er_exact_norm {
    uint64_t low; /* of a 128-bit integer */
    int64_t high;
};
struct er_exact_norm er_exact_norm_of(const struct er_exact_scale *scale, const int64_t *sums,
                                      size_t n);
void er_exact_norm_add(struct er_exact_norm *norm, const struct er_exact_norm *more);
/* The same norm as words, each a sum of parts' words (modulo 2^64): at most 2^32 parts. */
#define ER_EXACT_WORDS 3
void er_exact_norm_split(const struct er_exact_norm *norm, uint64_t words[ER_EXACT_WORDS]);
struct er_exact_norm er_exact_norm_join(const uint64_t words[ER_EXACT_WORDS]);
/* As er_optim_norm2() of the sums (not of the means). */
double er_exact_norm_value(const struct er_exact_scale *scale, const struct er_exact_norm *norm);

struct er_exact {
    int64_t *sums; /* as the blocks of flat memory */
    struct er_exact_scale scale;
};

size_t er_exact_bytes(const struct er_flat *flat);
/* `weight_max`: largest weight of a step (its samples or tokens). `memory`: er_exact_bytes() bytes,
 * aligned to ER_FLAT_ALIGN, the caller's; becomes 0. -EINVAL: shards or weight out of range. */
int er_exact_bind(struct er_exact *exact, const struct er_flat *flat, uint32_t shards,
                  uint64_t weight_max, void *memory, struct er_error *err);
/* The same with memory that is 0 everywhere already, and may be an engine's (trainer/engine.h:
 * er_engine_fold() and the like take the place of the calls below). */
int er_exact_place(struct er_exact *exact, uint32_t shards, uint64_t weight_max, void *memory,
                   struct er_error *err);
/* One span per parameter, of int64: for er_ddp_open() with .dtype = ER_I64. `ret`: params_n. */
void er_exact_spans(const struct er_exact *exact, const struct er_flat *flat, struct er_span *ret);
/* Adds a parameter's gradient, of one shard alone, to the sums; it stays (the next shard's takes
 * its place: er_tape_renew()). Returns how many elements were not finite or beyond the limit: they
 * belong into the vote (er_loss.nonfinite), since they were left out. */
uint64_t er_exact_fold(struct er_exact *exact, const struct er_flat *flat, size_t param);
/* Squared norm of the sums, the same on any number of ranks: before er_exact_take(). */
double er_exact_norm2(const struct er_exact *exact, const struct er_flat *flat);
/* The gradients become sums / weight, rounded once, and the sums 0. */
void er_exact_take(struct er_exact *exact, const struct er_flat *flat, double weight);

#ifdef __cplusplus
}
#endif
