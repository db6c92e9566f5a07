#pragma once
/*
 * elastic-ctl explain: why a job does not move, the most likely cause first. Of an agent's status
 * its own diagnosis (agent/diagnose.h); through the store what all nodes answer (ctl_gather.h), put
 * together: what the nodes find each, and what only all ranks together tell, by the same rules.
 */
#include <jansson.h>
#include <stdio.h>

#include "agent/ctl_store.h"

/* Adds `diagnosis` to a state out of the store, and `answered`, `asked`: how many nodes. Whatever
 * fails is a finding of it; -ENOMEM. */
int er_ctl_explain_gather(struct er_ctl_store *store, const char *job, json_t *state,
                          struct er_error *err);
/* The findings of a state for a person. */
void er_ctl_explain(const json_t *state, FILE *to);
