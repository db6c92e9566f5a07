#include "agent/config.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/config_internal.h"
#include "base/cleanup.h"
#include "base/exit_codes.h"

static void *field_of(struct er_config *config, const struct er_key_info *key)
{
    return key->offset == ER_KEY_NOWHERE ? NULL : (char *)config + key->offset;
}

static void clear_setting(struct er_setting *setting)
{
    free(setting->origin);
    free(setting->where);
    free(setting->text);
    *setting = (struct er_setting){0};
}

static void free_field(struct er_config *config, const struct er_key_info *key)
{
    void *field = field_of(config, key);
    union er_value value;

    if (!field)
        return;
    memset(&value, 0, sizeof(value));
    memcpy(&value, field, er_value_size(key->type));
    er_value_free(key, &value);
    memset(field, 0, er_value_size(key->type));
}

void er_config_free(struct er_config *config)
{
    struct er_origins *origins;
    int saved = errno;

    if (!config)
        return;
    origins = config->origins;
    for (size_t i = 0; i < er_keys_n; i++) {
        free_field(config, &er_keys[i]);
        if (origins)
            clear_setting(&origins->settings[i]);
    }
    if (origins) {
        free(origins->settings);
        free(origins->shared_command);
    }
    free(origins);
    er_strlist_free(&config->warnings);
    for (uint32_t i = 0; i < config->gpus_n; i++)
        free(config->gpu_pcis[i]);
    free(config->gpu_pcis);
    free(config->node.cpus);
    free(config->spec_path);
    free(config->help_topic);
    free(config);
    errno = saved;
}

ER_CLEANUP_FOR(er_config_free, struct er_config)

struct er_setting *er_config_setting(const struct er_config *config, const char *path)
{
    struct er_origins *origins = config->origins;

    return &origins->settings[er_key_index(er_key_get(path))];
}

void er_loader_warn(struct er_loader *loader, const char *fmt, ...)
{
    struct er_strlist *warnings = &loader->config->warnings;
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    for (size_t i = 0; i < warnings->n; i++) {
        if (!strcmp(warnings->items[i], text))
            return;
    }
    if (er_strlist_add(warnings, text, strlen(text)))
        er_findings_add(&loader->findings, -ENOMEM, "out of memory");
}

/* "job.yaml:12:3: log.tee", "--tee", "--set log.tee" */
static char *describe_place(const struct er_key_info *key, const struct er_config_source *source,
                            unsigned line, unsigned col)
{
    char *text = NULL;
    int n = line ? asprintf(&text, "%s:%u:%u: %s", source->label, line, col, key->path)
                 : asprintf(&text, "%s", source->label);

    return n < 0 ? NULL : text;
}

static char *describe_origin(const struct er_config_source *source)
{
    char *text = NULL;
    int n = source->line ? asprintf(&text, "%s:%u", source->label, source->line)
                         : asprintf(&text, "%s", source->label);

    return n < 0 ? NULL : text;
}

static char *canonical(const struct er_key_info *key, const union er_value *value)
{
    ER_CLEANUP(er_buf_done) struct er_buf text;

    er_buf_init(&text, ER_VALUE_TEXT_MAX);
    return er_value_format(key, value, &text) ? NULL : strdup(er_buf_str(&text));
}

void er_loader_store(struct er_loader *loader, const struct er_key_info *key, union er_value *value,
                     const struct er_config_source *source)
{
    struct er_origins *origins = loader->config->origins;
    struct er_setting *setting = &origins->settings[er_key_index(key)];
    struct er_setting fresh = {
        .layer = source->layer,
        .origin = describe_origin(source),
        .where = describe_place(key, source, source->line, source->col),
        .text = canonical(key, value),
    };

    if (!fresh.origin || !fresh.where || !fresh.text) {
        er_findings_add(&loader->findings, -ENOMEM, "out of memory");
        clear_setting(&fresh);
        er_value_free(key, value);
        return;
    }
    clear_setting(setting);
    *setting = fresh;
    free_field(loader->config, key);
    if (key->offset == ER_KEY_NOWHERE)
        er_value_free(key, value);
    else
        memcpy(field_of(loader->config, key), value, er_value_size(key->type));
}

