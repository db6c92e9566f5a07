/* Single values: YAML scalar -> typed value. */
#include "agent/value.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/subst.h"
#include "agent/value_internal.h"
#include "base/cleanup.h"
#include "base/parse.h"

int er_value_no_memory(struct er_error *err)
{
    return er_error_set(err, -ENOMEM, "out of memory");
}

/* Not every name of a type takes one. */
static const char *article(enum er_key_type type)
{
    bool bare = type == ER_KEY_CONSOLE || type == ER_KEY_PORTS || type == ER_KEY_CHOICE ||
                type == ER_KEY_CHOICE_TEXT;

    return bare ? "" : "a ";
}

int er_value_wrong_kind(struct er_value_context *c, const struct er_yaml_node *node,
                        struct er_error *err)
{
    const char *none =
        c->key->flags & ER_KEY_NONE && er_yaml_node_is_null(node) ? "; write none" : "";

    c->ret_bad = node;
    return er_error_set(err, ER_E_CONFIG, "expected %s%s, got %s%s", article(c->key->type),
                        er_key_type_name(c->key->type), er_yaml_node_what(node), none);
}

int er_value_want_text(struct er_value_context *c, const struct er_yaml_node *node,
                       struct er_error *err)
{
    if (node->kind != ER_NODE_SCALAR || er_yaml_node_is_null(node))
        return er_value_wrong_kind(c, node, err);
    return 0;
}

/* Base's parsers answer -EINVAL and -ERANGE; both are a wrong configuration here. */
int er_value_as_config(int rc, struct er_error *err)
{
    if (rc && err)
        err->code = ER_E_CONFIG;
    return rc ? ER_E_CONFIG : 0;
}

/* `none` and `auto` of numbers. True: *ret is set. */
static bool special(const struct er_key_info *key, const char *text, uint64_t *ret)
{
    if (key->flags & ER_KEY_NONE && !strcmp(text, "none"))
        *ret = key->none_as;
    else if (key->flags & ER_KEY_AUTO && !strcmp(text, "auto"))
        *ret = key->auto_as;
    else
        return false;
    return true;
}

static int parse_count(struct er_value_context *c, const struct er_yaml_node *node, uint64_t limit,
                       uint64_t *ret, struct er_error *err)
{
    const struct er_key_info *key = c->key;
    uint64_t max = key->max ? key->max : limit;
    int rc = er_value_want_text(c, node, err);

    if (rc)
        return rc;
    if (special(key, node->text, ret) || !er_parse_u64(node->text, key->min, max, ret, NULL))
        return 0;
    return er_error_set(err, ER_E_CONFIG, "expected a number from %llu to %llu%s, got '" SHOWN "'",
                        (unsigned long long)key->min, (unsigned long long)max,
                        key->flags & ER_KEY_NONE ? ", or none" : "", node->text);
}

static int parse_u32(struct er_value_context *c, const struct er_yaml_node *node,
                     union er_value *value, struct er_error *err)
{
    uint64_t number = 0;
    int rc = parse_count(c, node, UINT32_MAX - 1, &number, err);

    value->u32 = (uint32_t)number;
    return rc;
}

static int parse_u64(struct er_value_context *c, const struct er_yaml_node *node,
                     union er_value *value, struct er_error *err)
{
    return parse_count(c, node, UINT64_MAX - 1, &value->u64, err);
}

static int parse_rank(struct er_value_context *c, const struct er_yaml_node *node,
                      union er_value *value, struct er_error *err)
{
    bool none = node->kind == ER_NODE_SCALAR && !strcmp(node->text, "none");
    uint64_t number = 0;
    int rc = none ? 0 : parse_count(c, node, INT32_MAX, &number, err);

    value->i32 = none ? -1 : (int32_t)number;
    return rc;
}

static int parse_ratio(struct er_value_context *c, const struct er_yaml_node *node,
                       union er_value *value, struct er_error *err)
{
    int rc = er_value_want_text(c, node, err);

