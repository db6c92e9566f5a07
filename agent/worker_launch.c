#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/env.h"
#include "agent/spawn.h"
#include "agent/worker.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"
#include "base/parse.h"

#define ENV_MAX (2u * 1024 * 1024)

static const char *const STREAMS[] = {"stdout", "stderr"};

/* Everything that the child will need: between two forks nothing else is touched, since each page
 * that is written then is copied. */
struct er_worker_launch {
    const char *path; /* borrowed */
    char **argv, **envp;
    struct er_buf env; /* what envp points into */
    int stdio[3], page_fd;
    bool owned[3];
};

/* Names that may stand in ${...}; one buffer a name kind that needs formatting. */
struct names {
    const struct er_group_context *ctx;
    const struct er_assignment *a;
    int local_rank;
    char text[32];
};

static const char *number(struct names *n, uint64_t value)
{
    snprintf(n->text, sizeof(n->text), "%" PRIu64, value);
    return n->text;
}

static const char *lookup(void *user, const char *name)
{
    struct names *n = user;
    const struct er_config *c = n->ctx->config;
    const struct er_assignment *a = n->a;
    const struct {
        const char *name;
        uint64_t value;
    } NUMBERS[] = {
        {"rank", (uint64_t)(a->first_rank + n->local_rank)},
        {"local_rank", c->virtual_local_rank ? 0 : (uint64_t)n->local_rank},
        {"world_size", (uint64_t)a->world_size},
        {"local_world_size", (uint64_t)a->local_size},
        {"node_rank", (uint64_t)a->node_rank},
        {"nnodes", (uint64_t)a->nnodes},
        {"generation", a->generation},
        {"restart_count", a->restarts},
        {"master_port", (uint64_t)a->master_port},
    };
    const struct {
        const char *name, *value;
    } TEXTS[] = {
        {"job", c->name},
        {"role", c->role},
        {"role_name", c->role}, /* torchrun's word in prefix templates */
        {"master_addr", a->master_addr},
        {"node_id", c->node.id},
        {"hostname", n->ctx->hostname},
        {"checkpoint_dir", c->checkpoint.dir ? c->checkpoint.dir : ""},
    };

    for (size_t i = 0; i < ER_ARRAY_N(NUMBERS); i++) {
        if (strcmp(name, NUMBERS[i].name) == 0)
            return number(n, NUMBERS[i].value);
    }
    for (size_t i = 0; i < ER_ARRAY_N(TEXTS); i++) {
        if (strcmp(name, TEXTS[i].name) == 0)
            return TEXTS[i].value;
    }
    if (strncmp(name, "env.", 4) == 0) {
        const char *value = er_env_get(n->ctx->inherited_env, name + 4);

        return value ? value : "";
    }
    return NULL;
}

/* Most texts have nothing to replace. */
static int substitute(struct names *n, const char *text, bool program_form, char **ret,
                      struct er_error *err)
{
    if (strchr(text, '$'))
        return er_subst(text, program_form, lookup, n, ret, err);
    *ret = strdup(text);
    return *ret ? 0 : er_error_set(err, -ENOMEM, "substitute '%s': out of memory", text);
}

void er_worker_argv_free(char **argv)
{
    for (size_t i = 0; argv && argv[i]; i++)
        free(argv[i]);
    free(argv);
}

int er_worker_argv(const struct er_group_context *ctx, const struct er_assignment *a,
                   int local_rank, char ***ret, struct er_error *err)
{
    const struct er_strlist *command = &ctx->config->command;
    struct names names = {.ctx = ctx, .a = a, .local_rank = local_rank};
    char **argv = calloc(command->n + 1, sizeof(*argv));
    int rc = argv ? 0 : er_error_set(err, -ENOMEM, "command: out of memory");

    for (size_t i = 0; !rc && i < command->n; i++)
        rc = substitute(&names, command->items[i], ctx->config->program_form, &argv[i], err);
    if (rc) {
        er_worker_argv_free(argv);
        return er_error_wrap(err, rc, "command");
    }
    *ret = argv;
    return 0;
}

/* The spec's `env` with substitutions; freed with free_overlay(). */
static int make_overlay(struct names *n, char ***ret, struct er_error *err)
{
    const struct er_config *c = n->ctx->config;
    char **values = calloc(c->env.n + 1, sizeof(*values));
    int rc = values ? 0 : er_error_set(err, -ENOMEM, "env: out of memory");

    for (size_t i = 0; !rc && i < c->env.n; i++) {
        if (c->env.values[i])
            rc = substitute(n, c->env.values[i], c->program_form, &values[i], err);
        if (rc)
            er_error_wrap(err, rc, "env.%s", c->env.names[i]);
    }
    *ret = values;
    return rc;
}

