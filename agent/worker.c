#include "agent/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/env.h"
#include "agent/spawn.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/log.h"

#define ERROR_FILE_MAX (1024u * 1024)
#define NOTICE_STOP    4 /* enum er_notice of libelastic; part of the page's layout */

static const char *const STREAMS[] = {"stdout", "stderr"};

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
                     const struct er_worker_plan *plan, int page_fd, struct er_buf *strings,
                     size_t *ret_n, struct er_error *err)
{
    struct names names = {.ctx = ctx, .a = plan->assignment, .local_rank = w->local_rank};
    const struct er_config *c = ctx->config;
    char **values = NULL;
    int rc = make_overlay(&names, &values, err);
    const struct er_env_input in = {
        .inherited = ctx->inherited_env,
        .overlay_names = (const char *const *)c->env.names,
        .overlay_values = (const char *const *)values,
        .overlay_n = c->env.n,
        .assignment = plan->assignment,
        .local_rank = w->local_rank,
        .job = c->name,
        .role = c->role,
        .node_id = c->node.id,
        .checkpoint_dir = c->checkpoint.dir ? c->checkpoint.dir : "",
        .error_file = w->error_file,
        .socket = ctx->socket,
        .page_fd = page_fd,
        .restart_max = c->restart.max,
        .virtual_local_rank = c->virtual_local_rank,
    };

    if (!rc)
        rc = er_env_build(strings, &in, ret_n, err);
    free_overlay(c, values);
    return rc;
}

static unsigned stream_bits(const struct er_stream_map *map, int local_rank)
{
    for (uint32_t i = 0; i < map->n; i++) {
        if (map->items[i].local_rank == (uint32_t)local_rank)
            return map->items[i].value;
    }
    return map->all;
}

/* `current/rank-<r>` points at the newest generation's folder. */
static void link_current(const struct er_worker *w, const char *base)
{
    char path[4096], temp[4096 + 8], target[128];

    snprintf(path, sizeof(path), "%s/current", base);
    if (er_mkdir_all(path, 0755, NULL))
        return;
    snprintf(path, sizeof(path), "%s/current/rank-%d", base, w->rank);
    snprintf(temp, sizeof(temp), "%s.new", path);
    snprintf(target, sizeof(target), "../gen-%" PRIu64 "/rank-%d", w->generation, w->rank);
    unlink(temp);
    if (symlink(target, temp) == 0 && rename(temp, path) < 0)
        unlink(temp);
}

static int make_paths(struct er_worker *w, const struct er_group_context *ctx, struct er_error *err)
{
    int rc = 0;

    if (ctx->log_dir) {
        if (asprintf(&w->log_dir, "%s/gen-%" PRIu64 "/rank-%d", ctx->log_dir, w->generation,
                     w->rank) < 0)
            w->log_dir = NULL;
        if (!w->log_dir || asprintf(&w->error_file, "%s/error.json", w->log_dir) < 0)
            w->error_file = NULL;
    } else if (asprintf(&w->error_file, "%s/error-%" PRIu64 "-%d.json", ctx->state_dir,
                        w->generation, w->local_rank) < 0) {
        w->error_file = NULL;
    }
    if (!w->error_file)
        return er_error_set(err, -ENOMEM, "worker %d: out of memory", w->rank);
    if (w->log_dir) {
        rc = er_mkdir_all(w->log_dir, 0755, err);
        if (!rc)
            link_current(w, ctx->log_dir);
    }
    unlink(w->error_file); /* of a run before, which used the same generation number */
    return rc;
}

/* The write end for the child through ret_fd, owned by the caller when *ret_owned. */
static int open_stream(struct er_worker *w, const struct er_group_context *ctx,
                       const struct er_assignment *a, int stream, int *ret_fd, bool *ret_owned,
                       struct er_error *err)
{
    const struct er_config *c = ctx->config;
    unsigned bit = 1u << stream, tee = stream_bits(&c->log.tee, w->local_rank) & bit;
    unsigned redirect = stream_bits(&c->log.redirects, w->local_rank) & bit;
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
        .prefix = prefix,
        .timestamps = c->log.timestamps,
    };
    rc = er_logfwd_new(&w->logs[stream], ret_fd, ctx->loop, &opts, err);
    *ret_owned = rc == 0;
    return rc;
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

static int spawn(struct er_worker *w, const struct er_group_context *ctx,
                 const struct er_worker_plan *plan, const int stdio[3], int page_fd,
                 struct er_error *err)
{
    struct er_buf *strings = plan->env;
    size_t n = 0;
    ER_CLEANUP(er_cleanup_free) char **envp = NULL;
    int rc;

    er_buf_clear(strings);
    rc = build_env(w, ctx, plan, page_fd, strings, &n, err);
    if (!rc && !(envp = calloc(n + 1, sizeof(*envp))))
        rc = er_error_set(err, -ENOMEM, "environment: out of memory");
    if (!rc) {
        char *at = strings->data;

        for (size_t i = 0; i < n; i++, at += strlen(at) + 1)
            envp[i] = at;
        const struct er_spawn_opts opts = {
            .path = plan->path,
            .argv = plan->argv,
            .envp = envp,
            .workdir = ctx->config->workdir,
            .stdio = {stdio[0], stdio[1], stdio[2]},
            .keep_fd = page_fd,
            .cgroup_fd = plan->cgroup_fd,
            .report_fd = plan->report_fd,
            .index = w->local_rank,
        };
        rc = er_spawn(&opts, &w->pid, &w->pidfd, err);
    }
    return rc;
}

