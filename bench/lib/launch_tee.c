/*
 * Four workers that write lines to stdout as fast as they are read, beside the same four writing to
 * a `cat` each, over pipes of the size that ours have. --tee 3 (files, and a console that takes
 * everything) is compared with `cat > file`, which has the same bytes to keep, and with `cat >
 * /dev/null`; a console that takes nothing with the time that the writers take with `cat > file`;
 * --redirects 3 (files alone) with `cat > file`.
 */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/lib/bench.h"
#include "bench/lib/launch_parts.h"

enum { WRITERS = 4, LINE = 128, BLOCK = 512 * LINE, PIPE_BYTES = 512 * 1024 };

extern char **environ;

static char folder[64];

/* `bench_launch write BYTES`: lines of 128 bytes. */
int launch_write(int argc, char **argv)
{
    static char block[BLOCK];
    long long left = argc == 3 && strcmp(argv[1], "write") == 0 ? atoll(argv[2]) : -1;

    if (left < 0)
        return -1; /* no role */
    memset(block, 'x', sizeof(block));
    for (size_t at = LINE - 1; at < sizeof(block); at += LINE)
        block[at] = '\n';
    while (left > 0) {
        ssize_t n = write(1, block, left < BLOCK ? (size_t)left : BLOCK);

        if (n < 0 && errno != EINTR)
            return 1;
        left -= n > 0 ? n : 0;
    }
    return 0;
}

