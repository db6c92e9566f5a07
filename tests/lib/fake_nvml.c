/*
 * A stand-in for libnvidia-ml.so.1: what it tells is in the file $FAKE_NVML, in the words of
 * agent/gpu_table.h ("gpu UUID PCI", "mig UUID", "pid N"). Without the file it does not come up.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT    __attribute__((visibility("default")))
#define ITEMS_MAX 64

enum { DONE = 0, FAILED = 3 };

struct item {
    char kind[8], uuid[96], pci[32];
};

static struct item items[ITEMS_MAX];
static unsigned items_n;

static unsigned count(const struct item *gpu, const char *kind)
{
    unsigned n = 0;

    for (const struct item *i = gpu + 1; i < items + items_n && strcmp(i->kind, "gpu") != 0; i++)
        n += strcmp(i->kind, kind) == 0;
    return n;
}

static struct item *nth(struct item *from, const char *kind, unsigned index)
{
    for (struct item *i = from; i < items + items_n; i++) {
        if (strcmp(i->kind, kind) == 0 && index-- == 0)
            return i;
    }
    return NULL;
}

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlInit_v2(void)
{
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];

    while (file && fgets(line, sizeof(line), file) && items_n < ITEMS_MAX) {
        struct item *i = &items[items_n++];

        sscanf(line, "%7s %95s %31s", i->kind, i->uuid, i->pci);
    }
    if (file)
        fclose(file);
    return file ? DONE : FAILED;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *n);
EXPORT int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = 0;
    while (nth(items, "gpu", *n))
        (*n)++;
    return DONE;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **ret);
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **ret)
{
    *ret = nth(items, "gpu", index);
    return *ret ? DONE : FAILED;
}

EXPORT int nvmlDeviceGetUUID(struct item *i, char *text, unsigned cap);
EXPORT int nvmlDeviceGetUUID(struct item *i, char *text, unsigned cap)
{
    snprintf(text, cap, "%s", i->uuid);
    return DONE;
}

struct pci {
    char legacy[16];
    unsigned numbers[5];
    char bus_id[32];
};

EXPORT int nvmlDeviceGetPciInfo_v3(struct item *i, struct pci *ret);
EXPORT int nvmlDeviceGetPciInfo_v3(struct item *i, struct pci *ret)
{
    snprintf(ret->bus_id, sizeof(ret->bus_id), "%s", i->pci);
    return DONE;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(struct item *i, unsigned *max);
EXPORT int nvmlDeviceGetMaxMigDeviceCount(struct item *i, unsigned *max)
{
    *max = count(i, "mig");
    return DONE;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(struct item *i, unsigned index, void **ret);
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(struct item *i, unsigned index, void **ret)
{
    *ret = nth(i, "mig", index);
    return *ret ? DONE : FAILED;
}

struct process {
    unsigned pid;
    unsigned long long bytes;
    unsigned instances[2];
};

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(struct item *i, unsigned *n,
                                                   struct process *ret);
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(struct item *i, unsigned *n, struct process *ret)
{
    unsigned there = count(i, "pid");

    if (there > *n)
        return 7; /* too small */
    for (unsigned p = 0; p < there; p++)
        ret[p] = (struct process){.pid = (unsigned)atoi(nth(i, "pid", p)->uuid), .bytes = 1};
    *n = there;
    return DONE;
}
