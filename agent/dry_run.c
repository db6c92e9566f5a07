#include "agent/dry_run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/env.h"
#include "agent/secret.h"
#include "agent/subst.h"
#include "agent/value.h"
#include "agent/yaml_text.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/parse.h"

enum { PLAN_MAX = 64 << 20, ENV_MAX = 4 << 20 };

struct plan {
    const struct er_config *config;
    char **environ_;
    char host[256];
    struct er_assignment assignment;
    int local_rank;
    char text[256]; /* of the value last looked up */
};

/* er_subst_fn: as far as values are known before the start. */
static const char *lookup(void *user, const char *name)
{
    struct plan *p = user;
    const struct er_config *c = p->config;
    const struct {
        const char *name, *value; /* value NULL: of this rank, or known at the start only */
        int number;
    } known[] = {
        {"job", c->name, 0},
        {"role", c->role, 0},
        {"node_id", c->node.id, 0},
        {"hostname", p->host, 0},
        {"checkpoint_dir", c->checkpoint.dir ? c->checkpoint.dir : "", 0},
        {"rank", NULL, p->local_rank},
        {"local_rank", NULL, c->virtual_local_rank ? 0 : p->local_rank},
        {"world_size", NULL, p->assignment.world_size},
        {"local_world_size", NULL, p->assignment.local_size},
        {"node_rank", NULL, 0},
        {"nnodes", NULL, 1},
        {"restart_count", NULL, 0},
    };

    if (!strncmp(name, "env.", 4))
        return er_environ_get(p->environ_, name + 4);
    for (size_t i = 0; i < ER_ARRAY_N(known); i++) {
        if (strcmp(known[i].name, name) != 0)
            continue;
        if (known[i].value)
            return known[i].value;
        snprintf(p->text, sizeof(p->text), "%d", known[i].number);
        return p->text;
    }
    for (size_t i = 0; er_subst_names[i]; i++) {
        if (strcmp(er_subst_names[i], name) != 0)
            continue;
        snprintf(p->text, sizeof(p->text), "<%s>", name);
        return p->text;
    }
    return NULL;
}

/* One text of the configuration with this worker's values, as YAML. */
static int put(struct plan *p, const char *text, struct er_buf *out, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) char *value = NULL;
    int rc = er_subst(text, p->config->program_form, lookup, p, &value, err);

    return rc ? rc : er_yaml_text(out, value, false);
}

/* The spec's `env` with this worker's values. */
static int make_overlay(struct plan *p, struct er_envlist *ret, struct er_error *err)
{
    const struct er_envlist *env = &p->config->env;
    int rc = 0;

    for (size_t i = 0; !rc && i < env->n; i++) {
        ER_CLEANUP(er_cleanup_free) char *value = NULL;

        if (env->values[i])
            rc = er_subst(env->values[i], p->config->program_form, lookup, p, &value, err);
        if (!rc && er_envlist_put(ret, env->names[i], value))
            rc = er_error_set(err, -ENOMEM, "out of memory");
    }
    return rc;
}

static int build_env(struct plan *p, struct er_buf *strings, size_t *ret_n, struct er_error *err)
{
    const struct er_config *c = p->config;
    struct er_envlist overlay = {0};
    ER_CLEANUP(er_cleanup_free) char *error_file = NULL;
    char every[ER_UNIT_TEXT_MAX];
    int rc = make_overlay(p, &overlay, err), n;
    struct er_env_input in = {
        .inherited = (const char *const *)p->environ_,
        .overlay_names = (const char *const *)overlay.names,
        .overlay_values = (const char *const *)overlay.values,
        .overlay_n = overlay.n,
        .assignment = &p->assignment,
        .local_rank = p->local_rank,
        .job = c->name,
        .role = c->role,
        .node_id = c->node.id,
        .checkpoint_dir = c->checkpoint.dir ? c->checkpoint.dir : "",
        .checkpoint_every_steps = c->checkpoint.every_steps,
        .checkpoint_every = every,
        .checkpoint_keep_last = c->checkpoint.keep_last,
        .checkpoint_keep_every = c->checkpoint.keep_every,
        .checkpoint_failures_max = c->checkpoint.failures_max,
        .socket = "<socket>",
        .restart_max = c->restart.max,
        .virtual_local_rank = c->virtual_local_rank,
    };

    er_format_duration(c->checkpoint.every_us, every);
    n = c->log.dir ? asprintf(&error_file, "%s/%s/gen-<generation>/rank-%d/error.json", c->log.dir,
                              c->name, p->local_rank)
                   : asprintf(&error_file, "<error_file>");
    if (n < 0)
        error_file = NULL;
    in.error_file = error_file;
    if (!rc)
        rc = error_file ? er_env_build(strings, &in, ret_n, err)
                        : er_error_set(err, -ENOMEM, "out of memory");
    er_envlist_free(&overlay);
    return rc;
}

