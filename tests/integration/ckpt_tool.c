/* elastic-ctl ckpt: list, verify, inspect, gc, export, on real folders. */
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "ckpt/safetensors.h"
#include "tests/lib/ckpt_world.h"
#include "tests/lib/proc.h"
#include "tests/lib/tap.h"
#include "tests/lib/wait.h"

static struct er_cw world;

/* Exit status; `want` must be in its output (stdout or stderr). */
static int run(const char *want, const char *const more[])
{
    const char *argv[16] = {er_test_bin("elastic-ctl"), "ckpt"};
    struct er_test_proc p;
    int code;

    for (size_t i = 0; i < 13 && more[i]; i++)
        argv[2 + i] = more[i];
    code = er_test_run(&p, argv, NULL, 30000);
    if (!er_tap_check(!want || strstr(er_test_out(&p), want) || strstr(er_test_err(&p), want)))
        er_tap_note("want '%s', got out '%s' err '%s'", want, er_test_out(&p), er_test_err(&p));
    er_test_done(&p);
    return code;
}

#define RUN(want, ...) run(want, (const char *const[]){__VA_ARGS__, NULL})

static void begin(void)
{
    er_test_tempdir(world.dir);
    world.opts = (struct er_ckpt_opts){.generation = 4};
    for (uint64_t step = 10; step <= 40; step += 10)
        er_tap_require(er_cw_save(&world, 2, step, (float)step) == 0);
}

static void damage(uint64_t step)
{
    char path[PATH_MAX], c = 0;
    int fd;

    snprintf(path, sizeof(path), "%s/step-%012llu/shard-1-of-2.safetensors", world.dir,
             (unsigned long long)step);
    fd = open(path, O_RDWR | O_CLOEXEC);
    er_tap_require(fd >= 0 && pread(fd, &c, 1, 4100) == 1);
    c ^= 4;
    er_tap_require(pwrite(fd, &c, 1, 4100) == 1);
    close(fd);
}

static void verbs_answer_and_exit_as_documented(void)
{
    begin();
    er_tap_check(RUN("generation 4, 2 ranks", "list", world.dir) == 0);
    er_tap_check(RUN("\"step\": 20", "list", "--json", world.dir) == 0);
    er_tap_check(RUN("step 40: ok", "verify", world.dir) == 0);
    er_tap_check(RUN("layer.weight", "inspect", world.dir, "--step", "30") == 0);
    er_tap_check(RUN("\"shape\"", "inspect", world.dir, "--json") == 0);
    damage(40);
    er_tap_check(RUN("digest does not match", "verify", world.dir) == 1);
    er_tap_check(RUN("step 30: ok", "verify", "--all", world.dir) == 1);
    er_tap_check(RUN("\"ok\": false", "verify", "--all", "--json", world.dir) == 1);
    er_tap_check(RUN("no checkpoint of step 7", "verify", "--step=7", world.dir) == 66);
    er_tap_check(RUN("No such file", "list", "/nowhere/at/all") == 66);
    er_tap_check(RUN("unknown verb", "dance") == 64);
    er_tap_check(RUN("unknown option", "list", "--jason", world.dir) == 64);
    er_tap_check(RUN("operand is missing", "export", world.dir) == 64);
    er_tap_check(RUN("--step: ", "inspect", world.dir, "--step", "-3") == 64);
    er_tap_check(RUN("'gc' has no option --step", "gc", world.dir, "--step=10") == 64);
    er_tap_check(RUN("exclude each other", "verify", world.dir, "--step=10", "--all") == 64);
    er_tap_check(RUN("exit codes:", "gc", "--help") == 0);
    er_test_rmtree(world.dir);
}

static void gc_keeps_the_newest_that_verifies(void)
{
    char leftover[PATH_MAX];

    begin();
    damage(40);
    snprintf(leftover, sizeof(leftover), "%s/.step-000000000050.g3.00000000000000ff.tmp",
             world.dir);
    er_tap_require(mkdir(leftover, 0777) == 0);
    er_tap_check(RUN("needs --keep-last", "gc", world.dir) == 64);
    er_tap_check(RUN("would remove step 10", "gc", "--keep-last=2", "--dry-run", world.dir) == 0);
    er_tap_check(er_cw_listed(&world) == 4 && access(leftover, F_OK) == 0);
    er_tap_check(RUN("removed step 20", "gc", "--keep-last=1", world.dir) == 0);
    er_tap_check(er_cw_listed(&world) == 2 &&
                 access(leftover, F_OK) != 0); /* 30, and 40 as it is */
    damage(30);
    er_tap_check(RUN("nothing is removed", "gc", "--keep-last=1", world.dir) == 1);
    er_tap_check(er_cw_listed(&world) == 2);
    er_test_rmtree(world.dir);
}

