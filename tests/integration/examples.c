/* The small examples, run as their comments say. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/lib/proc.h"
#include "tests/lib/tap.h"
#include "tests/lib/wait.h"

static void finish(struct er_test_proc *p, int code)
{
    er_tap_require(er_test_wait_exit(p, ER_TEST_DEADLINE_MS));
    if (!er_tap_check(er_test_exit_code(p) == code))
        er_tap_note("exit code %d: %s", er_test_exit_code(p), er_test_err(p));
}

static void spawn_starts_ranks_that_sum_up(void)
{
    struct er_test_proc p;

    er_test_start(&p, (const char *[]){er_test_bin("examples/spawn"), "3", NULL}, NULL);
    finish(&p, 0);
    for (int rank = 0; rank < 3; rank++) {
        char line[64];

        snprintf(line, sizeof(line), "rank %d of 3: the sum is 6\n", rank);
        er_tap_check(strstr(er_test_out(&p), line));
    }
    er_test_done(&p);
    er_test_start(&p, (const char *[]){er_test_bin("examples/spawn"), "0", NULL}, NULL);
    finish(&p, 1);
    er_tap_check(strstr(er_test_err(&p), "spawn: 0 ranks: 1 to 1024 can be started"));
    er_test_done(&p);
}

static double last_loss(const struct er_test_proc *p)
{
    const char *at = strstr(er_test_out(p), "step=400 loss=");

    er_tap_require(at);
    return strtod(at + strlen("step=400 loss="), NULL);
}

static void a_loop_of_ones_own_learns_with_any_number_of_workers(void)
{
    static const char *const workers[] = {"1", "2", "3"};
    struct er_test_proc p;
    double alone, loss;

    er_test_start(&p, (const char *[]){er_test_bin("examples/own_loop"), NULL},
                  (const char *[]){"ELASTIC_SOCKET", NULL});
    finish(&p, 0);
    alone = last_loss(&p);
    er_tap_check(alone < 0.05);
    er_test_done(&p);
    for (size_t i = 0; i < sizeof(workers) / sizeof(workers[0]); i++) {
        er_test_start(&p,
                      (const char *[]){er_test_bin("elastic-run"), "--nproc-per-node", workers[i],
                                       er_test_bin("examples/own_loop"), NULL},
                      NULL);
        finish(&p, 0);
        loss = last_loss(&p);
        if (!er_tap_check(loss > alone - 1e-4 && loss < alone + 1e-4))
            er_tap_note("%s workers: %g, alone %g", workers[i], loss, alone);
        er_test_done(&p);
    }
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"spawn_starts_ranks_that_sum_up", spawn_starts_ranks_that_sum_up, 0},
        {"a_loop_of_ones_own_learns_with_any_number_of_workers",
         a_loop_of_ones_own_learns_with_any_number_of_workers, 0},
    };

    return er_tap_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
