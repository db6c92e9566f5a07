#pragma once
/*
 * Start one program: everything is prepared before, so the child only makes system calls. Does not
 * wait for the exec: a failure before or in it arrives as a record on a close-on-exec pipe that all
 * children of a generation share; the pipe's end of file says that every one of them has exec'ed or
 * ended.
 */
#include <stdint.h>
#include <sys/types.h>

#include "agent/cpuset.h"
#include "base/error.h"

struct er_spawn_opts {
    const char *path;  /* of the executable, found before */
    char *const *argv; /* NULL-terminated */
    char *const *envp;
    const char *workdir;
    int stdio[3];                 /* become 0, 1, 2 */
    int keep_fd;                  /* stays open under its number (ELASTIC_PAGE_FD); -1: none */
    int cgroup_fd;                /* -1: none */
    int report_fd;                /* write end of the generation's pipe */
    int index;                    /* of the worker, for its record */
    const struct er_cpuset *cpus; /* that it is bound to; NULL: ours */
    /* Instead of a program: called in the child, whose end it is; gets stdout. */
    int (*run)(int out_fd);
};

enum er_spawn_step {
    ER_SPAWN_SESSION,
    ER_SPAWN_STDIO,
    ER_SPAWN_BINDING,
    ER_SPAWN_WORKDIR,
    ER_SPAWN_EXEC
};

/* What a child says when it could not become the program; one write(2), so never torn. */
struct er_spawn_failure {
    int32_t index;
    int32_t step; /* enum er_spawn_step */
    int32_t error;
};

/* The child leads a session and process group of its own, has default signal dispositions and an
 * empty mask, no descriptors but those named, and dies with its parent. ret_pidfd is close-on-exec
 * and owned by the caller. -errno: no process (-EAGAIN: limit reached). */
int er_spawn_child(const struct er_spawn_opts *opts, pid_t *ret_pid, int *ret_pidfd,
                   struct er_error *err);

/* Lifts the caller's limit of descriptors to the hard one, since it grows with the number of
 * workers; they get the old one. */
void er_spawn_lift_limits(void);

/* As execvp(3) searches: `path_list` is the value of PATH (NULL: the system's default). A name with
 * a
 * '/' is taken from `workdir`. Returns 0 with a malloc'ed path, or ENOENT or EACCES as -errno with
 * a text that names what was tried. */
int er_spawn_find(const char *program, const char *path_list, const char *workdir, char **ret_path,
                  struct er_error *err);
const char *er_spawn_step_text(int step);
