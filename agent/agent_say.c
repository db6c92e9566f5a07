/* Lines for the person in front of the terminal, beside the log: what happens now and why it
 * takes time. They go through the console, so they wait for nobody. */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "agent/env.h"
#include "agent/journal.h"
#include "base/clock.h"
#include "base/utf8.h"

#define LINE_MAX_BYTES 1024

static int add_line(struct er_buf *line, const struct er_config *config, const char *text)
{
    char ts[ER_RFC3339_MAX];
    int rc;

    if (!er_config_json_log(config))
        return er_buf_printf(line, "elastic-run: %s\n", text);
    er_rfc3339(er_wall_us(), ts);
    const struct er_field fields[] = {ER_STR("ts", ts), ER_STR("level", "info"),
                                      ER_STR("job", config->name), ER_STR("msg", text)};

    rc = er_buf_add_str(line, "{");
    if (!rc)
        rc = er_fields_json(line, fields, sizeof(fields) / sizeof(fields[0]));
    return rc ? rc : er_buf_add_str(line, "}\n");
}

void er_agent_say(struct er_agent *agent, const char *fmt, ...)
{
    char text[LINE_MAX_BYTES];
    struct er_buf line;
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    er_utf8_tame(text, strlen(text)); /* others' words may be in it */
    if (er_journal_wanted() && er_journal_send(ER_LOG_INFO, text, NULL, 0) == 0)
        return;
    er_buf_init(&line, 8 * LINE_MAX_BYTES);
    if (add_line(&line, agent->config, text) == 0)
        (void)er_console_write(&agent->console, 1, line.data, line.len);
    er_buf_done(&line);
}

/* Of the spec (NULL: removed), else of our own environment; NULL: not set. */
static const char *value_of(const struct er_config *c, char **environ_, const char *name)
{
    for (size_t i = 0; i < c->env.n; i++)
        if (strcmp(c->env.names[i], name) == 0)
            return c->env.values[i];
    return er_env_get((const char *const *)environ_, name);
}

/* One thread a worker is torchrun's default too, and slow where there are processors to spare. */
static void say_threads(struct er_agent *agent, char **environ_)
{
    const struct er_config *c = agent->config;
    cpu_set_t set;
    int cpus = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 0;

    if (c->nproc > 1 && cpus >= 2 * (int)c->nproc && !value_of(c, environ_, "OMP_NUM_THREADS"))
        er_agent_say(agent,
                     "OMP_NUM_THREADS is 1 for each of %u workers on %d processors; set it "
                     "to give them more",
                     c->nproc, cpus);
}

/* Such a launch cannot be given up from within: only a worker's end releases it. */
static void say_blocking(struct er_agent *agent, char **environ_)
{
    const char *value = value_of(agent->config, environ_, "CUDA_LAUNCH_BLOCKING");

    if (value && strcmp(value, "1") == 0)
        er_agent_say(agent, "CUDA_LAUNCH_BLOCKING is 1: a worker that waits for a peer in a launch "
                            "cannot abort; for debugging alone");
}

static bool stdin_has_data(void)
{
    struct stat st;
    int n = 0;

    return fstat(0, &st) == 0 && S_ISFIFO(st.st_mode) && ioctl(0, FIONREAD, &n) == 0 && n > 0;
}

void er_agent_say_start(struct er_agent *agent, char **environ_)
{
    const struct er_config *c = agent->config;

    if (agent->log_dir && (!c->program_form || c->log.dir_implied))
        er_agent_say(agent, "job '%s': logs are in %s", c->name, agent->log_dir);
    say_threads(agent, environ_);
    say_blocking(agent, environ_);
    if (c->stdin_mode == ER_STDIN_AUTO && stdin_has_data())
        er_agent_say(agent, "what comes in on stdin does not reach the workers; with --set "
                            "stdin=inherit it does");
}
