#include "base/log.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/utf8.h"

enum {
    LINE_MAX_BYTES = 8192, /* the whole line, newline included */
    CUT_MARK_BYTES =
        24, /* kept free for the mark that something was left out, and the end of the line */
    TEXT_MAX_BYTES = 2048, /* of one message or string value */
    REST_WAIT_US = 20000,  /* for the rest of a line of which a part has gone */
};

static const struct {
    const char *text, *json;
} LEVEL_NAMES[] = {
    [ER_LOG_DEBUG] = {"DEBUG", "debug"},
    [ER_LOG_INFO] = {"INFO ", "info"},
    [ER_LOG_WARNING] = {"WARN ", "warning"},
    [ER_LOG_ERROR] = {"ERROR", "error"},
};

/* Process-wide; each one atomic, so that a line of another thread during er_log_setup() is at worst
 * mixed. */
static _Atomic int log_fd = STDERR_FILENO;
static _Atomic enum er_log_level log_level = ER_LOG_INFO;
static _Atomic enum er_log_format log_format = ER_LOG_TEXT;
static const char *_Atomic log_name;
static _Atomic er_log_sink_fn log_sink;
static _Atomic int own_fd = -1;     /* what lines are written to; made for log_fd */
static _Atomic unsigned lost_lines; /* since the last one that got through */
static void (*_Atomic log_before)(void);
static void (*_Atomic log_after)(bool line_is_complete);

void er_log_setup(const struct er_log_opts *opts)
{
    int old, fd = er_fd_own_output(opts->fd);

    /* Nobody writes to the old one any more but a thread in the midst of a line. */
    old = atomic_exchange(&own_fd, fd);
    if (old >= 0)
        close(old);
    atomic_store(&log_fd, opts->fd);
    atomic_store(&log_level, opts->level);
    atomic_store(&log_format, opts->format);
    atomic_store(&log_name, opts->name);
    atomic_store(&log_sink, opts->sink);
}

void er_log_around(void (*before)(void), void (*after)(bool line_is_complete))
{
    atomic_store(&log_after, after);
    atomic_store(&log_before, before);
}

bool er_log_wanted(enum er_log_level level)
{
    return level >= atomic_load_explicit(&log_level, memory_order_relaxed);
}

/* A copy of at most `max` bytes that ends in "..." when cut, and not inside a UTF-8 sequence. */
static const char *shorten(const char *text, size_t max, char room[TEXT_MAX_BYTES + 4])
{
    size_t n = strnlen(text, max + 1);

    if (n <= max)
        return text;
    n = er_utf8_cut(text, max);
    memcpy(room, text, n);
    memcpy(room + n, "...", 4);
    return room;
}

static int add_one(struct er_buf *line, const struct er_field *field, bool json)
{
    if (json)
        return er_fields_json(line, field, 1);
    return er_fields_text(line, field, 1);
}

/* Escaping can lengthen a text sixfold, so a string that does not fit is tried again at half the
 * length. */
static int add_field(struct er_buf *line, const struct er_field *field, bool json)
{
    char room[TEXT_MAX_BYTES + 4];
    struct er_field cut = *field;
    size_t start = line->len;
    int rc = er_buf_add(line, json ? "," : " ", 1);

    if (!rc && (field->type != ER_FIELD_STR || !field->v.str))
        rc = add_one(line, field, json);
    else if (!rc) {
        for (size_t max = TEXT_MAX_BYTES; max >= 16; max /= 2) {
            cut.v.str = shorten(field->v.str, max, room);
            rc = add_one(line, &cut, json);
            if (!rc)
                break;
        }
    }
    if (rc) {
        line->len = start;
        line->data[start] = '\0';
    }
    return rc;
}

/* A message with a line break or an escape sequence in it must neither forge a second line nor
 * reach the terminal. */
static void add_text_head(struct er_buf *line, const char *ts, enum er_log_level level,
                          const char *msg)
{
    char room[TEXT_MAX_BYTES + 4];
    const char *name = atomic_load(&log_name);

    er_buf_printf(line, "%s %s ", ts, LEVEL_NAMES[level].text);
    if (name)
        er_buf_printf(line, "%.64s: ", name);
    if (er_utf8_is_printable(msg, strlen(msg))) {
        er_buf_add_str(line, shorten(msg, TEXT_MAX_BYTES, room));
    } else {
        msg = shorten(msg, TEXT_MAX_BYTES / 2, room);
        er_json_quote(line, msg, strlen(msg));
    }
}

static void add_json_head(struct er_buf *line, const char *ts, enum er_log_level level,
                          const char *msg)
{
    char room[TEXT_MAX_BYTES + 4];
    const char *name = atomic_load(&log_name);

    er_buf_printf(line, "{\"ts\":\"%s\",\"level\":\"%s\"", ts, LEVEL_NAMES[level].json);
    if (name) {
        name = shorten(name, 64, room);
        add_field(line, &ER_STR("name", name), true);
    }
    add_field(line, &ER_STR("msg", msg), true);
}

/* A reader that does not read loses lines, which the next one counts; it never makes us wait. */
static bool write_now(const struct er_buf *line)
{
    int fd = atomic_load(&own_fd);
    ssize_t done;

    if (fd < 0) /* nobody called er_log_setup() */
        fd = atomic_load(&log_fd);
    done = er_write_some(fd, line->data, line->len, 0);
    if (done > 0 && (size_t)done < line->len)
        (void)er_write_some(fd, line->data + done, line->len - (size_t)done, REST_WAIT_US);
    return done > 0;
}

static bool write_line(const struct er_buf *line)
{
    void (*before)(void) = atomic_load(&log_before);
    void (*after)(bool) = atomic_load(&log_after);
    bool done;

    if (before)
        before();
    done = write_now(line);
    if (before)
        after(true);
    return done;
}

void er_log_fields(enum er_log_level level, const char *msg, const struct er_field *fields,
                   size_t n)
{
    char room[LINE_MAX_BYTES + 1], ts[ER_RFC3339_MAX];
    /* A buffer on the stack that is full before it would grow: no allocation on this path. */
    struct er_buf line = {
        .data = room, .cap = sizeof(room), .max = LINE_MAX_BYTES - CUT_MARK_BYTES};
    bool json = atomic_load(&log_format) == ER_LOG_JSON, cut = false;
    er_log_sink_fn sink = atomic_load(&log_sink);
    unsigned lost;
    int saved = errno;

    if (!er_log_wanted(level))
        return;
    if (sink && sink(level, msg, fields, n) == 0) {
        errno = saved;
        return;
    }
    room[0] = '\0';
    er_rfc3339(er_wall_us(), ts);
    if (json)
        add_json_head(&line, ts, level, msg);
    else
        add_text_head(&line, ts, level, msg);
    for (size_t i = 0; i < n; i++) {
        if (add_field(&line, &fields[i], json))
            cut = true;
    }
    lost = atomic_exchange(&lost_lines, 0);
    if (lost > 0)
        add_field(&line, &ER_UINT("lines_lost_before", lost), json);
    line.max = LINE_MAX_BYTES;
    if (cut)
        er_buf_add_str(&line, json ? ",\"cut\":true" : " cut=true");
    er_buf_add_str(&line, json ? "}\n" : "\n");
    if (!write_line(&line))
        atomic_fetch_add(&lost_lines, lost + 1);
    errno = saved;
}
