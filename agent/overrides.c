#include "agent/overrides.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config_internal.h"
#include "base/cleanup.h"
#include "base/field.h"
#include "rendezvous/spec_text.h"

#define CHANGE_TEXT_MAX 4096

ER_CLEANUP_FOR(er_config_free, struct er_config)

/* One line of a wish. */
struct wish {
    char path[ER_KEY_PATH_MAX];
    const char *value; /* NULL: as the spec has it */
    size_t value_n;
};

bool er_key_is_settable(const struct er_key_info *key)
{
    return (key->flags & ER_KEY_AGREE) && (key->flags & ER_KEY_LIVE) &&
           !(key->flags & ER_KEY_LATER);
}

/* The next line; NULL: no more. */
static const char *next_wish(const char *at, struct wish *ret)
{
    size_t n = strcspn(at, "\n"), head = strcspn(at, "=\n");

    if (!*at)
        return NULL;
    *ret = (struct wish){.value = at[head] == '=' ? at + head + 1 : NULL};
    ret->value_n = ret->value ? n - head - 1 : 0;
    head = head < sizeof(ret->path) ? head : sizeof(ret->path) - 1;
    memcpy(ret->path, at, head);
    return at + n + (at[n] == '\n');
}

/* ---- which keys ---- */

/* What changes a key that `set` does not change. */
static const char *other_way(const struct er_key_info *key)
{
    if (!strcmp(key->path, "nnodes"))
        return "the number of nodes of a running job is changed by elastic-ctl scale MIN[:MAX]";
    if (key->flags & ER_KEY_LATER)
        return "not available in this release";
    if (key->flags & ER_KEY_LIVE)
        return "each node has its own: change it in the job file there, then elastic-ctl reload on "
               "that node";
    if (key->flags & ER_KEY_AGREE)
        return "not while the job runs: change it in the job file, and start the agents again, one "
               "after the other, with --update-spec";
    return "each node has its own, read at its start: change it in the job file there, and start "
           "that agent again";
}

static const struct er_key_info *find_key(struct er_findings *findings, const char *path)
{
    const struct er_key_info *key = er_key_find(path);
    char near[ER_KEY_PATH_MAX];

    if (key && er_key_is_settable(key))
        return key;
    if (key)
        er_findings_add(findings, ER_E_USAGE, "%s: %s", path, other_way(key));
    else if (er_key_is_group(path))
        er_findings_add(findings, ER_E_USAGE, "%s: a group of keys; give one, such as %s", path,
                        er_key_first_in(path)->path);
    else if (er_key_nearest(path, near))
        er_findings_add(findings, ER_E_USAGE, "unknown key '%s'; did you mean '%s'?", path, near);
    else
        er_findings_add(findings, ER_E_USAGE, "unknown key '%s'", path);
    return NULL;
}

static bool was_before(const char *wish, const char *until, const char *path)
{
    struct wish w;

    for (const char *at = wish; at < until;) {
        at = next_wish(at, &w);
        if (strcmp(w.path, path) == 0)
            return true;
    }
    return false;
}

/* ---- a configuration of these keys alone ---- */

static struct er_setting *setting_of(struct er_loader *l, const struct er_key_info *key)
{
    return er_config_setting(l->config, key->path);
}

/* Beside the settable keys those that the rules about them speak of. */
static bool is_wanted(const struct er_key_info *key)
{
    return er_key_is_settable(key) || !strcmp(key->path, "checkpoint.dir");
}

static void set(struct er_loader *l, const struct er_key_info *key, const char *value, size_t n)
{
    const struct er_config_source source = {.layer = ER_LAYER_OPTION, .label = key->path};
    ER_CLEANUP(er_cleanup_free) char *text = strndup(value, n);

    if (text)
        er_loader_set_text(l, key, text, &source);
    else
        er_loader_no_memory(l);
}

