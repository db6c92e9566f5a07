#include "agent/config_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "agent/subst.h"
#include "agent/unit_node.h"
#include "base/cleanup.h"
#include "base/hash.h"
#include "base/parse.h"
#include "rendezvous/driver.h"

enum { HOST_TEXT_MAX = 256, ARGUMENTS_MAX = 65536 };

void er_loader_no_memory(struct er_loader *loader)
{
    finding(loader, -ENOMEM, "out of memory");
}

const char *er_loader_where(struct er_loader *loader, const char *path)
{
    return er_config_setting(loader->config, path)->where;
}

bool er_loader_was_given(struct er_loader *loader, const char *path)
{
    return er_config_setting(loader->config, path)->layer != ER_LAYER_DEFAULT;
}

/* A value that is wrong only beside others: usage when an option set it. */
int er_loader_code_of(struct er_loader *loader, const char *path)
{
    return er_config_setting(loader->config, path)->layer >= ER_LAYER_ENVIRONMENT ? ER_E_USAGE
                                                                                  : ER_E_CONFIG;
}

/* ---- command ---- */

static const char *python(struct er_loader *loader)
{
    const char *own = er_environ_get(loader->environ_, "PYTHON_EXEC");

    return own && *own ? own : "python3";
}

static bool is_script(const char *name)
{
    size_t n = strlen(name);

    return n > 3 && !strcmp(name + n - 3, ".py");
}

static int add(struct er_strlist *list, const char *text)
{
    return er_strlist_add(list, text, strlen(text));
}

/* What comes in front of the program itself. */
static int add_interpreter(struct er_loader *loader, struct er_strlist *list, const char *program,
                           bool module)
{
    int rc;

    if (!module && (!is_script(program) || loader->no_python))
        return 0;
    rc = add(list, python(loader));
    if (!rc)
        rc = add(list, "-u");
    return rc || !module ? rc : add(list, "-m");
}

static void program_command(struct er_loader *loader)
{
    const struct er_key_info *key = er_key_get("command");
    const struct er_config_source source = {ER_LAYER_OPTION, "PROGRAM", 0, 0, false};
    char **operands = loader->argv + loader->line.operands;
    union er_value value;
    int rc;

    if (loader->module && loader->no_python) {
        finding(loader, ER_E_USAGE, "--module and --no-python exclude each other");
        return;
    }
    if (!*operands[0]) {
        finding(loader, ER_E_USAGE, "PROGRAM is empty");
        return;
    }
    memset(&value, 0, sizeof(value));
    rc = add_interpreter(loader, &value.list, operands[0], loader->module);
    for (; !rc && *operands; operands++)
        rc = add(&value.list, *operands);
    if (rc) {
        er_value_free(key, &value);
        er_loader_no_memory(loader);
        return;
    }
    er_loader_store(loader, key, &value, &source);
}

/* Options end at JOB.yaml: what stands behind it is the program's, also when it looks like ours. */
static void warn_of_late_option(struct er_loader *loader, const char *argument)
{
    const char *name = argument + 2;

    if (!strncmp(argument, "--", 2) && er_option_find(name, strcspn(name, "=")))
        er_loader_warn(loader,
                       "'%.60s' stands behind %.200s and goes to the program; options of "
                       "elastic-run come before the file",
                       argument, loader->config->spec_path);
}

/* The spec's command with python3 in front where that is meant, and the command line's arguments
 * behind. */
