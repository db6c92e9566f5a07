/*
 * Four workers that write lines to stdout as fast as they are read. Once with --tee 3 and a console
 * that takes everything (/dev/null), beside `cat` on the same pipes; once with a console that takes
 * nothing, beside `cat > file` for each.
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

enum { WRITERS = 4, LINE = 128, BLOCK = 512 * LINE };

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

static pid_t start(const char *const argv[], int out_fd)
{
    posix_spawn_file_actions_t actions;
    pid_t pid;

    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out_fd, 1);
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

/* WRITERS times `write BYTES | cat > TARGET`, to files of their own when `numbered`. */
static double cat_ms(const char *bytes, const char *target, bool numbered)
{
    char script[4 * 4096];
    size_t used = 0;
    int null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    double start_ms;

    for (int i = 0; i < WRITERS; i++)
        used +=
            (size_t)snprintf(script + used, sizeof(script) - used,
                             numbered ? "%s write %s | cat > %s%d & " : "%s write %s | cat > %s & ",
                             bench_bin("bench/bench_launch"), bytes, target, i);
    snprintf(script + used, sizeof(script) - used, "wait");
    start_ms = bench_now_ms();
    finish(start((const char *const[]){"sh", "-c", script, NULL}, null_fd));
    close(null_fd);
    return bench_now_ms() - start_ms;
}

static void clear_folder(void)
{
    char script[128];

    snprintf(script, sizeof(script), "rm -rf %s/*", folder);
    if (system(script) != 0)
        bench_fail("cannot clear '%s'", folder);
}

static pid_t start_tee(const char *bytes, int console_fd)
{
    const char *argv[] = {bench_bin("elastic-run"),
                          "--rdzv-id",
                          "bench-tee",
                          "--nproc-per-node",
                          "4",
                          "--log-dir",
                          folder,
                          "--tee",
                          "3",
                          bench_bin("bench/bench_launch"),
                          "write",
                          bytes,
                          NULL};

    return start(argv, console_fd);
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
    pid = start_tee(bytes, pair[1]);
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

void launch_tee(void)
{
    static struct bench_series tee, cat, stuck, files;
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
        double start_ms, one_off;

        clear_folder();
        start_ms = bench_now_ms();
        finish(start_tee(bytes, null_fd));
        bench_add(&tee, bench_now_ms() - start_ms);
        clear_folder();
        bench_add(&files, cat_ms(bytes, path, true));
        clear_folder();
        bench_add(&cat, cat_ms(bytes, "/dev/null", false));
        bench_add(&stuck, stuck_turn(bytes, &one_off));
        off += one_off < 0 ? -one_off : one_off;
    }
    clear_folder();
    rmdir(folder);
    close(null_fd);
    bench_emit("tee_ms", &tee);
    bench_emit("tee_cat_ms", &cat);
    bench_emit_value("tee_over_cat", bench_median(&tee) / bench_median(&cat), bench_spread(&tee),
                     runs);
    bench_emit_value("tee_over_files", bench_median(&tee) / bench_median(&files),
                     bench_spread(&tee), runs);
    bench_emit("tee_stuck_ms", &stuck);
    bench_emit("tee_files_ms", &files);
    bench_emit_value("tee_stuck_over_files", bench_median(&stuck) / bench_median(&files),
                     bench_spread(&stuck), runs);
    bench_emit_value("tee_stuck_lines_off", off, 0, runs);
}