static void free_overlay(const struct er_config *c, char **values)
{
    for (size_t i = 0; values && i < c->env.n; i++)
        free(values[i]);
    free(values);
}

static int build_env(struct er_worker *w, const struct er_group_context *ctx,
                     const struct er_assignment *a, size_t *ret_n, struct er_error *err)
{
    struct names names = {.ctx = ctx, .a = a, .local_rank = w->local_rank};
    const struct er_config *c = ctx->config;
    char **values = NULL, every[ER_UNIT_TEXT_MAX];
    int rc = make_overlay(&names, &values, err);
    const struct er_env_input in = {
        .inherited = ctx->inherited_env,
        .overlay_names = (const char *const *)c->env.names,
        .overlay_values = (const char *const *)values,
        .overlay_n = c->env.n,
        .assignment = a,
        .local_rank = w->local_rank,
        .job = c->name,
        .role = c->role,
        .node_id = c->node.id,
        .checkpoint_dir = c->checkpoint.dir ? c->checkpoint.dir : "",
        .checkpoint_every_steps = c->checkpoint.every_steps,
        .checkpoint_every = every,
        .checkpoint_keep_last = c->checkpoint.keep_last,
        .checkpoint_keep_every = c->checkpoint.keep_every,
        .checkpoint_failures_max = c->checkpoint.failures_max,
        .error_file = w->error_file,
        .socket = ctx->socket,
        .page_fd = w->launch->page_fd,
        .restart_max = c->restart.max,
        .virtual_local_rank = c->virtual_local_rank,
    };

    er_format_duration(c->checkpoint.every_us, every);
    if (!rc)
        rc = er_env_build(&w->launch->env, &in, ret_n, err);
    free_overlay(c, values);
    return rc;
}

static unsigned stream_bits(const struct er_stream_map *map, const struct er_worker *w)
{
    uint32_t rank = (uint32_t)(map->global ? w->rank : w->local_rank);

    for (uint32_t i = 0; i < map->n; i++) {
        if (map->items[i].rank == rank)
            return map->items[i].value;
    }
    return map->all;
}

/* `current/rank-<r>` points at the folder of the process that has the rank: of the generation in
 * which it started, and of its rank there. */
static void link_current(const struct er_worker *w, const char *base)
{
    char path[4096], temp[4096 + 8], target[128];

    snprintf(path, sizeof(path), "%s/current", base);
    if (er_mkdir_all(path, 0755, NULL))
        return;
    snprintf(path, sizeof(path), "%s/current/rank-%d", base, w->rank);
    snprintf(temp, sizeof(temp), "%s.new", path);
    snprintf(target, sizeof(target), "../%s", w->log_dir + strlen(base) + 1);
    unlink(temp);
    if (symlink(target, temp) == 0 && rename(temp, path) < 0)
        unlink(temp);
}

/* Of its generation and its rank there; who starts beside a generation, and has none, is told apart
 * by its place. */
static char *log_folder(const struct er_worker *w, const char *base)
{
    char *path = NULL;
    int n;

    if (w->joins)
        n = asprintf(&path, "%s/gen-%" PRIu64 "/next-%d", base, w->generation, w->place);
    else
        n = asprintf(&path, "%s/gen-%" PRIu64 "/rank-%d", base, w->generation, w->rank);
    return n < 0 ? NULL : path;
}

/* A log folder that cannot be made costs the logs, not the job: at the start of the agent it was
 * there and writable. */
static void make_log_dir(struct er_worker *w, const struct er_group_context *ctx)
{
    struct er_error err = ER_ERROR_INIT;

    w->log_dir = log_folder(w, ctx->log_dir);
    if (w->log_dir && er_mkdir_all(w->log_dir, 0755, &err)) {
        er_log(ER_LOG_WARNING, "a worker has no log files", ER_INT("rank", w->rank),
               ER_STR("reason", err.text));
        er_cleanup_free(&w->log_dir);
    }
    if (w->log_dir && !w->joins)
        link_current(w, ctx->log_dir);
}

static int make_paths(struct er_worker *w, const struct er_group_context *ctx, struct er_error *err)
{
    int n;

    if (ctx->log_dir)
        make_log_dir(w, ctx);
    if (w->log_dir)
        n = asprintf(&w->error_file, "%s/error.json", w->log_dir);
    else
        n = asprintf(&w->error_file, "%s/error-%" PRIu64 "-%d.json", ctx->state_dir, w->generation,
                     w->place);
    if (n < 0) {
        w->error_file = NULL;
        return er_error_set(err, -ENOMEM, "worker %d: out of memory", w->rank);
    }
    unlink(w->error_file); /* of a run before, which used the same generation number */
    return 0;
}

