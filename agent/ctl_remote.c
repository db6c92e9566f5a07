#include "agent/ctl_remote.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/ctl_find.h"
#include "agent/overrides.h"
#include "agent/status.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "rendezvous/view.h"

#define OVERRIDES_TEXT_MAX (4u * 1024)
#define NODES_FIRST        256 /* a view for so many at first */

/* ---- a job's record as JSON ---- */

struct record {
    char root[ER_ROOT_MAX];
    struct er_view view;
    struct er_view_node *nodes; /* owned */
    bool is_there;              /* its `world` is, whether or not it can be read */
    bool has_latest;
    struct er_ckpt_record latest;
    bool has_overrides;
    struct er_overrides overrides;
};

static void take_record(void *user, const struct er_store_kv *kv)
{
    struct record *rec = user;
    struct er_key key;

    er_key_parse(rec->root, kv->key, &key);
    rec->is_there |= key.kind == ER_KEY_WORLD;
    if (key.kind == ER_KEY_CKPT)
        rec->has_latest = er_ckpt_record_parse(kv->value, &rec->latest, NULL) == 0;
    if (key.kind == ER_KEY_OVERRIDES)
        rec->has_overrides = er_overrides_parse(kv->value, &rec->overrides, NULL) == 0;
    er_view_apply(&rec->view, rec->root, ER_STORE_PUT, kv, 0);
}

/* The key of that kind; of those that nodes have, the beginning that all have in common. */
static size_t key_of(const struct record *rec, enum er_key_kind kind, char ret[ER_KEY_MAX])
{
    bool many = kind == ER_KEY_NODE || kind == ER_KEY_ASSIGN || kind == ER_KEY_ASIDE;
    const struct er_key key = {.kind = kind, .name = "x"};
    size_t n = er_key_format(rec->root, &key, ret);

    return n && many ? n - 1 : n;
}

static int read_into(struct er_ctl_store *store, struct record *rec, size_t cap, bool nodes,
                     struct er_error *err)
{
    static const enum er_key_kind KINDS[] = {ER_KEY_WORLD,     ER_KEY_LEADER, ER_KEY_CKPT,
                                             ER_KEY_OVERRIDES, ER_KEY_ASSIGN, ER_KEY_NODE,
                                             ER_KEY_ASIDE};
    uint64_t revision = 0;
    int code = 0;

    free(rec->nodes);
    rec->nodes = calloc(cap, sizeof(*rec->nodes));
    if (!rec->nodes) {
        er_error_set(err, -ENOMEM, "out of memory");
        return ER_CTL_EXIT_UNREACHABLE;
    }
    er_view_init(&rec->view, rec->nodes, cap);
    for (size_t i = 0; !code && i < (nodes ? ER_ARRAY_N(KINDS) : 4); i++) {
        char key[ER_KEY_MAX];
        size_t n = key_of(rec, KINDS[i], key);

        code = er_ctl_store_read(store, key, n, &revision, take_record, rec, err);
    }
    return code;
}

/* ER_CTL_EXIT_NO_SUCH: there is none. ER_CTL_EXIT_UNREACHABLE and `is_there`: it cannot be read. */
static int read_record(struct er_ctl_store *store, const char *job, bool nodes, struct record *rec,
                       struct er_error *err)
{
    size_t cap = nodes ? NODES_FIRST : 1;
    int code;

    *rec = (struct record){.nodes = NULL};
    if (!er_name_valid(job) ||
        snprintf(rec->root, sizeof(rec->root), "%s/%s/", er_ctl_store_prefix(store), job) >=
            (int)sizeof(rec->root)) {
        er_error_set(err, -EINVAL, "'%s' is no job's name", job);
        return ER_CTL_EXIT_USAGE;
    }
    do {
        code = read_into(store, rec, cap, nodes, err);
        cap *= 4;
    } while (!code && rec->view.full);
    if (!code && rec->is_there && !rec->view.has_world) {
        er_error_set(err, ER_E_CORRUPT,
                     "the record of job '%s' in the store is damaged, or of another release", job);
        code = ER_CTL_EXIT_UNREACHABLE;
    } else if (!code && !rec->view.has_world) {
        er_error_set(err, -ENOENT, "the store has no job '%s' below %s", job,
                     er_ctl_store_prefix(store));
        code = ER_CTL_EXIT_NO_SUCH;
    }
    return code;
}

static int put(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value ? value : json_null());
}

static json_t *text_or_null(const char *text)
{
    return text[0] ? json_string(text) : json_null();
}

static json_t *node_json(const struct er_view *v, const struct er_view_node *n)
{
    json_t *o = json_object();

    put(o, "node", json_string(n->id));
    put(o, "host", json_string(n->member.host));
    put(o, "address", json_string(n->member.address));
    put(o, "state", json_string(er_view_state_name(v, n)));
    put(o, "slots", json_integer(n->member.slots));
    put(o, "node_rank", json_integer(er_view_member_rank(v, n, NULL)));
    return o;
}

