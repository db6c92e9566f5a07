#include "tests/lib/wait.h"

#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_EVERY_MS = 2, EVENTS_BYTES = 4096 };

uint64_t er_test_now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

bool er_test_wait_until(bool (*holds)(void *user), void *user, uint32_t timeout_ms)
{
    uint64_t deadline = er_test_now_ms() + timeout_ms;
    while (!holds(user)) {
        if (er_test_now_ms() >= deadline)
            return false;
        poll(NULL, 0, LOOK_EVERY_MS);
    }
    return true;
}

static int watch_folder(const char *path)
{
    char copy[PATH_MAX];
    snprintf(copy, sizeof(copy), "%s", path);
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (fd >= 0 && inotify_add_watch(fd, dirname(copy),
                                     IN_CREATE | IN_MOVED_TO | IN_DELETE | IN_MOVED_FROM) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool wait_existence(const char *path, bool wanted, uint32_t timeout_ms)
{
    char events[EVENTS_BYTES];
    uint64_t deadline = er_test_now_ms() + timeout_ms;
    int fd = watch_folder(path); /* before the first look, so that no change is missed */
    bool reached = (access(path, F_OK) == 0) == wanted;

    while (fd >= 0 && !reached) {
        uint64_t now = er_test_now_ms();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (now >= deadline || poll(&p, 1, (int)(deadline - now)) == 0)
            break;
        if (read(fd, events, sizeof(events)) < 0 && p.revents == 0)
            break;
        reached = (access(path, F_OK) == 0) == wanted;
    }
    if (fd >= 0)
        close(fd);
    return reached;
}

bool er_test_wait_path(const char *path, uint32_t timeout_ms)
{
    return wait_existence(path, true, timeout_ms);
}

bool er_test_wait_gone(const char *path, uint32_t timeout_ms)
{
    return wait_existence(path, false, timeout_ms);
}
