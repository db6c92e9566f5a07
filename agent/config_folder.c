/* Folders of a configuration: relative ones made absolute, `auto` resolved. */
#include "agent/config_internal.h"

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/events.h"
#include "agent/http_listen.h"
#include "agent/spawn.h"
#include "agent/subst.h"
#include "base/cleanup.h"

enum { HOST_TEXT_MAX = 256 };

/* Is `path`, n bytes, a folder whose ".." is the one that its name says? */
static bool is_plain_folder(const char *path, size_t n)
{
    ER_CLEANUP(er_cleanup_free) char *copy = strndup(path, n);
    struct stat st;

    return copy && !lstat(copy, &st) && S_ISDIR(st.st_mode);
}

/* Without "//", "/./" and, where it means the same, "folder/..". In place. */
static char *clean_path(char *path)
{
    char *to = path;

    for (const char *from = path; from && *from;) {
        size_t n = strcspn(from + 1, "/") + 1; /* with the slash in front */
        char *last = NULL;

        if (n == 3 && !strncmp(from, "/..", 3))
            last = memrchr(path, '/', (size_t)(to - path));
        if (last && is_plain_folder(path, (size_t)(to - path))) {
            to = last;
        } else if (n > 1 && !(n == 2 && from[1] == '.')) {
            memmove(to, from, n);
            to += n;
        }
        from += n;
    }
    if (to == path)
        *to++ = '/';
    *to = '\0';
    return path;
}

/* `base` + "/" + `path`, or `path` alone when absolute; a leading "./" is dropped. malloc'ed. */
static char *join_path(const char *base, const char *path)
{
    char *text = NULL;
    int n;

    while (path[0] == '.' && path[1] == '/')
        path += 2 + strspn(path + 2, "/");
    if (*path == '/') {
        text = strdup(path);
        return text ? clean_path(text) : NULL;
    }
    n = !*path || !strcmp(path, ".")
            ? asprintf(&text, "%s", base)
            : asprintf(&text, "%s/%s", strcmp(base, "/") ? base : "", path);
    return n < 0 ? NULL : clean_path(text);
}

/* Folder that relative paths of the spec start from: the spec file's, else the current one. */
static char *base_folder(struct er_loader *loader)
{
    const char *spec = loader->config->spec_path;
    ER_CLEANUP(er_cleanup_free) char *current = getcwd(NULL, 0);
    ER_CLEANUP(er_cleanup_free) char *copy = NULL;

    if (!current) {
        finding(loader, -errno, "current folder: %s", er_error_name(-errno));
        return NULL;
    }
    if (!spec || !strcmp(spec, "-"))
        return ER_TAKE(current);
    copy = strdup(spec);
    return copy ? join_path(current, dirname(copy)) : NULL;
}

/* Names that are known before any worker is. */
static const char *load_time_name(void *user, const char *name)
{
    struct er_loader *loader = user;
    const struct er_config *config = loader->config;
    static __thread char host[HOST_TEXT_MAX];

    if (!strcmp(name, "job"))
        return config->name;
    if (!strcmp(name, "role"))
        return config->role;
    if (!strcmp(name, "node_id"))
        return config->node.id;
    if (!strcmp(name, "hostname"))
        return gethostname(host, sizeof(host) - 1) ? NULL : host;
    return strncmp(name, "env.", 4) ? NULL : er_environ_get(loader->environ_, name + 4);
}

/* A folder or file of the agent's own: absolute, ${...} replaced once and for all. NULL stays NULL.
 */
static void resolve_folder(struct er_loader *loader, const char *path, char **field,
                           const char *base)
{
    ER_CLEANUP(er_cleanup_free) char *text = NULL;
    struct er_error err = ER_ERROR_INIT;

    if (!*field)
        return;
    if (er_subst(*field, loader->config->program_form, load_time_name, loader, &text, &err)) {
        finding(
            loader, er_loader_code_of(loader, path),
            "%s: only ${job}, ${role}, ${node_id}, ${hostname} and ${env.NAME} can be used here",
            er_loader_where(loader, path));
        return;
    }
    er_loader_replace(loader, path, field, join_path(base, text));
}

