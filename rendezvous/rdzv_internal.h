#pragma once
/* Shared by the files of the core: rdzv.c (events, states), rdzv_node.c (this node's part),
 * rdzv_workers.c (its workers), rdzv_elect.c (who leads), rdzv_lead.c (the leader's part),
 * rdzv_form.c (plans and seals), rdzv_ctl.c (requests, nodes set aside, clean-up), rdzv_judge.c
 * (cause and budget), rdzv_txn.c and rdzv_txn_lead.c (transactions), rdzv_note.c (notes). */
#include "base/clock.h"
#include "rendezvous/planted.h"
#include "rendezvous/rdzv.h"

/* rdzv.c */
struct er_rdzv_action *rdzv_act(struct er_rdzv *c, enum er_rdzv_action_kind kind);
void rdzv_wake(struct er_rdzv *c, uint64_t at_us); /* decide again then at the latest */
bool rdzv_due(struct er_rdzv *c, uint64_t at_us);  /* it is time; else woken then */
uint64_t rdzv_random(struct er_rdzv *c);           /* never 0 */
void rdzv_set_state(struct er_rdzv *c, enum er_rdzv_state next);
void rdzv_set_run(struct er_rdzv *c, enum er_rdzv_run next);
void rdzv_set_lead(struct er_rdzv *c, enum er_rdzv_lead next);
bool rdzv_terminal(const struct er_job_record *w);
/* The lane can take a transaction now. */
bool rdzv_lane_free(struct er_rdzv *c, enum er_rdzv_lane_id id);

/* rdzv_node.c */
void rdzv_node_decide(struct er_rdzv *c);
void rdzv_node_reply(struct er_rdzv *c, enum er_rdzv_txn kind, const struct er_store_reply *reply);
/* End this node's part with a reason of its own. */
void rdzv_leave(struct er_rdzv *c, int exit_code, const char *reason, uint64_t until_us);
/* Nodes may have another number of workers in each generation: all members know of that. */
bool rdzv_slots_vary(const struct er_rdzv *c);
/* It has ended, and this agent does not begin another run of it. */
bool rdzv_job_over(const struct er_rdzv *c);

/* rdzv_workers.c */
void rdzv_workers_decide(struct er_rdzv *c);
void rdzv_stop_workers(struct er_rdzv *c);

/* rdzv_elect.c */
void rdzv_compete(struct er_rdzv *c);
/* The leader's key is this agent's, under its lease. */
bool rdzv_leader_key_mine(const struct er_rdzv *c);
bool rdzv_deposed(const struct er_rdzv *c);
void rdzv_depose(struct er_rdzv *c);
/* Offers leadership to another node, once; true: nothing (more) to be done. */
bool rdzv_hand_over(struct er_rdzv *c);

/* rdzv_lead.c */
struct rdzv_survey {
    /* nodes of each trait (view.h) */
    uint32_t members, ok, newcomers, ready, unready, present;
    uint32_t absent, reborn, departed, draining, quit, aside_ready, aside_members, others;
    uint64_t last_gone_us;  /* newest absence */
    uint64_t first_join_us; /* oldest newcomer, while a generation is sealed */
};
void rdzv_survey(const struct er_view *v, struct rdzv_survey *ret);
/* Nobody can do anything while the store is away: what others are given time for counts from there
 * on when it came back. `at_us` 0 stays. */
uint64_t rdzv_counted_from(const struct er_rdzv *c, uint64_t at_us);
/* When the absent members are lost. */
uint64_t rdzv_lost_at(const struct er_rdzv *c, const struct rdzv_survey *s);
/* A number that nothing in the job has used. */
uint64_t rdzv_next_number(const struct er_rdzv *c);
void rdzv_end_generation(struct er_rdzv *c, enum er_reason reason, bool lost);
void rdzv_clear_next(struct er_job_record *w);
void rdzv_write_verdict(struct er_rdzv *c, enum er_job_record_phase phase, int exit_code,
                        bool stopped, const struct er_cause *cause, const char *why);
/* By request: the workers have `time_us` to save and end; 0: none. */
void rdzv_write_stop(struct er_rdzv *c, int exit_code, uint64_t time_us, const char *why);
void rdzv_lead_decide(struct er_rdzv *c);
/* `reply` NULL: none came. */
void rdzv_lead_reply(struct er_rdzv *c, enum er_rdzv_txn kind, const struct er_store_reply *reply);
/* The view is void until the job has been read again. */
void rdzv_read_again(struct er_rdzv *c);
void rdzv_lead_ready(struct er_rdzv *c); /* the view has been read */

/* rdzv_note.c */
void rdzv_note_aside(struct er_rdzv *c);
void rdzv_note_request(struct er_rdzv *c, const struct er_ask *ctl);
void rdzv_note_join(struct er_rdzv *c, const struct er_store_kv *kv);
void rdzv_note_forming(struct er_rdzv *c);
void rdzv_note_sealed(struct er_rdzv *c);
void rdzv_note_denied(struct er_rdzv *c);
void rdzv_note_losses(struct er_rdzv *c);
/* Members of the generation are to leave it for a change that nobody's failure made. */
bool rdzv_changes(const struct er_job_record *w);
void rdzv_note_resize(struct er_rdzv *c);
void rdzv_note_skip(struct er_rdzv *c, uint64_t step);
void rdzv_note_leaver(struct er_rdzv *c, const struct er_view_node *node);
/* The same for all that a planned change leaves out because they go. */
void rdzv_note_leavers(struct er_rdzv *c);

