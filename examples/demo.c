/*
 * The demonstration behind `make demo`: trains examples/fashion_mnist.c with two workers under
 * elastic-run, kills one of them at a seeded instant between 40 and 60 % of the run, and reports
 * what that cost:
 *
 *     demo: accuracy=0.88 restarts=1 lost_ms=112 replayed_steps=37 ok
 *
 * lost_ms: from the return of kill(2) to the end of the first step that all ranks have finished in
 * the new generation.
 */
#include <errno.h>
#include <getopt.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "agent/statedir.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/ctlclient.h"
#include "base/file.h"
#include "base/parse.h"
#include "base/rand.h"

#define ACCURACY_MIN  0.87
#define KILL_FIRST    0.40 /* of the run */
#define KILL_LAST     0.60
#define POLL_US       2000
#define ASK_LIMIT_US  (5 * ER_US_PER_S)
#define TIME_LIMIT_US (10 * 60 * ER_US_PER_S)
#define EVENTS_MAX    (64u << 20)
#define WORKERS       2

struct demo {
    char program[PATH_MAX]; /* elastic-run */
    char spec[PATH_MAX];
    char dir[PATH_MAX]; /* logs and checkpoints of this run */
    char job[64];
    uint64_t seed;
    bool keep, quiet;
    pid_t pid; /* of elastic-run, 0: none */
    struct er_ctl_client agent;
    double kill_at; /* share of the run */
    int victim;
    uint64_t killed_us, killed_step; /* killed_us 0: not yet */
};

struct outcome {
    double accuracy;
    long long restarts, first_step_us, replayed_steps; /* -1: not known */
};

static volatile sig_atomic_t interrupted;

static void on_signal(int sig)
{
    interrupted = sig;
}

static int fail(const char *what)
{
    fprintf(stderr, "demo: %s\n", what);
    return -1;
}

/* The build folder is where this program's folder lies. */
static int find_files(struct demo *demo)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    for (int up = 0; n > 0 && up < 2; up++) {
        self[n] = 0;
        char *slash = strrchr(self, '/');
        n = slash ? slash - self : 0;
    }
    self[n > 0 ? n : 0] = 0;
    if (snprintf(demo->program, sizeof(demo->program), "%s/elastic-run", self) >= PATH_MAX ||
        access(demo->program, X_OK) != 0)
        return fail("elastic-run is not there: run `make` first");
    if (access(demo->spec, R_OK) != 0)
        return fail(
            "examples/fashion_mnist.yaml cannot be read: start from the top of the source tree");
    return 0;
}

static int make_folder(struct demo *demo)
{
    const char *base = getenv("TMPDIR");
    if (snprintf(demo->dir, sizeof(demo->dir), "%s/elastic-demo-XXXXXX",
                 base && base[0] ? base : "/tmp") >= PATH_MAX ||
        !mkdtemp(demo->dir)) {
        perror("demo: temporary folder");
        return -1;
    }
    snprintf(demo->job, sizeof(demo->job), "demo-%d", (int)getpid());
    return 0;
}

static int start_job(struct demo *demo)
{
    extern char **environ;
    char name[128], logs[PATH_MAX + 32], checkpoints[PATH_MAX + 32];
    snprintf(name, sizeof(name), "name=%s", demo->job);
    snprintf(logs, sizeof(logs), "log.dir=%s/logs", demo->dir);
    snprintf(checkpoints, sizeof(checkpoints), "checkpoint.dir=%s/checkpoints", demo->dir);
    char *argv[] = {demo->program, "--set", name,
                    "--set",       logs,    "--set",
                    checkpoints,   "--set", demo->quiet ? "log.console=none" : "log.console=all",
                    demo->spec,    NULL};
    int rc = posix_spawn(&demo->pid, demo->program, NULL, NULL, argv, environ);
    if (rc != 0) {
        fprintf(stderr, "demo: start elastic-run: %s\n", strerror(rc));
        demo->pid = 0;
        return -1;
    }
    return 0;
}

