#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "agent/env.h"

static const char *const INHERITED[] = {"PATH=/bin",
                                        "RANK=77",
                                        "NOTIFY_SOCKET=/run/n",
                                        "WATCHDOG_USEC=1",
                                        "WATCHDOG_PID=2",
                                        "ELASTIC_SOCKET=/x",
                                        "KEEP=a=b",
                                        "DROP=me",
                                        "CHANGE=old",
                                        "=odd",
                                        "NCCL_COMM_BLOCKING=1",
                                        NULL};

static struct er_assignment assignment(void)
{
    struct er_assignment a = {.generation = 3,
                              .run = "00112233445566778899aabbccddeeff",
                              .node_rank = 1,
                              .nnodes = 2,
                              .first_rank = 4,
                              .local_size = 4,
                              .world_size = 8,
                              .role_first = 1,
                              .role_size = 5,
                              .master_addr = "10.0.0.1",
                              .master_port = 29501,
                              .restarts = 2};

    return a;
}

static struct er_env_input input(const struct er_assignment *a)
{
    static const char *const NAMES[] = {"DROP", "CHANGE", "RANK"};
    static const char *const VALUES[] = {NULL, "new", "5000"};

    return (struct er_env_input){.inherited = INHERITED,
                                 .overlay_names = NAMES,
                                 .overlay_values = VALUES,
                                 .overlay_n = 3,
                                 .assignment = a,
                                 .local_rank = 2,
                                 .job = "job",
                                 .role = "trainer",
                                 .node_id = "node-b",
                                 .checkpoint_dir = "/ckpt",
                                 .checkpoint_every = "10m",
                                 .error_file = "/logs/error.json",
                                 .socket = "/run/workers.sock",
                                 .page_fd = 9,
                                 .restart_max = 3};
}

/* Builds, and looks `name` up; how often it is there through ret_times. */
static const char *look_up(const struct er_env_input *in, const char *name, int *ret_times)
{
    static char value[256];
    struct er_buf buf;
    size_t n = 0, length = strlen(name);
    const char *found = NULL, *at;

    *ret_times = 0;
    er_buf_init(&buf, 65536);
    cr_assert_eq(er_env_build(&buf, in, &n, NULL), 0);
    at = buf.data;
    for (size_t i = 0; i < n; i++, at += strlen(at) + 1) {
        if (strncmp(at, name, length) == 0 && at[length] == '=') {
            snprintf(value, sizeof(value), "%s", at + length + 1);
            found = value;
            ++*ret_times;
        }
    }
    cr_assert_eq((size_t)(at - buf.data), buf.len);
    er_buf_done(&buf);
    return found;
}

Test(env, every_name_is_there_once_with_its_value)
{
    static const char *const WANTED[][2] = {
        {"LOCAL_RANK", "2"},
        {"RANK", "6"},
        {"GROUP_RANK", "1"},
        {"GROUP_WORLD_SIZE", "2"},
        {"ROLE_NAME", "trainer"},
        {"ROLE_RANK", "3"},
        {"ROLE_WORLD_SIZE", "5"},
        {"LOCAL_WORLD_SIZE", "4"},
        {"WORLD_SIZE", "8"},
        {"MASTER_ADDR", "10.0.0.1"},
        {"MASTER_PORT", "29501"},
        {"TORCHELASTIC_RUN_ID", "job"},
        {"TORCHELASTIC_RESTART_COUNT", "2"},
        {"TORCHELASTIC_MAX_RESTARTS", "3"},
        {"TORCHELASTIC_USE_AGENT_STORE", "False"},
        {"TORCHELASTIC_ERROR_FILE", "/logs/error.json"},
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
        {"OMP_NUM_THREADS", "1"},
        {"ELASTIC_JOB", "job"},
        {"ELASTIC_RUN", "00112233445566778899aabbccddeeff"},
        {"ELASTIC_GENERATION", "3"},
        {"ELASTIC_NODE_ID", "node-b"},
        {"ELASTIC_SOCKET", "/run/workers.sock"},
        {"ELASTIC_PAGE_FD", "9"},
        {"ELASTIC_CHECKPOINT_DIR", "/ckpt"},
        {"PATH", "/bin"},
        {"KEEP", "a=b"},
        {"CHANGE", "new"},
    };
    struct er_assignment a = assignment();
    struct er_env_input in = input(&a);

    for (size_t i = 0; i < sizeof(WANTED) / sizeof(WANTED[0]); i++) {
        int times;
        const char *value = look_up(&in, WANTED[i][0], &times);

        cr_assert_eq(times, 1, "%s: %d times", WANTED[i][0], times);
        cr_assert_str_eq(value, WANTED[i][1]);
    }
}

