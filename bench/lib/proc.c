#include "bench/lib/proc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double bench_proc_number(pid_t pid, const char *file, const char *name)
{
    char path[64], line[256];
    double number = 0;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
    f = fopen(path, "r");
    while (f && fgets(line, sizeof(line), f)) {
        if (strncmp(line, name, strlen(name)) == 0) {
            number = strtod(line + strlen(name), NULL);
            break;
        }
    }
    if (f)
        fclose(f);
    return number;
}

int bench_proc_children(pid_t pid, pid_t *ret_first)
{
    char path[64];
    int n = 0, child;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)pid, (int)pid);
    f = fopen(path, "r");
    while (f && fscanf(f, "%d", &child) == 1) {
        if (n++ == 0)
            *ret_first = child;
    }
    if (f)
        fclose(f);
    return n;
}

double bench_proc_cpu_ns(pid_t pid)
{
    return bench_proc_number(pid, "schedstat", "");
}
