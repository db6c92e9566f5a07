/* What is set while the job runs, above its spec (elastic-ctl set): followed by every agent, and
 * written by the one that is asked. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_hang.h"
#include "agent/agent_internal.h"
#include "agent/config_internal.h"
#include "agent/overrides.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "rendezvous/spec_text.h"

#define WISH_MAX  4096
#define TOLD_MAX  900               /* of a line for the terminal */
#define ANSWER_US (8 * ER_US_PER_S) /* elastic-ctl waits for 10 s */

/* ---- one place where changed values take effect ---- */

static void tell_core(struct er_agent *agent)
{
    struct er_driver_tuning tuning;

    er_agent_tuning(agent->config, &tuning);
    er_driver_tune(agent->driver, &tuning);
}

static void look_again(struct er_agent *agent)
{
    agent->hang->clocks.due_us = er_now_us();
}

/* Streams that pass through the agent follow at once; others when their workers start anew. */
static void show_output(struct er_agent *agent)
{
    for (int i = 0; agent->group && i < er_group_size(agent->group); i++)
        er_worker_show(er_group_worker(agent->group, i), &agent->group_ctx);
}

void er_agent_apply(struct er_agent *agent, unsigned applies)
{
    static const struct {
        unsigned bit;
        void (*fn)(struct er_agent *agent);
    } EFFECTS[] = {
        {ER_APPLIES_CORE, tell_core},
        {ER_APPLIES_JUDGES, look_again},
        {ER_APPLIES_CONSOLE, show_output},
    };

    for (size_t i = 0; i < ER_ARRAY_N(EFFECTS); i++) {
        if (applies & EFFECTS[i].bit)
            EFFECTS[i].fn(agent);
    }
}

/* ---- following ---- */

/* One key as it is to be from now on; what changes is added to the two texts. */
static unsigned follow_key(struct er_agent *agent, const struct er_key_info *key, const char *over,
                           struct er_buf *keys, struct er_buf *told)
{
    const char *was = er_config_setting(agent->config, key->path)->text;
    ER_CLEANUP(er_cleanup_free)
    char *is = er_overrides_value(er_driver_spec(agent->driver), over, key->path);
    struct er_error err = ER_ERROR_INIT;
    size_t n;

    if (!is || strcmp(is, was) == 0)
        return 0;
    (void)er_buf_printf(keys, "%s\"%s\"", keys->len > 1 ? "," : "", key->path);
    (void)er_buf_printf(told, "%s%s is %s, was %s", told->len ? "; " : "", key->path, is, was);
    if (!er_config_put(agent->config, key, is,
                       er_spec_value(over, strlen(over), key->path, &n) ? "elastic-ctl set"
                                                                        : "the job's spec",
                       &err))
        return key->applies;
    er_log(ER_LOG_WARNING, "what was set for the job is not understood here, and does not hold",
           ER_STR("key", key->path), ER_STR("value", is), ER_STR("reason", err.text));
    return 0;
}

static void tell(struct er_agent *agent, const struct er_overrides *now, const char *keys,
                 const char *told)
{
    const char *by = now && now->by[0] ? now->by : "nobody known";
    bool first = !agent->overrides_known;
    char ts[ER_RFC3339_MAX] = "";
    struct er_look look;

    er_driver_look(agent->driver, &look);
    if (now)
        er_rfc3339(now->wall_us, ts);
    if (told[0] && first)
        er_agent_say(agent, "set for this job by %s: %.*s", by, TOLD_MAX, told);
    else if (told[0] && !now)
        er_agent_say(agent, "nothing is set for this job any more: %.*s", TOLD_MAX, told);
    else if (told[0])
        er_agent_say(agent, "elastic-ctl set, by %s: %.*s", by, TOLD_MAX, told);
    /* Told for the whole job by who leads it. */
    if (!first && look.leads)
        er_event(&agent->events, "overrides_changed", ER_SEVERITY_INFO,
                 er_driver_generation(agent->driver), "The job's settings were changed.",
                 ER_JSON("keys", keys), ER_STR("changes", told), ER_STR("by", now ? by : NULL),
                 ER_STR("set_ts", now ? ts : NULL));
}

/* Whatever was missed between: what holds follows from the job's spec and the newest record. */
void er_agent_on_overrides(void *user, const struct er_overrides *now)
{
    struct er_agent *agent = user;
    const char *over = now ? now->text : "";
    ER_CLEANUP(er_buf_done) struct er_buf keys;
    ER_CLEANUP(er_buf_done) struct er_buf told;
    unsigned applies = 0;

    er_buf_init(&keys, WISH_MAX);
    er_buf_init(&told, WISH_MAX);
    (void)er_buf_add_str(&keys, "[");
    for (size_t i = 0; i < er_keys_n; i++) {
        if (er_key_is_settable(&er_keys[i]))
            applies |= follow_key(agent, &er_keys[i], over, &keys, &told);
    }
    (void)er_buf_add_str(&keys, "]");
    er_agent_apply(agent, applies);
    tell(agent, now, er_buf_str(&keys), er_buf_str(&told));
    agent->overrides_known = true;
}