int er_worker_start(struct er_worker *w, const struct er_group_context *ctx,
                    const struct er_worker_plan *plan, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int page_fd = -1;
    int stdio[3] = {plan->stdin_fd, 1, 2};
    bool owned[3] = {false};
    int rc;

    er_worker_fsm_init(&w->fsm);
    w->pidfd = -1;
    w->rank = plan->assignment->first_rank + w->local_rank;
    w->generation = plan->assignment->generation;
    rc = make_paths(w, ctx, err);
    for (int i = 0; !rc && i < 2; i++)
        rc = open_stream(w, ctx, plan->assignment, i, &stdio[i + 1], &owned[i + 1], err);
    if (!rc)
        rc = open_page(w, &page_fd, err);
    w->started_us = er_now_us();
    if (!rc)
        rc = spawn(w, ctx, plan, stdio, page_fd, err);
    for (int i = 1; i < 3; i++) {
        if (owned[i])
            close(stdio[i]);
    }
    if (rc)
        er_worker_done(w);
    return rc;
}

void er_worker_act(struct er_worker *w, unsigned actions, int stop_signal)
{
    if (actions & ER_WORKER_ACT_NOTICE)
        atomic_store(&w->page->to_worker.word, w->generation << 8 | NOTICE_STOP);
    /* The child may not have reached its setsid() yet: then the group does not exist, the process
     * does. */
    if (actions & ER_WORKER_ACT_SIGNAL) {
        if (kill(-w->pid, stop_signal) < 0)
            kill(w->pid, stop_signal);
        kill(-w->pid, SIGCONT);
    }
    if ((actions & ER_WORKER_ACT_KILL) && kill(-w->pid, SIGKILL) < 0)
        kill(w->pid, SIGKILL);
}

static char *copy_string(const json_t *value)
{
    return json_is_string(value) ? strdup(json_string_value(value)) : NULL;
}

/* Both forms that torchrun knows: {"message": "..."} and {"message": {"message": "...",
 * "extraInfo":
 * {"py_callstack": "..."}}}. What cannot be read is no message. */
static void read_error_file(struct er_worker *w)
{
    struct er_buf text;
    json_t *root = NULL;
    const json_t *message;

    if (access(w->error_file, F_OK) < 0)
        return;
    er_buf_init(&text, ERROR_FILE_MAX);
    if (er_file_read(w->error_file, &text, NULL) == 0)
        root = json_loadb(er_buf_str(&text), text.len, 0, NULL);
    message = json_object_get(root, "message");
    if (json_is_object(message)) {
        w->traceback =
            copy_string(json_object_get(json_object_get(message, "extraInfo"), "py_callstack"));
        message = json_object_get(message, "message");
    }
    if (json_is_string(message)) {
        free(w->message);
        w->message = copy_string(message);
    }
    json_decref(root);
    er_buf_done(&text);
}

void er_worker_ended(struct er_worker *w, int wait_status, bool oom, uint64_t now_us)
{
    er_source_free(w->source);
    w->source = NULL;
    er_cleanup_fd(&w->pidfd);
    w->exited_us = now_us;
    w->exit = er_exit_classify(wait_status, w->exec_errno, oom);
    er_logfwd_drain(w->logs[0]);
    er_logfwd_drain(w->logs[1]);
    if (w->exit.kind != ER_EXIT_OK)
        read_error_file(w);
}

const char *er_worker_tail(struct er_worker *w)
{
    return w->logs[1] ? er_logfwd_tail(w->logs[1]) : "";
}

const char *er_worker_message(struct er_worker *w)
{
    const char *tail, *line;

    if (w->message)
        return w->message;
    tail = er_worker_tail(w);
    if (!tail[0])
        return "";
    /* The last line that says something. */
    w->message = strdup(tail);
    if (!w->message)
        return "";
    for (size_t n = strlen(w->message); n > 0 && strchr("\n\r \t", w->message[n - 1]); n--)
        w->message[n - 1] = '\0';
    line = strrchr(w->message, '\n');
    if (line)
        memmove(w->message, line + 1, strlen(line + 1) + 1);
    return w->message;
}

void er_worker_done(struct er_worker *w)
{
    er_source_free(w->source);
    w->source = NULL;
    er_cleanup_fd(&w->pidfd);
    for (int i = 0; i < 2; i++) {
        er_logfwd_free(w->logs[i]);
        w->logs[i] = NULL;
    }
    if (w->page)
        munmap(w->page, ER_PAGE_BYTES);
    w->page = NULL;
    er_cleanup_free(&w->log_dir);
    er_cleanup_free(&w->error_file);
    er_cleanup_free(&w->message);
    er_cleanup_free(&w->traceback);
}
