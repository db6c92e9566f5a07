/* Lines for the person in front of the terminal, beside the log: what happens now and why it
 * takes time. They go through the console, so they wait for nobody. */
#include <stdarg.h>
#include <stdio.h>

#include "agent/agent_internal.h"
#include "base/clock.h"

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
    er_buf_init(&line, 8 * LINE_MAX_BYTES);
    if (add_line(&line, agent->config, text) == 0)
        (void)er_console_write(&agent->console, 1, line.data, line.len);
    er_buf_done(&line);
}
