/* Memory pool: setting up 400 MiB and writing all of it once, against 100 ms once the machine has
 * the pages at hand. */
#include <stdlib.h>
#include <string.h>

#include "base/pool.h"
#include "bench/lib/bench.h"

static const size_t POOL_BYTES = (size_t)400 << 20;

/* The write through the first page fault is what a fresh mapping makes slow. */
static void write_all(void *memory, size_t bytes)
{
    memset(memory, 0x5a, bytes);
    __asm__ volatile("" : : "r"(memory) : "memory"); /* keep the write */
}

static double pool_ms(void)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_pool *pool;
    double start = bench_now_ms();

    if (er_pool_new(&pool, POOL_BYTES, &err) < 0)
        bench_fail("%s", err.text);
    void *memory = er_pool_alloc(pool, POOL_BYTES, 64);
    if (!memory)
        bench_fail("the pool does not hold its own size");
    write_all(memory, POOL_BYTES);
    double took = bench_now_ms() - start;
    er_pool_free(pool);
    return took;
}

/* What one would do without a pool: malloc and write. */
static double malloc_ms(void)
{
    double start = bench_now_ms();
    void *memory = malloc(POOL_BYTES);
    if (!memory)
        bench_fail("malloc");
    write_all(memory, POOL_BYTES);
    double took = bench_now_ms() - start;
    free(memory);
    return took;
}

int main(void)
{
    static struct bench_series cold, warm, plain;
    size_t runs = bench_runs(20, 8);

    bench_add(&cold, pool_ms());
    for (size_t i = 0; i < runs; i++) {
        bench_add(&warm, pool_ms());
        bench_add(&plain, malloc_ms());
    }
    bench_emit("pool_400mib_first_ms", &cold);
    bench_emit("pool_400mib_ms", &warm);
    bench_emit("malloc_400mib_ms", &plain);
    return 0;
}