    if (rc)
        return rc;
    if (c->key->flags & ER_KEY_NONE && !strcmp(node->text, "none")) {
        value->ratio = 0;
        return 0;
    }
    rc = er_parse_f64(node->text, 0, (double)c->key->max, &value->ratio, err);
    if (!rc && c->key->flags & ER_KEY_NONE && value->ratio <= 0)
        return er_error_set(err, ER_E_CONFIG, "expected a number above 0, or none; got '" SHOWN "'",
                            node->text);
    value->ratio += 0.0; /* -0 is 0, and shown so */
    return er_value_as_config(rc, err);
}

static int parse_bool(struct er_value_context *c, const struct er_yaml_node *node,
                      union er_value *value, struct er_error *err)
{
    int rc = er_value_want_text(c, node, err);

    return rc ? rc : er_value_as_config(er_parse_bool(node->text, &value->yes, err), err);
}

static int parse_duration(struct er_value_context *c, const struct er_yaml_node *node,
                          union er_value *value, struct er_error *err)
{
    const struct er_key_info *key = c->key;
    char least[ER_UNIT_TEXT_MAX], most[ER_UNIT_TEXT_MAX];
    uint64_t us;
    int rc = er_value_want_text(c, node, err);

    if (rc || special(key, node->text, &value->u64))
        return rc;
    rc = er_parse_duration(node->text, c->bare_seconds, &us, err);
    if (rc)
        return er_value_as_config(rc, err);
    if (us == ER_FOREVER)
        return er_error_set(err, ER_E_CONFIG, "a duration is needed here, none is not possible");
    if (us < key->min || (key->max && us > key->max)) {
        er_format_duration(key->min, least);
        er_format_duration(key->max ? key->max : ER_FOREVER, most);
        return er_error_set(err, ER_E_CONFIG, "expected a duration from %s to %s, got '" SHOWN "'",
                            least, key->max ? most : "any", node->text);
    }
    value->u64 = us;
    return 0;
}

static int parse_size(struct er_value_context *c, const struct er_yaml_node *node,
                      union er_value *value, struct er_error *err)
{
    char least[ER_UNIT_TEXT_MAX];
    uint64_t bytes;
    int rc = er_value_want_text(c, node, err);

    if (rc || special(c->key, node->text, &value->u64))
        return rc;
    rc = er_parse_size(node->text, &bytes, err);
    if (rc)
        return er_value_as_config(rc, err);
    if (bytes < c->key->min) {
        er_format_size(c->key->min, least);
        return er_error_set(err, ER_E_CONFIG, "expected at least %s, got '" SHOWN "'", least,
                            node->text);
    }
    value->u64 = bytes;
    return 0;
}

int er_value_copy_text(const char *text, union er_value *value, struct er_error *err)
{
    value->text = strdup(text);
    return value->text ? 0 : er_value_no_memory(err);
}

/* A string; `none` where the key has it is NULL. */
static int parse_string(struct er_value_context *c, const struct er_yaml_node *node,
                        union er_value *value, struct er_error *err)
{
    int rc = er_value_want_text(c, node, err);

    if (rc)
        return rc;
    if (c->key->flags & ER_KEY_NONE && !strcmp(node->text, "none")) {
        value->text = NULL;
        return 0;
    }
    if (!*node->text && c->key->type != ER_KEY_TEMPLATE)
        return er_error_set(err, ER_E_CONFIG, "must not be empty");
    for (const char *s = node->text; *s; s++) {
        if ((unsigned char)*s < 0x20 && c->key->type != ER_KEY_TEMPLATE)
            return er_error_set(err, ER_E_CONFIG, "must not hold control characters");
    }
    return er_value_copy_text(node->text, value, err);
}

#define NAME_FIRST "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

static int parse_name(struct er_value_context *c, const struct er_yaml_node *node,
                      union er_value *value, struct er_error *err)
{
    int rc = er_value_want_text(c, node, err);
    size_t n;

