#include "bench/lib/ckpt_peers.h"

#include <stdio.h>
#include <string.h>

#include "bench/lib/ckpt_ranks.h"

static void note_peer(struct bench_peer *peer, const char *name, double ms)
{
    size_t i = 0;

    while (i < peer->n && strcmp(peer->names[i], name) != 0)
        i++;
    if (i == LIBRARIES_MAX)
        return;
    if (i == peer->n)
        snprintf(peer->names[peer->n++], sizeof(peer->names[0]), "%s", name);
    bench_add(&peer->ms[i], ms);
}

static size_t bench_fastest(const struct bench_peer *peer)
{
    size_t best = 0;

    for (size_t i = 1; i < peer->n; i++)
        if (bench_median(&peer->ms[i]) < bench_median(&peer->ms[best]))
            best = i;
    return best;
}

void bench_run_peers(struct bench_peer *peers, size_t n)
{
    char command[2 * PATH_MAX + 256], line[256];
    const char *root = bench_peers();
    FILE *out;

    snprintf(command, sizeof(command), "'%s/bin/python' '%s' '%s/peers' %llu %zu", root,
             ER_BENCH_SOURCE "/peers_ckpt.py", bench_dir, (unsigned long long)bench_state_bytes,
             bench_runs(5, 2));
    out = popen(command, "r");
    if (!out)
        bench_fail("start the peers");
    while (fgets(line, sizeof(line), out)) {
        char what[32], name[64];
        double ms;

        if (sscanf(line, "%31s %63s %lf", what, name, &ms) != 3)
            continue;
        for (size_t i = 0; i < n; i++) {
            if (strcmp(peers[i].what, what) == 0)
                note_peer(&peers[i], name, ms);
        }
    }
    if (pclose(out) != 0)
        bench_fail("the peers failed");
}

void bench_emit_beside(const char *figure, const struct bench_series *s,
                       const struct bench_peer *peer)
{
    if (!peer || peer->n == 0) {
        bench_emit(figure, s);
        return;
    }
    for (size_t i = 0; i < peer->n; i++)
        fprintf(stderr, "bench: ckpt: %s: %s %.0f ms\n", figure, peer->names[i],
                bench_median(&peer->ms[i]));
    bench_emit_peer(figure, s, peer->names[bench_fastest(peer)], &peer->ms[bench_fastest(peer)]);
}
