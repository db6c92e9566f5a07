#include "agent/topology.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/file.h"

#define CACHES_MAX 8 /* index0 ... of one CPU */

/* The file's text, "" when there is none; owned by the caller through er_buf_done(). */
static struct er_buf read_file(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static struct er_buf read_file(const char *fmt, ...)
{
    char path[512];
    struct er_buf text;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(path, sizeof(path), fmt, ap);
    va_end(ap);
    er_buf_init(&text, 64 * 1024);
    if (er_file_read(path, &text, NULL))
        er_buf_clear(&text);
    return text;
}

static int read_number(struct er_buf text, int missing)
{
    char *end;
    long number = strtol(er_buf_str(&text), &end, 10);
    bool is_number = end != er_buf_str(&text) && number >= INT16_MIN && number <= INT16_MAX;

    er_buf_done(&text);
    return is_number ? (int)number : missing;
}

/* First CPU of a list file; -1: no file. */
static int read_first(struct er_buf text)
{
    struct er_cpuset set;
    int first = -1;

    if (er_buf_str(&text)[0] && er_cpuset_parse(&set, er_buf_str(&text)) == 0)
        first = er_cpuset_first(&set);
    er_buf_done(&text);
    return first;
}

/* The cache of the highest level, by its first CPU. */
static int read_cache(const char *cpu)
{
    int best = 0, first = -1;

    for (int i = 0; i < CACHES_MAX; i++) {
        int level = read_number(read_file("%s/cache/index%d/level", cpu, i), 0);

        if (level <= best)
            continue;
        best = level;
        first = read_first(read_file("%s/cache/index%d/shared_cpu_list", cpu, i));
    }
    return first;
}

static void read_cpu(struct er_topology *t, const char *sysfs, int cpu)
{
    struct er_topology_cpu *c = &t->cpus[cpu];
    char path[256];
    int first;

    snprintf(path, sizeof(path), "%s/devices/system/cpu/cpu%d", sysfs, cpu);
    c->online = true;
    c->package = (int16_t)read_number(read_file("%s/topology/physical_package_id", path), 0);
    first = read_first(read_file("%s/topology/thread_siblings_list", path));
    c->core = (int16_t)(first < 0 ? cpu : first);
    c->cache = (int16_t)read_cache(path);
}

/* Without cache folders (some virtual machines): one cache for each package. */
static void fill_caches(struct er_topology *t)
{
    for (int cpu = 0; cpu < t->n; cpu++) {
        for (int16_t i = 0; t->cpus[cpu].cache < 0 && i <= cpu; i++) {
            if (t->cpus[i].online && t->cpus[i].package == t->cpus[cpu].package)
                t->cpus[cpu].cache = i;
        }
    }
}

static int read_nodes(struct er_topology *t, const char *sysfs, struct er_error *err)
{
    char folder[256];
    DIR *dir;
    int rc = 0;

    snprintf(folder, sizeof(folder), "%s/devices/system/node", sysfs);
    dir = opendir(folder);
    if (!dir)
        return 0; /* a kernel without NUMA */
    for (struct dirent *entry; !rc && (entry = readdir(dir));) {
        struct er_cpuset set;
        struct er_buf text;
        int node;

        if (sscanf(entry->d_name, "node%d", &node) != 1 || node < 0 || node > INT16_MAX)
            continue;
        text = read_file("%s/%s/cpulist", folder, entry->d_name);
        rc = er_cpuset_parse(&set, er_buf_str(&text));
        er_buf_done(&text);
        if (rc)
            er_error_set(err, ER_E_CONFIG, "%s/%s/cpulist: not a list of CPUs", folder,
                         entry->d_name);
        for (int cpu = 0; !rc && cpu < t->n; cpu++) {
            if (er_cpuset_has(&set, cpu))
                t->cpus[cpu].node = (int16_t)node;
        }
    }
    closedir(dir);
    return rc ? ER_E_CONFIG : 0;
}

int er_topology_read(struct er_topology *ret, const char *sysfs, struct er_error *err)
{
    ER_CLEANUP(er_buf_done) struct er_buf text = read_file("%s/devices/system/cpu/online", sysfs);
    struct er_cpuset online;

    memset(ret, 0, sizeof(*ret));
    if (er_cpuset_parse(&online, er_buf_str(&text)) || er_cpuset_first(&online) < 0)
        return er_error_set(err, ER_E_CONFIG, "%s/devices/system/cpu/online: not a list of CPUs",
                            sysfs);
    for (int cpu = 0; cpu < ER_CPUS_MAX; cpu++) {
        if (!er_cpuset_has(&online, cpu))
            continue;
        ret->n = cpu + 1;
        read_cpu(ret, sysfs, cpu);
    }
    fill_caches(ret);
    return read_nodes(ret, sysfs, err);
}

int er_topology_pci_node(const char *sysfs, const char *pci)
{
    return pci[0] ? read_number(read_file("%s/bus/pci/devices/%s/numa_node", sysfs, pci), -1) : -1;
}

int er_topology_allowed(struct er_cpuset *ret, struct er_error *err)
{
    memset(ret, 0, sizeof(*ret));
    /* Not the C library's, whose cpu_set_t ends at 1024. */
    if (syscall(SYS_sched_getaffinity, 0, sizeof(ret->bits), ret->bits) < 0)
        return er_error_errno(err, "ask for the CPUs that may be used");
    return 0;
}
