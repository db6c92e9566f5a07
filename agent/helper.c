#include "agent/helper.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/env.h"
#include "agent/exit.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/list.h"
#include "base/parse.h"

#define KILLED_WAIT_US (1 * ER_US_PER_S) /* for one that was killed when everything ends */
#define READS_A_TURN   32                /* of 4 KiB: more than a pipe holds */

struct er_helpers {
    struct er_loop *loop;
    char *const *environ_;
    struct er_list running; /* of struct helper */
    size_t n;
};

struct helper {
    struct er_list node;
    struct er_helpers *all;
    struct er_helper_opts opts;
    pid_t pid;
    int pidfd, out_fd, report_fd;
    struct er_loop_source *source, *out_source;
    struct er_buf out;
    uint64_t kill_us;
    bool timed_out, ended;
    int status;
};

int er_helpers_new(struct er_helpers **ret, struct er_loop *loop, char *const *environ_,
                   struct er_error *err)
{
    struct er_helpers *all = calloc(1, sizeof(*all));

    if (!all)
        return er_error_set(err, -ENOMEM, "helpers: out of memory");
    all->loop = loop;
    all->environ_ = environ_;
    er_list_init(&all->running);
    *ret = all;
    return 0;
}

static void helper_free(struct helper *h)
{
    er_loop_source_free(h->source);
    er_loop_source_free(h->out_source);
    er_cleanup_fd(&h->pidfd);
    er_cleanup_fd(&h->out_fd);
    er_cleanup_fd(&h->report_fd);
    er_buf_done(&h->out);
    er_list_remove(&h->node);
    free(h);
}

void er_helpers_free(struct er_helpers *all)
{
    if (!all)
        return;
    er_list_for_each_safe (node, &all->running) {
        struct helper *h = ER_LIST_ITEM(node, struct helper, node);
        uint64_t end_us = er_now_us() + KILLED_WAIT_US;

        if (!h->ended)
            kill(-h->pid, SIGKILL);
        while (!h->ended && waitpid(h->pid, NULL, WNOHANG) == 0 && er_now_us() < end_us)
            usleep(1000);
        helper_free(h);
    }
    free(all);
}

/* What does not fit is read and forgotten: a helper must not wait for us. Nor we for it: the rest
 * comes in the next turn. */
static void read_output(struct helper *h)
{
    char some[4096];
    ssize_t n = 1;

    for (int i = 0; n > 0 && i < READS_A_TURN; i++) {
        size_t room = h->out.max - h->out.len;

        n = read(h->out_fd, some, sizeof(some));
        if (n > 0)
            (void)er_buf_add(&h->out, some, (size_t)n < room ? (size_t)n : room);
    }
    if (n == 0) {
        er_loop_source_free(h->out_source);
        h->out_source = NULL;
    }
}

static void on_output(void *user, uint32_t events)
{
    read_output(user);
}

static void reap(struct helper *h)
{
    if (h->ended || waitpid(h->pid, &h->status, WNOHANG) != h->pid)
        return;
    h->ended = true;
    kill(-h->pid, SIGKILL); /* what it left in its group */
    er_loop_source_free(h->source);
    h->source = NULL;
}

static void on_pidfd(void *user, uint32_t events)
{
    reap(user);
}

bool er_helpers_reap(struct er_helpers *all, pid_t pid)
{
    if (!all)
        return false;
    er_list_for_each (node, &all->running) {
        struct helper *h = ER_LIST_ITEM(node, struct helper, node);

        if (h->pid == pid && !h->ended) {
            reap(h);
            return true;
        }
    }
    return false;
}

size_t er_helpers_pids(const struct er_helpers *all, pid_t ret_pids[ER_HELPERS_MAX])
{
    size_t n = 0;

    if (!all)
        return 0;
    er_list_for_each (node, &all->running) {
        const struct helper *h = ER_LIST_ITEM(node, struct helper, node);

        if (!h->ended)
            ret_pids[n++] = h->pid;
    }
    return n;
}

/* A file in memory: nobody has to write while it reads. */
static int open_input(const struct er_helper_opts *o, struct er_error *err)
{
    int fd, rc;

    if (o->input_n == 0)
        fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    else
        fd = er_memfd("elastic-input", 0);
    if (fd == -1 || fd < 0)
        return er_error_set(err, fd == -1 ? -errno : fd, "stdin of a helper: %s",
                            er_error_name(fd == -1 ? -errno : fd));
    rc = o->input_n ? er_write_all(fd, o->input, o->input_n) : 0;
    if (rc || lseek(fd, 0, SEEK_SET) < 0) {
        close(fd);
        return er_error_set(err, rc ? rc : -errno, "stdin of a helper");
    }
    return fd;
}

static int make_pipe(int *ret_read, int *ret_write, struct er_error *err)
{
    int pair[2];

    if (pipe2(pair, O_CLOEXEC) < 0)
        return er_error_errno(err, "make a pipe");
    *ret_read = pair[0];
    *ret_write = pair[1];
    return er_fd_nonblock(pair[0]);
}

