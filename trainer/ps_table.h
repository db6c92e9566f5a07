#pragma once
/*
 * Which part of which step a parameter server gives out next, and which are done. A step is divided
 * into `parts`; part number n is part n % parts of step n / parts + 1. Pure.
 *
 *   never given -- lease --> held -- commit --> done
 *                             |  ^
 *                        lost +--+ given again
 *
 * Nothing here is kept by worker but what it holds: who was lost holds nobody up, since its part
 * goes to another, and who joins is as far as all. A table is made anew for the workers of each
 * generation (er_ps_table_resume()), so that worker numbers are those of its ranks.
 *
 * Staleness s: a part of step t is given out only when all parts of the steps before t - s are
 * done, so that its gradient has seen them; 0 is lock-step. Source of the bound: Q. Ho et al.,
 * "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ER_PS_UNBOUNDED   UINT64_MAX /* no bound but ER_PS_WINDOW */
#define ER_PS_WORKERS_MAX 1024
#define ER_PS_WINDOW      65536 /* parts behind the oldest that is not done */

struct er_ps_table {
    uint32_t parts;
    uint64_t steps, staleness;
    uint64_t
        pause_steps[2]; /* at multiples of these all workers meet, nothing under way; 0: none */

    uint64_t done_steps;              /* all steps up to it are done */
    uint64_t next;                    /* part never given */
    uint64_t bits[ER_PS_WINDOW / 64]; /* done parts, a ring from done_steps * parts on */
    struct {
        bool held;
        uint64_t part, paused; /* paused: newest step at which it was told to meet */
        bool told, called;     /* it knows of the change; it was sent to the meeting for it */
    } worker[ER_PS_WORKERS_MAX];
    uint32_t workers, told_n, called_n; /* workers: so many are to be told; 0: no call */
    bool calling;                       /* all meet once more, at the end of step `call` */
    uint64_t call;
    uint64_t returned[ER_PS_WORKERS_MAX];
    size_t returned_n;
};

enum er_ps_answer {
    ER_PS_PART,  /* *ret: its number */
    ER_PS_WAIT,  /* ask again after the next commit or loss */
    ER_PS_PAUSE, /* *ret: step that is done; everybody meets, then asks again */
    ER_PS_DONE
};

/* `done_steps`: of an earlier run, which are not given out again. parts 1 to ER_PS_WORKERS_MAX. */
void er_ps_table_init(struct er_ps_table *table, uint32_t parts, uint64_t steps, uint64_t staleness,
                      const uint64_t pause_steps[2], uint64_t done_steps);
/* `worker` asks; it holds nothing. */
enum er_ps_answer er_ps_table_lease(struct er_ps_table *table, uint32_t worker, uint64_t *ret);
/* Whether `part` counts: false when it is done already or was never within the window. */
bool er_ps_table_commit(struct er_ps_table *table, uint64_t part);
/* What the worker holds goes to another. */
void er_ps_table_lost(struct er_ps_table *table, uint32_t worker);
/* Parts done beyond whole steps in an earlier generation, `bits` of its table: the others are given
 * again. false: there are none such as a table has. */
bool er_ps_table_resume(struct er_ps_table *table, const uint64_t bits[ER_PS_WINDOW / 64]);
/* The worker has been told that the membership changes. Once all `workers` of the table have, they
 * meet at the end of the newest step of which a part was given out. */
void er_ps_table_told(struct er_ps_table *table, uint32_t worker);
/* Steps that a gradient of `step` must have seen. */
uint64_t er_ps_table_needs(const struct er_ps_table *table, uint64_t step);
uint64_t er_ps_part_step(const struct er_ps_table *table, uint64_t part);

#ifdef __cplusplus
}
#endif
