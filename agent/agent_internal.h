#pragma once
/* The agent's parts, shared by the files that together make its one step function. */
#include <stdbool.h>
#include <stdint.h>

#include "agent/agent.h"
#include "agent/barrier.h"
#include "agent/cgroup.h"
#include "agent/console.h"
#include "agent/ctlserver.h"
#include "agent/errands.h"
#include "agent/events.h"
#include "agent/goodbye.h"
#include "agent/goodput.h"
#include "agent/group.h"
#include "agent/kv_budget.h"
#include "agent/managed_etcd.h"
#include "agent/metrics.h"
#include "agent/node_address.h"
#include "agent/recovery.h"
#include "agent/sdnotify.h"
#include "agent/sentence.h"
#include "agent/statedir.h"
#include "agent/statusline.h"
#include "agent/store_open.h"
#include "base/hash.h"
#include "rendezvous/driver.h"

#define ER_SIGNAL_MAX 65
#define ER_SKIPS_TEXT (ER_SKIPS_MAX * 21 + 1)

/* A wait that is told of now and then; `about`: what for, so that a change is told at once. */
struct er_wait_line {
    uint64_t told_us, about;
};

/* What this node waits for (agent_wait.c). Times are 0: not. */
struct er_wait {
    uint64_t look_us; /* next look */
    struct er_wait_line store, nodes;
    bool was_connected;
    uint64_t refused_us, denied_us; /* by the store, since */
    bool denied_told;
    uint64_t lost_us, back_us; /* the store: told to be away since; back since */
    uint64_t lost_generation;  /* what ran when it was told */
    enum er_stand stand;
    uint64_t forming_us;       /* waiting for nodes or for a place since */
    uint64_t spare_generation; /* that was told of */
};

/* As a unit of systemd (agent_unit.c). Times are 0 or ER_FOREVER: not. */
struct er_unit {
    struct er_sdnotify to;
    bool ready;                  /* told */
    char told[ER_SENTENCE_MAX];  /* STATUS= */
    uint64_t told_us, look_us;   /* then the sentence is made again */
    uint64_t ping_us, extend_us; /* next sign of life; next wish for more time */
    uint64_t stop_until_us;      /* no such wish after it */
};
/* Places whose worker has died (agent_refill.c). */
struct er_refill {
    int told;          /* the driver: with how many workers this node could go on */
    unsigned failures; /* in a row, of workers that were to join */
    uint64_t again_us; /* the next try; 0: at any time; ER_FOREVER: none */
    /* The others have left, and wait for the successors of those that died. */
    bool waits, failed; /* failed: one has ended; there is no use */
    uint64_t until_us;  /* 0: nobody has waited in this generation */
    uint64_t up_us;     /* since when one that is to join is up; 0: none is */
};
struct er_agent_hang;

#define ER_AGENT_FAULTS_MAX 10

struct er_own_address {
    struct er_node_route route;
    int fd; /* tells of changes; -1: nothing does */
    struct er_loop_source *source;
    uint64_t check_us;             /* when to look; ER_FOREVER: not before something changes */
    uint64_t gone_us;              /* since when it is gone; ER_FOREVER: it is there */
    struct er_node_place at, home; /* now; where the node began */
    bool moved;                    /* once, at least */
};

struct er_agent {
    struct er_config *config; /* borrowed; node.id is settled at the start */
    struct er_guard *guard;
    char hostname[ER_HOST_TEXT_MAX];
    char address[ER_ADDRESS_MAX]; /* what peers connect to */
    struct er_own_address own;
    int argc; /* what the configuration was made from; borrowed */
    char **argv, **environ_;
    uint64_t started_us;
    char started_ts[32];

    struct er_unit unit;
    struct er_loop *loop;
    struct er_statedir state;
    bool state_shared; /* the guard holds its lock, too */
    struct er_events events;
    struct er_console console;
    struct er_logpump *logpump; /* owned */
    struct er_cgroup cgroup;
    char socket[ER_STATE_PATH_MAX]; /* ELASTIC_SOCKET */
    char *log_dir;                  /* <log.dir>/<name>, owned; NULL: none */
    int null_fd;
    int ckpt_fd;               /* holds checkpoint.dir for this job; -1: not held */
    uint64_t first_generation; /* newest one that has begun in checkpoint.dir; 0: none */