/* Of a text from the store: what this release does not understand holds for nobody here. */
static void set_lenient(struct er_loader *l, const struct er_key_info *key, const char *text,
                        size_t n)
{
    struct er_findings kept = l->findings;
    size_t value_n = 0;
    const char *value = er_spec_value(text, n, key->path, &value_n);

    if (!value)
        return;
    er_findings_init(&l->findings);
    set(l, key, value, value_n);
    er_findings_done(&l->findings);
    l->findings = kept;
}

static void set_wish(struct er_loader *l, const char *wish, const char *spec, size_t n)
{
    struct wish w;

    for (const char *at = wish, *next; (next = next_wish(at, &w)); at = next) {
        const struct er_key_info *key = find_key(&l->findings, w.path);

        if (!key)
            continue;
        if (was_before(wish, at, w.path))
            er_findings_add(&l->findings, ER_E_USAGE, "%s: given twice", w.path);
        else if (w.value)
            set(l, key, w.value, w.value_n);
        else
            set_lenient(l, key, spec, n);
    }
}

static int new_loader(struct er_loader *l, struct er_config **ret, struct er_error *err)
{
    *ret = er_config_new();
    *l = (struct er_loader){.config = *ret};
    er_findings_init(&l->findings);
    return *ret ? 0 : er_error_set(err, -ENOMEM, "out of memory");
}

int er_overrides_check(const char *wish, struct er_error *err)
{
    ER_CLEANUP(er_config_free_cleanup) struct er_config *config = NULL;
    struct er_loader l;
    int rc = new_loader(&l, &config, err);

    if (!rc)
        set_wish(&l, wish, "", 0);
    if (!rc)
        rc = er_findings_result(&l.findings, err);
    er_findings_done(&l.findings);
    return rc;
}

/* ---- merging ---- */

void er_overrides_change_init(struct er_overrides_change *change)
{
    er_buf_init(&change->keys, CHANGE_TEXT_MAX);
    er_buf_init(&change->told, CHANGE_TEXT_MAX);
}

void er_overrides_change_done(struct er_overrides_change *change)
{
    er_buf_done(&change->keys);
    er_buf_done(&change->told);
}

/* What a wish says about a key. */
static enum { SAYS_NOTHING, SAYS_SET, SAYS_UNSET } says(const char *wish, const char *path)
{
    struct wish w;

    for (const char *at = wish; (at = next_wish(at, &w));) {
        if (strcmp(w.path, path) == 0)
            return w.value ? SAYS_SET : SAYS_UNSET;
    }
    return SAYS_NOTHING;
}

static int tell_change(struct er_overrides_change *ret, const char *path, const char *was,
                       const char *is, bool unset)
{
    int rc = er_buf_printf(&ret->keys, "%s\"%s\"", ret->keys.len > 1 ? "," : "", path);

    return rc ? rc
              : er_buf_printf(&ret->told, "%s%s is %s%s, was %s", ret->told.len ? "; " : "", path,
                              is, unset ? " again, as the job's spec has it" : "",
                              was ? was : "not known");
}

/* One key: into the new text when it is overridden then; what changes into `ret`. */
static int merge_key(struct er_loader *l, const struct er_key_info *key, const char *was,
                     const char *now, const char *wish, struct er_buf *text,
                     struct er_overrides_change *ret)
{
    const char *is = setting_of(l, key)->text;
    size_t n;
    bool over = er_spec_value(now, strlen(now), key->path, &n) != NULL;
    int said = says(wish, key->path), rc = 0;

    if (said != SAYS_NOTHING && is && (!was || strcmp(was, is) != 0))
        rc = tell_change(ret, key->path, was, is, said == SAYS_UNSET);
    over = said == SAYS_NOTHING ? over : said == SAYS_SET;
    return !rc && over && is ? er_buf_printf(text, "%s=%s\n", key->path, is) : rc;
}

