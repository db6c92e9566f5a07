/*
 * Is this node fit to join? Asked before it joins for the first time, and again between two
 * generations, before the job hears that its workers have left. An unhealthy node looks again after
 * health.cooldown as long as nobody else could take its place; one of several is set aside.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/timex.h>

#include "agent/agent_internal.h"
#include "agent/gpu.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/file.h"
#include "base/log.h"
#include "base/parse.h"
#include "rendezvous/codec.h"

#define ROOM_MIN_BYTES   (64ull * 1024 * 1024) /* below it no job gets far */
#define MEMORY_MIN_BYTES (64ull * 1024 * 1024)
#define DETAIL_MAX       256

static bool has_check(const struct er_agent *agent, const char *name)
{
    const struct er_strlist *list = &agent->config->health.builtin;

    for (size_t i = 0; i < list->n; i++) {
        if (strcmp(list->items[i], name) == 0)
            return true;
    }
    return false;
}

/* Each returns false with the reason. */
static bool disk_is_fine(const struct er_agent *agent, char ret_detail[DETAIL_MAX])
{
    const char *dir = agent->config->checkpoint.dir;
    struct statvfs fs;

    if (!dir || statvfs(dir, &fs) < 0)
        return true;
    if (fs.f_flag & ST_RDONLY) {
        snprintf(ret_detail, DETAIL_MAX, "checkpoint.dir '%.150s' is on a read-only file system",
                 dir);
        return false;
    }
    if ((uint64_t)fs.f_bavail * fs.f_frsize >= ROOM_MIN_BYTES)
        return true;
    snprintf(ret_detail, DETAIL_MAX, "checkpoint.dir '%.150s' has less than 64 MiB left", dir);
    return false;
}

static bool memory_is_fine(const struct er_agent *agent, char ret_detail[DETAIL_MAX])
{
    static const char FIELD[] = "MemAvailable:";
    ER_CLEANUP(er_buf_done) struct er_buf text;
    const char *at;
    uint64_t kib;

    er_buf_init(&text, 64 * 1024);
    at = er_file_read("/proc/meminfo", &text, NULL) ? NULL : strstr(er_buf_str(&text), FIELD);
    kib = at ? strtoull(at + sizeof(FIELD) - 1, NULL, 10) : UINT64_MAX / 1024;
    if (kib >= MEMORY_MIN_BYTES / 1024)
        return true;
    snprintf(ret_detail, DETAIL_MAX, "only %llu KiB of memory are available",
             (unsigned long long)kib);
    return false;
}

static bool clock_is_fine(const struct er_agent *agent, char ret_detail[DETAIL_MAX])
{
    struct timex t = {0};

    if (adjtimex(&t) != TIME_ERROR)
        return true;
    snprintf(ret_detail, DETAIL_MAX, "the clock is not synchronised (no NTP or PTP)");
    return false;
}

/* The wait is over, one way or the other. */
static void proceed(struct er_agent *agent)
{
    struct er_health *h = &agent->errands.health;
    bool first = h->first;

    h->checking = h->first = false;
    h->passed = !first;
    h->retry_us = h->give_up_us = ER_FOREVER;
    if (!first)
        er_agent_say_left(agent);
}

static void unhealthy(struct er_agent *agent, const char *check, const char *detail)
{
    const struct er_config *c = agent->config;
    struct er_health *h = &agent->errands.health;
    uint64_t now_us = er_now_us(), again_us = er_deadline_in(now_us, c->health.cooldown_us);
    struct er_error err = ER_ERROR_INIT;
    char time[ER_UNIT_TEXT_MAX];

    er_event(&agent->events, "health_check_failed", ER_SEVERITY_WARNING, 0,
             "This node is not fit to join.", ER_STR("check", check), ER_STR("detail", detail));
    er_format_duration(c->health.cooldown_us, time);
    if (!h->first && c->nnodes_max > 1) {
        er_agent_say(agent, "unhealthy (%s): %s; set aside for %s", check, detail, time);
        er_agent_ask_aside(agent, detail, c->health.cooldown_us);
        proceed(agent);
    } else if (again_us > h->give_up_us) {
        er_error_set(&err, ER_E_CONFIG, "this node is unhealthy (%s): %s", check, detail);
        er_agent_say(agent, "%s", err.text);
        er_agent_fail(agent, ER_CODE_TEMPFAIL, &err);
        proceed(agent);
    } else {
        er_agent_say(agent, "unhealthy (%s): %s; the next look is in %s", check, detail, time);
        h->retry_us = again_us;
    }
}

static const char *last_line(const char *text, char ret[DETAIL_MAX])
{
    size_t n = strlen(text), start;

    while (n > 0 && strchr(" \t\r\n", text[n - 1]))
        n--;
    start = n;
    while (start > 0 && text[start - 1] != '\n')
        start--;
    snprintf(ret, DETAIL_MAX, "%.*s", (int)(n - start < DETAIL_MAX ? n - start : DETAIL_MAX - 1),
             text + start);
    return ret;
}