static void spec_command(struct er_loader *loader)
{
    struct er_strlist *command = &loader->config->command, full = {0};
    char **operands = loader->argv + loader->line.operands + 1;
    bool dashes = false; /* behind `--` it is meant */
    int rc;

    if (!command->n) {
        if (!loader->findings.n)
            finding(loader, ER_E_CONFIG, "%s: command: missing; it says what each worker runs",
                    loader->config->spec_path);
        return;
    }
    loader->no_python = false;
    rc = add_interpreter(loader, &full, command->items[0], false);
    for (size_t i = 0; !rc && i < command->n; i++)
        rc = add(&full, command->items[i]);
    for (int i = 1; !rc && *operands; operands++, i++) {
        struct er_error err = ER_ERROR_INIT;

        if (er_subst_check(*operands, false, loader->environ_, &err))
            finding(loader, ER_E_USAGE, "argument %d: %s", i, err.text);
        dashes |= !strcmp(*operands, "--");
        if (!dashes)
            warn_of_late_option(loader, *operands);
        rc = add(&full, *operands);
    }
    if (rc) {
        er_strlist_free(&full);
        er_loader_no_memory(loader);
        return;
    }
    er_strlist_free(command);
    *command = full;
    er_loader_refresh(loader, "command");
}

void er_loader_command(struct er_loader *loader)
{
    if (loader->config->program_form)
        program_command(loader);
    else
        spec_command(loader);
}

/* ---- derived values ---- */

/* Does the argument of python before this one take it? */
static bool is_value_of_option(const char *before)
{
    return !strcmp(before, "-W") || !strcmp(before, "-X") || !strcmp(before, "-o") ||
           !strcmp(before, "+o");
}

static bool is_interpreter(const char *name)
{
    static const char *const names[] = {"sh", "bash", "dash"};

    for (size_t i = 0; i < ER_ARRAY_N(names); i++) {
        if (!strcmp(name, names[i]))
            return true;
    }
    return !strncmp(name, "python", 6) && !strchr(name, '-') && !is_script(name);
}

const char *er_command_script(const struct er_strlist *command)
{
    const char *first = strrchr(command->items[0], '/');

    if (!is_interpreter(first ? first + 1 : command->items[0]))
        return NULL;
    for (size_t i = 1; i < command->n; i++) {
        const char *item = command->items[i];

        if (*item && *item != '-' && *item != '+' && !is_value_of_option(command->items[i - 1]))
            return item;
        /* Also within a bundle: sh -ec TEXT; `-` and -s read the standard input. */
        if (!item[1] || (item[1] != '-' && strpbrk(item, "cms")))
            return NULL;
    }
    return NULL;
}

/* "train" of `python3 -u src/train.py`: the first argument of an interpreter that is no option;
 * with `-c` the interpreter itself. */
static const char *program_of(const struct er_strlist *command)
{
    const char *first = strrchr(command->items[0], '/');

    first = first ? first + 1 : command->items[0];
    for (size_t i = 1; !strncmp(first, "python", 6) && i < command->n; i++) {
        if (!strncmp(command->items[i], "-c", 2))
            break;
        if (command->items[i][0] != '-' && command->items[i][0] &&
            !is_value_of_option(command->items[i - 1])) {
            const char *slash = strrchr(command->items[i], '/');

            return slash && slash[1] ? slash + 1 : command->items[i];
        }
    }
    return first;
}

/* <program>-<8 hex digits>, with what a name may hold. */
/* Scripts for torchrun often have no --rdzv-id: in a store of the job's own nobody else could be
 * met, so all nodes make one name out of what they have in common. */
static bool name_from_store(const struct er_config *config)
{
    return config->program_form && config->rendezvous.backend == ER_BACKEND_MANAGED;
}

static uint32_t endpoints_hash(const struct er_config *config)
{
    const char *text = er_config_setting(config, "rendezvous.endpoints")->text;

    return (uint32_t)er_hash(text, strlen(text)).lo;
}