    struct er_managed_etcd *managed; /* NULL: the store is not ours */
    const char *managed_endpoints;
    struct er_opened_store store;
    struct er_goodbye *goodbye; /* what the guard tells etcd if we die; NULL: nothing */
    struct er_driver *driver;
    struct er_loop_source *driver_source;
    struct er_wait wait;
    bool was_registered; /* with the job, once */
    bool run_followed;   /* --fresh was seen to */
    bool port_told;      /* that master_port is in use */
    int port_fd, port;   /* MASTER_PORT held ready; -1: none */

    struct er_errands errands;
    struct er_group_context group_ctx;
    struct er_group *group; /* of the newest generation; NULL before the first */
    bool stop_wanted;       /* the driver asked for this generation's end */
    bool peers_lost; /* the generation ends because ranks lost each other, and nobody knows why */
    bool left_said, left_fit, result_said; /* left_fit: the node may join again */
    bool warming, warm_said;      /* the group is of a generation that is not sealed; it is up */
    bool told_warm;               /* the driver, that workers can be started that early */
    bool ever_started;            /* a worker, here */
    unsigned checkpoint_failures; /* in a row */
    uint64_t faults_us[ER_AGENT_FAULTS_MAX]; /* a ring: when generations began because ranks had
                                                lost each other; agent_faults.c */
    unsigned faults_n;                       /* all of them */
    struct er_refill refill;
    struct er_recovery recovery;
    struct er_goodput goodput;
    struct er_statusline_pace statusline;
    struct er_metrics *metrics;    /* owned; NULL: nobody reads them */
    _Atomic uint64_t log_lines[2]; /* of workers, by stream */
    struct er_buf metrics_text;
    uint64_t textfile_us;        /* when metrics.textfile is due, ER_FOREVER: never */
    bool textfile_told;          /* that it cannot be written */
    struct er_http_server *http; /* NULL: none */
    bool closed_told[2];         /* that the console's stdout, stderr was closed */
    uint64_t drops_us;           /* next look at dropped log lines, ER_FOREVER when none were */

    struct er_ctlserver *workers_server, *status_server;
    struct er_agent_hang *hang; /* owned; agent_hang.h */
    struct er_barriers *barriers;
    struct er_kv_budget kv_budget;
    char skips_text[ER_SKIPS_TEXT]; /* of the world that was sent last */
    struct er_list requests;        /* struct request of requests.c whose answer the driver owes */
    struct er_list sets;            /* the same: struct wish of agent_override.c */
    bool overrides_known;           /* what is set above the spec has been looked at */

    int stop_signal; /* last signal that makes the agent stop; 0: none */
    unsigned stop_signals;
    uint64_t stop_signal_us;
    bool preempted; /* file or command gave notice */
    bool draining;  /* the workers of this generation were asked to save and leave */
    struct {        /* a planned change that the workers are not told of yet */
        bool waits, stays;
        bool others_leave; /* it is made for nodes that go */
        uint64_t until_us; /* then they are, all the same */
        uint64_t saved;    /* newest checkpoint when it came */
        uint64_t target;
    } change;
    uint64_t drained_us; /* the end of this node's time, ER_FOREVER: nobody takes it away */
    uint64_t
        deadline_us;    /* no worker lives longer, as who asked for the stop has said; ER_FOREVER */
    uint64_t ladder_us; /* then the stop ladder begins all the same; ER_FOREVER: it has, or no drain
                         */
    uint64_t waiting_us;             /* when to say whom the stop of a generation waits for */
    uint64_t seen_us[ER_SIGNAL_MAX]; /* when each signal came last */

    /* Kept for the summary: the failing worker's words outlive its generation. */
    char *tail, *cause_log; /* owned */
    bool tail_is_traceback;
    char failed_ts[32];

    bool done;
    struct er_verdict verdict;
    char config_digest[ER_DIGEST_HEX_MAX];
    int own_exit_code; /* of a failure of ours, 0: none */
    struct er_error own_error;
    uint64_t duration_us;
};

