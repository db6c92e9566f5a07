#include "agent/config_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/secret.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/hash.h"

enum { PRINT_MAX = 16 << 20, COMMENT_COLUMN = 44, SPEC_TEXT_MAX = 4096, SPEC_VALUE_MAX = 200 };

/* Is a '$' in this key's value just that, although a job spec would take it for a substitution? */
static bool is_literal(const struct er_config *config, const struct er_key_info *key)
{
    if (key->type == ER_KEY_PATH && strcmp(key->path, "workdir") != 0)
        return true; /* replaced at load */
    return config->program_form &&
           (key->type == ER_KEY_PATH || key->type == ER_KEY_ENV || key->type == ER_KEY_COMMAND);
}

/* Doubles each '$' but that of torchrun's macro. Canonical text never escapes a '$', so this may be
 * done behind YAML's quoting. */
static int add_literal(struct er_buf *out, const char *text)
{
    static const char macro[] = "${local_rank}";
    int rc = 0;

    while (!rc && *text) {
        size_t plain = strcspn(text, "$");

        rc = er_buf_add(out, text, plain);
        text += plain;
        if (rc || !*text)
            break;
        rc = er_buf_add_str(out, strncmp(text, macro, sizeof(macro) - 1) ? "$$" : "$");
        text++;
    }
    return rc;
}

/* Opens the maps of `path` that `last` was not in. Returns the depth of the key itself, or < 0. */
static int open_groups(struct er_buf *out, const char *last, const char *path)
{
    const char *dot, *begin = path;
    int depth = 0;

    for (; (dot = strchr(begin, '.')); begin = dot + 1, depth++) {
        size_t n = (size_t)(dot - path) + 1;
        int rc = 0;

        if (strncmp(last, path, n) != 0)
            rc = er_buf_printf(out, "%*s%.*s:\n", depth * 2, "", (int)(dot - begin), begin);
        if (rc)
            return rc;
    }
    return depth;
}

static int add_comment(const struct er_config *config, const struct er_key_info *key,
                       size_t line_begin, struct er_buf *out)
{
    const char *origin = er_config_setting(config, key->path)->origin;
    size_t width = out->len - line_begin;
    int pad = width + 2 > COMMENT_COLUMN ? 2 : (int)(COMMENT_COLUMN - width);
    int rc = er_buf_printf(out, "%*s# ", pad, "");

    /* An origin is a file name or option from outside: one line, printable. */
    for (const char *s = origin ? origin : "default"; !rc && *s; s++)
        rc = er_buf_printf(out, "%c", (unsigned char)*s < 0x20 || *s == 0x7F ? '?' : *s);
    if (!rc && key->type == ER_KEY_NPROC && config->nproc_text[0] > '9')
        rc = er_buf_printf(out, " (%u here)", config->nproc);
    return rc;
}

static int mask_env(const struct er_envlist *env, struct er_envlist *ret)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < env->n; i++) {
        bool secret = env->values[i] && er_secret_name(env->names[i], strlen(env->names[i]));

        rc = er_envlist_put(ret, env->names[i], secret ? ER_SECRET_SHOWN : env->values[i]);
    }
    return rc;
}

static char *format_value(const struct er_key_info *key, const union er_value *value)
{
    ER_CLEANUP(er_buf_done) struct er_buf text;

    er_buf_init(&text, ER_VALUE_TEXT_MAX);
    return er_value_format(key, value, &text) ? NULL : strdup(er_buf_str(&text));
}

static char *masked_env(const struct er_config *config, const struct er_key_info *key)
{
    union er_value value = {.env = {.n = 0}};
    char *text = mask_env(&config->env, &value.env) ? NULL : format_value(key, &value);

    er_value_free(key, &value);
    return text;
}

/* Copies that share everything but their `env`. */
static char *masked_roles(const struct er_config *config, const struct er_key_info *key)
{
    size_t n = config->roles.n;
    union er_value value = {.roles = {calloc(n + 1, sizeof(struct er_role)), n}};
    char *text = NULL;
    int rc = value.roles.items ? 0 : -ENOMEM;

    for (size_t i = 0; !rc && i < n; i++) {
        value.roles.items[i] = config->roles.items[i];
        value.roles.items[i].env = (struct er_envlist){.n = 0};
        rc = mask_env(&config->roles.items[i].env, &value.roles.items[i].env);
    }
    if (!rc)
        text = format_value(key, &value);
    for (size_t i = 0; value.roles.items && i < n; i++)
        er_envlist_free(&value.roles.items[i].env);
    free(value.roles.items);
    return text;
}

