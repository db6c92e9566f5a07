#include "agent/subst.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/env.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/parse.h"

enum { NAME_MAX_BYTES = 128, TEXT_MAX_BYTES = 4 << 20 };

const char *const er_subst_names[] = {
    "job",
    "role",
    "rank",
    "local_rank",
    "world_size",
    "local_world_size",
    "node_rank",
    "nnodes",
    "generation",
    "restart_count",
    "master_addr",
    "master_port",
    "node_id",
    "hostname",
    "checkpoint_dir",
    NULL,
};

#define LOCAL_RANK "${local_rank}"

static int unknown(const char *name, struct er_error *err)
{
    const char *near = er_nearest(name, er_subst_names, ER_ARRAY_N(er_subst_names) - 1);

    if (!strncmp(name, "env.", 4) && name[4])
        return er_error_set(err, ER_E_CONFIG, "'${%s}': this environment variable is not set",
                            name);
    if (near)
        return er_error_set(err, ER_E_CONFIG, "unknown name '${%s}'; did you mean '${%s}'?", name,
                            near);
    return er_error_set(err, ER_E_CONFIG, "unknown name '${%s}'; '$$' stands for '$'", name);
}

/* The value of `${name}`, whose name begins at `at`; moves *at behind the brace. */
static int put_value(const char **at, er_subst_fn lookup, void *user, struct er_buf *out,
                     struct er_error *err)
{
    const char *end = strchr(*at, '}'), *value;
    char name[NAME_MAX_BYTES];
    size_t n = end ? (size_t)(end - *at) : 0;

    if (!end)
        return er_error_set(err, ER_E_CONFIG, "'${' without '}'; '$$' stands for '$'");
    if (n >= sizeof(name))
        return er_error_set(err, ER_E_CONFIG, "name in '${%.20s...}' is too long", *at);
    memcpy(name, *at, n);
    name[n] = '\0';
    value = lookup(user, name);
    if (!value)
        return unknown(name, err);
    *at = end + 1;
    return er_buf_add_str(out, value) ? er_error_set(err, ER_E_LIMIT, "text is too long") : 0;
}

/* Only what torchrun replaces. */
static int subst_program(const char *text, er_subst_fn lookup, void *user, struct er_buf *out,
                         struct er_error *err)
{
    const char *hit;
    int rc = 0;

    while (!rc && (hit = strstr(text, LOCAL_RANK))) {
        rc = er_buf_add(out, text, (size_t)(hit - text));
        text = hit + 2;
        if (!rc)
            rc = put_value(&text, lookup, user, out, err);
    }
    return rc ? rc : er_buf_add_str(out, text);
}

static int subst_spec(const char *text, er_subst_fn lookup, void *user, struct er_buf *out,
                      struct er_error *err)
{
    int rc = 0;

    while (!rc && *text) {
        size_t plain = strcspn(text, "$");

        if (plain) {
            rc = er_buf_add(out, text, plain);
            text += plain;
        } else if (text[1] == '{') {
            text += 2;
            rc = put_value(&text, lookup, user, out, err);
        } else { /* `$$` is `$`, and so is a `$` on its own */
            rc = er_buf_add(out, "$", 1);
            text += text[1] == '$' ? 2 : 1;
        }
    }
    return rc;
}

int er_subst(const char *text, bool program_form, er_subst_fn lookup, void *user, char **ret,
             struct er_error *err)
{
    ER_CLEANUP(er_buf_done) struct er_buf out;
    char *copy;
    int rc;

    er_buf_init(&out, TEXT_MAX_BYTES);
    rc = (program_form ? subst_program : subst_spec)(text, lookup, user, &out, err);
    if (rc == -ENOBUFS)
        return er_error_set(err, ER_E_LIMIT, "text is too long");
    if (rc)
        return rc;
    copy = strdup(er_buf_str(&out));
    if (!copy)
        return er_error_set(err, -ENOMEM, "out of memory");
    *ret = copy;
    return 0;
}

const char *er_environ_get(char **environ_, const char *name)
{
    return environ_ ? er_env_get((const char *const *)environ_, name) : NULL;
}

static const char *known(void *user, const char *name)
{
    for (size_t i = 0; er_subst_names[i]; i++) {
        if (!strcmp(er_subst_names[i], name))
            return "";
    }
    return strncmp(name, "env.", 4) ? NULL : er_environ_get(user, name + 4);
}

int er_subst_check(const char *text, bool program_form, char **environ_, struct er_error *err)
{
    char *result = NULL;
    int rc = strchr(text, '$') ? er_subst(text, program_form, known, environ_, &result, err) : 0;

    free(result);
    return rc;
}