/* Exit status once elastic-run has ended; -1 while it runs. */
static int job_ended(struct demo *demo)
{
    int status;
    if (demo->pid == 0 || waitpid(demo->pid, &status, WNOHANG) != demo->pid)
        return -1;
    demo->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static bool connect_agent(struct demo *demo)
{
    char bases[ER_STATE_BASES][ER_STATE_PATH_MAX], path[ER_STATE_PATH_MAX + 128];
    size_t n = er_statedir_bases(bases);
    for (size_t i = 0; i < n && demo->agent.fd < 0; i++) {
        snprintf(path, sizeof(path), "%s/%s/agent.sock", bases[i], demo->job);
        (void)er_ctl_client_open(&demo->agent, path, ASK_LIMIT_US, NULL);
    }
    return demo->agent.fd >= 0;
}

/* The agent's status, or NULL while there is none. */
static json_t *ask_status(struct demo *demo)
{
    struct er_ctl_msg request = {.type = ER_CTL_STATUS}, reply;
    if (demo->agent.fd < 0 && !connect_agent(demo))
        return NULL;
    if (er_ctl_client_call(&demo->agent, &request, ASK_LIMIT_US, &reply, NULL) < 0) {
        er_ctl_client_close(&demo->agent);
        return NULL;
    }
    return reply.status == 0 && reply.str_n > 0
               ? json_loadb(reply.str[0].data, reply.str[0].len, 0, NULL)
               : NULL;
}

static long long number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) ? json_integer_value(value) : -1;
}

/* Kills the victim once the run has got as far as `kill_at`. */
static void maybe_kill(struct demo *demo, const json_t *status)
{
    const json_t *workers = json_object_get(status, "workers"),
                 *victim = json_array_get(workers, (size_t)demo->victim);
    long long step = number(victim, "step"), total = number(victim, "total_steps"),
              pid = number(victim, "pid");
    if (total <= 0 || pid <= 0 || (double)step < demo->kill_at * (double)total)
        return;
    if (kill((pid_t)pid, SIGKILL) < 0)
        return;
    demo->killed_us = er_now_us();
    demo->killed_step = (uint64_t)step;
    printf("demo: killed rank %d (pid %lld) with SIGKILL after step %lld of %lld\n", demo->victim,
           pid, step, total);
    fflush(stdout);
}

static int watch_job(struct demo *demo)
{
    uint64_t limit_us = er_deadline_in(er_now_us(), TIME_LIMIT_US);
    int code, told = 0;
    while ((code = job_ended(demo)) < 0) {
        if (interrupted && interrupted != told)
            kill(demo->pid, told = interrupted);
        if (er_now_us() > limit_us)
            return fail("the job did not end within 10 minutes");
        json_t *status = demo->killed_us ? NULL : ask_status(demo);
        if (status)
            maybe_kill(demo, status);
        json_decref(status);
        nanosleep(&(struct timespec){.tv_nsec = POLL_US * 1000}, NULL);
    }
    return code;
}

static int read_text(struct demo *demo, const char *file, struct er_buf *buf)
{
    struct er_error err = ER_ERROR_INIT;
    char path[PATH_MAX + 256];
    snprintf(path, sizeof(path), "%s/logs/%s/%s", demo->dir, demo->job, file);
    er_buf_init(buf, EVENTS_MAX);
    int rc = er_file_read(path, buf, &err);
    return rc < 0 ? fail(err.text) : 0;
}

static void take_event(const json_t *event, struct outcome *out)
{
    const char *name = json_string_value(json_object_get(event, "event"));
    if (!name)
        return;
    if (strcmp(name, "recovered") == 0) {
        out->first_step_us = number(event, "first_step_mono_us");
        out->replayed_steps = number(event, "steps_lost");
    }
    if (strcmp(name, "job_succeeded") == 0)
        out->restarts = number(event, "restarts");
}

static int read_events(struct demo *demo, struct outcome *out)
{
    char host[256] = "", file[300];
    ER_CLEANUP(er_buf_done) struct er_buf text = {0};
    gethostname(host, sizeof(host) - 1);
    snprintf(file, sizeof(file), "events-%s.jsonl", host);
    if (read_text(demo, file, &text) < 0)
        return -1;
    for (char *line = text.data, *end; line && (end = strchr(line, '\n')); line = end + 1) {
        json_t *event = json_loadb(line, (size_t)(end - line), 0, NULL);
        take_event(event, out);
        json_decref(event);
    }
    return 0;
}