/* ---- asked ---- */

struct wish {
    struct er_ticket ticket;
    struct er_list node; /* in agent->sets */
    struct er_agent *agent;
    char text[WISH_MAX], by[sizeof(((struct er_overrides *)0)->by)], id[ER_NAME_TEXT_MAX];
    struct er_overrides_change change;
    struct er_error err;
};

static void free_wish(struct wish *w)
{
    er_list_remove(&w->node);
    er_overrides_change_done(&w->change);
    free(w);
}

void er_agent_drop_sets(struct er_agent *agent)
{
    while (!er_list_empty(&agent->sets))
        free_wish(ER_LIST_ITEM(agent->sets.next, struct wish, node));
}

static void on_gone(struct er_ticket *ticket)
{
    /* The driver's answer frees it. */
}

static int merge(void *user, const struct er_overrides *now, struct er_overrides *next)
{
    struct wish *w = user;
    const char *spec = er_driver_spec(w->agent->driver);
    struct er_text id = {next->id, sizeof(next->id), 0}, by = {next->by, sizeof(next->by), 0};

    er_text_add(&id, w->id);
    er_text_add(&by, w->by);
    next->wall_us = er_wall_us();
    return er_overrides_merge(spec, strlen(spec), now->text, w->text, next->text, &w->change,
                              &w->err);
}

static const char *why(const struct wish *w, int rc)
{
    switch (rc) {
    case ER_E_STALE:
        return "set: the job is over; nothing was changed";
    case -ENOENT:
        return "set: this agent has not reached the job yet; nothing was changed";
    case ER_E_PROTOCOL:
        return ER_OVERRIDES_TOO_OLD;
    case -ETIMEDOUT:
        return "set: the store did not answer in time; elastic-ctl status shows whether it was "
               "changed";
    case -EACCES:
        return "set: the store refuses this agent's write; nothing was changed";
    default:
        return w->err.code ? w->err.text : er_error_name(rc);
    }
}

static void on_written(void *user, int rc, const void *value, size_t n)
{
    struct wish *w = user;
    struct er_ctl_msg reply = {.status = rc};
    ER_CLEANUP(er_buf_done) struct er_buf text;
    int made;

    er_buf_init(&text, 3 * WISH_MAX);
    made = er_buf_printf(&text, "{\"changed\":%s,\"changes\":", er_buf_str(&w->change.keys));
    if (!made)
        made = er_json_quote(&text, er_buf_str(&w->change.told), w->change.told.len);
    if (!made)
        made = er_buf_add_str(&text, "}");
    if (rc < 0)
        er_ctl_str(&reply, why(w, rc));
    else if (made)
        reply.status = made;
    else
        er_ctl_bytes(&reply, text.data, text.len);
    er_ticket_answer(&w->ticket, &reply);
    free_wish(w);
}

static bool store_is_away(const struct er_agent *agent)
{
    struct er_etcd_status s = {.connected = true};

    if (agent->store.etcd)
        agent->store.etcd->status(agent->store.store, &s);
    return !s.connected;
}

void er_agent_on_set(struct er_agent *agent, struct er_ctlconn *conn,
                     const struct er_ctl_msg *request)
{
    static uint64_t count;
    struct wish *w = calloc(1, sizeof(*w));
    int rc = 0;

    if (!w) {
        er_ctlconn_status(conn, request->seq, -ENOMEM, NULL);
        return;
    }
    er_overrides_change_init(&w->change);
    if (er_ctl_copy(request->str[0], w->text, sizeof(w->text)) ||
        er_ctl_copy(request->str[1], w->by, sizeof(w->by)))
        rc = er_error_set(&w->err, -EINVAL, "set: that is too long");
    else if (store_is_away(agent))
        rc =
            er_error_set(&w->err, -ENOTCONN, "set: the store does not answer; nothing was changed");
    if (rc) {
        er_ctlconn_status(conn, request->seq, rc, w->err.text);
        er_list_init(&w->node);
        free_wish(w);
        return;
    }
    snprintf(w->id, sizeof(w->id), "set-%llu-%d-%llu", (unsigned long long)er_wall_us(),
             (int)getpid(), (unsigned long long)++count);
    w->agent = agent;
    er_list_init(&w->node);
    er_list_push_back(&agent->sets, &w->node);
    er_ticket_init(&w->ticket, conn, request->seq, on_gone);
    er_driver_override(agent->driver, er_deadline_in(er_now_us(), ANSWER_US), merge, on_written, w);
}
