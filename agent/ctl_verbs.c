#include "agent/ctl_verbs.h"

#include <assert.h>
#include <string.h>

#include "agent/ctl_find.h"
#include "base/cleanup.h"
#include "base/parse.h"

enum { VERBS_MAX = 32 };

const struct er_ctl_verb er_ctl_verbs[] = {
    {"status", "[--json] [--wait | --watch]",
     "what the job is doing: phase, generation, restarts, nodes, workers", false},
    {"explain", "[--json]",
     "why it does not move, the most likely cause first: as the agent here sees it, or, through "
     "the "
     "store, as all nodes that answer do",
     false},
    {"ps", "[--json]", "every job in the store, below the prefix", false},
    {"events", "[--json] [--follow] [N]",
     "the last N (20) of what happened, from the event files of the job's log folder", true},
    {"wait", "[--state LIST] [--nodes N] [--timeout T]",
     "until the job is in one of these states with N nodes or more; exit code 1: it ended "
     "otherwise, or not in time",
     false},
    {"stop", "[--wait] [--preempt] [--deadline T]",
     "end the job: the stop ladder, then exit code 79 for all its agents; --preempt: all nodes "
     "save and leave with 75, and the same command goes on from there; --deadline: workers save "
     "first, and none lives longer than T",
     false},
    {"drain", "[NODE]", "a node leaves the job at the end of a step, and its agent ends: this one",
     true},
    {"scale", "MIN[:MAX]", "the job goes on with so many nodes; those above MAX wait as spares",
     true},
    {"set", "[--json] KEY=VALUE... [--unset KEY...]",
     "change settings of the running job on all of its nodes: all of these, or none; --unset: as "
     "the job file has it again",
     true},
    {"reload", "[--json]",
     "read the job file again: what this node alone may change (log.console, log.timestamps)",
     false},
    {"audit", "[--json] [DIR]",
     "was every sample of every epoch used exactly once? Exit code 1: no, or it cannot be proved",
     false},
    {"ckpt", "VERB ...",
     "checkpoints on disk, of a job or of a folder; elastic-ctl ckpt --help tells more", false},
};
const size_t er_ctl_verbs_n = ER_ARRAY_N(er_ctl_verbs);

static_assert(ER_ARRAY_N(er_ctl_verbs) <= VERBS_MAX, "names fit");

const struct er_ctl_option er_ctl_options[] = {
    {"-f", "JOB.yaml", "the job of this file"},
    {"--job", "NAME",
     "the job of this name; without -f and --job the only one that runs on this host"},
    {"--endpoints", "LIST",
     "the store that has the job, for any host; without it the agent here is asked, and the store "
     "that the job file names where there is none"},
    {"--set", "KEY=VALUE",
     "beside --endpoints or -f: rendezvous.prefix, rendezvous.tls.* and the like"},
    {"--json", NULL, "one JSON object a line instead of a table"},
    {"--wait", NULL,
     "until the job is over; of status: exit code 1 when it failed, also of a job that has ended, "
     "when its logs are where the file (or the default) says"},
    {"--watch", NULL, "status again whenever it changes, until the job is over"},
    {"--follow", NULL, "then what happens, as it happens"},
    {"--state", "LIST",
     "some of forming, running, resizing, succeeded, failed, stopped, over; default: over, with "
     "--nodes running"},
    {"--nodes", "N", "of the running generation"},
    {"--timeout", "T", "at most that long, e.g. 5m"},
    {"--preempt", NULL, "stop so that the job can be run again"},
    {"--deadline", "T",
     "stop within that time, e.g. 5m: workers are told to save and end; its last part, stop.grace "
     "or half of it, belongs to the stop ladder"},
    {"--unset", "KEY", "of set; may be given again"},
    {"--version", NULL, "print the version"},
    {"--help", NULL, "print this"},
};
const size_t er_ctl_options_n = ER_ARRAY_N(er_ctl_options);

const struct er_ctl_code er_ctl_codes[] = {
    {0, "done"},
    {ER_CTL_EXIT_NO, "the answer is no"},
    {ER_CTL_EXIT_USAGE, "wrong command line"},
    {ER_CTL_EXIT_NO_SUCH, "no such job"},
    {ER_CTL_EXIT_UNREACHABLE, "neither agent nor store answers"},
    {ER_CTL_EXIT_REFUSED, "not yours"},
};
const size_t er_ctl_codes_n = ER_ARRAY_N(er_ctl_codes);

const struct er_ctl_verb *er_ctl_verb_find(const char *name)
{
    for (size_t i = 0; i < er_ctl_verbs_n; i++) {
        if (!strcmp(er_ctl_verbs[i].name, name))
            return &er_ctl_verbs[i];
    }
    return NULL;
}

const char *er_ctl_verb_nearest(const char *name)
{
    const char *names[VERBS_MAX];

    for (size_t i = 0; i < er_ctl_verbs_n; i++)
        names[i] = er_ctl_verbs[i].name;
    return er_nearest(name, names, er_ctl_verbs_n);
}

int er_ctl_usage(struct er_buf *out)
{
    int rc = 0;

    for (size_t i = 0; !rc && i < er_ctl_verbs_n; i++)
        rc = er_buf_printf(out, "%s elastic-ctl [-f JOB.yaml | --job NAME] %s %s\n",
                           i ? "      " : "usage:", er_ctl_verbs[i].name, er_ctl_verbs[i].synopsis);
    if (!rc)
        rc = er_buf_add_str(out, "\n");
    for (size_t i = 0; !rc && i < er_ctl_verbs_n; i++)
        rc = er_buf_printf(out, "  %-14s %s\n", er_ctl_verbs[i].name, er_ctl_verbs[i].help);
    if (!rc)
        rc = er_buf_add_str(out, "\n");
    for (size_t i = 0; !rc && i < er_ctl_options_n; i++) {
        const struct er_ctl_option *o = &er_ctl_options[i];

        rc = er_buf_printf(out, "  %s %-*s %s\n", o->name, (int)(13 - strlen(o->name)),
                           o->metavar ? o->metavar : "", o->help);
    }
    if (!rc)
        rc = er_buf_add_str(out, "\nexit codes:");
    for (size_t i = 0; !rc && i < er_ctl_codes_n; i++)
        rc = er_buf_printf(out, "%s %d %s", i ? "," : "", er_ctl_codes[i].code,
                           er_ctl_codes[i].when);
    return rc ? rc : er_buf_add_str(out, "\n");
}
