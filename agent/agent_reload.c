/* elastic-ctl reload: the spec file is read again, and what may change on this node alone changes.
 * All or nothing: a file that is wrong, or changes something else as well, changes nothing. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "agent/config_compare.h"
#include "agent/overrides.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "rendezvous/spec_text.h"

#define CHANGES_MAX 64 /* named in an answer, as far as there is room */
#define VALUE_SHOWN 60
#define HINT_MAX    192

ER_CLEANUP_FOR(er_config_free, struct er_config)

static int load(struct er_agent *agent, struct er_config **ret, struct er_error *err)
{
    const char *path = agent->config->spec_path;
    int rc;

    if (!path)
        return er_error_set(err, -ENOTSUP,
                            "reload: the job was started without a job file: nothing to read");
    if (strcmp(path, "-") == 0)
        return er_error_set(err, -ENOTSUP, "reload: the job file came from stdin");
    rc = er_config_load(ret, agent->argc, agent->argv, agent->environ_, err);
    return rc ? er_error_wrap(err, rc, "reload: nothing has changed") : 0;
}

/* "restart.max is 5, was 3" */
static void add_change(struct er_buf *text, const struct er_config_change *c)
{
    (void)er_buf_printf(text, "%s%s is %.*s, was %.*s", text->len ? "; " : "", c->key->path,
                        VALUE_SHOWN, c->is[0] ? c->is : "not set", VALUE_SHOWN,
                        c->was[0] ? c->was : "not set");
}

/* What would change it, where that is not this; NULL: it is. */
static const char *other_way(const struct er_config_change *c, char ret[HINT_MAX])
{
    if (er_key_is_settable(c->key))
        snprintf(ret, HINT_MAX, "the same on all nodes: elastic-ctl set %s=%.*s", c->key->path,
                 VALUE_SHOWN, c->is);
    else if (c->key->flags & ER_KEY_AGREE)
        snprintf(ret, HINT_MAX,
                 "the same on all nodes: restart their agents, several with --update-spec");
    else if (c->key->flags & ER_KEY_LIVE)
        return NULL;
    else
        snprintf(ret, HINT_MAX, "needs a restart of this node's agent");
    return ret;
}

/* The file says what the job's spec says: that something else is set beside it is no change of the
 * file. */
static bool is_as_agreed(const struct er_agent *agent, const struct er_config_change *c)
{
    const char *spec = er_driver_spec(agent->driver);
    size_t n = 0;
    const char *value = er_spec_value(spec, strlen(spec), c->key->path, &n);

    return er_key_is_settable(c->key) && value && strlen(c->is) == n &&
           memcmp(c->is, value, n) == 0;
}

static size_t drop_agreed(const struct er_agent *agent, struct er_config_change *changes, size_t n)
{
    size_t kept = 0;

    for (size_t i = 0; i < n; i++) {
        if (!is_as_agreed(agent, &changes[i]))
            changes[kept++] = changes[i];
    }
    return kept;
}

static int refuse(const struct er_config_change *changes, size_t n, struct er_error *err)
{
    ER_CLEANUP(er_buf_done) struct er_buf text;

    er_buf_init(&text, ER_ERROR_TEXT_MAX * 3 / 4);
    for (size_t i = 0; i < n; i++) {
        char hint[HINT_MAX];
        const char *how = other_way(&changes[i], hint);

        if (how)
            add_change(&text, &changes[i]);
        if (how)
            (void)er_buf_printf(&text, " (%s)", how);
    }
    return text.len == 0
               ? 0
               : er_error_set(err, -EINVAL, "reload: nothing has changed: %s", er_buf_str(&text));
}

static void tell(struct er_agent *agent, const char *keys, const char *text)
{
    er_event(&agent->events, "config_reloaded", ER_SEVERITY_INFO,
             er_driver_generation(agent->driver), "The job file was read again.",
             ER_JSON("keys", keys), ER_STR("changes", text));
    er_agent_say(agent, "reloaded '%s': %s", agent->config->spec_path,
                 text[0] ? text : "nothing has changed");
}

static int change(struct er_agent *agent, struct er_config *fresh, struct er_buf *keys,
                  struct er_error *err)
{
    struct er_config_change changes[CHANGES_MAX];
    size_t n = er_config_compare(agent->config, fresh, changes, CHANGES_MAX);
    ER_CLEANUP(er_buf_done) struct er_buf text;
    unsigned applies = 0;
    int rc;

    er_buf_init(&text, ER_ERROR_TEXT_MAX);
    if (n > CHANGES_MAX) /* the first ones tell enough: two keys can change here */
        n = CHANGES_MAX;
    n = drop_agreed(agent, changes, n);
    rc = refuse(changes, n, err);
    if (rc)
        return rc;
    rc = er_buf_add_str(keys, "[");
    for (size_t i = 0; i < n && !rc; i++) {
        add_change(&text, &changes[i]);
        rc = er_buf_printf(keys, "%s\"%s\"", i ? "," : "", changes[i].key->path);
    }
    rc = rc ? rc : er_buf_add_str(keys, "]");
    for (size_t i = 0; i < n && !rc; i++) {
        er_config_swap(agent->config, fresh, changes[i].key);
        applies |= changes[i].key->applies;
    }
    if (!rc)
        er_agent_apply(agent, applies);
    if (!rc)
        tell(agent, er_buf_str(keys), er_buf_str(&text));
    return rc;
}

int er_agent_reload(struct er_agent *agent, struct er_buf *ret_keys, struct er_error *err)
{
    ER_CLEANUP(er_config_free_cleanup) struct er_config *fresh = NULL;
    int rc;

    er_agent_unit_reloading(agent, true);
    rc = load(agent, &fresh, err);
    if (!rc)
        rc = change(agent, fresh, ret_keys, err);
    er_agent_unit_reloading(agent, false);
    if (rc)
        er_log(ER_LOG_WARNING, "reload refused", ER_STR("reason", err ? err->text : NULL));
    return rc;
}
