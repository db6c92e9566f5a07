#pragma once
/*
 * The effective configuration of one agent: every key of elastic-job(5) with its type, merged from
 * (highest first) command line, PET_* environment, job spec, scheduler, default. Filled through one
 * table (agent/keys.c): key, type, default, option, help; parser, --help,
 * --print-config and docs/job-spec.md are made from it.
 *
 * Strings are owned by the configuration. Durations are microseconds, ER_FOREVER = none; sizes are
 * bytes, UINT64_MAX = none; counts UINT32_MAX = none where `none` is allowed.
 */
#include <stdbool.h>
#include <stdint.h>

#include "agent/cpuset.h"
#include "base/clock.h"
#include "base/error.h"

#define ER_NONE_U32 UINT32_MAX

struct er_strlist {
    char **items; /* owned, NULL-terminated */
    size_t n;
};

struct er_envlist {
    char **names;  /* owned */
    char **values; /* owned; NULL: remove the name */
    size_t n;
};

enum er_stdin_mode { ER_STDIN_AUTO, ER_STDIN_NONE, ER_STDIN_INHERIT };
enum er_on_loss { ER_ON_LOSS_RESPAWN, ER_ON_LOSS_SHRINK };
enum er_poison_action { ER_POISON_STOP, ER_POISON_SKIP };
enum er_resize_at { ER_RESIZE_STEP, ER_RESIZE_CHECKPOINT, ER_RESIZE_NOW };
enum er_hang_action { ER_HANG_RESTART, ER_HANG_REPORT };
enum er_straggler_action { ER_STRAGGLER_REPORT, ER_STRAGGLER_SET_ASIDE };
enum er_below_min { ER_BELOW_MIN_WAIT, ER_BELOW_MIN_STOP };
enum er_backend { ER_BACKEND_AUTO, ER_BACKEND_EMBEDDED, ER_BACKEND_ETCD, ER_BACKEND_MANAGED };
enum er_run_mode {
    ER_MODE_RUN,
    ER_MODE_CHECK,
    ER_MODE_DRY_RUN,
    ER_MODE_PRINT_CONFIG,
    ER_MODE_HELP,
    ER_MODE_VERSION,
    ER_MODE_COMPLETION
};
enum er_start_kind { ER_START_AUTO, ER_START_FRESH, ER_START_RESUME };

/* Which streams go to a file or (tee) to file and console; torchrun's grammar "3" or "0:1,1:2", or
 * by global rank "global:8:3": bit 0 stdout, bit 1 stderr. */
struct er_stream_map {
    uint8_t all; /* value for ranks that are not listed */
    bool global; /* `rank` is of the job, not of the node */
    uint32_t n;
    struct {
        uint32_t rank;
        uint8_t value;
    } * items; /* owned */
};

/* What nodes of a role have otherwise than the top level says. */
struct er_role {
    char *name; /* owned, as the rest */
    bool has_nnodes, has_nproc, has_command, has_env;
    uint32_t nnodes_min, nnodes_max;
    uint32_t total_min, total_max; /* with the top level's where the role names none */
    char *nproc_text;
    struct er_strlist command;
    struct er_envlist env;
};

struct er_rolelist {
    struct er_role *items; /* owned; at most ER_ROLES_MAX */
    size_t n;
};

struct er_config {
    enum er_run_mode mode;
    enum er_start_kind start_kind;
    bool update_spec;  /* where the job's settings differ, these are its next ones */
    bool program_form; /* PROGRAM [ARG...]: torchrun's defaults */
    char *spec_path;   /* YAML file, "-" or NULL */
    char *help_topic;  /* of --help or --print-completion, or NULL */

    struct er_strlist warnings; /* for the log, one line each: options without effect, ... */

    uint32_t version;
    bool name_made_up;         /* nobody gave one */
    char *name;                /* never empty; checked: usable as a file name */
    struct er_strlist command; /* argv; in program form as typed (python3 -u in front of *.py) */
    struct er_envlist env;
    char *workdir; /* absolute; as command, env and log.prefix it may hold ${...}: er_subst() */
    enum er_stdin_mode stdin_mode;

