#pragma once
/*
 * Run a program and see what it does. Output is gathered while it runs, so that it never blocks on
 * a full pipe. Each program leads its own process group; er_test_done() kills what is left of it.
 *
 *     struct er_test_proc p;
 *     er_test_start(&p, (const char *[]){er_test_bin("elastic-run"), "true", NULL}, NULL);
 *     er_tap_require(er_test_wait_exit(&p, ER_TEST_DEADLINE_MS));
 *     er_tap_check(er_test_exit_code(&p) == 0);
 *     er_test_done(&p);
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct er_test_text {
    char *data; /* NUL-terminated; owned; NULL until the first byte */
    size_t n;
};

struct er_test_proc {
    pid_t pid;   /* 0 once reaped */
    pid_t group; /* its process group */
    int pidfd;
    int fds[2];              /* read ends of stdout and stderr; -1 at end of file */
    struct er_test_text out; /* what it wrote so far */
    struct er_test_text err;
    int status; /* of waitpid(2), valid once pid is 0 */
};

/* `argv` ends with NULL and argv[0] is looked up in PATH; `env` is NULL or a NULL-ended list of
 * "NAME=value" set on top of the inherited environment ("NAME" alone removes it). stdin is
 * /dev/null. Ends the process when it cannot fork. */
void er_test_start(struct er_test_proc *p, const char *const argv[], const char *const env[]);
/* True when it ended in time; output up to end of file is then in p->out and p->err (as far as the
 * program and its children have closed their ends; background children do not delay it). */
bool er_test_wait_exit(struct er_test_proc *p, uint32_t timeout_ms);
/* True as soon as its stdout (or stderr) contains `text`. */
bool er_test_wait_out(struct er_test_proc *p, const char *text, uint32_t timeout_ms);
bool er_test_wait_err(struct er_test_proc *p, const char *text, uint32_t timeout_ms);
/* SIGSTOP; true once all of its threads stand still: kill(2) returns while they still run, on
 * another core for as long as the machine is busy. */
bool er_test_stop(pid_t pid);
/* The same of one that stops itself. */
bool er_test_wait_stopped(pid_t pid);
/* As the shell: the exit code, or 128 + signal; -1 while it runs. */
int er_test_exit_code(const struct er_test_proc *p);
/* Kill and reap what is left, free the output. */
void er_test_done(struct er_test_proc *p);
/* start + wait_exit; the exit code, or -1 (and killed) at the deadline. Call er_test_done()
 * afterwards. */
int er_test_run(struct er_test_proc *p, const char *const argv[], const char *const env[],
                uint32_t timeout_ms);
/* Never NULL, also when nothing was written. */
const char *er_test_out(const struct er_test_proc *p);
const char *er_test_err(const struct er_test_proc *p);

/* Path of a built program ("elastic-run", "examples/hello") from ER_TEST_BUILD, or a tracked file
 * from ER_TEST_SOURCE. Static storage, 8 results stay valid. */
const char *er_test_bin(const char *relative);
const char *er_test_src(const char *relative);
