#include "trainer/sampler.h"

#include <assert.h>

#include "base/cleanup.h"

/*
 * The permutation of an epoch. Small n: Fisher-Yates, so that every permutation can come up (a
 * Feistel network over six elements reaches few of them). Large n: a mixed-radix Feistel network
 * over [0, a) x [0, b), a * b >= n, with cycle walking: positions outside [0, n) are walked on
 * until they come back. Source: J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains",
 * CT-RSA 2002 (generalised Feistel and cycle walking).
 */

#define FEISTEL_ROUNDS 8 /* even: each round changes one half */

/* What er_rng()'s `op` stands for inside the sampler; programs use numbers below these. */
#define OP_KEYS  0xffff0001u
#define OP_TABLE 0xffff0002u

#define PHILOX_M0     0xd2e7470ee14c6c93ull
#define PHILOX_M1     0xca5a826395121157ull
#define PHILOX_W0     0x9e3779b97f4a7c15ull
#define PHILOX_W1     0xbb67ae8584caa73bull
#define PHILOX_ROUNDS 10

_Static_assert(FEISTEL_ROUNDS <= ER_ARRAY_N(((struct er_order *)0)->keys), "a key for each round");

__extension__ typedef unsigned __int128 wide;

/* Philox4x64-10 with the counter (sample, i, 0, 0) and the key (seed, op). Source: J. Salmon et
 * al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11, section 3.3. */
uint64_t er_strided_count(const struct er_strided *s)
{
    uint64_t whole = s->samples / s->world, rest = s->samples % s->world;

    return whole + (rest > 0 && !s->drop_last);
}

uint64_t er_strided_at(const struct er_strided *s, uint64_t i, double *ret_weight)
{
    uint64_t at = s->rank + i * s->world;

    assert(s->rank < s->world && i < er_strided_count(s));
    *ret_weight = at < s->samples ? 1.0 : 0.0;
    return at % s->samples;
}

uint64_t er_rng(uint64_t seed, uint64_t sample, uint32_t op, uint64_t i)
{
    uint64_t c0 = sample, c1 = i, c2 = 0, c3 = 0;
    uint64_t k0 = seed, k1 = op;

    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        wide p0 = (wide)PHILOX_M0 * c0;
        wide p1 = (wide)PHILOX_M1 * c2;

        c0 = (uint64_t)(p1 >> 64) ^ c1 ^ k0;
        c2 = (uint64_t)(p0 >> 64) ^ c3 ^ k1;
        c1 = (uint64_t)p1;
        c3 = (uint64_t)p0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    return c0;
}

/* Uniform in [0, n) without bias; *counter goes on by the draws used. Source: D. Lemire, "Fast
 * Random Integer Generation in an Interval", 2019. */
static uint64_t draw_below(const struct er_order *order, uint64_t *counter, uint64_t n)
{
    uint64_t unfair = (0 - n) % n; /* 2^64 mod n */

    for (;;) {
        wide m = (wide)er_rng(order->seed, order->epoch, OP_TABLE, (*counter)++) * n;

        if ((uint64_t)m >= unfair)
            return (uint64_t)(m >> 64);
    }
}

static void fill_table(struct er_order *order)
{
    uint64_t counter = 0;

    for (uint64_t i = 0; i < order->n; i++)
        order->table[i] = (uint16_t)i;
    for (uint64_t i = order->n - 1; i > 0; i--) {
        uint64_t j = draw_below(order, &counter, i + 1);
        uint16_t other = order->table[j];

        order->table[j] = order->table[i];
        order->table[i] = other;
    }
}

/* Largest r with r * r <= n. */
static uint64_t square_root(uint64_t n)
{
    uint64_t root = 0;

    for (int bit = 31; bit >= 0; bit--) {
        uint64_t wider = root | (1ull << bit);

        if (wider * wider <= n)
            root = wider;
    }
    return root;
}