    uint32_t nnodes_min, nnodes_max;
    uint32_t nproc;   /* resolved count, >= 1 */
    char *nproc_text; /* as given: N | gpu | cpu | auto */
    char **gpu_pcis;  /* owned, gpus_n: where each local rank's GPU is, as in sysfs; "" not known */
    uint32_t gpus_n;  /* GPUs that decided anything; 0: none did */
    char *role;
    struct er_rolelist roles; /* this node's has been applied to the fields beside */
    bool virtual_local_rank;
    char *master_port; /* auto | N | LOW-HIGH, checked */
    char *port_range;

    struct {
        char *id;               /* resolved identity */
        bool id_is_host;        /* nobody gave one: it is the host name */
        bool id_is_unit;        /* nor here; it is what a unit of systemd has */
        int32_t rank;           /* -1: none */
        char *address;          /* auto | interface | address | host name */
        char *topology;         /* NULL: none */
        char *numa_binding;     /* none | ... */
        struct er_cpuset *cpus; /* owned; of each local rank; NULL: not bound */
    } node;

    struct {
        enum er_backend backend;
        struct er_strlist endpoints;
        char *prefix;
        uint64_t lease_ttl_us, death_grace_us; /* lease 0: auto */
        uint64_t replacement_wait_us;          /* ER_FOREVER: auto */
        uint64_t join_timeout_us, last_call_timeout_us, exit_timeout_us;
        char *store_loss_policy;
        uint64_t store_loss_limit_us, retention_us;
        struct { /* files are absolute; NULL: none */
            char *ca, *cert, *key, *server_name;
        } tls;
        struct {
            char *user, *password_file; /* NULL: none */
        } auth;
        struct {                                 /* NULL: none */
            char *data_dir, *etcd, *secret_file; /* data_dir may be "auto" */
            uint32_t peer_port;
            bool insecure;
        } managed;
    } rendezvous;

    struct {
        uint32_t max; /* ER_NONE_U32: no limit */
        uint64_t window_us, backoff_initial_us, backoff_max_us;
        struct er_strlist fatal_exit_codes;
        uint64_t gpu_memory_timeout_us;
        enum er_on_loss on_loss;
        uint64_t respawn_wait_us; /* ER_FOREVER: the place is filled in the next generation */
        struct {
            uint32_t max;
            uint64_t window_us, cooldown_us;
        } node_strikes;
        struct {
            uint32_t failures;
            enum er_poison_action action;
        } poison_step;
    } restart;

    struct {
        enum er_resize_at at;
        enum er_below_min below_min;
        uint64_t settle_us, min_interval_us, grace_us;
        int notice_signal; /* 0: none */
    } resize;

    struct {
        int signal;
        uint64_t grace_us;
        uint64_t signals_to_handle, forward; /* bit n: signal n */
    } stop;

    struct {
        uint64_t signals;          /* bit n: signal n */
        char *file;                /* NULL: none; absolute */
        struct er_strlist command; /* empty: none */
        uint64_t interval_us, deadline_us;
        uint64_t ends_wall_us; /* when the scheduler ends this node anyway; 0: not known */
    } preempt;

    struct {
        uint64_t floor_us, startup_us, checkpoint_us, evaluation_us; /* ER_FOREVER: no limit */
        double factor;
        enum er_hang_action action;
        bool stacks;
    } hang;

    struct {
        double threshold; /* 0: nobody is looked at */
        uint64_t for_us;
        enum er_straggler_action action;
    } straggler;

    struct {
        struct er_strlist builtin; /* disk memory gpu clock */
        struct er_strlist command; /* empty: none */
        uint64_t timeout_us, cooldown_us;
    } health;

    struct {
        struct er_strlist command; /* empty: none */
        struct er_strlist on;      /* names of events */
    } notify;

    struct {
        char *listen;     /* NULL: none */
        char *token_file; /* absolute; NULL: none */
    } http;

    struct {
        char *textfile; /* absolute; NULL: none */
    } metrics;

