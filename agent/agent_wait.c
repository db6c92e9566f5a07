/*
 * What a job with several agents waits for, told on the terminal and in the events: the store,
 * other nodes, a place. When the waits that are ours end: the store that is never reached, the
 * store that refuses us.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/parse.h"

#define LOOK_EVERY_US (500 * ER_US_PER_MS)
#define PATIENCE_US   (2 * ER_US_PER_S)  /* shorter waits are not worth a word */
#define AGAIN_US      (15 * ER_US_PER_S) /* between two lines about the same wait */
#define LATER_US      (60 * ER_US_PER_S) /* the same once it takes long */
#define LONG_US       (2 * 60 * ER_US_PER_S)
#define REFUSED_US    (5 * ER_US_PER_S) /* of nothing but refusals: it is no slip of the start */

/* Is it time for a line about a wait that began at `since_us`? A change of what is waited for is
 * told at once. */
static bool due(struct er_wait_line *line, uint64_t since_us, uint64_t about, uint64_t now_us)
{
    uint64_t every_us = now_us > since_us + LONG_US ? LATER_US : AGAIN_US;

    if (now_us < since_us + PATIENCE_US)
        return false;
    if (line->told_us >= since_us && line->about == about && now_us < line->told_us + every_us)
        return false;
    line->told_us = now_us;
    line->about = about;
    return true;
}

/* ---- the store ---- */

static void lost(struct er_agent *agent, const struct er_etcd_status *s)
{
    const struct er_config *c = agent->config;
    bool stops = strcmp(c->rendezvous.store_loss_policy, "stop") == 0;
    char limit[96];

    agent->wait.lost_us = s->down_since_us;
    agent->wait.lost_generation = agent->group ? er_group_assignment(agent->group)->generation : 0;
    er_event(&agent->events, "store_lost", ER_SEVERITY_WARNING, er_driver_generation(agent->driver),
             "The store does not answer.", ER_STR("endpoints", s->endpoint),
             ER_STR("error", s->text));
    er_limit_text(c->rendezvous.store_loss_limit_us == ER_FOREVER
                      ? 0
                      : s->down_since_us + c->rendezvous.store_loss_limit_us,
                  er_now_us(), "exit 69 in", limit);
    er_agent_say(agent, "the store does not answer: the workers %s, nothing is committed%s (%s)",
                 stops ? "stop before the node's lease can end" : "go on", limit, s->text);
}

/* What became of the world meanwhile shows a moment after the store is back. */
static void restored(struct er_agent *agent, uint64_t now_us)
{
    uint64_t outage_us = agent->wait.back_us - agent->wait.lost_us;
    bool same = er_driver_generation(agent->driver) == agent->wait.lost_generation;
    char time[ER_UNIT_TEXT_MAX];

    agent->wait.lost_us = 0;
    er_seconds_text(outage_us, time, sizeof(time));
    er_event(&agent->events, "store_restored", ER_SEVERITY_INFO,
             er_driver_generation(agent->driver), "The store answers again.",
             ER_NUM("outage_ms", (double)outage_us / 1e3),
             ER_STR("verdict", same ? "same_world" : "superseded"));
    er_agent_say(agent, "the store answers again after %s%s", time,
                 same ? "; nothing has changed" : "; the job has moved on meanwhile");
}

static void give_up(struct er_agent *agent, int code, const char *why,
                    const struct er_etcd_status *s)
{
    struct er_error err = ER_ERROR_INIT;

    er_error_set(&err, s->rc, "%s: %s", why, s->text);
    er_agent_fail(agent, code, &err);
}

