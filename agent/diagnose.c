#include "agent/diagnose.h"

#include <stdio.h>
#include <string.h>

#include "agent/words.h"
#include "base/cleanup.h"
#include "base/clock.h"

#define TIME_MAX 32

const char *er_finding_code_name(enum er_finding_code code)
{
    static const char *const NAMES[] = {
#define NAME(name, text) text,
        ER_FINDING_CODES(NAME)
#undef NAME
    };
    return code < ER_FINDING_COUNT ? NAMES[code] : "unknown";
}

const char *er_finding_weight_name(enum er_finding_weight weight)
{
    static const char *const NAMES[] = {"good", "waits", "wrong"};

    return NAMES[weight];
}

/* ---- words ---- */

/* "4.2s", "3m20s", "2h05m" */
static const char *time_text(uint64_t us, char ret[TIME_MAX])
{
    uint64_t s = us / ER_US_PER_S;

    if (s < 60)
        snprintf(ret, TIME_MAX, "%.1fs", (double)us / 1e6);
    else if (s < 3600)
        snprintf(ret, TIME_MAX, "%um%02us", (unsigned)(s / 60), (unsigned)(s % 60));
    else
        snprintf(ret, TIME_MAX, "%lluh%02um", (unsigned long long)(s / 3600),
                 (unsigned)(s / 60 % 60));
    return ret;
}

static const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

#define SAY(to, ...)    er_words_add((to)->text, sizeof((to)->text), __VA_ARGS__)
#define ADVISE(to, ...) er_words_add((to)->advice, sizeof((to)->advice), __VA_ARGS__)

static void say_ranks(struct er_finding *to, const int *ranks, int n, int all)
{
    er_words_list(to->text, sizeof(to->text), "rank", ranks, n, all);
}

static void say_where(struct er_finding *to, const struct er_hang_fact *f)
{
    char time[TIME_MAX];

    SAY(to, "%s after step %llu, and has not moved for %s", er_phase_name(f->phase),
        (unsigned long long)f->step, time_text(f->still_us, time));
}

static void say_left(struct er_finding *to, const struct er_hang_fact *f, const char *what)
{
    char time[TIME_MAX];

    if (f->left_us != ER_FOREVER)
        ADVISE(to, "%s in %s", what, time_text(f->left_us, time));
}

static bool is(const char *text, const char *what)
{
    return strcmp(text, what) == 0;
}

/* ---- rules: true: `to` is a finding ---- */

static bool over(const struct er_diagnose_facts *f, struct er_finding *to)
{
    if (f->exit_code < 0)
        return false;
    SAY(to, "the job is over here: %s, exit code %d", f->outcome, f->exit_code);
    return true;
}

static bool store_denied(const struct er_diagnose_facts *f, struct er_finding *to)
{
    if (!f->store_denies)
        return false;
    SAY(to, "the store refuses this node's writes: %s", f->store_error);
    ADVISE(to,
           "the role of rendezvous.auth.user, or the certificate, needs read and write access to "
           "the job's keys");
    return true;
}

static bool store_away(const struct er_diagnose_facts *f, struct er_finding *to)
{
    char time[TIME_MAX];

    if (!f->store_is_far || f->store_answers)
        return false;
    SAY(to,
        "the store (%s) has not answered for %s: %s; workers run on, but nothing is committed, "
        "and no generation can begin or end",
        f->store_endpoint, time_text(f->store_down_us, time), f->store_error);
    ADVISE(to, "look at etcd and at the network between it and this node");
    return true;
}

static bool unhealthy(const struct er_diagnose_facts *f, struct er_finding *to)
{
    if (!f->unhealthy)
        return false;
    SAY(to, "this node does not join: its health checks run, or have failed");
    ADVISE(to, "the event health_check_failed names the check; it is tried again after "
               "health.cooldown");
    return true;
}

static bool not_registered(const struct er_diagnose_facts *f, struct er_finding *to)
{
    if (f->registered)
        return false;
    SAY(to, "this node has not registered with the job yet");
    ADVISE(to,
           "it may wait for its own old record to expire (rendezvous.lease_ttl), or another agent "
           "may use its node.id");
    return true;
}

