/* Finds er_nccl.so beside the program or among the installed files. */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/gpu_module.h"

#define MODULE_FILE "er_nccl.so"

/* What CUDA and NCCL read once, at their first call. Values that the user has set stay. */
static void prepare_environment(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 0); /* loading a kernel late waits for the device */
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);    /* connections are made while opening, not later */
    unsetenv("NCCL_COMM_BLOCKING");            /* overrides the configuration */
    unsetenv("NCCL_COMM_ID");                  /* would replace the generation's own id */
    unsetenv("NCCL_LAUNCH_MODE");
}

/* The folder of the running program; "": not known. */
static void program_folder(char ret_path[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", ret_path, PATH_MAX - 1);
    char *slash;

    ret_path[n > 0 ? n : 0] = 0;
    slash = strrchr(ret_path, '/');
    if (slash)
        *slash = 0;
}

static int try_load(const char *folder, const struct er_gpu_module **ret, struct er_error *err)
{
    char path[PATH_MAX + sizeof(MODULE_FILE)];
    const struct er_gpu_module *module;
    void *handle;

    snprintf(path, sizeof(path), "%s/" MODULE_FILE, folder);
    if (!*folder || access(path, R_OK) < 0)
        return 1; /* not here */
    prepare_environment();
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle)
        return er_error_set(err, ER_E_UNSUPPORTED, "the GPU module cannot be loaded: %s",
                            dlerror());
    module = dlsym(handle, ER_GPU_MODULE_SYMBOL);
    if (!module || module->version != ER_GPU_MODULE_VERSION)
        return er_error_set(err, ER_E_UNSUPPORTED, "'%s' belongs to another version of elastic-run",
                            path);
    *ret = module;
    return 0;
}

static int load(const struct er_gpu_module **ret, struct er_error *err)
{
    const char *wanted = getenv("ELASTIC_MODULE_DIR");
    char folder[PATH_MAX] = "";
    int rc = 1;

    if (wanted && *wanted) {
        rc = try_load(wanted, ret, err);
        return rc != 1 ? rc
                       : er_error_set(err, ER_E_UNSUPPORTED,
                                      "no " MODULE_FILE " in ELASTIC_MODULE_DIR '%s'", wanted);
    }
    program_folder(folder);
    rc = try_load(folder, ret, err);
    if (rc == 1)
        rc = try_load(ER_MODULE_DIR, ret, err);
    if (rc != 1)
        return rc;
    return er_error_set(err, ER_E_UNSUPPORTED,
                        "this build has no GPU module: no " MODULE_FILE
                        " in '%s' or '" ER_MODULE_DIR "' (it is built where CUDA's runtime and "
                        "NCCL are installed with their headers; ELASTIC_MODULE_DIR names another "
                        "folder)",
                        folder);
}

int er_gpu_load(const struct er_gpu_module **ret, struct er_error *err)
{
    static const struct er_gpu_module *loaded; /* one owner thread; never unloaded */
    int rc = loaded ? 0 : load(&loaded, err);

    if (rc == 0)
        *ret = loaded;
    return rc;
}
