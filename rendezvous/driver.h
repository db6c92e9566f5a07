#pragma once
/*
 * The driver runs the rendezvous core on a store for one node and tells its owner what to do. It is
 * what the agent sees of the rendezvous.
 *
 *                  start(g)                       result(g) / left(g)
 *   core  ------->  driver  ------->  owner  ----------------------->  driver
 *                  stop(g), verdict
 *
 * One thread. The owner polls er_driver_fd() (when not -1), calls er_driver_dispatch() when it is
 * readable, when er_driver_pending(), and at er_driver_deadline(). Callbacks are made from
 * er_driver_dispatch() only, so the owner may call back into the driver from them. A single-node
 * job runs the same core, on store_mem.
 */
#include "rendezvous/store.h"

#define ER_RUN_TEXT_MAX  33 /* 128 bits as hex */
#define ER_NAME_TEXT_MAX 64
#define ER_HOST_TEXT_MAX 256

struct er_driver; /* opaque */

/* Kinds of a worker's end; names as in the events. X(ENUM, "text") */
#define ER_EXIT_KINDS(X)                                                                           \
    X(OK, "ok")                                                                                    \
    X(EXITED, "exited")                                                                            \
    X(SIGNALED, "signaled")                                                                        \
    X(OOM, "oom")                                                                                  \
    X(EXEC_FAILED, "exec_failed")                                                                  \
    X(HUNG, "hung")                                                                                \
    X(LOST, "lost")                                                                                \
    X(STOPPED, "stopped")
enum er_exit_kind {
#define ER_EXIT_ENUM(name, text) ER_EXIT_##name,
    ER_EXIT_KINDS(ER_EXIT_ENUM)
#undef ER_EXIT_ENUM
        ER_EXIT_KIND_COUNT
};
const char *er_exit_kind_name(enum er_exit_kind kind);

/* A failure, as it stands in the store and in the summary. */
struct er_cause {
    char node_id[ER_NAME_TEXT_MAX], host[ER_HOST_TEXT_MAX];
    uint64_t generation;
    int rank, local_rank, pid;
    enum er_exit_kind kind;
    int code, signal;  /* signal 0: exited with code */
    bool fatal;        /* restarting cannot help (restart.fatal_exit_codes, exec failures) */
    bool uncounted;    /* costs no restart (a failed bind before first progress) */
    uint64_t step;     /* last finished step, 0 unknown */
    uint64_t in_step;  /* step that it was in, 0: none, or not known */
    char message[512]; /* error file's message or last stderr line */
};

#define ER_SKIPS_MAX 6

/* Steps whose samples are left out for the rest of the run: they fail again and again. */
struct er_skips {
    uint32_t n;
    uint64_t steps[ER_SKIPS_MAX]; /* ascending */
};

struct er_assignment {
    uint64_t generation, nonce;
    char run[ER_RUN_TEXT_MAX];
    int node_rank, nnodes, first_rank, local_size, world_size;
    int role_first, role_size; /* first rank among the workers of the node's role; their number */
    char master_addr[ER_HOST_TEXT_MAX];
    int master_port;
    uint32_t restarts; /* counted so far, whole job */
    struct er_skips skips;
    bool warm;          /* prepare(): workers may be started; else they wait for the seal */
    const char *reason; /* formed worker_failed worker_hung node_lost node_joined drained preempted
                           scaled */
};

#define ER_REASON_MAX 512 /* bytes of a verdict's reason, with the NUL */

enum er_verdict_kind { ER_VERDICT_SUCCEEDED, ER_VERDICT_FAILED, ER_VERDICT_STOPPED };
struct er_verdict {
    enum er_verdict_kind kind;
    int exit_code; /* by docs/exit-codes.md: the root cause's own, 128 + n for a signal, ... */
    struct er_cause cause; /* FAILED */
    uint32_t restarts;
    /* Why no restart was made: "budget spent (3 of 3 in 1h)", "exit code 93 is fatal", ... */
    char reason[ER_REASON_MAX];
};