static void default_name(struct er_loader *loader)
{
    struct er_config *config = loader->config;
    const struct er_key_info *key = er_key_get("name");
    const struct er_config_source source = {.label = "default"};
    const char *program = program_of(&config->command);
    size_t n = strlen(program);
    uint32_t id = 0;
    union er_value value;
    char name[64];

    if (is_script(program))
        n -= 3;
    n = n > 54 ? 54 : n;
    memcpy(name, program, n);
    for (size_t i = 0; i < n; i++) {
        bool letter = (name[i] >= 'a' && name[i] <= 'z') || (name[i] >= 'A' && name[i] <= 'Z') ||
                      (name[i] >= '0' && name[i] <= '9');

        if (!letter && (!i || !strchr("._-", name[i])))
            name[i] = i ? '-' : 'x';
    }
    if (name_from_store(config))
        id = endpoints_hash(config);
    else if (getrandom(&id, sizeof(id), 0) != (ssize_t)sizeof(id))
        id = (uint32_t)getpid();
    snprintf(name + n, sizeof(name) - n, "%s%08x", n ? "-" : "job-", id);
    config->name_made_up = true;
    memset(&value, 0, sizeof(value));
    value.text = strdup(name);
    if (value.text)
        er_loader_store(loader, key, &value, &source);
    else
        er_loader_no_memory(loader);
}

/* Replaces a string field; `text` is taken over (NULL: out of memory). */
void er_loader_replace(struct er_loader *loader, const char *path, char **field, char *text)
{
    if (!text) {
        er_loader_no_memory(loader);
        return;
    }
    free(*field);
    *field = text;
    er_loader_refresh(loader, path);
}

static void resolve_node_id(struct er_loader *loader)
{
    char host[HOST_TEXT_MAX] = "";

    if (strcmp(loader->config->node.id, "auto") != 0)
        return;
    if (er_unit_node_id(loader->environ_, host, sizeof(host)) == 0) {
        loader->config->node.id_is_unit = true;
        er_loader_replace(loader, "node.id", &loader->config->node.id, strdup(host));
        return;
    }
    if (gethostname(host, sizeof(host) - 1) || !*host)
        memcpy(host, "localhost", sizeof("localhost"));
    loader->config->node.id_is_host = true;
    er_loader_replace(loader, "node.id", &loader->config->node.id, strdup(host));
}

/* ---- checks ---- */

/* Keys whose feature is not there yet hold their default. */
static void check_keys_available(struct er_loader *loader)
{
    const struct er_config *config = loader->config;

    for (size_t i = 0; i < er_keys_n; i++) {
        const struct er_key_info *key = &er_keys[i];
        struct er_setting *setting = er_config_setting(config, key->path);

        if (key->flags & ER_KEY_LATER && setting->layer != ER_LAYER_DEFAULT &&
            strcmp(setting->text, key->def) != 0)
            finding(loader, ER_E_UNSUPPORTED,
                    "%s: not available in this release (only its default, %s, is)", setting->where,
                    key->def);
    }
}

void er_loader_available(struct er_loader *loader)
{
    er_loader_store_kind(loader);
    check_keys_available(loader);
}

static void check_signals(struct er_loader *loader)
{
    struct er_config *config = loader->config;
    uint64_t handled = config->stop.signals_to_handle;

    if (config->preempt.signals & ~handled) {
        if (er_loader_was_given(loader, "preempt.signals"))
            finding(loader, er_loader_code_of(loader, "preempt.signals"),
                    "%s: names a signal that stop.signals_to_handle does not",
                    er_loader_where(loader, "preempt.signals"));
        config->preempt.signals &= handled;
        er_loader_refresh(loader, "preempt.signals");
    }
    if (config->stop.forward & handled)
        finding(loader, er_loader_code_of(loader, "stop.forward"),
                "%s: names a signal that stop.signals_to_handle names too",
                er_loader_where(loader, "stop.forward"));
    if (config->resize.notice_signal == SIGKILL || config->resize.notice_signal == SIGSTOP)
        finding(loader, er_loader_code_of(loader, "resize.notice_signal"),
                "%s: no program can take notice of KILL or STOP; give one that yours handles, such "
                "as USR1",
                er_loader_where(loader, "resize.notice_signal"));
}

