#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/parse.h"
#include "runtime/context_internal.h"

/* How long an agent may take to answer a request that does not wait for anything; connecting and
 * the first answer together. */
#define ANSWER_TIMEOUT_US (10 * ER_US_PER_S)
#define AHEAD_TIMEOUT_US  (3600 * ER_US_PER_S) /* the agent ends us when it comes to nothing */
_Static_assert(ER_KEY_MAX == ER_CTL_KEY_MAX && ER_VALUE_MAX == ER_CTL_VALUE_MAX &&
                   ER_BARRIERS_MAX == ER_CTL_BARRIERS_MAX,
               "the public limits are those of the socket");

/* The text of a refused request is its last string. */
static int refused(const struct er_ctl_msg *reply, const char *what, struct er_error *err)
{
    char text[512] = "";
    if (reply->str_n > 0)
        er_ctl_copy(reply->str[reply->str_n - 1], text, sizeof(text));
    return er_error_set(err, reply->status, "%s: %s", what,
                        text[0] ? text : er_error_name(reply->status));
}

/* "51,77". More than there is room for fail as they did before. */
static size_t read_skips(struct er_ctx *ctx, const struct er_ctl_msg *msg)
{
    char text[SKIPS_MAX * 21 + 1], *at = text, *word;
    size_t n = 0;

    if (msg->str_n <= TEXT_SKIPS || er_ctl_copy(msg->str[TEXT_SKIPS], text, sizeof(text)) < 0)
        return 0;
    while (n < SKIPS_MAX && (word = strsep(&at, ",")) != NULL) {
        if (er_parse_u64(word, 1, UINT64_MAX, &ctx->skips[n], NULL) == 0)
            n++;
    }
    return n;
}

static int read_world(struct er_ctx *ctx, const struct er_ctl_msg *msg, struct er_error *err)
{
    if (msg->num_n < NUM_COUNT || msg->str_n < TEXT_COUNT)
        return er_error_set(err, ER_E_PROTOCOL, "the agent's answer is too short");
    for (int i = 0; i < TEXT_COUNT; i++)
        if (er_ctl_copy(msg->str[i], ctx->text[i], sizeof(ctx->text[i])) < 0)
            return er_error_set(err, ER_E_PROTOCOL, "the agent's answer is malformed");
    for (int i = 0; i <= NUM_NNODES; i++)
        if (msg->num[i] > INT_MAX)
            return er_error_set(err, ER_E_PROTOCOL, "the agent's answer is out of range");
    ctx->ahead = msg->num_n > NUM_AHEAD && msg->num[NUM_AHEAD];
    ctx->world = (struct er_world){
        .rank = (int)msg->num[NUM_RANK],
        .size = (int)msg->num[NUM_SIZE],
        .local_rank = (int)msg->num[NUM_LOCAL_RANK],
        .local_size = (int)msg->num[NUM_LOCAL_SIZE],
        .node_rank = (int)msg->num[NUM_NODE_RANK],
        .nnodes = (int)msg->num[NUM_NNODES],
        .generation = msg->num[NUM_GENERATION],
        .restarts = (uint32_t)msg->num[NUM_RESTARTS],
        .job = ctx->text[TEXT_JOB],
        .run = ctx->text[TEXT_RUN],
        .node_id = ctx->text[TEXT_NODE_ID],
        .checkpoint_dir = ctx->text[TEXT_CHECKPOINT_DIR],
        .skip_steps = ctx->skips,
        .skip_steps_n = read_skips(ctx, msg),
    };
    return 0;
}

static int greet(struct er_ctx *ctx, uint64_t timeout_us, struct er_error *err)
{
    struct er_ctl_msg hello = {.type = ER_CTL_HELLO}, reply;
    er_ctl_num(&hello, ER_CTL_PROTOCOL);
    er_ctl_num(&hello, (uint64_t)getpid());
    int rc = er_ctl_client_call(&ctx->client, &hello, timeout_us, &reply, err);
    if (rc < 0)
        return rc;
    if (reply.status < 0)
        return refused(&reply, "the agent refused this process", err);
    if (reply.status != 0 || reply.type != ER_CTL_WORLD)
        return er_error_set(err, ER_E_PROTOCOL, "the agent's answer is none to a greeting");
    return read_world(ctx, &reply, err);
}

/* One that was started beside a generation is told the world of the next one, when it begins. */
static int join_agent(struct er_ctx *ctx, const char *path, struct er_error *err)
{
    int rc = er_ctl_client_open(&ctx->client, path, ANSWER_TIMEOUT_US, err);
    return rc < 0 ? rc : greet(ctx, AHEAD_TIMEOUT_US, err);
}

