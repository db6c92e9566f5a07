#pragma once
/* The event file events-<node_id>.jsonl (docs/operations.md): one flat JSON object a line. */
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/field.h"

#define ER_EVENT_MAX (64u * 1024)

enum er_severity { ER_SEVERITY_INFO, ER_SEVERITY_WARNING, ER_SEVERITY_ERROR };

struct er_events {
    int fd; /* -1: no file, events are dropped */
    uint64_t seq;
    const char *job, *node_id, *host; /* borrowed for the file's life */
    char run[40];                     /* run_id, "" until known */
    /* Who else is told of each event, NULL: nobody. `line` ends in a newline, and is lent. */
    void (*sink)(void *user, const char *name, const char *line, size_t n);
    void *sink_user;
    /* Who counts them, NULL: nobody. `fields` are the event's own, without the common ones. */
    void (*observe)(void *user, const char *name, const struct er_field *fields, size_t n);
    void *observe_user;
};

/* Does anybody hear of events? */
static inline bool er_events_wanted(const struct er_events *events)
{
    return events->fd >= 0 || events->sink || events->observe;
}

/* Is it the name of an event (docs/operations.md)? */
bool er_event_is_known(const char *name);

/* `dir` exists; the file is appended to. */
int er_events_open(struct er_events *ret, const char *dir, const char *job, const char *node_id,
                   const char *host, struct er_error *err);
void er_events_close(struct er_events *events);
/* Where the event file of this node lies; false: the path is too long. */
bool er_events_path(const char *dir, const char *node_id, char ret_path[4096]);

/* The last line of an event file, or the last one of that event (within its last 256 KiB), owned by
 * the caller; NULL: none. */
json_t *er_events_last(const char *path, const char *event);
/* run_id of the newest run that an event file tells of; false: none. */
bool er_events_last_run(const char *path, char ret_id[64]);

/* `msg` is one English sentence. A line that would be longer than ER_EVENT_MAX is written without
 * `fields`; a full disk loses it. */
void er_event_fields(struct er_events *events, const char *name, enum er_severity severity,
                     uint64_t generation, const char *msg, const struct er_field *fields, size_t n);

#define er_event(events, name, severity, generation, msg, ...)                                     \
    do {                                                                                           \
        if (er_events_wanted(events)) {                                                            \
            const struct er_field er_f_[] = {{.key = NULL}, ##__VA_ARGS__};                        \
            er_event_fields((events), (name), (severity), (generation), (msg), er_f_ + 1,          \
                            sizeof(er_f_) / sizeof(er_f_[0]) - 1);                                 \
        }                                                                                          \
    } while (0)
