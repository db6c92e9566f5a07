#pragma once
/* The parts of agent/config.c: loader state, and one function per source of values. */
#include "agent/config.h"
#include "agent/findings.h"
#include "agent/options.h"
#include "agent/spec.h"
#include "agent/value.h"

/* Lowest first: a value replaces one of the same or a lower layer. */
enum er_layer {
    ER_LAYER_DEFAULT,
    ER_LAYER_SCHEDULER,
    ER_LAYER_SPEC,
    ER_LAYER_ENVIRONMENT,
    ER_LAYER_OPTION
};

/* Where a value comes from. */
struct er_config_source {
    enum er_layer layer;
    const char *label;  /* file, option or variable: "job.yaml", "--tee", "PET_TEE" */
    unsigned line, col; /* of the key, in a file */
    bool bare_seconds;
};

/* What is known about one key's value. */
struct er_setting {
    enum er_layer layer;
    char *origin; /* "default", "job.yaml:12", "--tee" */
    char *where;  /* in front of messages: "job.yaml:12:3: log.tee" */
    char *text;   /* canonical YAML */
};

struct er_origins {
    struct er_setting *settings; /* er_keys_n */
    /* Of jobs with roles: what the top level says, which is the same on all nodes. */
    char *shared_command;
};

struct er_loader {
    struct er_config *config;
    char **environ_;
    struct er_command_line line;
    char **argv;
    int argc;
    bool module, no_python;       /* with PET_MODULE and PET_NO_PYTHON */
    const char *torchrun_backend; /* `static` or `c10d`: decided when nnodes is known */
    const char
        *backend_written; /* as the option or variable had it; NULL: given as a key, or not */
    char *torchrun_backend_from;          /* owned; its option or variable */
    char *master_addr, *master_addr_from; /* owned: --master-addr */
    struct er_findings findings;
};

/* All fields zero. NULL: out of memory. */
struct er_config *er_config_new(void);

/* The value of the key `path`, which exists, as text, and where it is from. */
struct er_setting *er_config_setting(const struct er_config *config, const char *path);

/* Adds to config->warnings; a repeated one is left out. */
void er_loader_warn(struct er_loader *loader, const char *fmt, ...) ER_PRINTF(2, 3);

/* Parse, check and store; a failure becomes a finding. `node` may be borrowed from anywhere. */
void er_loader_set(struct er_loader *loader, const struct er_key_info *key,
                   const struct er_yaml_node *node, const struct er_config_source *source);
/* As er_loader_set() with text: single values as they are, lists and maps as YAML. */
void er_loader_set_text(struct er_loader *loader, const struct er_key_info *key, const char *text,
                        const struct er_config_source *source);
/* Stores a value, which it takes over, with its canonical text. */
void er_loader_store(struct er_loader *loader, const struct er_key_info *key, union er_value *value,
                     const struct er_config_source *source);
/* Makes the canonical text anew after the field in the configuration was changed in place. */
void er_loader_refresh(struct er_loader *loader, const char *path);

#define finding(loader, code, ...) er_findings_add(&(loader)->findings, code, __VA_ARGS__)
void er_loader_no_memory(struct er_loader *loader);
/* "job.yaml:12:3: log.tee", "--tee": what a finding about a key's value begins with. */
const char *er_loader_where(struct er_loader *loader, const char *path);
bool er_loader_was_given(struct er_loader *loader, const char *path);
/* A value that is wrong only beside others: wrong usage when an option set it. */
int er_loader_code_of(struct er_loader *loader, const char *path);
/* Replaces a string field; `text` is taken over (NULL: out of memory). */
void er_loader_replace(struct er_loader *loader, const char *path, char **field, char *text);

/* agent/config_source.c */
void er_loader_defaults(struct er_loader *loader);
void er_loader_scheduler(struct er_loader *loader);
/* The keys of a map; `prefix` is "" or ends in '.'. */
void er_loader_map(struct er_loader *loader, const struct er_yaml_node *map, const char *prefix,
                   const struct er_config_source *source);
/* agent/config_option.c */
void er_loader_environment(struct er_loader *loader);
void er_loader_options(struct er_loader *loader);
/* agent/config_role.c: this node's role; before the command is made. */
void er_loader_role(struct er_loader *loader);
/* agent/config_resolve.c: `auto` and derived values, then checks across keys. */
void er_loader_command(struct er_loader *loader);
/* The store, and what this release does not have; before er_loader_resolve(), which needs sound
 * values. */
void er_loader_available(struct er_loader *loader);
void er_loader_resolve(struct er_loader *loader);
/* Of the checks across keys those of keys that may change while the job runs. */
void er_loader_check_live(struct er_loader *loader);
/* agent/config_store.c: which store, and whether what it takes is given. */
void er_loader_store_kind(struct er_loader *loader);
void er_loader_name_in_store(struct er_loader *loader);
/* agent/config_host.c: what this host decides: how many workers, their GPUs. */
void er_loader_host(struct er_loader *loader);
/* agent/config_managed.c: endpoints from torchrun's options; then whether managed etcd has what it
 * takes. */
void er_loader_managed_torchrun(struct er_loader *loader);
/* When the allocation ends, for preempt.deadline. */
void er_loader_slurm_end(struct er_loader *loader);
/* Where nothing else is said: on the first hosts of a Slurm allocation. False: there is none. */
bool er_loader_managed_slurm(struct er_loader *loader);
void er_loader_managed_check(struct er_loader *loader);
/* agent/config_folder.c */
void er_loader_folders(struct er_loader *loader);

/* The file that `python3 -u train.py` or `sh -e run.sh` is to run; NULL: the command is no
 * interpreter's, or names a module or a text (-m, -c). */
const char *er_command_script(const struct er_strlist *command);

/* agent/config_check.c: what --check finds, for a configuration that has been resolved. */
void er_config_check_into(const struct er_config *config, char **environ_,
                          struct er_findings *findings);

/* agent/config_print.c: --print-config into a buffer; without comments when !origins. */
int er_config_format(const struct er_config *config, bool origins, struct er_buf *out);