static void on_command(void *user, const struct er_helper_end *end)
{
    struct er_agent *agent = user;
    char detail[DETAIL_MAX];

    agent->errands.health.running = false;
    if (!end->trouble) {
        proceed(agent);
        return;
    }
    if (end->timed_out || end->could_not_run || !last_line(end->text, detail)[0])
        snprintf(detail, sizeof(detail), "health.command %s", end->trouble);
    unhealthy(agent, "command", detail);
}

static void run_command(struct er_agent *agent)
{
    const struct er_config *c = agent->config;
    const struct er_helper_opts opts = {.argv = c->health.command.items,
                                        .timeout_us = c->health.timeout_us,
                                        .done = on_command,
                                        .user = agent};
    struct er_error err = ER_ERROR_INIT;

    if (c->health.command.n == 0) {
        proceed(agent);
        return;
    }
    agent->errands.health.running = true;
    if (er_helper_start(agent->errands.helpers, &opts, er_now_us(), &err)) {
        agent->errands.health.running = false;
        unhealthy(agent, "command", err.text);
    }
}

static int probe_gpus(int out_fd)
{
    return er_gpu_probe(out_fd, false, "");
}

static void on_gpus(void *user, const struct er_helper_end *end)
{
    struct er_agent *agent = user;
    ER_CLEANUP(er_cleanup_free) struct er_gpu_table *table = malloc(sizeof(*table));
    char detail[DETAIL_MAX];

    agent->errands.health.running = false;
    if (end->trouble) {
        snprintf(detail, sizeof(detail), "the NVIDIA driver's probe %s", end->trouble);
        unhealthy(agent, "gpu", detail);
    } else if (!table || er_gpu_table_parse(table, end->text, NULL) ||
               table->n < agent->config->gpus_n || table->n == 0) {
        snprintf(detail, sizeof(detail), "%zu of %u GPUs answer", table ? table->n : 0,
                 agent->config->gpus_n ? agent->config->gpus_n : 1);
        unhealthy(agent, "gpu", detail);
    } else {
        run_command(agent);
    }
}

static void run_gpus(struct er_agent *agent)
{
    const struct er_helper_opts opts = {.run = probe_gpus,
                                        .timeout_us = agent->config->health.timeout_us,
                                        .done = on_gpus,
                                        .user = agent};
    struct er_error err = ER_ERROR_INIT;

    if (!has_check(agent, "gpu")) {
        run_command(agent);
        return;
    }
    agent->errands.health.running = true;
    if (er_helper_start(agent->errands.helpers, &opts, er_now_us(), &err)) {
        agent->errands.health.running = false;
        unhealthy(agent, "gpu", err.text);
    }
}

static void check(struct er_agent *agent)
{
    static const struct {
        const char *name;
        bool (*is_fine)(const struct er_agent *agent, char ret_detail[DETAIL_MAX]);
    } CHECKS[] = {{"disk", disk_is_fine}, {"memory", memory_is_fine}, {"clock", clock_is_fine}};
    char detail[DETAIL_MAX];

    agent->errands.health.retry_us = ER_FOREVER;
    for (size_t i = 0; i < ER_ARRAY_N(CHECKS); i++) {
        if (has_check(agent, CHECKS[i].name) && !CHECKS[i].is_fine(agent, detail)) {
            unhealthy(agent, CHECKS[i].name, detail);
            return;
        }
    }
    run_gpus(agent);
}

static void begin(struct er_agent *agent, bool first, uint64_t now_us)
{
    struct er_health *h = &agent->errands.health;

    h->checking = true;
    h->first = first;
    h->give_up_us = er_deadline_in(now_us, agent->config->rendezvous.join_timeout_us);
    check(agent);
}

void er_health_first(struct er_agent *agent, uint64_t now_us)
{
    begin(agent, true, now_us);
}

static bool is_leaving(const struct er_agent *agent)
{
    return agent->stop_signals > 0 || agent->own_exit_code || agent->done;
}

bool er_health_holds(const struct er_agent *agent)
{
    const struct er_health *h = &agent->errands.health;

    return h->checking && h->first && !is_leaving(agent);
}

/* Nobody joins again after a generation in which all went well. */
static bool has_succeeded(const struct er_agent *agent)
{
    for (int i = 0; i < er_group_size(agent->group); i++) {
        const struct er_worker *w = er_group_worker(agent->group, i);

        if (er_worker_fsm_alive(&w->fsm) || w->exit.kind != ER_EXIT_OK)
            return false;
    }
    return er_group_size(agent->group) > 0;
}

bool er_health_again(struct er_agent *agent, uint64_t now_us)
{
    struct er_health *h = &agent->errands.health;

    if (h->passed || is_leaving(agent) || has_succeeded(agent)) {
        h->passed = false; /* for the next time */
        h->checking = false;
        return false;
    }
    if (!h->checking)
        begin(agent, false, now_us);
    return true;
}

void er_health_step(struct er_agent *agent, uint64_t now_us)
{
    struct er_health *h = &agent->errands.health;

    if (h->checking && is_leaving(agent) && !h->running) {
        proceed(agent);
    } else if (now_us >= h->retry_us) {
        check(agent);
    }
}
