/* node.numa_binding on the machine that the test runs on. */
#include <sched.h>

#include "tests/integration/agent_case.h"

#define ALLOWED "grep Cpus_allowed_list /proc/self/status | cut -f 2"

static void workers_keep_to_their_cpus(void)
{
    struct agent_case c = {0};
    cpu_set_t one;
    char line[16];

    case_begin(&c);
    CPU_ZERO(&one);
    er_tap_require(sched_getaffinity(0, sizeof(one), &one) == 0);
    for (size_t cpu = 0, kept = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &one))
            continue;
        if (kept++ == 0)
            snprintf(line, sizeof(line), "%zu\n", cpu);
        else
            CPU_CLR(cpu, &one);
    }
    /* The agent's own mask is the limit. */
    er_tap_require(sched_setaffinity(0, sizeof(one), &one) == 0);
    er_tap_check(case_run(&c, ARGS("--numa-binding", "exclusive", SH(ALLOWED))) == 0);
    er_tap_check(strcmp(er_test_out(&c.p), line) == 0);
    er_test_done(&c.p);
    er_tap_check(case_run(&c, ARGS("--numa-binding", "core-complex", "--nproc-per-node", "2",
                                   SH(ALLOWED))) == 0);
    er_tap_check(strlen(er_test_out(&c.p)) == 2 * strlen(line));
    er_test_done(&c.p);
    er_tap_check(
        case_run(&c, ARGS("--numa-binding", "exclusive", "--nproc-per-node", "2", "true")) == 78);
    er_tap_check(strstr(er_test_err(&c.p), "--numa-binding: exclusive: NUMA node ") != NULL);
    er_tap_check(strstr(er_test_err(&c.p), " has 1 usable core for 2 workers") != NULL);
    case_end(&c);
}

static void dry_run_shows_the_cpus(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(case_run(&c, ARGS("--numa-binding", "node", "--dry-run", "true")) == 0);
    er_tap_check(strstr(er_test_out(&c.p), "\n  cpus: \"") != NULL);
    er_test_done(&c.p);
    er_tap_check(case_run(&c, ARGS("--dry-run", "true")) == 0);
    er_tap_check(strstr(er_test_out(&c.p), "cpus:") == NULL);
    case_end(&c);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case CASES[] = {
        {"workers_keep_to_their_cpus", workers_keep_to_their_cpus, 0},
        {"dry_run_shows_the_cpus", dry_run_shows_the_cpus, 0},
    };

    return er_tap_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
