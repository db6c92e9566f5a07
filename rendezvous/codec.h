#pragma once
/*
 * Records <-> bytes, and keys <-> their parts. Pure.
 *
 * A record is: type letter, version byte, then its fields in a fixed order (integers as LEB128
 * varints, signed ones zigzag, texts with their length). Parsing is strict: another type or
 * version, a value out of its range, bytes missing or left over are all ER_E_CORRUPT; the result is
 * untouched then. Encoding always fits the record's limit (long messages are cut).
 *
 * Keys, under the job's root "<prefix>/<job>/":
 *   spec  spec-next  overrides  fence  a/<node>  kv/<gen>/<key>  op/<gen>/<node>/<seq>  ckpt/latest
 *   query  answer/<node>
 * and what a leader decides from, which it reads and watches as one prefix:
 *   j/world  j/leader  j/n/<node>  j/r/<gen>/<node>  j/ctl/<id>  j/aside/<node>
 * Numbers in keys are decimal, zero-padded to ER_GEN_DIGITS, so keys sort as their numbers do.
 */
#include "rendezvous/driver.h"

#define ER_WORLD_BYTES_MAX     1024
#define ER_RESULT_BYTES_MAX    2048
#define ER_MEMBER_BYTES_MAX    768
#define ER_ASSIGN_BYTES_MAX    160
#define ER_LEADER_BYTES_MAX    96
#define ER_ASK_BYTES_MAX       384
#define ER_ASIDE_BYTES_MAX     192
#define ER_CKPT_BYTES_MAX      1280
#define ER_QUERY_BYTES_MAX     32
#define ER_OVERRIDES_BYTES_MAX 2048
#define ER_SPEC_BYTES_MAX      4096
#define ER_RECORD_BYTES_MAX    2048 /* of any record but spec */

#define ER_GEN_DIGITS      12
#define ER_GEN_MAX         999999999999ull
#define ER_ROOT_MAX        200 /* "<prefix>/<job>/" with its NUL */
#define ER_KEY_MAX         640 /* a whole key with its NUL */
#define ER_KV_KEY_MAX      256 /* a worker's key */
#define ER_FENCE_MAX       40  /* "generation:nonce" with its NUL */
#define ER_BUDGET_AGES     16  /* buckets of counted failures in `world` */
#define ER_CKPT_PATH_MAX   1024
#define ER_CKPT_DIGEST_MAX 65
#define ER_NODES_MAX       1000000u
/* Of this program; works with one below and one above. Tests make programs of other ones.
 * 2: a node's `slots` may be another number in each generation; where a member speaks 1, nobody's
 * are (their leader would not see that a planned change has become another one meanwhile). */
#ifndef ER_PROTOCOL
#define ER_PROTOCOL 2
#endif
#define ER_PROTOCOL_SLOTS     2
#define ER_PROTOCOL_OVERRIDES 2 /* that record is followed */
#define ER_PROTOCOL_DEADLINE                                                                       \
    2 /* requests, assignments and verdicts with a deadline; ER_ASK_ALL_NODES */

/* Why a generation came to be; names as in the events. X(ENUM, "text") */
#define ER_REASONS(X)                                                                              \
    X(FORMED, "formed")                                                                            \
    X(WORKER_FAILED, "worker_failed")                                                              \
    X(WORKER_HUNG, "worker_hung")                                                                  \
    X(NODE_LOST, "node_lost")                                                                      \
    X(NODE_JOINED, "node_joined")                                                                  \
    X(DRAINED, "drained")                                                                          \
    X(PREEMPTED, "preempted")                                                                      \
    X(SCALED, "scaled")                                                                            \
    X(CONNECTIONS_LOST, "connections_lost")
enum er_reason {
#define ER_REASON_ENUM(name, text) ER_REASON_##name,
    ER_REASONS(ER_REASON_ENUM)
#undef ER_REASON_ENUM
        ER_REASON_COUNT
};
const char *er_reason_name(enum er_reason reason);
/* A node leaves on purpose: drained or preempted. */
bool er_reason_leaves(enum er_reason reason);

#define ER_PHASES_OF_WORLD(X) X(FORMING) X(SEALED) X(DONE) X(FAILED)
enum er_job_record_phase {
#define ER_WORLD_ENUM(name) ER_WORLD_##name,
    ER_PHASES_OF_WORLD(ER_WORLD_ENUM)
#undef ER_WORLD_ENUM
        ER_WORLD_PHASE_COUNT
};

/* Counted failures of about one age. Merging two buckets takes the younger age, so a failure never
 * counts shorter than it should. */
struct er_budget_age {
    uint64_t age_us;
    uint32_t count;
};

#define ER_POISON_MAX 3

/* Steps in which workers failed, the earliest first, and how often. */
struct er_poison {
    uint32_t n;
    struct er_poison_step {
        uint64_t step;
        uint32_t failures;
    } steps[ER_POISON_MAX];
};

