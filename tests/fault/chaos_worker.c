/* The worker of the fault-injection suite (chaos/): tests/lib/elastic_worker.h, which can be told
 * to fail.
 *
 *   chaos_worker                                 USR1: exits with 7; USR2: hangs
 *   chaos_worker reference PARAMS STEPS EPOCHS   a line for each step: the digest behind it
 *
 * WORKER_DIR/order.<place> holds a word and a number: what that worker does in its next step, or at
 * the end of its epoch. Then the file is did.<place>, with what came of it behind.
 *
 *   nan      a gradient is not a number
 *   flood N  N MiB to standard output
 *   eat N    N MiB of memory, at most
 *   bomb N   N processes, at most; they stay
 *   skip     the barrier at the end of the epoch is left out
 *   drag N   from now on each step takes N ms longer, until done.<place> is there
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "runtime/comm.h"
#include "tests/lib/elastic_worker.h"

#define MIB      (1u << 20)
#define PATH_CAP 1024

static void on_exit_signal(int sig)
{
    (void)sig;
    _exit(7);
}

static void on_hang_signal(int sig)
{
    (void)sig;
    for (;;)
        pause();
}

static int reference(char **argv)
{
    size_t params = strtoull(argv[0], NULL, 10), steps = strtoull(argv[1], NULL, 10);
    uint64_t *digests = calloc(steps + 1, sizeof(*digests));

    if (!digests)
        return 1;
    er_elastic_digests(digests, params, steps, strtoull(argv[2], NULL, 10));
    for (size_t i = 0; i < steps; i++)
        printf("%016" PRIx64 "\n", digests[i]);
    free(digests);
    return 0;
}

/* ---- orders ---- */

static void path_of(char ret[PATH_CAP], const char *name, const char *place)
{
    snprintf(ret, PATH_CAP, "%s/%s.%s", getenv("WORKER_DIR"), name, place);
}

__attribute__((format(printf, 2, 3))) static void say(const char *place, const char *format, ...)
{
    char path[PATH_CAP];
    va_list list;
    FILE *f;

    path_of(path, "did", place);
    f = fopen(path, "a");
    if (!f)
        return;
    va_start(list, format);
    vfprintf(f, format, list);
    va_end(list);
    fclose(f);
}

/* The order of a place, when it is this one: the file has its other name then. */
static bool take(const char *place, const char *word, unsigned *ret)
{
    char path[PATH_CAP], taken[PATH_CAP], have[16] = "";
    FILE *f;

    path_of(path, "order", place);
    f = fopen(path, "r");
    if (!f)
        return false;
    *ret = 0;
    if (fscanf(f, "%15s %u", have, ret) < 1 || strcmp(have, word) != 0)
        have[0] = '\0';
    fclose(f);
    if (!have[0])
        return false;
    path_of(taken, "did", place);
    return rename(path, taken) == 0;
}

static void flood(const char *place, unsigned mib)
{
    static char line[4096];
    size_t written = 0;

    memset(line, 'x', sizeof(line) - 1);
    line[sizeof(line) - 1] = '\n';
    while (written < (size_t)mib * MIB) {
        ssize_t n = write(STDOUT_FILENO, line, sizeof(line));

        if (n < 0)
            break;
        written += (size_t)n;
    }
    say(place, " %zu bytes written", written);
}

static void eat(const char *place, unsigned mib)
{
    unsigned n = 0;

    for (; n < mib; n++) {
        char *part = malloc(MIB);

        if (!part)
            break;
        memset(part, 1, MIB); /* the kernel gives it only now */
        say(place, " %u", n);
    }
    say(place, " MiB, and it lives");
}

static void bomb(const char *place, unsigned most)
{
    unsigned n = 0;
    int why = 0;

    while (n < most && !why) {
        pid_t pid = fork();

        if (pid == 0) {
            for (;;)
                pause();
        }
        why = pid < 0 ? errno : 0;
        n += pid > 0;
    }
    say(place, " %u processes, then %s", n, why == EAGAIN ? "EAGAIN" : why ? "an error" : "none");
}

static unsigned drag_ms;

static void drag(const char *place)
{
    const struct timespec ts = {.tv_sec = drag_ms / 1000,
                                .tv_nsec = (long)(drag_ms % 1000) * 1000000};
    char path[PATH_CAP];

    path_of(path, "done", place);
    if (!drag_ms)
        return;
    if (access(path, F_OK) == 0)
        drag_ms = 0;
    else
        nanosleep(&ts, NULL);
    say(place, " slow");
}

static void step(const char *place, uint64_t number, float *grads, size_t n)
{
    unsigned much;

    (void)number;
    if (take(place, "nan", &much))
        grads[n / 2] = NAN;
    else if (take(place, "flood", &much))
        flood(place, much);
    else if (take(place, "eat", &much))
        eat(place, much);
    else if (take(place, "bomb", &much))
        bomb(place, much);
    else if (take(place, "drag", &much))
        drag_ms = much;
    drag(place);
}

static int epoch(const char *place, struct er_comm *comm, struct er_error *err)
{
    unsigned much;

    return take(place, "skip", &much) ? 0 : er_comm_barrier(comm, err);
}

int main(int argc, char **argv)
{
    static const struct er_elastic_hooks HOOKS = {.step = step, .epoch = epoch};
    struct sigaction to_exit = {.sa_handler = on_exit_signal},
                     to_hang = {.sa_handler = on_hang_signal};

    if (argc == 5 && strcmp(argv[1], "reference") == 0)
        return reference(argv + 2);
    sigaction(SIGUSR1, &to_exit, NULL);
    sigaction(SIGUSR2, &to_hang, NULL);
    er_elastic_worker_hooks(&HOOKS);
    return er_elastic_worker();
}
