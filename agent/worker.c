#include "agent/worker.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent/errorfile.h"
#include "base/cleanup.h"
#include "base/notice.h"

void er_worker_drain(struct er_worker *w)
{
    atomic_store(&w->page->to_worker.word, w->generation << 8 | ER_NOTICE_DRAIN);
}

bool er_worker_rejoins(const struct er_worker *w)
{
    return w->rejoins || (w->page && atomic_load(&w->page->from_worker.rejoins));
}

static void ask(struct er_worker *w)
{
    unsigned word = ER_NOTICE_REJOIN | (w->save_first ? ER_NOTICE_SAVE : 0);

    if (er_worker_rejoins(w))
        atomic_store(&w->page->to_worker.word, w->generation << 8 | word);
    else
        er_worker_drain(w);
}

void er_worker_act(struct er_worker *w, unsigned actions, int stop_signal)
{
    if (actions & ER_WORKER_ACT_ASK)
        ask(w);
    if (actions & ER_WORKER_ACT_NOTICE)
        atomic_store(&w->page->to_worker.word, w->generation << 8 | ER_NOTICE_STOP);
    /* The child may not have reached its setsid() yet: then the group does not exist, the process
     * does. */
    if (actions & ER_WORKER_ACT_SIGNAL) {
        if (kill(-w->pid, stop_signal) < 0)
            kill(w->pid, stop_signal);
        kill(-w->pid, SIGCONT);
    }
    w->killed |= (actions & ER_WORKER_ACT_KILL) != 0;
    if ((actions & ER_WORKER_ACT_KILL) && kill(-w->pid, SIGKILL) < 0)
        kill(w->pid, SIGKILL);
}

static void read_error_file(struct er_worker *w)
{
    char *message = NULL;

    er_errorfile_read(w->error_file, &message, &w->traceback);
    if (message) {
        free(w->message);
        w->message = message;
    }
}

void er_worker_ended(struct er_worker *w, int wait_status, bool oom, uint64_t now_us)
{
    er_loop_source_free(w->source);
    w->source = NULL;
    er_cleanup_fd(&w->pidfd);
    w->exited_us = now_us;
    w->exit = er_exit_classify(wait_status, w->exec_errno, oom);
    er_logfwd_drain(w->logs[0]);
    er_logfwd_drain(w->logs[1]);
    if (w->exit.kind != ER_EXIT_OK)
        read_error_file(w);
}

const char *er_worker_tail(struct er_worker *w)
{
    return w->logs[1] ? er_logfwd_tail(w->logs[1]) : "";
}

const char *er_worker_message(struct er_worker *w)
{
    const char *tail, *line;

    if (w->message)
        return w->message;
    tail = er_worker_tail(w);
    if (!tail[0])
        return "";
    /* The last line that says something. */
    w->message = strdup(tail);
    if (!w->message)
        return "";
    for (size_t n = strlen(w->message); n > 0 && strchr("\n\r \t", w->message[n - 1]); n--)
        w->message[n - 1] = '\0';
    line = strrchr(w->message, '\n');
    if (line)
        memmove(w->message, line + 1, strlen(line + 1) + 1);
    return w->message;
}

void er_worker_vacate(struct er_worker *w, struct er_group *group, int place)
{
    memset(w, 0, sizeof(*w));
    w->group = group;
    w->place = place;
    w->pidfd = -1;
    w->fsm.state = ER_WORKER_EXITED;
}

void er_worker_done(struct er_worker *w)
{
    er_cleanup_free(&w->hung_text);
    er_worker_launch_free(w->launch);
    w->launch = NULL;
    er_loop_source_free(w->source);
    w->source = NULL;
    er_cleanup_fd(&w->pidfd);
    for (int i = 0; i < 2; i++) {
        er_logfwd_free(w->logs[i]);
        w->logs[i] = NULL;
    }
    if (w->page)
        munmap(w->page, ER_PAGE_BYTES);
    w->page = NULL;
    er_cleanup_free(&w->log_dir);
    er_cleanup_free(&w->error_file);
    er_cleanup_free(&w->message);
    er_cleanup_free(&w->traceback);
}
