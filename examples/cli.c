#include "examples/cli.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"
#include "runtime/elastic.h"

static int set_option(void *options, const struct cli_row *row, const char *text,
                      struct er_error *err)
{
    void *field = (char *)options + row->offset;
    int rc = 0;

    if (row->type == CLI_COUNT)
        rc = er_parse_u64(text, row->min, row->max, field, err);
    else if (row->type == CLI_RATE)
        rc = er_parse_f64(text, (double)row->min, (double)row->max, field, err);
    else if (row->type == CLI_FLAG)
        *(bool *)field = true;
    else
        *(const char **)field = text;
    return rc < 0 ? er_error_wrap(err, rc, "--%s", row->name) : 0;
}

int cli_parse(const struct cli_row *rows, size_t n, void *options, int argc, char **argv,
              struct er_error *err)
{
    struct option longs[CLI_ROWS_MAX + 1] = {0};
    int at, rc = 0;

    assert(n <= CLI_ROWS_MAX);
    for (size_t i = 0; i < n; i++)
        longs[i] = (struct option){rows[i].name, rows[i].argument ? required_argument : no_argument,
                                   NULL, (int)i};
    opterr = 0;
    while (rc == 0 && (at = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (at == '?')
            return er_error_set(err, ER_E_USAGE, "'%s': unknown option, or its value is missing",
                                argv[optind - 1]);
        rc = set_option(options, &rows[at], optarg, err);
    }
    if (rc == 0 && optind < argc)
        rc = er_error_set(err, ER_E_USAGE, "'%s': no arguments are expected", argv[optind]);
    return rc;
}

void cli_help(const char *title, const struct cli_row *rows, size_t n)
{
    puts(title);
    for (size_t i = 0; i < n; i++)
        printf("  --%s %-*s %s\n", rows[i].name, (int)(20 - strlen(rows[i].name)),
               rows[i].argument ? rows[i].argument : "", rows[i].help);
}

int cli_exit_code(int rc, bool running)
{
    switch (rc) {
    case 0:
        return EXIT_SUCCESS;
    case -EIO: /* er_train_run(): checkpoints failed too often */
        return running ? ER_WORKER_EXIT_CHECKPOINTS : EXIT_FAILURE;
    case ER_E_USAGE:
    case ER_E_CONFIG:
    case ER_E_CORRUPT: /* the data set, or every checkpoint */
    case -EINVAL:
    case -ERANGE:
    case -ENOENT:
    case -ENOTDIR:
    case -EACCES:
        return ER_WORKER_EXIT_FATAL;
    default:
        return EXIT_FAILURE;
    }
}
