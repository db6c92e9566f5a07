#include "agent/procinfo.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"

#define STATUS_MAX 2048 /* what is wanted stands at its beginning */

static const char *read_file(pid_t pid, const char *name, char *text, size_t cap)
{
    char path[64];
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    ssize_t n;

    text[0] = '\0';
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : read(fd, text, cap - 1);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

/* The value of "key:<tab>value" in the lines of `text`; "" when it is not there. */
static void value_of(const char *text, const char *key, char ret[ER_PROCINFO_TEXT_MAX])
{
    const char *at = strstr(text, key);

    ret[0] = '\0';
    if (!at || (at != text && at[-1] != '\n'))
        return;
    at += strlen(key);
    at += strspn(at, " \t");
    snprintf(ret, ER_PROCINFO_TEXT_MAX, "%.*s", (int)strcspn(at, "\n"), at);
}

void er_procinfo_read(pid_t pid, struct er_procinfo *ret)
{
    char text[STATUS_MAX], tracer[ER_PROCINFO_TEXT_MAX];

    memset(ret, 0, sizeof(*ret));
    read_file(pid, "status", text, sizeof(text));
    value_of(text, "Name:", ret->name);
    value_of(text, "State:", ret->state);
    value_of(text, "TracerPid:", tracer);
    ret->traced = tracer[0] && strcmp(tracer, "0") != 0;
    ret->stopped = ret->state[0] == 'T';
    read_file(pid, "wchan", ret->wchan, sizeof(ret->wchan));
    if (strcmp(ret->wchan, "0") == 0)
        ret->wchan[0] = '\0';
}
