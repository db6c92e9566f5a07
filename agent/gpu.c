#include "agent/gpu.h"

#include <ctype.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"

#define PROBE_US  (30 * ER_US_PER_S)
#define TEXT_MAX  (256u * 1024)
#define PROCESSES 1024 /* of one GPU */

/* What is used of NVML, as its API reference has it; every function returns 0 when done. */
struct nvml_pci {
    char legacy[16];
    unsigned domain, bus, device, ids, subsystem;
    char bus_id[32];
};

struct nvml_process {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

struct nvml {
    int (*init)(void);
    int (*count)(unsigned *n);
    int (*handle)(unsigned index, void **ret);
    int (*uuid)(void *device, char *text, unsigned cap);
    int (*pci)(void *device, struct nvml_pci *ret);
    int (*migs)(void *device, unsigned *max);             /* NULL: an older driver */
    int (*mig)(void *device, unsigned index, void **ret); /* NULL: an older driver */
    int (*processes)(void *device, unsigned *n, struct nvml_process *ret); /* NULL: older */
};

static bool load_nvml(struct nvml *ret)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);

    if (!library)
        return false;
    *(void **)&ret->init = dlsym(library, "nvmlInit_v2");
    *(void **)&ret->count = dlsym(library, "nvmlDeviceGetCount_v2");
    *(void **)&ret->handle = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&ret->uuid = dlsym(library, "nvmlDeviceGetUUID");
    *(void **)&ret->pci = dlsym(library, "nvmlDeviceGetPciInfo_v3");
    *(void **)&ret->migs = dlsym(library, "nvmlDeviceGetMaxMigDeviceCount");
    *(void **)&ret->mig = dlsym(library, "nvmlDeviceGetMigDeviceHandleByIndex");
    *(void **)&ret->processes = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (!ret->processes)
        *(void **)&ret->processes = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v2");
    return ret->init && ret->count && ret->handle && ret->uuid && ret->pci;
}

/* NVML writes the domain with eight digits, sysfs with four, and both letters in either case. */
static const char *sysfs_pci(char *text)
{
    size_t n = strlen(text);

    for (char *at = text; *at; at++)
        *at = (char)tolower((unsigned char)*at);
    return n > 12 && strspn(text, "0") >= n - 12 ? text + n - 12 : text;
}

static int write_migs(const struct nvml *l, void *device, struct er_buf *out)
{
    unsigned max = 0;
    int rc = 0;

    if (!l->migs || !l->mig || l->migs(device, &max) != 0)
        return 0;
    for (unsigned i = 0; !rc && i < max; i++) {
        char uuid[ER_GPU_UUID_MAX] = "";
        void *mig;

        if (l->mig(device, i, &mig) == 0 && l->uuid(mig, uuid, sizeof(uuid)) == 0)
            rc = er_buf_printf(out, "mig %s\n", uuid);
    }
    return rc;
}

static int write_processes(const struct nvml *l, void *device, struct er_buf *out)
{
    static struct nvml_process items[PROCESSES];
    unsigned n = PROCESSES;
    int rc = 0;

    if (!l->processes || l->processes(device, &n, items) != 0)
        return 0;
    for (unsigned i = 0; !rc && i < n && i < PROCESSES; i++)
        rc = er_buf_printf(out, "pid %u\n", items[i].pid);
    return rc;
}

/* 1: NVML cannot tell. */
static int probe_nvml(struct er_buf *out, bool pids)
{
    struct nvml l = {0};
    unsigned n = 0;
    int rc = 0;

    if (!load_nvml(&l) || l.init() != 0 || l.count(&n) != 0)
        return 1;
    for (unsigned i = 0; !rc && i < n; i++) {
        char uuid[ER_GPU_UUID_MAX] = "-";
        struct nvml_pci pci = {.bus_id = "-"};
        void *device;

        if (l.handle(i, &device) != 0)
            continue; /* one that fell off the bus, or that is not ours to use */
        (void)l.uuid(device, uuid, sizeof(uuid));
        (void)l.pci(device, &pci);
        rc = er_buf_printf(out, "gpu %s %s\n", uuid, sysfs_pci(pci.bus_id));
        if (!rc)
            rc = write_migs(&l, device, out);
        if (!rc && pids)
            rc = write_processes(&l, device, out);
    }
    return rc;
}