/* Numbers that er_env_build() was given a stand-in for. */
static const char *known_later(const char *name, size_t n)
{
    static const struct {
        const char *name, *shown;
    } later[] = {
        {"MASTER_PORT", "<master_port>"},
        {"ELASTIC_GENERATION", "<generation>"},
        {"ELASTIC_PAGE_FD", "<page_fd>"},
    };

    for (size_t i = 0; i < ER_ARRAY_N(later); i++) {
        if (strlen(later[i].name) == n && !strncmp(later[i].name, name, n))
            return later[i].shown;
    }
    return NULL;
}

static int put_variable(const char *name, size_t n, const char *value, struct er_buf *out)
{
    ER_CLEANUP(er_cleanup_free) char *copy = strndup(name, n);
    const char *shown = er_secret_name(name, n) ? ER_SECRET_SHOWN : known_later(name, n);
    int rc = copy ? er_buf_add_str(out, "    ") : -ENOMEM;

    if (!rc)
        rc = er_yaml_text(out, copy, false);
    if (!rc)
        rc = er_buf_add_str(out, ": ");
    if (!rc)
        rc = value ? er_yaml_text(out, shown ? shown : value, true) : er_buf_add_str(out, "null");
    return rc ? rc : er_buf_add(out, "\n", 1);
}

/* Is the name of "NAME=value" among the built ones? */
static bool has_name(const struct er_buf *strings, const char *entry)
{
    size_t n = strcspn(entry, "=") + 1;

    for (const char *s = strings->data; s < strings->data + strings->len; s += strlen(s) + 1) {
        if (!strncmp(s, entry, n))
            return true;
    }
    return false;
}

static bool is_inherited(char **environ_, const char *entry)
{
    for (; *environ_; environ_++) {
        if (!strcmp(*environ_, entry))
            return true;
    }
    return false;
}

/* What the worker's environment has otherwise than the agent's. */
static int put_env(struct plan *p, struct er_buf *out, struct er_error *err)
{
    ER_CLEANUP(er_buf_done) struct er_buf strings;
    size_t n = 0;
    int rc;

    er_buf_init(&strings, ENV_MAX);
    rc = build_env(p, &strings, &n, err);
    for (const char *s = strings.data; !rc && s && s < strings.data + strings.len;
         s += strlen(s) + 1) {
        size_t length = strcspn(s, "=");

        if (!is_inherited(p->environ_, s))
            rc = put_variable(s, length, s + length + 1, out);
    }
    for (char **inherited = p->environ_; !rc && *inherited; inherited++) {
        if (strchr(*inherited, '=') && !has_name(&strings, *inherited))
            rc = put_variable(*inherited, strcspn(*inherited, "="), NULL, out);
    }
    return rc;
}

/* The CPUs that it is bound to. */
static int put_cpus(const struct plan *p, struct er_buf *out)
{
    const struct er_cpuset *cpus = p->config->node.cpus;
    char list[ER_CPU_LIST_MAX];

    if (!cpus)
        return 0;
    return er_buf_printf(out, "\n  cpus: \"%s\"", er_cpuset_format(&cpus[p->local_rank], list));
}

static int put_worker(struct plan *p, struct er_buf *out, struct er_error *err)
{
    const struct er_strlist *command = &p->config->command;
    int rc = er_buf_printf(out, "- rank: %d\n  argv: [", p->local_rank);

    for (size_t i = 0; !rc && i < command->n; i++) {
        rc = i ? er_buf_add_str(out, ", ") : 0;
        if (!rc)
            rc = put(p, command->items[i], out, err);
    }
    if (!rc)
        rc = er_buf_add_str(out, "]\n  workdir: ");
    if (!rc)
        rc = put(p, p->config->workdir, out, err);
    if (!rc)
        rc = put_cpus(p, out);
    if (!rc)
        rc = er_buf_add_str(out, "\n  env:\n");
    return rc ? rc : put_env(p, out, err);
}

int er_dry_run_format(const struct er_config *config, char **environ_, struct er_buf *out,
                      struct er_error *err)
{
    struct plan p = {.config = config, .environ_ = environ_};
    int rc = 0;

    if (gethostname(p.host, sizeof(p.host) - 1))
        return er_error_errno(err, "host name");
    p.assignment.nnodes = 1;
    p.assignment.local_size = p.assignment.world_size = (int)config->nproc;
    p.assignment.role_size = (int)config->nproc;
    snprintf(p.assignment.run, sizeof(p.assignment.run), "<run>");
    snprintf(p.assignment.master_addr, sizeof(p.assignment.master_addr), "<master_addr>");
    for (; !rc && p.local_rank < (int)config->nproc; p.local_rank++)
        rc = put_worker(&p, out, err);
    if (rc && err && !err->code)
        er_error_set(err, rc, "dry run: %s", er_error_name(rc));
    return rc;
}

int er_dry_run_print(const struct er_config *config, char **environ_, struct er_error *err)
{
    ER_CLEANUP(er_buf_done) struct er_buf out;
    int rc;

    er_buf_init(&out, PLAN_MAX);
    rc = er_dry_run_format(config, environ_, &out, err);
    if (rc)
        return rc;
    rc = er_write_all(1, out.data, out.len);
    return rc ? er_error_set(err, rc, "write to stdout: %s", er_error_name(rc)) : 0;
}