static bool stopping(const struct er_diagnose_facts *f, struct er_finding *to)
{
    char time[TIME_MAX];

    if (!f->stopping || f->living == 0)
        return false;
    SAY(to, "the generation is over, and %d worker%s of this node still run%s", f->living,
        plural((uint64_t)f->living), f->living == 1 ? "s" : "");
    if (f->kill_us != ER_FOREVER)
        ADVISE(to, "those that have not ended, or left it, are killed in %s",
               time_text(f->kill_us, time));
    return true;
}

static bool gpu_memory(const struct er_diagnose_facts *f, struct er_finding *to)
{
    if (!f->waits_for_gpus)
        return false;
    SAY(to, "the driver still counts dead workers as holders of GPU memory");
    ADVISE(to, "it is waited for at most restart.gpu_memory_timeout");
    return true;
}

static void advise_give_up(const struct er_diagnose_facts *f, struct er_finding *to)
{
    char time[TIME_MAX];

    if (f->give_up_us && f->give_up_us != ER_FOREVER)
        ADVISE(to, "start more nodes, or lower nnodes; the wait ends in %s (exit code 75)",
               time_text(f->give_up_us, time));
    else
        ADVISE(to, "start more nodes, or lower nnodes");
}

static bool too_few_nodes(const struct er_diagnose_facts *f, struct er_finding *to)
{
    if (!is(f->phase, "forming") || !f->leads || f->have >= f->min)
        return false;
    SAY(to, "%u node%s here, and the job needs at least %u", f->have,
        f->have == 1 ? " is" : "s are", f->min);
    advise_give_up(f, to);
    return true;
}

static bool members_absent(const struct er_diagnose_facts *f, struct er_finding *to)
{
    if (!is(f->phase, "forming") || !f->leads || f->absent == 0)
        return false;
    SAY(to,
        "%u member%s of the last generation have gone, and may come back within "
        "rendezvous.replacement_wait",
        f->absent, plural(f->absent));
    return true;
}

static bool nodes_not_ready(const struct er_diagnose_facts *f, struct er_finding *to)
{
    if (!is(f->phase, "forming") || !f->leads || f->unready == 0)
        return false;
    SAY(to, "%u node%s still have workers of the last generation", f->unready, plural(f->unready));
    ADVISE(to, "`elastic-ctl explain` there tells which; who takes longer than stop.grace and some "
               "seconds is left out");
    return true;
}

static bool not_asked(const struct er_diagnose_facts *f, struct er_finding *to)
{
    if (!f->not_asked)
        return false;
    SAY(to, "the nodes cannot be asked what they know: %s", f->not_asked);
    if (f->not_allowed)
        ADVISE(to, "that needs write access to the job's keys; on a node its agent answers through "
                   "its socket");
    else
        ADVISE(to, "look at the store and at the network between it and this host; on a node its "
                   "agent answers through its socket");
    return true;
}

/* Asked what it knows. */
static bool node_silent(const struct er_diagnose_facts *f, struct er_finding *to)
{
    char time[TIME_MAX];

    if (f->silent_n == 0)
        return false;
    SAY(to, "no answer within %s from node%s ", time_text(f->waited_us, time), plural(f->silent_n));
    for (size_t i = 0; i < f->silent_n && i < ER_WORDS_LISTED; i++)
        SAY(to, "%s%s", i ? ", " : "", f->silent[i]);
    if (f->silent_n > ER_WORDS_LISTED)
        SAY(to, " and %zu more", f->silent_n - ER_WORDS_LISTED);
    ADVISE(to,
           "is the host alive, and its agent (`systemctl status`, ps)? Does it reach the store? "
           "Who is dead is lost within rendezvous.lease_ttl");
    return true;
}

static bool last_call(const struct er_diagnose_facts *f, struct er_finding *to)
{
    char time[TIME_MAX];

    if (!is(f->phase, "forming") || f->last_call_us == 0)
        return false;
    SAY(to, "there are enough nodes, and %u may join within %s", f->max - f->have,
        time_text(f->last_call_us, time));
    ADVISE(to, "rendezvous.last_call_timeout says how long that is");
    return true;
}

