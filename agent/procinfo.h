#pragma once
/* What the kernel says about a process, for whoever asks why it does not move. */
#include <stdbool.h>
#include <sys/types.h>

#define ER_PROCINFO_TEXT_MAX 64

struct er_procinfo {
    char state[ER_PROCINFO_TEXT_MAX]; /* "T (stopped)", as in /proc/PID/status; "" unknown */
    char wchan[ER_PROCINFO_TEXT_MAX]; /* where it sleeps in the kernel; "" not known or not told */
    char name[ER_PROCINFO_TEXT_MAX];  /* of its program, cut by the kernel; "" unknown */
    bool stopped;                     /* by a signal */
    bool traced;                      /* a debugger holds it */
};

/* Of a process that is gone nothing is known. Source: proc(5). */
void er_procinfo_read(pid_t pid, struct er_procinfo *ret);
