/* Which CPUs a worker gets on several machines, told as sysfs trees. */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/topology.h"
#include "base/file.h"

/* A machine: CPU n is thread n / cores of core n % cores, as Linux numbers them on most machines.
 */
struct machine {
    const char *online; /* NULL: all */
    int sockets, nodes, caches, cores, threads;
    bool plain; /* without NUMA and cache folders */
};

static const struct machine DESK = {
    .sockets = 1, .nodes = 1, .caches = 1, .cores = 4, .threads = 2};
static const struct machine TWO_SOCKETS = {
    .sockets = 2, .nodes = 2, .caches = 2, .cores = 8, .threads = 2};
/* Two nodes in each socket, two caches in each node. */
static const struct machine EPYC = {
    .sockets = 2, .nodes = 4, .caches = 8, .cores = 16, .threads = 1};
static const struct machine HOLES = {
    .sockets = 2, .nodes = 2, .caches = 2, .cores = 8, .threads = 1, .online = "0-2,4-7"};
static const struct machine PLAIN = {
    .sockets = 1, .nodes = 1, .caches = 1, .cores = 3, .threads = 1, .plain = true};

static struct er_topology topology;
static char root[] = "/tmp/er-sysfs-XXXXXX";

static void put(const char *text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void put(const char *text, const char *fmt, ...)
{
    char path[512], folder[512];
    va_list ap;
    size_t n = (size_t)snprintf(path, sizeof(path), "%s/", root);

    va_start(ap, fmt);
    vsnprintf(path + n, sizeof(path) - n, fmt, ap);
    va_end(ap);
    snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(path, '/') - path), path);
    cr_assert_eq(er_mkdir_all(folder, 0755, NULL), 0);
    cr_assert_eq(er_file_replace(path, text, strlen(text), 0644, NULL), 0);
}

/* "0-3,8-11\n" of the cores low .. high - 1. */
static const char *threads_of(const struct machine *m, int low, int high)
{
    static char text[256];
    size_t used = 0;

    for (int t = 0; t < m->threads; t++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%d-%d", t ? "," : "",
                                 t * m->cores + low, t * m->cores + high - 1);
    snprintf(text + used, sizeof(text) - used, "\n");
    return text;
}

static void put_cpu(const struct machine *m, int cpu)
{
    int core = cpu % m->cores, in_cache = m->cores / m->caches;
    int first = core / in_cache * in_cache;
    char number[16];

    snprintf(number, sizeof(number), "%d\n", core / (m->cores / m->sockets));
    put(number, "devices/system/cpu/cpu%d/topology/physical_package_id", cpu);
    put(threads_of(m, core, core + 1), "devices/system/cpu/cpu%d/topology/thread_siblings_list",
        cpu);
    if (m->plain)
        return;
    put("1\n", "devices/system/cpu/cpu%d/cache/index0/level", cpu);
    put(threads_of(m, core, core + 1), "devices/system/cpu/cpu%d/cache/index0/shared_cpu_list",
        cpu);
    put("3\n", "devices/system/cpu/cpu%d/cache/index1/level", cpu);
    put(threads_of(m, first, first + in_cache),
        "devices/system/cpu/cpu%d/cache/index1/shared_cpu_list", cpu);
}

static void build(const struct machine *m)
{
    int in_node = m->cores / m->nodes;

    strcpy(root, "/tmp/er-sysfs-XXXXXX");
    cr_assert(mkdtemp(root));
    put(m->online ? m->online : threads_of(m, 0, m->cores), "devices/system/cpu/online");
    for (int cpu = 0; cpu < m->cores * m->threads; cpu++)
        put_cpu(m, cpu);
    for (int node = 0; !m->plain && node < m->nodes; node++)
        put(threads_of(m, node * in_node, (node + 1) * in_node),
            "devices/system/node/node%d/cpulist", node);
    put("1\n", "bus/pci/devices/0000:3b:00.0/numa_node");
    put("-1\n", "bus/pci/devices/0000:17:00.0/numa_node");
    cr_assert_eq(er_topology_read(&topology, root, NULL), 0);
    cr_expect_eq(er_topology_pci_node(root, "0000:3b:00.0"), 1);
    cr_expect_eq(er_topology_pci_node(root, "0000:17:00.0"), -1);
    cr_expect_eq(er_topology_pci_node(root, "0000:99:00.0"), -1);
    cr_expect_eq(er_topology_pci_node(root, ""), -1);
    er_remove_all(root, NULL);
}

/* "0-1 2-3": the workers' sets, or the error's text. */
static const char *plan(const char *kind, const char *allowed, const int *gpu_nodes, int workers)
{
    static char text[1024];
    static struct er_cpuset sets[64];
    struct er_error err = ER_ERROR_INIT;
    struct er_cpuset may;
    size_t used = 0;

    cr_assert_eq(er_cpuset_parse(&may, allowed), 0);
    if (er_binding_plan(&topology, &may, er_binding_kind(kind), gpu_nodes, workers, sets, &err)) {
        cr_expect_eq(err.code, ER_E_CONFIG);
        snprintf(text, sizeof(text), "%.1000s", err.text);
        return text;
    }
    for (int i = 0; i < workers; i++) {
        char list[ER_CPU_LIST_MAX];

        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i ? " " : "",
                                 er_cpuset_format(&sets[i], list));
    }
    return text;
}

#define ALL       "0-4095"
#define GPUS(...) ((const int[]){__VA_ARGS__})

struct want {
    const struct machine *machine;
    const char *kind, *allowed;
    const int *gpu_nodes;
    int workers;
    const char *want;
};