static bool forming(const struct er_diagnose_facts *f, struct er_finding *to)
{
    if (!is(f->phase, "forming") || f->spare)
        return false;
    SAY(to, "a generation is being formed");
    if (!f->leads && f->leader[0])
        ADVISE(to, "node '%s' leads: `elastic-ctl explain` there says what it waits for",
               f->leader);
    return true;
}

static bool spare(const struct er_diagnose_facts *f, struct er_finding *to)
{
    if (!f->spare)
        return false;
    if (f->aside[0]) {
        SAY(to, "this node is set aside (%s): the job runs without it", f->aside);
        ADVISE(to, "it is taken back when its time is over, or when the others are too few; find "
                   "out what is wrong with it, or drain it");
        return true;
    }
    SAY(to, "this node is a spare: the job runs without it, and takes it when a place is free");
    return true;
}

/* A verdict is of now as long as ranks of this node stand still. */
static const struct er_hang_verdict *verdict_of(const struct er_diagnose_facts *f)
{
    const struct er_hang_verdict *v = f->verdict;
    bool still = false;

    for (size_t i = 0; i < f->ranks_n; i++)
        still |= f->ranks[i].reports && f->ranks[i].fact.state >= ER_HANG_STILL;
    return still ? v : NULL;
}

static bool rank_hung(const struct er_diagnose_facts *f, struct er_finding *to)
{
    const struct er_hang_verdict *v = verdict_of(f);

    if (!v || !er_hang_is_hang(v) || v->n == 0)
        return false;
    SAY(to, "rank %d of node %d hangs: it is in ", v->who[0].rank, v->who[0].node_rank);
    say_where(to, &v->who[0]);
    if (v->who[0].stopped)
        SAY(to, "; its process is stopped by a signal");
    if (v->waiting_all > 0) {
        SAY(to, "; waiting for it: ");
        say_ranks(to, v->waiting, v->waiting_n, v->waiting_all);
    }
    if (f->kills)
        ADVISE(to, "its process is killed and started anew (hang.action: restart)");
    else
        ADVISE(to, "hang.action is report: end it yourself, or let it go on");
    return true;
}

static bool rank_stopped(const struct er_diagnose_facts *f, struct er_finding *to)
{
    for (size_t i = 0; i < f->ranks_n; i++) {
        const struct er_diagnose_rank *r = &f->ranks[i];

        if (!r->fact.stopped && !r->fact.traced)
            continue;
        SAY(to, "rank %d (pid %d) is %s", r->fact.rank, r->pid,
            r->fact.traced ? "held by a debugger" : "stopped by a signal");
        if (r->reports) {
            SAY(to, ": it is in ");
            say_where(to, &r->fact);
        }
        if (!r->fact.traced)
            ADVISE(to, "`kill -CONT %d` lets it go on", r->pid);
        if (!r->fact.traced && f->kills && r->reports)
            say_left(to, &r->fact, "; else it is taken for hung");
        return true;
    }
    return false;
}

static bool no_word(const struct er_diagnose_facts *f, struct er_finding *to)
{
    const struct er_hang_verdict *v = verdict_of(f);

    if (!v || v->why != ER_HANG_WHY_UNKNOWN)
        return false;
    say_ranks(to, v->waiting, v->waiting_n, v->waiting_all);
    SAY(to, " stand still, and no word came from ");
    er_words_list(to->text, sizeof(to->text), "node", v->missing, v->missing_n, v->missing_n);
    ADVISE(to, "look at those nodes: agent, network, store");
    return true;
}

static bool rank_waited_for(const struct er_diagnose_facts *f, struct er_finding *to)
{
    const struct er_hang_verdict *v = verdict_of(f);

    if (!v || v->why != ER_HANG_WHY_PATIENT || v->n == 0)
        return false;
    say_ranks(to, v->waiting, v->waiting_n, v->waiting_all);
    SAY(to, " wait for rank %d of node %d, which is in ", v->who[0].rank, v->who[0].node_rank);
    say_where(to, &v->who[0]);
    say_left(to, &v->who[0], "its limit ends");
    return true;
}