Test(env, what_must_not_reach_a_worker_is_removed)
{
    static const char *const GONE[] = {"NOTIFY_SOCKET", "WATCHDOG_USEC",      "WATCHDOG_PID",
                                       "DROP",          "NCCL_COMM_BLOCKING", ""};
    struct er_assignment a = assignment();
    struct er_env_input in = input(&a);

    for (size_t i = 0; i < sizeof(GONE) / sizeof(GONE[0]); i++) {
        int times;

        look_up(&in, GONE[i], &times);
        cr_assert_eq(times, 0, "%s", GONE[i]);
    }
}

Test(env, callers_thread_count_is_kept)
{
    static const char *const WITH[] = {"OMP_NUM_THREADS=4", "TORCH_NCCL_ASYNC_ERROR_HANDLING=0",
                                       NULL};
    struct er_assignment a = assignment();
    struct er_env_input in = input(&a);
    int times;

    in.inherited = WITH;
    cr_assert_str_eq(look_up(&in, "OMP_NUM_THREADS", &times), "4");
    cr_assert_str_eq(look_up(&in, "TORCH_NCCL_ASYNC_ERROR_HANDLING", &times), "0");
    in.inherited = INHERITED;
    a.local_size = 1;
    look_up(&in, "OMP_NUM_THREADS", &times);
    cr_assert_eq(times, 0);
}

Test(env, unlimited_restarts_are_a_number)
{
    struct er_assignment a = assignment();
    struct er_env_input in = input(&a);
    int times;

    in.restart_max = UINT32_MAX;
    cr_assert_str_eq(look_up(&in, "TORCHELASTIC_MAX_RESTARTS", &times), "2147483647");
}

Test(env, virtual_local_rank_maps_one_device)
{
    static const char *const WITH[] = {"CUDA_VISIBLE_DEVICES=7,GPU-abc,3", NULL};
    struct er_assignment a = assignment();
    struct er_env_input in = input(&a);
    struct er_error err = ER_ERROR_INIT;
    struct er_buf buf;
    size_t n;
    int times;

    in.virtual_local_rank = true;
    cr_assert_str_eq(look_up(&in, "CUDA_VISIBLE_DEVICES", &times), "2");
    in.inherited = WITH;
    cr_assert_str_eq(look_up(&in, "CUDA_VISIBLE_DEVICES", &times), "3");
    cr_assert_eq(times, 1);
    cr_assert_str_eq(look_up(&in, "LOCAL_RANK", &times), "0");
    in.local_rank = 1;
    cr_assert_str_eq(look_up(&in, "CUDA_VISIBLE_DEVICES", &times), "GPU-abc");
    in.local_rank = 3;
    er_buf_init(&buf, 65536);
    cr_assert_eq(er_env_build(&buf, &in, &n, &err), ER_E_CONFIG);
    cr_assert(strstr(err.text, "local rank 3"));
    er_buf_done(&buf);
}

Test(env, too_large_is_an_error)
{
    struct er_assignment a = assignment();
    struct er_env_input in = input(&a);
    struct er_buf buf;
    size_t n = 12345;

    er_buf_init(&buf, 100);
    cr_assert_lt(er_env_build(&buf, &in, &n, NULL), 0);
    cr_assert_eq(n, 12345);
    er_buf_done(&buf);
}

Test(env, checkpoint_keys_reach_the_worker_when_there_is_a_folder)
{
    struct er_assignment a = assignment();
    struct er_env_input in = input(&a);
    int times;

    in.checkpoint_every = "10m";
    in.checkpoint_every_steps = 100;
    in.checkpoint_keep_last = 3;
    in.checkpoint_keep_every = 5000;
    in.checkpoint_failures_max = UINT32_MAX;
    cr_expect_str_eq(look_up(&in, "ELASTIC_CHECKPOINT_KEEP_EVERY", &times), "5000");
    cr_expect_str_eq(look_up(&in, "ELASTIC_CHECKPOINT_EVERY", &times), "10m");
    cr_expect_str_eq(look_up(&in, "ELASTIC_CHECKPOINT_EVERY_STEPS", &times), "100");
    cr_expect_str_eq(look_up(&in, "ELASTIC_CHECKPOINT_KEEP_LAST", &times), "3");
    cr_expect_str_eq(look_up(&in, "ELASTIC_CHECKPOINT_FAILURES_MAX", &times), "none");
    in.checkpoint_every_steps = 0;
    cr_expect_str_eq(look_up(&in, "ELASTIC_CHECKPOINT_EVERY_STEPS", &times), "none");
    in.checkpoint_dir = "";
    look_up(&in, "ELASTIC_CHECKPOINT_EVERY", &times);
    cr_expect_eq(times, 0);
}