/* What to look at, by what a member says. */
static const char *hint(const struct er_config *c, const char *says)
{
    static const struct {
        const char *word, *hint;
    } HINTS[] = {
        {"is not in peer certificate",
         "its certificate names another host: rendezvous.endpoints as "
         "the certificate has them, or rendezvous.tls.server_name"},
        {"Hostname Verification", "its certificate names another host: rendezvous.endpoints as the "
                                  "certificate has them, or rendezvous.tls.server_name"},
        {"ertificate verify failed", "rendezvous.tls.ca is not the authority of its certificate, "
                                     "or that has expired"},
        {"CERTIFICATE_VERIFY_FAILED", "rendezvous.tls.ca is not the authority of its certificate, "
                                      "or that has expired"},
        {"authentication failed", "rendezvous.auth.user does not exist or has another password "
                                  "than the one in rendezvous.auth.password_file"},
        {"user name is empty", "it wants a user: rendezvous.auth, or the name in the certificate "
                               "rendezvous.tls.cert"},
        {"permission denied", "its account needs a role with read and write permission on this "
                              "job's keys"},
    };

    if (c->rendezvous.managed.secret_file)
        return "is rendezvous.managed.secret_file the same on all nodes?";
    for (size_t i = 0; i < ER_ARRAY_N(HINTS); i++) {
        if (strstr(says, HINTS[i].word))
            return HINTS[i].hint;
    }
    return "certificate, password or role";
}

static void refuse(struct er_agent *agent, const struct er_etcd_status *s)
{
    const struct er_config *c = agent->config;
    char why[320];

    snprintf(why, sizeof(why), "the store refuses this agent, for keys below '%s/%s/' (%s)",
             c->rendezvous.prefix, c->name, hint(c, s->text));
    give_up(agent, ER_CODE_NOPERM, why, s);
}

static void never_there(struct er_agent *agent, const struct er_etcd_status *s, uint64_t now_us)
{
    uint64_t until_us =
        er_deadline_in(agent->started_us, agent->config->rendezvous.join_timeout_us);
    struct er_wait *w = &agent->wait;
    char limit[96], why[160], time[ER_UNIT_TEXT_MAX];

    if (s->rc != -EACCES)
        w->refused_us = 0;
    else if (!w->refused_us)
        w->refused_us = now_us;
    if (w->refused_us && now_us >= w->refused_us + REFUSED_US) {
        refuse(agent, s);
    } else if (now_us + LOOK_EVERY_US >= until_us) {
        er_format_duration(agent->config->rendezvous.join_timeout_us, time);
        snprintf(why, sizeof(why), "the store was not reached within rendezvous.join_timeout (%s)",
                 time);
        give_up(agent, s->rc == -EACCES ? ER_CODE_NOPERM : ER_CODE_UNAVAILABLE, why, s);
    } else if (due(&w->store, agent->started_us, (uint64_t)-s->rc, now_us)) {
        er_limit_text(until_us, now_us, "giving up in", limit);
        er_agent_say(agent, "waiting for the store: %s%s", s->text, limit);
    }
}

static void look_at_store(struct er_agent *agent, uint64_t now_us)
{
    struct er_wait *w = &agent->wait;
    struct er_etcd_status s;

    agent->store.etcd->status(agent->store.store, &s);
    w->was_connected |= s.connected;
    if (!s.connected && !w->was_connected) {
        never_there(agent, &s, now_us);
    } else if (!s.connected) {
        w->back_us = 0;
        if (!w->lost_us && now_us >= s.down_since_us + PATIENCE_US)
            lost(agent, &s);
    } else if (w->lost_us) {
        if (!w->back_us)
            w->back_us = now_us;
        else if (now_us > w->back_us + LOOK_EVERY_US)
            restored(agent, now_us);
    }
}

/* Connected, and may not write: a role that is too small, or was taken away while the job ran. Then
 * workers go on as without a store; without any there is nothing to wait for. */
static void look_at_rights(struct er_agent *agent, const struct er_look *look, uint64_t now_us)
{
    const struct er_config *c = agent->config;
    struct er_wait *w = &agent->wait;
    struct er_error err = ER_ERROR_INIT;
    bool runs = agent->group && !er_group_gone(agent->group);

    if (!look->denied) {
        w->denied_us = 0;
        return;
    }
    if (!w->denied_us) {
        w->denied_us = now_us;
        w->denied_told = false;
    }
    if (now_us < w->denied_us + REFUSED_US)
        return;
    er_error_set(&err, -EACCES,
                 "the store refuses this agent: its account may not write below '%s/%s/' (role "
                 "with read and write permission on that prefix needed)",
                 c->rendezvous.prefix, c->name);
    if (runs && !w->denied_told)
        er_agent_say(agent, "%s; the workers go on, nothing is committed", err.text);
    w->denied_told = true;
    if (!runs || now_us >= er_deadline_in(w->denied_us, c->rendezvous.store_loss_limit_us))
        er_agent_fail(agent, ER_CODE_NOPERM, &err);
}

