#pragma once
/* What the agent's integration tests share: run a job in a folder of its own. */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/lib/jobs.h"
#include "tests/lib/proc.h"
#include "tests/lib/tap.h"
#include "tests/lib/tempdir.h"
#include "tests/lib/wait.h"

#define CASE_ARGS_MAX 32

/* One case: a folder, a job name that nobody else has, one program. */
struct agent_case {
    char dir[ER_TEST_PATH_MAX];
    char name[64];
    struct er_test_proc p;
};

static inline void case_begin(struct agent_case *c)
{
    er_test_tempdir(c->dir);
    snprintf(c->name, sizeof(c->name), "case-%d", (int)getpid());
}

static inline void case_end(struct agent_case *c)
{
    er_test_done(&c->p);
    er_test_rmtree(c->dir);
}

/* elastic-run --rdzv-id NAME ARGS...; the case's folder is $CASE. */
static inline void case_start(struct agent_case *c, const char *const args[])
{
    const char *argv[CASE_ARGS_MAX + 8] = {er_test_bin("elastic-run"), "--rdzv-id", c->name};
    char env[ER_TEST_PATH_MAX + 8];
    size_t n = 3;

    for (size_t i = 0; args[i] && i < CASE_ARGS_MAX; i++)
        argv[n++] = args[i];
    snprintf(env, sizeof(env), "CASE=%s", c->dir);
    er_test_start(&c->p, argv, (const char *const[]){env, NULL});
}

static inline int case_finish(struct agent_case *c)
{
    return er_test_wait_exit(&c->p, ER_TEST_DEADLINE_MS) ? er_test_exit_code(&c->p) : -1;
}

static inline int case_run(struct agent_case *c, const char *const args[])
{
    case_start(c, args);
    return case_finish(c);
}

#define ARGS(...)  ((const char *const[]){__VA_ARGS__, NULL})
#define SH(script) "sh", "-c", (script)

/* A job file in the case's folder; `text` follows its name and command. Returns its path. */
static inline const char *case_job(struct agent_case *c, const char *command, const char *text)
{
    static char path[ER_TEST_PATH_MAX + 16];
    char job[8192];

    snprintf(path, sizeof(path), "%s/job.yaml", c->dir);
    snprintf(job, sizeof(job), "name: %s\ncommand: %s\n%s", c->name, command, text);
    er_test_write_file(path, job);
    return path;
}

/* Runs a job file (already written) to its end. */
static inline int case_run_job(struct agent_case *c, const char *path)
{
    char env[ER_TEST_PATH_MAX + 8];

    snprintf(env, sizeof(env), "CASE=%s", c->dir);
    er_test_start(&c->p, ARGS(er_test_bin("elastic-run"), path), (const char *const[]){env, NULL});
    return case_finish(c);
}

static inline const char *case_path(const struct agent_case *c, const char *file)
{
    static char paths[8][2 * ER_TEST_PATH_MAX];
    static unsigned next;
    char *path = paths[next++ % 8];

    snprintf(path, sizeof(paths[0]), "%.*s/%.200s", ER_TEST_PATH_MAX - 1, c->dir, file);
    return path;
}

static inline bool case_has(const struct agent_case *c, const char *file)
{
    return access(case_path(c, file), F_OK) == 0;
}

/* Output of a program as comment lines of the report. */
static inline void case_note(const char *text)
{
    while (*text) {
        size_t n = strcspn(text, "\n");

        er_tap_note("%.*s", (int)n, text);
        text += n + (text[n] == '\n');
    }
}

static inline bool process_gone(void *user)
{
    pid_t pid = *(pid_t *)user;

    return kill(pid, 0) < 0;
}

/* The number in a file that a worker of the case writes. */
static inline pid_t case_pid(const struct agent_case *c, const char *file)
{
    char *text = er_test_read_file(case_path(c, file));
    pid_t pid = text ? (pid_t)atoi(text) : 0;

    free(text);
    return pid;
}

/* What a file of the case's folder holds. */
static inline bool case_file_is(const struct agent_case *c, const char *file, const char *text)
{
    char *found = er_test_read_file(case_path(c, file));
    bool same = found && strcmp(found, text) == 0;

    if (!same)
        case_note(found ? found : "(missing)");
    free(found);
    return same;
}

/* The agent of a guard that runs, its first child (keepers of a managed etcd come behind it); 0: it
 * has none (yet). */
static inline pid_t agent_of(pid_t guard)
{
    char path[64], *text;
    pid_t child;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)guard, (int)guard);
    text = er_test_read_file(path);
    child = text ? (pid_t)atoi(text) : 0;
    free(text);
    return child;
}
