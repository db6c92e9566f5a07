/*
 * Ranks without a launcher: the program starts its own, and they sum up their numbers.
 *
 *     build/examples/spawn 4
 *
 * The same `count` serves under elastic-run: call it with er_open()'s context instead.
 */
#include <stdio.h>
#include <stdlib.h>

#include "runtime/comm.h"

static int count(struct er_ctx *ctx, void *arg)
{
    const struct er_world *world = er_world(ctx);
    const char *who = arg;
    struct er_error err = ER_ERROR_INIT;
    struct er_comm *comm = NULL;
    struct er_op *op;
    float sum = (float)(world->rank + 1);
    int rc = er_comm_open(&comm, ctx, NULL, &err);

    if (rc == 0)
        rc = er_comm_wait_ready(comm, &err);
    if (rc == 0)
        rc = er_all_reduce(comm, &sum, 1, ER_F32, ER_SUM, &op, &err);
    if (rc == 0)
        rc = er_op_wait(op, UINT64_MAX, &err);
    if (rc == 0)
        printf("%s %d of %d: the sum is %g\n", who, world->rank, world->size, (double)sum);
    else
        er_fail(ctx, "%s", err.text);
    er_comm_abort(comm);
    return rc != 0;
}

int main(int argc, char **argv)
{
    char who[] = "rank";
    struct er_error err = ER_ERROR_INIT;
    int rc = er_spawn(count, who, argc > 1 ? atoi(argv[1]) : 4, &err);

    if (rc < 0)
        fprintf(stderr, "spawn: %s\n", err.text);
    return rc < 0;
}
