#pragma once
/*
 * THE table: every key of elastic-job(5) and every option of elastic-run(1). The parser, the
 * defaults, --print-config, --help, docs/job-spec.md and docs/cli.md are made from it; nothing
 * about a key or an option is written anywhere else.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* X(name, how docs name it) */
#define ER_KEY_TYPES(X)                                                                            \
    X(U32, "count")                                                                                \
    X(U64, "count")                                                                                \
    X(RANK, "count")                                                                               \
    X(RATIO, "ratio")                                                                              \
    X(BOOL, "bool")                                                                                \
    X(DURATION, "duration")                                                                        \
    X(SIZE, "size")                                                                                \
    X(STRING, "string")                                                                            \
    X(NAME, "name")                                                                                \
    X(TEMPLATE, "string with substitution")                                                        \
    X(PATH, "path with substitution")                                                              \
    X(CHOICE, "one of")                                                                            \
    X(CHOICE_TEXT, "one of")                                                                       \
    X(SIGNAL, "signal")                                                                            \
    X(SIGNALS, "list of signals")                                                                  \
    X(RANGE, "range")                                                                              \
    X(NPROC, "count, gpu, cpu or auto")                                                            \
    X(PORTS, "ports")                                                                              \
    X(CONSOLE, "ranks")                                                                            \
    X(STREAMS, "stream map")                                                                       \
    X(COMMAND, "command")                                                                          \
    X(STRINGS, "list of strings")                                                                  \
    X(CODES, "list of exit codes")                                                                 \
    X(CHOICES, "list of")                                                                          \
    X(ENDPOINTS, "list of endpoints")                                                              \
    X(ENV, "map of strings")                                                                       \
    X(ROLES, "map of roles")

enum er_key_type {
#define ER_KEY_TYPE_ENUM(name, text) ER_KEY_##name,
    ER_KEY_TYPES(ER_KEY_TYPE_ENUM)
#undef ER_KEY_TYPE_ENUM
        ER_KEY_TYPE_COUNT
};

/* X(name, topic of --help, title) */
#define ER_KEY_GROUPS(X)                                                                           \
    X(JOB, "job", "The job and its workers")                                                       \
    X(NODE, "node", "This node")                                                                   \
    X(RENDEZVOUS, "rendezvous", "Rendezvous")                                                      \
    X(RESTART, "restart", "Restarts")                                                              \
    X(RESIZE, "resize", "Planned changes")                                                         \
    X(STOP, "stop", "Stopping and signals")                                                        \
    X(PREEMPT, "preempt", "Preemption")                                                            \
    X(HANG, "hang", "Hangs and stragglers")                                                        \
    X(HEALTH, "health", "Health checks")                                                           \
    X(CHECKPOINT, "checkpoint", "Checkpoints")                                                     \
    X(LOG, "log", "Logs")                                                                          \
    X(OBSERVE, "observe", "Status, metrics, notices")                                              \
    X(LIMITS, "limits", "Limits of a worker")                                                      \
    X(RUN, "run", "What to do")

enum er_key_group {
#define ER_KEY_GROUP_ENUM(name, topic, title) ER_GROUP_##name,
    ER_KEY_GROUPS(ER_KEY_GROUP_ENUM)
#undef ER_KEY_GROUP_ENUM
        ER_GROUP_COUNT
};

enum er_key_flags {
    ER_KEY_AGREE = 1u << 0, /* must be the same on all nodes: part of the job's canonical text */
    ER_KEY_LIVE = 1u << 1,  /* may change while the job runs */
    ER_KEY_LATER = 1u << 2, /* only the default is accepted in this release */
    ER_KEY_NONE = 1u << 3,  /* `none` is a value */
    ER_KEY_AUTO = 1u << 4,  /* `auto` is a value */
    ER_KEY_QUOTED =
        1u << 5 /* --print-config quotes it: other YAML tools would read something else */
};

/* What follows when a key with ER_KEY_LIVE has changed; 0: whoever needs the value looks it up. */
enum er_key_applies {
    ER_APPLIES_CORE = 1u << 0,    /* the rendezvous is told, which decides by it where it leads */
    ER_APPLIES_JUDGES = 1u << 1,  /* deadlines of ranks that stand still are reckoned anew */
    ER_APPLIES_WORKERS = 1u << 2, /* workers that start from then on have the new value */
    ER_APPLIES_CONSOLE = 1u << 3  /* output that passes through the agent follows */
};

/* A key without a place in struct er_config (not available yet) has this for `offset`. */
#define ER_KEY_NOWHERE SIZE_MAX

struct er_key_info {
    const char *path; /* dotted: "restart.backoff.initial" */
    enum er_key_type type;
    const char *def;         /* default, as a job spec would have it; NULL: required or derived */
    const char *def_program; /* default in PROGRAM form; NULL: as `def` */
    size_t offset;           /* in struct er_config, or ER_KEY_NOWHERE */
    unsigned flags, applies; /* enum er_key_flags, er_key_applies */
    enum er_key_group group;
    uint64_t min, max;          /* of numbers (durations: microseconds); max 0: the type's own */
    uint64_t none_as, auto_as;  /* how `none` and `auto` are stored in a number */
    const char *const *choices; /* NULL-terminated, in the order of the enum */
    const char *help;
};

/* The rows in the order of the documentation. */
extern const struct er_key_info er_keys[];
extern const size_t er_keys_n;

