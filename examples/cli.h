#pragma once
/* The command line of an example: a table of options and the struct they are kept in. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum cli_type { CLI_TEXT, CLI_COUNT, CLI_RATE, CLI_FLAG };

struct cli_row {
    const char *name, *argument; /* argument NULL: a flag */
    enum cli_type type;
    size_t offset;     /* of the field: const char *, uint64_t, double, bool */
    uint64_t min, max; /* CLI_COUNT and CLI_RATE */
    const char *help;
};

enum { CLI_ROWS_MAX = 32 };

/* Fills `options` from `argv`. ER_E_USAGE: unknown option, missing value, stray argument; else what
 * is wrong with a value. */
int cli_parse(const struct cli_row *rows, size_t n, void *options, int argc, char **argv,
              struct er_error *err);
/* On stdout. */
void cli_help(const char *title, const struct cli_row *rows, size_t n);

/* Of a program that ended with `rc`: what a restart cannot mend says so; a lost peer and the like
 * are the agent's business. `running`: er_train_run() had begun. */
int cli_exit_code(int rc, bool running);
