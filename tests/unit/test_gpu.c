/* GPUs: the driver's files, and what CUDA_VISIBLE_DEVICES leaves of them. */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/gpu.h"
#include "base/file.h"

#define FOUR                                                                                       \
    "gpu GPU-aa11 0000:17:00.0\ngpu GPU-aa22 0000:3b:00.0\ngpu GPU-bb33 0000:86:00.0\n"            \
    "mig MIG-x\nmig MIG-y\npid 17\npid 4242\ngpu GPU-bb44 0000:af:00.0\nmig MIG-z\n"

static struct er_gpu_table table;

/* "0 1 3", "MIG 2 3", "error" */
static const char *seen_as(const char *text, const char *list)
{
    static char ret[256];
    struct er_gpu_seen seen;
    size_t used = 0;

    cr_assert_eq(er_gpu_table_parse(&table, text, NULL), 0);
    if (er_gpu_table_seen(&table, list, &seen, NULL))
        return "error";
    ret[0] = '\0';
    if (seen.migs)
        used = (size_t)snprintf(ret, sizeof(ret), "MIG");
    for (size_t i = 0; i < seen.n; i++)
        used +=
            (size_t)snprintf(ret + used, sizeof(ret) - used, "%s%d", used ? " " : "", seen.gpus[i]);
    return ret;
}

Test(gpu, visible_devices_are_read_as_torch_reads_them)
{
    static const struct {
        const char *list, *want;
    } CASES[] = {
        {NULL, "0 1 2 3"},
        {"", ""},
        {"-1", ""},
        {"0", "0"},
        {"2,0", "2 0"},
        {"0,1,2,3", "0 1 2 3"},
        {" 1 , +2", "1 2"},
        {"1gpu,2x", "1 2"},
        {"0,-1,1", "0"},
        {"0,9,1", "0"},
        {"0,99999999999,1", "0"},
        {"0,,1", "0"},
        {"1,1", ""},
        {"NoDevFiles", ""},
        {"GPU-aa22", "1"},
        {"GPU-bb33,GPU-aa11", "2 0"},
        {"GPU-aa2,GPU-bb4", "1 3"},
        {"GPU-aa", ""},         /* several begin like this */
        {"GPU-aa11,1", "0"},    /* one kind only */
        {"GPU-aa11,GPU-", "0"}, /* several */
        {"GPU-aa11,GPU-cc", "0"},
        {"GPU-aa11,GPU-aa11", ""},
        {"MIG-y,MIG-z", "MIG 2 3"},
        {"MIG-x,MIG-q,MIG-y", "MIG 2"},
        {"MIG-x,MIG-x", "MIG"},
    };

    for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++)
        cr_expect_str_eq(seen_as(FOUR, CASES[i].list), CASES[i].want, "'%s': %s", CASES[i].list,
                         seen_as(FOUR, CASES[i].list));
    cr_expect_eq(table.pids_n, 2);
    cr_expect_eq(table.pids[1], 4242);
    cr_expect_str_eq(table.gpus[3].pci, "0000:af:00.0");
}

Test(gpu, uuids_need_a_driver_that_tells_them)
{
    cr_expect_str_eq(seen_as("gpu - -\ngpu - -\n", NULL), "0 1");
    cr_expect_str_eq(seen_as("gpu - -\ngpu - -\n", "1"), "1");
    cr_expect_str_eq(seen_as("gpu - -\ngpu - -\n", "GPU-aa"), "error");
    cr_expect_str_eq(seen_as("gpu - -\n", "MIG-aa"), "error");
    cr_expect_str_eq(seen_as("", "GPU-aa"), "");
}

Test(gpu, what_the_probe_never_writes_is_refused)
{
    static const char *const WRONG[] = {"gpu a b", "x\n", "\n", "mig a\n", "pid x\n", "pid 1 2\n"};

    for (size_t i = 0; i < sizeof(WRONG) / sizeof(WRONG[0]); i++)
        cr_expect_eq(er_gpu_table_parse(&table, WRONG[i], NULL), ER_E_CONFIG, "%s", WRONG[i]);
}

static void put(const char *root, const char *folder, const char *file, const char *text)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/%s", root, folder);
    cr_assert_eq(er_mkdir_all(path, 0755, NULL), 0);
    snprintf(path, sizeof(path), "%s/%s/%s", root, folder, file);
    cr_assert_eq(er_file_replace(path, text, strlen(text), 0644, NULL), 0);
}

Test(gpu, the_drivers_files_tell_the_same)
{
    char root[] = "/tmp/er-gpu-XXXXXX";
    struct er_buf out;

    cr_assert(mkdtemp(root));
    er_buf_init(&out, 4096);
    cr_expect_eq(er_gpu_probe_files(&out, root), 0);
    cr_expect_str_eq(er_buf_str(&out), "");
    put(root, "dev", "nvidia0", "");
    put(root, "dev", "nvidia1", "");
    put(root, "dev", "nvidiactl", "");
    put(root, "dev", "nvidia-uvm", "");
    cr_expect_eq(er_gpu_probe_files(&out, root), 0);
    cr_expect_str_eq(er_buf_str(&out), "gpu - -\ngpu - -\n");
    er_buf_clear(&out);
    put(root, "proc/driver/nvidia/gpus/0000:86:00.0", "information",
        "Model: \t\t NVIDIA H100\nIRQ:   \t\t 0\nGPU UUID: \t GPU-1f-2\nBus Type: \t PCIe\n");
    put(root, "proc/driver/nvidia/gpus/0000:17:00.0", "information",
        "Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-?-?\n");
    cr_expect_eq(er_gpu_probe_files(&out, root), 0);
    cr_expect_str_eq(er_buf_str(&out), "gpu - 0000:17:00.0\ngpu GPU-1f-2 0000:86:00.0\n");
    er_buf_done(&out);
    er_remove_all(root, NULL);
}
