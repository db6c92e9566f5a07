#pragma once
/* What the tests about hangs share: events of an event file, as they come. */
#include <jansson.h>

#include "tests/integration/agent_case.h"

/* The event `name` number `nth` (from 0) of a file; NULL: it is not there. Owned by the caller. */
static inline json_t *hang_event(const char *path, const char *name, int nth)
{
    char *text = er_test_read_file(path);
    json_t *found = NULL;

    for (char *line = text, *end; line && !found && (end = strchr(line, '\n')); line = end + 1) {
        json_t *event = json_loadb(line, (size_t)(end - line), 0, NULL);

        if (event && strcmp(json_string_value(json_object_get(event, "event")), name) == 0 &&
            nth-- == 0)
            found = event;
        else
            json_decref(event);
    }
    free(text);
    return found;
}

struct hang_look {
    const char *path, *name;
    int nth;
    json_t *event;
};

static inline bool hang_has_event(void *user)
{
    struct hang_look *look = user;

    look->event = hang_event(look->path, look->name, look->nth);
    return look->event != NULL;
}

/* Waits for it. */
static inline json_t *hang_wait_event(const char *path, const char *name, int nth)
{
    struct hang_look look = {path, name, nth, NULL};

    if (!er_tap_check(er_test_wait_until(hang_has_event, &look, ER_TEST_DEADLINE_MS)))
        er_tap_note("no event %s number %d in '%s'", name, nth, path);
    return look.event;
}

static inline long long hang_number(const json_t *event, const char *key)
{
    return (long long)json_number_value(json_object_get(event, key));
}

static inline const char *hang_text(const json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(event, key));

    return text ? text : "";
}

/* Where the events of `node` are: the case's logs are below `logs`. */
static inline const char *hang_events(const struct agent_case *c, const char *node)
{
    char file[128];

    snprintf(file, sizeof(file), "logs/%s/events-%s.jsonl", c->name, node);
    return case_path(c, file);
}