/* Things worth an event line; the owner writes them. */
enum er_note_kind {
    ER_NOTE_FORMING,
    ER_NOTE_SEALED,
    ER_NOTE_NODE_JOINED,
    ER_NOTE_NODE_LEFT,
    ER_NOTE_NODE_LOST,
    ER_NOTE_RESTART_COUNTED,
    ER_NOTE_RESTART_DENIED,
    ER_NOTE_NODE_ASIDE, /* node, reason; window_us: for how long */
    ER_NOTE_REQUEST,    /* reason: what was asked for; node, exit_code; duration_us: time for it */
    ER_NOTE_STEP_SKIPPED, /* used: how often it has failed; step */
    ER_NOTE_RESIZE,       /* reason; world_size, next_size; duration_us: for at most so long */
    ER_NOTE_KIND_COUNT
};
struct er_note {
    enum er_note_kind kind;
    uint64_t generation;
    const char *reason, *node, *address;
    uint32_t have, min, max, world_size, next_size, nnodes, slots, used,
        budget;          /* budget UINT32_MAX: no limit */
    int port, exit_code; /* SEALED; REQUEST */
    uint64_t window_us, duration_us, step;
    const struct er_cause *cause;
};

enum er_driver_notice {
    ER_DRIVER_NOTICE_REJOIN, /* this node is in the next generation */
    ER_DRIVER_NOTICE_LEAVE   /* it is not, as far as can be told now */
};

struct er_query;     /* codec.h */
struct er_overrides; /* codec.h */

struct er_driver_callbacks {
    /* Start the local workers of a sealed generation. */
    void (*start)(void *user, const struct er_assignment *a);
    /* Stop the local workers of `generation`; call er_driver_left() when none is left. Also called
     * when they have all ended already. */
    void (*stop)(void *user, uint64_t generation, const char *reason);
    /* The job is over (or this node's part in it). Last callback. */
    void (*verdict)(void *user, const struct er_verdict *v);
    void (*note)(void *user, const struct er_note *note);
    /* Planned changes; both or neither. `prepare`: start the local workers of a generation that is
     * claimed but not sealed: no communicator, no fenced write, MASTER_PORT not known yet (0). Call
     * er_driver_prepared() when they are up. start() with the same generation follows when it is
     * sealed, or stop() when it is not to be. */
    void (*prepare)(void *user, const struct er_assignment *a);
    /* The running workers shall agree on a step, leave their generation there and wait for
     * `target`; then er_driver_left(). Those that don't within resize_grace_us are stopped. */
    void (*notice)(void *user, enum er_driver_notice kind, uint64_t target);
    /* Somebody asks what this node knows: er_driver_answer(). May be NULL. */
    void (*query)(void *user, const struct er_query *query);
    /* What is set above the spec has changed, or is known for the first time: before the node has
     * joined. NULL: nothing is. May be NULL itself. */
    void (*overrides)(void *user, const struct er_overrides *now);
};

/* What to do about a run that is over, or that nobody runs any more. */
enum er_new_run {
    ER_NEW_RUN_NO,    /* a finished job stays finished; one without nodes goes on */
    ER_NEW_RUN_AUTO,  /* begin another (programs started in torchrun's form) */
    ER_NEW_RUN_FRESH, /* begin another; the newest committed checkpoint is forgotten */
    ER_NEW_RUN_RESUME /* begin another that knows the newest committed checkpoint */
};

#define ER_ROLES_MAX 16

/* How many nodes of a role a generation has; `id` as er_driver_opts.role. */
struct er_role_bounds {
    uint32_t id, min, max;
};

/* The shortest lease in which workers are told to stop early enough to be gone before it ends: when
 * a third of it has passed, and the keep-alive that was due then has no answer for a second, the
 * grace is left, a second for the kill, and one in hand. */
uint64_t er_driver_stop_lease_us(uint64_t stop_grace_us);

