#include "trainer/numerics.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "trainer/engine_ops.h"
#include "trainer/matmul.h"
#include "trainer/sync.h"

void er_numerics_describe(const struct er_engine *engine, char ret_text[ER_NUMERICS_TEXT_MAX])
{
    const struct er_device_info *gpu = engine->device ? er_device_info(engine->device) : NULL;

    memset(ret_text, 0, ER_NUMERICS_TEXT_MAX);
    if (gpu)
        snprintf(ret_text, ER_NUMERICS_TEXT_MAX,
                 "elastic-train gcc %.40s, %s, compute %d.%d, cuda %d, products %s", __VERSION__,
                 er_engine_describe(engine), gpu->capability / 10, gpu->capability % 10,
                 gpu->runtime_version, er_dtype_name(engine->products));
    else
        snprintf(ret_text, ER_NUMERICS_TEXT_MAX, "elastic-train gcc %.40s, %.100s", __VERSION__,
                 er_matmul_describe());
}

int er_numerics_agree(struct er_comm *comm, const struct er_engine *engine, struct er_error *err)
{
    size_t size = (size_t)er_comm_size(comm);
    ER_CLEANUP(er_cleanup_free) char *all = malloc(size * ER_NUMERICS_TEXT_MAX);
    char mine[ER_NUMERICS_TEXT_MAX];
    int rc;

    if (!all)
        return er_error_set(err, -ENOMEM, "numerics of %zu ranks", size);
    er_numerics_describe(engine, mine);
    rc = er_sync_gather(comm, mine, sizeof(mine), all, err);
    for (size_t rank = 1; rc == 0 && rank < size; rank++) {
        const char *other = all + rank * ER_NUMERICS_TEXT_MAX;

        if (memcmp(all, other, ER_NUMERICS_TEXT_MAX) != 0)
            rc = er_error_set(err, ER_E_MISMATCH,
                              "exact mode: rank 0 computes with '%s', rank %zu with '%s'", all,
                              rank, other);
    }
    return rc;
}
