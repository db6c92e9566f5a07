#pragma once
/*
 * What is told to the service manager: the protocol of sd_notify(3), on a socket of our own, since
 * that function waits where the manager does not read, and reads the variable that nobody below the
 * agent may have. Nothing is told where nobody asked for it ($NOTIFY_SOCKET).
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

struct er_sdnotify {
    int fd; /* -1: nobody asked */
    struct sockaddr_un to;
    socklen_t to_n;
    uint64_t watchdog_us; /* the manager expects a sign of life that often; 0: it does not */
};

/* Takes $NOTIFY_SOCKET and $WATCHDOG_* out of the environment: whoever is started from now on does
 * not speak for the unit. `main_pid`: whom the manager knows as the service. */
void er_sdnotify_open(struct er_sdnotify *ret, pid_t main_pid);
void er_sdnotify_close(struct er_sdnotify *to);
bool er_sdnotify_wanted(const struct er_sdnotify *to);
/* Assignments, one a line: "READY=1\nSTATUS=...". Never waits; what is not taken is lost. */
void er_sdnotify_send(const struct er_sdnotify *to, const char *text);