static atomic_bool saving;

static void *save_and_remove(void *unused)
{
    (void)unused;
    world.opts.keep_last = 1;
    for (uint64_t step = 50; atomic_load(&saving); step += 10)
        er_tap_check(er_cw_save(&world, 1, step, 1) == 0);
    world.opts.keep_last = 0;
    return NULL;
}

/* What was removed while it was looked at is no reason to say that nothing verifies. */
static void several_gcs_beside_a_job_find_one_that_verifies(void)
{
    enum { GCS = 3, ROUNDS = 8 };
    const char *argv[] = {
        er_test_bin("elastic-ctl"), "ckpt", "gc", "--keep-last=1", world.dir, NULL};
    pthread_t thread;

    begin();
    atomic_store(&saving, true);
    er_tap_require(pthread_create(&thread, NULL, save_and_remove, NULL) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        struct er_test_proc gcs[GCS];

        for (int i = 0; i < GCS; i++)
            er_test_start(&gcs[i], argv, NULL);
        for (int i = 0; i < GCS; i++) {
            er_tap_require(er_test_wait_exit(&gcs[i], 60000));
            if (!er_tap_check(er_test_exit_code(&gcs[i]) == 0))
                er_tap_note("%s", er_test_err(&gcs[i]));
            er_test_done(&gcs[i]);
        }
    }
    atomic_store(&saving, false);
    pthread_join(thread, NULL);
    er_tap_check(er_cw_listed(&world) == 1);
    er_test_rmtree(world.dir);
}

/* A job that was restarted and has not saved since: its fence is newer than any checkpoint. */
static void gc_works_beside_a_newer_generation(void)
{
    char path[PATH_MAX];

    begin();
    snprintf(path, sizeof(path), "%s/.fence-g5", world.dir);
    er_test_write_file(path, "");
    snprintf(path, sizeof(path), "%s/.step-000000000050.g5.00000000000000ff.tmp", world.dir);
    er_tap_require(mkdir(path, 0777) == 0);
    er_tap_check(RUN("removed step 30", "gc", "--keep-last=1", world.dir) == 0);
    er_tap_check(er_cw_listed(&world) == 1);
    er_tap_check(access(path, F_OK) == 0); /* that generation may be at work on it */
    er_test_rmtree(world.dir);
}

static void step_path(uint64_t step, const char *file, char ret[PATH_MAX])
{
    snprintf(ret, PATH_MAX, "%s/step-%012llu%s", world.dir, (unsigned long long)step, file);
}

static void a_spoilt_folder_gets_one_clear_answer(void)
{
    char path[PATH_MAX], other[PATH_MAX];

    begin();
    step_path(40, "/shard-1-of-2.safetensors", path);
    er_tap_require(unlink(path) == 0);
    er_tap_check(RUN("is missing", "verify", world.dir) == 1);
    er_tap_check(RUN("is missing", "export", world.dir, "x.safetensors") == 1);
    er_tap_require(mkfifo(path, 0666) == 0);
    er_tap_check(RUN("is not a file", "verify", world.dir) == 1);
    step_path(40, "/manifest.json", path);
    er_tap_require(unlink(path) == 0 && mkfifo(path, 0666) == 0);
    er_tap_check(RUN("is not a file", "list", world.dir) == 0);
    er_tap_check(RUN("is not a file", "inspect", world.dir) == 1);
    step_path(30, "", path);
    step_path(50, "", other);
    er_tap_require(rename(path, other) == 0);
    er_tap_check(RUN("holds step 30, somebody renamed it", "verify", world.dir) == 1);
    er_tap_check(RUN("removed step 10", "gc", "--keep-last=1", world.dir) == 0);
    er_test_rmtree(world.dir);
}

/* Not UTF-8, which JSON cannot hold. */
static void any_name_of_a_folder_is_answered_in_json(void)
{
    char other[PATH_MAX];

    begin();
    snprintf(other, sizeof(other), "%s\xff", world.dir);
    er_tap_require(rename(world.dir, other) == 0);
    er_tap_check(RUN("\"step\": 40", "list", "--json", other) == 0);
    er_tap_require(rename(other, world.dir) == 0);
    er_test_rmtree(world.dir);
}

static void an_answer_that_cannot_be_written_is_a_failure(void)
{
    char command[2 * PATH_MAX];
    struct er_test_proc p;

    begin();
    snprintf(command, sizeof(command), "%s ckpt list %s >/dev/full", er_test_bin("elastic-ctl"),
             world.dir);
    er_tap_check(er_test_run(&p, (const char *[]){"/bin/sh", "-c", command, NULL}, NULL, 30000) ==
                 74);
    er_tap_check(strstr(er_test_err(&p), "No space left") != NULL);
    er_test_done(&p);
    er_test_rmtree(world.dir);
}

