#pragma once
/*
 * How long a job takes from a failure to its next progress, phase by phase, as this node sees it.
 *
 *   failed -> detected -> gone -> started -> (spoke) -> (connected) -> (loaded, ready) -> first
 * step detect_ms   stop_ms  rendezvous_ms  start_ms  comm_init_ms   restore_ms
 *
 * The first step is that of all ranks here; replay_ms, what steps that are done again will take,
 * comes after it.
 */
#include "agent/group.h"

struct er_recovery {
    bool active;
    bool expects_steps; /* the workers of the failed generation reported steps */
    char reason[32];
    uint64_t failed_us, detected_us, gone_us, started_us; /* 0: not yet */
    uint64_t old_step; /* newest step that any local rank had finished */
    uint64_t step_us;  /* a step of the failed generation, on average; 0: not known */
    uint64_t first_step_us, resumed_step; /* filled at the end */
    uint64_t loaded_step;
};

void er_recovery_failed(struct er_recovery *r, uint64_t failed_us, uint64_t detected_us);
void er_recovery_gone(struct er_recovery *r, struct er_group *group, uint64_t now_us);
void er_recovery_started(struct er_recovery *r, const char *reason, uint64_t now_us);
/* Next time to look at the pages: every millisecond while a recovery is being timed (less often
 * after a minute, no more after ten), otherwise ER_FOREVER. */
uint64_t er_recovery_deadline(const struct er_recovery *r, uint64_t now_us);
/* True once: all ranks of this node have finished a step in the new generation (or, when they never
 * reported steps, all run). */
bool er_recovery_step(struct er_recovery *r, struct er_group *group, uint64_t now_us);
