#pragma once
/* Two configurations of the same job, key by key. */
#include "agent/config.h"
#include "agent/keys.h"

struct er_config_change {
    const struct er_key_info *key;
    const char *was, *is; /* canonical text; of the two configurations */
    const char *where;    /* "job.yaml:12:3: log.tee" */
};

/* Keys whose value differs, the first `max` of them in `ret`; returns how many there are. What the
 * agent settled itself at its start (a name, a node id that nobody gave) is no difference. */
size_t er_config_compare(const struct er_config *was, const struct er_config *is,
                         struct er_config_change *ret, size_t max);
/* Swaps the value of one key with all that belongs to it. */
void er_config_swap(struct er_config *a, struct er_config *b, const struct er_key_info *key);