static int read_accuracy(struct demo *demo, struct outcome *out)
{
    ER_CLEANUP(er_buf_done) struct er_buf text = {0};
    if (read_text(demo, "current/rank-0/stdout.log", &text) < 0)
        return -1;
    const char *found = NULL;
    for (const char *at = er_buf_str(&text); (at = strstr(at, "\naccuracy=")); at++)
        found = at + strlen("\naccuracy=");
    if (!found)
        return fail("rank 0 printed no accuracy");
    out->accuracy = strtod(found, NULL);
    return 0;
}

static int report(struct demo *demo, int code)
{
    struct outcome out = {.restarts = -1, .first_step_us = -1, .replayed_steps = -1};
    if (interrupted)
        return fail("interrupted");
    if (code != 0) {
        fprintf(stderr, "demo: elastic-run ended with code %d\n", code);
        return -1;
    }
    if (!demo->killed_us)
        return fail("the job ended before a worker could be killed");
    if (read_events(demo, &out) < 0 || read_accuracy(demo, &out) < 0)
        return -1;
    if (out.first_step_us < 0)
        return fail("no recovery was recorded");
    bool ok = out.accuracy >= ACCURACY_MIN && out.restarts == 1;
    printf("demo: accuracy=%.4f restarts=%lld lost_ms=%.0f replayed_steps=%lld %s\n", out.accuracy,
           out.restarts, (double)(out.first_step_us - (long long)demo->killed_us) / 1e3,
           out.replayed_steps, ok ? "ok" : "FAILED");
    return ok ? 0 : -1;
}

static void clean_up(struct demo *demo, bool failed)
{
    er_ctl_client_close(&demo->agent);
    if (demo->pid > 0) {
        kill(demo->pid, SIGTERM);
        waitpid(demo->pid, NULL, 0);
    }
    if (failed)
        fprintf(stderr, "demo: logs and checkpoints are in %s\n", demo->dir);
    else if (!demo->keep)
        (void)er_remove_all(demo->dir, NULL);
}

static int usage(FILE *to, int code)
{
    fputs("usage: demo [--seed N] [--keep] [--quiet] [JOB.yaml]\n"
          "Trains a classifier with two workers, kills one, and reports what that cost.\n"
          "  --seed N   chooses the instant and the victim (default: 1)\n"
          "  --keep     leave logs and checkpoints in place\n"
          "  --quiet    the workers' output goes to their log files only\n",
          to);
    return code;
}

static int parse(struct demo *demo, int argc, char **argv)
{
    static const struct option options[] = {{"seed", required_argument, NULL, 's'},
                                            {"keep", no_argument, NULL, 'k'},
                                            {"quiet", no_argument, NULL, 'q'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    struct er_error err = ER_ERROR_INIT;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == 'h')
            exit(usage(stdout, 0));
        if (c == '?')
            exit(usage(stderr, 64));
        demo->keep |= c == 'k';
        demo->quiet |= c == 'q';
        if (c == 's' && er_parse_u64(optarg, 0, UINT64_MAX, &demo->seed, &err) < 0)
            return fail(err.text);
    }
    snprintf(demo->spec, sizeof(demo->spec), "%s",
             optind < argc ? argv[optind] : "examples/fashion_mnist.yaml");
    return 0;
}

static void choose(struct demo *demo)
{
    struct er_rand r;
    er_rand_init(&r, demo->seed);
    demo->kill_at = KILL_FIRST + (KILL_LAST - KILL_FIRST) * (double)er_rand_below(&r, 1u << 20) /
                                     (double)(1u << 20);
    demo->victim = (int)er_rand_below(&r, WORKERS);
}

int main(int argc, char **argv)
{
    static struct demo demo = {.agent.fd = -1, .seed = 1};
    if (parse(&demo, argc, argv) < 0 || find_files(&demo) < 0)
        return 64;
    choose(&demo);
    sigaction(SIGINT, &(struct sigaction){.sa_handler = on_signal}, NULL);
    sigaction(SIGTERM, &(struct sigaction){.sa_handler = on_signal}, NULL);
    if (make_folder(&demo) < 0)
        return 73;
    if (demo.keep)
        printf("demo: logs and checkpoints will be in %s\n", demo.dir);
    int rc = start_job(&demo);
    if (rc == 0)
        rc = report(&demo, watch_job(&demo));
    clean_up(&demo, rc < 0);
    return rc < 0 ? 1 : 0;
}
