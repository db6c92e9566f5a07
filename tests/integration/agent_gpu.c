/* Workers by the number of GPUs, told by a library that stands in for NVML. */
#include "tests/integration/agent_case.h"

#define TWO  "gpu GPU-aa11 00000000:17:00.0\ngpu GPU-bb22 00000000:3B:00.0\n"
#define MIGS "gpu GPU-aa11 00000000:17:00.0\nmig MIG-x\nmig MIG-y\n"

/* Starts ARGS with what the library shall tell and CUDA_VISIBLE_DEVICES (NULL: not set). */
static void start_on(struct agent_case *c, const char *gpus, const char *visible,
                     const char *const args[])
{
    char library[ER_TEST_PATH_MAX + 32], fake[ER_TEST_PATH_MAX + 32], devices[256];
    const char *argv[CASE_ARGS_MAX + 8] = {er_test_bin("elastic-run"), "--rdzv-id", c->name};
    size_t n = 3;

    er_test_write_file(case_path(c, "gpus"), gpus);
    snprintf(library, sizeof(library), "LD_LIBRARY_PATH=%s", er_test_bin("tests/lib"));
    snprintf(fake, sizeof(fake), "FAKE_NVML=%s", case_path(c, "gpus"));
    snprintf(devices, sizeof(devices), visible ? "CUDA_VISIBLE_DEVICES=%s" : "%s",
             visible ? visible : "CUDA_VISIBLE_DEVICES");
    for (size_t i = 0; args[i] && i < CASE_ARGS_MAX; i++)
        argv[n++] = args[i];
    er_test_start(&c->p, argv, (const char *const[]){library, fake, devices, NULL});
}

static int run_on(struct agent_case *c, const char *gpus, const char *visible,
                  const char *const args[])
{
    start_on(c, gpus, visible, args);
    return case_finish(c);
}

static void workers_are_as_many_as_visible_gpus(void)
{
    static const struct {
        const char *gpus, *visible, *size;
    } CASES[] = {
        {TWO, NULL, "2\n2\n"},  {TWO, "1", "1\n"},
        {TWO, "GPU-bb", "1\n"}, {TWO, "0,1", "2\n2\n"},
        {TWO, "1,7,0", "1\n"},  {MIGS, NULL, "1\n"},
        {MIGS, "MIG-x", "1\n"}, {MIGS, "MIG-x,MIG-y", "1\n"},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
        struct agent_case c = {0};

        case_begin(&c);
        er_tap_check(run_on(&c, CASES[i].gpus, CASES[i].visible,
                            ARGS("--nproc-per-node", "gpu", SH("echo $LOCAL_WORLD_SIZE"))) == 0);
        er_tap_check(strcmp(er_test_out(&c.p), CASES[i].size) == 0);
        case_note(er_test_err(&c.p));
        case_end(&c);
    }
}

static void each_worker_gets_a_mig_device_of_its_own(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(run_on(&c, MIGS, "MIG-y,MIG-x",
                        ARGS("--nproc-per-node", "auto", "--virtual-local-rank",
                             SH("echo $RANK $CUDA_VISIBLE_DEVICES"))) == 0);
    er_tap_check(strstr(er_test_out(&c.p), "0 MIG-y\n") != NULL);
    er_tap_check(strstr(er_test_out(&c.p), "1 MIG-x\n") != NULL);
    case_end(&c);
}

static void gpu_without_a_gpu_is_refused_auto_is_one(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    er_tap_check(run_on(&c, TWO, "-1", ARGS("--nproc-per-node", "gpu", "true")) == 78);
    er_tap_check(strstr(er_test_err(&c.p), "--nproc-per-node: gpu, but CUDA_VISIBLE_DEVICES='-1' "
                                           "leaves none of this host's GPUs") != NULL);
    er_test_done(&c.p);
    er_tap_check(run_on(&c, "", NULL, ARGS("--nproc-per-node", "gpu", "true")) == 78);
    er_tap_check(strstr(er_test_err(&c.p), "gpu, but this host has none") != NULL);
    er_test_done(&c.p);
    er_tap_check(run_on(&c, "", NULL, ARGS("--nproc-per-node", "auto", SH("echo $WORLD_SIZE"))) ==
                 0);
    er_tap_check(strcmp(er_test_out(&c.p), "1\n") == 0);
    case_end(&c);
}

