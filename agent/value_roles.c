/* `roles`: a map of what nodes of each role have otherwise than the top level says. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/value_internal.h"
#include "agent/yaml_text.h"
#include "base/cleanup.h"
#include "rendezvous/driver.h"

#define NAME_CHARS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"

const struct er_role *er_rolelist_find(const struct er_rolelist *roles, const char *name)
{
    for (size_t i = 0; i < roles->n; i++) {
        if (!strcmp(roles->items[i].name, name))
            return &roles->items[i];
    }
    return NULL;
}

/* The parts of a role, each of the type of the key of that name. */
static const struct {
    const char *key;
    size_t offset;
    size_t given;
} PARTS[] = {
    {"nnodes", offsetof(struct er_role, nnodes_min), offsetof(struct er_role, has_nnodes)},
    {"nproc_per_node", offsetof(struct er_role, nproc_text), offsetof(struct er_role, has_nproc)},
    {"command", offsetof(struct er_role, command), offsetof(struct er_role, has_command)},
    {"env", offsetof(struct er_role, env), offsetof(struct er_role, has_env)},
};

static bool *given(const struct er_role *role, size_t part)
{
    return (bool *)((char *)role + PARTS[part].given);
}

static void *field(const struct er_role *role, size_t part)
{
    return (char *)role + PARTS[part].offset;
}

static int parse_part(struct er_value_context *c, struct er_role *role, const char *name,
                      const struct er_yaml_node *node, struct er_error *err)
{
    struct er_value_context inner = *c;
    union er_value value;
    size_t part = 0;
    int rc;

    while (part < ER_ARRAY_N(PARTS) && strcmp(PARTS[part].key, name) != 0)
        part++;
    if (part == ER_ARRAY_N(PARTS))
        return er_error_set(
            err, ER_E_CONFIG,
            "unknown key '" SHOWN "'; a role has nnodes, nproc_per_node, command and env", name);
    inner.key = er_key_get(PARTS[part].key);
    rc = er_value_parse(&inner, node, &value, err);
    c->ret_bad = inner.ret_bad;
    if (rc)
        return er_error_wrap(err, rc, "%s", name);
    memcpy(field(role, part), &value, er_value_size(inner.key->type));
    *given(role, part) = true;
    return 0;
}

static int parse_role(struct er_value_context *c, struct er_role *role,
                      const struct er_yaml_node *node, struct er_error *err)
{
    int rc = 0;

    c->ret_bad = node;
    if (node->kind != ER_NODE_MAP)
        return er_error_set(err, ER_E_CONFIG, "expected a map, got %s", er_yaml_node_what(node));
    for (size_t i = 0; !rc && i < node->n; i += 2) {
        c->ret_bad = node->items[i];
        rc = parse_part(c, role, node->items[i]->text, node->items[i + 1], err);
    }
    return rc;
}

static int add_role(struct er_value_context *c, struct er_rolelist *roles,
                    const struct er_yaml_node *name, struct er_role **ret, struct er_error *err)
{
    size_t n = strlen(name->text);
    struct er_role *items;

    c->ret_bad = name;
    if (!n || n >= ER_NAME_TEXT_MAX || strspn(name->text, NAME_CHARS) != n)
        return er_error_set(err, ER_E_CONFIG,
                            "expected a role's name of letters, digits, '.', '_' or '-'; got "
                            "'" SHOWN "'",
                            name->text);
    if (roles->n >= ER_ROLES_MAX)
        return er_error_set(err, ER_E_CONFIG, "more than %d roles", ER_ROLES_MAX);
    items = reallocarray(roles->items, roles->n + 1, sizeof(*items));
    if (!items)
        return er_value_no_memory(err);
    roles->items = items;
    items[roles->n] = (struct er_role){.name = strdup(name->text)};
    if (!items[roles->n].name)
        return er_value_no_memory(err);
    *ret = &items[roles->n++];
    return 0;
}

int er_value_parse_roles(struct er_value_context *c, const struct er_yaml_node *node,
                         union er_value *value, struct er_error *err)
{
    int rc = 0;

    if (node->kind != ER_NODE_MAP)
        return er_value_wrong_kind(c, node, err);
    for (size_t i = 0; !rc && i < node->n; i += 2) {
        struct er_role *role = NULL;

        rc = add_role(c, &value->roles, node->items[i], &role, err);
        if (!rc && (rc = parse_role(c, role, node->items[i + 1], err)))
            er_error_wrap(err, rc, "%s", role->name);
    }
    return rc;
}

static int format_role(const struct er_role *role, struct er_buf *out)
{
    const char *comma = "";
    int rc = er_yaml_text(out, role->name, false);

    if (!rc)
        rc = er_buf_add_str(out, ": {");
    for (size_t part = 0; !rc && part < ER_ARRAY_N(PARTS); part++) {
        const struct er_key_info *key = er_key_get(PARTS[part].key);
        union er_value value;

        if (!*given(role, part))
            continue;
        memset(&value, 0, sizeof(value));
        memcpy(&value, field(role, part), er_value_size(key->type));
        rc = er_buf_printf(out, "%s%s: ", comma, key->path);
        if (!rc)
            rc = er_value_format(key, &value, out);
        comma = ", ";
    }
    return rc ? rc : er_buf_add_str(out, "}");
}

int er_value_format_roles(const struct er_key_info *key, const union er_value *value,
                          struct er_buf *out)
{
    int rc = er_buf_add_str(out, "{");

    for (size_t i = 0; !rc && i < value->roles.n; i++) {
        rc = i ? er_buf_add_str(out, ", ") : 0;
        if (!rc)
            rc = format_role(&value->roles.items[i], out);
    }
    return rc ? rc : er_buf_add_str(out, "}");
}

void er_value_free_roles(union er_value *value)
{
    for (size_t i = 0; i < value->roles.n; i++) {
        struct er_role *role = &value->roles.items[i];

        free(role->name);
        free(role->nproc_text);
        er_strlist_free(&role->command);
        er_envlist_free(&role->env);
    }
    free(value->roles.items);
}