/* rdzv_judge.c */
struct rdzv_judgement {
    enum er_reason reason;
    bool has_cause, charge, uncounted, early, fail;
    struct er_cause cause;
    int exit_code;           /* fail */
    char verdict[256];       /* fail */
    struct er_poison poison; /* as it is after that */
    uint64_t skip;           /* step that is left out from now on; 0: none */
};
/* Why the last sealed generation ended and what that costs. Final when every member of it has left
 * or is lost. */
void rdzv_judge(const struct er_rdzv *c, struct rdzv_judgement *ret);
/* Failures that count now. */
uint32_t rdzv_budget_used(const struct er_rdzv *c);
/* Add the time observed since `world` was read; forget what is older than the window. */
void rdzv_budget_advance(const struct er_rdzv *c, struct er_job_record *w);
void rdzv_budget_add(struct er_job_record *w);
uint64_t rdzv_backoff(const struct er_rdzv *c, uint32_t early_row);

/* rdzv_poison.c */
/* A failure in `step`: it, and those before it that came to nothing, as they count from now on.
 * Returns how often it has failed. */
uint32_t rdzv_poison_add(struct er_poison *p, uint64_t step);
bool rdzv_skips_has(const struct er_skips *s, uint64_t step);
void rdzv_skips_add(struct er_skips *s, uint64_t step);

/* rdzv_form.c */
void rdzv_form(struct er_rdzv *c);
void rdzv_follow_plan(struct er_rdzv *c);
/* Ranks for scratch[0..n) become c->plan. */
void rdzv_plan(struct er_rdzv *c, size_t n, uint64_t generation, uint32_t max);
void rdzv_candidate(struct er_rdzv *c, size_t node, size_t *n);
bool rdzv_all_sent(const struct er_rdzv *c);
void rdzv_common_protocol(const struct er_rdzv *c, struct er_job_record *w);

/* rdzv_ahead.c */
/* Changes the generation for this reason: planned ahead where every node can, else at once. */
void rdzv_change(struct er_rdzv *c, const struct rdzv_survey *s, enum er_reason reason);
/* Whoever is gone was to leave in the planned change that is under way: the others may not be
 * through yet. */
bool rdzv_left_as_planned(const struct er_rdzv *c);
/* Some newcomer may be tried. */
bool rdzv_newcomer_due(struct er_rdzv *c);
void rdzv_follow_ahead(struct er_rdzv *c, const struct rdzv_survey *s);

/* rdzv_role.c: for jobs whose roles have bounds. */
/* Ready nodes, as many of each role as it may have; is the minimum of each there? */
bool rdzv_count_roles(const struct er_rdzv *c, bool with_aside, uint32_t *ret_usable);
/* Of n candidates in `scratch` those that their role has room for come first; their number. */
size_t rdzv_cap_roles(struct er_rdzv *c, size_t n);
/* Have n candidates the minimum of each role? */
bool rdzv_roles_met(const struct er_rdzv *c, size_t n);
/* Would a newcomer be taken? True where roles have no bounds. */
bool rdzv_room_for_newcomer(const struct er_rdzv *c);

/* rdzv_ctl.c */
bool rdzv_struck(const struct er_rdzv *c, const struct er_view_node *n,
                 const struct rdzv_judgement *j);
/* `n` is kept out from now on, as far as that can be: one at a time. */
void rdzv_set_aside(struct er_rdzv *c, const struct er_view_node *n, const char *why);
bool rdzv_blames_node(const struct er_rdzv *c, const struct rdzv_judgement *j);
bool rdzv_aside_due(struct er_rdzv *c, const struct rdzv_survey *s, const struct rdzv_judgement *j);
void rdzv_aside_lease(struct er_rdzv *c, int rc);
void rdzv_aside_done(struct er_rdzv *c, bool succeeded);
void rdzv_requests(struct er_rdzv *c);
void rdzv_clean(struct er_rdzv *c);
void rdzv_looked(struct er_rdzv *c, const struct er_store_reply *reply);

/* rdzv_txn.c: each starts one transaction on its lane. */
void rdzv_send_read(struct er_rdzv *c, enum er_rdzv_lane_id id);
void rdzv_send_join(struct er_rdzv *c);
/* 17: a new run, of which this node is the first. */
void rdzv_send_run(struct er_rdzv *c);
/* This node's spec becomes the next one, if both keys are as they were read. */
void rdzv_send_respec(struct er_rdzv *c, uint64_t spec_rev, uint64_t next_rev);
void rdzv_send_result(struct er_rdzv *c);
void rdzv_send_left(struct er_rdzv *c);
void rdzv_send_elect(struct er_rdzv *c);
/* Writes `w` as `world` (4, 5); writer and seq are set here. With `lost`, the nodes that are lost
 * must still be. */
void rdzv_send_world(struct er_rdzv *c, enum er_rdzv_txn kind, struct er_job_record *w, bool lost,
                     const struct er_view_ctl *ctl);
void rdzv_send_assign(struct er_rdzv *c);
void rdzv_send_seal(struct er_rdzv *c, struct er_job_record *w);
void rdzv_send_handover(struct er_rdzv *c, const struct er_view_node *to);
/* Deletes the request; with `drain` asks that node to leave, with `release` ends its set-aside. */
void rdzv_send_ctl(struct er_rdzv *c, const struct er_view_ctl *ctl, struct er_view_node *drain,
                   const char *release);
void rdzv_send_aside(struct er_rdzv *c);
void rdzv_send_look(struct er_rdzv *c);
/* Deletes keys of older generations that were found; false: there are none. */
bool rdzv_send_clean(struct er_rdzv *c, const struct er_store_reply *found);
void rdzv_send_verdict(struct er_rdzv *c, struct er_job_record *w);