/* Floats of a tensor in an exported file. */
static bool read_tensor(const char *path, const char *name, float *ret, size_t n)
{
    static char file[1 << 16];
    struct er_st_tensor *tensors = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = fd < 0 ? -1 : read(fd, file, sizeof(file));
    size_t tensor_n = 0;
    uint64_t at = 0;
    bool found = false;

    close(fd);
    if (!er_tap_check(bytes > 0 && er_st_parse(file, (size_t)bytes, (uint64_t)bytes, &tensors,
                                               &tensor_n, &at, NULL) == 0))
        return false;
    for (size_t i = 0; i < tensor_n; i++) {
        if (strcmp(tensors[i].name, name) == 0 && tensors[i].end - tensors[i].begin == n * 4) {
            memcpy(ret, file + at + tensors[i].begin, n * 4);
            found = true;
        }
    }
    free(tensors);
    return found;
}

/* Neither where the file is to be, nor under the name that it once had until it was whole. */
static void export_follows_no_link(void)
{
    char out[PATH_MAX], temp[PATH_MAX], other[PATH_MAX];
    float w[ER_CW_ROWS * ER_CW_COLS] = {0};

    begin();
    snprintf(out, sizeof(out), "%s/all.safetensors", world.dir);
    snprintf(temp, sizeof(temp), "%s/all.safetensors.tmp", world.dir);
    snprintf(other, sizeof(other), "%s/other", world.dir);
    er_test_write_file(other, "mine");
    er_tap_require(symlink(other, out) == 0 && symlink(other, temp) == 0);
    er_tap_check(RUN("1 file in", "export", "--step", "20", world.dir, out) == 0);
    er_tap_check(read_tensor(out, "layer.weight", w, ER_ARRAY_N(w)) && w[1] == 21);
    ER_CLEANUP(er_cleanup_free) char *text = er_test_read_file(other);
    er_tap_check(text && strcmp(text, "mine") == 0);
    er_test_rmtree(world.dir);
}

static void export_joins_what_the_ranks_wrote(void)
{
    char out[PATH_MAX], part[PATH_MAX + 64];
    float w[ER_CW_ROWS * ER_CW_COLS];

    world.sharded = true;
    begin();
    snprintf(out, sizeof(out), "%s/all.safetensors", world.dir);
    er_tap_check(RUN("1 file in", "export", "--step", "20", world.dir, out) == 0);
    er_tap_check(read_tensor(out, "layer.weight", w, ER_CW_ROWS * ER_CW_COLS) && w[0] == 20 &&
                 w[ER_CW_ROWS * ER_CW_COLS - 1] == 20 + ER_CW_ROWS * ER_CW_COLS - 1);
    er_tap_check(read_tensor(out, "flat", w, ER_CW_FLAT) && w[100] == 20 - 100);
    snprintf(out, sizeof(out), "%s/hf", world.dir);
    er_tap_check(RUN("\"files\": 2", "export", "--json", "--shard-size=1KiB", world.dir, out) == 0);
    snprintf(part, sizeof(part), "%s/model-00002-of-00002.safetensors", out);
    er_tap_check(read_tensor(part, "layer.weight", w, ER_CW_ROWS * ER_CW_COLS) && w[1] == 41);
    snprintf(part, sizeof(part), "%s/model.safetensors.index.json", out);
    char *index = er_test_read_file(part);
    er_tap_check(index && strstr(index, "\"flat\": \"model-00001-of-00002.safetensors\""));
    free(index);
    damage(40);
    snprintf(out, sizeof(out), "%s/bad.safetensors", world.dir);
    er_tap_check(RUN("digest does not match", "export", world.dir, out) == 1);
    er_tap_check(access(out, F_OK) != 0); /* nothing half-written is left */
    er_tap_check(RUN("create", "export", "--step=30", world.dir, "/nowhere/x.safetensors") == 74);
    er_test_rmtree(world.dir);
}

/* ---- by job ---- */

static void write_job(const char *path, const char *more)
{
    char text[4 * PATH_MAX];

    snprintf(text, sizeof(text),
             "version: 1\nname: ckpt-tool-%d\nnnodes: 1\nnproc_per_node: 1\nlog: {dir: none}\n%s",
             (int)getpid(), more);
    er_test_write_file(path, text);
}

