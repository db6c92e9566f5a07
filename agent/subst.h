#pragma once
/* The names of ${...}; er_subst() itself is in agent/config.h. */
#include "agent/config.h"

/* NULL-terminated; `env.NAME` comes on top. */
extern const char *const er_subst_names[];

/* Would er_subst() succeed with every known name? `environ_` as environ(7), for ${env.NAME}. */
int er_subst_check(const char *text, bool program_form, char **environ_, struct er_error *err);
/* getenv() in a given environment; borrowed, or NULL. */
const char *er_environ_get(char **environ_, const char *name);
