#pragma once
/* What the nodes of a job know, asked through its store: each answers once (agent/answer.h). */
#include <jansson.h>

#include "agent/ctl_store.h"
#include "agent/hang_judge.h"

/* One node's answer. */
struct er_ctl_answer {
    char node[ER_NAME_TEXT_MAX];
    json_t *head;
    struct er_hang_fact *facts;
    size_t facts_n;
};

struct er_ctl_answers {
    struct er_ctl_answer *list;
    size_t n, cap;
};

/* Asks, and waits until all of `nodes` (ids) have answered, at most `wait_us`; those that have are
 * in `ret`, which is the caller's in any case. Nothing of it stays in the store. elastic-ctl's exit
 * code: it could not be asked at all. */
int er_ctl_gather(struct er_ctl_store *store, const char *job, const char *const *nodes, size_t n,
                  uint64_t wait_us, struct er_ctl_answers *ret, struct er_error *err);
void er_ctl_answers_done(struct er_ctl_answers *answers);
/* NULL: it has not answered. */
const struct er_ctl_answer *er_ctl_answer_of(const struct er_ctl_answers *answers,
                                             const char *node);