static json_t *nodes_json(const struct er_view *v)
{
    json_t *list = json_array();

    for (size_t i = 0; i < v->n; i++) {
        if (v->nodes[i].present || er_view_member_rank(v, &v->nodes[i], NULL) >= 0)
            json_array_append_new(list, node_json(v, &v->nodes[i]));
    }
    return list;
}

static json_t *store_json(const struct er_ctl_store *store)
{
    struct er_etcd_status s = {.connected = false};
    json_t *o = json_object();

    er_ctl_store_status(store, &s);
    put(o, "backend", json_string("etcd"));
    put(o, "connected", json_boolean(s.connected));
    put(o, "endpoint", text_or_null(s.endpoint));
    return o;
}

static void put_verdict(json_t *o, const struct er_job_record *w)
{
    if (w->phase != ER_WORLD_DONE && w->phase != ER_WORLD_FAILED)
        return;
    put(o, "exit_code", json_integer(w->exit_code));
    put(o, "outcome", json_string(er_view_phase_name(w)));
    put(o, "verdict", text_or_null(w->verdict));
    put(o, "cause_node", w->has_cause ? text_or_null(w->cause.node_id) : json_null());
    put(o, "cause_rank", w->has_cause ? json_integer(w->cause.rank) : json_null());
}

static void put_overrides(json_t *o, const struct record *rec)
{
    const struct er_overrides *set = rec->has_overrides ? &rec->overrides : NULL;
    ER_CLEANUP(er_buf_done) struct er_buf text;
    char ts[ER_RFC3339_MAX];

    er_buf_init(&text, OVERRIDES_TEXT_MAX);
    if (er_overrides_json(set, &text) == 0)
        put(o, "overrides", json_loadb(text.data, text.len, 0, NULL));
    if (set)
        er_rfc3339(set->wall_us, ts);
    put(o, "overrides_by", set ? text_or_null(set->by) : json_null());
    put(o, "overrides_ts", set ? json_string(ts) : json_null());
}

static json_t *record_json(const struct record *rec, const char *job)
{
    const struct er_job_record *w = &rec->view.world;
    json_t *o = json_object();

    put(o, "source", json_string("store"));
    put(o, "job", json_string(job));
    put(o, "run_id", json_string(w->run));
    put(o, "phase", json_string(er_view_phase_name(w)));
    put(o, "generation", json_integer((json_int_t)w->last_sealed));
    put(o, "reason", json_string(er_reason_name(w->reason)));
    put(o, "world_size", json_integer(w->world_size));
    put(o, "nnodes", json_integer(w->last_nnodes));
    put(o, "nnodes_min", json_integer(w->min_nodes));
    put(o, "nnodes_max", json_integer(w->max_nodes));
    put(o, "restarts", json_integer(w->restarts));
    put(o, "leader", rec->view.has_leader ? text_or_null(rec->view.leader.node_id) : json_null());
    put(o, "checkpoint_step",
        rec->has_latest ? json_integer((json_int_t)rec->latest.step) : json_null());
    put(o, "checkpoint_path", rec->has_latest ? text_or_null(rec->latest.path) : json_null());
    put_verdict(o, w);
    put_overrides(o, rec);
    return o;
}

int er_ctl_remote_status(struct er_ctl_store *store, const char *job, json_t **ret,
                         struct er_error *err)
{
    struct record rec;
    int code = read_record(store, job, true, &rec, err);

    if (!code) {
        *ret = record_json(&rec, job);
        put(*ret, "store", store_json(store));
        put(*ret, "nodes", nodes_json(&rec.view));
    }
    free(rec.nodes);
    return code;
}

/* ---- every job ---- */

/* The first key behind `after` tells the next job. Others may write below the prefix too: what is
 * no job's name, long or empty, is passed by. */
struct next_job {
    size_t prefix_n;
    bool found;
    char name[ER_NAME_TEXT_MAX]; /* "": no job's */
    char after[ER_KEY_MAX + 1];
    size_t after_n;
};

static void take_name(void *user, const struct er_store_kv *kv)
{
    struct next_job *next = user;
    const char *at = (const char *)kv->key.data + next->prefix_n, *slash;
    size_t n = kv->key.len - next->prefix_n, kept;

    if (kv->key.len < next->prefix_n) /* not what was asked for */
        return;
    slash = memchr(at, '/', n);
    n = slash ? (size_t)(slash - at) : n;
    kept =
        n < sizeof(next->after) - 1 - next->prefix_n ? n : sizeof(next->after) - 1 - next->prefix_n;
    next->found = true;
    /* '0' follows '/': everything of the job is before that. */
    memcpy(next->after, kv->key.data, next->prefix_n + kept);
    next->after[next->prefix_n + kept] = kept < n ? '\xff' : '0';
    next->after_n = next->prefix_n + kept + 1;
    if (n < sizeof(next->name) && !memchr(at, '\0', n)) {
        memcpy(next->name, at, n);
        next->name[n] = '\0';
    }
}

