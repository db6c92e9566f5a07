#include "agent/env.h"

#include <inttypes.h>
#include <string.h>

#include "base/cleanup.h"

/* Not for workers: the agent's ties to systemd, an outer job's ties to its agent, and what breaks a
 * communicator's own deadline. A final '*' stands for any rest. */
static const char *const REMOVED[] = {
    "NOTIFY_SOCKET",   "WATCHDOG_*",           "NCCL_COMM_BLOCKING", "ELASTIC_JOB",
    "ELASTIC_RUN",     "ELASTIC_GENERATION",   "ELASTIC_SOCKET",     "ELASTIC_NODE_ID",
    "ELASTIC_PAGE_FD", "ELASTIC_CHECKPOINT_*", "ELASTIC_INSTANCE",   "ELASTIC_STOP_TIMEOUT"};

/* Set by us, whatever the spec or the caller's environment says. */
static const char *const OURS[] = {"LOCAL_RANK",
                                   "RANK",
                                   "GROUP_RANK",
                                   "GROUP_WORLD_SIZE",
                                   "ROLE_NAME",
                                   "ROLE_RANK",
                                   "ROLE_WORLD_SIZE",
                                   "LOCAL_WORLD_SIZE",
                                   "WORLD_SIZE",
                                   "MASTER_ADDR",
                                   "MASTER_PORT",
                                   "TORCHELASTIC_RUN_ID",
                                   "TORCHELASTIC_RESTART_COUNT",
                                   "TORCHELASTIC_MAX_RESTARTS",
                                   "TORCHELASTIC_USE_AGENT_STORE",
                                   "TORCHELASTIC_ERROR_FILE"};

static size_t name_length(const char *entry)
{
    const char *equals = strchr(entry, '=');

    return equals ? (size_t)(equals - entry) : strlen(entry);
}

static bool same_name(const char *name, const char *entry, size_t n)
{
    return strlen(name) == n && memcmp(name, entry, n) == 0;
}

static bool in_list(const char *const *list, size_t list_n, const char *entry, size_t n)
{
    for (size_t i = 0; i < list_n; i++) {
        size_t stem = strlen(list[i]);

        if (stem && list[i][stem - 1] == '*') {
            if (n >= stem - 1 && memcmp(list[i], entry, stem - 1) == 0)
                return true;
        } else if (same_name(list[i], entry, n)) {
            return true;
        }
    }
    return false;
}

const char *er_env_get(const char *const *list, const char *name)
{
    size_t n = strlen(name);

    for (size_t i = 0; list[i]; i++) {
        if (strncmp(list[i], name, n) == 0 && list[i][n] == '=')
            return list[i] + n + 1;
    }
    return NULL;
}

/* What the worker would see before our own names: the spec's value, else the inherited one. */
static const char *outer_value(const struct er_env_input *in, const char *name)
{
    for (size_t i = in->overlay_n; i > 0; i--) {
        if (strcmp(in->overlay_names[i - 1], name) == 0)
            return in->overlay_values[i - 1];
    }
    return er_env_get(in->inherited, name);
}

struct writer {
    struct er_buf *buf;
    size_t n;
    int rc;
};

static void add_text(struct writer *w, const char *name, const char *value)
{
    if (!w->rc)
        w->rc = er_buf_printf(w->buf, "%s=%s", name, value);
    if (!w->rc)
        w->rc = er_buf_add(w->buf, "", 1);
    w->n++;
}

static void add_number(struct writer *w, const char *name, uint64_t value)
{
    if (!w->rc)
        w->rc = er_buf_printf(w->buf, "%s=%" PRIu64, name, value);
    if (!w->rc)
        w->rc = er_buf_add(w->buf, "", 1);
    w->n++;
}

static bool is_ours(const struct er_env_input *in, const char *entry, size_t n)
{
    return in_list(OURS, ER_ARRAY_N(OURS), entry, n) ||
           in_list(REMOVED, ER_ARRAY_N(REMOVED), entry, n) ||
           (in->virtual_local_rank && same_name("CUDA_VISIBLE_DEVICES", entry, n));
}

static void add_outer(struct writer *w, const struct er_env_input *in)
{
    for (size_t i = 0; !w->rc && in->inherited[i]; i++) {
        size_t n = name_length(in->inherited[i]);

        if (n == 0 || is_ours(in, in->inherited[i], n) ||
            in_list(in->overlay_names, in->overlay_n, in->inherited[i], n))
            continue;
        w->rc = er_buf_add(w->buf, in->inherited[i], strlen(in->inherited[i]) + 1);
        w->n++;
    }
    for (size_t i = 0; i < in->overlay_n; i++) {
        const char *name = in->overlay_names[i];

        if (in->overlay_values[i] && !is_ours(in, name, strlen(name)))
            add_text(w, name, in->overlay_values[i]);
    }
}

