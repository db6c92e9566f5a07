#include "agent/sdnotify.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* "/run/..." or "@..." of the abstract space. False: neither, or too long. */
static bool set_address(struct er_sdnotify *s, const char *path)
{
    size_t n = strlen(path);

    if ((path[0] != '/' && path[0] != '@') || n < 2 || n >= sizeof(s->to.sun_path))
        return false;
    s->to.sun_family = AF_UNIX;
    memcpy(s->to.sun_path, path, n + 1);
    if (path[0] == '@')
        s->to.sun_path[0] = '\0';
    s->to_n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (path[0] == '/'));
    return true;
}

static uint64_t watchdog_of(pid_t main_pid)
{
    const char *every = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    char *end;
    unsigned long long us;

    if (!every || (pid && strtol(pid, NULL, 10) != main_pid))
        return 0;
    us = strtoull(every, &end, 10);
    return *end ? 0 : us;
}

void er_sdnotify_open(struct er_sdnotify *ret, pid_t main_pid)
{
    const char *path = getenv("NOTIFY_SOCKET");

    *ret = (struct er_sdnotify){.fd = -1};
    if (path && set_address(ret, path)) {
        ret->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (ret->fd >= 0)
            ret->watchdog_us = watchdog_of(main_pid);
    }
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

void er_sdnotify_close(struct er_sdnotify *to)
{
    if (to->fd >= 0)
        close(to->fd);
    to->fd = -1;
}

bool er_sdnotify_wanted(const struct er_sdnotify *to)
{
    return to->fd >= 0;
}

void er_sdnotify_send(const struct er_sdnotify *to, const char *text)
{
    if (to->fd >= 0)
        (void)sendto(to->fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT,
                     (const struct sockaddr *)&to->to, to->to_n);
}
