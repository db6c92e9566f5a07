#pragma once
/*
 * Command line of elastic-run, split into options and operands against the table of agent/keys.h.
 * Values are not looked at here. Pure: no I/O, no allocation.
 */
#include "agent/config.h"
#include "agent/keys.h"

struct er_option_use {
    const struct er_option *option;
    const char *value; /* borrowed from argv; NULL: a flag */
};

struct er_command_line {
    enum er_run_mode mode;
    enum er_start_kind start_kind;
    const char *help_topic;     /* borrowed, or NULL; also the shell of --print-completion */
    struct er_option_use *uses; /* the caller's, with room for argc; in the order given */
    size_t uses_n;
    int operands;      /* index of the first operand; argc when there is none */
    bool after_dashes; /* the operands follow `--`: a program, whatever its name */
    bool module, no_python, update_spec;
};

/*
 * Options end at the first operand or at `--`. `--a-b`, `--a_b`, `--a-b=value`, `--a-b value`,
 * `-r value`, `-rvalue`; no abbreviations. ER_E_USAGE: unknown option (with the nearest name),
 * value missing or too much.
 */
int er_options_parse(struct er_command_line *cl, int argc, char **argv, struct er_error *err);
