#pragma once
/*
 * The rendezvous core: what one node does, as a pure function of events. Time and randomness come
 * in with the event; what is to be done goes out as actions, carried out in their order by the
 * driver; when nothing happens before er_rdzv_deadline(), a TICK is due then. The transactions are
 * numbered as in docs of the protocol (1 lease ... 18 clean-up).
 *
 * Registration                                  Workers of this node
 *
 *   NEW --> LEASING --> JOINING --> IN            IDLE --START--> UP --STOP--> STOPPING
 *              ^           |        |               ^             |              |
 *              +-----------+--------+ lease lost    +---- left ---+---- left ----+
 *              |           |        |
 *              +-----------+--------+--> REVOKING --> OVER (verdict given)
 *
 * Leader
 *
 *   NO --elected--> READING --view ready--> REST --plan--> ASSIGNING --all sent--> SEALING
 *    ^                 |                    ^  ^               |                      |
 *    +--- deposed -----+-----(any state)    |  +-- void -------+-- void or sealed ----+
 *
 *   REST also ends generations (4), claims numbers (5) and writes the verdict (12, 13).
 *
 * Everything is level-triggered: an event changes what is known, then decide() compares what is
 * with what should be. There are two lanes of transactions, the node's own and the leader's; each
 * has at most one under way. Batches of assignments go out beside them, several at a time.
 */
#include "rendezvous/plan.h"
#include "rendezvous/view.h"

#define ER_RDZV_ACTIONS_MAX     32 /* of one step; notes beyond it are dropped */
#define ER_RDZV_CMPS_MAX        112
#define ER_RDZV_ELSE_MAX        6
#define ER_RDZV_BATCH           120        /* assignments a transaction */
#define ER_RDZV_BATCHES_MAX     32         /* under way */
#define ER_RDZV_CLEAN           42         /* keys of each kind that are looked for at a time */
#define ER_RDZV_CLEAN_US        5000000ull /* after a seal, where there are several nodes */
#define ER_RDZV_CLEAN_LAG       32 /* generations that may wait for it, where one follows the other */
#define ER_RDZV_LOST_MAX        100 /* nodes declared lost by one transaction */
#define ER_RDZV_ARENA           (64 * 1024)
#define ER_RDZV_SETTLE_US       5000000ull  /* default of resize_settle_us */
#define ER_RDZV_MIN_INTERVAL_US 60000000ull /* of resize_min_interval_us */
#define ER_RDZV_UNCOUNTED_MAX   3           /* in a row */

enum er_rdzv_state {
    ER_RDZV_NEW,
    ER_RDZV_LEASING,
    ER_RDZV_JOINING,
    ER_RDZV_IN,
    ER_RDZV_REVOKING,
    ER_RDZV_OVER,
    ER_RDZV_STATE_COUNT
};

enum er_rdzv_run { ER_RUN_IDLE, ER_RUN_UP, ER_RUN_STOPPING, ER_RUN_COUNT };

enum er_rdzv_lead {
    ER_LEAD_NO,
    ER_LEAD_READING,
    ER_LEAD_REST,
    ER_LEAD_ASSIGNING,
    ER_LEAD_SEALING,
    ER_LEAD_COUNT
};

enum er_rdzv_lane_id { ER_LANE_OWN, ER_LANE_LEAD, ER_LANE_BATCH, ER_LANE_COUNT };

enum er_rdzv_txn {
    ER_TXN_NONE,
    ER_TXN_READ,   /* after an ambiguous answer */
    ER_TXN_JOIN,   /* 2, 11 */
    ER_TXN_RESPEC, /* this node's spec becomes the next one */
    ER_TXN_RUN,    /* 17 */
    ER_TXN_RESULT, /* 9 */
    ER_TXN_LEFT,   /* 10 */
    ER_TXN_ELECT,  /* 3 */
    ER_TXN_END,
    /* 4 */ ER_TXN_CLAIM, /* 5 */
    ER_TXN_NEXT,          /* the same while a generation is sealed; go; never mind */
    ER_TXN_ASSIGN,        /* 6 */
    ER_TXN_SEAL,          /* 7 */
    ER_TXN_VERDICT,       /* 12, 13 */
    ER_TXN_HANDOVER,      /* 3b */
    ER_TXN_SCALE,         /* a request for other bounds: writes world */
    ER_TXN_CTL,           /* another request that is acted on, or refused */
    ER_TXN_ASIDE,         /* a node is set aside */
    ER_TXN_LOOK,          /* for what 18 deletes */
    ER_TXN_CLEAN          /* 18 */
};

