#include "agent/binding.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODES_MAX 1024

int er_cpuset_parse(struct er_cpuset *ret, const char *text)
{
    struct er_cpuset set = {.bits = {0}};

    while (*text && *text != '\n') {
        char *end;
        long low = strtol(text, &end, 10), high = low;

        if (end == text || low < 0)
            return -EINVAL;
        if (*end == '-') {
            text = end + 1;
            high = strtol(text, &end, 10);
            if (end == text)
                return -EINVAL;
        }
        if (high < low || high >= ER_CPUS_MAX || (*end && *end != ',' && *end != '\n'))
            return -EINVAL;
        for (long cpu = low; cpu <= high; cpu++)
            er_cpuset_add(&set, (int)cpu);
        text = end + (*end == ',');
    }
    *ret = set;
    return 0;
}

const char *er_cpuset_format(const struct er_cpuset *set, char ret_text[ER_CPU_LIST_MAX])
{
    size_t used = 0;

    ret_text[0] = '\0';
    for (int cpu = 0; cpu < ER_CPUS_MAX; cpu++) {
        int last = cpu;
        char item[24];
        size_t n;

        if (!er_cpuset_has(set, cpu))
            continue;
        while (er_cpuset_has(set, last + 1))
            last++;
        n = (size_t)snprintf(item, sizeof(item), last > cpu ? "%s%d-%d" : "%s%d", used ? "," : "",
                             cpu, last);
        if (used + n + sizeof("...") > ER_CPU_LIST_MAX) {
            strcpy(ret_text + used, "...");
            break;
        }
        memcpy(ret_text + used, item, n + 1);
        used += n;
        cpu = last;
    }
    return ret_text;
}

enum er_binding_kind er_binding_kind(const char *name)
{
    static const char *const NAMES[ER_BINDING_KIND_COUNT] = {
        [ER_BINDING_NONE] = "none",
        [ER_BINDING_NODE] = "node",
        [ER_BINDING_SOCKET] = "socket",
        [ER_BINDING_EXCLUSIVE] = "exclusive",
        [ER_BINDING_CORE_COMPLEX] = "core-complex",
    };

    for (int i = 0; i < ER_BINDING_KIND_COUNT; i++) {
        if (strcmp(NAMES[i], name) == 0)
            return (enum er_binding_kind)i;
    }
    return ER_BINDING_NONE;
}

struct plan {
    const struct er_topology *t;
    const struct er_cpuset *allowed;
    const int *gpu_nodes; /* NULL: the nodes take turns */
    int workers;
    int nodes[NODES_MAX], nodes_n; /* with CPUs that may be used */
};

static bool usable(const struct plan *p, int cpu)
{
    return p->t->cpus[cpu].online && er_cpuset_has(p->allowed, cpu);
}

static void find_nodes(struct plan *p)
{
    bool has[NODES_MAX] = {false};

    for (int cpu = 0; cpu < p->t->n; cpu++) {
        int node = p->t->cpus[cpu].node;

        if (usable(p, cpu) && node >= 0 && node < NODES_MAX)
            has[node] = true;
    }
    for (int node = 0; node < NODES_MAX; node++) {
        if (has[node])
            p->nodes[p->nodes_n++] = node;
    }
}

static int home_of(const struct plan *p, int rank)
{
    return p->gpu_nodes ? p->gpu_nodes[rank]
                        : p->nodes[(int)((long)rank * p->nodes_n / p->workers)];
}

/* How many workers the rank's home has, and which of them it is. */
static int neighbours(const struct plan *p, int rank, int *ret_index)
{
    int n = 0;

    for (int i = 0; i < p->workers; i++) {
        if (i == rank)
            *ret_index = n;
        n += home_of(p, i) == home_of(p, rank);
    }
    return n;
}

static void take_node(const struct plan *p, int rank, struct er_cpuset *ret)
{
    for (int cpu = 0; cpu < p->t->n; cpu++) {
        if (usable(p, cpu) && p->t->cpus[cpu].node == home_of(p, rank))
            er_cpuset_add(ret, cpu);
    }
}

static void take_socket(const struct plan *p, int rank, struct er_cpuset *ret)
{
    struct er_cpuset home = {.bits = {0}};
    int first;

    take_node(p, rank, &home);
    first = er_cpuset_first(&home);
    for (int cpu = 0; first >= 0 && cpu < p->t->n; cpu++) {
        if (usable(p, cpu) && p->t->cpus[cpu].package == p->t->cpus[first].package)
            er_cpuset_add(ret, cpu);
    }
}

