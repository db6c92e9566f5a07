/*
 * A worker that reports steps and does nothing else: stepper STEPS [FAIL_AT [UNTIL]]. A step takes
 * a hundredth of a second; any notice ends it, and so does a file UNTIL. With FAIL_AT rank 0 exits
 * with code 3 there, the first time it is started.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/elastic.h"

enum { STEP_MS = 10 };

int main(int argc, char **argv)
{
    uint64_t steps = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    uint64_t fail_at = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    const char *until = argc > 3 ? argv[3] : "";
    struct er_error err = ER_ERROR_INIT;
    struct er_ctx *ctx = NULL;
    int rc = er_open(&ctx, &err);

    if (!rc)
        rc = er_ready(ctx, &err);
    for (uint64_t step = 1;
         !rc && step <= steps && er_notice(ctx) == ER_NOTICE_NONE && access(until, F_OK); step++) {
        poll(NULL, 0, STEP_MS);
        er_progress(ctx, ER_PHASE_FORWARD, step);
        er_progress_figures(ctx, step * 32, 1.0 / (double)step, steps);
        if (step == fail_at && er_world(ctx)->rank == 0 && er_world(ctx)->restarts == 0)
            exit(3);
    }
    if (rc)
        fprintf(stderr, "stepper: %s\n", err.text);
    er_close(ctx);
    return rc != 0;
}