static void add_ranks(struct writer *w, const struct er_env_input *in)
{
    const struct er_assignment *a = in->assignment;
    uint64_t rank = (uint64_t)(a->first_rank + in->local_rank);

    add_number(w, "LOCAL_RANK", in->virtual_local_rank ? 0 : (uint64_t)in->local_rank);
    add_number(w, "RANK", rank);
    add_number(w, "GROUP_RANK", (uint64_t)a->node_rank);
    add_number(w, "GROUP_WORLD_SIZE", (uint64_t)a->nnodes);
    add_text(w, "ROLE_NAME", in->role);
    add_number(w, "ROLE_RANK", (uint64_t)(a->role_first + in->local_rank));
    add_number(w, "ROLE_WORLD_SIZE", (uint64_t)a->role_size);
    add_number(w, "LOCAL_WORLD_SIZE", (uint64_t)a->local_size);
    add_number(w, "WORLD_SIZE", (uint64_t)a->world_size);
    add_text(w, "MASTER_ADDR", a->master_addr);
    add_number(w, "MASTER_PORT", (uint64_t)a->master_port);
}

static void add_torch(struct writer *w, const struct er_env_input *in)
{
    add_text(w, "TORCHELASTIC_RUN_ID", in->job);
    add_number(w, "TORCHELASTIC_RESTART_COUNT", in->assignment->restarts);
    /* torchrun's scripts parse it as an int: no limit is a number nobody reaches. */
    add_number(w, "TORCHELASTIC_MAX_RESTARTS",
               in->restart_max == UINT32_MAX ? INT32_MAX : in->restart_max);
    add_text(w, "TORCHELASTIC_USE_AGENT_STORE", "False");
    add_text(w, "TORCHELASTIC_ERROR_FILE", in->error_file);
    if (!outer_value(in, "TORCH_NCCL_ASYNC_ERROR_HANDLING"))
        add_text(w, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
    if (in->assignment->local_size > 1 && !outer_value(in, "OMP_NUM_THREADS"))
        add_text(w, "OMP_NUM_THREADS", "1");
}

static void add_limit(struct writer *w, const char *name, bool none, uint64_t value)
{
    if (none)
        add_text(w, name, "none");
    else
        add_number(w, name, value);
}

/* What the program's own options leave open. */
static void add_checkpoint(struct writer *w, const struct er_env_input *in)
{
    add_limit(w, "ELASTIC_CHECKPOINT_EVERY_STEPS", in->checkpoint_every_steps == 0,
              in->checkpoint_every_steps);
    add_text(w, "ELASTIC_CHECKPOINT_EVERY", in->checkpoint_every);
    add_number(w, "ELASTIC_CHECKPOINT_KEEP_LAST", in->checkpoint_keep_last);
    add_limit(w, "ELASTIC_CHECKPOINT_KEEP_EVERY", in->checkpoint_keep_every == 0,
              in->checkpoint_keep_every);
    add_limit(w, "ELASTIC_CHECKPOINT_FAILURES_MAX", in->checkpoint_failures_max == UINT32_MAX,
              in->checkpoint_failures_max);
}

static void add_elastic(struct writer *w, const struct er_env_input *in)
{
    add_text(w, "ELASTIC_JOB", in->job);
    add_text(w, "ELASTIC_RUN", in->assignment->run);
    add_number(w, "ELASTIC_GENERATION", in->assignment->generation);
    add_text(w, "ELASTIC_NODE_ID", in->node_id);
    add_text(w, "ELASTIC_SOCKET", in->socket);
    add_number(w, "ELASTIC_PAGE_FD", (uint64_t)in->page_fd);
    add_text(w, "ELASTIC_CHECKPOINT_DIR", in->checkpoint_dir);
    if (in->checkpoint_dir[0])
        add_checkpoint(w, in);
}

/* One device of the parent's list, or the rank's own number when there is no list. */
static int add_device(struct writer *w, const struct er_env_input *in, struct er_error *err)
{
    const char *list = outer_value(in, "CUDA_VISIBLE_DEVICES"), *at = list;
    size_t n = 0;

    if (!in->virtual_local_rank)
        return 0;
    if (!list) {
        add_number(w, "CUDA_VISIBLE_DEVICES", (uint64_t)in->local_rank);
        return 0;
    }
    for (int i = 0; at && i < in->local_rank; i++) {
        at = strchr(at, ',');
        at = at ? at + 1 : NULL;
    }
    n = at ? strcspn(at, ",") : 0;
    if (n == 0)
        return er_error_set(err, ER_E_CONFIG,
                            "virtual_local_rank: CUDA_VISIBLE_DEVICES='%s' has no device for local "
                            "rank %d",
                            list, in->local_rank);
    if (!w->rc)
        w->rc = er_buf_printf(w->buf, "CUDA_VISIBLE_DEVICES=%.*s", (int)n, at);
    if (!w->rc)
        w->rc = er_buf_add(w->buf, "", 1);
    w->n++;
    return 0;
}

int er_env_build(struct er_buf *strings, const struct er_env_input *in, size_t *ret_n,
                 struct er_error *err)
{
    struct writer w = {.buf = strings};
    int rc;

    add_outer(&w, in);
    add_ranks(&w, in);
    add_torch(&w, in);
    add_elastic(&w, in);
    rc = add_device(&w, in, err);
    if (rc)
        return rc;
    if (w.rc)
        return er_error_set(err, w.rc, "environment of local rank %d is too large", in->local_rank);
    *ret_n = w.n;
    return 0;
}
