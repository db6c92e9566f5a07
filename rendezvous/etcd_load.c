#include "rendezvous/etcd_load.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MODULE_FILE "er_store_etcd.so"

/* The folder of the running program; false: not known. */
static bool program_folder(char ret_path[PATH_MAX])
{
    ssize_t n = readlink("/proc/self/exe", ret_path, PATH_MAX - 1);
    char *slash;

    if (n <= 0)
        return false;
    ret_path[n] = 0;
    slash = strrchr(ret_path, '/');
    if (!slash)
        return false;
    *slash = 0;
    return true;
}

static int try_load(const char *folder, const struct er_store_etcd_module **ret,
                    struct er_error *err)
{
    char path[PATH_MAX + sizeof(MODULE_FILE)];
    const struct er_store_etcd_module *module;
    void *handle;

    snprintf(path, sizeof(path), "%s/" MODULE_FILE, folder);
    if (access(path, R_OK) < 0)
        return 1; /* not here */
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle)
        return er_error_set(err, ER_E_UNSUPPORTED, "the etcd store cannot be loaded: %s",
                            dlerror());
    module = dlsym(handle, ER_STORE_ETCD_SYMBOL);
    if (!module || module->version != ER_STORE_ETCD_VERSION)
        return er_error_set(err, ER_E_UNSUPPORTED, "'%s' belongs to another version of elastic-run",
                            path);
    *ret = module;
    return 0;
}

int er_store_etcd_load(const struct er_store_etcd_module **ret, struct er_error *err)
{
    char folder[PATH_MAX] = "";
    int rc = program_folder(folder) ? try_load(folder, ret, err) : 1;

    if (rc == 1)
        rc = try_load(ER_MODULE_DIR, ret, err);
    if (rc != 1)
        return rc;
    return er_error_set(err, ER_E_UNSUPPORTED,
                        "this build has no etcd store: no " MODULE_FILE
                        " in '%s' or '" ER_MODULE_DIR "' (it is built where libgrpc-dev, "
                        "libprotobuf-c-dev and protobuf-c-compiler are installed)",
                        folder);
}
