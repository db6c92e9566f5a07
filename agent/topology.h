#pragma once
/* The machine as sysfs tells it: what agent/binding.h plans with. */
#include "agent/binding.h"

/* `sysfs` is "/sys" but for tests. What a machine does not tell is one for all: a kernel without
 * NUMA has the node 0, one without cache folders a cache for each package. -errno, ER_E_CONFIG. */
int er_topology_read(struct er_topology *ret, const char *sysfs, struct er_error *err);
/* NUMA node of a PCI device ("0000:3b:00.0"); -1: not known. */
int er_topology_pci_node(const char *sysfs, const char *pci);
/* The CPUs that the calling process may use. */
int er_topology_allowed(struct er_cpuset *ret, struct er_error *err);