static const struct want WANTS[] = {
    {&DESK, "node", ALL, NULL, 2, "0-7 0-7"},
    {&DESK, "exclusive", ALL, NULL, 2, "0-1,4-5 2-3,6-7"},
    {&DESK, "exclusive", ALL, NULL, 3, "0-1,4-5 2,6 3,7"},
    {&DESK, "exclusive", ALL, NULL, 5, "exclusive: NUMA node 0 has 4 usable cores for 5 workers"},
    {&DESK, "exclusive", "1-3", NULL, 3, "1 2 3"}, /* second threads are not ours */
    {&DESK, "exclusive", "0,4", NULL, 2, "exclusive: NUMA node 0 has 1 usable core for 2 workers"},
    {&DESK, "core-complex", ALL, NULL, 2, "0-7 0-7"},
    {&TWO_SOCKETS, "node", ALL, NULL, 2, "0-3,8-11 4-7,12-15"},
    {&TWO_SOCKETS, "node", ALL, NULL, 4, "0-3,8-11 0-3,8-11 4-7,12-15 4-7,12-15"},
    {&TWO_SOCKETS, "node", ALL, NULL, 1, "0-3,8-11"},
    {&TWO_SOCKETS, "node", ALL, GPUS(1, 0), 2, "4-7,12-15 0-3,8-11"},
    {&TWO_SOCKETS, "node", ALL, GPUS(1, -1), 2, "0-3,8-11 4-7,12-15"},
    {&TWO_SOCKETS, "node", "0-5", GPUS(1, 0), 2, "4-5 0-3"},
    {&TWO_SOCKETS, "node", "0-3", GPUS(0, 1), 2,
     "local rank 1: none of the CPUs that the agent may use belongs to NUMA node 1, its GPU's"},
    {&TWO_SOCKETS, "node", "8", NULL, 2, "8 8"}, /* the one node that is left */
    {&TWO_SOCKETS, "node", "77", NULL, 2, "the agent may use no CPU that is on-line"},
    {&TWO_SOCKETS, "exclusive", ALL, GPUS(1, 1, 0), 3, "4-5,12-13 6-7,14-15 0-3,8-11"},
    {&TWO_SOCKETS, "socket", ALL, NULL, 2, "0-3,8-11 4-7,12-15"},
    {&EPYC, "node", ALL, NULL, 4, "0-3 4-7 8-11 12-15"},
    {&EPYC, "socket", ALL, NULL, 4, "0-7 0-7 8-15 8-15"},
    {&EPYC, "socket", "0-5,12", GPUS(0, 1, 3, 3), 4, "0-5 0-5 12 12"},
    {&EPYC, "core-complex", ALL, NULL, 8, "0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15"},
    {&EPYC, "core-complex", ALL, GPUS(2, 2, 2), 3, "8-9 10-11 8-9"},
    {&EPYC, "core-complex", "1-15", GPUS(0, 0), 2, "2-3 1"}, /* the whole one first */
    {&HOLES, "node", ALL, NULL, 2, "0-2 4-7"},
    {&HOLES, "exclusive", ALL, NULL, 8, "exclusive: NUMA node 0 has 3 usable cores for 4 workers"},
    {&PLAIN, "node", ALL, NULL, 2, "0-2 0-2"},
    {&PLAIN, "core-complex", ALL, NULL, 2, "0-2 0-2"},
    {&PLAIN, "exclusive", ALL, GPUS(-1, -1, -1), 3, "0 1 2"},
};

Test(binding, each_worker_is_at_home)
{
    const struct machine *built = NULL;

    for (size_t i = 0; i < sizeof(WANTS) / sizeof(WANTS[0]); i++) {
        const struct want *w = &WANTS[i];
        const char *got;

        if (built != w->machine)
            build(w->machine);
        built = w->machine;
        got = plan(w->kind, w->allowed, w->gpu_nodes, w->workers);
        cr_expect_str_eq(got, w->want, "case %zu (%s): '%s', not '%s'", i, w->kind, got, w->want);
    }
}

Test(binding, this_machine_can_be_read)
{
    struct er_cpuset allowed;

    cr_assert_eq(er_topology_read(&topology, "/sys", NULL), 0);
    cr_assert_eq(er_topology_allowed(&allowed, NULL), 0);
    cr_expect_gt(er_cpuset_count(&allowed), 0);
    cr_expect_str_neq(plan("core-complex", ALL, NULL, 1), "");
}

Test(cpuset, lists_are_read_and_written)
{
    static const char *const WRONG[] = {"x", "1-", "-1", "3-1", "1;2", "0-4096", "1,,2", "1 2"};
    char text[ER_CPU_LIST_MAX];
    struct er_cpuset set;

    cr_assert_eq(er_cpuset_parse(&set, "0-2,5,4095\n"), 0);
    cr_expect_eq(er_cpuset_count(&set), 5);
    cr_expect_str_eq(er_cpuset_format(&set, text), "0-2,5,4095");
    for (size_t i = 0; i < sizeof(WRONG) / sizeof(WRONG[0]); i++)
        cr_expect_neq(er_cpuset_parse(&set, WRONG[i]), 0, "'%s'", WRONG[i]);
    cr_assert_eq(er_cpuset_parse(&set, ""), 0);
    cr_expect_eq(er_cpuset_first(&set), -1);
    for (int cpu = 0; cpu < ER_CPUS_MAX; cpu += 2)
        er_cpuset_add(&set, cpu);
    cr_expect_not_null(strstr(er_cpuset_format(&set, text), "..."));
}