/* Of all nodes: nobody else could be behind. */
static void say_still_of_all(const struct er_diagnose_facts *f, const struct er_hang_verdict *v,
                             size_t n, struct er_finding *to)
{
    const struct er_hang_fact *who = &v->who[0];

    SAY(to, "rank %d of node %s is in ", who->rank,
        who->node_rank < f->nodes_n ? f->nodes[who->node_rank] : "?");
    say_where(to, who);
    if (v->why == ER_HANG_WHY_ALIKE && n > 1)
        SAY(to, "; so have the %zu others that stand still: none can be told from the others",
            n - 1);
    else if (v->waiting_all > 0) {
        SAY(to, "; ");
        say_ranks(to, v->waiting, v->waiting_n, v->waiting_all);
        SAY(to, " stand%s still, too, and may wait for it", v->waiting_all == 1 ? "s" : "");
    }
    say_left(to, who, "who hangs is judged");
}

static void say_still_of_some(const struct er_hang_verdict *v, struct er_finding *to)
{
    say_ranks(to, v->waiting, v->waiting_n, v->waiting_all);
    SAY(to, " stand still; they may wait for ranks of nodes that have not answered");
}

/* The one that is furthest behind of those that do not move. */
static bool rank_still(const struct er_diagnose_facts *f, struct er_finding *to)
{
    static const bool all_here = true;
    struct er_hang_verdict v;
    size_t n = 0;

    for (size_t i = 0; i < f->ranks_n; i++) {
        if (!f->ranks[i].reports || f->ranks[i].fact.state < ER_HANG_PATIENT)
            continue;
        f->room[n] = f->ranks[i].fact;
        f->room[n++].state = ER_HANG_LATE; /* who would it be? */
    }
    er_hang_judge(f->room, n, f->nodes ? f->answered : &all_here, f->nodes ? f->nodes_n : 1, &v);
    if (v.n == 0 && v.why != ER_HANG_WHY_UNKNOWN)
        return false;
    if (v.why == ER_HANG_WHY_UNKNOWN) {
        say_still_of_some(&v, to);
    } else if (f->nodes) {
        say_still_of_all(f, &v, n, to);
    } else {
        SAY(to, "rank %d is in ", v.who[0].rank);
        say_where(to, &v.who[0]);
        if (v.why == ER_HANG_WHY_ALIKE && n > 1)
            SAY(to, "; so have %zu others of this node, which may all wait for another's", n - 1);
        say_left(to, &v.who[0], "it is looked at with all nodes' ranks");
    }
    return true;
}

static bool starting(const struct er_diagnose_facts *f, struct er_finding *to)
{
    const struct er_diagnose_rank *first = NULL;
    int n = 0;

    for (size_t i = 0; i < f->ranks_n; i++) {
        if (!f->ranks[i].reports || f->ranks[i].begun)
            continue;
        first = first ? first : &f->ranks[i];
        n++;
    }
    if (!first)
        return false;
    SAY(to,
        "%d worker%s of this node ha%s not finished a step in this generation; rank %d is in %s", n,
        plural((uint64_t)n), n == 1 ? "s" : "ve", first->fact.rank,
        er_phase_name(first->fact.phase));
    say_left(to, &first->fact, "the time for that (hang.startup) ends");
    return true;
}

static bool resizing(const struct er_diagnose_facts *f, struct er_finding *to)
{
    if (!is(f->phase, "resizing"))
        return false;
    SAY(to, "the membership is about to change; training goes on meanwhile");
    return true;
}

static bool straggler(const struct er_diagnose_facts *f, struct er_finding *to)
{
    if (f->straggler < 0)
        return false;
    SAY(to, "rank %d works at %.2f of the others' rate, which costs each step %.1f ms",
        f->straggler, f->straggler_ratio, f->straggler_cost_ms);
    ADVISE(to, "look at the node's clocks, temperature, other load and storage");
    return true;
}

static bool no_reports(const struct er_diagnose_facts *f, struct er_finding *to)
{
    for (size_t i = 0; i < f->ranks_n; i++) {
        if (f->ranks[i].reports)
            return false;
    }
    if (f->living == 0)
        return false;
    SAY(to, "%d worker%s run%s here, and report%s no progress, so that no more can be told",
        f->living, plural((uint64_t)f->living), f->living == 1 ? "s" : "",
        f->living == 1 ? "s" : "");
    ADVISE(to, "er_progress() of libelastic makes a program's steps known");
    return true;
}

