#include "agent/config_internal.h"

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/cgroup.h"
#include "agent/check_host.h"
#include "agent/startkind.h"
#include "agent/subst.h"
#include "base/cleanup.h"
#include "base/fd.h"

enum { OUTPUT_MAX = 64 << 10 };

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

/* The script of a command that begins with an interpreter, to be read from workdir; NULL: none, or
 * not known before a worker starts. */
static const char *find_script(const struct er_config *config, char ret_path[4096])
{
    const char *script = er_command_script(&config->command);

    /* A shell looks for a bare name in PATH too. */
    if (!script || (!strchr(script, '/') && !strstr(script, ".py")) ||
        !is_settled(config, script) || !is_settled(config, config->workdir))
        return NULL;
    if (*script == '/')
        snprintf(ret_path, 4096, "%s", script);
    else
        snprintf(ret_path, 4096, "%s/%s", config->workdir, script);
    return script;
}

static void check_program(const struct er_config *config, char **environ_,
                          struct er_findings *findings)
{
    const char *name = config->command.items[0], *script;
    const char *path = worker_path(config, environ_);
    char full[4096];

    if (is_settled(config, name) && !(path && !is_settled(config, path)) &&
        !find_program(config, name, path))
        er_findings_add(findings, ER_E_CONFIG,
                        "command: program '%s' is not there or not executable", name);
    script = find_script(config, full);
    if (script && access(full, R_OK))
        er_findings_add(findings, ER_E_CONFIG, "command: script '%s': %s", script,
                        er_error_name(-errno));
}

static bool has_workdir(const struct er_config *config)
{
    struct stat st;

    return !stat(config->workdir, &st) && S_ISDIR(st.st_mode);
}

static int check_limits(const struct er_config *config, struct er_error *err)
{
    const struct er_limits limits = {config->limits.memory, config->limits.cpus,
                                     config->limits.pids};

    return er_cgroup_check(&limits, err);
}

int er_config_check_start(const struct er_config *config, struct er_error *err)
{
    char full[4096];
    const char *script;
    int rc = check_limits(config, err);

    if (rc)
        return rc;
    if (!is_settled(config, config->workdir))
        return 0;
    if (!has_workdir(config))
        return er_error_set(err, ER_E_CONFIG, "workdir: no folder '%s'", config->workdir);
    script = find_script(config, full);
    if (script && access(full, R_OK))
        return er_error_errno(err, "command: script '%s' in '%s'", script, config->workdir);
    return 0;
}

void er_config_check_into(const struct er_config *config, char **environ_,
                          struct er_findings *findings)
{
    struct er_error resume = ER_ERROR_INIT, limits = ER_ERROR_INIT;

    if (is_settled(config, config->workdir)) {
        if (!has_workdir(config))
            er_findings_add(findings, ER_E_CONFIG, "workdir: no folder '%s'", config->workdir);
        else
            check_program(config, environ_, findings);
    }
    if (check_limits(config, &limits))
        er_findings_add(findings, ER_E_CONFIG, "%s", limits.text);
    if (er_startkind_check(config, &resume))
        er_findings_add(findings, ER_E_CONFIG, "%s", resume.text);
    check_folder(findings, "log.dir", config->log.dir);
    check_folder(findings, "checkpoint.dir", config->checkpoint.dir);
    er_check_host(config, findings);
}

int er_config_check(const struct er_config *config, char **environ_, struct er_error *err)
{
    ER_CLEANUP(er_buf_done) struct er_buf out;
    struct er_findings findings;
    int rc;

    er_buf_init(&out, OUTPUT_MAX);
    er_findings_init(&findings);
    er_config_check_into(config, environ_, &findings);
    rc = er_findings_result(&findings, err);
    er_findings_done(&findings);
    if (rc)
        return rc;
    rc = er_check_facts(config, &out);
    if (!rc)
        rc = er_buf_add_str(&out, "ok\n");
    if (!rc)
        rc = er_write_all(1, out.data, out.len);
    return rc ? er_error_set(err, rc, "write to stdout: %s", er_error_name(rc)) : 0;
}
