#pragma once
/* The vote at the end of a step, for every reducer. */
#include "runtime/comm.h"

/* `misuse`: what this rank has against the step (code 0: nothing); a rank that refuses the step
 * still votes, so the others learn it within the step. As er_ddp_finish() returns. */
int er_vote_hold(struct er_comm *comm, struct er_vote *vote, const struct er_error *misuse,
                 struct er_error *err);
