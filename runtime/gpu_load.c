/* Finds er_nccl.so beside the program or among the installed files. */
#include <stdlib.h>

#include "base/module.h"
#include "runtime/gpu_module.h"

/* What CUDA and NCCL read once, at their first call. Values that the user has set stay. */
static void prepare_environment(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 0); /* loading a kernel late waits for the device */
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);    /* connections are made while opening, not later */
    unsetenv("NCCL_COMM_BLOCKING");            /* overrides the configuration */
    unsetenv("NCCL_COMM_ID");                  /* would replace the generation's own id */
    unsetenv("NCCL_LAUNCH_MODE");
}

static int load(const struct er_gpu_module **ret, struct er_error *err)
{
    static const struct er_module MODULE = {
        .what = "the GPU module",
        .file = "er_nccl.so",
        .symbol = ER_GPU_MODULE_SYMBOL,
        .version = ER_GPU_MODULE_VERSION,
        .hint = "it is built where CUDA's runtime and NCCL are installed with their headers; "
                "ELASTIC_MODULE_DIR names another folder",
    };
    const char *wanted = getenv("ELASTIC_MODULE_DIR");
    const void *found;
    int rc;

    prepare_environment();
    rc = er_module_load(&MODULE, wanted && *wanted ? wanted : NULL, &found, err);
    if (rc)
        return wanted && *wanted ? er_error_wrap(err, rc, "ELASTIC_MODULE_DIR") : rc;
    *ret = found;
    return 0;
}

int er_gpu_load(const struct er_gpu_module **ret, struct er_error *err)
{
    static const struct er_gpu_module *loaded; /* one owner thread; never unloaded */
    int rc = loaded ? 0 : load(&loaded, err);

    if (rc == 0)
        *ret = loaded;
    return rc;
}
