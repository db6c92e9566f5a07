#include "agent/loop.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <systemd/sd-event.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/list.h"

struct er_loop {
    sd_event *event;
    struct er_list signals; /* of struct er_loop_source */
};

struct er_loop_source {
    sd_event_source *sd;
    struct er_list node; /* in the loop's list, signals only */
    er_io_fn on_io;
    er_signal_fn on_signal;
    void *user;
};

static int dispatch_io(sd_event_source *sd, int fd, uint32_t revents, void *userdata)
{
    struct er_loop_source *source = userdata;

    source->on_io(source->user, revents);
    return 0;
}

static int dispatch_signal(sd_event_source *sd, const struct signalfd_siginfo *info, void *userdata)
{
    struct er_loop_source *source = userdata;

    source->on_signal(source->user, (int)info->ssi_signo);
    return 0;
}

int er_loop_new(struct er_loop **ret, struct er_error *err)
{
    struct er_loop *loop = calloc(1, sizeof(*loop));
    int rc = loop ? sd_event_new(&loop->event) : -ENOMEM;

    if (rc < 0) {
        free(loop);
        return er_error_set(err, rc, "make the event loop: %s", er_error_name(rc));
    }
    er_list_init(&loop->signals);
    *ret = loop;
    return 0;
}

void er_loop_source_free(struct er_loop_source *source)
{
    if (!source)
        return;
    er_list_remove(&source->node);
    /* Disabled first: sd-event keeps a source that is being dispatched alive until it returns. */
    sd_event_source_set_enabled(source->sd, SD_EVENT_OFF);
    sd_event_source_unref(source->sd);
    free(source);
}

void er_loop_free(struct er_loop *loop)
{
    if (!loop)
        return;
    er_list_for_each_safe (node, &loop->signals)
        er_loop_source_free(ER_LIST_ITEM(node, struct er_loop_source, node));
    sd_event_unref(loop->event);
    free(loop);
}

int er_loop_io(struct er_loop *loop, int fd, uint32_t epoll_events, enum er_priority priority,
               er_io_fn fn, void *user, struct er_loop_source **ret, struct er_error *err)
{
    struct er_loop_source *source = calloc(1, sizeof(*source));
    int rc;

    if (!source)
        return er_error_set(err, -ENOMEM, "watch a descriptor: out of memory");
    er_list_init(&source->node);
    source->on_io = fn;
    source->user = user;
    rc = sd_event_add_io(loop->event, &source->sd, fd, epoll_events, dispatch_io, source);
    if (rc < 0) {
        free(source);
        return er_error_set(err, rc, "watch descriptor %d: %s", fd, er_error_name(rc));
    }
    sd_event_source_set_priority(source->sd, priority);
    *ret = source;
    return 0;
}

int er_loop_source_set_events(struct er_loop_source *source, uint32_t epoll_events)
{
    return sd_event_source_set_io_events(source->sd, epoll_events);
}

int er_loop_signal(struct er_loop *loop, int sig, er_signal_fn fn, void *user, struct er_error *err)
{
    struct er_loop_source *source = calloc(1, sizeof(*source));
    int rc;

    if (!source)
        return er_error_set(err, -ENOMEM, "watch a signal: out of memory");
    source->on_signal = fn;
    source->user = user;
    rc = sd_event_add_signal(loop->event, &source->sd, sig, dispatch_signal, source);
    if (rc < 0) {
        free(source);
        return er_error_set(err, rc, "watch signal %d: %s", sig, er_error_name(rc));
    }
    sd_event_source_set_priority(source->sd,
                                 sig == SIGCHLD ? ER_PRIORITY_CHILD : ER_PRIORITY_SIGNAL);
    er_list_push_back(&loop->signals, &source->node);
    return 0;
}

int er_loop_run(struct er_loop *loop, uint64_t now_us, uint64_t deadline_us, struct er_error *err)
{
    uint64_t timeout_us = deadline_us == ER_FOREVER ? UINT64_MAX
                          : deadline_us > now_us    ? deadline_us - now_us
                                                    : 0;
    int rc = sd_event_run(loop->event, timeout_us);

    return rc < 0 ? er_error_set(err, rc, "run the event loop: %s", er_error_name(rc)) : 0;
}