/* ---- other nodes ---- */

static void say_forming(struct er_agent *agent, const struct er_look *look, uint64_t now_us)
{
    struct er_wait *w = &agent->wait;
    char text[ER_SENTENCE_MAX];

    if (!due(&w->nodes, w->forming_us, look->leads ? look->have + 1 : 0, now_us))
        return;
    er_wait_sentence(look, now_us, text);
    if (text[0])
        er_agent_say(agent, "%s", text);
}

static void say_spare(struct er_agent *agent, const struct er_look *look, uint64_t now_us)
{
    struct er_wait *w = &agent->wait;
    char text[ER_SENTENCE_MAX];

    if (w->spare_generation == look->generation || now_us < w->forming_us + PATIENCE_US)
        return;
    w->spare_generation = look->generation;
    er_wait_sentence(look, now_us, text);
    er_agent_say(agent, "%s", text);
}

static void look_at_nodes(struct er_agent *agent, const struct er_look *look, uint64_t now_us)
{
    struct er_wait *w = &agent->wait;
    bool waits = look->stand == ER_STAND_FORMING || look->stand == ER_STAND_SPARE;

    if (!waits)
        w->forming_us = 0;
    else if (!w->forming_us || w->stand != look->stand)
        w->forming_us = now_us;
    if (look->stand == ER_STAND_MEMBER && w->stand == ER_STAND_SPARE && w->spare_generation)
        er_event(&agent->events, "node_promoted", ER_SEVERITY_INFO, look->generation,
                 "A spare node joined.", ER_STR("node", agent->config->node.id),
                 ER_STR("address", agent->address), ER_UINT("slots", agent->config->nproc),
                 ER_STR("as", "member"));
    if (look->stand == ER_STAND_SPARE && w->stand != ER_STAND_SPARE)
        er_agent_goodput_enter(agent, ER_TIME_IDLE, now_us);
    w->stand = look->stand;
    if (look->stand == ER_STAND_FORMING)
        say_forming(agent, look, now_us);
    else if (look->stand == ER_STAND_SPARE)
        say_spare(agent, look, now_us);
}

void er_agent_wait_step(struct er_agent *agent, uint64_t now_us)
{
    struct er_look look;

    if (!agent->store.etcd || agent->done || agent->own_exit_code || agent->stop_signals)
        return;
    er_driver_look(agent->driver, &look);
    agent->was_registered |= look.registered;
    er_agent_dismiss_spare(agent, &look);
    er_agent_follow_run(agent);
    if (now_us < agent->wait.look_us && look.stand == agent->wait.stand)
        return;
    agent->wait.look_us = now_us + LOOK_EVERY_US;
    look_at_store(agent, now_us);
    look_at_rights(agent, &look, now_us);
    look_at_nodes(agent, &look, now_us);
}

/* While something is waited for, and while the store is away; otherwise an event will tell. */
uint64_t er_agent_wait_deadline(const struct er_agent *agent)
{
    const struct er_wait *w = &agent->wait;
    struct er_etcd_status s;

    if (!agent->store.etcd || agent->done || agent->own_exit_code)
        return ER_FOREVER;
    if (w->denied_us)
        return w->look_us;
    if (w->stand == ER_STAND_MEMBER && !w->lost_us) {
        agent->store.etcd->status(agent->store.store, &s);
        if (s.connected)
            return ER_FOREVER;
    }
    if (w->stand == ER_STAND_SPARE && w->spare_generation && !w->lost_us)
        return w->look_us + AGAIN_US;
    return w->look_us;
}