/* The value without secrets. malloc'ed; NULL: out of memory. */
static char *shown_value(const struct er_config *config, const struct er_key_info *key)
{
    if (key->type == ER_KEY_ENV)
        return masked_env(config, key);
    if (key->type == ER_KEY_ROLES)
        return masked_roles(config, key);
    return strdup(er_config_setting(config, key->path)->text);
}

static int add_key(const struct er_config *config, const struct er_key_info *key, int depth,
                   bool origins, struct er_buf *out)
{
    ER_CLEANUP(er_cleanup_free) char *text = shown_value(config, key);
    const char *dot = strrchr(key->path, '.');
    size_t begin = out->len;
    int rc = text ? 0 : -ENOMEM;

    if (!rc)
        rc = er_buf_printf(out, "%*s%s: ", depth * 2, "", dot ? dot + 1 : key->path);

    if (!rc)
        rc = is_literal(config, key) ? add_literal(out, text) : er_buf_add_str(out, text);
    if (!rc && origins)
        rc = add_comment(config, key, begin, out);
    return rc ? rc : er_buf_add(out, "\n", 1);
}

int er_config_format(const struct er_config *config, bool origins, struct er_buf *out)
{
    const char *last = "";
    int rc = 0;

    for (size_t i = 0; !rc && i < er_keys_n; i++) {
        const struct er_key_info *key = &er_keys[i];
        int depth = open_groups(out, last, key->path);

        rc = depth < 0 ? depth : add_key(config, key, depth, origins, out);
        last = key->path;
    }
    return rc;
}

int er_config_print(const struct er_config *config, struct er_error *err)
{
    ER_CLEANUP(er_buf_done) struct er_buf out;
    int rc;

    er_buf_init(&out, PRINT_MAX);
    rc = er_config_format(config, true, &out);
    if (rc)
        return er_error_set(err, rc, "configuration is too large to print");
    rc = er_write_all(1, out.data, out.len);
    return rc ? er_error_set(err, rc, "write to stdout: %s", er_error_name(rc)) : 0;
}

/* Long values as their digest: the text stays small, and a difference still shows. So are roles,
 * whose `env` may hold secrets. */
static int add_spec_value(struct er_buf *out, const struct er_key_info *key, const char *text)
{
    char hex[ER_DIGEST_HEX_MAX];
    size_t n = strlen(text);

    if (n <= SPEC_VALUE_MAX && (key->type != ER_KEY_ROLES || !strcmp(text, "{}")))
        return er_buf_add(out, text, n);
    er_digest_format(er_hash(text, n), hex);
    return er_buf_printf(out, "xxh3:%s", hex);
}

/* A role's command is in `roles`; nodes of other roles run others. */
static const char *shared_text(const struct er_config *config, const struct er_key_info *key)
{
    const struct er_origins *origins = config->origins;

    if (origins->shared_command && !strcmp(key->path, "command"))
        return origins->shared_command;
    return er_config_setting(config, key->path)->text;
}

int er_config_spec_text(const struct er_config *config, char **ret, struct er_error *err)
{
    ER_CLEANUP(er_buf_done) struct er_buf out;
    int rc = 0;

    er_buf_init(&out, SPEC_TEXT_MAX);
    for (size_t i = 0; !rc && i < er_keys_n; i++) {
        const struct er_key_info *key = &er_keys[i];

        if (!(key->flags & ER_KEY_AGREE))
            continue;
        rc = er_buf_printf(&out, "%s=", key->path);
        if (!rc)
            rc = add_spec_value(&out, key, shared_text(config, key));
        if (!rc)
            rc = er_buf_add(&out, "\n", 1);
    }
    if (rc)
        return er_error_set(err, rc, "canonical text of the spec: %s", er_error_name(rc));
    *ret = strdup(er_buf_str(&out));
    return *ret ? 0 : er_error_set(err, -ENOMEM, "out of memory");
}
