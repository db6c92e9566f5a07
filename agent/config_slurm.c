/* A store of the job's own under Slurm: the allocation says where it can be. */
#include "agent/config_internal.h"

#include <stdio.h>

#include "agent/hostlist.h"
#include "agent/managed_plan.h"
#include "agent/subst.h"
#include "base/parse.h"

/* Jobs that share a host must not meet: two ports for each of 5,000 jobs in a row, below those that
 * Linux gives to clients. */
#define PORTS_FROM 20000u
#define PORTS_JOBS 5000u
#define LIST_MAX   (ER_MANAGED_MAX * (ER_HOSTLIST_NAME_MAX + 16))

/* The allocation's first host, or its first three, as rendezvous.endpoints; false: not known. */
static bool endpoints_of(const char *nodes, unsigned port, char ret[LIST_MAX])
{
    char hosts[ER_MANAGED_MAX][ER_HOSTLIST_NAME_MAX];
    size_t n = 0, used = 0;

    if (er_hostlist_first(nodes, hosts, ER_MANAGED_MAX, &n, NULL))
        return false;
    n = n < ER_MANAGED_MAX ? 1 : n;
    for (size_t i = 0; i < n; i++)
        used += (size_t)snprintf(ret + used, LIST_MAX - used, "%s\"%s:%u\"", i ? "," : "[",
                                 hosts[i], port);
    snprintf(ret + used, LIST_MAX - used, "]");
    return true;
}

void er_loader_slurm_end(struct er_loader *loader)
{
    const char *end = er_environ_get(loader->environ_, "SLURM_JOB_END_TIME");
    uint64_t end_s;

    if (end && !er_loader_was_given(loader, "preempt.deadline") &&
        !er_parse_u64(end, 0, UINT32_MAX, &end_s, NULL))
        loader->config->preempt.ends_wall_us = end_s * ER_US_PER_S;
}

uint64_t er_config_preempt_deadline(const struct er_config *config, uint64_t wall_us)
{
    uint64_t ends_us = config->preempt.ends_wall_us;

    if (!ends_us)
        return config->preempt.deadline_us;
    return ends_us > wall_us ? ends_us - wall_us : 0;
}

bool er_loader_managed_slurm(struct er_loader *loader)
{
    const char *job = er_environ_get(loader->environ_, "SLURM_JOB_ID");
    const char *nodes = er_environ_get(loader->environ_, "SLURM_JOB_NODELIST");
    const struct er_config_source source = {.layer = ER_LAYER_SCHEDULER,
                                            .label = "SLURM_JOB_NODELIST"};
    char list[LIST_MAX], peer[16];
    uint64_t id;
    unsigned port;

    if (!job || !nodes || er_parse_u64(job, 0, UINT64_MAX, &id, NULL))
        return false;
    port = PORTS_FROM + 2 * (unsigned)(id % PORTS_JOBS);
    if (!endpoints_of(nodes, port, list))
        return false;
    snprintf(peer, sizeof(peer), "%u", port + 1);
    er_loader_set_text(loader, er_key_get("rendezvous.endpoints"), list, &source);
    er_loader_set_text(loader, er_key_get("rendezvous.managed.peer_port"), peer, &source);
    return true;
}
