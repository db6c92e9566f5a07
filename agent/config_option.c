#include "agent/config_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/subst.h"
#include "base/cleanup.h"
#include "base/parse.h"

#define usage(loader, ...) er_findings_add(&(loader)->findings, ER_E_USAGE, __VA_ARGS__)

/* An option that is used, on the command line or through its variable. */
struct use {
    const struct er_option *option;
    const char *value; /* NULL: a flag that is on */
    struct er_config_source source;
};

typedef void (*apply_fn)(struct er_loader *loader, const struct use *use);

static void apply_value(struct er_loader *loader, const struct use *use)
{
    er_loader_set_text(loader, er_key_get(use->option->key), use->value, &use->source);
}

static void apply_flag(struct er_loader *loader, const struct use *use)
{
    er_loader_set_text(loader, er_key_get(use->option->key), use->option->value, &use->source);
    if (!strcmp(use->option->key, "rendezvous.backend"))
        loader->torchrun_backend = loader->backend_written = NULL;
}

/* Items between commas, `,,` being a comma (torchrun's filters), as a list for er_loader_set(). */
struct item_list {
    struct er_yaml_node list, **items, *nodes;
    char *text;
};

static void free_items(struct item_list *l)
{
    free(l->items);
    free(l->nodes);
    free(l->text);
}

static int split_items(struct item_list *l, const char *text)
{
    size_t most = strlen(text) + 1;
    char *to;

    l->items = calloc(most, sizeof(*l->items));
    l->nodes = calloc(most, sizeof(*l->nodes));
    l->text = to = malloc(most + 1);
    if (!l->items || !l->nodes || !l->text)
        return -ENOMEM;
    l->list = (struct er_yaml_node){.kind = ER_NODE_LIST, .items = l->items};
    while (*text) {
        struct er_yaml_node *node = &l->nodes[l->list.n];

        node->kind = ER_NODE_SCALAR;
        node->text = to;
        l->items[l->list.n++] = node;
        for (; *text && (*text != ',' || text[1] == ','); text++) {
            if (*text == ',')
                text++;
            *to++ = *text;
        }
        *to++ = '\0';
        text += *text == ',';
    }
    return 0;
}

static void apply_list(struct er_loader *loader, const struct use *use)
{
    struct item_list l = {0};

    if (split_items(&l, use->value))
        er_findings_add(&loader->findings, -ENOMEM, "out of memory");
    else
        er_loader_set(loader, er_key_get(use->option->key), &l.list, &use->source);
    free_items(&l);
}

static void apply_backend(struct er_loader *loader, const struct use *use)
{
    static const struct {
        const char *name, *value; /* NULL: embedded or managed, by the number of nodes */
    } names[] = {
        {"static", NULL},         {"c10d", NULL},         {"etcd-v2", "etcd"}, {"etcd", "etcd"},
        {"embedded", "embedded"}, {"managed", "managed"}, {"auto", "auto"},
    };

    for (size_t i = 0; i < ER_ARRAY_N(names); i++) {
        if (strcmp(names[i].name, use->value) != 0)
            continue;
        loader->torchrun_backend = names[i].value ? NULL : names[i].name;
        loader->backend_written = names[i].name;
        if (names[i].value)
            er_loader_set_text(loader, er_key_get("rendezvous.backend"), names[i].value,
                               &use->source);
        free(loader->torchrun_backend_from);
        loader->torchrun_backend_from = strdup(use->source.label);
        return;
    }
    usage(loader, "%s: expected static, c10d, etcd-v2, etcd, embedded, managed or auto; got '%s'",
          use->source.label, use->value);
}

/* torchrun's --rdzv-conf. A later row wins over an earlier one for the same key. */
static const struct {
    const char *name, *key;
} CONF[] = {
    {"timeout", "rendezvous.join_timeout"},
    {"join_timeout", "rendezvous.join_timeout"},
    {"last_call_timeout", "rendezvous.last_call_timeout"},
    {"ca_cert", "rendezvous.tls.ca"},
    {"ssl_cert", "rendezvous.tls.cert"},
    {"ssl_cert_key", "rendezvous.tls.key"},
};

/* The value of `name=` among the items; NULL: not there. */
static const char *conf_value(const struct item_list *l, const char *name)
{
    size_t n = strlen(name);

    for (size_t i = l->list.n; i-- > 0;) {
        if (!strncmp(l->items[i]->text, name, n) && l->items[i]->text[n] == '=')
            return l->items[i]->text + n + 1;
    }
    return NULL;
}