/* <folder>/<pci>/information holds "GPU UUID:    GPU-...". */
static int write_proc_gpu(struct er_buf *out, const char *folder, const char *pci)
{
    char path[1024];
    ER_CLEANUP(er_buf_done) struct er_buf text;
    const char *at;
    size_t n;

    er_buf_init(&text, 64 * 1024);
    snprintf(path, sizeof(path), "%s/%s/information", folder, pci);
    at = er_file_read(path, &text, NULL) ? NULL : strstr(er_buf_str(&text), "GPU UUID:");
    at = at ? at + strlen("GPU UUID:") + strspn(at + strlen("GPU UUID:"), " \t") : "-";
    n = strcspn(at, " \t\n");
    if (memchr(at, '?', n)) { /* without the right to know it */
        at = "-";
        n = 1;
    }
    return er_buf_printf(out, "gpu %.*s %s\n", (int)n, at, pci);
}

static int is_pci(const struct dirent *entry)
{
    return isxdigit((unsigned char)entry->d_name[0]) && strchr(entry->d_name, ':') != NULL;
}

static int is_device(const struct dirent *entry)
{
    const char *digits = entry->d_name + 6;

    return strncmp(entry->d_name, "nvidia", 6) == 0 && *digits &&
           digits[strspn(digits, "0123456789")] == '\0';
}

int er_gpu_probe_files(struct er_buf *out, const char *root)
{
    char folder[256];
    struct dirent **entries = NULL;
    int rc = 0, n;

    snprintf(folder, sizeof(folder), "%s/proc/driver/nvidia/gpus", root);
    n = scandir(folder, &entries, is_pci, alphasort);
    for (int i = 0; i < n; i++) {
        if (!rc)
            rc = write_proc_gpu(out, folder, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    if (n > 0)
        return rc;
    snprintf(folder, sizeof(folder), "%s/dev", root);
    entries = NULL;
    n = scandir(folder, &entries, is_device, versionsort);
    for (int i = 0; i < n; i++) {
        if (!rc)
            rc = er_buf_add_str(out, "gpu - -\n");
        free(entries[i]);
    }
    free(entries);
    return rc;
}

int er_gpu_probe(int fd, bool pids, const char *root)
{
    ER_CLEANUP(er_buf_done) struct er_buf text;
    int rc;

    er_buf_init(&text, TEXT_MAX);
    rc = probe_nvml(&text, pids);
    if (rc > 0)
        rc = er_gpu_probe_files(&text, root);
    return rc ? rc : er_write_all(fd, text.data, text.len);
}

bool er_gpu_driver_is_here(void)
{
    return access("/proc/driver/nvidia", F_OK) == 0 || access("/dev/nvidiactl", F_OK) == 0;
}

/* Until the end of the file; -ETIMEDOUT. */
static int read_text(int fd, struct er_buf *text)
{
    uint64_t end_us = er_now_us() + PROBE_US;

    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        uint64_t now_us = er_now_us();
        char some[4096];
        ssize_t n;

        if (now_us >= end_us || poll(&p, 1, (int)((end_us - now_us) / 1000) + 1) == 0)
            return -ETIMEDOUT;
        n = read(fd, some, sizeof(some));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : 0;
        if (er_buf_add(text, some, (size_t)n))
            return -ENOBUFS;
    }
}

int er_gpu_read(struct er_gpu_table *ret_table, struct er_error *err)
{
    ER_CLEANUP(er_buf_done) struct er_buf text;
    ER_CLEANUP(er_cleanup_fd) int from = -1;
    int pair[2], rc;
    pid_t pid;

    er_buf_init(&text, TEXT_MAX);
    if (pipe2(pair, O_CLOEXEC) < 0)
        return er_error_errno(err, "GPUs: make a pipe");
    from = pair[0];
    pid = fork();
    if (pid < 0) {
        rc = er_error_errno(err, "GPUs: fork");
        close(pair[1]);
        return rc;
    }
    if (pid == 0)
        _exit(er_gpu_probe(pair[1], false, "") ? 1 : 0);
    close(pair[1]);
    rc = read_text(from, &text);
    kill(pid, SIGKILL);
    if (rc == -ETIMEDOUT) /* it may be beyond killing: who sweeps later reaps it */
        return er_error_set(err, rc, "GPUs: the NVIDIA driver does not answer (waited 30 s)");
    waitpid(pid, NULL, 0);
    if (rc)
        return er_error_set(err, rc, "GPUs: read the probe's answer: %s", er_error_name(rc));
    return er_gpu_table_parse(ret_table, er_buf_str(&text), err);
}
