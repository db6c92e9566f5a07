/* What this host decides: how many workers `gpu`, `auto` and `cpu` mean, and where their GPUs are.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/config_internal.h"
#include "agent/gpu.h"
#include "agent/subst.h"
#include "agent/topology.h"
#include "base/cleanup.h"
#include "base/parse.h"

#define SYSFS "/sys"

static uint32_t count_cpus(void)
{
    cpu_set_t set;
    long online;

    if (!sched_getaffinity(0, sizeof(set), &set))
        return (uint32_t)CPU_COUNT(&set);
    online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

/* As the workers will have it: the spec's, else the agent's own. */
static const char *visible_devices(const struct er_loader *loader)
{
    static const char NAME[] = "CUDA_VISIBLE_DEVICES";
    const struct er_envlist *env = &loader->config->env;

    for (size_t i = env->n; i > 0; i--) {
        if (!strcmp(env->names[i - 1], NAME))
            return env->values[i - 1];
    }
    return er_environ_get(loader->environ_, NAME);
}

/* False: no memory. */
static bool keep_pcis(struct er_config *config, const struct er_gpu_table *table,
                      const struct er_gpu_seen *seen, size_t n)
{
    config->gpu_pcis = calloc(n ? n : 1, sizeof(*config->gpu_pcis));
    for (size_t i = 0; config->gpu_pcis && i < n; i++) {
        config->gpu_pcis[i] = strdup(table->gpus[seen->gpus[i]].pci);
        if (!config->gpu_pcis[i])
            return false;
        config->gpus_n++;
    }
    return config->gpu_pcis != NULL;
}

/* The GPUs that a worker sees. Of MIG devices a process sees only its first, so several of them
 * serve several workers only where each is given one. */
static void find_gpus(struct er_loader *loader, const char *key)
{
    struct er_config *config = loader->config;
    ER_CLEANUP(er_cleanup_free) struct er_gpu_table *table = malloc(sizeof(*table));
    struct er_gpu_seen seen = {.n = 0};
    struct er_error err = ER_ERROR_INIT;
    int rc = table ? er_gpu_read(table, &err) : -ENOMEM;

    if (!rc)
        rc = er_gpu_table_seen(table, visible_devices(loader), &seen, &err);
    if (seen.migs && !config->virtual_local_rank && seen.n > 1)
        seen.n = 1;
    if (!rc && !keep_pcis(config, table, &seen, seen.n))
        rc = -ENOMEM;
    if (rc == -ENOMEM)
        er_loader_no_memory(loader);
    else if (rc)
        finding(loader, ER_E_CONFIG, "%s: %s", er_loader_where(loader, key), err.text);
}

static void count_gpus(struct er_loader *loader)
{
    struct er_config *config = loader->config;
    const char *list = visible_devices(loader), *where = er_loader_where(loader, "nproc_per_node");
    unsigned before = loader->findings.n;

    find_gpus(loader, "nproc_per_node");
    config->nproc = config->gpus_n ? config->gpus_n : 1;
    if (config->gpus_n || strcmp(config->nproc_text, "gpu") != 0 || loader->findings.n != before)
        return;
    if (list)
        finding(loader, ER_E_CONFIG,
                "%s: gpu, but CUDA_VISIBLE_DEVICES='%.60s' leaves none of this host's GPUs", where,
                list);
    else
        finding(loader, ER_E_CONFIG,
                "%s: gpu, but this host has none: neither NVML nor /dev/nvidia0 is there", where);
}

static void resolve_nproc(struct er_loader *loader)
{
    struct er_config *config = loader->config;
    const char *text = config->nproc_text;
    uint64_t n = 1;

    if (!strcmp(text, "cpu")) {
        config->nproc = count_cpus();
    } else if (!strcmp(text, "gpu") || !strcmp(text, "auto")) {
        count_gpus(loader);
    } else {
        er_parse_u64(text, 1, UINT32_MAX, &n, NULL); /* checked when it was set */
        config->nproc = (uint32_t)n;
    }
}

/* NUMA nodes of the local ranks' GPUs, malloc'ed; NULL: there is not one for each. */
static int *gpu_nodes(const struct er_config *config)
{
    int *nodes = config->gpus_n < config->nproc ? NULL : calloc(config->nproc, sizeof(*nodes));

    for (uint32_t i = 0; nodes && i < config->nproc; i++)
        nodes[i] = er_topology_pci_node(SYSFS, config->gpu_pcis[i]);
    return nodes;
}

static void resolve_binding(struct er_loader *loader)
{
    struct er_config *config = loader->config;
    enum er_binding_kind kind = er_binding_kind(config->node.numa_binding);
    ER_CLEANUP(er_cleanup_free) struct er_topology *topology = malloc(sizeof(*topology));
    ER_CLEANUP(er_cleanup_free) int *nodes = NULL;
    struct er_error err = ER_ERROR_INIT;
    struct er_cpuset allowed;
    int rc;

    if (kind == ER_BINDING_NONE)
        return;
    if (!config->gpu_pcis && er_gpu_driver_is_here())
        find_gpus(loader, "node.numa_binding");
    nodes = gpu_nodes(config);
    config->node.cpus = calloc(config->nproc, sizeof(*config->node.cpus));
    if (!topology || !config->node.cpus) {
        er_loader_no_memory(loader);
        return;
    }
    rc = er_topology_read(topology, SYSFS, &err);
    if (!rc)
        rc = er_topology_allowed(&allowed, &err);
    if (!rc)
        rc = er_binding_plan(topology, &allowed, kind, nodes, (int)config->nproc, config->node.cpus,
                             &err);
    if (rc)
        finding(loader, ER_E_CONFIG, "%s: %s", er_loader_where(loader, "node.numa_binding"),
                err.text);
}

void er_loader_host(struct er_loader *loader)
{
    resolve_nproc(loader);
    resolve_binding(loader);
}