/* `world`: the job's state, changed by the leader's compare-and-swap only. */
struct er_job_record {
    char run[ER_RUN_TEXT_MAX];
    enum er_job_record_phase phase;
    enum er_reason reason; /* of the generation being formed, or sealed */
    uint64_t generation;   /* number of the attempt; of the generation when sealed */
    uint64_t nonce;        /* of the sealed generation */
    uint64_t last_sealed;  /* 0: none yet */
    uint32_t last_nnodes;  /* its node count */
    uint32_t min_nodes, max_nodes;
    uint32_t restarts;      /* counted so far, whole job */
    uint32_t uncounted_row; /* failures in a row that cost nothing */
    uint32_t early_row;     /* generations in a row that failed before progress */
    uint64_t writer, seq;   /* who wrote this: incarnation, and its count of writes */
    uint64_t ready_us;      /* how long a member may take to leave */
    uint32_t world_size, nnodes;
    char master_addr[ER_HOST_TEXT_MAX];
    int master_port;
    int exit_code; /* DONE, FAILED */
    bool stopped;  /* FAILED: unfinished, state safe, not a failure of the job */
    struct er_budget_age ages[ER_BUDGET_AGES];
    uint32_t age_n;
    bool has_cause;
    struct er_cause cause;
    char verdict[256];
    uint32_t protocol_low, protocol_high; /* spoken by every member */
    /* SEALED: the generation that is being prepared; 0 none. */
    uint64_t next, next_nonce;
    uint32_t next_nnodes, next_size;
    enum er_reason next_reason;
    uint64_t taken; /* highest number claimed ahead, also when nothing came of it */
    bool next_warm; /* its newcomers may start their workers before the seal */
    bool next_go;   /* everything is prepared: members leave the sealed one */
    uint64_t spec;  /* er_spec_hash() of the spec in force */
    struct er_poison poison;
    struct er_skips skips;
    uint64_t stop_us; /* FAILED: workers may take so long to save and end; 0: they end at once */
};

/* `n/<node>`: a live node, bound to its lease. */
struct er_member {
    uint64_t incarnation, boot_id_hash;
    char address[ER_HOST_TEXT_MAX], host[ER_HOST_TEXT_MAX];
    int port; /* held ready for MASTER_PORT; 0 none */
    /* Workers with which this node goes on: fixed by the record that says `left`, until it has
     * started. While it runs, more than it has there are its wish for a planned change. */
    int slots;
    int preferred_rank;
    uint64_t left;    /* newest generation whose workers are gone here */
    uint64_t running; /* on (re-)registration: generation still running, 0 none */
    bool draining;
    uint32_t protocol;
    bool planned;      /* can be part of a planned change */
    uint64_t prepared; /* newest claimed generation whose workers are up */
    uint32_t role;
    uint64_t spec;  /* er_spec_hash() of its spec */
    bool preempted; /* draining: it was told to go, and wants to come back */
};

/* `a/<node>`: one assignment key per node, for its life. */
struct er_assign {
    uint64_t generation, nonce, incarnation;
    int group_rank, first_rank;
    uint64_t prev_generation, prev_incarnation; /* the last sealed one before it */
    int prev_rank, prev_first;
    int role_first, role_size, prev_role_first, prev_role_size;
    uint64_t prev_nonce;
    uint64_t drain;    /* this incarnation is asked to leave; 0 none */
    int drain_code;    /* with that exit code */
    uint64_t drain_us; /* and within that time; 0: as resize.grace has it */
    /* Failures of this node's workers in a row, and how long ago the last one was. */
    uint32_t strikes;
    uint64_t strike_generation; /* the last one that was counted */
    uint64_t strike_age_us;
};

/* `leader`: who plans. */
struct er_leader {
    char node_id[ER_NAME_TEXT_MAX];
    uint64_t incarnation, nonce;
};

/* `r/<gen>/<node>`: created once. */
struct er_result {
    bool ok, progressed;
    uint64_t incarnation;
    struct er_cause cause; /* !ok */
};

/* What a request asks for. X(ENUM, "text") */
#define ER_ASK_KINDS(X)                                                                            \
    X(STOP, "stop")                                                                                \
    X(DRAIN, "drain")                                                                              \
    X(SCALE, "scale")                                                                              \
    X(ASIDE, "set_aside")                                                                          \
    X(RELEASE, "release")
enum er_ask_kind {
#define ER_ASK_ENUM(name, text) ER_ASK_##name,
    ER_ASK_KINDS(ER_ASK_ENUM)
#undef ER_ASK_ENUM
        ER_ASK_KIND_COUNT
};

/* `ctl/<id>`: a request, created once and deleted by the transaction that acts on it. */
struct er_ask {
    enum er_ask_kind kind;
    char node[ER_NAME_TEXT_MAX];   /* DRAIN (ER_ASK_ALL_NODES too), ASIDE, RELEASE */
    uint64_t incarnation;          /* DRAIN: of the node that is meant; 0: whoever has the name */
    uint32_t min_nodes, max_nodes; /* SCALE */
    uint64_t cooldown_us;          /* ASIDE */
    int code;                      /* DRAIN: what its agent exits with */
    uint64_t deadline_us;          /* STOP, DRAIN: time to save and end; 0: none is given */
    char reason[128];
};
/* Is turned into a request for each node by the leader's agent. */
#define ER_ASK_ALL_NODES "*"

