#include "agent/config_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/subst.h"
#include "base/cleanup.h"

enum { PATH_TEXT_MAX = 256 };

void er_loader_defaults(struct er_loader *loader)
{
    bool program = loader->config->program_form;

    for (size_t i = 0; i < er_keys_n; i++) {
        const struct er_key_info *key = &er_keys[i];
        bool own = program && key->def_program;
        const struct er_config_source source = {.label = own ? "default of a program" : "default"};

        if (key->def)
            er_loader_set_text(loader, key, own ? key->def_program : key->def, &source);
    }
}

/* Where the scheduler says something about the job; `job` must be there for its row to count. */
static const struct {
    const char *key, *job, *variable, *prefix;
} SCHEDULER[] = {
    {"name", "SLURM_JOB_ID", "SLURM_JOB_ID", "slurm-"},
    {"nnodes", "SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", ""},
    {"node.id", "SLURM_JOB_ID", "SLURMD_NODENAME", ""},
    {"node.rank", "SLURM_JOB_ID", "SLURM_NODEID", ""},
    {"name", "ELASTIC_INSTANCE", "ELASTIC_INSTANCE", ""}, /* %i of the systemd unit */
    {"preempt.deadline", "ELASTIC_STOP_TIMEOUT", "ELASTIC_STOP_TIMEOUT", ""},
    {"node.rank", "KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX", ""},
};

/* Tasks of an array share SLURM_ARRAY_JOB_ID; each is a job of its own. */
static void slurm_array_name(struct er_loader *loader)
{
    const char *job = er_environ_get(loader->environ_, "SLURM_ARRAY_JOB_ID");
    const char *task = er_environ_get(loader->environ_, "SLURM_ARRAY_TASK_ID");
    const struct er_config_source source = {ER_LAYER_SCHEDULER, "SLURM_ARRAY_JOB_ID", 0, 0, false};
    char text[PATH_TEXT_MAX];

    if (!job || !task)
        return;
    snprintf(text, sizeof(text), "%s_%s", job, task);
    er_loader_set_text(loader, er_key_get("name"), text, &source);
}

void er_loader_scheduler(struct er_loader *loader)
{
    for (size_t i = 0; i < ER_ARRAY_N(SCHEDULER); i++) {
        const char *value = er_environ_get(loader->environ_, SCHEDULER[i].variable);
        const struct er_config_source source = {ER_LAYER_SCHEDULER, SCHEDULER[i].variable, 0, 0,
                                                false};
        char text[PATH_TEXT_MAX];

        if (!value || !*value || !er_environ_get(loader->environ_, SCHEDULER[i].job))
            continue;
        snprintf(text, sizeof(text), "%s%s", SCHEDULER[i].prefix, value);
        er_loader_set_text(loader, er_key_get(SCHEDULER[i].key), text, &source);
    }
    slurm_array_name(loader);
}

static void unknown_key(struct er_loader *loader, const char *path,
                        const struct er_config_source *source)
{
    char near[ER_KEY_PATH_MAX], place[64] = "";
    bool found = er_key_nearest(path, near);

    if (source->line)
        snprintf(place, sizeof(place), ":%u:%u", source->line, source->col);
    er_findings_add(&loader->findings, source->layer == ER_LAYER_SPEC ? ER_E_CONFIG : ER_E_USAGE,
                    "%s%s: unknown key '%.100s'%s%s%s", source->label, place, path,
                    found ? "; did you mean '" : "", found ? near : "", found ? "'?" : "");
}

/* `log.console:` beside `log: {console: ...}`: the reader of YAML sees two different keys. */
static bool is_given(struct er_loader *loader, const struct er_key_info *key,
                     const struct er_config_source *source)
{
    const struct er_setting *before = er_config_setting(loader->config, key->path);

    if (source->layer != ER_LAYER_SPEC || before->layer != ER_LAYER_SPEC)
        return false;
    er_findings_add(&loader->findings, ER_E_CONFIG,
                    "%s:%u:%u: duplicate key '%s', first given at %s", source->label, source->line,
                    source->col, key->path, before->origin);
    return true;
}

/* Recursion goes as deep as the table's longest path, whatever the file holds. */
void er_loader_map(struct er_loader *loader, const struct er_yaml_node *map, const char *prefix,
                   const struct er_config_source *source)
{
    for (size_t i = 0; i < map->n; i += 2) {
        const struct er_yaml_node *name = map->items[i], *value = map->items[i + 1];
        struct er_config_source here = *source;
        const struct er_key_info *key;
        char path[PATH_TEXT_MAX];

        here.line = name->line;
        here.col = name->col;
        snprintf(path, sizeof(path), "%s%.128s", prefix, name->text);
        key = er_key_find(path);
        if (key && is_given(loader, key, &here)) {
            continue;
        } else if (key) {
            er_loader_set(loader, key, value, &here);
        } else if (!er_key_is_group(path)) {
            unknown_key(loader, path, &here);
        } else if (value->kind != ER_NODE_MAP) {
            er_findings_add(&loader->findings, ER_E_CONFIG,
                            "%s:%u:%u: %s: expected a map of keys such as %s, got %s",
                            source->label, value->line, value->col, path,
                            er_key_first_in(path)->path, er_yaml_node_what(value));
        } else {
            strncat(path, ".", sizeof(path) - strlen(path) - 1);
            er_loader_map(loader, value, path, source);
        }
    }
}