struct er_driver_opts {
    char job[ER_NAME_TEXT_MAX], node_id[ER_NAME_TEXT_MAX], host[ER_HOST_TEXT_MAX], prefix[128];
    char address[ER_HOST_TEXT_MAX]; /* what peers connect to */
    int slots;                      /* workers this node runs */
    int preferred_rank;             /* -1: none */
    uint32_t min_nodes, max_nodes;
    uint32_t role; /* of this node: any number that stands for its name; nodes of a role share it */
    struct er_role_bounds
        roles[ER_ROLES_MAX]; /* the same on all nodes; min and max of each add up */
    uint32_t roles_n;        /* 0: roles have no bounds of their own */
    uint32_t restart_max;    /* UINT32_MAX: no limit */
    uint64_t restart_window_us, backoff_initial_us, backoff_max_us, join_timeout_us, last_call_us,
        exit_timeout_us, lease_ttl_us, death_grace_us, replacement_wait_us, stop_grace_us;
    bool replacement_auto;     /* replacement_wait_us holds only till er_driver_warm() */
    uint64_t first_generation; /* numbers start above it (newest generation found in the checkpoint
                                  directory) */
    const char *spec; /* canonical text of the fields that must agree; borrowed for the call */
    uint64_t incarnation, boot_id_hash, seed; /* seed: of nonces and run id */
    uint64_t now_us;
    /* A node whose workers fail that often (each within the window of the one before), or that
     * misses the ready deadline, is kept out of plans for the cool-down, while others are enough.
     * strike_max 0: failures don't; cool-down 0: nothing does. */
    uint32_t strike_max;
    uint64_t strike_window_us, strike_cooldown_us;
    /* A step in which workers fail that often (none of them finished a later one in between) ends
     * the job with 93, or is left out, where that has not been tried. 0: steps don't matter. */
    uint32_t poison_max;
    bool poison_skip;
    enum er_new_run new_run;
    /* The store is out of reach: workers ride it out for at most the limit (0: as long as it
     * takes), then the node leaves with 69; or they are stopped before the lease can end. The
     * latter needs a lease of er_driver_stop_lease_us(). Jobs of one node need no other store. */
    bool store_loss_stop;
    uint64_t store_loss_limit_us;
    uint64_t resize_grace_us; /* 0: changes are never planned ahead */
    /* A newcomer's workers have so long to come up ahead of a planned change, and half of
     * resize_grace_us where a node waits to leave; then it is set aside. */
    uint64_t prepare_us;
    /* Nodes that leave on purpose, so that fewer than the minimum are left, end the job (75) once
     * all members have left; else the others wait for join_timeout_us. */
    bool below_min_stop;
    /* Where the job has another spec, this node's becomes the next one: it waits as a spare till
     * the job forms with enough nodes that have it. Otherwise it leaves with 76. */
    bool update_spec;
    /* Joins are gathered for the first; the second is between a seal and the next grow. 0: the
     * defaults, 5 s and 60 s. */
    uint64_t resize_settle_us, resize_min_interval_us;
    /* How long the record of the job stays in the store when it has ended, in whole seconds;
     * ER_FOREVER: until the next run. What is of use to a running job only is removed. 0: nothing
     * is done about it. The verdict of who wrote the end waits for this, at most 2 s. */
    uint64_t retention_us;
};

/* Of er_driver_opts what may change while the job runs: by the same names, with the same meaning.
 */
struct er_driver_tuning {
    uint32_t restart_max, strike_max;
    uint64_t restart_window_us, backoff_initial_us, backoff_max_us, strike_window_us,
        strike_cooldown_us, resize_settle_us, resize_min_interval_us, prepare_us;
};

void er_driver_opts_tune(struct er_driver_opts *opts, const struct er_driver_tuning *tuning);

/* `store` is borrowed: it outlives the driver and is not dispatched by anybody else; free the
 * driver first, then the store, without a dispatch in between. Nothing is sent before the first
 * er_driver_dispatch() (er_driver_pending() is true). Errors: ER_E_CONFIG (names, bounds, sizes),
 * -ENOMEM. */
int er_driver_new(struct er_driver **ret, struct er_store *store, const struct er_driver_opts *opts,
                  const struct er_driver_callbacks *callbacks, void *user, struct er_error *err);
void er_driver_free(struct er_driver *driver);

/* For the caller's loop: readable, pending or due at the deadline (ER_FOREVER: never), it wants
 * er_driver_dispatch(), which alone calls back. */
int er_driver_fd(const struct er_driver *driver);
bool er_driver_pending(const struct er_driver *driver);
uint64_t er_driver_deadline(const struct er_driver *driver);
void er_driver_dispatch(struct er_driver *driver, uint64_t now_us);