static void world_of_one(struct er_ctx *ctx)
{
    ctx->world = (struct er_world){.size = 1,
                                   .local_size = 1,
                                   .nnodes = 1,
                                   .job = "",
                                   .run = "",
                                   .node_id = "",
                                   .checkpoint_dir = ctx->text[TEXT_CHECKPOINT_DIR]};
    const char *dir = getenv("ELASTIC_CHECKPOINT_DIR");
    if (dir && strlen(dir) < sizeof(ctx->text[TEXT_CHECKPOINT_DIR]))
        memcpy(ctx->text[TEXT_CHECKPOINT_DIR], dir, strlen(dir) + 1);
}

static struct er_ctx *new_context(struct er_error *err)
{
    struct er_ctx *ctx = calloc(1, sizeof(*ctx));
    if (!ctx) {
        er_error_set(err, -ENOMEM, "no memory for a context");
        return NULL;
    }
    ctx->client.fd = -1;
    er_local_kv_init(&ctx->kv);
    return ctx;
}

/* Whoever got no answer to its greeting has nobody to take leave of. */
static int opened(struct er_ctx *ctx, int rc, struct er_ctx **ret)
{
    if (rc < 0) {
        ctx->left = true;
        er_close(ctx);
        return rc;
    }
    *ret = ctx;
    return 0;
}

int er_open(struct er_ctx **ret, struct er_error *err)
{
    struct er_ctx *ctx = new_context(err);
    if (!ctx)
        return -ENOMEM;
    const char *path = getenv("ELASTIC_SOCKET");
    ctx->with_agent = path && path[0];
    int rc = 0;
    if (ctx->with_agent) {
        rc = er_ctx_map_page(ctx, err);
        if (rc == 0)
            rc = join_agent(ctx, path, err);
    } else {
        world_of_one(ctx);
    }
    return opened(ctx, rc, ret);
}

int er_ctx_adopt(struct er_ctx **ret, int fd, struct er_page *page, struct er_error *err)
{
    struct er_ctx *ctx = new_context(err);
    if (!ctx)
        return -ENOMEM;
    ctx->with_agent = true;
    ctx->client.fd = fd;
    ctx->page = page;
    return opened(ctx, greet(ctx, ANSWER_TIMEOUT_US, err), ret);
}

/* Send a request whose answer is a status; positive statuses are the caller's. */
static int ask(struct er_ctx *ctx, struct er_ctl_msg *request, uint64_t timeout_us,
               const char *what, struct er_ctl_msg *ret, struct er_error *err)
{
    int rc = er_ctl_client_call(&ctx->client, request, ctx->ahead ? AHEAD_TIMEOUT_US : timeout_us,
                                ret, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "%s", what);
    if (request->type == ER_CTL_KV_PUT || request->type == ER_CTL_KV_ADD)
        ctx->ahead = false; /* it was answered, so the generation is sealed */
    if (ret->type != ER_CTL_REPLY)
        return er_error_set(err, ER_E_PROTOCOL, "%s: unexpected answer %s", what,
                            er_ctl_type_name(ret->type));
    return ret->status < 0 ? refused(ret, what, err) : ret->status;
}

static struct er_ctl_msg request_for(const struct er_ctx *ctx, enum er_ctl_type type)
{
    struct er_ctl_msg msg = {.type = type};
    er_ctl_num(&msg, ctx->world.generation);
    return msg;
}

void er_close(struct er_ctx *ctx)
{
    if (!ctx)
        return;
    if (ctx->with_agent && !ctx->left) {
        struct er_ctl_msg reply, bye = request_for(ctx, ER_CTL_BYE);
        (void)ask(ctx, &bye, ANSWER_TIMEOUT_US, "leave", &reply, NULL);
    }
    er_ctl_client_close(&ctx->client);
    if (ctx->page)
        munmap(ctx->page, ER_PAGE_BYTES);
    er_local_kv_done(&ctx->kv);
    free(ctx);
}

const struct er_world *er_world(const struct er_ctx *ctx)
{
    return &ctx->world;
}

static int check_key(const char *key, struct er_error *err)
{
    size_t n = strlen(key);
    if (n == 0 || n > ER_KEY_MAX)
        return er_error_set(err, -EINVAL, "key of %zu bytes: 1 to %d are allowed", n, ER_KEY_MAX);
    return 0;
}