static void a_job_file_names_the_folder(void)
{
    char path[PATH_MAX], more[PATH_MAX + 64], out[PATH_MAX];

    begin();
    snprintf(path, sizeof(path), "%s/job.yaml", world.dir);
    snprintf(more, sizeof(more), "command: [\"true\"]\ncheckpoint: {dir: %s}\n", world.dir);
    write_job(path, more);
    er_tap_check(RUN("generation 4, 2 ranks", "list", path) == 0);
    er_tap_check(RUN("step 30: ok", "verify", "--step", "30", path) == 0);
    snprintf(out, sizeof(out), "%s/out.safetensors", world.dir);
    er_tap_check(RUN("1 file", "export", path, out) == 0);
    const char *const by_file[] = {
        er_test_bin("elastic-ctl"), "-f", path, "ckpt", "gc", "--keep-last=1", "--dry-run", NULL};
    struct er_test_proc p;
    er_tap_check(er_test_run(&p, by_file, NULL, 30000) == 0);
    er_tap_check(strstr(er_test_out(&p), "would remove step 30") != NULL);
    er_test_done(&p);
    write_job(path, "command: [\"true\"]\n");
    er_tap_check(RUN("has no checkpoint.dir", "list", path) == 66);
    er_tap_check(RUN("No such file", "list", "/nowhere/job.yaml") == 66);
    er_test_rmtree(world.dir);
}

static void a_job_that_runs_is_asked_for_its_folder(void)
{
    char path[PATH_MAX], more[3 * PATH_MAX], runtime[PATH_MAX], state[PATH_MAX];
    struct er_test_proc p;

    begin();
    snprintf(path, sizeof(path), "%s/job.yaml", world.dir);
    snprintf(more, sizeof(more),
             "command: [\"%s\", \"--job\", \"ckpt-tool-%d\", \"ckpt\", \"list\"]\n"
             "checkpoint: {dir: %s}\n",
             er_test_bin("elastic-ctl"), (int)getpid(), world.dir);
    write_job(path, more);
    snprintf(runtime, sizeof(runtime), "XDG_RUNTIME_DIR=%s", world.dir);
    snprintf(state, sizeof(state), "XDG_STATE_HOME=%s", world.dir);
    er_tap_check(er_test_run(&p, (const char *[]){er_test_bin("elastic-run"), path, NULL},
                             (const char *[]){runtime, state, NULL}, 60000) == 0);
    if (!er_tap_check(strstr(er_test_out(&p), "generation 4, 2 ranks") != NULL))
        er_tap_note("out '%s' err '%s'", er_test_out(&p), er_test_err(&p));
    er_test_done(&p);
    er_test_rmtree(world.dir);
}

static void a_fence_that_nobody_wrote_is_named(void)
{
    char path[PATH_MAX], fence[PATH_MAX], more[PATH_MAX + 64];
    struct er_test_proc p;

    er_test_tempdir(world.dir);
    snprintf(fence, sizeof(fence), "%s/.fence-g18446744073709551615", world.dir);
    er_test_write_file(fence, "");
    snprintf(path, sizeof(path), "%s/job.yaml", world.dir);
    snprintf(more, sizeof(more), "command: [\"true\"]\ncheckpoint: {dir: %s}\n", world.dir);
    write_job(path, more);
    er_tap_check(er_test_run(&p, (const char *[]){er_test_bin("elastic-run"), path, NULL}, NULL,
                             60000) == 78);
    er_tap_check(strstr(er_test_err(&p), fence) && strstr(er_test_err(&p), "remove that file"));
    er_test_done(&p);
    er_test_rmtree(world.dir);
}

int main(int argc, char **argv)
{
    static const struct er_tap_case cases[] = {
        {"verbs_answer_and_exit_as_documented", verbs_answer_and_exit_as_documented, 0},
        {"gc_keeps_the_newest_that_verifies", gc_keeps_the_newest_that_verifies, 0},
        {"several_gcs_beside_a_job_find_one_that_verifies",
         several_gcs_beside_a_job_find_one_that_verifies, 120},
        {"gc_works_beside_a_newer_generation", gc_works_beside_a_newer_generation, 0},
        {"a_spoilt_folder_gets_one_clear_answer", a_spoilt_folder_gets_one_clear_answer, 0},
        {"any_name_of_a_folder_is_answered_in_json", any_name_of_a_folder_is_answered_in_json, 0},
        {"an_answer_that_cannot_be_written_is_a_failure",
         an_answer_that_cannot_be_written_is_a_failure, 0},
        {"a_fence_that_nobody_wrote_is_named", a_fence_that_nobody_wrote_is_named, 0},
        {"export_joins_what_the_ranks_wrote", export_joins_what_the_ranks_wrote, 0},
        {"export_follows_no_link", export_follows_no_link, 0},
        {"a_job_file_names_the_folder", a_job_file_names_the_folder, 0},
        {"a_job_that_runs_is_asked_for_its_folder", a_job_that_runs_is_asked_for_its_folder, 0},
    };

    return er_tap_main(argc, argv, cases, ER_ARRAY_N(cases));
}