void er_loader_refresh(struct er_loader *loader, const char *path)
{
    const struct er_key_info *key = er_key_get(path);
    struct er_setting *setting = er_config_setting(loader->config, path);
    union er_value value;
    char *text;

    memset(&value, 0, sizeof(value));
    memcpy(&value, field_of(loader->config, key), er_value_size(key->type));
    text = canonical(key, &value);
    if (!text) {
        er_findings_add(&loader->findings, -ENOMEM, "out of memory");
        return;
    }
    free(setting->text);
    setting->text = text;
}

/* Wrong in a file is a wrong spec; wrong on the command line or in PET_* wrong usage. */
static int code_for(const struct er_config_source *source, int rc)
{
    if (rc == ER_E_CONFIG && source->layer >= ER_LAYER_ENVIRONMENT)
        return ER_E_USAGE;
    return rc;
}

void er_loader_set(struct er_loader *loader, const struct er_key_info *key,
                   const struct er_yaml_node *node, const struct er_config_source *source)
{
    struct er_value_context context = {
        .key = key,
        .bare_seconds = source->bare_seconds,
        .program_form = loader->config->program_form,
        .environ_ = loader->environ_,
    };
    struct er_error err = ER_ERROR_INIT;
    union er_value value;
    int rc = er_value_parse(&context, node, &value, &err);

    if (!rc) {
        er_loader_store(loader, key, &value, source);
        return;
    }
    if (source->line && context.ret_bad && context.ret_bad->line)
        er_findings_add(&loader->findings, rc, "%s:%u:%u: %s: %s", source->label,
                        context.ret_bad->line, context.ret_bad->col, key->path, err.text);
    else
        er_findings_add(&loader->findings, code_for(source, rc), "%s: %s", source->label, err.text);
}

void er_loader_set_text(struct er_loader *loader, const struct er_key_info *key, const char *text,
                        const struct er_config_source *source)
{
    struct er_yaml_node scalar = {.kind = ER_NODE_SCALAR, .values = 1};
    ER_CLEANUP(er_cleanup_free) char *copy = NULL;
    struct er_error err = ER_ERROR_INIT;
    struct er_spec *spec = NULL;
    int rc;

    if (er_value_is_single(key->type)) {
        scalar.text = copy = strdup(text);
        if (copy)
            er_loader_set(loader, key, &scalar, source);
        else
            er_findings_add(&loader->findings, -ENOMEM, "out of memory");
        return;
    }
    rc = er_spec_parse_value(&spec, text, &err);
    if (rc)
        er_findings_add(&loader->findings, code_for(source, rc), "%s: %s", source->label, err.text);
    else
        er_loader_set(loader, key, er_spec_root(spec), source);
    er_spec_free(spec);
}

static bool is_spec_name(const char *operand)
{
    size_t n = strlen(operand);

    return !strcmp(operand, "-") || (n > 5 && !strcmp(operand + n - 5, ".yaml")) ||
           (n > 4 && !strcmp(operand + n - 4, ".yml"));
}

/* Which of the two forms the operands are in. */
static int choose_form(struct er_loader *loader, struct er_error *err)
{
    const struct er_command_line *line = &loader->line;
    const char *operand;

    if (line->operands == loader->argc)
        return er_error_set(err, ER_E_USAGE,
                            "no program: give PROGRAM [ARG...] or JOB.yaml; --help tells more");
    operand = loader->argv[line->operands];
    loader->config->program_form = line->after_dashes || !is_spec_name(operand);
    if (loader->config->program_form)
        return 0;
    if (line->module || line->no_python)
        return er_error_set(err, ER_E_USAGE,
                            "--%s has no meaning with the job spec '%s'; `command` says what runs",
                            line->module ? "module" : "no-python", operand);
    loader->config->spec_path = strdup(operand);
    return loader->config->spec_path ? 0 : er_error_set(err, -ENOMEM, "out of memory");
}

static int load_spec(struct er_loader *loader, struct er_error *err)
{
    const char *path = loader->config->spec_path;
    struct er_config_source source = {
        .layer = ER_LAYER_SPEC,
        .label = path && !strcmp(path, "-") ? "<stdin>" : path,
    };
    struct er_spec *spec = NULL;
    const struct er_yaml_node *root;
    int rc = path ? er_spec_read(&spec, path, err) : 0;

    if (rc || !path)
        return rc;
    root = er_spec_root(spec);
    if (root->kind == ER_NODE_MAP)
        er_loader_map(loader, root, "", &source);
    else
        er_findings_add(&loader->findings, ER_E_CONFIG, "%s:%u:%u: expected a map of keys, got %s",
                        source.label, root->line, root->col, er_yaml_node_what(root));
    er_spec_free(spec);
    return 0;
}

