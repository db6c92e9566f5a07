/* elastic-run: guard first, then the configuration, then the agent. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/dry_run.h"
#include "agent/findings.h"
#include "agent/journal.h"
#include "base/exit_codes.h"
#include "base/log.h"

extern char **environ;

/* Descriptors that we open must never become 0, 1 or 2 by chance. */
static int open_stdio(void)
{
    int fd;

    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= 2);
    if (fd < 0)
        return -errno;
    close(fd);
    return 0;
}

/* log.format auto: entries with fields where stderr is the journal. */
static bool is_for_journal(const struct er_config *config)
{
    return config && config->log.format && !strcmp(config->log.format, "auto") &&
           er_journal_is(STDERR_FILENO, getenv("JOURNAL_STREAM"));
}

static void set_up_log(const struct er_config *config)
{
    bool journal = is_for_journal(config);
    const struct er_log_opts opts = {
        .fd = 2,
        .level = ER_LOG_WARNING,
        .format = er_config_json_log(config) ? ER_LOG_JSON : ER_LOG_TEXT,
        .name = "elastic-run",
        .sink = journal ? er_journal_send : NULL,
    };

    er_log_setup(&opts);
    if (journal)
        er_journal_open(config->name, config->node.id);
}

static void tell_warnings(const struct er_config *config)
{
    for (size_t i = 0; i < config->warnings.n; i++)
        er_log(ER_LOG_WARNING, config->warnings.items[i]);
}

static int fail(int code, const struct er_error *err)
{
    er_findings_tell("elastic-run", err->text);
    return code;
}

/* As the shell has it. */
static int start_code(int rc)
{
    return rc == ER_E_CONFIG ? ER_CODE_CONFIG
           : rc == -ENOENT   ? ER_CODE_NOT_FOUND
                             : ER_CODE_NOT_EXECUTABLE;
}

/* Where nothing but stdout is written, a failure to write is not a folder's. */
static int print_code(enum er_run_mode mode, const struct er_error *err)
{
    int code = er_config_exit_code(err);

    return code == ER_CODE_CANTCREAT && mode != ER_MODE_CHECK ? ER_CODE_OSERR : code;
}

static int run_mode(struct er_config *config, struct er_guard *guard, int argc, char **argv)
{
    struct er_error err = ER_ERROR_INIT;
    int rc = 0;

    switch (config->mode) {
    case ER_MODE_RUN:
        rc = er_config_check_start(config, &err);
        if (rc)
            return fail(start_code(rc), &err);
        return er_agent_run(config, guard, argc, argv, environ);
    case ER_MODE_CHECK:
        rc = er_config_check(config, environ, &err);
        break;
    case ER_MODE_DRY_RUN:
        rc = er_dry_run_print(config, environ, &err);
        break;
    case ER_MODE_PRINT_CONFIG:
        rc = er_config_print(config, &err);
        break;
    case ER_MODE_HELP:
    case ER_MODE_VERSION:
    case ER_MODE_COMPLETION:
        rc = er_config_help(config, &err);
        break;
    }
    if (rc)
        return fail(print_code(config->mode, &err), &err);
    if (fflush(stdout) == EOF) {
        er_error_errno(&err, "write to stdout");
        return fail(ER_CODE_OSERR, &err);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct er_error err = ER_ERROR_INIT;
    struct er_guard guard = {.fd = -1};
    struct er_config *config = NULL;
    int code;

    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error like a full disk */
    set_up_log(NULL);
    if (open_stdio() < 0)
        return ER_CODE_OSERR;
    if (er_guard_start(&guard, &err))
        return fail(ER_CODE_OSERR, &err);
    if (er_config_load(&config, argc, argv, environ, &err))
        return fail(er_config_exit_code(&err), &err);
    set_up_log(config);
    tell_warnings(config);
    code = run_mode(config, &guard, argc, argv);
    er_config_free(config);
    return code;
}
