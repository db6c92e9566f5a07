#include "agent/worker_fsm.h"

#include <assert.h>

#include "base/clock.h"

#define BIT(state) (1u << ER_WORKER_##state)

/* Where each state may lead. */
static const unsigned ALLOWED[ER_WORKER_STATE_COUNT] = {
    [ER_WORKER_SPAWNING] = BIT(UP) | BIT(READY) | BIT(STOPPING) | BIT(KILLING) | BIT(EXITED),
    [ER_WORKER_UP] = BIT(READY) | BIT(STOPPING) | BIT(KILLING) | BIT(EXITED),
    [ER_WORKER_READY] = BIT(STOPPING) | BIT(KILLING) | BIT(EXITED),
    [ER_WORKER_STOPPING] = BIT(UP) | BIT(STOPPING) | BIT(KILLING) | BIT(EXITED),
    [ER_WORKER_KILLING] = BIT(EXITED),
    [ER_WORKER_EXITED] = 0,
};

typedef unsigned (*handler_fn)(struct er_worker_fsm *fsm, const struct er_worker_event *event);

static void set_state(struct er_worker_fsm *fsm, enum er_worker_state to)
{
    assert(ALLOWED[fsm->state] & (1u << to));
    fsm->state = to;
}

static unsigned on_execed(struct er_worker_fsm *fsm, const struct er_worker_event *event)
{
    set_state(fsm, ER_WORKER_UP);
    return 0;
}

static unsigned on_ready(struct er_worker_fsm *fsm, const struct er_worker_event *event)
{
    set_state(fsm, ER_WORKER_READY);
    return 0;
}

static unsigned on_kill(struct er_worker_fsm *fsm, const struct er_worker_event *event)
{
    set_state(fsm, ER_WORKER_KILLING);
    fsm->deadline_us = ER_FOREVER;
    fsm->stopped_by_us = fsm->signaled = true;
    return ER_WORKER_ACT_KILL;
}

static unsigned on_stop(struct er_worker_fsm *fsm, const struct er_worker_event *event)
{
    set_state(fsm, ER_WORKER_STOPPING);
    fsm->deadline_us = er_deadline_in(event->now_us, event->grace_us);
    fsm->stopped_by_us = fsm->signaled = true;
    return ER_WORKER_ACT_NOTICE | ER_WORKER_ACT_SIGNAL;
}

/* It was asked to leave, and now everything is over. */
static unsigned on_stop_after_leave(struct er_worker_fsm *fsm, const struct er_worker_event *event)
{
    return fsm->signaled ? 0 : on_stop(fsm, event);
}

static unsigned on_ask(struct er_worker_fsm *fsm, const struct er_worker_event *event)
{
    set_state(fsm, ER_WORKER_STOPPING);
    fsm->deadline_us = er_deadline_in(event->now_us, event->grace_us);
    fsm->stopped_by_us = true;
    return ER_WORKER_ACT_ASK;
}

static unsigned on_leave(struct er_worker_fsm *fsm, const struct er_worker_event *event)
{
    (void)on_ask(fsm, event);
    return ER_WORKER_ACT_NOTICE;
}

/* It was asked to, and now there is no time for that. */
static unsigned on_leave_after_ask(struct er_worker_fsm *fsm, const struct er_worker_event *event)
{
    return fsm->signaled ? 0 : on_leave(fsm, event);
}

static unsigned on_left(struct er_worker_fsm *fsm, const struct er_worker_event *event)
{
    if (!fsm->signaled)
        fsm->deadline_us = ER_FOREVER;
    return 0;
}

static unsigned on_rejoin(struct er_worker_fsm *fsm, const struct er_worker_event *event)
{
    if (fsm->signaled)
        return 0;
    set_state(fsm, ER_WORKER_UP);
    fsm->deadline_us = ER_FOREVER;
    fsm->stopped_by_us = false;
    return 0;
}