static void check_conf_name(struct er_loader *loader, const struct use *use, const char *item)
{
    const char *equals = strchr(item, '=');

    if (!equals || equals == item) {
        usage(loader, "%s: expected NAME=VALUE,..., got '%s'", use->source.label, item);
        return;
    }
    for (size_t i = 0; i < ER_ARRAY_N(CONF); i++) {
        if (strlen(CONF[i].name) == (size_t)(equals - item) &&
            !strncmp(CONF[i].name, item, (size_t)(equals - item)))
            return;
    }
    er_loader_warn(loader, "%s: '%.*s' has no effect here", use->source.label, (int)(equals - item),
                   item);
}

static void apply_conf(struct er_loader *loader, const struct use *use)
{
    struct item_list l = {0};
    struct er_config_source source = use->source;

    source.bare_seconds = true;
    if (split_items(&l, use->value)) {
        er_findings_add(&loader->findings, -ENOMEM, "out of memory");
        free_items(&l);
        return;
    }
    for (size_t i = 0; i < l.list.n; i++)
        check_conf_name(loader, use, l.items[i]->text);
    for (size_t i = 0; i < ER_ARRAY_N(CONF); i++) {
        const char *value = conf_value(&l, CONF[i].name);
        char label[128];

        if (!value)
            continue;
        snprintf(label, sizeof(label), "%s %s", use->source.label, CONF[i].name);
        source.label = label;
        er_loader_set_text(loader, er_key_get(CONF[i].key), value, &source);
    }
    free_items(&l);
}

static void apply_filter(struct er_loader *loader, const struct use *use)
{
    ER_CLEANUP(er_cleanup_free) char *text = NULL;

    if (asprintf(&text, *use->value ? "local:%s" : "all", use->value) < 0) {
        text = NULL;
        er_findings_add(&loader->findings, -ENOMEM, "out of memory");
        return;
    }
    er_loader_set_text(loader, er_key_get(use->option->key), text, &use->source);
}

/* torchrun calls the role ${role_name}. */
static void apply_prefix(struct er_loader *loader, const struct use *use)
{
    ER_CLEANUP(er_buf_done) struct er_buf text;
    const char *at = use->value, *hit;

    er_buf_init(&text, ER_VALUE_TEXT_MAX);
    while ((hit = strstr(at, "${role_name}"))) {
        er_buf_add(&text, at, (size_t)(hit - at));
        er_buf_add_str(&text, "${role}");
        at = hit + strlen("${role_name}");
    }
    if (er_buf_add_str(&text, at))
        er_findings_add(&loader->findings, -ENOMEM, "out of memory");
    else if (*use->value)
        er_loader_set_text(loader, er_key_get(use->option->key), er_buf_str(&text), &use->source);
}

/* What it means shows when the number of nodes is known. */
static void apply_master_addr(struct er_loader *loader, const struct use *use)
{
    free(loader->master_addr);
    free(loader->master_addr_from);
    loader->master_addr = strdup(use->value);
    loader->master_addr_from = strdup(use->source.label);
    if (!loader->master_addr || !loader->master_addr_from)
        er_loader_no_memory(loader);
}

/* torchrun's 0 is our auto. */
static void apply_master_port(struct er_loader *loader, const struct use *use)
{
    uint64_t port;

    if (er_parse_u64(use->value, 0, 65535, &port, NULL))
        usage(loader, "%s: expected a port from 0 to 65535, got '%s'", use->source.label,
              use->value);
    else
        er_loader_set_text(loader, er_key_get(use->option->key), port ? use->value : "auto",
                           &use->source);
}

static void apply_module(struct er_loader *loader, const struct use *use)
{
    loader->module = true;
}

static void apply_no_python(struct er_loader *loader, const struct use *use)
{
    loader->no_python = true;
}

static void apply_ignored(struct er_loader *loader, const struct use *use)
{
    er_loader_warn(loader, "%s: %s", use->source.label, use->option->help);
}

static void apply_refused(struct er_loader *loader, const struct use *use)
{
    usage(loader, "%s: %s", use->source.label, use->option->help);
}

/* `env.NAME=value` adds to what is there; anything else replaces its key. */
static void set_env(struct er_loader *loader, const char *name, const char *text,
                    const struct er_config_source *source)
{
    const struct er_key_info *key = er_key_get("env");
    struct er_envlist *env = &loader->config->env;
    union er_value value;
    bool failed = false;

    memset(&value, 0, sizeof(value));
    for (size_t i = 0; i < env->n; i++)
        failed |= er_envlist_put(&value.env, env->names[i], env->values[i]) != 0;
    failed |= er_envlist_put(&value.env, name, text) != 0;
    if (failed) {
        er_findings_add(&loader->findings, -ENOMEM, "out of memory");
        er_value_free(key, &value);
        return;
    }
    er_loader_store(loader, key, &value, source);
}

