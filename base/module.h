#pragma once
/*
 * Parts that are loaded when somebody asks for them, so that nobody else pays for their libraries.
 * A module exports one structure, whose first member is `unsigned version`.
 */
#include "base/error.h"

struct er_module {
    const char *what;   /* "the etcd store" */
    const char *file;   /* "er_store_etcd.so" */
    const char *symbol; /* of the structure */
    unsigned version;
    const char *hint; /* where it would have been built */
};

/*
 * Looks in `folder` alone when that is given, else beside the running program, then in the
 * installation's module folder. What was loaded stays for the process's life. ER_E_UNSUPPORTED: no
 * such file, one that cannot be loaded, or one of another version; the text names where it was
 * looked for and how to get it.
 */
int er_module_load(const struct er_module *module, const char *folder, const void **ret,
                   struct er_error *err);
