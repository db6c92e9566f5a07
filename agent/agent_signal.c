/* Signals to the agent (docs/operations.md, "Signals"). */
#include <signal.h>
#include <stdio.h>

#include "agent/agent_internal.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/log.h"
#include "base/parse.h"

#define COALESCE_US (200 * ER_US_PER_MS)

static void leave(struct er_agent *agent, int code, const char *reason)
{
    er_driver_leave(agent->driver, code, reason);
}

static bool is_pending(int sig)
{
    sigset_t set;

    return sigpending(&set) == 0 && sigismember(&set, sig) == 1;
}

static void first_stop(struct er_agent *agent, int sig, int code, const char *reason,
                       uint64_t now_us)
{
    bool notice = agent->config->preempt.signals >> sig & 1;

    if (notice && agent->config->nnodes_max > 1) {
        er_driver_drain(agent->driver, code, reason,
                        er_agent_drain_node(agent, er_signal_name(sig), now_us));
        return;
    }
    er_agent_begin_stop(agent, er_signal_name(sig), notice, now_us);
    leave(agent, code, reason);
}

static void on_stop_signal(struct er_agent *agent, int sig, uint64_t now_us)
{
    int code;
    char reason[64];

    /* Of two that came at once TERM counts, though INT is read first. */
    if (sig == SIGINT && agent->stop_signals == 0 && is_pending(SIGTERM) &&
        !(agent->config->stop.forward >> SIGTERM & 1))
        sig = SIGTERM;
    agent->stop_signal = sig;
    agent->stop_signal_us = now_us;
    agent->stop_signals++;
    code = sig == SIGINT ? ER_CODE_INTERRUPTED : ER_CODE_TEMPFAIL;
    snprintf(reason, sizeof(reason), "signal %s", er_signal_name(sig));
    if (agent->stop_signals == 1) {
        first_stop(agent, sig, code, reason, now_us);
    } else {
        leave(agent, code, reason); /* a wish that is there already can only become shorter */
        er_agent_hurry(agent, now_us);
    }
}

/* The guard has died: nobody is left who would clean up after us, so stop, and quickly. */
static void on_guard_death(struct er_agent *agent, uint64_t now_us)
{
    agent->stop_signals = 2;
    leave(agent, ER_CODE_TEMPFAIL, "the guard process died");
    er_agent_hurry(agent, now_us);
}

static void resume(struct er_agent *agent)
{
    if (agent->group)
        er_group_signal(agent->group, SIGCONT);
}

/* Ctrl-Z, and fg after it. Time goes on meanwhile: deadlines that pass count as passed. */
static void suspend(struct er_agent *agent)
{
    if (agent->group)
        er_group_signal(agent->group, SIGSTOP);
    raise(SIGSTOP);
    resume(agent);
}

static void on_signal(void *user, int sig)
{
    struct er_agent *agent = user;
    const struct er_config *c = agent->config;
    uint64_t now_us = er_now_us(), bit = 1ull << sig;
    bool again = agent->seen_us[sig] && now_us - agent->seen_us[sig] < COALESCE_US;

    if (sig == er_guard_death_signal()) {
        on_guard_death(agent, now_us);
        return;
    }
    if (sig == SIGCONT) {
        resume(agent);
        return;
    }
    /* The guard and the agent may both be hit by the same pkill or group kill. */
    if (again)
        return;
    agent->seen_us[sig] = now_us;
    if (sig == SIGTSTP) {
        suspend(agent);
    } else if (c->stop.forward & bit) {
        if (agent->group)
            er_group_signal(agent->group, sig);
    } else if ((c->stop.signals_to_handle | c->preempt.signals) & bit) {
        on_stop_signal(agent, sig, now_us);
    } else {
        er_log(ER_LOG_WARNING, "signal ignored: it is not in stop.signals_to_handle",
               ER_STR("signal", er_signal_name(sig)));
    }
}

static void on_child(void *user, int sig)
{
    struct er_agent *agent = user;

    if (agent->group)
        er_group_child(agent->group);
}

/* nohup(1) and its like have said that the terminal's end is not ours. */
static bool is_ignored_hangup(int sig)
{
    struct sigaction now;

    return sig == SIGHUP && sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

int er_agent_watch_signals(struct er_agent *agent, struct er_error *err)
{
    sigset_t set;
    int rc = 0;

    er_guard_hold_signals();
    er_guard_signals(&set);
    for (int sig = 1; !rc && sig < ER_SIGNAL_MAX; sig++) {
        if (sigismember(&set, sig) == 1 && !is_ignored_hangup(sig))
            rc = er_loop_signal(agent->loop, sig, on_signal, agent, err);
    }
    if (!rc)
        rc = er_loop_signal(agent->loop, er_guard_death_signal(), on_signal, agent, err);
    return rc ? rc : er_loop_signal(agent->loop, SIGCHLD, on_child, agent, err);
}
