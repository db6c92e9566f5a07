#include "agent/config_internal.h"

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/subst.h"
#include "base/cleanup.h"
#include "base/fd.h"

/* Values that are known only when a worker starts cannot be looked at before. */
static bool is_settled(const struct er_config *config, const char *text)
{
    return !strstr(text, config->program_form ? "${local_rank}" : "$");
}

/* Could `path` be made, or written to when it is there? Looks at the nearest folder that exists. */
static void check_folder(struct er_findings *findings, const char *key, const char *path)
{
    ER_CLEANUP(er_cleanup_free) char *at = path ? strdup(path) : NULL;
    struct stat st;

    if (!at)
        return;
    while (stat(at, &st) && errno == ENOENT && strcmp(at, "/") != 0) {
        char *up = dirname(at); /* "/" and "." are not inside `at` */

        if (up != at)
            memmove(at, up, strlen(up) + 1);
    }
    if (stat(at, &st))
        er_findings_add(findings, -errno, "%s: '%s': %s", key, at, er_error_name(-errno));
    else if (!S_ISDIR(st.st_mode))
        er_findings_add(findings, -ENOTDIR, "%s: '%s' is not a folder", key, at);
    else if (access(at, W_OK | X_OK))
        er_findings_add(findings, -errno, "%s: folder '%s' is not writable", key, at);
}

static bool is_program(const char *path)
{
    struct stat st;

    return !stat(path, &st) && S_ISREG(st.st_mode) && !access(path, X_OK);
}

/* `name` as a worker would look for it: relative to its working directory, or in its PATH. */
static bool find_program(const struct er_config *config, const char *name, const char *path)
{
    char full[4096];

    if (strchr(name, '/')) {
        snprintf(full, sizeof(full), "%s/%s", *name == '/' ? "" : config->workdir, name);
        return is_program(full);
    }
    while (path && *path) {
        size_t n = strcspn(path, ":");

        snprintf(full, sizeof(full), "%.*s/%s", (int)(n ? n : 1), n ? path : ".", name);
        if (is_program(full))
            return true;
        path += n + (path[n] == ':');
    }
    return false;
}

/* The workers' PATH: the spec's, else the agent's. */
static const char *worker_path(const struct er_config *config, char **environ_)
{
    for (size_t i = 0; i < config->env.n; i++) {
        if (!strcmp(config->env.names[i], "PATH"))
            return config->env.values[i];
    }
    return er_environ_get(environ_, "PATH");
}

/* `python3 -u train.py`: the script of a command that begins with an interpreter. */
static const char *script_of(const struct er_config *config)
{
    const struct er_strlist *command = &config->command;
    size_t n = command->n > 2 ? strlen(command->items[2]) : 0;

    if (n < 4 || strcmp(command->items[1], "-u") != 0 ||
        strcmp(command->items[2] + n - 3, ".py") != 0)
        return NULL;
    return command->items[2];
}

static void check_program(const struct er_config *config, char **environ_,
                          struct er_findings *findings)
{
    const char *name = config->command.items[0], *script = script_of(config);
    const char *path = worker_path(config, environ_);
    char full[4096];

    if (is_settled(config, name) && !(path && !is_settled(config, path)) &&
        !find_program(config, name, path))
        er_findings_add(findings, ER_E_CONFIG,
                        "command: program '%s' is not there or not executable", name);
    if (!script || !is_settled(config, script))
        return;
    snprintf(full, sizeof(full), "%s/%s", *script == '/' ? "" : config->workdir, script);
    if (access(full, R_OK))
        er_findings_add(findings, ER_E_CONFIG, "command: script '%s': %s", script,
                        er_error_name(-errno));
}

int er_config_check(const struct er_config *config, char **environ_, struct er_error *err)
{
    struct er_findings findings;
    struct stat st;
    int rc;

    er_findings_init(&findings);
    if (is_settled(config, config->workdir)) {
        if (stat(config->workdir, &st) || !S_ISDIR(st.st_mode))
            er_findings_add(&findings, ER_E_CONFIG, "workdir: no folder '%s'", config->workdir);
        else
            check_program(config, environ_, &findings);
    }
    check_folder(&findings, "log.dir", config->log.dir);
    check_folder(&findings, "checkpoint.dir", config->checkpoint.dir);
    rc = er_findings_result(&findings, err);
    er_findings_done(&findings);
    if (!rc)
        rc = er_write_all(1, "ok\n", 3);
    return rc;
}
