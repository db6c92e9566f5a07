#include "agent/ctl_verbs.h"

#include <assert.h>
#include <string.h>

#include "agent/ctl_find.h"
#include "base/cleanup.h"
#include "base/parse.h"

enum { VERBS_MAX = 32 };

const struct er_ctl_verb er_ctl_verbs[] = {
    {"status", "[--json] [--wait]", "what the job is doing: phase, generation, restarts, workers"},
    {"stop", "[--wait]", "end the job: the stop ladder, then exit code 79 for all its agents"},
    {"drain", "[NODE]", "a node leaves the job at the end of a step, and its agent ends: this one"},
    {"scale", "MIN[:MAX]", "the job goes on with so many nodes; those above MAX wait as spares"},
    {"audit", "[--json] [DIR]",
     "was every sample of every epoch used exactly once? Exit code 1: no, or it cannot be proved"},
    {"ckpt", "VERB ...",
     "checkpoints on disk, of a job or of a folder; elastic-ctl ckpt --help tells more"},
};
const size_t er_ctl_verbs_n = ER_ARRAY_N(er_ctl_verbs);

static_assert(ER_ARRAY_N(er_ctl_verbs) <= VERBS_MAX, "names fit");

const struct er_ctl_option er_ctl_options[] = {
    {"-f", "JOB.yaml", "the job of this file"},
    {"--job", "NAME",
     "the job of this name; without -f and --job the only one that runs on this host"},
    {"--json", NULL, "one JSON object instead of a table"},
    {"--wait", NULL,
     "until the job is over; of status: exit code 1 when it failed, also of a job that has ended, "
     "when its logs are where the file (or the default) says"},
    {"--version", NULL, "print the version"},
    {"--help", NULL, "print this"},
};
const size_t er_ctl_options_n = ER_ARRAY_N(er_ctl_options);

const struct er_ctl_code er_ctl_codes[] = {
    {0, "done"},
    {ER_CTL_EXIT_NO, "the answer is no"},
    {ER_CTL_EXIT_USAGE, "wrong command line"},
    {ER_CTL_EXIT_NO_SUCH, "no such job here"},
    {ER_CTL_EXIT_UNREACHABLE, "the agent does not answer"},
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

bool er_ctl_verb_is_later(const char *name)
{
    static const char *const LATER[] = {"events", "reload", "set"};

    for (size_t i = 0; i < ER_ARRAY_N(LATER); i++) {
        if (!strcmp(LATER[i], name))
            return true;
    }
    return false;
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
