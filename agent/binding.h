#pragma once
/*
 * Which CPUs each local worker is bound to (node.numa_binding). Pure: the machine is an argument.
 *
 * Every worker has a home, a NUMA node: its GPU's, where that is known, else the nodes take turns
 * in blocks, so that neighbours in rank are neighbours in memory.
 *
 *   node          all CPUs of the home
 *   socket        all CPUs of the home's socket
 *   exclusive     an equal share of the home's cores, whole cores, nobody else's
 *   core-complex  the CPUs of the home that share one last-level cache, in turn; larger ones first
 *
 * Only CPUs in `allowed` are given. Memory needs no policy of its own: the kernel's default is to
 * place a page where it is first touched. Source of the four: torch.distributed's --numa-binding.
 */
#include "agent/cpuset.h"
#include "base/error.h"

enum er_binding_kind {
    ER_BINDING_NONE,
    ER_BINDING_NODE,
    ER_BINDING_SOCKET,
    ER_BINDING_EXCLUSIVE,
    ER_BINDING_CORE_COMPLEX,
    ER_BINDING_KIND_COUNT
};

struct er_topology {
    int n; /* CPUs: 0 .. n - 1, some of them may be off-line */
    struct er_topology_cpu {
        int16_t node, package;
        int16_t core, cache; /* first CPU of the same core, of the same last-level cache */
        bool online;
    } cpus[ER_CPUS_MAX];
};

/* The kind that node.numa_binding names. */
enum er_binding_kind er_binding_kind(const char *name);

/*
 * ret_sets: `workers` of them, one a local rank. `gpu_nodes`: NUMA node of each local rank's GPU;
 * NULL, or any of them negative: not known. ER_E_CONFIG: a worker would get no CPU, with the
 * reason.
 */
int er_binding_plan(const struct er_topology *topology, const struct er_cpuset *allowed,
                    enum er_binding_kind kind, const int *gpu_nodes, int workers,
                    struct er_cpuset *ret_sets, struct er_error *err);
