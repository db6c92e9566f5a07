#include "bench/lib/etcd_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "bench/lib/bench.h"

#define READY_MS 30000.0
#define PAUSE_NS 2000000
#define LOOPBACK "127.0.0.1"

static const char *program(void)
{
    const char *bin = getenv("ER_ETCD_BIN");

    return bin && *bin ? bin : "etcd";
}

bool bench_etcd_there(void)
{
    char line[4096];

    snprintf(line, sizeof(line), "command -v '%s' >/dev/null", program());
    return system(line) == 0;
}

static int listen_anywhere(int *ret_port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&at, n) < 0 ||
        getsockname(fd, (struct sockaddr *)&at, &n) < 0)
        bench_fail("no free port: %s", strerror(errno));
    *ret_port = ntohs(at.sin_port);
    return fd;
}

int bench_free_port(void)
{
    int port;

    close(listen_anywhere(&port));
    return port;
}

static void choose_ports(struct bench_etcd *e)
{
    int fds[2 * BENCH_ETCD_MEMBERS_MAX], n = 0;

    for (int i = 0; i < e->n; i++) {
        fds[n++] = listen_anywhere(&e->client_ports[i]);
        fds[n++] = listen_anywhere(&e->peer_ports[i]);
    }
    while (n)
        close(fds[--n]);
}

void bench_etcd_restart(struct bench_etcd *e, int i)
{
    extern char **environ;
    char name[8], data[320], clients[96], client[64], peer[64], all[256] = "";
    posix_spawn_file_actions_t quiet;
    const char *argv[] = {"env",
                          /* a third less of its time goes to the garbage collector */
                          "GOGC=400", "setpriv", "--pdeathsig", "KILL", program(), "--name", name,
                          "--data-dir", data, "--listen-client-urls", clients,
                          "--advertise-client-urls", client, "--listen-peer-urls", peer,
                          "--initial-advertise-peer-urls", peer, "--initial-cluster", all,
                          "--logger", "zap", "--log-level", "error", "--backend-batch-limit", "100",
                          "--backend-batch-interval", "10ms", NULL};

    snprintf(name, sizeof(name), "m%d", i);
    snprintf(data, sizeof(data), "%s/m%d", e->dir, i);
    snprintf(client, sizeof(client), "http://%s:%d", e->host, e->client_ports[i]);
    snprintf(clients, sizeof(clients), "http://127.0.0.1:%d%s%s", e->client_ports[i],
             strcmp(e->host, LOOPBACK) == 0 ? "" : ",",
             strcmp(e->host, LOOPBACK) == 0 ? "" : client);
    snprintf(peer, sizeof(peer), "http://127.0.0.1:%d", e->peer_ports[i]);
    for (int k = 0; k < e->n; k++)
        snprintf(all + strlen(all), sizeof(all) - strlen(all), "%sm%d=http://127.0.0.1:%d",
                 k ? "," : "", k, e->peer_ports[k]);
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&quiet, 2, "/dev/null", O_WRONLY, 0);
    if (posix_spawnp(&e->pids[i], argv[0], &quiet, NULL, (char **)(uintptr_t)argv, environ) != 0)
        bench_fail("cannot start %s", program());
    posix_spawn_file_actions_destroy(&quiet);
}

/* The answer to GET `path`, to be freed; NULL: none. */
static char *get(int port, const char *path)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval patience = {.tv_sec = 2};
    char *text = NULL, ask[256];
    size_t n = 0, cap = 0;
    ssize_t got = -1;

    snprintf(ask, sizeof(ask), "GET %s HTTP/1.0\r\nHost: bench\r\n\r\n", path);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0 &&
        write(fd, ask, strlen(ask)) == (ssize_t)strlen(ask)) {
        do {
            if (cap - n < 65536) {
                cap += 262144;
                text = realloc(text, cap);
                if (!text)
                    bench_fail("out of memory");
            }
            got = read(fd, text + n, cap - n - 1);
            n += got > 0 ? (size_t)got : 0;
        } while (got > 0);
    }
    close(fd);
    if (text)
        text[n] = 0;
    if (got == 0)
        return text;
    free(text);
    return NULL;
}

static bool healthy(const struct bench_etcd *e, int i)
{
    char *text = get(e->client_ports[i], "/health");
    bool yes = text && strstr(text, "\"true\"");

    free(text);
    return yes;
}

static void wait_healthy(const struct bench_etcd *e)
{
    double until = bench_now_ms() + READY_MS;

    for (int i = 0; i < e->n; i++) {
        while (e->pids[i] && !healthy(e, i)) {
            if (bench_now_ms() > until || waitpid(e->pids[i], NULL, WNOHANG) != 0)
                bench_fail("%s does not start", program());
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        }
    }
}

void bench_etcd_start(struct bench_etcd *e, int n, enum bench_etcd_place place)
{
    bench_etcd_start_at(e, n, place, LOOPBACK);
}

void bench_etcd_start_at(struct bench_etcd *e, int n, enum bench_etcd_place place, const char *host)
{
    const char *tmp = getenv("TMPDIR");

    memset(e, 0, sizeof(*e));
    e->n = n;
    e->host = host;
    snprintf(e->dir, sizeof(e->dir), "%s/er-bench-etcd-XXXXXX",
             place == BENCH_ETCD_MEMORY ? "/dev/shm"
             : tmp && *tmp              ? tmp
                                        : "/tmp");
    if (!mkdtemp(e->dir))
        bench_fail("cannot make a folder for etcd: %s", strerror(errno));
    choose_ports(e);
    for (int i = 0; i < n; i++) {
        snprintf(e->endpoints + strlen(e->endpoints), sizeof(e->endpoints) - strlen(e->endpoints),
                 "%s%s:%d", i ? "," : "", host, e->client_ports[i]);
        bench_etcd_restart(e, i);
    }
    wait_healthy(e);
}

void bench_etcd_signal(struct bench_etcd *e, int i, int sig)
{
    if (kill(e->pids[i], sig) < 0)
        bench_fail("cannot signal etcd: %s", strerror(errno));
}

void bench_etcd_kill(struct bench_etcd *e, int i)
{
    if (!e->pids[i])
        return;
    kill(e->pids[i], SIGKILL);
    waitpid(e->pids[i], NULL, 0);
    e->pids[i] = 0;
}

void bench_etcd_stop(struct bench_etcd *e)
{
    for (int i = 0; i < e->n; i++)
        bench_etcd_kill(e, i);
    er_remove_all(e->dir, NULL);
}

int bench_etcd_leader(struct bench_etcd *e)
{
    for (int i = 0; i < e->n; i++) {
        if (e->pids[i] && bench_etcd_metric(e, i, "etcd_server_is_leader", NULL) == 1)
            return i;
    }
    return -1;
}

double bench_etcd_cpu_ms(const struct bench_etcd *e, int i)
{
    struct timespec t;
    clockid_t clock;

    if (clock_getcpuclockid(e->pids[i], &clock) != 0 || clock_gettime(clock, &t) != 0)
        bench_fail("etcd's CPU time cannot be read");
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

double bench_etcd_metric(const struct bench_etcd *e, int i, const char *name, const char *label)
{
    char *text = get(e->client_ports[i], "/metrics"), *save = NULL;
    size_t n = strlen(name);
    double sum = 0;

    for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line;
         line = strtok_r(NULL, "\n", &save)) {
        const char *value = strrchr(line, ' ');

        if (strncmp(line, name, n) == 0 && (line[n] == ' ' || line[n] == '{') && value &&
            (!label || strstr(line, label)))
            sum += strtod(value, NULL);
    }
    free(text);
    return sum;
}
