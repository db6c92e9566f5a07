#include "agent/keeper_clients.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/cleanup.h"

#define ESTABLISHED 1

bool er_keeper_is_client(const char *line, uint16_t port)
{
    unsigned local, state;

    return sscanf(line, " %*u: %*32[0-9A-Fa-f]:%x %*32[0-9A-Fa-f]:%*x %x", &local, &state) == 2 &&
           local == port && state == ESTABLISHED;
}

static size_t count(const char *path, uint16_t port)
{
    ER_CLEANUP(er_cleanup_free) char *line = NULL;
    FILE *f = fopen(path, "re");
    size_t room = 0, n = 0;

    if (!f)
        return 0;
    while (getline(&line, &room, f) > 0)
        n += er_keeper_is_client(line, port);
    fclose(f);
    return n;
}

size_t er_keeper_clients(uint16_t port)
{
    return count("/proc/net/tcp", port) + count("/proc/net/tcp6", port);
}