/* $LOGS_DIRECTORY, else below $XDG_STATE_HOME, else below $HOME; NULL: none is set. malloc'ed. */
static char *default_log_folder(struct er_loader *loader)
{
    const char *logs = er_environ_get(loader->environ_, "LOGS_DIRECTORY");
    const char *state = er_environ_get(loader->environ_, "XDG_STATE_HOME");
    const char *home = er_environ_get(loader->environ_, "HOME");
    char *text = NULL;
    int n = -1;

    if (logs && *logs == '/')
        n = asprintf(&text, "%.*s", (int)strcspn(logs, ":"), logs);
    else if (state && *state == '/')
        n = asprintf(&text, "%s/elastic-run", state);
    else if (home && *home == '/')
        n = asprintf(&text, "%s/.local/state/elastic-run", home);
    return n < 0 ? NULL : text;
}

static void resolve_log_folder(struct er_loader *loader, const char *base)
{
    struct er_config *config = loader->config;
    bool asked =
        er_loader_was_given(loader, "log.redirects") || er_loader_was_given(loader, "log.tee");
    char *text;

    if (config->log.dir && !strcmp(config->log.dir, "/dev/null")) { /* torchrun's "no files" */
        free(ER_TAKE(config->log.dir));
        er_loader_refresh(loader, "log.dir");
        return;
    }
    /* In torchrun's form no files are kept until redirection or tee ask for them. */
    if (!er_loader_was_given(loader, "log.dir") && config->program_form && asked &&
        (config->log.redirects.all || config->log.redirects.n)) {
        er_loader_replace(loader, "log.dir", &config->log.dir, strdup("auto"));
        config->log.dir_implied = true;
    }
    if (!config->log.dir || strcmp(config->log.dir, "auto") != 0) {
        resolve_folder(loader, "log.dir", &config->log.dir, base);
        return;
    }
    text = default_log_folder(loader);
    if (text)
        er_loader_replace(loader, "log.dir", &config->log.dir, text);
    else
        finding(loader, ER_E_CONFIG,
                "log.dir: auto needs $HOME, $XDG_STATE_HOME or $LOGS_DIRECTORY to be an absolute "
                "path; give a folder or none");
}

/* Workers' own: ${...} stays for them, so a '$' of the base must not be taken for one. */
static void resolve_workdir(struct er_loader *loader, const char *base)
{
    struct er_config *config = loader->config;
    ER_CLEANUP(er_cleanup_free) char *escaped = malloc(2 * strlen(base) + 1);
    char *to = escaped;

    for (const char *s = base; escaped && *s; s++) {
        *to++ = *s;
        if (*s == '$' && !config->program_form)
            *to++ = '$';
    }
    if (escaped) {
        *to = '\0';
        er_loader_replace(loader, "workdir", &config->workdir, join_path(escaped, config->workdir));
    } else {
        er_loader_no_memory(loader);
    }
}

/* A program that the agent runs beside the workers: ${...} replaced, a path made absolute, and it
 * is there. */
static void resolve_command(struct er_loader *loader, const char *path, struct er_strlist *command,
                            const char *base)
{
    const char *where = er_loader_where(loader, path);
    struct er_error err = ER_ERROR_INIT;

    for (size_t i = 0; i < command->n; i++) {
        ER_CLEANUP(er_cleanup_free) char *text = NULL;

        if (er_subst(command->items[i], loader->config->program_form, load_time_name, loader, &text,
                     &err)) {
            finding(loader, er_loader_code_of(loader, path),
                    "%s: only ${job}, ${role}, ${node_id}, ${hostname} and ${env.NAME} can be used "
                    "here",
                    where);
            return;
        }
        free(command->items[i]);
        command->items[i] = i == 0 && strchr(text, '/') ? join_path(base, text) : ER_TAKE(text);
        if (!command->items[i]) {
            er_loader_no_memory(loader);
            return;
        }
    }
    if (command->n > 0) {
        ER_CLEANUP(er_cleanup_free) char *found = NULL;

        er_loader_refresh(loader, path);
        if (er_spawn_find(command->items[0], er_environ_get(loader->environ_, "PATH"), base, &found,
                          &err))
            finding(loader, ER_E_CONFIG, "%s: %s", where, err.text);
    }
}