/* `aside/<node>`: kept out of plans while others are enough; bound to a lease of its cool-down. */
struct er_aside {
    char reason[128];
};

/* `ckpt/latest` */
struct er_ckpt_record {
    uint64_t generation, step;
    char digest[ER_CKPT_DIGEST_MAX], path[ER_CKPT_PATH_MAX];
};

/* `query`: somebody asks every node what it knows. Each answers once, with `answer/<node>`; both
 * are bound to the asker's lease, so that nothing of them stays. */
struct er_query {
    uint64_t id, lease;
};

/* `overrides`: what was set while the job runs, beside its spec and above it. Whoever sets replaces
 * the whole record, by compare-and-swap. */
struct er_overrides {
    uint64_t seq;              /* how often it was changed */
    uint64_t wall_us;          /* when, by the clock of who did */
    char id[ER_NAME_TEXT_MAX]; /* of the change: tells its own write from another's */
    char by[128];              /* who: "user@host" */
    char text[1792];           /* a line KEY=VALUE each, as in the spec */
};

/* Encoders return the length; `ret` holds ER_<RECORD>_BYTES_MAX bytes. */
size_t er_job_record_encode(const struct er_job_record *w, void *ret);
size_t er_member_encode(const struct er_member *m, void *ret);
size_t er_assign_encode(const struct er_assign *a, void *ret);
size_t er_leader_encode(const struct er_leader *l, void *ret);
size_t er_result_encode(const struct er_result *r, void *ret);
size_t er_ckpt_record_encode(const struct er_ckpt_record *c, void *ret);
size_t er_ask_encode(const struct er_ask *c, void *ret);
size_t er_aside_encode(const struct er_aside *a, void *ret);
size_t er_query_encode(const struct er_query *q, void *ret);
size_t er_overrides_encode(const struct er_overrides *o, void *ret);

int er_job_record_parse(struct er_bytes bytes, struct er_job_record *ret, struct er_error *err);
int er_member_parse(struct er_bytes bytes, struct er_member *ret, struct er_error *err);
int er_assign_parse(struct er_bytes bytes, struct er_assign *ret, struct er_error *err);
int er_leader_parse(struct er_bytes bytes, struct er_leader *ret, struct er_error *err);
int er_result_parse(struct er_bytes bytes, struct er_result *ret, struct er_error *err);
int er_ckpt_record_parse(struct er_bytes bytes, struct er_ckpt_record *ret, struct er_error *err);
int er_ask_parse(struct er_bytes bytes, struct er_ask *ret, struct er_error *err);
int er_aside_parse(struct er_bytes bytes, struct er_aside *ret, struct er_error *err);
int er_query_parse(struct er_bytes bytes, struct er_query *ret, struct er_error *err);
int er_overrides_parse(struct er_bytes bytes, struct er_overrides *ret, struct er_error *err);

/* "generation:nonce", decimal and 16 hex digits. Returns the length. */
size_t er_fence_format(uint64_t generation, uint64_t nonce, char ret_text[ER_FENCE_MAX]);

enum er_key_kind {
    ER_KEY_OTHER, /* not ours, or malformed */
    ER_KEY_SPEC,
    ER_KEY_SPEC_NEXT,
    ER_KEY_OVERRIDES,
    ER_KEY_WORLD,
    ER_KEY_FENCE,
    ER_KEY_LEADER,
    ER_KEY_NODE,
    ER_KEY_ASSIGN,
    ER_KEY_RESULT,
    ER_KEY_KV,
    ER_KEY_OP,
    ER_KEY_CKPT,
    ER_KEY_CTL,
    ER_KEY_ASIDE,
    ER_KEY_QUERY,
    ER_KEY_ANSWER,
    ER_KEY_KIND_COUNT
};

struct er_key {
    enum er_key_kind kind;
    uint64_t generation;      /* RESULT, KV, OP */
    char name[ER_KV_KEY_MAX]; /* NODE, ASSIGN, RESULT, OP, ASIDE: node; KV: the worker's
                                 key; CTL: id */
    uint64_t seq;             /* OP */
};

/* Writes root + key, NUL-terminated; returns the length, 0 when a part is too long or empty. */
size_t er_key_format(const char *root, const struct er_key *key, char ret_text[ER_KEY_MAX]);
/* Kind ER_KEY_OTHER when it isn't a key of this root. */
void er_key_parse(const char *root, struct er_bytes text, struct er_key *ret);

/* Never 0. */
uint64_t er_spec_hash(const char *spec);

/* A node's or job's name: 1..63 of [A-Za-z0-9._-], not starting with '.' or '-'. */
bool er_name_valid(const char *name);

/* Bounded text building for the pure files; the result is always terminated, cut at `cap`. */
struct er_text {
    char *at;
    size_t cap, len;
};
void er_text_add(struct er_text *t, const char *s);
void er_text_u64(struct er_text *t, uint64_t v);