static bool moving(const struct er_diagnose_facts *f, struct er_finding *to)
{
    uint64_t low = UINT64_MAX, high = 0;
    bool any = false;

    for (size_t i = 0; i < f->ranks_n; i++) {
        const struct er_diagnose_rank *r = &f->ranks[i];

        if (!r->reports || r->fact.state != ER_HANG_MOVING)
            continue;
        any = true;
        low = r->fact.step < low ? r->fact.step : low;
        high = r->fact.step > high ? r->fact.step : high;
    }
    if (any)
        SAY(to, "%s move, at step", f->nodes ? "ranks" : "the ranks of this node");
    if (any && low == high)
        SAY(to, " %llu", (unsigned long long)high);
    else if (any)
        SAY(to, "s %llu to %llu", (unsigned long long)low, (unsigned long long)high);
    return any;
}

typedef bool (*rule_fn)(const struct er_diagnose_facts *f, struct er_finding *to);

static const struct {
    rule_fn find;
    enum er_finding_weight weight;
} RULES[] = {
    [ER_FINDING_OVER] = {over, ER_FINDING_GOOD},
    [ER_FINDING_STORE_DENIED] = {store_denied, ER_FINDING_WRONG},
    [ER_FINDING_STORE_AWAY] = {store_away, ER_FINDING_WRONG},
    [ER_FINDING_UNHEALTHY] = {unhealthy, ER_FINDING_WRONG},
    [ER_FINDING_NOT_REGISTERED] = {not_registered, ER_FINDING_WAITS},
    [ER_FINDING_STOPPING] = {stopping, ER_FINDING_WAITS},
    [ER_FINDING_GPU_MEMORY] = {gpu_memory, ER_FINDING_WAITS},
    [ER_FINDING_TOO_FEW_NODES] = {too_few_nodes, ER_FINDING_WAITS},
    [ER_FINDING_MEMBERS_ABSENT] = {members_absent, ER_FINDING_WAITS},
    [ER_FINDING_NODES_NOT_READY] = {nodes_not_ready, ER_FINDING_WAITS},
    [ER_FINDING_NOT_ASKED] = {not_asked, ER_FINDING_WRONG},
    [ER_FINDING_NODE_SILENT] = {node_silent, ER_FINDING_WRONG},
    [ER_FINDING_LAST_CALL] = {last_call, ER_FINDING_WAITS},
    [ER_FINDING_FORMING] = {forming, ER_FINDING_WAITS},
    [ER_FINDING_SPARE] = {spare, ER_FINDING_GOOD},
    [ER_FINDING_RANK_HUNG] = {rank_hung, ER_FINDING_WRONG},
    [ER_FINDING_RANK_STOPPED] = {rank_stopped, ER_FINDING_WRONG},
    [ER_FINDING_NO_WORD] = {no_word, ER_FINDING_WRONG},
    [ER_FINDING_RANK_WAITED_FOR] = {rank_waited_for, ER_FINDING_WAITS},
    [ER_FINDING_RANK_STILL] = {rank_still, ER_FINDING_WAITS},
    [ER_FINDING_STARTING] = {starting, ER_FINDING_WAITS},
    [ER_FINDING_RESIZING] = {resizing, ER_FINDING_GOOD},
    [ER_FINDING_STRAGGLER] = {straggler, ER_FINDING_WRONG},
    [ER_FINDING_NO_REPORTS] = {no_reports, ER_FINDING_GOOD},
    [ER_FINDING_MOVING] = {moving, ER_FINDING_GOOD},
};

size_t er_diagnose(const struct er_diagnose_facts *f, struct er_finding ret[ER_FINDINGS_MAX])
{
    size_t n = 0;

    for (size_t i = 0; i < ER_ARRAY_N(RULES) && n < ER_FINDINGS_MAX; i++) {
        struct er_finding *to = &ret[n];

        *to = (struct er_finding){.code = (enum er_finding_code)i, .weight = RULES[i].weight};
        n += RULES[i].find(f, to);
        if (n && i == ER_FINDING_OVER)
            break; /* nothing else matters */
    }
    if (n == 0)
        ret[n++] = (struct er_finding){.code = ER_FINDING_MOVING,
                                       .weight = ER_FINDING_GOOD,
                                       .text = "nothing keeps the job, as far as this node knows"};
    return n;
}