int er_kv_put(struct er_ctx *ctx, const char *key, const void *value, size_t n,
              struct er_error *err)
{
    int rc = check_key(key, err);
    if (rc < 0)
        return rc;
    if (n > ER_VALUE_MAX)
        return er_error_set(err, -EMSGSIZE, "value of '%s' has %zu bytes, %d are allowed", key, n,
                            ER_VALUE_MAX);
    if (!ctx->with_agent) {
        rc = er_local_kv_put(&ctx->kv, key, value, n);
        return rc < 0 ? er_error_set(err, rc, "put '%s': %s", key, er_error_name(rc)) : 0;
    }
    struct er_ctl_msg reply, msg = request_for(ctx, ER_CTL_KV_PUT);
    er_ctl_str(&msg, key);
    er_ctl_bytes(&msg, value, n);
    return ask(ctx, &msg, ANSWER_TIMEOUT_US, "put", &reply, err);
}

static int give_value(const char *key, const void *value, size_t n, void *ret_value, size_t cap,
                      size_t *ret_n, struct er_error *err)
{
    if (ret_n)
        *ret_n = n;
    if (n > cap)
        return er_error_set(err, -ENOSPC, "value of '%s' has %zu bytes, room for %zu", key, n, cap);
    if (n > 0) /* or ret_value may be NULL */
        memcpy(ret_value, value, n);
    return 0;
}

int er_kv_get(struct er_ctx *ctx, const char *key, void *ret_value, size_t cap, size_t *ret_n,
              uint64_t timeout_us, struct er_error *err)
{
    int rc = check_key(key, err);
    if (rc < 0)
        return rc;
    if (!ctx->with_agent) {
        const void *value;
        size_t n;
        rc = er_local_kv_get(&ctx->kv, key, &value, &n);
        return rc ? rc : give_value(key, value, n, ret_value, cap, ret_n, err);
    }
    struct er_ctl_msg reply, msg = request_for(ctx, ER_CTL_KV_GET);
    er_ctl_num(&msg, timeout_us);
    er_ctl_str(&msg, key);
    rc = ask(ctx, &msg, er_deadline_in(timeout_us, ANSWER_TIMEOUT_US), "get", &reply, err);
    if (rc != 0)
        return rc;
    if (reply.str_n < 1)
        return er_error_set(err, ER_E_PROTOCOL, "get '%s': answer without a value", key);
    return give_value(key, reply.str[0].data, reply.str[0].len, ret_value, cap, ret_n, err);
}

int er_kv_add(struct er_ctx *ctx, const char *key, int64_t delta, int64_t *ret,
              struct er_error *err)
{
    int rc = check_key(key, err);
    if (rc < 0)
        return rc;
    if (!ctx->with_agent)
        return er_local_kv_add(&ctx->kv, key, delta, ret, err);
    struct er_ctl_msg reply, msg = request_for(ctx, ER_CTL_KV_ADD);
    er_ctl_num(&msg, (uint64_t)delta);
    er_ctl_str(&msg, key);
    rc = ask(ctx, &msg, ANSWER_TIMEOUT_US, "add", &reply, err);
    if (rc != 0)
        return rc;
    if (reply.num_n < 1)
        return er_error_set(err, ER_E_PROTOCOL, "add '%s': answer without a value", key);
    *ret = (int64_t)reply.num[0];
    return 0;
}

int er_barrier(struct er_ctx *ctx, const char *name, uint64_t timeout_us, struct er_error *err)
{
    int rc = check_key(name, err);
    if (rc < 0 || !ctx->with_agent)
        return rc;
    struct er_ctl_msg reply, msg = request_for(ctx, ER_CTL_BARRIER);
    er_ctl_num(&msg, timeout_us);
    er_ctl_str(&msg, name);
    rc = ask(ctx, &msg, er_deadline_in(timeout_us, ANSWER_TIMEOUT_US), "barrier", &reply, err);
    return rc > 0
               ? er_error_set(err, -ETIMEDOUT, "barrier '%s': not all ranks arrived in time", name)
               : rc;
}

int er_ready(struct er_ctx *ctx, struct er_error *err)
{
    if (!ctx->with_agent)
        return 0;
    struct er_ctl_msg reply, msg = request_for(ctx, ER_CTL_READY);
    er_ctl_num(&msg, ctx->rejoins ? ER_CTL_REJOINS : 0);
    return ask(ctx, &msg, ANSWER_TIMEOUT_US, "ready", &reply, err);
}

void er_rejoin_offer(struct er_ctx *ctx)
{
    ctx->rejoins = true;
    if (ctx->page) /* at once: the generation may end before er_ready() */
        atomic_store(&ctx->page->from_worker.rejoins, 1);
}