static unsigned on_hurry(struct er_worker_fsm *fsm, const struct er_worker_event *event)
{
    uint64_t deadline_us = er_deadline_in(event->now_us, event->grace_us);

    if (deadline_us < fsm->deadline_us)
        fsm->deadline_us = deadline_us;
    return 0;
}

static unsigned on_time(struct er_worker_fsm *fsm, const struct er_worker_event *event)
{
    return event->now_us >= fsm->deadline_us ? on_kill(fsm, event) : 0;
}

static unsigned on_exited(struct er_worker_fsm *fsm, const struct er_worker_event *event)
{
    set_state(fsm, ER_WORKER_EXITED);
    fsm->deadline_us = ER_FOREVER;
    return 0;
}

/* What each event does in each state; NULL: nothing. */
static const handler_fn HANDLERS[ER_WORKER_STATE_COUNT][ER_WORKER_EV_COUNT] = {
    [ER_WORKER_SPAWNING] = {[ER_WORKER_EV_EXECED] = on_execed,
                            [ER_WORKER_EV_READY] = on_ready,
                            [ER_WORKER_EV_STOP] = on_stop,
                            [ER_WORKER_EV_ASK] = on_ask,
                            [ER_WORKER_EV_LEAVE] = on_leave,
                            [ER_WORKER_EV_KILL] = on_kill,
                            [ER_WORKER_EV_EXITED] = on_exited},
    [ER_WORKER_UP] = {[ER_WORKER_EV_READY] = on_ready,
                      [ER_WORKER_EV_STOP] = on_stop,
                      [ER_WORKER_EV_ASK] = on_ask,
                      [ER_WORKER_EV_LEAVE] = on_leave,
                      [ER_WORKER_EV_KILL] = on_kill,
                      [ER_WORKER_EV_EXITED] = on_exited},
    [ER_WORKER_READY] = {[ER_WORKER_EV_STOP] = on_stop,
                         [ER_WORKER_EV_ASK] = on_ask,
                         [ER_WORKER_EV_LEAVE] = on_leave,
                         [ER_WORKER_EV_KILL] = on_kill,
                         [ER_WORKER_EV_EXITED] = on_exited},
    [ER_WORKER_STOPPING] = {[ER_WORKER_EV_STOP] = on_stop_after_leave,
                            [ER_WORKER_EV_LEAVE] = on_leave_after_ask,
                            [ER_WORKER_EV_LEFT] = on_left,
                            [ER_WORKER_EV_REJOIN] = on_rejoin,
                            [ER_WORKER_EV_HURRY] = on_hurry,
                            [ER_WORKER_EV_KILL] = on_kill,
                            [ER_WORKER_EV_TIME] = on_time,
                            [ER_WORKER_EV_EXITED] = on_exited},
    [ER_WORKER_KILLING] = {[ER_WORKER_EV_EXITED] = on_exited},
    [ER_WORKER_EXITED] = {NULL},
};

void er_worker_fsm_init(struct er_worker_fsm *fsm)
{
    *fsm = (struct er_worker_fsm){.state = ER_WORKER_SPAWNING, .deadline_us = ER_FOREVER};
}

unsigned er_worker_fsm_step(struct er_worker_fsm *fsm, const struct er_worker_event *event)
{
    assert(fsm->state < ER_WORKER_STATE_COUNT && event->kind < ER_WORKER_EV_COUNT);
    handler_fn handler = HANDLERS[fsm->state][event->kind];

    return handler ? handler(fsm, event) : 0;
}

bool er_worker_fsm_alive(const struct er_worker_fsm *fsm)
{
    return fsm->state != ER_WORKER_EXITED;
}

const char *er_worker_state_name(enum er_worker_state state)
{
    static const char *const NAMES[ER_WORKER_STATE_COUNT] = {
#define NAME(name, text) [ER_WORKER_##name] = text,
        ER_WORKER_STATES(NAME)
#undef NAME
    };
    return state < ER_WORKER_STATE_COUNT ? NAMES[state] : "unknown";
}