    if (rc)
        return rc;
    n = strlen(node->text);
    if (!n || n > 63 || !strchr(NAME_FIRST, node->text[0]) ||
        strspn(node->text, NAME_FIRST "._-") != n)
        return er_error_set(err, ER_E_CONFIG,
                            "expected 1 to 63 letters, digits, '.', '_' or '-', the first a letter "
                            "or digit; got '" SHOWN "'",
                            node->text);
    return er_value_copy_text(node->text, value, err);
}

static int parse_template(struct er_value_context *c, const struct er_yaml_node *node,
                          union er_value *value, struct er_error *err)
{
    bool untouched = c->program_form && c->key->type != ER_KEY_TEMPLATE;
    int rc = er_value_want_text(c, node, err);

    if (!rc && !untouched)
        rc = er_subst_check(node->text, false, c->environ_, err);
    return rc ? rc : parse_string(c, node, value, err);
}

int er_value_find_choice(const struct er_key_info *key, const char *text, struct er_error *err)
{
    struct er_buf names;
    const char *near;
    size_t n = 0;

    for (; key->choices[n]; n++) {
        if (!strcmp(key->choices[n], text))
            return (int)n;
    }
    near = er_nearest(text, key->choices, n);
    if (near)
        return er_error_set(err, ER_E_CONFIG, "unknown value '" SHOWN "'; did you mean '%s'?", text,
                            near);
    er_buf_init(&names, 256);
    for (size_t i = 0; i < n; i++)
        er_buf_printf(&names, "%s%s", i ? ", " : "", key->choices[i]);
    er_error_set(err, ER_E_CONFIG, "expected one of %s; got '" SHOWN "'", er_buf_str(&names), text);
    er_buf_done(&names);
    return ER_E_CONFIG;
}

static int parse_choice(struct er_value_context *c, const struct er_yaml_node *node,
                        union er_value *value, struct er_error *err)
{
    int rc = er_value_want_text(c, node, err);

    if (!rc)
        rc = er_value_find_choice(c->key, node->text, err);
    if (rc < 0)
        return rc;
    if (c->key->type == ER_KEY_CHOICE_TEXT)
        return er_value_copy_text(node->text, value, err);
    value->number = rc;
    return 0;
}

static int parse_signal(struct er_value_context *c, const struct er_yaml_node *node,
                        union er_value *value, struct er_error *err)
{
    uint64_t none;
    int rc = er_value_want_text(c, node, err);

    if (rc)
        return rc;
    if (special(c->key, node->text, &none)) {
        value->number = (int)none;
        return 0;
    }
    return er_value_as_config(er_parse_signal(node->text, &value->number, err), err);
}

/* {min: 4, max: 6} */
static int parse_range_map(struct er_value_context *c, const struct er_yaml_node *node,
                           union er_value *value, struct er_error *err)
{
    const char *min = NULL, *max = NULL;
    char text[64];

    for (size_t i = 0; i < node->n; i += 2) {
        const struct er_yaml_node *item = node->items[i + 1];

        c->ret_bad = node->items[i];
        if (!strcmp(node->items[i]->text, "min"))
            min = item->text;
        else if (!strcmp(node->items[i]->text, "max"))
            max = item->text;
        else
            return er_error_set(err, ER_E_CONFIG,
                                "unknown key '" SHOWN "'; a range has min and max",
                                node->items[i]->text);
    }
    c->ret_bad = node;
    if (!min || !max)
        return er_error_set(err, ER_E_CONFIG, "a range needs both min and max, each a number");
    snprintf(text, sizeof(text), "%.20s:%.20s", min, max);
    return er_value_as_config(
        er_parse_range(text, (uint32_t)c->key->max, &value->range[0], &value->range[1], err), err);
}

static int parse_range(struct er_value_context *c, const struct er_yaml_node *node,
                       union er_value *value, struct er_error *err)
{
    int rc;

    if (node->kind == ER_NODE_MAP)
        return parse_range_map(c, node, value, err);
    rc = er_value_want_text(c, node, err);
    return rc ? rc
              : er_value_as_config(er_parse_range(node->text, (uint32_t)c->key->max,
                                                  &value->range[0], &value->range[1], err),
                                   err);
}