void er_order_init(struct er_order *order, uint64_t n, uint64_t seed, uint64_t epoch)
{
    assert(n >= 1);
    order->n = n;
    order->seed = seed;
    order->epoch = epoch;
    order->a = square_root(n);
    order->b = n / order->a + (n % order->a != 0); /* a * b < n + a: walks are rare */
    for (size_t i = 0; i < ER_ARRAY_N(order->keys); i++)
        order->keys[i] = er_rng(seed, epoch, OP_KEYS, i);
    if (n <= ER_ORDER_TABLE_MAX)
        fill_table(order);
}

/* A number in [0, radix) from one half and a round key. Not a cipher: cheap, and mixed well enough
 * over eight rounds for an order of samples. */
static inline uint64_t round_value(uint64_t half, uint64_t key, uint64_t radix)
{
    uint64_t x = half * PHILOX_W0 + key;
    wide square = (wide)x * (x ^ PHILOX_W1);
    uint64_t mixed = (uint64_t)(square >> 64) ^ (uint64_t)square;

    return (uint64_t)(((wide)mixed * radix) >> 64);
}

static uint64_t permute(const struct er_order *order, uint64_t x)
{
    uint64_t left = x / order->b; /* [0, a) */
    uint64_t right = x % order->b;

    for (int round = 0; round < FEISTEL_ROUNDS; round += 2) {
        left += round_value(right, order->keys[round], order->a);
        left -= left >= order->a ? order->a : 0;
        right += round_value(left, order->keys[round + 1], order->b);
        right -= right >= order->b ? order->b : 0;
    }
    return left * order->b + right;
}

uint64_t er_order_at(const struct er_order *order, uint64_t i)
{
    uint64_t x = i;

    assert(i < order->n);
    if (order->n <= ER_ORDER_TABLE_MAX)
        return order->table[i];
    do {
        x = permute(order, x);
    } while (x >= order->n); /* ends: a bijection of [0, a * b) leads back to where i came from */
    return x;
}

uint64_t er_plan_steps(const struct er_plan *plan)
{
    assert(plan->samples >= 1 && plan->global_batch >= 1);
    return plan->samples / plan->global_batch + (plan->samples % plan->global_batch != 0);
}

/* floor(count * rank / size) without overflow: where `rank`'s part begins. */
static uint64_t part_start(uint64_t count, uint64_t rank, uint64_t size)
{
    return count / size * rank + count % size * rank / size;
}

static struct er_range whole_step(const struct er_plan *plan, uint64_t step)
{
    uint64_t steps = er_plan_steps(plan), index = step - 1, left;
    struct er_range range = {.epoch = index / steps};

    assert(step >= 1);
    range.step_first = index % steps * plan->global_batch;
    left = plan->samples - range.step_first;
    range.step_count = left < plan->global_batch ? left : plan->global_batch;
    return range;
}

/* Parts [first, end) of `parts` equal ones. */
static void cut(struct er_range *range, uint64_t first, uint64_t end, uint64_t parts)
{
    range->first = range->step_first + part_start(range->step_count, first, parts);
    range->count = range->step_first + part_start(range->step_count, end, parts) - range->first;
}

struct er_range er_batch(const struct er_plan *plan, uint64_t step, int rank, int size)
{
    struct er_range range = whole_step(plan, step);
    uint64_t ranks = (uint64_t)size, me = (uint64_t)rank, end;

    assert(size >= 1 && rank >= 0 && rank < size);
    if (plan->shards == 0) {
        cut(&range, me, me + 1, ranks);
        return range;
    }
    range.first_shard = (uint32_t)part_start(plan->shards, me, ranks);
    end = part_start(plan->shards, me + 1, ranks);
    range.shards_n = (uint32_t)(end - range.first_shard);
    cut(&range, range.first_shard, end, plan->shards);
    return range;
}

struct er_range er_batch_shard(const struct er_plan *plan, uint64_t step, uint32_t shard)
{
    struct er_range range = whole_step(plan, step);

    assert(shard < plan->shards);
    range.first_shard = shard;
    range.shards_n = 1;
    cut(&range, shard, (uint64_t)shard + 1, plan->shards);
    return range;
}