    struct {
        char *dir;            /* absolute; NULL: none */
        uint64_t every_steps; /* 0: none */
        uint64_t every_us;
        uint32_t keep_last;
        uint64_t keep_every;   /* steps; 0: none */
        char *on_failure;      /* continue: the one there is */
        uint32_t failures_max; /* in a row; ER_NONE_U32: never fatal */
    } checkpoint;

    struct {
        char *dir;        /* absolute; NULL: none */
        bool dir_implied; /* by redirects or tee: nobody named it */
        char *console;    /* all | none | rank list */
        char *prefix;
        bool timestamps;
        struct er_stream_map redirects, tee;
        uint64_t max_size;
        uint32_t max_files;
        struct er_strlist duplicate_stdout, duplicate_stderr;
        char *format; /* text | json | auto */
    } log;

    struct {
        uint64_t memory; /* bytes; UINT64_MAX: none */
        double cpus;     /* 0: none */
        uint32_t pids;   /* ER_NONE_U32: none */
    } limits;            /* of each worker */

    void *origins; /* agent/config.c's own: where each value came from */
};

void er_config_free(struct er_config *config);

/*
 * Command line, environment and (when named) the job spec into one checked configuration.
 * `environ_` as environ(7). On failure err->code tells the exit code through er_config_exit_code():
 * 64 command line, 78 spec, 73/74 files; the text may hold several findings, one a line.
 */
int er_config_load(struct er_config **ret, int argc, char **argv, char **environ_,
                   struct er_error *err);
int er_config_exit_code(const struct er_error *err);
/* Does the job's record outlive its agents (etcd, managed)? */
bool er_config_keeps_record(const struct er_config *config);
/* rendezvous.lease_ttl; auto grows with the job, so that keeping leases alive stays cheap. */
uint64_t er_config_lease_ttl(const struct er_config *config);
/* From a notice that comes at `wall_us` to the end of this node: preempt.deadline, or what the
 * scheduler leaves. */
uint64_t er_config_preempt_deadline(const struct er_config *config, uint64_t wall_us);
/* Another value for one key, as a job spec would have it, while everything else stays. ER_E_USAGE.
 */
struct er_key_info;
int er_config_put(struct er_config *config, const struct er_key_info *key, const char *text,
                  const char *origin, struct er_error *err);
/* The identity that is settled when the agent starts. -ENOMEM. */
int er_config_set_node_id(struct er_config *config, const char *id, struct er_error *err);
/* Are the agent's own lines JSON? */
bool er_config_json_log(const struct er_config *config);

/*
 * --check: are the folders writable, the working directory and the program there, the store
 * reachable? Starts and creates nothing. 0: prints what a start would find here, and "ok"; else all
 * findings, one a line, in `err`.
 */
int er_config_check(const struct er_config *config, char **environ_, struct er_error *err);

/* What a start is refused for at once, since no restart would help: the working directory and a
 * script that an interpreter is to run. -ENOENT, -EACCES (exit codes 127, 126), ER_E_CONFIG. */
int er_config_check_start(const struct er_config *config, struct er_error *err);

/* The effective YAML with the origin of each value as a comment; secrets print as "***". Writes to
 * stdout. */
int er_config_print(const struct er_config *config, struct er_error *err);
/* --help [TOPIC], --version, --print-completion SHELL: to stdout. */
int er_config_help(const struct er_config *config, struct er_error *err);

/* Value substitution of docs/job-spec.md: `${rank}` ...; in program form only ${local_rank}.
 * `lookup` gives a name's value or NULL (error: unknown name). Result malloc'ed. */
typedef const char *(*er_subst_fn)(void *user, const char *name);
int er_subst(const char *text, bool program_form, er_subst_fn lookup, void *user, char **ret,
             struct er_error *err);

/* A number that stands for a role's name. */
uint32_t er_role_id(const char *name);
/* The bounds of `roles`; returns how many. */
struct er_role_bounds;
uint32_t er_config_role_bounds(const struct er_config *config, struct er_role_bounds *ret);

/* Canonical text of the keys that must agree on all nodes (<= 4 KiB); malloc'ed. */
int er_config_spec_text(const struct er_config *config, char **ret, struct er_error *err);