/* The write end for the child through ret_fd, owned by the caller when *ret_owned. */
static int open_stream(struct er_worker *w, const struct er_group_context *ctx,
                       const struct er_assignment *a, int stream, int *ret_fd, bool *ret_owned,
                       struct er_error *err)
{
    const struct er_config *c = ctx->config;
    unsigned bit = 1u << stream, tee = stream_bits(&c->log.tee, w) & bit;
    unsigned redirect = stream_bits(&c->log.redirects, w) & bit;
    bool shown = er_console_shows(c->log.console, w->rank, w->local_rank);
    struct names names = {.ctx = ctx, .a = a, .local_rank = w->local_rank};
    ER_CLEANUP(er_cleanup_free) char *prefix = NULL;
    ER_CLEANUP(er_cleanup_free) char *path = NULL;
    int rc;

    *ret_owned = false;
    *ret_fd = shown ? stream + 1 : ctx->null_fd;
    /* Redirected with nowhere to go: as not asked for. */
    if (!tee && (!redirect || !w->log_dir))
        return 0;
    rc = substitute(&names, c->log.prefix ? c->log.prefix : "", false, &prefix, err);
    if (rc)
        return er_error_wrap(err, rc, "log.prefix");
    if (w->log_dir && asprintf(&path, "%s/%s.log", w->log_dir, STREAMS[stream]) < 0)
        return er_error_set(err, -ENOMEM, "worker %d: out of memory", w->rank);
    const struct er_logfwd_opts opts = {
        .path = path,
        .max_size = c->log.max_size,
        .max_files = c->log.max_files,
        .console = tee && shown ? ctx->console : NULL,
        .stream = stream,
        .tail = stream == 1,
        .lines = ctx->log_lines ? &ctx->log_lines[stream] : NULL,
        .prefix = prefix,
        .timestamps = c->log.timestamps,
        .filtered = w->filtered[stream],
        .filters = stream ? &c->log.duplicate_stderr : &c->log.duplicate_stdout,
    };
    rc = er_logfwd_new(&w->logs[stream], ret_fd, ctx->logpump, &opts, err);
    *ret_owned = rc == 0;
    return rc;
}

void er_worker_show(struct er_worker *w, const struct er_group_context *ctx)
{
    const struct er_config *c = ctx->config;
    bool shown = er_console_shows(c->log.console, w->rank, w->local_rank);

    for (int stream = 0; stream < 2; stream++) {
        bool tee = stream_bits(&c->log.tee, w) & (1u << stream);

        er_logfwd_show(w->logs[stream], tee && shown ? ctx->console : NULL, c->log.timestamps);
    }
}

int er_worker_open_filtered(struct er_logfile ret[2], const struct er_group_context *ctx,
                            const struct er_assignment *a, struct er_error *err)
{
    const struct er_config *c = ctx->config;
    const struct {
        const char *name;
        const struct er_strlist *filters;
    } streams[] = {{"stdout", &c->log.duplicate_stdout}, {"stderr", &c->log.duplicate_stderr}};
    int rc = 0;

    for (int i = 0; !rc && i < 2; i++) {
        ER_CLEANUP(er_cleanup_free) char *path = NULL;

        if (!ctx->log_dir || !streams[i].filters->n)
            continue;
        if (asprintf(&path, "%s/gen-%" PRIu64 "/filtered_%s-%s.log", ctx->log_dir, a->generation,
                     streams[i].name, c->node.id) < 0)
            path = NULL;
        rc = path ? er_logfile_init(&ret[i], path, c->log.max_size, c->log.max_files) : -ENOMEM;
    }
    return rc ? er_error_set(err, rc, "filtered logs: out of memory") : 0;
}

static int open_page(struct er_worker *w, int *ret_fd, struct er_error *err)
{
    int fd = er_memfd("elastic-page", ER_PAGE_BYTES);
    void *map;

    if (fd < 0)
        return er_error_set(err, fd, "make the shared page of worker %d: %s", w->rank,
                            er_error_name(fd));
    map = mmap(NULL, ER_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        int rc = er_error_errno(err, "map the shared page of worker %d", w->rank);

        close(fd);
        return rc;
    }
    w->page = map;
    w->page->magic = ER_PAGE_MAGIC;
    w->page->version = ER_PAGE_VERSION;
    atomic_store(&w->page->to_worker.word, w->generation << 8);
    *ret_fd = fd;
    return 0;
}

void er_worker_launch_free(struct er_worker_launch *l)
{
    if (!l)
        return;
    for (int i = 0; i < 3; i++) {
        if (l->owned[i])
            er_cleanup_fd(&l->stdio[i]);
    }
    er_cleanup_fd(&l->page_fd);
    er_worker_argv_free(l->argv);
    free(l->envp);
    er_buf_done(&l->env);
    free(l);
}

