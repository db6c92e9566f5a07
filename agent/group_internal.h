#pragma once
/* A group's parts, shared by group.c (start and stop), group_reap.c (processes that end),
 * group_sweep.c (time, and the end), group_leave.c (workers that live on from one generation to the
 * next) and group_join.c (workers that start beside a generation, and who is in the next one). */
#include "agent/group.h"
#include "base/clock.h"

#define ER_GROUP_SWEEP_US (20 * ER_US_PER_MS) /* a backstop: SIGCHLD drives the sweep */
/* A worker that left because a peer was lost may know it before the store does. A worker's death is
 * told in milliseconds: later, it may be that nobody died, and connections were. */
#define ER_GROUP_DESERTED_US (500 * ER_US_PER_MS)
/* A node's death is told after the lease and the leader's grace. Then it is the worker that has
 * failed. */
#define ER_GROUP_UNASKED_US (20 * ER_US_PER_S)

struct er_group {
    const struct er_group_context *ctx;
    struct er_assignment a;
    struct er_group_callbacks callbacks;
    void *user;
    struct er_worker *pool; /* owned; of the generation, joining it, or vacant: pool_n of them */
    struct er_worker **workers;       /* of the generation, by local rank: n of them */
    int places_n, pool_n, n, alive_n; /* alive_n: of the generation */
    char *program, **paths;           /* owned; the last one looked up, and where all lie */
    int path_n;
    int report_fd; /* of spawn failures; -1 after its end of file */
    struct er_loop_source *report;
    bool stopping, childless, gone;
    bool leaving, parted;          /* see er_group_leave() */
    bool deserted;                 /* it was told */
    uint64_t leave_end_us;         /* when who has not left is killed */
    uint64_t unasked_us;           /* how long who left unasked waits for the generation's end */
    uint64_t grace_end_us;         /* of the ladder, ER_FOREVER unless stopping */
    uint64_t sweep_us;             /* next look, once none is alive */
    uint64_t kill_us;              /* when the killing began, 0: not yet */
    pid_t *spared;                 /* owned; room for all places and the helpers */
    struct er_logfile filtered[2]; /* lines of all workers that log.duplicate_* choose */
};

/* group.c */
void er_group_step_worker(struct er_group *g, struct er_worker *w, enum er_worker_event_kind kind,
                          uint64_t now_us, uint64_t grace_us);
void er_group_step_all(struct er_group *g, enum er_worker_event_kind kind, uint64_t now_us,
                       uint64_t grace_us);
/* `w`, whose place is vacant, becomes local worker `local_rank` of `a`; then all workers that are
 * prepared get a process. */
int er_group_prepare_worker(struct er_group *g, struct er_worker *w, const struct er_assignment *a,
                            int local_rank, struct er_error *err);
int er_group_launch(struct er_group *g, struct er_error *err);
/* Its cgroup and its process; spawn failures are written to report_fd. */
int er_group_spawn_worker(struct er_group *g, struct er_worker *w, int report_fd,
                          struct er_error *err);
int er_group_watch_worker(struct er_group *g, struct er_worker *w, struct er_error *err);
/* Where programs lie is looked up anew. */
void er_group_forget_paths(struct er_group *g);

/* group_reap.c */
/* The loop's callbacks: `user` is the group, to which spawn failures were reported; the worker. */
void er_group_on_report(void *user, uint32_t events);
void er_group_on_pidfd(void *user, uint32_t events);

/* group_leave.c */
/* There is no next generation for who waits for one. */
void er_group_turn_away(struct er_worker *w);
/* From er_group_step(): while the generation is being left; while it runs. */
void er_group_step_leaving(struct er_group *g, uint64_t now_us);
void er_group_step_deserted(struct er_group *g, uint64_t now_us);

/* group_join.c */
/* Who has the places in `a`, by local rank: those that wait, and new ones. */
int er_group_seat(struct er_group *g, const struct er_assignment *a, struct er_error *err);
/* Those that joined no generation yet: KILL. */
void er_group_drop_joining(struct er_group *g);
void er_group_join_ended(struct er_group *g, struct er_worker *w);
void er_group_step_joining(struct er_group *g, uint64_t now_us);
uint64_t er_group_join_deadline(const struct er_group *g);