enum er_rdzv_event_kind {
    ER_EV_TICK,
    ER_EV_LEASE,      /* the grant of lease `id` was answered with rc */
    ER_EV_LEASE_LOST, /* lease `id` ended */
    ER_EV_REVOKED,    /* answered, whatever the outcome */
    ER_EV_REPLY,      /* of the transaction of `lane` */
    ER_EV_SELF_KV,    /* world, leader, overrides, n/<self> or a/<self> changed or was read; no
                         decision yet */
    ER_EV_SELF_READY, /* they have been read */
    ER_EV_JOB_RESET,  /* a full read of the job follows */
    ER_EV_JOB_KV,     /* one record of it, or a change after it; no decision yet */
    ER_EV_JOB_READY,
    ER_EV_PORT,
    ER_EV_ADDRESS,
    ER_EV_RESULT,
    ER_EV_LEFT,
    ER_EV_PROGRESS,
    ER_EV_LEAVE,
    ER_EV_PLANNED, /* value: able to */
    ER_EV_WARM,    /* value: workers can be started before the seal */
    ER_EV_PREPARED,
    ER_EV_SLOTS, /* value: workers it could go on with */
    ER_EV_TUNE,
    ER_EV_FORGET /* the store has gone back (restored, or empty): its revisions begin anew. Comes
                  * with a read that follows; no decision yet */
};

struct er_rdzv_event {
    enum er_rdzv_event_kind kind;
    uint64_t now_us;
    uint64_t random;         /* fresh for every event */
    uint64_t heard_us;       /* when the store last answered */
    uint64_t lease_until_us; /* the store holds the own lease; 0: not known */
    uint64_t resumed_us;     /* when it began to again, after an interruption; 0: there was none */
    int rc;                  /* LEASE, REPLY */
    uint64_t id;             /* LEASE, LEASE_LOST */
    uint64_t ttl_us;         /* LEASE */
    uint64_t generation;     /* RESULT, LEFT, PROGRESS, PREPARED */
    uint64_t until_us;       /* LEAVE: workers may go on till then */
    int value;               /* PORT: port; LEAVE: exit code */
    enum er_rdzv_lane_id lane;
    const struct er_store_reply *reply;    /* REPLY with rc 0 */
    enum er_store_event_kind change;       /* SELF_KV, JOB_KV; DELETE: also read and not there */
    uint64_t revision;                     /* SELF_KV: as of it the key is like that */
    const struct er_store_kv *kv;          /* SELF_KV, JOB_KV */
    const struct er_cause *cause;          /* RESULT: NULL success */
    const char *reason;                    /* LEAVE */
    const char *address;                   /* ADDRESS */
    const struct er_driver_tuning *tuning; /* TUNE */
};

enum er_rdzv_action_kind {
    ER_ACT_GRANT,      /* lease.id, lease.ttl_us; keep it when granted, unless lease.once */
    ER_ACT_REVOKE,     /* lease.id */
    ER_ACT_TXN,        /* txn, answered by REPLY of that lane */
    ER_ACT_WATCH_SELF, /* read, then watch the own keys, one by one */
    ER_ACT_WATCH_JOB,  /* read, then watch the whole job */
    ER_ACT_UNWATCH_JOB,
    ER_ACT_START,
    ER_ACT_PREPARE,
    ER_ACT_NOTICE, /* generation: the target; stays: this node is in it */
    ER_ACT_STOP,
    ER_ACT_VERDICT, /* the last one ever */
    ER_ACT_NOTE
};

/* Pointers are valid until the next step. */
struct er_rdzv_action {
    enum er_rdzv_action_kind kind;
    struct {
        uint64_t id, ttl_us;
        bool once;
    } lease;
    enum er_rdzv_lane_id lane;
    const struct er_store_txn *txn;
    const struct er_assignment *start;
    uint64_t generation; /* STOP, NOTICE */
    bool stays;          /* NOTICE */
    const char *reason;  /* STOP */
    const struct er_verdict *verdict;
    struct er_note note;
};