static void check_listen(struct er_loader *loader)
{
    struct er_http_listen listen;
    struct er_error err = ER_ERROR_INIT;

    if (loader->config->http.listen &&
        er_http_listen_parse(loader->config->http.listen, &listen, &err))
        finding(loader, er_loader_code_of(loader, "http.listen"), "%s: %s",
                er_loader_where(loader, "http.listen"), err.text);
}

/* It is replaced by rename(2): a device, a pipe or a link would be gone. */
static void check_textfile(struct er_loader *loader)
{
    const char *path = loader->config->metrics.textfile;
    struct stat st;

    if (path && lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
        finding(loader, er_loader_code_of(loader, "metrics.textfile"),
                "%s: '%s' is there and is not a regular file",
                er_loader_where(loader, "metrics.textfile"), path);
}

static void resolve_errands(struct er_loader *loader, const char *base)
{
    struct er_config *config = loader->config;

    resolve_folder(loader, "preempt.file", &config->preempt.file, base);
    check_listen(loader);
    resolve_folder(loader, "http.token_file", &config->http.token_file, base);
    resolve_folder(loader, "metrics.textfile", &config->metrics.textfile, base);
    check_textfile(loader);
    resolve_command(loader, "preempt.command", &config->preempt.command, base);
    resolve_command(loader, "health.command", &config->health.command, base);
    resolve_command(loader, "notify.command", &config->notify.command, base);
    for (size_t i = 0; i < config->notify.on.n; i++) {
        if (!er_event_is_known(config->notify.on.items[i]))
            finding(loader, er_loader_code_of(loader, "notify.on"),
                    "%s: no event is called '%.80s'", er_loader_where(loader, "notify.on"),
                    config->notify.on.items[i]);
    }
    for (size_t i = 0; i < config->health.builtin.n; i++) {
        if (!strcmp(config->health.builtin.items[i], "peers"))
            finding(loader, ER_E_UNSUPPORTED,
                    "%s: the check 'peers' is not available in this release",
                    er_loader_where(loader, "health.builtin"));
    }
}

void er_loader_folders(struct er_loader *loader)
{
    ER_CLEANUP(er_cleanup_free) char *base = base_folder(loader);
    struct er_config *config = loader->config;

    if (!base)
        return;
    resolve_workdir(loader, base);
    resolve_folder(loader, "checkpoint.dir", &config->checkpoint.dir, base);
    resolve_folder(loader, "rendezvous.tls.ca", &config->rendezvous.tls.ca, base);
    resolve_folder(loader, "rendezvous.tls.cert", &config->rendezvous.tls.cert, base);
    resolve_folder(loader, "rendezvous.tls.key", &config->rendezvous.tls.key, base);
    resolve_folder(loader, "rendezvous.auth.password_file", &config->rendezvous.auth.password_file,
                   base);
    resolve_folder(loader, "rendezvous.managed.secret_file",
                   &config->rendezvous.managed.secret_file, base);
    if (strcmp(config->rendezvous.managed.data_dir, "auto") != 0)
        resolve_folder(loader, "rendezvous.managed.data_dir", &config->rendezvous.managed.data_dir,
                       base);
    if (strchr(config->rendezvous.managed.etcd, '/'))
        resolve_folder(loader, "rendezvous.managed.etcd", &config->rendezvous.managed.etcd, base);
    resolve_log_folder(loader, base);
    resolve_errands(loader, base);
}
