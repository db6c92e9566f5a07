/*
 * The three mechanisms of a job in 30 lines: ranks, the key-value store, a barrier.
 *
 *     elastic-run --nproc-per-node 3 build/examples/hello
 */
#include <stdio.h>

#include "runtime/elastic.h"

#define MINUTE_US 60000000u

int main(void)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_ctx *ctx = NULL;
    char name[64] = "";
    size_t n;
    int rc = er_open(&ctx, &err);

    if (rc == 0 && er_world(ctx)->rank == 0)
        rc = er_kv_put(ctx, "greeting", "hello", 5, &err);
    if (rc == 0)
        rc = er_kv_get(ctx, "greeting", name, sizeof(name) - 1, &n, MINUTE_US, &err);
    if (rc == 0)
        printf("%s from rank %d of %d\n", name, er_world(ctx)->rank, er_world(ctx)->size);
    if (rc == 0)
        rc = er_barrier(ctx, "everybody has spoken", MINUTE_US, &err);
    if (rc != 0) {
        fprintf(stderr, "hello: %s\n", rc > 0 ? "nobody greets" : err.text);
        er_fail(ctx, "%s", rc > 0 ? "nobody greets" : err.text);
    }
    er_close(ctx);
    return rc != 0;
}
