#include "base/fence.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "base/parse.h"

static const char head[] = ".fence-g";

void er_fence_name(uint64_t generation, char ret_name[ER_FENCE_NAME_MAX])
{
    snprintf(ret_name, ER_FENCE_NAME_MAX, "%s%llu", head, (unsigned long long)generation);
}

bool er_fence_parse(const char *name, uint64_t *ret_generation)
{
    return strncmp(name, head, sizeof(head) - 1) == 0 &&
           er_parse_u64(name + sizeof(head) - 1, 0, UINT64_MAX, ret_generation, NULL) == 0;
}

int er_fence_newest(const char *dir, uint64_t *ret, struct er_error *err)
{
    DIR *d = opendir(dir);
    uint64_t generation, newest = 0;

    if (!d)
        return er_error_errno(err, "checkpoint folder '%s'", dir);
    for (struct dirent *e; (e = readdir(d));)
        if (er_fence_parse(e->d_name, &generation) && generation > newest)
            newest = generation;
    closedir(d);
    *ret = newest;
    return 0;
}
