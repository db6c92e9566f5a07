/* cgroup files as the kernel would have them, in a folder of our own: limits and deaths by memory.
 */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/cgroup.h"
#include "agent/exit.h"
#include "base/buf.h"
#include "base/file.h"

static const struct er_limits NO_LIMITS = {.memory_bytes = UINT64_MAX, .pids = UINT32_MAX};

static char root[64];

static void put(const char *folder, const char *file, const char *text)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/%s", root, folder);
    cr_assert_eq(er_mkdir_all(path, 0755, NULL), 0);
    snprintf(path, sizeof(path), "%s/%s/%s", root, folder, file);
    cr_assert_eq(er_file_replace(path, text, strlen(text), 0644, NULL), 0);
}

static const char *get(const char *file)
{
    static struct er_buf text;
    char path[256];

    er_buf_done(&text);
    er_buf_init(&text, 4096);
    snprintf(path, sizeof(path), "%s/%s", root, file);
    return er_file_read(path, &text, NULL) ? "(none)" : er_buf_str(&text);
}

/* The kernel makes these with the folder. */
static void begin(void)
{
    strcpy(root, "/tmp/er-cgroup-XXXXXX");
    cr_assert(mkdtemp(root));
    put("g", "cgroup.subtree_control", "");
    put("g/w0", "memory.max", "");
    put("g/w0", "memory.oom.group", "");
    put("g/w0", "memory.swap.max", "");
    put("g/w0", "cpu.max", "");
    put("g/w0", "pids.max", "");
}

static void end(void)
{
    get("");
    er_remove_all(root, NULL);
}

static void at(struct er_cgroup *cgroup, const struct er_limits *limits)
{
    char path[80];

    snprintf(path, sizeof(path), "%s/g", root);
    er_cgroup_at(cgroup, path, limits);
}

Test(cgroup, limits_are_written_for_each_worker, .init = begin, .fini = end)
{
    const struct er_limits limits = {.memory_bytes = 3ull << 30, .cpus = 2.5, .pids = 100};
    struct er_cgroup cgroup;
    int fd = -1;

    at(&cgroup, &limits);
    cr_assert_eq(cgroup.ops->begin(&cgroup, NULL), 0);
    cr_expect_str_eq(get("g/cgroup.subtree_control"), "+memory +cpu +pids");
    cr_assert_eq(cgroup.ops->worker(&cgroup, 0, &fd, NULL), 0);
    cr_expect_geq(fd, 0);
    close(fd);
    cr_expect_str_eq(get("g/w0/memory.max"), "3221225472");
    cr_expect_str_eq(get("g/w0/memory.oom.group"), "1");
    cr_expect_str_eq(get("g/w0/memory.swap.max"), "0");
    cr_expect_str_eq(get("g/w0/cpu.max"), "250000 100000");
    cr_expect_str_eq(get("g/w0/pids.max"), "100");
    cgroup.ops->end(&cgroup);
}

Test(cgroup, only_what_is_limited_is_asked_for, .init = begin, .fini = end)
{
    struct er_limits limits = NO_LIMITS;
    struct er_cgroup cgroup;
    int fd = -1;

    limits.pids = 7;
    at(&cgroup, &limits);
    cr_assert_eq(cgroup.ops->begin(&cgroup, NULL), 0);
    cr_expect_str_eq(get("g/cgroup.subtree_control"), "+pids");
    cr_assert_eq(cgroup.ops->worker(&cgroup, 0, &fd, NULL), 0);
    close(fd);
    cr_expect_str_eq(get("g/w0/memory.max"), "");
    cr_expect_str_eq(get("g/w0/pids.max"), "7");
    cgroup.ops->end(&cgroup);
}

Test(cgroup, a_limit_that_cannot_be_written_is_told, .init = begin, .fini = end)
{
    const struct er_limits limits = {.memory_bytes = 1, .pids = UINT32_MAX};
    struct er_error err = ER_ERROR_INIT;
    struct er_cgroup cgroup;
    int fd = -1;

    at(&cgroup, &limits);
    cr_assert_eq(cgroup.ops->begin(&cgroup, NULL), 0);
    cr_assert_lt(cgroup.ops->worker(&cgroup, 1, &fd, &err), 0);
    cr_expect_eq(fd, -1);
    cr_expect_not_null(strstr(err.text, "/g/w1/memory.max"), "%s", err.text);
    cgroup.ops->end(&cgroup);
}

Test(cgroup, deaths_by_memory_are_counted_where_they_happen, .init = begin, .fini = end)
{
    const struct er_limits limits = {.memory_bytes = 1 << 20, .pids = UINT32_MAX};
    struct er_cgroup cgroup;

    at(&cgroup, &limits);
    cr_expect_eq(cgroup.ops->oom_kills(&cgroup, 0), 0); /* no file: memory is not counted */
    put("g", "memory.events", "low 0\nhigh 0\nmax 9\noom 3\noom_kill 3\noom_group_kill 2\n");
    put("g/w0", "memory.events", "low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\noom_group_kill 1\n");
    put("g/w1", "memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n");
    cr_expect_eq(cgroup.ops->oom_kills(&cgroup, 0), 1);
    cr_expect_eq(cgroup.ops->oom_kills(&cgroup, 1), 0);
    at(&cgroup, &NO_LIMITS);
    cr_expect_eq(cgroup.ops->oom_kills(&cgroup, 0), 3);
    /* And what the agent makes of it: SIGKILL alone is nobody's proof. */
    cr_expect_eq(er_exit_classify(9, 0, true).kind, ER_EXIT_OOM);
    cr_expect_eq(er_exit_classify(9, 0, false).kind, ER_EXIT_SIGNALED);
    cr_expect_eq(er_exit_classify(15, 0, true).kind, ER_EXIT_SIGNALED);
}

Test(cgroup, limits_without_means_are_refused)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_limits limits = NO_LIMITS;

    cr_expect_eq(er_cgroup_check(&limits, &err), 0);
    limits.pids = 10;
    if (er_cgroup_check(&limits, &err) == 0)
        cr_skip_test("this test runs in a delegated cgroup");
    cr_expect_eq(err.code, ER_E_CONFIG);
    cr_expect_not_null(strstr(err.text, "limits.pids: "), "%s", err.text);
}
