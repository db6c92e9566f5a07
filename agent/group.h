#pragma once
/*
 * All local workers of one generation: started together, stopped together, and followed by a sweep
 * that ends whatever they left behind. Nothing of a generation survives er_group_gone().
 *
 *   start -> running -> (each worker ends) -> none alive -> sweep -> gone
 *                 \-- stop: ladder for each --/
 *
 * Workers that can live on leave the generation instead, and the group goes on with them in the
 * next:
 *
 *   running -> leave: notice -> (each has left, or has ended) -> sweep -> parted -> rejoin ->
 * running
 */
#include "agent/worker.h"

/*
 * The node has as many places as nproc_per_node says. A generation may have fewer workers: they are
 * in some of the places, in the order of their local ranks. In a free one a worker can be started
 * beside the generation; it waits for the next one, and is up when it asks for its world.
 */
struct er_group;

#define ER_GROUP_NO_PROGRAM 1

struct er_group_callbacks {
    void (*exited)(void *user, struct er_worker *worker); /* judged by the callee */
    void (*gone)(void *user);                             /* once, from er_group_step() */
    /* Nobody acts in the generation any more, and somebody is left for the next: er_group_rejoin()
     * or er_group_stop(). From er_group_step(). */
    void (*parted)(void *user);
    /* Once in a generation: a worker has left it, and half a second later nobody has ended it. From
     * er_group_step(). Who is not led out of it then is killed when the store must know of any
     * loss. */
    void (*deserted)(void *user);
    /* Before gone(): somebody was killed and does not end (in the kernel, or held by a debugger).
     * No code of its own runs any more, but what it holds (a device, memory) may stay taken. */
    void (*stuck)(void *user, const char *who);
    /* A worker that was started beside the generation has ended before it could join. */
    void (*unjoined)(void *user, struct er_worker *worker);
};

/*
 * Starts the workers of `a` without waiting for their exec. *ret is set whenever a group exists,
 * also on failure: then what had been started is being killed, and the group becomes gone as
 * always. -ENOENT, -EACCES: the program cannot be run (nothing was started); ER_E_CONFIG: a value
 * of the spec does not work out; other: the system refused a process, descriptor or memory.
 */
int er_group_start(struct er_group **ret, const struct er_group_context *ctx,
                   const struct er_assignment *a, const struct er_group_callbacks *callbacks,
                   void *user, struct er_error *err);
/* Ends what is left, waits for it (not longer than 10 s), frees. NULL is fine. */
void er_group_free(struct er_group *group);

/* First rung of the ladder for every living worker; grace_us 0: KILL at once. Called again it can
 * only shorten the grace. */
void er_group_stop(struct er_group *group, uint64_t now_us, uint64_t grace_us);
/* The membership changes, and this node stays: workers that can live on are asked to leave the
 * generation at the end of a step that all ranks agree on (`save_first`: with the state on disk),
 * those that cannot, to end there; er_group_leave() or er_group_stop() follow when that takes too
 * long. False: some do not speak libelastic, or none can live on; nothing was done. */
bool er_group_ask(struct er_group *group, uint64_t now_us, uint64_t grace_us, bool save_first);
/* Every living worker speaks libelastic. */
bool er_group_all_spoke(const struct er_group *group);
/* Some living worker has said HELLO, and not that it is ready. */
bool er_group_starts(const struct er_group *group);
/* There is no next generation for the workers of a parted group: they are told so, and have
 * `grace_us` to end. */
void er_group_dismiss(struct er_group *group, uint64_t now_us, uint64_t grace_us);
/* Ends the generation, but not the workers that can live on: they are told, and have `grace_us` to
 * leave; the others get the ladder. False: there are none such, nothing was done. What the ended
 * ones left behind is ended; processes that the living ones have detached from themselves (double
 * fork) cannot be told from it. */
bool er_group_leave(struct er_group *group, uint64_t now_us, uint64_t grace_us);
/* `worker` has left its generation, and asked for the next one in request `seq` of `conn`. */
void er_group_left(struct er_group *group, struct er_worker *worker, struct er_ctlconn *conn,
                   uint32_t seq, uint64_t now_us);
/* Who has left its generation first; NULL: nobody. */
const struct er_worker *er_group_deserter(const struct er_group *group);
bool er_group_parted(const struct er_group *group);
/* The group goes on in generation `a`: those that wait are its workers (and are owed an answer),
 * then those that come up, and new ones are started for the rest. Errors as er_group_start(); then
 * all are being killed. Parted groups only, and er_group_waiting() must not be more than
 * a->local_size but for who joins. */
int er_group_rejoin(struct er_group *group, const struct er_assignment *a, struct er_error *err);
/* The generation for which the group was started ahead is sealed: `a` is what it is now. False: not
 * all its workers are there any more; start it anew. */
bool er_group_confirm(struct er_group *group, const struct er_assignment *a);
/* Starts a worker beside the generation, in the first free place. 1: there is none. Errors as
 * er_group_start(), and nothing was started. */
int er_group_add(struct er_group *group, struct er_error *err);
/* `worker` joins, and asks for its world: that of the next generation. */
void er_group_hello(struct er_group *group, struct er_worker *worker, struct er_ctlconn *conn,
                    uint32_t seq);
/* Living workers that can be in the next generation: that have left this one; that were started
 * beside it and are up; and that are not up yet. */
struct er_group_next {
    int left, up, coming;
};
struct er_group_next er_group_next(const struct er_group *group);
int er_group_places(const struct er_group *group);
/* Living workers that have not left their generation. */
int er_group_acting(const struct er_group *group);
/* The notice DRAIN to all living workers; to those that do not speak libelastic `notice_signal`
 * instead (to the process alone: children of it that know nothing of the signal would die of it).
 * False: some do not, and there is no such signal (0); nothing was done. */
bool er_group_drain(struct er_group *group, int notice_signal);
/* When KILL comes for the workers that are being stopped; ER_FOREVER: it does not. */
uint64_t er_group_kill_at(const struct er_group *group);
/* A signal to every living worker's process group. */
void er_group_signal(struct er_group *group, int sig);
/* SIGCHLD: reap whatever has ended, workers and orphans. */
void er_group_child(struct er_group *group);

uint64_t er_group_deadline(const struct er_group *group);
void er_group_step(struct er_group *group, uint64_t now_us);
bool er_group_gone(const struct er_group *group);

const struct er_assignment *er_group_assignment(const struct er_group *group);
int er_group_size(const struct er_group *group);
int er_group_alive(const struct er_group *group);
struct er_worker *er_group_worker(struct er_group *group, int local_rank);
/* The living worker that `pid` is or descends from; NULL: none. */
struct er_worker *er_group_worker_of(struct er_group *group, pid_t pid);
/* Marks a worker READY; false when it was already. */
bool er_group_ready(struct er_group *group, struct er_worker *worker, uint64_t now_us);