static void the_specs_environment_counts(void)
{
    struct agent_case c = {0};
    const char *job;

    case_begin(&c);
    job = case_job(&c, "[sh, -c, 'echo $WORLD_SIZE']",
                   "nproc_per_node: gpu\nenv: {CUDA_VISIBLE_DEVICES: \"0\"}\nlog: {dir: none}\n");
    er_tap_check(run_on(&c, TWO, "0,1", ARGS("--print-config", job)) == 0);
    er_test_done(&c.p);
    er_tap_check(run_on(&c, TWO, "0,1", ARGS(job)) == 0);
    er_tap_check(strstr(er_test_out(&c.p), "1\n") != NULL);
    case_end(&c);
}

/* A worker whose memory stays taken after its end, until the file says otherwise. */
#define FAILS_FIRST                                                                                \
    SH("[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; (cat $FAKE_NVML; echo pid $$) > "           \
       "$FAKE_NVML.new; mv $FAKE_NVML.new $FAKE_NVML; exit 1")

static void a_respawn_waits_for_gpu_memory(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    start_on(&c, TWO, "1", ARGS("--nproc-per-node", "gpu", "--max-restarts", "1", FAILS_FIRST));
    er_tap_require(er_test_wait_err(&c.p,
                                    "waiting for the GPU memory of 1 ended worker to be "
                                    "released (at most 50s)",
                                    ER_TEST_DEADLINE_MS));
    er_test_write_file(case_path(&c, "gpus"), TWO);
    er_tap_check(case_finish(&c) == 0);
    er_tap_check(strstr(er_test_err(&c.p), "still taken") == NULL);
    case_end(&c);
}

static void a_respawn_does_not_wait_for_ever(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    start_on(&c, TWO, "1",
             ARGS("--nproc-per-node", "gpu", "--max-restarts", "1", "--set",
                  "restart.gpu_memory_timeout=300ms", FAILS_FIRST));
    er_tap_check(case_finish(&c) == 0);
    er_tap_check(strstr(er_test_err(&c.p), "still taken") != NULL);
    case_end(&c);
}

static void a_wait_for_gpu_memory_can_be_stopped(void)
{
    struct agent_case c = {0};

    case_begin(&c);
    start_on(&c, TWO, "1", ARGS("--nproc-per-node", "gpu", "--max-restarts", "1", FAILS_FIRST));
    er_tap_require(er_test_wait_err(&c.p, "waiting for the GPU memory", ER_TEST_DEADLINE_MS));
    kill(c.p.pid, SIGTERM);
    er_tap_check(case_finish(&c) == 75);
    case_end(&c);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case CASES[] = {
        {"workers_are_as_many_as_visible_gpus", workers_are_as_many_as_visible_gpus, 0},
        {"each_worker_gets_a_mig_device_of_its_own", each_worker_gets_a_mig_device_of_its_own, 0},
        {"gpu_without_a_gpu_is_refused_auto_is_one", gpu_without_a_gpu_is_refused_auto_is_one, 0},
        {"the_specs_environment_counts", the_specs_environment_counts, 0},
        {"a_respawn_waits_for_gpu_memory", a_respawn_waits_for_gpu_memory, 0},
        {"a_respawn_does_not_wait_for_ever", a_respawn_does_not_wait_for_ever, 0},
        {"a_wait_for_gpu_memory_can_be_stopped", a_wait_for_gpu_memory_can_be_stopped, 0},
    };

    return er_tap_main(argc, argv, CASES, sizeof(CASES) / sizeof(CASES[0]));
}
