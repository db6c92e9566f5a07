#pragma once
/* What this node does just now, in one sentence: for `systemctl status`, elastic-ctl and the
 * terminal alike. */
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/driver.h"

struct er_agent;

#define ER_SENTENCE_MAX 512

/* "generation 3: 8 ranks on 2 nodes, step 120, 1 of 3 restarts used" */
void er_agent_sentence(struct er_agent *agent, char ret[ER_SENTENCE_MAX]);

/* What a node waits for whose job forms or has no place for it; "": nothing worth a word.
 * `now_us`: with the time that is left, 0: without. */
void er_wait_sentence(const struct er_look *look, uint64_t now_us, char ret[ER_SENTENCE_MAX]);
/* "; giving up in 9m58s" for `what` "giving up in", or "" where there is no limit. */
void er_limit_text(uint64_t until_us, uint64_t now_us, const char *what, char ret[96]);
/* In whole seconds. */
void er_seconds_text(uint64_t us, char *ret, size_t cap);
