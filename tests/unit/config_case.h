#pragma once
/* Loading a configuration from a command line, a few variables and a job spec in a file of its own.
 */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/config_internal.h"
#include "base/cleanup.h"

#define SPEC "@SPEC" /* in an argument list: the path of the spec */

struct load_case {
    const char *const *args; /* without argv[0]; NULL: the spec alone */
    const char *const *env;  /* NULL: HOME only */
    const char *spec;
    size_t spec_n; /* 0: strlen(spec) */
};

struct loaded {
    struct er_config *config;
    struct er_error err;
    int rc;
    char text[ER_ERROR_TEXT_MAX]; /* err.text with the spec's path as "job.yaml" */
};

/* The spec's path in messages is another one in each run. */
static inline void replace_path(char *to, size_t cap, const char *from, const char *path)
{
    size_t used = 0, n = strlen(path);

    while (*from && used + 9 < cap) {
        if (n && !strncmp(from, path, n)) {
            used += (size_t)snprintf(to + used, cap - used, "job.yaml");
            from += n;
        } else {
            to[used++] = *from++;
        }
    }
    to[used] = '\0';
}

static inline struct loaded load_config(const struct load_case *c)
{
    static const char *const alone[] = {SPEC, NULL}, *const home[] = {"HOME=/h", NULL};
    const char *const *args = c->args ? c->args : alone, *argv[64] = {"elastic-run"};
    char folder[] = "/tmp/er-config-XXXXXX", path[64] = "";
    struct loaded l = {.err = ER_ERROR_INIT};
    int argc = 1;

    if (c->spec) {
        FILE *file;

        cr_assert(mkdtemp(folder));
        snprintf(path, sizeof(path), "%s/job.yaml", folder);
        file = fopen(path, "w");
        cr_assert(file);
        fwrite(c->spec, 1, c->spec_n ? c->spec_n : strlen(c->spec), file);
        cr_assert(!fclose(file));
    }
    for (; args[argc - 1]; argc++)
        argv[argc] = strcmp(args[argc - 1], SPEC) ? args[argc - 1] : path;
    l.rc =
        er_config_load(&l.config, argc, (char **)argv, (char **)(c->env ? c->env : home), &l.err);
    replace_path(l.text, sizeof(l.text), l.err.text, path);
    if (c->spec) {
        unlink(path);
        rmdir(folder);
    }
    return l;
}

static inline struct loaded load_args(const char *const *args)
{
    return load_config(&(struct load_case){.args = args});
}

static inline struct loaded load_text(const char *spec)
{
    return load_config(&(struct load_case){.spec = spec});
}

static inline const char *value_of(const struct loaded *l, const char *path)
{
    return er_config_setting(l->config, path)->text;
}

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})
