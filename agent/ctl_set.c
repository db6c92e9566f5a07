#include "agent/ctl_set.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/ctl_print.h"
#include "agent/findings.h"
#include "agent/overrides.h"
#include "base/cleanup.h"
#include "base/clock.h"

#define WISH_MAX  4000
#define TRIES_MAX 16 /* others may write between a read and the write after it */

static int tell(int code, const struct er_error *err)
{
    if (code)
        er_findings_tell("elastic-ctl", err->text);
    return code;
}

/* "user@host": what the record and the event say. */
static void who_am_i(char *ret, size_t n)
{
    const struct passwd *pw = getpwuid(geteuid());
    char host[128] = "";

    if (gethostname(host, sizeof(host) - 1) < 0)
        host[0] = '\0';
    if (pw)
        snprintf(ret, n, "%.60s@%.60s", pw->pw_name, host);
    else
        snprintf(ret, n, "uid %u@%.60s", (unsigned)geteuid(), host);
}

/* ---- through the store ---- */

/* Of one job, as of one revision. */
struct job {
    char root[ER_ROOT_MAX];
    char spec[ER_SPEC_BYTES_MAX];
    size_t spec_n;
    uint64_t world_rev, overrides_rev;
    struct er_job_record world;
    struct er_overrides overrides;
    bool has_spec, damaged;
};

static void take(void *user, const struct er_store_kv *kv)
{
    struct job *j = user;
    struct er_key key;

    er_key_parse(j->root, kv->key, &key);
    if (key.kind == ER_KEY_WORLD) {
        j->world_rev = kv->mod_rev;
        j->damaged |= er_job_record_parse(kv->value, &j->world, NULL) != 0;
    } else if (key.kind == ER_KEY_OVERRIDES) {
        j->overrides_rev = kv->mod_rev;
        j->damaged |= er_overrides_parse(kv->value, &j->overrides, NULL) != 0;
    } else if (key.kind == ER_KEY_SPEC && kv->value.len <= sizeof(j->spec)) {
        memcpy(j->spec, kv->value.data, kv->value.len);
        j->spec_n = kv->value.len;
        j->has_spec = true;
    }
}

static struct er_bytes key_of(const struct job *j, enum er_key_kind kind, char text[ER_KEY_MAX])
{
    const struct er_key key = {.kind = kind};

    return (struct er_bytes){text, er_key_format(j->root, &key, text)};
}

static int read_job(struct er_ctl_call *c, struct job *j, struct er_error *err)
{
    static const enum er_key_kind KINDS[] = {ER_KEY_WORLD, ER_KEY_SPEC, ER_KEY_OVERRIDES};
    char text[ER_ARRAY_N(KINDS)][ER_KEY_MAX];
    struct er_store_op ops[ER_ARRAY_N(KINDS)];
    struct er_ctl_reading g = {.take = take, .user = j};
    int code;

    memset(j, 0, sizeof(*j));
    if (!er_name_valid(c->job.name) ||
        snprintf(j->root, sizeof(j->root), "%s/%s/", er_ctl_store_prefix(c->store), c->job.name) >=
            (int)sizeof(j->root)) {
        er_error_set(err, -EINVAL, "'%s' is no job's name", c->job.name);
        return ER_CTL_EXIT_USAGE;
    }
    for (size_t i = 0; i < ER_ARRAY_N(KINDS); i++)
        ops[i] = (struct er_store_op){.kind = ER_OP_RANGE, .key = key_of(j, KINDS[i], text[i])};
    code = er_ctl_store_txn(
        c->store, &(struct er_store_txn){.then_ops = ops, .then_n = ER_ARRAY_N(KINDS)}, &g, err);
    if (code)
        return code;
    if (j->damaged || (j->world_rev && !j->has_spec && j->world.phase < ER_WORLD_DONE)) {
        er_error_set(err, ER_E_CORRUPT,
                     "the record of job '%s' in the store is damaged, or of another release",
                     c->job.name);
        return ER_CTL_EXIT_UNREACHABLE;
    }
    if (!j->world_rev) {
        er_error_set(err, -ENOENT, "the store has no job '%s' below %s", c->job.name,
                     er_ctl_store_prefix(c->store));
        return ER_CTL_EXIT_NO_SUCH;
    }
    if (j->world.phase >= ER_WORLD_DONE) {
        er_error_set(err, ER_E_STALE, "set: job '%s' is over; nothing was changed", c->job.name);
        return ER_CTL_EXIT_NO;
    }
    if (j->world.protocol_low < ER_PROTOCOL_OVERRIDES) {
        er_error_set(err, ER_E_PROTOCOL, ER_OVERRIDES_TOO_OLD);
        return ER_CTL_EXIT_NO;
    }
    return 0;
}