/* `in_fd` -1: none. */
static pid_t start(const char *const argv[], int in_fd, int out_fd)
{
    posix_spawn_file_actions_t actions;
    pid_t pid;

    posix_spawn_file_actions_init(&actions);
    if (in_fd >= 0)
        posix_spawn_file_actions_adddup2(&actions, in_fd, 0);
    posix_spawn_file_actions_adddup2(&actions, out_fd, 1);
    if (in_fd < 0)
        posix_spawn_file_actions_adddup2(&actions, out_fd, 2);
    if (posix_spawnp(&pid, argv[0], &actions, NULL, (char *const *)argv, environ) != 0)
        bench_fail("cannot start '%s'", argv[0]);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

static void finish(pid_t pid)
{
    int status = 0;

    if (waitpid(pid, &status, 0) != pid || status != 0)
        bench_fail("a program of the log benchmark failed");
}

struct cat_times {
    double all_ms, writers_ms;
};

/* WRITERS times `write BYTES | cat > TARGET`, to files of their own when `numbered`. */
static struct cat_times cat_turn(const char *bytes, const char *target, bool numbered)
{
    const char *writer[] = {bench_bin("bench/bench_launch"), "write", bytes, NULL};
    const char *cat[] = {"cat", NULL};
    pid_t writers[WRITERS], cats[WRITERS];
    struct cat_times times;
    double start_ms = bench_now_ms();

    for (int i = 0; i < WRITERS; i++) {
        char path[256];
        int pair[2], file;

        snprintf(path, sizeof(path), numbered ? "%s%d" : "%s", target, i);
        file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (file < 0 || pipe2(pair, O_CLOEXEC) < 0)
            bench_fail("cannot open '%s'", path);
        (void)fcntl(pair[0], F_SETPIPE_SZ, PIPE_BYTES);
        cats[i] = start(cat, pair[0], file);
        writers[i] = start(writer, -1, pair[1]);
        close(pair[0]);
        close(pair[1]);
        close(file);
    }
    for (int i = 0; i < WRITERS; i++)
        finish(writers[i]);
    times.writers_ms = bench_now_ms() - start_ms;
    for (int i = 0; i < WRITERS; i++)
        finish(cats[i]);
    times.all_ms = bench_now_ms() - start_ms;
    return times;
}

static void clear_folder(void)
{
    char script[128];

    snprintf(script, sizeof(script), "rm -rf %s/*", folder);
    if (system(script) != 0)
        bench_fail("cannot clear '%s'", folder);
}

/* `how`: --tee or --redirects, of both streams. */
static pid_t start_job(const char *how, const char *bytes, int console_fd)
{
    const char *argv[] = {bench_bin("elastic-run"),
                          "--rdzv-id",
                          "bench-tee",
                          "--nproc-per-node",
                          "4",
                          "--log-dir",
                          folder,
                          how,
                          "3",
                          bench_bin("bench/bench_launch"),
                          "write",
                          bytes,
                          NULL};

    return start(argv, -1, console_fd);
}

static double job_ms(const char *how, const char *bytes, int console_fd)
{
    double start_ms;

    clear_folder();
    start_ms = bench_now_ms();
    finish(start_job(how, bytes, console_fd));
    return bench_now_ms() - start_ms;
}

/* Sum of a number in the event files' lines of one kind. */
static double sum_events(const char *event, const char *name)
{
    char pattern[128], line[70000], mark[64];
    double sum = 0;
    glob_t found;

    snprintf(pattern, sizeof(pattern), "%s/bench-tee/events-*.jsonl", folder);
    snprintf(mark, sizeof(mark), "\"event\":\"%s\"", event);
    if (glob(pattern, 0, NULL, &found) != 0)
        bench_fail("no event file in '%s'", folder);
    FILE *f = fopen(found.gl_pathv[0], "r");

    while (f && fgets(line, sizeof(line), f)) {
        const char *at = strstr(line, mark) ? strstr(line, name) : NULL;

        sum += at ? strtod(at + strlen(name), NULL) : 0;
    }
    if (f)
        fclose(f);
    globfree(&found);
    return sum;
}

static double longest_worker_ms(void)
{
    char pattern[128], line[70000];
    double longest = 0;
    glob_t found;

    snprintf(pattern, sizeof(pattern), "%s/bench-tee/events-*.jsonl", folder);
    if (glob(pattern, 0, NULL, &found) != 0)
        bench_fail("no event file in '%s'", folder);
    FILE *f = fopen(found.gl_pathv[0], "r");

    while (f && fgets(line, sizeof(line), f)) {
        const char *at = strstr(line, "\"runtime_ms\":");
        double ms = at ? strtod(at + strlen("\"runtime_ms\":"), NULL) : 0;

        longest = ms > longest ? ms : longest;
    }
    if (f)
        fclose(f);
    globfree(&found);
    return longest;
}

/* What was dropped, against what was written less what came out: 0 when counted exactly. */
static double stuck_turn(const char *bytes, double *ret_off)
{
    double lines = WRITERS * atof(bytes) / LINE, dropped, shown = 0;
    char text[1 << 16];
    int pair[2];
    pid_t pid;
    ssize_t n;

    clear_folder();
    if (pipe2(pair, O_CLOEXEC) < 0)
        bench_fail("cannot make a pipe");
    pid = start_job("--tee", bytes, pair[1]);
    close(pair[1]);
    finish(pid);
    /* Lines of the workers begin with their prefix; the agent's own do not. */
    static char all[1 << 22];
    size_t used = 0;

    while ((n = read(pair[0], text, sizeof(text))) > 0 && used + (size_t)n < sizeof(all)) {
        memcpy(all + used, text, (size_t)n);
        used += (size_t)n;
    }
    all[used] = '\0';
    close(pair[0]);
    for (const char *at = all; (at = strstr(at, "xxx\n")) != NULL; at++)
        shown++;
    dropped = sum_events("log_dropped", "\"lines\":");
    *ret_off = dropped + shown - lines;
    return longest_worker_ms();
}

static void emit_over(const char *figure, const struct bench_series *ours,
                      const struct bench_series *theirs)
{
    bench_emit_value(figure, bench_median(ours) / bench_median(theirs), bench_spread(ours),
                     ours->n);
}

void launch_tee(void)
{
    static struct bench_series tee, redirect, stuck, cat, files, writers;
    size_t runs = bench_runs(5, 2);
    char bytes[32], path[128];
    double off = 0;
    int null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);

    snprintf(folder, sizeof(folder), "/tmp/er-bench-logs-XXXXXX");
    if (!mkdtemp(folder) || null_fd < 0)
        bench_fail("cannot make a folder");
    snprintf(bytes, sizeof(bytes), "%zu", bench_runs(256, 16) << 20);
    snprintf(path, sizeof(path), "%s/cat", folder);
    for (size_t i = 0; i < runs; i++) {
        struct cat_times to_files;
        double one_off;

        bench_add(&tee, job_ms("--tee", bytes, null_fd));
        clear_folder();
        to_files = cat_turn(bytes, path, true);
        bench_add(&files, to_files.all_ms);
        bench_add(&writers, to_files.writers_ms);
        bench_add(&stuck, stuck_turn(bytes, &one_off));
        off += one_off < 0 ? -one_off : one_off;
        bench_add(&redirect, job_ms("--redirects", bytes, null_fd));
        clear_folder();
        bench_add(&cat, cat_turn(bytes, "/dev/null", false).all_ms);
    }
    clear_folder();
    rmdir(folder);
    close(null_fd);
    bench_emit("tee_ms", &tee);
    bench_emit("tee_cat_ms", &cat);
    bench_emit("tee_files_ms", &files);
    bench_emit("tee_writers_ms", &writers);
    emit_over("tee_over_cat", &tee, &cat);
    emit_over("tee_over_files", &tee, &files);
    bench_emit("tee_stuck_ms", &stuck);
    emit_over("tee_stuck_over_files", &stuck, &writers);
    bench_emit_value("tee_stuck_lines_off", off, 0, runs);
    bench_emit("redirect_ms", &redirect);
    emit_over("redirect_over_files", &redirect, &files);
}