/* NULL: no such key. */
const struct er_key_info *er_key_find(const char *path);
/* As er_key_find() for a key that is known to exist: asserts. */
const struct er_key_info *er_key_get(const char *path);
size_t er_key_index(const struct er_key_info *key);
/* Is `path` the common beginning of keys ("restart", "rendezvous.tls")? */
bool er_key_is_group(const char *path);
/* The first key of a group, NULL when `path` is none. */
const struct er_key_info *er_key_first_in(const char *path);
#define ER_KEY_PATH_MAX 128
/* The key, or the group, that `path` was probably meant to be, in ret_path; false: none is near. */
bool er_key_nearest(const char *path, char ret_path[ER_KEY_PATH_MAX]);
const char *er_key_type_name(enum er_key_type type);
const char *er_key_group_topic(enum er_key_group group);
const char *er_key_group_title(enum er_key_group group);

enum er_option_kind {
    ER_OPTION_VALUE,   /* sets `key` from the text */
    ER_OPTION_LIST,    /* sets `key`, a list, from text separated by commas */
    ER_OPTION_FLAG,    /* takes no value; sets `key` to `value` */
    ER_OPTION_BACKEND, /* torchrun's names of rendezvous backends */
    ER_OPTION_CONF,    /* torchrun's --rdzv-conf */
    ER_OPTION_FILTER,  /* torchrun's --local-ranks-filter */
    ER_OPTION_PREFIX,  /* torchrun's --log-line-prefix-template */
    ER_OPTION_MASTER_ADDR,
    ER_OPTION_MASTER_PORT,
    ER_OPTION_MODULE, /* -m */
    ER_OPTION_NO_PYTHON,
    ER_OPTION_IGNORED, /* accepted, no effect, one warning */
    ER_OPTION_REFUSED,
    ER_OPTION_SET,   /* --set KEY=VALUE */
    ER_OPTION_MODE,  /* `value` is an enum er_run_mode */
    ER_OPTION_START, /* `value` is an enum er_start_kind */
    ER_OPTION_UPDATE_SPEC
};

enum er_option_flags {
    ER_OPTION_SECONDS = 1u << 0,  /* a bare number is seconds, as torchrun has it */
    ER_OPTION_NO_VALUE = 1u << 1, /* takes none */
    ER_OPTION_MAY_HAVE = 1u << 2  /* the next argument is its value unless it begins with '-' */
};

struct er_option {
    const char *name; /* with dashes; underscores are the same */
    char letter;      /* '\0': none */
    enum er_option_kind kind;
    unsigned flags;
    const char *key;     /* path, or NULL */
    const char *value;   /* what a flag sets */
    int number;          /* mode or start kind */
    const char *env;     /* PET_ name, or NULL */
    const char *env_too; /* a second name that torchrun reads, or NULL */
    const char *metavar; /* in --help; NULL for flags */
    enum er_key_group group;
    const char *help;
};

extern const struct er_option er_options[];
extern const size_t er_options_n;

/* `name` without the leading dashes, n bytes, dashes and underscores alike; NULL: no such option.
 */
const struct er_option *er_option_find(const char *name, size_t n);
const struct er_option *er_option_find_letter(char letter);
/* Nearest name without dashes in front, or NULL. */
const char *er_option_nearest(const char *name, size_t n);

/* Forms of values, for help and docs: {name, form}. */
#define ER_VALUE_FORMS                                                                             \
    {"duration", "250us 500ms 30s 10m 1h 7d, joined: 1h30m; 0s is zero, none is \"no limit\"; a "  \
                 "bare number is "                                                                 \
                 "an error (options of torchrun take it as seconds)"},                             \
        {"size",                                                                                   \
         "64KiB 8MiB 2GiB 1TiB (1024), 64kB 8MB 2GB 1TB (1000), 512B; a bare number is an "        \
         "error"},                                                                                 \
        {"count, ratio", "3; 0.95"}, {"bool", "true, false only"},                                 \
        {"range", "\"4:6\" quoted (other YAML tools read 246 without), {min: 4, max: 6}, or 4"},   \
        {"signal", "TERM or SIGTERM"},                                                             \
        {"endpoint",                                                                               \
         "host:port, 10.0.0.1:2379, \"[fd00::1]:2379\", https://..., unix:/run/etcd.sock, "        \
         "srv:example.org"},                                                                       \
        {"ports", "29500, \"20000-20999\", auto"},                                                 \
        {"ranks", "all, none, \"0,8-15\", or local ranks \"local:0\""},                            \
        {"stream map",                                                                             \
         "\"0\" none, \"1\" stdout, \"2\" stderr, \"3\" both, or per local rank "                  \
         "\"0:3,1:1\", or per rank of the job \"global:8:3\" (ranks that are left out: none)"},    \
        {"list", "a YAML list; a single value is a list of one"},                                  \
    {                                                                                              \
        "command", "a list is argv, never a shell; a string is split at blanks, with quotes and "  \
                   "backslashes as in a shell and no expansion"                                    \
    }

#define ER_SUBSTITUTION_TEXT                                                                       \
    "${rank} and the other names below are replaced in command, env, workdir, log.prefix, "        \
    "log.dir "                                                                                     \
    "and\ncheckpoint.dir (the last two: only names that are known before a worker is). $$ is $; "  \
    "an "                                                                                          \
    "unknown name\nis an error at load. With PROGRAM instead of a job spec only ${local_rank} is " \
    "replaced."