static int load_values(struct er_loader *loader, struct er_error *err)
{
    int rc = choose_form(loader, err);
    bool sound, check;

    if (rc)
        return rc;
    er_loader_defaults(loader);
    er_loader_scheduler(loader);
    rc = load_spec(loader, err);
    if (rc)
        return rc;
    er_loader_environment(loader);
    er_loader_options(loader);
    er_loader_role(loader);
    er_loader_slurm_end(loader);
    er_loader_command(loader);
    sound = !loader->findings.n;
    er_loader_available(loader);
    check = loader->config->mode == ER_MODE_CHECK && loader->config->command.n;
    if (sound || check) /* derived values need sound ones; a wrong one has its default here */
        er_loader_resolve(loader);
    if (check && loader->findings.n) /* everything at once; of a sound one it is asked for later */
        er_config_check_into(loader->config, loader->environ_, &loader->findings);
    return er_findings_result(&loader->findings, err);
}

struct er_config *er_config_new(void)
{
    ER_CLEANUP(er_config_free_cleanup) struct er_config *config = calloc(1, sizeof(*config));
    struct er_origins *origins;

    if (!config)
        return NULL;
    origins = calloc(1, sizeof(*origins));
    config->origins = origins;
    if (!origins)
        return NULL;
    origins->settings = calloc(er_keys_n, sizeof(*origins->settings));
    if (!origins->settings) {
        free(ER_TAKE(config->origins));
        return NULL;
    }
    return ER_TAKE(config);
}

static int load(struct er_loader *loader, struct er_error *err)
{
    struct er_config *config = loader->config;
    int rc = er_options_parse(&loader->line, loader->argc, loader->argv, err);

    if (rc)
        return rc;
    config->mode = loader->line.mode;
    config->start_kind = loader->line.start_kind;
    config->update_spec = loader->line.update_spec;
    if (loader->line.help_topic) {
        config->help_topic = strdup(loader->line.help_topic);
        if (!config->help_topic)
            return er_error_set(err, -ENOMEM, "out of memory");
    }
    if (config->mode >= ER_MODE_HELP) /* about the program, not about a job */
        return 0;
    return load_values(loader, err);
}

int er_config_load(struct er_config **ret, int argc, char **argv, char **environ_,
                   struct er_error *err)
{
    ER_CLEANUP(er_config_free_cleanup) struct er_config *config = er_config_new();
    ER_CLEANUP(er_cleanup_free)
    struct er_option_use *uses = calloc((size_t)argc + 1, sizeof(*uses));
    struct er_loader loader = {
        .config = config,
        .environ_ = environ_,
        .line = {.uses = uses},
        .argv = argv,
        .argc = argc,
    };
    int rc;

    if (!config || !uses)
        return er_error_set(err, -ENOMEM, "out of memory");
    er_findings_init(&loader.findings);
    rc = load(&loader, err);
    er_findings_done(&loader.findings);
    free(loader.torchrun_backend_from);
    free(loader.master_addr);
    free(loader.master_addr_from);
    if (!rc)
        *ret = ER_TAKE(config);
    return rc;
}

int er_config_put(struct er_config *config, const struct er_key_info *key, const char *text,
                  const char *origin, struct er_error *err)
{
    const struct er_config_source source = {.layer = ER_LAYER_OPTION, .label = origin};
    struct er_loader loader = {.config = config};
    int rc;

    er_findings_init(&loader.findings);
    er_loader_set_text(&loader, key, text, &source);
    rc = er_findings_result(&loader.findings, err);
    er_findings_done(&loader.findings);
    return rc;
}

int er_config_exit_code(const struct er_error *err)
{
    switch (err->code) {
    case 0:
        return ER_CODE_OK;
    case ER_E_USAGE:
        return ER_CODE_USAGE;
    case ER_E_CONFIG:
    case ER_E_UNSUPPORTED:
        return ER_CODE_CONFIG;
    case -ENOMEM:
    case -EMFILE:
    case -ENFILE:
    case -EAGAIN:
        return ER_CODE_OSERR;
    case -EIO:
        return ER_CODE_IOERR;
    case -ENOTCONN:
        return ER_CODE_UNAVAILABLE;
    case -EPERM:
        return ER_CODE_NOPERM;
    default:
        return ER_CODE_CANTCREAT;
    }
}

bool er_config_json_log(const struct er_config *config)
{
    return config && config->log.format && !strcmp(config->log.format, "json");
}