static int new_launch(struct er_worker *w, const char *path, char **argv, int stdin_fd,
                      struct er_error *err)
{
    struct er_worker_launch *l = calloc(1, sizeof(*l));

    if (!l) {
        er_worker_argv_free(argv);
        return er_error_set(err, -ENOMEM, "worker %d: out of memory", w->rank);
    }
    *l = (struct er_worker_launch){
        .path = path, .argv = argv, .stdio = {stdin_fd, 1, 2}, .page_fd = -1};
    er_buf_init(&l->env, ENV_MAX);
    w->launch = l;
    return 0;
}

static int make_env(struct er_worker *w, const struct er_group_context *ctx,
                    const struct er_assignment *a, struct er_error *err)
{
    struct er_worker_launch *l = w->launch;
    size_t n = 0;
    int rc = build_env(w, ctx, a, &n, err);
    char *at = l->env.data;

    if (rc)
        return rc;
    l->envp = calloc(n + 1, sizeof(*l->envp));
    if (!l->envp)
        return er_error_set(err, -ENOMEM, "environment: out of memory");
    for (size_t i = 0; i < n; i++, at += strlen(at) + 1)
        l->envp[i] = at;
    return 0;
}

int er_worker_prepare(struct er_worker *w, const struct er_group_context *ctx,
                      const struct er_assignment *a, const char *path, char **argv, int stdin_fd,
                      struct er_error *err)
{
    int rc;

    er_worker_fsm_init(&w->fsm);
    w->pidfd = -1;
    w->rank = a->first_rank + w->local_rank;
    w->generation = a->generation;
    rc = new_launch(w, path, argv, stdin_fd, err);
    if (!rc)
        rc = make_paths(w, ctx, err);
    for (int i = 0; !rc && i < 2; i++)
        rc = open_stream(w, ctx, a, i, &w->launch->stdio[i + 1], &w->launch->owned[i + 1], err);
    if (!rc)
        rc = open_page(w, &w->launch->page_fd, err);
    return rc ? rc : make_env(w, ctx, a, err);
}

/* Who was started beside a generation is found where others of its rank are. */
static void link_rank(const struct er_worker *w, const char *base)
{
    char path[4096], target[128];

    snprintf(path, sizeof(path), "%s/gen-%" PRIu64, base, w->generation);
    if (er_mkdir_all(path, 0755, NULL))
        return;
    snprintf(path, sizeof(path), "%s/gen-%" PRIu64 "/rank-%d", base, w->generation, w->rank);
    snprintf(target, sizeof(target), "../%s", w->log_dir + strlen(base) + 1);
    if (symlink(target, path) < 0 && errno != EEXIST)
        er_log(ER_LOG_DEBUG, "no link to a worker's logs", ER_STR("path", path));
}

void er_worker_adopt(struct er_worker *w, const struct er_group_context *ctx,
                     const struct er_assignment *a, uint64_t now_us)
{
    struct er_page_progress *p = &w->page->from_worker;

    w->rank = a->first_rank + w->local_rank;
    w->generation = a->generation;
    w->kept_us = now_us;
    w->spoke_us = w->ready_us = w->loaded_us = 0;
    w->judgement = (struct er_policy_result){0};
    er_cleanup_free(&w->message);
    /* It waits for our answer, and reports nothing meanwhile. */
    atomic_store(&p->step, 0);
    atomic_store(&p->first_step, 0);
    atomic_store(&p->first_step_us, 0);
    atomic_store(&p->connected_us, 0);
    atomic_store(&w->page->to_worker.word, w->generation << 8);
    if (w->log_dir && w->joins)
        link_rank(w, ctx->log_dir);
    w->joins = false;
    if (w->log_dir)
        link_current(w, ctx->log_dir);
}

int er_worker_spawn(struct er_worker *w, const struct er_group_context *ctx, int cgroup_fd,
                    int report_fd, struct er_error *err)
{
    struct er_worker_launch *l = w->launch;
    const struct er_spawn_opts opts = {
        .path = l->path,
        .argv = l->argv,
        .envp = l->envp,
        .workdir = ctx->config->workdir,
        .stdio = {l->stdio[0], l->stdio[1], l->stdio[2]},
        .keep_fd = l->page_fd,
        .cgroup_fd = cgroup_fd,
        .report_fd = report_fd,
        .index = w->local_rank,
        .cpus = ctx->config->node.cpus ? &ctx->config->node.cpus[w->place] : NULL,
    };

    w->started_us = er_now_us();
    return er_spawn_child(&opts, &w->pid, &w->pidfd, err);
}

void er_worker_launched(struct er_worker *w)
{
    er_worker_launch_free(w->launch);
    w->launch = NULL;
}
