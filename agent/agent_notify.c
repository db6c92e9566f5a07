/* notify.command: told of the events that notify.on names, one after the other, each as JSON on its
 * stdin. Nobody waits for it but the end of the agent. */
#include <stdlib.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

#define LIMIT_US    (30 * ER_US_PER_S)
#define LINES_SHOWN 20

struct notice {
    struct er_list node;
    size_t n;
    char line[]; /* not NUL-terminated */
};

static void start_next(struct er_agent *agent);

static void say_output(struct er_agent *agent, const char *text)
{
    for (int i = 0; *text && i < LINES_SHOWN; i++) {
        size_t n = strcspn(text, "\n");

        er_agent_say(agent, "notify.command: %.*s", (int)n, text);
        text += n + (text[n] == '\n');
    }
}

static void on_done(void *user, const struct er_helper_end *end)
{
    struct er_agent *agent = user;

    agent->errands.notify.running = false;
    say_output(agent, end->text);
    if (end->trouble)
        er_log(ER_LOG_WARNING, "notify.command failed", ER_STR("reason", end->trouble));
    start_next(agent);
}

static void start_next(struct er_agent *agent)
{
    struct er_notify *notify = &agent->errands.notify;
    struct er_error err = ER_ERROR_INIT;

    while (!notify->running && !er_list_empty(&notify->queue)) {
        struct notice *notice = ER_LIST_ITEM(notify->queue.next, struct notice, node);
        const struct er_helper_opts opts = {
            .argv = agent->config->notify.command.items,
            .input = notice->line,
            .input_n = notice->n,
            .timeout_us = LIMIT_US,
            .done = on_done,
            .user = agent,
        };

        notify->running = er_helper_start(agent->errands.helpers, &opts, er_now_us(), &err) == 0;
        if (!notify->running)
            er_log(ER_LOG_WARNING, "notify.command cannot be run", ER_STR("reason", err.text));
        er_list_remove(&notice->node);
        notify->n--;
        free(notice);
    }
}

static bool is_wanted(const struct er_strlist *on, const char *name)
{
    for (size_t i = 0; i < on->n; i++) {
        if (strcmp(on->items[i], name) == 0)
            return true;
    }
    return false;
}

static void on_event(void *user, const char *name, const char *line, size_t n)
{
    struct er_agent *agent = user;
    struct er_notify *notify = &agent->errands.notify;
    struct notice *notice;

    if (!is_wanted(&agent->config->notify.on, name))
        return;
    notice = notify->n < ER_NOTICES_MAX ? malloc(sizeof(*notice) + n) : NULL;
    if (!notice) {
        if (notify->lost++ == 0)
            er_log(ER_LOG_WARNING, "notify.command is too slow: events are left out",
                   ER_STR("event", name));
        return;
    }
    er_list_init(&notice->node);
    notice->n = n;
    memcpy(notice->line, line, n);
    er_list_push_back(&notify->queue, &notice->node);
    notify->n++;
    start_next(agent);
}

void er_notify_open(struct er_agent *agent)
{
    er_list_init(&agent->errands.notify.queue);
    if (agent->config->notify.command.n == 0)
        return;
    agent->events.job = agent->config->name;
    agent->events.node_id = agent->config->node.id;
    agent->events.host = agent->hostname;
    agent->events.sink = on_event;
    agent->events.sink_user = agent;
}

void er_notify_close(struct er_agent *agent)
{
    struct er_notify *notify = &agent->errands.notify;

    agent->events.sink = NULL;
    if (!notify->queue.next)
        return; /* it never came up */
    er_list_for_each_safe (node, &notify->queue) {
        er_list_remove(node);
        free(ER_LIST_ITEM(node, struct notice, node));
    }
}

bool er_notify_idle(const struct er_agent *agent)
{
    return !agent->errands.notify.running;
}