/* agent_node.c */
/* node.id, settled, and the state folder's lock; hostname is known. -EBUSY: taken. */
int er_agent_claim_node(struct er_agent *agent, struct er_error *err);
/* Whenever the driver has said something: --fresh, once. */
void er_agent_follow_run(struct er_agent *agent);

/* agent_address.c: the address changes while the job runs. */
void er_agent_address_open(struct er_agent *agent);
void er_agent_address_close(struct er_agent *agent);
void er_agent_address_step(struct er_agent *agent, uint64_t now_us);
void er_agent_address_started(struct er_agent *agent, const struct er_assignment *a);

/* agent_driver.c */
/* node.address, before signals are held: it may ask the DNS. */
int er_agent_open_address(struct er_agent *agent, struct er_error *err);
int er_agent_open_driver(struct er_agent *agent, struct er_error *err);
void er_agent_step_driver(struct er_agent *agent, uint64_t now_us);
/* Of the configuration what the rendezvous takes also while the job runs. */
void er_agent_tuning(const struct er_config *config, struct er_driver_tuning *ret);

/* agent_managed.c: the job's own etcd. */
int er_agent_open_managed(struct er_agent *agent, struct er_error *err);
void er_agent_managed_access(struct er_agent *agent, struct er_store_access *ret);
void er_agent_managed_step(struct er_agent *agent, uint64_t now_us);
uint64_t er_agent_managed_deadline(const struct er_agent *agent);
/* After the end: this host's members are ended when no node needs them any more; else they run on.
 * Waits for nodes that are about to leave. */
void er_agent_end_managed(struct er_agent *agent);
void er_agent_on_verdict(void *user, const struct er_verdict *verdict);

/* agent_wait.c: the store, other nodes, a place. */
void er_agent_wait_step(struct er_agent *agent, uint64_t now_us);
uint64_t er_agent_wait_deadline(const struct er_agent *agent);

/* agent_unit.c: systemd. */
void er_agent_unit_open(struct er_agent *agent);
void er_agent_unit_close(struct er_agent *agent);
void er_agent_unit_step(struct er_agent *agent, uint64_t now_us);
uint64_t er_agent_unit_deadline(const struct er_agent *agent);
/* A reload begins, and has ended. */
void er_agent_unit_reloading(struct er_agent *agent, bool begins);
/* The loop has ended: what follows takes a while, and gives no signs of life. */
void er_agent_unit_ending(struct er_agent *agent);

/* agent_reload.c: elastic-ctl reload. The changed keys as a JSON array. -ENOTSUP: there is no file;
 * -EINVAL: something that cannot change here; the codes of er_config_load(). */
int er_agent_reload(struct er_agent *agent, struct er_buf *ret_keys, struct er_error *err);

/* agent_override.c: what is set while the job runs, above its spec. */
void er_agent_on_overrides(void *user, const struct er_overrides *now);
/* Values of the configuration have changed: those that go by them are told. `applies`: all their
 * keys' (enum er_key_applies). The one place. */
void er_agent_apply(struct er_agent *agent, unsigned applies);
/* elastic-ctl set: answered when it is written. */
void er_agent_on_set(struct er_agent *agent, struct er_ctlconn *conn,
                     const struct er_ctl_msg *request);
void er_agent_drop_sets(struct er_agent *agent);

/* agent_worker.c: what the driver wants of the workers and what they do. */
void er_agent_on_start(void *user, const struct er_assignment *a);
void er_agent_on_prepare(void *user, const struct er_assignment *a);
void er_agent_on_stop(void *user, uint64_t generation, const char *reason);
/* Workers started ahead of the seal: all that could be done before it is done. */
void er_agent_warm_step(struct er_agent *agent);
void er_agent_say_left(struct er_agent *agent);
void er_agent_take_port(struct er_agent *agent);
void er_agent_report_drops(struct er_agent *agent, uint64_t now_us);
/* checkpoint.dir is this job's from now on, where it can be told: again when --fresh has made a new
 * one. -EBUSY: it is another job's. */
int er_agent_hold_checkpoints(struct er_agent *agent, struct er_error *err);
/* A worker that was killed because it hung does not end: it has failed all the same. */
void er_agent_worker_hung(struct er_agent *agent, struct er_worker *w);
/* A failure of ours: stop everything, exit with `code`. */
void er_agent_fail(struct er_agent *agent, int code, const struct er_error *err);

