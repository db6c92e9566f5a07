#pragma once
/*
 * What an agent does beside its workers: helper programs and their clocks. One part of struct
 * er_agent, stepped from its one step function; each errand has a file of its own.
 */
#include "agent/helper.h"
#include "base/list.h"
#include "rendezvous/driver.h"

#define ER_GPU_WAIT_MAX 256 /* workers whose GPU memory is waited for */
#define ER_NOTICES_MAX  64  /* events that wait for notify.command; more are counted only */

struct er_agent;

/* agent_gpu.c */
struct er_gpu_wait {
    pid_t pids[ER_GPU_WAIT_MAX]; /* of the generation that ended */
    size_t n;
    bool waiting, told;
    uint64_t again_us, give_up_us;
    bool held; /* a generation that may not start yet: */
    struct er_assignment assignment;
};

/* agent_health.c: the checks of one join, in this order: built-in ones, the GPUs, the command. */
struct er_health {
    bool checking;                 /* the driver is not told yet what it waits for */
    bool first;                    /* before the node has ever joined */
    bool passed;                   /* for the generation that has ended */
    bool running;                  /* a helper is at it */
    uint64_t retry_us, give_up_us; /* an unhealthy node looks again, for rendezvous.join_timeout */
};

/* agent_notify.c */
struct er_notify {
    struct er_list queue;
    size_t n;
    uint64_t lost;
    bool running;
};

/* agent_preempt.c */
struct er_preempt {
    uint64_t next_us;
    bool running, told; /* told: that the command does not work */
};

struct er_errands {
    struct er_helpers *helpers;
    struct er_gpu_wait gpu;
    struct er_health health;
    struct er_notify notify;
    struct er_preempt preempt;
};

/* `environ_` is what helpers inherit, borrowed. -ENOMEM. */
int er_errands_open(struct er_agent *agent, char *const *environ_, struct er_error *err);
void er_errands_close(struct er_agent *agent);
void er_errands_step(struct er_agent *agent, uint64_t now_us);
uint64_t er_errands_deadline(const struct er_agent *agent);
/* After the last event: waits for those who are told of it, not longer than their limit. */
void er_errands_finish(struct er_agent *agent);

/* A worker has ended; all have; may this generation start (else it is kept, and started in time)?
 * It is not to be started after all. */
void er_gpu_wait_exited(struct er_agent *agent, pid_t pid);
void er_gpu_wait_gone(struct er_agent *agent, uint64_t now_us);
bool er_gpu_wait_hold(struct er_agent *agent, const struct er_assignment *a);
void er_gpu_wait_drop(struct er_agent *agent, uint64_t generation);
void er_gpu_wait_step(struct er_agent *agent, uint64_t now_us);

/* The node is about to join for the first time: until er_health_holds() is false the driver is not
 * dispatched. */
void er_health_first(struct er_agent *agent, uint64_t now_us);
bool er_health_holds(const struct er_agent *agent);
/* A generation has ended: true: checks run, and er_agent_say_left() will be called again. */
bool er_health_again(struct er_agent *agent, uint64_t now_us);
void er_health_step(struct er_agent *agent, uint64_t now_us);

void er_notify_open(struct er_agent *agent);
void er_notify_close(struct er_agent *agent);
bool er_notify_idle(const struct er_agent *agent);

void er_preempt_step(struct er_agent *agent, uint64_t now_us);
