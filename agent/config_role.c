/* What this node's role changes: workers, command and environment, and the number of nodes of the
 * whole job. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config_internal.h"
#include "base/cleanup.h"
#include "base/hash.h"
#include "base/parse.h"
#include "rendezvous/driver.h"

uint32_t er_role_id(const char *name)
{
    return (uint32_t)er_hash(name, strlen(name)).lo;
}

static void role_bounds(const struct er_config *c, const struct er_role *role, uint32_t *min,
                        uint32_t *max)
{
    *min = role->has_nnodes ? role->nnodes_min : c->nnodes_min;
    *max = role->has_nnodes ? role->nnodes_max : c->nnodes_max;
}

uint32_t er_config_role_bounds(const struct er_config *c, struct er_role_bounds *ret)
{
    for (size_t i = 0; i < c->roles.n; i++) {
        ret[i].id = er_role_id(c->roles.items[i].name);
        ret[i].min = c->roles.items[i].total_min;
        ret[i].max = c->roles.items[i].total_max;
    }
    return (uint32_t)c->roles.n;
}

static void unknown_role(struct er_loader *loader)
{
    const struct er_config *c = loader->config;
    const char *names[ER_ROLES_MAX], *near;

    for (size_t i = 0; i < c->roles.n; i++)
        names[i] = c->roles.items[i].name;
    near = er_nearest(c->role, names, c->roles.n);
    finding(loader, er_loader_code_of(loader, "role"),
            "role: '%.100s' is none of `roles`; say which this node has (--role, role:)%s%s%s",
            c->role, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

/* The role's own value, unless the command line or a variable set the key. */
static void apply_nproc(struct er_loader *loader, const struct er_role *role,
                        const struct er_config_source *source)
{
    if (role->has_nproc &&
        er_config_setting(loader->config, "nproc_per_node")->layer <= ER_LAYER_SPEC)
        er_loader_set_text(loader, er_key_get("nproc_per_node"), role->nproc_text, source);
}

static void apply_command(struct er_loader *loader, const struct er_role *role,
                          const struct er_config_source *source)
{
    union er_value value = {.list = {.n = 0}};

    if (!role->has_command)
        return;
    if (er_strlist_copy(&role->command, &value.list))
        er_loader_no_memory(loader);
    else
        er_loader_store(loader, er_key_get("command"), &value, source);
}

/* Names of the role come on top of the others. */
static void apply_env(struct er_loader *loader, const struct er_role *role,
                      const struct er_config_source *source)
{
    const struct er_envlist *both[] = {&loader->config->env, &role->env};
    union er_value value = {.env = {.n = 0}};
    int rc = 0;

    if (!role->has_env)
        return;
    for (size_t l = 0; l < ER_ARRAY_N(both); l++) {
        for (size_t i = 0; !rc && i < both[l]->n; i++)
            rc = er_envlist_put(&value.env, both[l]->names[i], both[l]->values[i]);
    }
    if (!rc) {
        er_loader_store(loader, er_key_get("env"), &value, source);
        return;
    }
    er_value_free(er_key_get("env"), &value);
    er_loader_no_memory(loader);
}

/* The job has the nodes of all roles; a role that names no number has the top level's. */
static void apply_nnodes(struct er_loader *loader, const struct er_config_source *source)
{
    struct er_config *c = loader->config;
    uint64_t min = 0, max = 0;
    char text[64];

    for (size_t i = 0; i < c->roles.n; i++) {
        struct er_role *role = &c->roles.items[i];

        role_bounds(c, role, &role->total_min, &role->total_max);
        min += role->total_min;
        max += role->total_max;
    }
    snprintf(text, sizeof(text), "%llu:%llu", (unsigned long long)min, (unsigned long long)max);
    er_loader_set_text(loader, er_key_get("nnodes"), text, source);
}

void er_loader_role(struct er_loader *loader)
{
    struct er_config *c = loader->config;
    struct er_config_source source;
    struct er_origins *origins = c->origins;
    const char *command = er_config_setting(c, "command")->text;
    const struct er_role *role;
    char label[128];

    if (!c->roles.n)
        return;
    role = er_rolelist_find(&c->roles, c->role);
    if (!role) {
        unknown_role(loader);
        return;
    }
    snprintf(label, sizeof(label), "roles.%s", role->name);
    source = (struct er_config_source){.layer = ER_LAYER_SPEC, .label = label};
    if (!(origins->shared_command = strdup(command ? command : "")))
        er_loader_no_memory(loader);
    apply_nnodes(loader, &source);
    apply_nproc(loader, role, &source);
    apply_command(loader, role, &source);
    apply_env(loader, role, &source);
}
