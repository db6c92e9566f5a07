#include "tests/lib/small_net.h"

#include "runtime/elastic.h"
#include "trainer/sampler.h"

float er_test_noise(uint64_t a, uint32_t op, uint64_t i)
{
    return (float)((double)(er_rng(4, a, op, i) >> 11) * 0x1p-52 - 1.0);
}

/* The part of libelastic that the fake world leaves to its users; nobody is told of anything here.
 */
int er_commit(struct er_ctx *ctx, const struct er_commit *commit, struct er_error *err)
{
    return 0;
}

int er_loaded(struct er_ctx *ctx, uint64_t step, const char *path, const char *source,
              const char *skipped, struct er_error *err)
{
    return 0;
}
