/*
 * What it costs to be looked at: an agent with 64 workers that report steps. Scrapes of /metrics
 * over one connection, as Prometheus makes them, and the memory they leave behind; then the
 * agent's processor time with one page open, which gets five messages a second.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/lib/bench.h"
#include "bench/lib/proc.h"
#include "runtime/elastic.h"

enum {
    WORKERS = 64,
    STEP_MS = 200,
    START_MAX_MS = 60000,
    PER_RUN = 10, /* scrapes: one observation is their mean */
    ANSWER_MAX = 1 << 20
};

extern char **environ;

/* ---- a worker ---- */

static int work(void)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_ctx *ctx = NULL;

    if (er_open(&ctx, &err) || er_ready(ctx, &err))
        return 1;
    for (uint64_t step = 1; er_notice(ctx) == ER_NOTICE_NONE; step++) {
        poll(NULL, 0, STEP_MS);
        er_progress(ctx, ER_PHASE_FORWARD, step);
        er_progress_figures(ctx, step * 32, 1.0 / (double)step, 0);
    }
    er_close(ctx);
    return 0;
}

/* ---- the job ---- */

static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&a, n) < 0 ||
        getsockname(fd, (struct sockaddr *)&a, &n) < 0)
        bench_fail("no free port");
    close(fd);
    return ntohs(a.sin_port);
}

static pid_t start_job(int port)
{
    char setting[64], self[4096], elastic_run[4096];
    char *argv[] = {elastic_run, (char *)"--nproc-per-node", (char *)"64", (char *)"--set",
                    setting,     (char *)"--no-python",      self,         (char *)"worker",
                    NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;

    snprintf(setting, sizeof(setting), "http.listen=127.0.0.1:%d", port);
    snprintf(self, sizeof(self), "%s", bench_bin("bench/bench_http"));
    snprintf(elastic_run, sizeof(elastic_run), "%s", bench_bin("elastic-run"));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    if (posix_spawn(&pid, elastic_run, &actions, NULL, argv, environ) != 0)
        bench_fail("cannot start '%s'", elastic_run);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

/* ---- HTTP, as little of it as is needed ---- */

static int connect_to(int port)
{
    const struct sockaddr_in a = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, (const struct sockaddr *)&a, sizeof(a)) == 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

static void ask(int fd, const char *path)
{
    char text[256];
    int n = snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);

    if (write(fd, text, (size_t)n) != n)
        bench_fail("cannot ask for %s", path);
}

/* A whole answer with Content-Length; returns its body. */
static const char *answer(int fd)
{
    static char text[ANSWER_MAX];
    size_t n = 0, wanted = 0;
    const char *body = NULL;

    while (!body || n < wanted) {
        ssize_t got = read(fd, text + n, sizeof(text) - 1 - n);

        if (got <= 0)
            bench_fail("the agent does not answer");
        n += (size_t)got;
        text[n] = 0;
        if (!body && (body = strstr(text, "\r\n\r\n")) != NULL) {
            const char *length = strcasestr(text, "content-length:");

            body += 4;
            if (strncmp(text, "HTTP/1.1 200", 12) != 0 || !length)
                bench_fail("not an answer: %.40s", text);
            wanted = (size_t)(body - text) + strtoul(length + 15, NULL, 10);
        }
    }
    return body;
}

static unsigned count(const char *text, const char *what)
{
    unsigned n = 0;

    for (; (text = strstr(text, what)) != NULL; text += strlen(what))
        n++;
    return n;
}

/* All workers report. */
static int connect_when_up(int port)
{
    const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
    double give_up_ms = bench_now_ms() + START_MAX_MS;

    while (bench_now_ms() < give_up_ms) {
        int fd = connect_to(port);

        if (fd >= 0) {
            ask(fd, "/metrics");
            if (count(answer(fd), "elastic_run_worker_step{") == WORKERS)
                return fd;
            close(fd);
        }
        nanosleep(&pause, NULL);
    }
    bench_fail("the workers do not come up");
}

/* ---- measuring ---- */

static double resident_kib(pid_t pid)
{
    return bench_proc_number(pid, "status", "VmRSS:");
}

static void measure_scrapes(int fd, pid_t agent)
{
    static struct bench_series scrapes;
    size_t runs = bench_runs(1000, 100);
    double before_kib = 0;

    for (size_t i = 0; i < runs; i++) {
        double start_ms = bench_now_ms();

        if (i == runs / 10) /* what it keeps, it has by now */
            before_kib = resident_kib(agent);
        for (int k = 0; k < PER_RUN; k++) {
            ask(fd, "/metrics");
            answer(fd);
        }
        bench_add(&scrapes, (bench_now_ms() - start_ms) / PER_RUN);
    }
    bench_emit("scrape_64_ranks_ms", &scrapes);
    bench_emit_value("scrape_64_ranks_p99_ms", bench_quantile(&scrapes, 0.99), 0, runs);
    bench_emit_value("scrapes_growth_kib", resident_kib(agent) - before_kib, 0, runs * PER_RUN);
}

/* Processor time of the agent in percent while `stream` is read; -1: nobody looks. */
static double busy_percent(pid_t agent, int stream, double window_ms, unsigned *ret_messages)
{
    static char text[ANSWER_MAX];
    double start_ms = bench_now_ms(), before_ns = bench_proc_cpu_ns(agent), left_ms;

    while ((left_ms = window_ms - (bench_now_ms() - start_ms)) > 0) {
        struct pollfd p = {.fd = stream, .events = POLLIN};

        if (poll(&p, 1, (int)left_ms + 1) == 1) {
            ssize_t n = read(stream, text, sizeof(text) - 1);

            if (n <= 0)
                bench_fail("the stream ended");
            text[n] = 0;
            *ret_messages += count(text, "event: status");
        }
    }
    return (bench_proc_cpu_ns(agent) - before_ns) / 1e4 / (bench_now_ms() - start_ms);
}

static void measure_page(int port, pid_t agent)
{
    double window_ms = (double)bench_runs(20000, 5000), alone, watched;
    unsigned messages = 0;
    int stream;

    alone = busy_percent(agent, -1, window_ms, &messages);
    stream = connect_to(port);
    ask(stream, "/events");
    watched = busy_percent(agent, stream, window_ms, &messages);
    close(stream);
    bench_emit_value("page_messages_per_s", messages / (window_ms / 1000), 0, 1);
    bench_emit_value("agent_alone_percent", alone, 0, 1);
    bench_emit_value("page_cost_percent", watched - alone, 0, 1);
}

int main(int argc, char **argv)
{
    int port, fd;
    pid_t guard, agent;

    if (argc > 1 && strcmp(argv[1], "worker") == 0)
        return work();
    port = free_port();
    guard = start_job(port);
    fd = connect_when_up(port);
    if (bench_proc_children(guard, &agent) == 0)
        bench_fail("no agent");
    measure_scrapes(fd, agent);
    measure_page(port, agent);
    close(fd);
    kill(guard, SIGTERM);
    waitpid(guard, NULL, 0);
    return 0;
}
