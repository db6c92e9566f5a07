#include "agent/events.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"

#define EVENTS_VERSION 1

static const char *const SEVERITIES[] = {
    [ER_SEVERITY_INFO] = "info", [ER_SEVERITY_WARNING] = "warning", [ER_SEVERITY_ERROR] = "error"};

bool er_event_is_known(const char *name)
{
    static const char *const NAMES[] = {
        "agent_started",     "agent_exited",       "node_joined",          "node_promoted",
        "node_left",         "node_lost",          "node_set_aside",       "generation_forming",
        "generation_sealed", "worker_started",     "worker_ready",         "worker_exited",
        "worker_hung",       "straggler_detected", "restart_counted",      "restart_denied",
        "resize_announced",  "recovered",          "checkpoint_committed", "checkpoint_failed",
        "checkpoint_loaded", "store_lost",         "store_restored",       "health_check_failed",
        "log_dropped",       "job_succeeded",      "job_failed",           "job_stopped",
    };

    for (size_t i = 0; i < ER_ARRAY_N(NAMES); i++) {
        if (strcmp(NAMES[i], name) == 0)
            return true;
    }
    return false;
}

bool er_events_path(const char *dir, const char *node_id, char ret_path[4096])
{
    return snprintf(ret_path, 4096, "%s/events-%s.jsonl", dir, node_id) < 4096;
}

int er_events_open(struct er_events *ret, const char *dir, const char *job, const char *node_id,
                   const char *host, struct er_error *err)
{
    char path[4096];
    int fd;

    if (!er_events_path(dir, node_id, path))
        return er_error_set(err, -ENAMETOOLONG, "event file in '%s': path too long", dir);
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0)
        return er_error_errno(err, "open event file '%s'", path);
    *ret = (struct er_events){.fd = fd, .job = job, .node_id = node_id, .host = host};
    return 0;
}

void er_events_close(struct er_events *events)
{
    er_cleanup_fd(&events->fd);
}

static int build(struct er_buf *line, struct er_events *events, const struct er_field *common,
                 size_t common_n, const struct er_field *fields, size_t n)
{
    int rc = er_buf_add_str(line, "{");

    if (!rc)
        rc = er_fields_json(line, common, common_n);
    if (!rc && n > 0)
        rc = er_buf_add_str(line, ",");
    if (!rc)
        rc = er_fields_json(line, fields, n);
    return rc ? rc : er_buf_add_str(line, "}\n");
}

void er_event_fields(struct er_events *events, const char *name, enum er_severity severity,
                     uint64_t generation, const char *msg, const struct er_field *fields, size_t n)
{
    char ts[ER_RFC3339_MAX];
    struct er_buf line;

    if (events->observe)
        events->observe(events->observe_user, name, fields, n);
    if (events->fd < 0 && !events->sink)
        return;
    er_rfc3339(er_wall_us(), ts);
    const struct er_field common[] = {
        ER_INT("v", EVENTS_VERSION),
        ER_STR("ts", ts),
        ER_UINT("mono_us", er_now_us()),
        ER_UINT("seq", ++events->seq),
        ER_STR("event", name),
        ER_STR("severity", SEVERITIES[severity]),
        ER_STR("job", events->job),
        ER_STR("run_id", events->run),
        ER_STR("node_id", events->node_id),
        ER_STR("host", events->host),
        ER_UINT("generation", generation),
        ER_STR("msg", msg),
    };

    er_buf_init(&line, ER_EVENT_MAX);
    if (build(&line, events, common, ER_ARRAY_N(common), fields, n)) {
        er_buf_clear(&line);
        if (build(&line, events, common, ER_ARRAY_N(common), NULL, 0))
            er_buf_clear(&line);
    }
    /* One write, so that lines never mix. A full disk loses this one and stops nothing: the gap in
     * seq tells. */
    if (line.len > 0 && events->fd >= 0)
        (void)!write(events->fd, line.data, line.len);
    if (line.len > 0 && events->sink)
        events->sink(events->sink_user, name, line.data, line.len);
    er_buf_done(&line);
}