struct er_rdzv_actions {
    size_t n;
    struct er_rdzv_action list[ER_RDZV_ACTIONS_MAX];
};

/* What is known of one key: as of revision `rev` it was there (or not), last changed at mod_rev. */
struct er_rdzv_known {
    bool present;
    uint64_t rev, mod_rev, lease;
};

struct er_rdzv_lane {
    enum er_rdzv_txn kind; /* under way; NONE: idle */
    bool reread;           /* the last outcome is unknown: read before anything else */
    unsigned tries;        /* failures in a row */
    uint64_t retry_us;     /* not before */
    struct er_store_txn txn;
    struct er_store_cmp cmps[ER_RDZV_CMPS_MAX];
    struct er_store_op then_ops[ER_STORE_TXN_OPS_MAX], else_ops[ER_RDZV_ELSE_MAX];
    char arena[ER_RDZV_ARENA];
    size_t used;
};

struct er_rdzv {
    struct er_driver_opts opts;
    uint64_t settle_us, min_interval_us;
    char spec[ER_SPEC_BYTES_MAX + 1], root[ER_ROOT_MAX];
    uint64_t spec_hash;
    uint64_t spec_seen; /* in force when this node looked last; 0: it isn't registered yet */
    bool join_next;     /* this node's spec is the next one, not the one in force */
    bool respecced;     /* made it so, once: two agents with different ones don't take turns */
    uint64_t now_us, wake_us;
    uint64_t random; /* state of its own, stirred by every event */
    struct er_rdzv_actions *out;

    /* registration */
    enum er_rdzv_state state;
    bool registered_once, self_ready, lease_asked, lease_held, lease_lost;
    uint64_t lease, lease_retry_us, begun_us, taken_us, evicted_lease;
    unsigned lease_tries;
    uint64_t heard_us, resumed_us;   /* the store */
    uint64_t lease_until_us;         /* 0: not known; a TTL from heard_us at most */
    char first_run[ER_RUN_TEXT_MAX]; /* the run found at the beginning; "" none */
    unsigned run_tries;              /* it was alive */
    bool join_first, join_elect;     /* what the last attempt took for free: job, leadership */
    int port;
    struct er_rdzv_known k_world, k_leader, k_node, k_assign, k_overrides;
    struct er_overrides overrides; /* as the store has them, when they are there */
    struct er_job_record world;
    uint64_t seen;         /* newest number ever, also in a store that has lost it since */
    struct er_member node; /* n/<self> as the store has it */
    struct er_assign assign;
    struct er_leader leader;
    unsigned char leader_bytes[ER_LEADER_BYTES_MAX]; /* the record as it was written */
    size_t leader_n;
    bool warm;               /* its own workers could */
    bool planned, preparing; /* preparing: what runs is claimed, not sealed */
    bool prepare_failed;
    uint64_t prepared, noticed;
    uint64_t go_for, go_us;  /* the planned change that is to happen, and since when */
    uint64_t leave_until_us; /* workers may go on till then */
    uint64_t deadline_us;    /* somebody who asked wants them gone by then; 0: nobody does */
    bool leaving, revoked;
    int leave_code;
    char leave_reason[ER_REASON_MAX];
    uint64_t deregister_us, revoke_us; /* give up saying goodbye then */
    bool handed;                       /* leadership was offered to another */

    /* workers */
    enum er_rdzv_run run;
    uint64_t run_generation, run_nonce, left, progressed;
    /* How many: those that run; as the node's record says; as it would like to go on, which becomes
     * the record's with `left`, or while no change is under way. */
    int run_slots, slots, offer;
    uint64_t result_generation; /* newest generation whose result was given */
    bool result_due;
    struct er_result result;