void er_loader_check_live(struct er_loader *loader)
{
    const struct er_config *config = loader->config;

    if (config->restart.backoff_initial_us > config->restart.backoff_max_us)
        finding(loader, er_loader_code_of(loader, "restart.backoff.initial"),
                "%s: must not be longer than restart.backoff.max",
                er_loader_where(loader, "restart.backoff.initial"));
    if (config->checkpoint.dir && !config->checkpoint.every_steps &&
        config->checkpoint.every_us == ER_FOREVER)
        finding(loader, er_loader_code_of(loader, "checkpoint.every"),
                "%s: with checkpoint.dir set, one of every and every_steps must be given",
                er_loader_where(loader, "checkpoint.every"));
}

static void check_times(struct er_loader *loader)
{
    const struct er_config *config = loader->config;
    uint64_t lease = config->rendezvous.lease_ttl_us;

    if (lease % ER_US_PER_S)
        finding(loader, er_loader_code_of(loader, "rendezvous.lease_ttl"),
                "%s: must be whole seconds", er_loader_where(loader, "rendezvous.lease_ttl"));
    if (!strcmp(config->rendezvous.store_loss_policy, "stop") &&
        er_config_lease_ttl(config) < er_driver_stop_lease_us(config->stop.grace_us))
        finding(loader, er_loader_code_of(loader, "rendezvous.store_loss.policy"),
                "%s: stop needs rendezvous.lease_ttl to be at least 1.5 x (stop.grace + 3s): "
                "raise it, or lower stop.grace",
                er_loader_where(loader, "rendezvous.store_loss.policy"));
}

static void check_rest(struct er_loader *loader)
{
    const struct er_config *config = loader->config;

    if (config->version > 1)
        finding(loader, ER_E_CONFIG, "%s: version %u is newer than this program knows (1)",
                er_loader_where(loader, "version"), config->version);
    if (config->command.n > ARGUMENTS_MAX)
        finding(loader, ER_E_CONFIG, "command: more than %d arguments", ARGUMENTS_MAX);
}

static void warn_rank(struct er_loader *loader, const char *path, unsigned long rank)
{
    const struct er_config *config = loader->config;

    if (rank >= config->nproc)
        er_loader_warn(loader, "%s: there is no local rank %lu here, only 0 to %u",
                       er_loader_where(loader, path), rank, config->nproc - 1);
}

/* Ranks that no worker will have; ranks of the job are known beforehand on one node only. */
static void check_local_ranks(struct er_loader *loader)
{
    const struct er_config *config = loader->config;
    bool one = config->nnodes_max == 1, local = !strncmp(config->log.console, "local:", 6);
    const char *at = one || local ? strpbrk(config->log.console, "0123456789") : NULL;
    const struct {
        const char *path;
        const struct er_stream_map *map;
    } maps[] = {{"log.redirects", &config->log.redirects}, {"log.tee", &config->log.tee}};

    while (at) {
        char *end;

        warn_rank(loader, "log.console", strtoul(at, &end, 10));
        at = strpbrk(end, "0123456789");
    }
    for (size_t i = 0; i < ER_ARRAY_N(maps); i++) {
        for (uint32_t j = 0; j < maps[i].map->n && (one || !maps[i].map->global); j++)
            warn_rank(loader, maps[i].path, maps[i].map->items[j].rank);
    }
}

void er_loader_resolve(struct er_loader *loader)
{
    const char *name = er_config_setting(loader->config, "name")->text;

    if (!name || !strcmp(loader->config->name, "none")) { /* torchrun's default id is no name */
        if (er_config_keeps_record(loader->config) && !name_from_store(loader->config))
            er_loader_name_in_store(loader);
        default_name(loader);
    }
    resolve_node_id(loader);
    er_loader_host(loader);
    check_signals(loader);
    check_times(loader);
    er_loader_check_live(loader);
    check_rest(loader);
    check_local_ranks(loader);
    er_loader_folders(loader);
}