/* Only if nothing has changed since it was read; *ret_done says whether that was so. */
static int write_overrides(struct er_ctl_call *c, const struct job *j,
                           const struct er_overrides *next, bool *ret_done, struct er_error *err)
{
    char text[2][ER_KEY_MAX], value[ER_OVERRIDES_BYTES_MAX];
    struct er_ctl_reading g = {.take = NULL};
    const struct er_bytes key = key_of(j, ER_KEY_OVERRIDES, text[1]);
    const struct er_store_cmp cmps[] = {
        {.target = ER_CMP_MOD, .key = key_of(j, ER_KEY_WORLD, text[0]), .rev = j->world_rev},
        {.target = ER_CMP_MOD, .key = key, .rev = j->overrides_rev},
    };
    const struct er_store_op op = {
        .kind = ER_OP_PUT, .key = key, .value = {value, er_overrides_encode(next, value)}};
    int code = er_ctl_store_txn(
        c->store, &(struct er_store_txn){.cmps = cmps, .cmp_n = 2, .then_ops = &op, .then_n = 1},
        &g, err);

    *ret_done = !code && g.succeeded;
    return code;
}

static int change(struct er_ctl_call *c, const char *wish, const char *by,
                  struct er_overrides_change *told, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) struct job *j = malloc(sizeof(*j));
    struct er_overrides next = {.seq = 0};
    bool done = false, sent = false;
    int code = j ? 0 : ER_CTL_EXIT_UNREACHABLE;

    snprintf(next.by, sizeof(next.by), "%s", by);
    snprintf(next.id, sizeof(next.id), "ctl-%llu-%d", (unsigned long long)er_wall_us(),
             (int)getpid());
    for (int i = 0; !code && !done && i < TRIES_MAX; i++) {
        int rc;

        code = read_job(c, j, err);
        if (!code && sent && strcmp(j->overrides.id, next.id) == 0)
            return 0; /* its answer was lost, or came late */
        if (code)
            return code;
        rc = er_overrides_merge(j->spec, j->spec_n, j->overrides.text, wish, next.text, told, err);
        if (rc)
            return rc > 0 ? 0 : ER_CTL_EXIT_NO;
        next.seq = j->overrides.seq + 1;
        next.wall_us = er_wall_us();
        code = write_overrides(c, j, &next, &done, err);
        sent = true;
        if (code == ER_CTL_EXIT_UNREACHABLE && err->code == ER_E_AMBIGUOUS)
            code = 0; /* a read tells */
    }
    if (!code && !done) {
        er_error_set(err, -EAGAIN, "set: others change this job all the time; nothing was changed");
        code = ER_CTL_EXIT_NO;
    }
    return code;
}

static int through_store(struct er_ctl_call *c, const char *wish, const char *by, json_t **ret)
{
    struct er_overrides_change told;
    struct er_error err = ER_ERROR_INIT;
    int code = er_ctl_call_store(c);

    er_overrides_change_init(&told);
    if (!code)
        code = tell(change(c, wish, by, &told, &err), &err);
    if (!code) {
        *ret = json_object();
        json_object_set_new(*ret, "changed",
                            json_loadb(er_buf_str(&told.keys), told.keys.len, 0, NULL));
        json_object_set_new(*ret, "changes", json_string(er_buf_str(&told.told)));
    }
    er_overrides_change_done(&told);
    return code;
}

/* ---- the verb ---- */

static int through_agent(struct er_ctl_call *c, const char *wish, const char *by, json_t **ret)
{
    struct er_ctl_msg request = {.type = ER_CTL_SET};

    er_ctl_str(&request, wish);
    er_ctl_str(&request, by);
    return er_ctl_ask_agent(c, &request, ret);
}

static int wish_of(const struct er_ctl_sets *wishes, char ret[WISH_MAX])
{
    size_t used = 0;

    ret[0] = '\0';
    if (wishes->n == 0)
        return er_ctl_wrong("set: which key? set KEY=VALUE, or --unset KEY", NULL);
    for (int i = 0; i < wishes->n; i++) {
        if (strchr(wishes->items[i], '\n'))
            return er_ctl_wrong("set: one line only", NULL);
        if (used + strlen(wishes->items[i]) + 2 > WISH_MAX)
            return er_ctl_wrong("set: that is too long", NULL);
        used += (size_t)snprintf(ret + used, WISH_MAX - used, "%s\n", wishes->items[i]);
    }
    return 0;
}

static void show(const json_t *reply, const char *job)
{
    char *text = strdup(er_ctl_text(reply, "changes")), *at = text;

    while (at && *at) {
        char *end = strstr(at, "; ");

        if (end)
            *end = '\0';
        printf("%s\n", at);
        at = end ? end + 2 : NULL;
    }
    if (!text || !*text)
        printf("job '%s' has these values already\n", job);
    free(text);
}

int er_ctl_run_set(struct er_ctl_call *c)
{
    struct er_error err = ER_ERROR_INIT;
    char wish[WISH_MAX], by[sizeof(((struct er_overrides *)0)->by)];
    json_t *reply = NULL;
    int code = wish_of(&c->words.wishes, wish);

    if (code)
        return code;
    if (er_overrides_check(wish, &err))
        return tell(ER_CTL_EXIT_USAGE, &err);
    who_am_i(by, sizeof(by));
    code = er_ctl_call_agent(c, &err);
    if (!code)
        code = through_agent(c, wish, by, &reply);
    else if (code == ER_CTL_EXIT_NO_SUCH && c->job.config && er_config_keeps_record(c->job.config))
        code = through_store(c, wish, by, &reply);
    else
        tell(code, &err);
    if (!code && c->words.json)
        er_ctl_print_json(reply);
    else if (!code)
        show(reply, c->job.name);
    json_decref(reply);
    return er_ctl_done(code);
}