static int spawn(struct helper *h, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) char *path = NULL;
    ER_CLEANUP(er_cleanup_fd) int in = -1;
    ER_CLEANUP(er_cleanup_fd) int out = -1;
    ER_CLEANUP(er_cleanup_fd) int report = -1;
    const struct er_helper_opts *o = &h->opts;
    const char *list = er_env_get((const char *const *)h->all->environ_, "PATH");
    int rc = o->run ? 0 : er_spawn_find(o->argv[0], list, ".", &path, err);

    if (!rc && (in = open_input(o, err)) < 0)
        rc = in;
    if (!rc)
        rc = make_pipe(&h->out_fd, &out, err);
    if (!rc)
        rc = make_pipe(&h->report_fd, &report, err);
    if (rc)
        return rc;
    const struct er_spawn_opts opts = {.path = path,
                                       .argv = o->argv,
                                       .envp = h->all->environ_,
                                       .workdir = ".",
                                       .stdio = {in, out, out},
                                       .keep_fd = -1,
                                       .cgroup_fd = -1,
                                       .report_fd = report,
                                       .run = o->run};

    return er_spawn_child(&opts, &h->pid, &h->pidfd, err);
}

int er_helper_start(struct er_helpers *all, const struct er_helper_opts *opts, uint64_t now_us,
                    struct er_error *err)
{
    struct helper *h;
    int rc;

    if (all->n == ER_HELPERS_MAX)
        return er_error_set(err, -EBUSY, "%d helpers run already", ER_HELPERS_MAX);
    h = calloc(1, sizeof(*h));
    if (!h)
        return er_error_set(err, -ENOMEM, "helper: out of memory");
    h->all = all;
    h->opts = *opts;
    h->pidfd = h->out_fd = h->report_fd = -1;
    h->kill_us = er_deadline_in(now_us, opts->timeout_us);
    er_list_init(&h->node);
    er_buf_init(&h->out, ER_HELPER_TEXT_MAX);
    rc = spawn(h, err);
    if (!rc)
        rc = er_loop_io(all->loop, h->pidfd, EPOLLIN, ER_PRIORITY_CHILD, on_pidfd, h, &h->source,
                        err);
    if (!rc)
        rc = er_loop_io(all->loop, h->out_fd, EPOLLIN, ER_PRIORITY_IO, on_output, h, &h->out_source,
                        err);
    if (rc) {
        if (h->pid > 0) {
            ER_CLEANUP(er_cleanup_child) pid_t unwatched = h->pid;
        }
        helper_free(h);
        return rc;
    }
    er_list_push_back(&all->running, &h->node);
    all->n++;
    return 0;
}

static void tell(struct helper *h)
{
    struct er_helper_end end = {.timed_out = h->timed_out, .wait_status = h->status};
    struct er_spawn_failure failure = {0};
    struct er_exit how;
    char text[ER_EXIT_TEXT_MAX], time[ER_UNIT_TEXT_MAX];

    if (h->out_source)
        read_output(h);
    if (read(h->report_fd, &failure, sizeof(failure)) != (ssize_t)sizeof(failure))
        failure.error = 0;
    how = er_exit_classify(h->status, 0, false);
    if (h->timed_out) {
        er_format_duration(h->opts.timeout_us, time);
        snprintf(text, sizeof(text), "took longer than %s and was killed", time);
        end.trouble = text;
    } else if (failure.error) {
        end.could_not_run = true;
        snprintf(text, sizeof(text), "could not be run: %s", er_error_name(-failure.error));
        end.trouble = text;
    } else if (how.kind != ER_EXIT_OK) {
        end.trouble = er_exit_text(how.kind, how.code, how.signal, text);
    }
    end.text = er_buf_str(&h->out);
    h->opts.done(h->opts.user, &end);
}

void er_helpers_step(struct er_helpers *all, uint64_t now_us)
{
    er_list_for_each_safe (node, &all->running) {
        struct helper *h = ER_LIST_ITEM(node, struct helper, node);

        if (!h->ended && now_us >= h->kill_us) {
            h->timed_out = true;
            h->kill_us = ER_FOREVER;
            kill(-h->pid, SIGKILL);
            kill(h->pid, SIGKILL); /* before its setsid() there is no group */
        }
        if (!h->ended)
            continue;
        /* Off the list first: whoever is told may start another. */
        er_list_remove(&h->node);
        all->n--;
        tell(h);
        helper_free(h);
    }
}

uint64_t er_helpers_deadline(const struct er_helpers *all)
{
    uint64_t at = ER_FOREVER;

    er_list_for_each (node, &all->running) {
        const struct helper *h = ER_LIST_ITEM(node, struct helper, node);

        if (h->ended)
            return 0;
        at = h->kill_us < at ? h->kill_us : at;
    }
    return at;
}