/* What another release has set is kept as it is. */
static int keep_foreign(const char *now, struct er_buf *text)
{
    struct wish w;
    int rc = 0;

    for (const char *at = now, *next; !rc && (next = next_wish(at, &w)); at = next) {
        const struct er_key_info *key = er_key_find(w.path);

        if (!key || !er_key_is_settable(key))
            rc = er_buf_add(text, at, (size_t)(next - at));
    }
    return rc;
}

static int merge_all(struct er_loader *l, char *const *was, const char *now, const char *wish,
                     struct er_buf *text, struct er_overrides_change *ret)
{
    int rc = er_buf_add_str(&ret->keys, "[");

    for (size_t i = 0; !rc && i < er_keys_n; i++) {
        if (er_key_is_settable(&er_keys[i]))
            rc = merge_key(l, &er_keys[i], was[i], now, wish, text, ret);
    }
    rc = rc ? rc : keep_foreign(now, text);
    return rc ? rc : er_buf_add_str(&ret->keys, "]");
}

/* As the job is before the wish; the texts of that in `was`. */
static int load_job(struct er_loader *l, const char *spec, size_t n, const char *now, char **was)
{
    for (size_t i = 0; i < er_keys_n; i++) {
        const char *text;

        if (!is_wanted(&er_keys[i]))
            continue;
        set_lenient(l, &er_keys[i], spec, n);
        set_lenient(l, &er_keys[i], now, strlen(now));
        text = setting_of(l, &er_keys[i])->text;
        if (text && !(was[i] = strdup(text)))
            return -ENOMEM;
    }
    return 0;
}

int er_overrides_merge(const char *spec, size_t n, const char *now, const char *wish,
                       char ret_text[sizeof(((struct er_overrides *)0)->text)],
                       struct er_overrides_change *ret, struct er_error *err)
{
    ER_CLEANUP(er_config_free_cleanup) struct er_config *config = NULL;
    ER_CLEANUP(er_buf_done) struct er_buf text;
    char **was = calloc(er_keys_n, sizeof(*was));
    struct er_loader l;
    int rc = new_loader(&l, &config, err);

    er_buf_init(&text, sizeof(((struct er_overrides *)0)->text) - 1);
    er_buf_clear(&ret->keys);
    er_buf_clear(&ret->told);
    if (!rc && (!was || load_job(&l, spec, n, now, was)))
        rc = er_error_set(err, -ENOMEM, "out of memory");
    if (!rc) {
        set_wish(&l, wish, spec, n);
        if (l.findings.n == 0)
            er_loader_check_live(&l);
        rc = er_findings_result(&l.findings, err);
    }
    if (!rc && (rc = merge_all(&l, was, now, wish, &text, ret)))
        er_error_set(err, rc, "what is set: %s", er_error_name(rc));
    if (!rc) {
        memcpy(ret_text, er_buf_str(&text), text.len + 1);
        rc = strcmp(ret_text, now) == 0;
    }
    er_findings_done(&l.findings);
    for (size_t i = 0; was && i < er_keys_n; i++)
        free(was[i]);
    free(was);
    return rc;
}

char *er_overrides_value(const char *spec, const char *now, const char *key)
{
    size_t n = 0;
    const char *value = er_spec_value(now, strlen(now), key, &n);

    if (!value)
        value = er_spec_value(spec, strlen(spec), key, &n);
    return value ? strndup(value, n) : NULL;
}

int er_overrides_json(const struct er_overrides *now, struct er_buf *out)
{
    const char *comma = "";
    int rc = er_buf_add_str(out, "{");

    for (size_t i = 0; now && !rc && i < er_keys_n; i++) {
        size_t n = 0;
        const char *value = er_spec_value(now->text, strlen(now->text), er_keys[i].path, &n);

        if (!value)
            continue;
        rc = er_buf_printf(out, "%s\"%s\":", comma, er_keys[i].path);
        if (!rc)
            rc = er_json_quote(out, value, n);
        comma = ",";
    }
    return rc ? rc : er_buf_add_str(out, "}");
}