/* A port this node holds ready for MASTER_PORT; the next record that says "left" or "joined"
 * carries it. */
void er_driver_port(struct er_driver *driver, int port);
/* What peers connect to, from now on: the node's record says so at once. */
void er_driver_address(struct er_driver *driver, const char *address);
/* All local workers of `generation` succeeded (cause NULL), or the first one failed. Once per
 * generation; later calls are ignored. */
void er_driver_result(struct er_driver *driver, uint64_t generation, const struct er_cause *cause);
/* No local worker of `generation` is left. Without a stop() before, and without a result, they have
 * lost each other: the generation ends for all, and costs nothing unless somebody turns out to have
 * been lost or to have failed. */
void er_driver_left(struct er_driver *driver, uint64_t generation);
/* A worker made progress in `generation`: backoff is reset. */
void er_driver_progress(struct er_driver *driver, uint64_t generation);
/* Leave on purpose (signal, drain): stop(g) comes if workers run; after left the node deregisters
 * and verdict STOPPED comes with `exit_code`. */
void er_driver_leave(struct er_driver *driver, int exit_code, const char *reason);

/* The local workers can be prepared and follow notices; see the callbacks. Changes are planned
 * ahead only where that holds on every node. */
void er_driver_planned(struct er_driver *driver, bool on);
/* The workers can be started ahead of the seal: their keys, barriers and commits wait for it. Told
 * by the agent that leads, changes are made that way (er_assignment.warm), and after a lost node
 * nobody waits for a replacement where that is left to us. */
void er_driver_warm(struct er_driver *driver, bool on);
/* With how many workers this node goes on: a number told before er_driver_left() is that of its
 * next generation; one told while they run, and larger than theirs, leads to a planned change for
 * it. Kept within 1 and opts.slots, which it is without a word. Generations in which a member knows
 * nothing of such numbers have opts.slots: what start() says holds. */
void er_driver_slots(struct er_driver *driver, int slots);
/* The workers of a claimed generation are up. */
void er_driver_prepared(struct er_driver *driver, uint64_t generation);
/* From now on these hold. All nodes' should be the same: the leader's count. */
void er_driver_tune(struct er_driver *driver, const struct er_driver_tuning *tuning);
/* As er_driver_leave(), but the workers may go on until a planned change leaves this node out, or
 * `deadline_us`. */
void er_driver_drain(struct er_driver *driver, int exit_code, const char *reason,
                     uint64_t deadline_us);

/* Workers' key-value store and checkpoint commits, fenced to `generation`. Keys are relative to
 * kv/<generation>/. */
typedef void (*er_driver_kv_fn)(void *user, int rc, const void *value,
                                size_t n); /* rc 1: not there; ER_E_STALE: superseded */
void er_driver_kv_put(struct er_driver *driver, uint64_t generation, const char *key,
                      const void *value, size_t n, er_driver_kv_fn done, void *user);
/* Waits until the key is there; `deadline_us` absolute, 0: answer at once. Ends with ER_E_STALE
 * when the generation is superseded. Returns a wait id for er_driver_kv_cancel() (0: already
 * answered by the next dispatch). */
uint64_t er_driver_kv_get(struct er_driver *driver, uint64_t generation, const char *key,
                          uint64_t deadline_us, er_driver_kv_fn done, void *user);
void er_driver_kv_cancel(struct er_driver *driver, uint64_t id);
/* done gets the new value as decimal text. */
void er_driver_kv_add(struct er_driver *driver, uint64_t generation, const char *key, int64_t delta,
                      er_driver_kv_fn done, void *user);
/* Ask the job's leader for something (stop, drain a node, other bounds, ...; codec.h): under an id
 * of the caller's (a name), which makes it happen once. done: 0 when it is written; what becomes of
 * it is seen in the job. -EINVAL: no name. */
struct er_ask;
void er_driver_request(struct er_driver *driver, const char *id, const struct er_ask *ctl,
                       er_driver_kv_fn done, void *user);
/* `ckpt/latest`: steps only grow within a generation, where a smaller or equal step is -EEXIST; a
 * later generation may have gone back. A stale generation is ER_E_STALE. */
