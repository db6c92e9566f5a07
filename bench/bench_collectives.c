/*
 * Collectives between ranks of this host, beside Open MPI, Gloo and PyTorch's gloo: a line for each
 * size, and what of them has a name and a target. Bandwidth of an all-reduce is bytes of one rank /
 * time (algorithm bandwidth); of all three kinds also what each rank moves (bus bandwidth), which
 * can be compared.
 */
#include <stdio.h>
#include <string.h>

#include "bench/lib/coll_peers.h"

enum { MIB = COLL_MIB, KIB = COLL_KIB, LARGE_FROM = 64 * KIB };

/* Sizes up to SHORT are measured in ROUNDS rounds, all others in LONG_ROUNDS (QUICK: one), and so
 * are the peers that take long. */
enum { SHORT = 16 * MIB, ROUNDS = 5, LONG_ROUNDS = 2 };

static const struct coll_setting settings[] = {
    {"shm", ER_TRANSPORT_SHM, 2, "self,vader", 256 * MIB, 256 * MIB},
    {"tcp", ER_TRANSPORT_TCP, 2, "self,tcp", 256 * MIB, 64 * MIB},
    {"shm_4ranks", ER_TRANSPORT_SHM, 4, "self,vader", 256 * MIB, 16 * MIB},
    {"tcp_4ranks", ER_TRANSPORT_TCP, 4, "self,tcp", 256 * MIB, 16 * MIB},
};

enum unit { TIME_US, RATE };

/* Points of the sweep that have a name of their own. */
static const struct headline {
    const char *setting, *figure;
    enum unit unit;
    size_t bytes;
} headlines[] = {
    {"shm", "allreduce_shm_4KiB_us", TIME_US, 4 * KIB},
    {"shm", "allreduce_shm_64KiB_us", TIME_US, 64 * KIB},
    {"shm", "allreduce_shm_16MiB_GBps", RATE, 16 * MIB},
    {"shm", "allreduce_shm_256MiB_GBps", RATE, 256 * MIB},
    {"tcp", "allreduce_tcp_4KiB_us", TIME_US, 4 * KIB},
    {"tcp", "allreduce_tcp_64KiB_us", TIME_US, 64 * KIB},
    {"tcp", "allreduce_tcp_16MiB_GBps", RATE, 16 * MIB},
    {"shm_4ranks", "allreduce_shm_4ranks_16MiB_GBps", RATE, 16 * MIB},
};

struct peer_result {
    bool there;
    struct coll_point points[COLL_SIZES_MAX];
    /* Our time over the peer's, round by round: cores may be nearer to each other in one round than
     * in the next. */
    struct bench_series ratio[COLL_SIZES_MAX];
};

static double as_unit(enum unit unit, size_t bytes, double us)
{
    return unit == TIME_US ? us : (double)bytes / us / 1e3;
}

static const char *name_of(const char *fmt, const struct coll_setting *setting)
{
    static char name[96];

    snprintf(name, sizeof(name), fmt, setting->name);
    return name;
}

/* ---- what is printed ---- */

static void emit_sweep(const struct coll_setting *setting, const struct coll_result *ours,
                       const struct peer_result *peers, size_t n)
{
    for (int place = 0; place < COLL_PLACE_COUNT; place++)
        for (size_t i = 0; i < n; i++) {
            const struct coll_point *p = &ours->all_reduce[place][i];

            printf("{\"sweep\": \"allreduce_%s_%s\", \"bytes\": %zu, \"p50_us\": %.5g, "
                   "\"p99_us\": %.5g, \"runs\": %zu",
                   setting->name, place == COLL_IN_PLACE ? "in_place" : "out_of_place", p->bytes,
                   p->p50_us, p->p99_us, p->runs);
            for (int k = 0; place == COLL_IN_PLACE && k < COLL_PEER_COUNT; k++)
                if (peers[k].there)
                    printf(", \"%s p50_us\": %.5g", coll_peer_name((enum coll_peer)k),
                           peers[k].points[i].p50_us);
            printf("}\n");
        }
    fflush(stdout);
}

static void emit_headline(const struct headline *h, const struct coll_point *ours,
                          const struct peer_result *peers, size_t at)
{
    int best = -1;

    for (int k = 0; k < COLL_PEER_COUNT; k++)
        if (peers[k].there &&
            (best < 0 || peers[k].points[at].p50_us < peers[best].points[at].p50_us))
            best = k;
    bench_emit_beside(h->figure, as_unit(h->unit, h->bytes, ours->p50_us), ours->spread, ours->runs,
                      best < 0 ? NULL : coll_peer_name((enum coll_peer)best),
                      best < 0 ? 0 : as_unit(h->unit, h->bytes, peers[best].points[at].p50_us));
}

static void emit_headlines(const struct coll_setting *setting, const struct coll_result *ours,
                           const struct peer_result *peers, size_t n)
{
    for (size_t h = 0; h < sizeof(headlines) / sizeof(headlines[0]); h++)
        for (size_t i = 0; i < n; i++)
            if (strcmp(headlines[h].setting, setting->name) == 0 &&
                ours->all_reduce[COLL_IN_PLACE][i].bytes == headlines[h].bytes)
                emit_headline(&headlines[h], &ours->all_reduce[COLL_IN_PLACE][i], peers, i);
}

