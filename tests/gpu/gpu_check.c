/*
 * What to run first on a machine with a GPU: at most five minutes, one JSON line an item, flushed
 * at once, so that a run that is cut short still counts. Exit status: 0 all passed, 1 some failed,
 * 77 there is no GPU.
 *
 *     gpu_check            all items
 *     gpu_check NAME...    some
 *
 * On the double (tests/fakecuda/) the same items run with small sizes.
 */
#include "tests/gpu/gpu_check.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"

enum {
    TEXT_MAX = 2048,
    NO_GPU = 77,
    DOUBLE_SLOWER = 6 /* a double computes on processors that others need, too */
};

static const struct item {
    const char *name;
    item_fn run;
    unsigned limit_s; /* on a GPU */
} items[] = {
    {"versions", item_versions, 10},
    {"kernels", item_kernels, 25},
    {"repeat", item_repeat, 20},
    {"collectives", item_collectives, 40},
    {"kill", item_kill, 50},
    {"stop", item_stop, 15},
    {"missing", item_missing, 10},
    {"released", item_released, 15},
    {"exact", item_exact, 25},
    {"generations", item_generations, 30},
    {"speed", item_speed, 25},
    {"three", item_three, 30},
    {"train", item_train, 30},
    {"ddp", item_ddp, 40},
    {"fsdp", item_fsdp, 40},
    {"fsdp_lost", item_fsdp_lost, 25},
    {"exact_train", item_exact_train, 40},
    {"hook", item_hook, 25},
    {"overlap", item_overlap, 30},
};

static struct shared {
    struct gpu_facts facts;
    size_t n;
    char text[TEXT_MAX];
} * shared;

struct gpu_facts *gpu_facts(void)
{
    return &shared->facts;
}

static void append(const char *key, const char *value)
{
    int n = snprintf(shared->text + shared->n, TEXT_MAX - shared->n, ",\"%s\":%s", key, value);

    if (n > 0 && shared->n + (size_t)n < TEXT_MAX)
        shared->n += (size_t)n;
    shared->text[shared->n] = 0;
}

void say(const char *key, double value)
{
    char number[64];

    snprintf(number, sizeof(number), "%.6g", value);
    append(key, number);
}

void say_text(const char *key, const char *value)
{
    char quoted[256];
    size_t n = 0;

    quoted[n++] = '"';
    for (; *value && n < sizeof(quoted) - 2; value++)
        quoted[n++] = *value == '"' || *value == '\\' || *value < ' ' ? '\'' : *value;
    quoted[n++] = '"';
    quoted[n] = 0;
    append(key, quoted);
}

/* The item leads a process group: what it leaves behind goes with it. */
static int run_item(const struct item *item, double *ret_s)
{
    uint64_t began_us = er_now_us();
    struct pollfd p = {.events = POLLIN};
    bool on_double = shared->facts.is_double; /* the first item finds out */
    int status = -1;
    pid_t pid;

    shared->n = 0;
    shared->text[0] = 0;
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        dup2(STDERR_FILENO, STDOUT_FILENO); /* stdout is for JSON lines */
        item->run();
        fflush(NULL);
        _exit(0); /* items leave their arrays to the end of the process */
    }
    p.fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (poll(&p, 1, 1000 * (int)item->limit_s * (on_double ? DOUBLE_SLOWER : 1)) == 0)
        say_text("error", "not finished in time");
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    close(p.fd);
    *ret_s = (double)(er_now_us() - began_us) / 1e6;
    return status;
}

static bool wanted(int argc, char **argv, const char *name)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return true;
    return argc < 2 || strcmp(name, "versions") == 0;
}

int main(int argc, char **argv)
{
    int failed_n = 0;

    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    for (size_t i = 0; i < ER_ARRAY_N(items); i++) {
        double seconds = 0;
        int status;

        if (!wanted(argc, argv, items[i].name))
            continue;
        status = run_item(&items[i], &seconds);
        if (WIFEXITED(status) && WEXITSTATUS(status) == NO_GPU) {
            printf("{\"item\":\"%s\",\"skipped\":true%s}\n", items[i].name, shared->text);
            return NO_GPU;
        }
        printf("{\"item\":\"%s\",\"ok\":%s,\"status\":%d,\"seconds\":%.3f%s}\n", items[i].name,
               status == 0 ? "true" : "false", status, seconds, shared->text);
        fflush(stdout);
        failed_n += status != 0;
    }
    return failed_n > 0;
}
