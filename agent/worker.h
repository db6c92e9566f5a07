#pragma once
/* One worker process of this node: what it is started with, what is known of it, how it ended. */
#include "agent/cgroup.h"
#include "agent/config.h"
#include "agent/ctlserver.h"
#include "agent/exit.h"
#include "agent/logfwd.h"
#include "agent/policy.h"
#include "agent/worker_fsm.h"
#include "base/page.h"
#include "rendezvous/driver.h"

/* What all workers of an agent share; borrowed for the agent's life. */
struct er_group_context {
    const struct er_config *config;
    struct er_loop *loop;
    struct er_cgroup *cgroup;
    struct er_console *console;
    struct er_logpump *logpump;
    _Atomic uint64_t *log_lines; /* [2], stdout and stderr; NULL: nobody asks */
    struct er_helpers *helpers;  /* whose processes are not ours to reap or to kill */
    const char *state_dir;       /* for error files when no logs are kept */
    const char *log_dir;         /* <log.dir>/<name>; NULL: none */
    const char *socket, *hostname;
    const char *const *inherited_env;
    int null_fd; /* /dev/null, read and write */
};

struct er_group;
struct er_worker_launch; /* worker_launch.c */

struct er_worker {
    struct er_group *group;
    struct er_worker_fsm fsm;
    int place; /* on this node, for the life of its process: CPUs, cgroup */
    int local_rank, rank;
    uint64_t generation;
    /* Started beside a generation, to be in the next one: it has no place in this one, and what it
     * was given of ranks is what they would be with it. */
    bool joins;
    bool told;                       /* its start, in the events */
    struct er_worker_launch *launch; /* owned; until it is spawned */
    pid_t pid;
    int pidfd;
    struct er_loop_source *source; /* of the pidfd */
    struct er_page *page;          /* mapped until er_worker_done() */
    struct er_logfwd *logs[2];
    struct er_logfile *filtered[2]; /* borrowed; where chosen lines are copied, NULL: nowhere */
    char *log_dir;                  /* owned; <log_dir>/gen-<g>/rank-<r>, NULL: none */
    char *error_file;               /* owned */
    char *message;                  /* owned; its own word about its failure, NULL none */
    char *traceback;                /* owned; from the error file, NULL none */
    bool at_door;                   /* asked for something that has to wait for the seal */
    bool spoke;                     /* said HELLO: it speaks libelastic */
    bool rejoins;                   /* it has said so to READY, or left: er_worker_rejoins() */
    bool save_first;                /* when it is asked to leave: with the state on disk */
    bool has_left;                  /* its generation, or it joins: `left` is owed the next one */
    struct er_ticket left;
    uint64_t left_us;
    pid_t speaker;                    /* who said HELLO: the worker, or a child of its; 0: nobody */
    bool hung;                        /* it was killed because it did not move any more, ... */
    uint64_t hung_us, hung_killed_us; /* ... since, and when */
    char *hung_text;                  /* owned; what is known of that */
    bool killed;                      /* the ladder's last rung was needed */
    uint64_t kept_us; /* when it was taken over into this generation; 0: it started in it */
    uint64_t started_us, spoke_us, ready_us, loaded_us, exited_us;
    int exec_errno, exec_step;
    uint64_t oom_seen; /* deaths by memory in its cgroup that are not its own */
    struct er_exit exit;
    struct er_policy_result judgement;
    bool root_cause;
};

/* argv of the spec with this worker's substitutions: malloc'ed, NULL-terminated, items owned.
 * ER_E_CONFIG for an unknown name. */
int er_worker_argv(const struct er_group_context *ctx, const struct er_assignment *a,
                   int local_rank, char ***ret, struct er_error *err);
void er_worker_argv_free(char **argv);

/* log.console and log.timestamps have changed: where its lines go from here on, as far as they pass
 * through the agent. */
void er_worker_show(struct er_worker *w, const struct er_group_context *ctx);
/* Where the lines that log.duplicate_* choose are copied, for all workers of a generation:
 * <log_dir>/gen-<g>/filtered_stdout-<node_id>.log, one writer each also on a shared file system.
 * Freed with er_logfile_done(). -ENOMEM. */
int er_worker_open_filtered(struct er_logfile ret[2], const struct er_group_context *ctx,
                            const struct er_assignment *a, struct er_error *err);

/* Nobody is there: `w` as it is before er_worker_prepare(). */
void er_worker_vacate(struct er_worker *w, struct er_group *group, int place);

/*
 * Starting takes three steps, so that all workers of a generation are prepared before the first is
 * spawned, and forks follow each other closely.
 *
 * er_worker_prepare: `w` is vacant but for local_rank, joins and filtered; log files, page,
 * environment. `path` (of the executable) is borrowed until er_worker_launched(), `argv` is taken
 * over. On failure w needs er_worker_done(), as on success. er_worker_spawn: the process; does not
 * wait for its exec. er_worker_launched: closes and frees what only the child needed.
 */
int er_worker_prepare(struct er_worker *w, const struct er_group_context *ctx,
                      const struct er_assignment *a, const char *path, char **argv, int stdin_fd,
                      struct er_error *err);
int er_worker_spawn(struct er_worker *w, const struct er_group_context *ctx, int cgroup_fd,
                    int report_fd, struct er_error *err);
void er_worker_launched(struct er_worker *w);
void er_worker_launch_free(struct er_worker_launch *launch); /* NULL is fine */

/* A living process becomes local worker of `a`, also one that joins: rank, page, links to its logs.
 */
void er_worker_adopt(struct er_worker *w, const struct er_group_context *ctx,
                     const struct er_assignment *a, uint64_t now_us);

/* Whether it answers a STOP by leaving, and lives on: from its offer on, READY or not. */
bool er_worker_rejoins(const struct er_worker *w);

/* Carry out a set of enum er_worker_action. */
void er_worker_act(struct er_worker *w, unsigned actions, int stop_signal);
/* The notice DRAIN, for a worker that speaks libelastic: save, and leave at a step boundary. */
void er_worker_drain(struct er_worker *w);
/* Its process has ended with `wait_status`, and has been waited for: kind and code, error file,
 * last output. */
void er_worker_ended(struct er_worker *w, int wait_status, bool oom, uint64_t now_us);
/* Message of its failure for the cause: its own word, else its last stderr line, else "". */
const char *er_worker_message(struct er_worker *w);
const char *er_worker_tail(struct er_worker *w);
/* Frees what it holds; its process has gone. */
void er_worker_done(struct er_worker *w);
