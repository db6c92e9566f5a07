#include "bench/lib/ckpt_peers.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/lib/ckpt_ranks.h"

const char *const bench_libraries[LIBRARIES_N] = {"torch.save", "safetensors", "dcp.save",
                                                  "dcp.async_save"};

double bench_fio_ms(uint64_t bytes, int writers)
{
    char command[PATH_MAX + 512], line[4096];
    bool writes = false; /* what follows is about them */
    double ms = -1;
    FILE *out;

    snprintf(command, sizeof(command),
             "fio --name=fio --directory='%s' --rw=write --direct=1 --bs=4M --ioengine=psync "
             "--size=%llu --numjobs=%d --end_fsync=1 --group_reporting --unlink=1 "
             "--output-format=json",
             bench_dir, (unsigned long long)(bytes / (uint64_t)writers), writers);
    out = popen(command, "r");
    if (!out)
        bench_fail("start fio");
    while (fgets(line, sizeof(line), out)) {
        writes = writes || strstr(line, "\"write\" :");
        if (writes && ms < 0 && strstr(line, "\"bw_bytes\" :")) {
            double rate = atof(strchr(strstr(line, "\"bw_bytes\""), ':') + 1);

            ms = rate > 0 ? (double)bytes / rate * 1e3 : -1;
        }
    }
    if (pclose(out) != 0 || ms < 0)
        bench_fail("fio failed; packaging/setup.sh bench installs it");
    return ms;
}

static struct {
    pid_t pid;
    FILE *to, *from;
} peer;

bool bench_peers_open(void)
{
    const char *root = bench_peers();
    char python[PATH_MAX + 32], folder[PATH_MAX + 32], bytes[32];
    int in[2], out[2];

    if (!root)
        return false;
    snprintf(python, sizeof(python), "%s/bin/python", root);
    snprintf(folder, sizeof(folder), "%s/peers", bench_dir);
    snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)bench_state_bytes);
    if (pipe(in) < 0 || pipe(out) < 0 || (peer.pid = fork()) < 0)
        bench_fail("start the peers");
    if (peer.pid == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        close(in[1]);
        close(out[0]);
        execl(python, python, "-B", ER_BENCH_SOURCE "/peers_ckpt.py", folder, bytes, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    signal(SIGPIPE, SIG_IGN);
    peer.to = fdopen(in[1], "w");
    peer.from = fdopen(out[0], "r");
    return peer.to && peer.from;
}

void bench_peers_close(void)
{
    int status = 0;

    if (peer.pid <= 0)
        return;
    fclose(peer.to);
    fclose(peer.from);
    if (waitpid(peer.pid, &status, 0) != peer.pid || status != 0)
        bench_fail("the peers: wait status %#x", (unsigned)status);
}

double bench_peers_ask(const char *verb, const char *name, double *ret_pause_ms)
{
    double ms, pause;
    char line[256];

    fprintf(peer.to, "%s %s\n", verb, name);
    fflush(peer.to);
    if (!fgets(line, sizeof(line), peer.from) || sscanf(line, "%lf %lf", &ms, &pause) != 2)
        bench_fail("the peers failed at '%s %s'", verb, name);
    if (ret_pause_ms)
        *ret_pause_ms = pause;
    return ms;
}

size_t bench_fastest(const struct bench_series series[LIBRARIES_N])
{
    size_t best = 0;

    for (size_t i = 1; i < LIBRARIES_N; i++)
        if (bench_median(&series[i]) < bench_median(&series[best]))
            best = i;
    return best;
}
