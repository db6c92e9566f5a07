#pragma once
/*
 * From a wait status to what the job makes of it: kind, code, signal, exit code of
 * docs/exit-codes.md. Pure.
 */
#include <stdbool.h>

#include "base/exit_codes.h"
#include "rendezvous/driver.h"

struct er_exit {
    enum er_exit_kind kind;
    int code;   /* EXITED, EXEC_FAILED */
    int signal; /* SIGNALED, OOM; 0 otherwise */
    bool core;
};

/* `exec_errno`: what execve(2) or the steps before it said in the child, 0 when the program ran.
 * `oom`: the kernel's memory limit killed something in this worker's cgroup. */
struct er_exit er_exit_classify(int wait_status, int exec_errno, bool oom);
/* 126 or 127, as the shell has it. */
int er_exit_exec_code(int exec_errno);
/* "exited with code 3", "died by signal 9 (SIGKILL)", ...; returns ret_text. */
#define ER_EXIT_TEXT_MAX 96
const char *er_exit_text(enum er_exit_kind kind, int code, int signal,
                         char ret_text[ER_EXIT_TEXT_MAX]);
