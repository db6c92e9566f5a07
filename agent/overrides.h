#pragma once
/*
 * What is set while a job runs, above its spec: `elastic-ctl set`. Texts are those of the store
 * (rendezvous/spec_text.h): a line KEY=VALUE each, values in canonical form. All results are alike
 * on every node and every host: they follow from texts alone.
 */
#include "agent/keys.h"
#include "base/buf.h"
#include "base/error.h"
#include "rendezvous/codec.h"

struct er_config;

/* Why nothing is set in the midst of an upgrade. */
#define ER_OVERRIDES_TOO_OLD                                                                       \
    "set: the job has agents of another release, which would not follow; nothing was changed: "    \
    "upgrade them first"

/* Can this key be changed on all nodes of a running job? */
bool er_key_is_settable(const struct er_key_info *key);

/*
 * A wish: lines KEY=VALUE, or KEY alone: as the spec has it again. Is it one, whatever the job?
 * ER_E_USAGE with all findings: keys that there are none of, that cannot be changed (and what to do
 * instead), given twice; values that are wrong by themselves.
 */
int er_overrides_check(const char *wish, struct er_error *err);

struct er_overrides_change {
    struct er_buf keys; /* JSON: the names of the keys that change */
    struct er_buf told; /* "hang.floor is 5m, was 1m" */
};
void er_overrides_change_init(struct er_overrides_change *change);
void er_overrides_change_done(struct er_overrides_change *change);

/*
 * The overrides `now` of a job whose spec is `spec` (n bytes), after `wish`; all of it or nothing.
 * 1: that changes no value, and nothing that is set. Fails as er_overrides_check(), with
 * ER_E_CONFIG for values that don't go with others of this job.
 */
int er_overrides_merge(const char *spec, size_t n, const char *now, const char *wish,
                       char ret_text[sizeof(((struct er_overrides *)0)->text)],
                       struct er_overrides_change *ret, struct er_error *err);

/* What holds for a key: its override, or the spec's value; malloc'ed. NULL: neither is known, or
 * out of memory. */
char *er_overrides_value(const char *spec, const char *now, const char *key);
/* {"hang.floor": "5m"}, appended. `now` NULL: none. */
int er_overrides_json(const struct er_overrides *now, struct er_buf *out);