/* agent.c: the job goes on, perhaps: looks at what the workers have done. */
void er_agent_step_recovery(struct er_agent *agent, uint64_t now_us);

/* agent_say.c: what the person in front of the terminal should know. One line each. */
void er_agent_say(struct er_agent *agent, const char *fmt, ...) ER_PRINTF(2, 3);

/* What is good to know at the start: where logs are, what torchrun would do otherwise. */
void er_agent_say_start(struct er_agent *agent, char **environ_);

/* agent_note.c: events. */
void er_agent_on_note(void *user, const struct er_note *note);
void er_agent_event_worker(struct er_agent *agent, struct er_worker *worker);
void er_agent_event_recovered(struct er_agent *agent);
void er_agent_event_end(struct er_agent *agent, int exit_code);
const char *er_agent_outcome(const struct er_agent *agent);

/* agent_goodput.c: from `at_us` on this node's time belongs to `state`. */
void er_agent_goodput_enter(struct er_agent *agent, enum er_time state, uint64_t at_us);
/* Before the ledger is read: the workers' first steps are entered. */
void er_agent_goodput_settle(struct er_agent *agent, uint64_t now_us);

/* agent_statusline.c: the line at the bottom of a terminal. */
void er_agent_statusline_open(struct er_agent *agent);
void er_agent_statusline_step(struct er_agent *agent, uint64_t now_us);

/* agent_metrics.c */
#define ER_METRICS_TEXT_MAX (4u << 20)
int er_agent_metrics_open(struct er_agent *agent, struct er_error *err);
void er_agent_metrics_close(struct er_agent *agent);
void er_agent_metrics_step(struct er_agent *agent, uint64_t now_us);
/* A worker has ended: what it reported still counts. */
void er_agent_metrics_worker(struct er_agent *agent, const struct er_worker *worker);
/* All of them, appended to `buf`. -ENOBUFS, -ENOMEM. */
int er_agent_metrics_text(struct er_agent *agent, bool open_metrics, struct er_buf *buf);

/* agent_http.c: http.listen. */
int er_agent_http_open(struct er_agent *agent, struct er_error *err);
void er_agent_http_close(struct er_agent *agent);
void er_agent_http_step(struct er_agent *agent, uint64_t now_us);
uint64_t er_agent_http_deadline(const struct er_agent *agent);

/* agent_report.c: the summary at the end. */
void er_agent_report(struct er_agent *agent);
/* Last stderr lines as a JSON list of strings; a cause as an object. */
void er_agent_tail_json(struct er_buf *buf, const char *tail);
void er_agent_cause_json(struct er_buf *buf, const struct er_cause *cause);

/* agent_change.c: planned changes. */
void er_agent_on_notice(void *user, enum er_driver_notice kind, uint64_t target);
/* Asks the workers to leave at a step boundary: `stays`, to come back in the next generation where
 * they can. False: they cannot be asked; the ladder is next. */
bool er_agent_ask_workers(struct er_agent *agent, const char *why, bool stays, uint64_t grace_us,
                          bool save_first);
/* The workers are to save and to end: by the notice DRAIN, or by resize.notice_signal. `when`:
 * words for those that speak libelastic. False: they cannot be told. */
bool er_agent_drain_workers(struct er_agent *agent, const char *why, const char *when,
                            uint64_t grace_us);
void er_agent_change_step(struct er_agent *agent, uint64_t now_us);
uint64_t er_agent_change_deadline(const struct er_agent *agent);
void er_agent_dismiss_spare(struct er_agent *agent, const struct er_look *look);

/* agent_refill.c: a node with fewer workers than places. */
void er_agent_refill_step(struct er_agent *agent, uint64_t now_us);
uint64_t er_agent_refill_deadline(const struct er_agent *agent);
/* A generation begins; `anew`: with processes that have no past here. */
void er_agent_refill_begin(struct er_agent *agent, const struct er_assignment *a, bool anew);
void er_agent_on_unjoined(void *user, struct er_worker *worker);
/* The workers have left, the first time; is the driver to be told of it later? Then
 * er_agent_say_left() comes again. */