void er_driver_commit(struct er_driver *driver, uint64_t generation, uint64_t step,
                      const char *digest, const char *path, er_driver_kv_fn done, void *user);
/* Written as long as the asker waits for it; it is not told whether that went well. */
void er_driver_answer(struct er_driver *driver, const struct er_query *query, const void *value,
                      size_t n);
/*
 * Changes what is set above the spec (`overrides`), by compare-and-swap: `merge` is given the
 * record as it is (seq 0: there is none) and makes the next one out of it, again when another
 * change came between; `seq` is seen to here, `id` must be the caller's own. It returns 0, 1
 * (nothing is to be written) or a failure, which becomes the answer. done: 0 when it is written (or
 * nothing had to be); ER_E_STALE: the job is over; -ENOENT: the store has no such job yet;
 * ER_E_PROTOCOL: a member, or who wrote the record, is of another release; -ETIMEDOUT: not before
 * `deadline_us`; what was sent may be applied all the same.
 */
typedef int (*er_driver_merge_fn)(void *user, const struct er_overrides *now,
                                  struct er_overrides *ret_next);
void er_driver_override(struct er_driver *driver, uint64_t deadline_us, er_driver_merge_fn merge,
                        er_driver_kv_fn done, void *user);
/* What is set above the spec; NULL: nothing. Until the next dispatch. */
const struct er_overrides *er_driver_overrides(const struct er_driver *driver);
/* The spec this node joined with, or is to: the job's, or its next one. */
const char *er_driver_spec(const struct er_driver *driver);
/* Newest committed checkpoint as far as this store knows; false: none. */
bool er_driver_latest(const struct er_driver *driver, uint64_t *ret_step);

/* Where this node stands. */
enum er_stand {
    ER_STAND_OUTSIDE, /* has never been registered */
    ER_STAND_FORMING, /* registered; the next generation is not sealed */
    ER_STAND_MEMBER,  /* of the running generation, or on its way into or out of it */
    ER_STAND_SPARE,   /* registered, and no member of the running generation */
    ER_STAND_OVER     /* the job, or this node's part in it */
};
const char *er_stand_name(enum er_stand stand); /* outside forming member spare over */
struct er_look {
    enum er_stand stand;
    bool registered; /* once, at least */
    bool leads;
    bool denied;        /* the last write was refused for want of permission */
    const char *leader; /* its node id; "" none. Until the next dispatch */
    const char *aside;  /* why this node is set aside; "" it is not. Until the next dispatch */
    uint64_t generation;
    uint32_t min, max, nnodes, world_size;
    /* The leader while the job forms: nodes that count, members that are absent, nodes that have
     * not left yet. */
    uint32_t have, missing, unready;
    uint64_t give_up_us;   /* when waiting for nodes (or for the store) ends; 0: not known here */
    uint64_t last_call_us; /* MIN is met: when the wait for MAX ends; 0: no such wait */
    uint64_t lease;        /* 0: none */
    bool spec_is_next;     /* its spec is not yet the job's */
    bool run_is_new;       /* its record began after this agent looked first */
    bool members_leave;    /* the planned change that is under way is made for nodes that go */
    uint32_t protocol;     /* the lowest one of the members; 0: not known */
    uint64_t deadline_us;  /* this node's workers are to have saved and ended by then, as somebody
                              asked; 0: nobody did */
};
void er_driver_look(const struct er_driver *driver, struct er_look *ret);

/* A node as the leader sees it; texts are valid until the next dispatch. */
struct er_node_look {
    const char *id, *host, *address;
    const char *state; /* member spare waiting leaving set_aside gone */
    int slots, node_rank;
};
/* How many nodes there are, the first `max` of them in `list`; 0: this node doesn't lead. */
size_t er_driver_look_nodes(const struct er_driver *driver, struct er_node_look *list, size_t max);

/* For status: phase of the job as text: forming running resizing succeeded failed stopped. */
const char *er_driver_phase(const struct er_driver *driver);
uint64_t er_driver_generation(const struct er_driver *driver);
uint32_t er_driver_restarts(const struct er_driver *driver);
const char *er_driver_run(const struct er_driver *driver);
