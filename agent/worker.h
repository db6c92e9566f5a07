#pragma once
/* One worker process of this node: what it is started with, what is known of it, how it ended. */
#include "agent/cgroup.h"
#include "agent/config.h"
#include "agent/exit.h"
#include "agent/logfwd.h"
#include "agent/policy.h"
#include "agent/worker_fsm.h"
#include "base/buf.h"
#include "base/page.h"
#include "rendezvous/driver.h"

/* What all workers of an agent share; borrowed for the agent's life. */
struct er_group_context {
    const struct er_config *config;
    struct er_loop *loop;
    struct er_cgroup *cgroup;
    struct er_console *console;
    const char *state_dir; /* for error files when no logs are kept */
    const char *log_dir;   /* <log.dir>/<name>; NULL: none */
    const char *socket, *hostname;
    const char *const *inherited_env;
    int null_fd; /* /dev/null, read and write */
};

struct er_worker {
    struct er_worker_fsm fsm;
    int local_rank, rank;
    uint64_t generation;
    pid_t pid;
    int pidfd;
    struct er_source *source; /* of the pidfd */
    struct er_page *page;     /* mapped until er_worker_done() */
    struct er_logfwd *logs[2];
    char *log_dir;    /* owned; <log_dir>/gen-<g>/rank-<r>, NULL: none */
    char *error_file; /* owned */
    char *message;    /* owned; its own word about its failure, NULL none */
    char *traceback;  /* owned; from the error file, NULL none */
    bool spoke;       /* said HELLO: it speaks libelastic */
    uint64_t started_us, spoke_us, ready_us, loaded_us, exited_us;
    int exec_errno, exec_step;
    struct er_exit exit;
    struct er_policy_result judgement;
    bool root_cause;
};

#define ER_WORKER_ENV_MAX (2u * 1024 * 1024)

/* The parts of one start, for er_worker_start(). */
struct er_worker_plan {
    const struct er_assignment *assignment;
    const char *path; /* of the executable */
    char *const *argv;
    int stdin_fd, cgroup_fd, report_fd;
    struct er_buf *env; /* room for the environment, used again for each worker */
};

/* argv of the spec with this worker's substitutions: malloc'ed, NULL-terminated, items owned.
 * ER_E_CONFIG for an unknown name. */
int er_worker_argv(const struct er_group_context *ctx, const struct er_assignment *a,
                   int local_rank, char ***ret, struct er_error *err);
void er_worker_argv_free(char **argv);

/* `w` is zeroed but for local_rank. On failure it holds nothing and no process runs. */
int er_worker_start(struct er_worker *w, const struct er_group_context *ctx,
                    const struct er_worker_plan *plan, struct er_error *err);
/* Carry out a set of enum er_worker_action. */
void er_worker_act(struct er_worker *w, unsigned actions, int stop_signal);
/* Its process has ended with `wait_status`, and has been waited for: kind and code, error file,
 * last output. */
void er_worker_ended(struct er_worker *w, int wait_status, bool oom, uint64_t now_us);
/* Message of its failure for the cause: its own word, else its last stderr line, else "". */
const char *er_worker_message(struct er_worker *w);
const char *er_worker_tail(struct er_worker *w);
/* Frees what it holds; its process has gone. */
void er_worker_done(struct er_worker *w);