static int find_next(struct er_ctl_store *store, const char *prefix, struct next_job *next,
                     struct er_error *err)
{
    struct er_ctl_reading g = {.take = take_name, .user = next};
    const struct er_store_op op = {.kind = ER_OP_RANGE,
                                   .key = {prefix, strlen(prefix)},
                                   .prefix = true,
                                   .after = {next->after, next->after_n},
                                   .limit = 1,
                                   .keys_only = true};

    next->found = false;
    next->name[0] = '\0';
    return er_ctl_store_txn(store, &(struct er_store_txn){.then_ops = &op, .then_n = 1}, &g, err);
}

int er_ctl_remote_jobs(struct er_ctl_store *store, json_t **ret, struct er_error *err)
{
    char prefix[ER_ROOT_MAX];
    struct next_job next = {.prefix_n = 0};
    json_t *list = json_array();
    int code = 0;

    snprintf(prefix, sizeof(prefix), "%s/", er_ctl_store_prefix(store));
    next.prefix_n = strlen(prefix);
    while (!(code = find_next(store, prefix, &next, err)) && next.found) {
        struct record rec;

        code = read_record(store, next.name, false, &rec, err);
        if (!code) {
            json_array_append_new(list, record_json(&rec, next.name));
        } else if (rec.is_there) {
            json_array_append_new(list,
                                  json_pack("{s:s, s:s}", "job", next.name, "phase", "unreadable"));
            code = 0;
        }
        free(rec.nodes);
        if (code && code != ER_CTL_EXIT_NO_SUCH && code != ER_CTL_EXIT_USAGE)
            break;
    }
    if (code == ER_CTL_EXIT_NO_SUCH || code == ER_CTL_EXIT_USAGE)
        code = 0;
    if (code)
        json_decref(list);
    else
        *ret = list;
    return code;
}

/* ---- asking ---- */

static bool any_node(const struct er_view *v)
{
    bool any = false;

    for (size_t i = 0; i < v->n; i++)
        any |= v->nodes[i].present;
    return any;
}

int er_ctl_remote_ask(struct er_ctl_store *store, const char *job, const char *verb,
                      const struct er_ask *ask, struct er_error *err)
{
    struct record rec;
    struct er_ctl_reading g = {.take = NULL};
    struct er_key key = {.kind = ER_KEY_CTL};
    char world[ER_KEY_MAX], name[ER_KEY_MAX], value[ER_ASK_BYTES_MAX];
    bool ends = ask->kind == ER_ASK_STOP || ask->kind == ER_ASK_DRAIN;
    int code = read_record(store, job, ends, &rec, err);
    bool nobody = !code && ends && !any_node(&rec.view);

    free(rec.nodes);
    if (code)
        return code;
    if (rec.view.world.phase == ER_WORLD_DONE || rec.view.world.phase == ER_WORLD_FAILED) {
        er_error_set(err, -ESTALE, "job '%s' is over: %s", job,
                     er_view_phase_name(&rec.view.world));
        return ER_CTL_EXIT_NO;
    }
    if (nobody) {
        er_error_set(err, -ESRCH,
                     "no node of job '%s' is there, so nothing was asked of it; it has no verdict, "
                     "and its next run goes on from where it was",
                     job);
        return ER_CTL_EXIT_NO;
    }
    if ((ask->deadline_us || strcmp(ask->node, ER_ASK_ALL_NODES) == 0) &&
        rec.view.world.protocol_low < ER_PROTOCOL_DEADLINE) {
        er_error_set(err, ER_E_PROTOCOL, ER_CTL_TOO_OLD, job);
        return ER_CTL_EXIT_NO;
    }
    snprintf(key.name, sizeof(key.name), "%s-%llu-%d", verb, (unsigned long long)er_wall_us(),
             (int)getpid());
    const struct er_store_cmp there = {
        .target = ER_CMP_CREATE,
        .result = ER_CMP_NOT_EQUAL,
        .key = {world, key_of(&rec, ER_KEY_WORLD, world)},
    };
    const struct er_store_op op = {
        .kind = ER_OP_PUT,
        .key = {name, er_key_format(rec.root, &key, name)},
        .value = {value, er_ask_encode(ask, value)},
    };

    return er_ctl_store_txn(
        store, &(struct er_store_txn){.cmps = &there, .cmp_n = 1, .then_ops = &op, .then_n = 1}, &g,
        err);
}