    /* leader */
    enum er_rdzv_lead lead;
    bool led_before;     /* the leader key that vanished was mine */
    uint64_t elect_us;   /* try to be leader then; 0: not competing */
    uint64_t lead_rev;   /* mod_revision of my leader key */
    uint64_t seq;        /* of this agent's writes of world */
    uint64_t fresh_seq;  /* my write of world under which nothing was sent yet; 0 none */
    uint64_t forming_us; /* since when this leader sees the job forming; 0: it isn't */
    uint64_t min_met_us, settled_us, first_ok_us, sealed_us;
    uint64_t more_us; /* since when members could go on with more workers; 0: they couldn't */
    uint64_t cleaned; /* generation under which nothing is left; 0: not known */
    bool forming_noted;
    unsigned batches;   /* under way */
    size_t grown_from;  /* size of the view that was too small last */
    bool clean;         /* nothing of older generations is left */
    bool no_switch;     /* this leader's spec is not the next one any more; */
    uint64_t next_spec; /* that is the next one, then; 0: there is none */
    bool respec_asked;  /* leadership was offered to a node that has the next spec */
    struct {            /* a node being asked to leave, till that is known to be written */
        char ctl[ER_NAME_TEXT_MAX], node[ER_NAME_TEXT_MAX]; /* ctl "": none */
        uint64_t incarnation;
        int code;
        uint64_t time_us;
    } drain;
    bool scaled;        /* by this leader, and no generation sealed since */
    struct {            /* a node being set aside: first its lease, then its key */
        uint64_t lease; /* 0: none under way */
        bool granted;
        uint64_t cooldown_us;
        char node[ER_NAME_TEXT_MAX], reason[128];
        char ctl[ER_NAME_TEXT_MAX]; /* the request that asked for it; "" none */
        uint64_t ctl_rev;
    } aside;
    uint64_t acted_rev;    /* mod_revision of the last request that set a node aside */
    uint64_t sealed_noted; /* generation */
    uint64_t resize_noted; /* generation whose planned end was told */
    uint32_t restarts_noted;
    struct {
        uint64_t generation, world_rev, nonce;
        bool ahead;        /* while its predecessor is sealed */
        uint64_t spec;     /* of its members */
        uint64_t seq;      /* of my write of world that it rests on */
        uint64_t since_us; /* ahead: of that */
        uint32_t nnodes, world_size;
        uint32_t sent;    /* nodes that were */
        size_t at;        /* in the view: where the next batch begins */
        uint64_t held_at; /* view.changes up to which it is known to hold */
        char master_addr[ER_HOST_TEXT_MAX];
        int master_port;
    } plan;
    struct er_plan_node *scratch; /* as many as view.cap */
    struct er_view view;

    struct er_assignment assignment;
    struct er_verdict verdict;
    struct er_rdzv_lane lanes[ER_LANE_COUNT];
};

/* How many view nodes (and plan nodes) a core for up to max_nodes needs. */
size_t er_rdzv_capacity(uint32_t max_nodes);
/* `core` comes zeroed (calloc: what isn't used is never touched). `nodes` and `scratch` hold
 * er_rdzv_capacity() items and outlive it. opts->spec is copied.
 * Errors: ER_E_CONFIG with a text. */
int er_rdzv_init(struct er_rdzv *core, const struct er_driver_opts *opts,
                 struct er_view_node *nodes, struct er_plan_node *scratch, struct er_error *err);
void er_rdzv_step(struct er_rdzv *core, const struct er_rdzv_event *event,
                  struct er_rdzv_actions *ret_actions);
/* ER_FOREVER: only an event can change anything. */
uint64_t er_rdzv_deadline(const struct er_rdzv *core);
/* As er_driver_look(), but for `denied`. */
void er_rdzv_look(const struct er_rdzv *core, struct er_look *ret);
size_t er_rdzv_look_nodes(const struct er_rdzv *core, struct er_node_look *list, size_t max);
/* The newest revision as of which anything is known of the node's own keys. */
uint64_t er_rdzv_known_rev(const struct er_rdzv *core);
/* Larger memory for the view, before a full read: `cap` items each. */
void er_rdzv_resize(struct er_rdzv *core, struct er_view_node *nodes, struct er_plan_node *scratch,
                    size_t cap);
/* `fence` of a generation this node ran last; false: not that one. */
bool er_rdzv_fence(const struct er_rdzv *core, uint64_t generation, char ret_text[ER_FENCE_MAX]);
