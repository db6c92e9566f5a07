#pragma once
/*
 * The leader's view of the job: puts and deletes in the order of their revisions, folded into one
 * consistent picture, always that of some past revision of the store. Pure; memory is given by the
 * owner.
 *
 * A node's entry stays after its record is gone: as long as it was a member of the last sealed
 * generation, its absence is what matters.
 */
#include "rendezvous/codec.h"

/* What a node is to the leader; how many are is kept in er_view.counts. */
enum er_view_trait {
    ER_TRAIT_MEMBER,       /* of the last sealed generation; so are OK, and those lost: */
    ER_TRAIT_OK,           /* it succeeded */
    ER_TRAIT_ABSENT,       /* lost: without a record, no goodbye */
    ER_TRAIT_REBORN,       /* lost: came back as another incarnation */
    ER_TRAIT_DEPARTED,     /* lost: said goodbye */
    ER_TRAIT_UNREADY,      /* registered, and something older still runs there */
    ER_TRAIT_DRAINING,     /* a member about to leave */
    ER_TRAIT_QUIT,         /* a member whose workers are gone, without a result */
    ER_TRAIT_OTHER,        /* ready, registered with another spec than the one in force */
    ER_TRAIT_ASIDE_READY,  /* set aside */
    ER_TRAIT_ASIDE_MEMBER, /* set aside, a member that has not succeeded */
    ER_TRAIT_PRESENT,      /* registered, neither leaving nor set aside; so are: */
    ER_TRAIT_READY,
    ER_TRAIT_NEWCOMER, /* no living member */
    ER_TRAIT_COUNT
};

#define ER_VIEW_CTLS 16 /* requests seen at a time; more make the leader read again later */

struct er_view_ctl {
    char id[ER_NAME_TEXT_MAX];
    uint64_t mod_rev;
    struct er_ask ctl;
};

struct er_view_node {
    char id[ER_NAME_TEXT_MAX];
    bool present;            /* registered */
    struct er_member member; /* the last record seen, also when absent */
    uint64_t mod_rev, lease;
    bool aside;        /* set aside */
    uint64_t gone_us;  /* absent: since when this view knows */
    uint64_t departed; /* newest incarnation that left on purpose, as far as this view knows */
    bool has_assign;
    struct er_assign assign;
    uint64_t result_generation; /* of the newest result; 0 none */
    bool result_ok;
    uint64_t joined_us;                         /* present: since when this view knows */
    uint64_t plan_generation, plan_incarnation; /* the leader's: in the plan of that number */
    int plan_rank, plan_first, plan_role_first, plan_role_size;
    int plan_slots;
    bool plan_sent;
    bool no_aside; /* the leader's: setting it aside failed, in this formation */
    /* The leader's: how often this incarnation's workers have failed before they could join, and
     * when last. */
    uint32_t unfit;
    uint64_t unfit_us;
    unsigned traits; /* bits, as they are counted */
    uint32_t offers; /* workers, as they are counted in er_view.offered; 0: it is not */
};

struct er_view {
    struct er_view_node *nodes; /* sorted by id */
    size_t n, cap;
    uint64_t revision; /* all changes up to here are in */
    uint64_t changes;  /* of nodes; never 0 */
    uint32_t counts[ER_TRAIT_COUNT];
    /* Living members of the last sealed generation that stay, and with how many workers they would
     * go on. */
    uint32_t staying, offered;
    bool has_world, has_leader;
    struct er_job_record world;
    uint64_t world_rev, world_us; /* its mod_revision; when it came */
    struct er_leader leader;
    uint64_t leader_rev;
    uint64_t failed_generation, failed_rev; /* first failed result of that generation */
    struct er_cause failed;
    bool progressed;  /* some failed result of it says so */
    uint64_t dropped; /* changes ignored: malformed, or no room for another node */
    bool full;        /* some for want of room: a larger view is needed */
    struct er_view_ctl ctls[ER_VIEW_CTLS]; /* oldest first */
    size_t ctl_n;
    bool ctl_missed; /* there were more */
};

void er_view_init(struct er_view *v, struct er_view_node *nodes, size_t cap);
/* Forget everything: a full read follows. */
void er_view_reset(struct er_view *v);
/* One change. `kv` of a delete has key and mod_rev only. Keys that don't concern the view are
 * ignored. */
void er_view_apply(struct er_view *v, const char *root, enum er_store_event_kind kind,
                   const struct er_store_kv *kv, uint64_t now_us);

/* Something that its traits follow from was changed by other means than er_view_apply(). */
void er_view_changed(struct er_view *v, struct er_view_node *n);
/* The counts are what counting every node gives; for tests. */
bool er_view_counts_right(const struct er_view *v);

struct er_view_node *er_view_find(const struct er_view *v, const char *id);

/* A node's part in the last sealed generation. */
struct er_view_part {
    int rank, first_rank, role_first, role_size;
    uint64_t nonce, incarnation;
};
/* False: it was no member. */
bool er_view_part(const struct er_view *v, const struct er_view_node *n, struct er_view_part *ret);
/* Rank in the last sealed generation and the incarnation that had it; -1: no member of it. */
int er_view_member_rank(const struct er_view *v, const struct er_view_node *n,
                        uint64_t *ret_incarnation);
/* A member of the last sealed generation whose agent still is the one that was assigned. */
bool er_view_alive_member(const struct er_view *v, const struct er_view_node *n);
bool er_view_succeeded(const struct er_view *v, const struct er_view_node *n);
/* A member without a recorded success that is gone, or came back as another incarnation. */
bool er_view_lost_member(const struct er_view *v, const struct er_view_node *n);
/* Registered, and about to leave: it said so, or was asked to. */
bool er_view_leaving(const struct er_view_node *n);
/* A member that is gone, or another incarnation by now, and said goodbye: seen by this view, or
 * told by the leader that ended the generation for it. */
bool er_view_departed(const struct er_view *v, const struct er_view_node *n);
/* Registered, and nothing older than the next generation runs there. */
bool er_view_ready(const struct er_view *v, const struct er_view_node *n);
/* For people: member spare waiting leaving set_aside gone. */
const char *er_view_state_name(const struct er_view *v, const struct er_view_node *n);
/* What the job does: forming running resizing succeeded failed stopped. */
const char *er_view_phase_name(const struct er_job_record *w);
/* The first failed result of the last sealed generation; NULL: none. */
const struct er_cause *er_view_failed(const struct er_view *v);
