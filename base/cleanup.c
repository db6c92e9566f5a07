#include "base/cleanup.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

void er_cleanup_fd(int *fd)
{
    int saved = errno;

    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    errno = saved;
}

void er_cleanup_free(void *p)
{
    int saved = errno;
    void **slot = p;

    free(*slot);
    *slot = NULL;
    errno = saved;
}

void er_cleanup_child(pid_t *p)
{
    int saved = errno;

    if (*p > 0) {
        kill(*p, SIGKILL);
        while (waitpid(*p, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    *p = -1;
    errno = saved;
}
