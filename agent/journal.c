#include "agent/journal.h"

#include <ctype.h>
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"

#define SOCKET_PATH "/run/systemd/journal/socket"
#define ENTRY_MAX   (32u << 10) /* longer ones would need a memfd */
#define KEY_MAX     48          /* of 64, with our prefix */

static struct {
    int fd;
    const char *job, *node_id;
} journal = {.fd = -1};

bool er_journal_is(int fd, const char *stream)
{
    unsigned long long dev, ino;
    struct stat st;

    return stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 && fstat(fd, &st) == 0 &&
           st.st_dev == dev && st.st_ino == ino;
}

void er_journal_open(const char *job, const char *node_id)
{
    journal.job = job;
    journal.node_id = node_id;
    if (journal.fd < 0)
        journal.fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

bool er_journal_wanted(void)
{
    return journal.fd >= 0;
}

/* A value of several lines goes with its length in front. */
static int add(struct er_buf *buf, const char *key, const char *value, size_t n)
{
    uint64_t length = htole64(n);
    int rc = er_buf_add_str(buf, key);

    if (!rc && !memchr(value, '\n', n))
        rc = er_buf_add(buf, "=", 1);
    else if (!rc)
        rc = er_buf_add(buf, "\n", 1) ? -ENOBUFS : er_buf_add(buf, &length, sizeof(length));
    if (!rc)
        rc = er_buf_add(buf, value, n);
    return rc ? rc : er_buf_add(buf, "\n", 1);
}

static int add_str(struct er_buf *buf, const char *key, const char *value)
{
    return value && value[0] ? add(buf, key, value, strlen(value)) : 0;
}

/* "exit_code" is ELASTIC_EXIT_CODE. */
static void key_of(const char *key, char ret[KEY_MAX + 16])
{
    size_t n = (size_t)snprintf(ret, KEY_MAX + 16, "ELASTIC_%.*s", KEY_MAX, key);

    for (size_t i = 0; i < n; i++)
        ret[i] = isalnum((unsigned char)ret[i]) ? (char)toupper((unsigned char)ret[i]) : '_';
}

/* The value alone, of "key=value" as lines have it; texts as they are. */
static int add_field(struct er_buf *buf, const struct er_field *field)
{
    ER_CLEANUP(er_buf_done) struct er_buf text;
    char key[KEY_MAX + 16];
    size_t skip = strlen(field->key) + 1;
    int rc;

    er_buf_init(&text, 512);
    key_of(field->key, key);
    if (field->type == ER_FIELD_STR || field->type == ER_FIELD_JSON)
        return add_str(buf, key, field->v.str);
    rc = er_fields_text(&text, field, 1);
    return rc || text.len < skip ? rc : add(buf, key, text.data + skip, text.len - skip);
}

int er_journal_format(struct er_buf *buf, int priority, const char *msg,
                      const struct er_field *fields, size_t n)
{
    ER_CLEANUP(er_buf_done) struct er_buf text;
    char number[16];
    int rc;

    er_buf_init(&text, ENTRY_MAX / 2);
    rc = er_buf_add_str(&text, msg);
    for (size_t i = 0; i < n && !rc; i++) {
        rc = er_buf_add(&text, " ", 1);
        if (!rc)
            rc = er_fields_text(&text, &fields[i], 1);
    }
    snprintf(number, sizeof(number), "%d", priority);
    if (!rc)
        rc = add(buf, "MESSAGE", text.data, text.len);
    if (!rc)
        rc = add_str(buf, "PRIORITY", number);
    if (!rc)
        rc = add_str(buf, "SYSLOG_IDENTIFIER", "elastic-run");
    for (size_t i = 0; i < n && !rc; i++)
        rc = add_field(buf, &fields[i]);
    return rc;
}

int er_journal_send(enum er_log_level level, const char *msg, const struct er_field *fields,
                    size_t n)
{
    static const int PRIORITIES[] = {
        [ER_LOG_DEBUG] = 7, [ER_LOG_INFO] = 6, [ER_LOG_WARNING] = 4, [ER_LOG_ERROR] = 3};
    const struct sockaddr_un to = {.sun_family = AF_UNIX, .sun_path = SOCKET_PATH};
    ER_CLEANUP(er_buf_done) struct er_buf entry;
    int rc;

    if (journal.fd < 0)
        return -ENOTCONN;
    er_buf_init(&entry, ENTRY_MAX);
    rc = er_journal_format(&entry, PRIORITIES[level], msg, fields, n);
    if (!rc)
        rc = add_str(&entry, "ELASTIC_JOB", journal.job);
    if (!rc)
        rc = add_str(&entry, "ELASTIC_NODE_ID", journal.node_id);
    if (!rc && sendto(journal.fd, entry.data, entry.len, MSG_NOSIGNAL | MSG_DONTWAIT,
                      (const struct sockaddr *)&to, sizeof(to)) < 0)
        rc = -errno;
    return rc;
}