static int parse_nproc(struct er_value_context *c, const struct er_yaml_node *node,
                       union er_value *value, struct er_error *err)
{
    static const char *const words[] = {"gpu", "cpu", "auto"};
    uint64_t n;
    int rc = er_value_want_text(c, node, err);

    if (rc)
        return rc;
    for (size_t i = 0; i < ER_ARRAY_N(words); i++) {
        if (!strcmp(words[i], node->text))
            return er_value_copy_text(node->text, value, err);
    }
    if (er_parse_u64(node->text, 1, c->key->max, &n, NULL))
        return er_error_set(err, ER_E_CONFIG,
                            "expected a number from 1 to %llu, gpu, cpu or auto; got '" SHOWN "'",
                            (unsigned long long)c->key->max, node->text);
    return er_value_copy_text(node->text, value, err);
}

static int parse_ports(struct er_value_context *c, const struct er_yaml_node *node,
                       union er_value *value, struct er_error *err)
{
    const char *dash;
    char low[8];
    uint64_t first, last;
    int rc = er_value_want_text(c, node, err);

    if (rc)
        return rc;
    if (!strcmp(node->text, "auto"))
        return er_value_copy_text(node->text, value, err);
    dash = strchr(node->text, '-');
    snprintf(low, sizeof(low), "%.*s", dash ? (int)(dash - node->text) : 7, node->text);
    if (er_parse_u64(low, 1, 65535, &first, NULL) ||
        er_parse_u64(dash ? dash + 1 : node->text, first, 65535, &last, NULL))
        return er_error_set(
            err, ER_E_CONFIG,
            "expected auto, a port from 1 to 65535 or \"LOW-HIGH\"; got '" SHOWN "'", node->text);
    return er_value_copy_text(node->text, value, err);
}

static const er_value_parse_fn PARSERS[ER_KEY_TYPE_COUNT] = {
    [ER_KEY_U32] = parse_u32,
    [ER_KEY_U64] = parse_u64,
    [ER_KEY_RANK] = parse_rank,
    [ER_KEY_RATIO] = parse_ratio,
    [ER_KEY_BOOL] = parse_bool,
    [ER_KEY_DURATION] = parse_duration,
    [ER_KEY_SIZE] = parse_size,
    [ER_KEY_STRING] = parse_string,
    [ER_KEY_NAME] = parse_name,
    [ER_KEY_TEMPLATE] = parse_template,
    [ER_KEY_PATH] = parse_template,
    [ER_KEY_CHOICE] = parse_choice,
    [ER_KEY_CHOICE_TEXT] = parse_choice,
    [ER_KEY_SIGNAL] = parse_signal,
    [ER_KEY_SIGNALS] = er_value_parse_signals,
    [ER_KEY_RANGE] = parse_range,
    [ER_KEY_NPROC] = parse_nproc,
    [ER_KEY_PORTS] = parse_ports,
    [ER_KEY_CONSOLE] = er_value_parse_console,
    [ER_KEY_STREAMS] = er_value_parse_streams,
    [ER_KEY_COMMAND] = er_value_parse_command,
    [ER_KEY_STRINGS] = er_value_parse_list,
    [ER_KEY_CODES] = er_value_parse_list,
    [ER_KEY_CHOICES] = er_value_parse_list,
    [ER_KEY_ENDPOINTS] = er_value_parse_list,
    [ER_KEY_ENV] = er_value_parse_env,
    [ER_KEY_ROLES] = er_value_parse_roles,
};

int er_value_parse(struct er_value_context *context, const struct er_yaml_node *node,
                   union er_value *ret, struct er_error *err)
{
    union er_value value;
    int rc;

    memset(&value, 0, sizeof(value));
    context->ret_bad = node;
    rc = PARSERS[context->key->type](context, node, &value, err);
    if (rc) {
        er_value_free(context->key, &value);
        return rc;
    }
    *ret = value;
    return 0;
}
