#pragma once
/* THE table of elastic-ctl(1): its verbs and options. Usage, man page and completions are made from
 * it. */
#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

struct er_ctl_verb {
    const char *name;
    const char *synopsis; /* what may follow it; "": nothing */
    const char *help;
    bool operand; /* one may follow */
};

struct er_ctl_option {
    const char *name;    /* with its dashes */
    const char *metavar; /* NULL: a flag */
    const char *help;
};

struct er_ctl_code {
    int code;
    const char *when;
};

extern const struct er_ctl_verb er_ctl_verbs[];
extern const size_t er_ctl_verbs_n;
extern const struct er_ctl_option er_ctl_options[];
extern const size_t er_ctl_options_n;
extern const struct er_ctl_code er_ctl_codes[];
extern const size_t er_ctl_codes_n;

/* NULL: no such verb. */
const struct er_ctl_verb *er_ctl_verb_find(const char *name);
/* Nearest verb, or NULL. */
const char *er_ctl_verb_nearest(const char *name);
/* The text of --help. */
int er_ctl_usage(struct er_buf *out);
