#include "base/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NOT_HERE 1

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

static int try_load(const struct er_module *module, const char *folder, const void **ret,
                    struct er_error *err)
{
    char path[PATH_MAX + NAME_MAX];
    void *handle, *found;

    snprintf(path, sizeof(path), "%s/%s", folder, module->file);
    if (!*folder || access(path, R_OK) < 0)
        return NOT_HERE;
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle)
        return er_error_set(err, ER_E_UNSUPPORTED, "%s cannot be loaded: %s", module->what,
                            dlerror());
    found = dlsym(handle, module->symbol);
    if (!found || *(const unsigned *)found != module->version)
        return er_error_set(err, ER_E_UNSUPPORTED, "'%s' belongs to another version of elastic-run",
                            path);
    *ret = found;
    return 0;
}

int er_module_load(const struct er_module *module, const char *folder, const void **ret,
                   struct er_error *err)
{
    char beside[PATH_MAX] = "";
    int rc;

    if (folder) {
        rc = try_load(module, folder, ret, err);
        return rc != NOT_HERE
                   ? rc
                   : er_error_set(err, ER_E_UNSUPPORTED, "no %s in '%s'", module->file, folder);
    }
    program_folder(beside);
    rc = try_load(module, beside, ret, err);
    if (rc == NOT_HERE)
        rc = try_load(module, ER_MODULE_DIR, ret, err);
    if (rc != NOT_HERE)
        return rc;
    return er_error_set(err, ER_E_UNSUPPORTED,
                        "%s is not part of this build: no %s in '%s' or '" ER_MODULE_DIR "' (%s)",
                        module->what, module->file, beside, module->hint);
}
