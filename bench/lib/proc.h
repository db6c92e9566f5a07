#pragma once
/* What /proc tells of a process that is measured. A process that is gone has zero of everything. */
#include <sys/types.h>

/* The number behind `name` at the start of a line of /proc/PID/`file`. */
double bench_proc_number(pid_t pid, const char *file, const char *name);
/* Children of a process: how many there are, and the first one. */
int bench_proc_children(pid_t pid, pid_t *ret_first);
/* Nanoseconds on a processor, of its first thread. Some virtual machines count in ticks only. */
double bench_proc_cpu_ns(pid_t pid);
