/* Reading an event file from its end. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/events.h"
#include "base/buf.h"
#include "base/cleanup.h"

#define TAIL_BYTES (4 * ER_EVENT_MAX)

/* The last bytes of the file, at most TAIL_BYTES. */
static int read_tail(const char *path, struct er_buf *buf)
{
    ER_CLEANUP(er_cleanup_fd) int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    off_t at;
    ssize_t n;

    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    at = st.st_size > (off_t)TAIL_BYTES ? st.st_size - (off_t)TAIL_BYTES : 0;
    if (er_buf_reserve(buf, TAIL_BYTES))
        return -ENOMEM;
    n = pread(fd, buf->data, TAIL_BYTES, at);
    if (n < 0)
        return -errno;
    buf->len = (size_t)n;
    buf->data[n] = '\0';
    return 0;
}

json_t *er_events_last(const char *path, const char *event)
{
    ER_CLEANUP(er_buf_done) struct er_buf tail;
    json_t *found = NULL;

    er_buf_init(&tail, TAIL_BYTES);
    if (read_tail(path, &tail))
        return NULL;
    while (!found && tail.len > 0) {
        char *line = memrchr(tail.data, '\n', tail.len);
        const json_t *name;

        line = line ? line + 1 : tail.data;
        found = json_loads(line, 0, NULL); /* the first line of the tail may be a part of one */
        name = json_object_get(found, "event");
        if (found && (!json_is_string(name) || (event && strcmp(json_string_value(name), event)))) {
            json_decref(found);
            found = NULL;
        }
        tail.len = line > tail.data ? (size_t)(line - tail.data) - 1 : 0;
        tail.data[tail.len] = '\0';
    }
    return found;
}

/* Fit for the name of a folder? The file comes from outside. */
static bool is_id(const char *text)
{
    size_t n = text ? strlen(text) : 0;

    return n > 0 && n < 64 && strspn(text, "0123456789abcdef") == n;
}

bool er_events_last_run(const char *path, char ret_id[64])
{
    json_t *last = er_events_last(path, "agent_exited");
    const char *id;
    bool ok;

    if (!last)
        last = er_events_last(path, NULL);
    id = json_string_value(json_object_get(last, "run_id"));
    ok = is_id(id);
    if (ok)
        strcpy(ret_id, id);
    json_decref(last);
    return ok;
}