int er_rejoin(struct er_ctx *ctx, uint64_t timeout_us, struct er_error *err)
{
    uint64_t left = ctx->world.generation;
    if (!ctx->with_agent)
        return er_error_set(err, ER_E_UNSUPPORTED, "rejoin: there is no agent");
    struct er_ctl_msg reply, msg = request_for(ctx, ER_CTL_LEFT);
    int rc = er_ctl_client_call(&ctx->client, &msg, timeout_us, &reply, err);
    if (rc < 0)
        return er_error_wrap(err, rc, "rejoin");
    if (reply.type == ER_CTL_REPLY && reply.status > 0)
        return ER_REJOIN_DONE;
    if (reply.type == ER_CTL_REPLY && reply.status < 0)
        return refused(&reply, "rejoin", err);
    if (reply.type != ER_CTL_WORLD)
        return er_error_set(err, ER_E_UNSUPPORTED, "rejoin: the agent cannot");
    rc = read_world(ctx, &reply, err);
    if (rc == 0 && ctx->world.generation <= left)
        rc = er_error_set(err, ER_E_PROTOCOL, "rejoin: generation %llu after %llu",
                          (unsigned long long)ctx->world.generation, (unsigned long long)left);
    return rc;
}

static struct er_ctl_msg commit_request(const struct er_ctx *ctx, const struct er_commit *c)
{
    struct er_ctl_msg msg = request_for(ctx, ER_CTL_COMMIT);
    const uint64_t nums[] = {c->step,     c->bytes,       c->written_bytes,
                             c->pause_us, c->duration_us, (uint64_t)(int64_t)c->error};
    for (size_t i = 0; i < ER_ARRAY_N(nums); i++)
        er_ctl_num(&msg, nums[i]);
    er_ctl_str(&msg, c->path);
    er_ctl_str(&msg, c->digest);
    return msg;
}

int er_commit(struct er_ctx *ctx, const struct er_commit *commit, struct er_error *err)
{
    struct er_ctl_msg reply, msg;

    if (!ctx->with_agent)
        return 0;
    msg = commit_request(ctx, commit);
    return ask(ctx, &msg, ANSWER_TIMEOUT_US, "commit", &reply, err);
}

int er_commit_begin(struct er_ctx *ctx, const struct er_commit *commit, struct er_error *err)
{
    struct er_ctl_msg msg;
    int rc;

    if (!ctx->with_agent)
        return 0;
    msg = commit_request(ctx, commit);
    rc = er_ctl_client_ask(&ctx->client, &msg, ANSWER_TIMEOUT_US, err);
    return rc < 0 ? er_error_wrap(err, rc, "commit") : 0;
}

int er_commit_end(struct er_ctx *ctx, uint64_t wait_us, struct er_error *err)
{
    const struct er_ctl_later *later = &ctx->client.later;
    int rc;

    if (!ctx->with_agent)
        return 0;
    rc = er_ctl_client_answer(&ctx->client, wait_us, err);
    if (rc == ER_CTL_UNANSWERED)
        return ER_COMMIT_OPEN;
    if (rc < 0)
        return er_error_wrap(err, rc, "commit");
    if (later->type != ER_CTL_REPLY || later->status > 0)
        return er_error_set(err, ER_E_PROTOCOL, "commit: unexpected answer %s (%d)",
                            er_ctl_type_name(later->type), later->status);
    if (later->status < 0)
        return er_error_set(err, later->status, "commit: %s",
                            later->text[0] ? later->text : er_error_name(later->status));
    return 0;
}

int er_loaded(struct er_ctx *ctx, uint64_t step, const char *path, const char *source,
              const char *skipped, struct er_error *err)
{
    if (!ctx->with_agent)
        return 0;
    struct er_ctl_msg reply, msg = request_for(ctx, ER_CTL_LOADED);
    er_ctl_num(&msg, step);
    er_ctl_str(&msg, path);
    er_ctl_str(&msg, source);
    er_ctl_str(&msg, skipped);
    return ask(ctx, &msg, ANSWER_TIMEOUT_US, "report the loaded checkpoint", &reply, err);
}

int er_fail(struct er_ctx *ctx, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (!ctx || !ctx->with_agent)
        return 0;
    struct er_ctl_msg reply, msg = request_for(ctx, ER_CTL_FAIL);
    er_ctl_str(&msg, text);
    return ask(ctx, &msg, ANSWER_TIMEOUT_US, "report the failure", &reply, NULL);
}