/* The distinct cores, or caches, of a set, in the order of their first CPU. */
static int distinct(const struct plan *p, const struct er_cpuset *set, bool caches,
                    int16_t ret[ER_CPUS_MAX])
{
    struct er_cpuset seen = {.bits = {0}};
    int n = 0;

    for (int cpu = 0; cpu < p->t->n; cpu++) {
        int16_t id = caches ? p->t->cpus[cpu].cache : p->t->cpus[cpu].core;

        if (!er_cpuset_has(set, cpu) || er_cpuset_has(&seen, id))
            continue;
        er_cpuset_add(&seen, id);
        ret[n++] = id;
    }
    return n;
}

static int take_cores(const struct plan *p, int rank, struct er_cpuset *ret, struct er_error *err)
{
    struct er_cpuset home = {.bits = {0}};
    int16_t cores[ER_CPUS_MAX];
    int index = 0, n = neighbours(p, rank, &index), cores_n, each, more, first;

    take_node(p, rank, &home);
    cores_n = distinct(p, &home, false, cores);
    if (cores_n < n)
        return er_error_set(err, ER_E_CONFIG,
                            "exclusive: NUMA node %d has %d usable core%s for %d workers",
                            home_of(p, rank), cores_n, cores_n == 1 ? "" : "s", n);
    each = cores_n / n;
    more = cores_n % n; /* the first ones get one more */
    first = index * each + (index < more ? index : more);
    for (int i = first; i < first + each + (index < more); i++) {
        for (int cpu = 0; cpu < p->t->n; cpu++) {
            if (er_cpuset_has(&home, cpu) && p->t->cpus[cpu].core == cores[i])
                er_cpuset_add(ret, cpu);
        }
    }
    return 0;
}

static int size_of_cache(const struct plan *p, const struct er_cpuset *set, int16_t cache)
{
    int n = 0;

    for (int cpu = 0; cpu < p->t->n; cpu++)
        n += er_cpuset_has(set, cpu) && p->t->cpus[cpu].cache == cache;
    return n;
}

/* Larger ones first, among equals as they come: an insertion sort of a few. */
static void sort_caches(const struct plan *p, const struct er_cpuset *set, int16_t *caches, int n)
{
    for (int i = 1; i < n; i++) {
        int16_t cache = caches[i];
        int j = i;

        for (; j > 0 && size_of_cache(p, set, caches[j - 1]) < size_of_cache(p, set, cache); j--)
            caches[j] = caches[j - 1];
        caches[j] = cache;
    }
}

static void take_cache(const struct plan *p, int rank, struct er_cpuset *ret)
{
    struct er_cpuset home = {.bits = {0}};
    int16_t caches[ER_CPUS_MAX];
    int index = 0, n;

    neighbours(p, rank, &index);
    take_node(p, rank, &home);
    n = distinct(p, &home, true, caches);
    sort_caches(p, &home, caches, n);
    for (int cpu = 0; n > 0 && cpu < p->t->n; cpu++) {
        if (er_cpuset_has(&home, cpu) && p->t->cpus[cpu].cache == caches[index % n])
            er_cpuset_add(ret, cpu);
    }
}

static int take(const struct plan *p, enum er_binding_kind kind, int rank, struct er_cpuset *ret,
                struct er_error *err)
{
    int rc = 0;

    memset(ret, 0, sizeof(*ret));
    switch (kind) {
    case ER_BINDING_NODE:
        take_node(p, rank, ret);
        break;
    case ER_BINDING_SOCKET:
        take_socket(p, rank, ret);
        break;
    case ER_BINDING_EXCLUSIVE:
        rc = take_cores(p, rank, ret, err);
        break;
    case ER_BINDING_CORE_COMPLEX:
        take_cache(p, rank, ret);
        break;
    case ER_BINDING_NONE:
    case ER_BINDING_KIND_COUNT:
        *ret = *p->allowed;
        break;
    }
    if (!rc && er_cpuset_first(ret) < 0)
        rc = er_error_set(err, ER_E_CONFIG,
                          "local rank %d: none of the CPUs that the agent may use belongs to NUMA "
                          "node %d, its GPU's",
                          rank, home_of(p, rank));
    return rc;
}

int er_binding_plan(const struct er_topology *t, const struct er_cpuset *allowed,
                    enum er_binding_kind kind, const int *gpu_nodes, int workers,
                    struct er_cpuset *ret_sets, struct er_error *err)
{
    struct plan p = {.t = t, .allowed = allowed, .gpu_nodes = gpu_nodes, .workers = workers};
    int rc = 0;

    for (int i = 0; p.gpu_nodes && i < workers; i++) {
        if (gpu_nodes[i] < 0)
            p.gpu_nodes = NULL;
    }
    find_nodes(&p);
    if (p.nodes_n == 0)
        return er_error_set(err, ER_E_CONFIG, "the agent may use no CPU that is on-line");
    for (int i = 0; !rc && i < workers; i++)
        rc = take(&p, kind, i, &ret_sets[i], err);
    return rc;
}