static void emit_blocks(const struct coll_setting *setting, const struct coll_result *ours)
{
    double bus_share = (double)(setting->ranks - 1) / setting->ranks;
    const struct coll_point *rs = &ours->reduce_scatter, *ag = &ours->all_gather;

    bench_emit_value(name_of("reducescatter_%s_16MiB_bus_GBps", setting),
                     as_unit(RATE, rs->bytes, rs->p50_us) * bus_share, rs->spread, rs->runs);
    bench_emit_value(name_of("allgather_%s_16MiB_bus_GBps", setting),
                     as_unit(RATE, ag->bytes, ag->p50_us) * bus_share, ag->spread, ag->runs);
    bench_emit(name_of("reducescatter_%s_bus_over_allreduce", setting), &ours->reduce_scatter_over);
    bench_emit(name_of("allgather_%s_bus_over_allreduce", setting), &ours->all_gather_over);
    bench_emit_value(name_of("vote_%s_us", setting), ours->vote.p50_us, ours->vote.spread,
                     ours->vote.runs);
}

/* The largest of our time over a peer's, over sizes [from, below). 0: there is no such. */
static double worst(const struct peer_result *peer, size_t n, size_t from, size_t below)
{
    double most = 0;

    for (size_t i = 0; i < n && peer->there; i++) {
        double ratio = bench_median(&peer->ratio[i]);

        if (peer->points[i].bytes >= from && peer->points[i].bytes < below && ratio > most)
            most = ratio;
    }
    return most;
}

static void emit_worst(const struct coll_setting *setting, const struct peer_result *peers,
                       size_t n)
{
    double gloo = worst(&peers[COLL_PEER_GLOO], n, 0, SIZE_MAX);
    double torch = worst(&peers[COLL_PEER_TORCH_GLOO], n, 0, SIZE_MAX);
    double large = worst(&peers[COLL_PEER_OPEN_MPI], n, LARGE_FROM, SIZE_MAX);
    double small = worst(&peers[COLL_PEER_OPEN_MPI], n, 0, LARGE_FROM);

    if (gloo > 0)
        bench_emit_value(name_of("%s_time_over_gloo_worst", setting), gloo, 0, n);
    if (torch > 0)
        bench_emit_value(name_of("%s_time_over_torch_gloo_worst", setting), torch, 0, n);
    if (large > 0)
        bench_emit_value(name_of("%s_time_over_openmpi_from_64KiB_worst", setting), large, 0, n);
    if (setting->transport == ER_TRANSPORT_TCP && setting->ranks == 2 && large > 0)
        bench_emit_value("allreduce_tcp_16MiB_over_openmpi",
                         1 / worst(&peers[COLL_PEER_OPEN_MPI], n, 16 * MIB, 16 * MIB + 1), 0, n);
    if (small > 0)
        bench_emit_value(name_of("%s_time_over_openmpi_below_64KiB_worst", setting), small, 0, n);
}

/* ---- a setting ---- */

/* Ours and then each peer's at once, so that they find the machine in one state. */
static void measure_round(const struct coll_setting *setting, bool with_slow_peers,
                          struct coll_result *ours, struct peer_result *peers)
{
    static struct coll_result fresh;
    size_t bytes[COLL_SIZES_MAX], n = coll_sizes(setting, bytes);

    memset(&fresh, 0, sizeof(fresh));
    coll_sweep(setting, &fresh);
    coll_keep_better_result(ours, &fresh);
    for (int k = 0; k < COLL_PEER_COUNT; k++) {
        struct coll_point points[COLL_SIZES_MAX] = {0};

        if (!peers[k].there || (k != COLL_PEER_OPEN_MPI && !with_slow_peers))
            continue;
        coll_peer_sweep((enum coll_peer)k, setting, points);
        for (size_t i = 0; i < n; i++) {
            coll_keep_better(&peers[k].points[i], &points[i]);
            bench_add(&peers[k].ratio[i],
                      fresh.all_reduce[COLL_IN_PLACE][i].p50_us / points[i].p50_us);
        }
    }
}

static void bench_setting(const struct coll_setting *setting)
{
    static struct coll_result ours;
    static struct peer_result peers[COLL_PEER_COUNT];
    size_t bytes[COLL_SIZES_MAX], n = coll_sizes(setting, bytes);
    size_t long_rounds = bench_runs(LONG_ROUNDS, 1);
    struct coll_setting shorter = *setting;

    shorter.largest = shorter.largest < SHORT ? shorter.largest : SHORT;
    shorter.quick_largest = shorter.quick_largest < SHORT ? shorter.quick_largest : SHORT;
    memset(&ours, 0, sizeof(ours));
    memset(peers, 0, sizeof(peers));
    for (int k = 0; k < COLL_PEER_COUNT && bench_peers(); k++)
        peers[k].there = coll_peer_there((enum coll_peer)k);
    for (size_t round = 0; round < ROUNDS; round++)
        measure_round(round < long_rounds ? setting : &shorter, round < long_rounds, &ours, peers);
    emit_sweep(setting, &ours, peers, n);
    emit_headlines(setting, &ours, peers, n);
    emit_blocks(setting, &ours);
    emit_worst(setting, peers, n);
}

/* With arguments: these settings alone. */
int main(int argc, char **argv)
{
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        bool wanted = argc == 1;

        for (int a = 1; a < argc; a++)
            wanted |= strcmp(argv[a], settings[i].name) == 0;
        if (wanted)
            bench_setting(&settings[i]);
    }
    return 0;
}