void er_agent_refill_left(struct er_agent *agent, uint64_t now_us);
bool er_agent_refill_waits(struct er_agent *agent, uint64_t now_us);
/* With how many workers this node goes on, now that it has left. */
int er_agent_next_slots(const struct er_agent *agent);

/* What elastic-ctl stop asks for. */
struct er_agent_stop {
    bool preempt;     /* the job can be run again: exit code 75 */
    uint64_t time_us; /* to save and end; 0: workers end at once (preempt: as preempt.deadline) */
};

/* agent_ask.c: requests to the job as a whole. */
/* 1: there is no job but this agent's. ER_E_PROTOCOL. */
int er_agent_ask_stop(struct er_agent *agent, const struct er_agent_stop *stop,
                      struct er_error *err);
/* `node` "": this one. -ENOTSUP: the job is of one node; -EAGAIN: not registered yet; -EINVAL. */
int er_agent_ask_drain(struct er_agent *agent, const char *node, struct er_error *err);
/* That this node makes room for another, for so long, where the job can do without it. */
void er_agent_ask_aside(struct er_agent *agent, const char *reason, uint64_t cooldown_us);
/* As the leader's agent: what was asked of all nodes is asked of each. */
void er_agent_ask_each(struct er_agent *agent, const struct er_note *note);
int er_agent_ask_scale(struct er_agent *agent, uint64_t min, uint64_t max, struct er_error *err);

/* agent_faults.c */
/* Why a generation ends: ranks lost each other, and nobody is known to be lost. */
bool er_agent_peers_lost(const char *reason);
/* A generation begins for that reason. */
void er_agent_note_faults(struct er_agent *agent, const char *reason, uint64_t now_us);
/* `first` has left its generation, and nobody has ended that: this node leaves it, too. */
void er_agent_lead_out(struct er_agent *agent, const struct er_worker *first, uint64_t now_us);
/* Nothing connects this node's ranks with the others' any more, and no time will mend it: it leaves
 * the generation. Not when that was so too often: then they are taken for hung, and charged. */
void er_agent_cut_off(struct er_agent *agent, uint64_t now_us);

/* agent_stop.c */
/* The generation is over for this node's workers: those that can, leave it for the next one. */
void er_agent_stop_workers(struct er_agent *agent, uint64_t now_us);
/* The first step of a stop that somebody asked for: drain when that is wanted and the workers can,
 * and the word to the terminal; the ladder follows when the driver says so. */
void er_agent_begin_stop(struct er_agent *agent, const char *why, bool drain, uint64_t now_us);
/* The same for one node of a job of several: until when its workers may go on. */
uint64_t er_agent_drain_node(struct er_agent *agent, const char *why, uint64_t now_us);
/* This node goes away: as the first signal of preempt.signals. Only the first notice counts. */
void er_agent_preempted(struct er_agent *agent, const char *why);
/* elastic-ctl stop. */
/* ER_E_PROTOCOL: some agents cannot be asked that. */
int er_agent_cancel(struct er_agent *agent, const struct er_agent_stop *stop, struct er_error *err);
/* A second or later signal: less grace from now on. */
void er_agent_hurry(struct er_agent *agent, uint64_t now_us);
void er_agent_stop_step(struct er_agent *agent, uint64_t now_us);
uint64_t er_agent_stop_deadline(const struct er_agent *agent);

/* agent_signal.c */
int er_agent_watch_signals(struct er_agent *agent, struct er_error *err);
/* What is left of stop.grace after a second or third signal. */
uint64_t er_agent_grace(const struct er_agent *agent);

/* requests.c: what workers ask for. */
void er_agent_on_request(void *user, struct er_ctlconn *conn, const struct er_ctl_msg *request);
/* The answer to a worker that has left its generation: the world of the one it is now in. */
void er_agent_send_world(struct er_agent *agent, struct er_worker *worker);
void er_agent_drop_requests(struct er_agent *agent);
/* A local worker waits for a key, or at a barrier. */
bool er_agent_waits_in_store(const struct er_agent *agent, int local_rank);

/* status.c */
void er_agent_on_status(void *user, struct er_ctlconn *conn, const struct er_ctl_msg *request);
/* To everybody who is connected to agent.sock: the last state, with the exit code. */
void er_agent_status_end(struct er_agent *agent, int exit_code);