static void unknown_key(struct er_loader *loader, const char *path)
{
    char near[ER_KEY_PATH_MAX];

    if (er_key_nearest(path, near))
        usage(loader, "--set: unknown key '%s'; did you mean '%s'?", path, near);
    else
        usage(loader, "--set: unknown key '%s'", path);
}

static void apply_set(struct er_loader *loader, const struct use *use)
{
    const char *equals = strchr(use->value, '=');
    struct er_config_source source = use->source;
    const struct er_key_info *key;
    char path[128], label[160];

    if (!equals || equals == use->value || (size_t)(equals - use->value) >= sizeof(path)) {
        usage(loader, "--set: expected KEY=VALUE, got '%.100s'", use->value);
        return;
    }
    snprintf(path, sizeof(path), "%.*s", (int)(equals - use->value), use->value);
    snprintf(label, sizeof(label), "--set %s", path);
    source.label = label;
    key = er_key_find(path);
    if (key && key->type == ER_KEY_COMMAND && loader->config->program_form && !key->def)
        usage(loader, "%s: PROGRAM is the command", label);
    else if (key)
        er_loader_set_text(loader, key, equals + 1, &source);
    else if (!strncmp(path, "env.", 4) && path[4])
        set_env(loader, path + 4, equals + 1, &source);
    else if (er_key_is_group(path))
        usage(loader, "%s: a group of keys; give one, such as --set %s", label,
              er_key_first_in(path)->path);
    else
        unknown_key(loader, path);
    if (!strcmp(path, "rendezvous.backend"))
        loader->torchrun_backend = loader->backend_written = NULL;
}

/* Modes, --fresh and --update-spec are told by the command line itself. */
static const apply_fn APPLY[] = {
    [ER_OPTION_VALUE] = apply_value,
    [ER_OPTION_LIST] = apply_list,
    [ER_OPTION_FLAG] = apply_flag,
    [ER_OPTION_BACKEND] = apply_backend,
    [ER_OPTION_CONF] = apply_conf,
    [ER_OPTION_FILTER] = apply_filter,
    [ER_OPTION_PREFIX] = apply_prefix,
    [ER_OPTION_MASTER_ADDR] = apply_master_addr,
    [ER_OPTION_MASTER_PORT] = apply_master_port,
    [ER_OPTION_MODULE] = apply_module,
    [ER_OPTION_NO_PYTHON] = apply_no_python,
    [ER_OPTION_IGNORED] = apply_ignored,
    [ER_OPTION_REFUSED] = apply_refused,
    [ER_OPTION_SET] = apply_set,
    [ER_OPTION_MODE] = NULL,
    [ER_OPTION_START] = NULL,
    [ER_OPTION_UPDATE_SPEC] = NULL,
};

static void apply(struct er_loader *loader, const struct use *use)
{
    if (APPLY[use->option->kind])
        APPLY[use->option->kind](loader, use);
}

/* torchrun reads its flags as numbers. Is the flag on? */
static bool flag_is_on(struct er_loader *loader, const char *variable, const char *value)
{
    if (!strcmp(value, "1"))
        return true;
    if (strcmp(value, "0") != 0)
        usage(loader, "%s: expected 0 or 1, got '%s'", variable, value);
    return false;
}

void er_loader_environment(struct er_loader *loader)
{
    for (size_t i = 0; i < er_options_n; i++) {
        const struct er_option *option = &er_options[i];
        const char *variable = option->env;
        const char *value = variable ? er_environ_get(loader->environ_, variable) : NULL;
        struct use use = {.option = option};

        if ((!value || !*value) && option->env_too) {
            variable = option->env_too;
            value = er_environ_get(loader->environ_, variable);
        }
        if (!value || !*value)
            continue;
        use.source = (struct er_config_source){
            .layer = ER_LAYER_ENVIRONMENT,
            .label = variable,
            .bare_seconds = option->flags & ER_OPTION_SECONDS,
        };
        if (option->flags & ER_OPTION_NO_VALUE && !flag_is_on(loader, variable, value))
            continue;
        use.value = option->flags & ER_OPTION_NO_VALUE ? NULL : value;
        apply(loader, &use);
    }
}

void er_loader_options(struct er_loader *loader)
{
    for (size_t i = 0; i < loader->line.uses_n; i++) {
        const struct er_option_use *given = &loader->line.uses[i];
        struct use use = {.option = given->option, .value = given->value};
        char label[64];

        snprintf(label, sizeof(label), "--%s", given->option->name);
        use.source = (struct er_config_source){
            .layer = ER_LAYER_OPTION,
            .label = label,
            .bare_seconds = given->option->flags & ER_OPTION_SECONDS,
        };
        apply(loader, &use);
    }
}
