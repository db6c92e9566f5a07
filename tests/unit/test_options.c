#include <criterion/criterion.h>

#include <stdio.h>
#include <string.h>

#include "agent/options.h"
#include "base/cleanup.h"

enum { ARGS_MAX = 12 };

struct parsed {
    struct er_option_use uses[ARGS_MAX + 1];
    struct er_command_line line;
    struct er_error err;
    int rc, argc;
};

static void parse(struct parsed *p, const char *const *args)
{
    const char *argv[ARGS_MAX + 2] = {"elastic-run"};

    *p = (struct parsed){.argc = 1};
    for (; args[p->argc - 1]; p->argc++)
        argv[p->argc] = args[p->argc - 1];
    p->line.uses = p->uses;
    p->rc = er_options_parse(&p->line, p->argc, (char **)argv, &p->err);
}

/* What was understood, as one text: "nnodes=2 tee=3 standalone | 3". */
static const char *describe(const struct parsed *p)
{
    static char text[512];
    size_t n = 0;

    for (size_t i = 0; i < p->line.uses_n; i++)
        n +=
            (size_t)snprintf(text + n, sizeof(text) - n, "%s%s%s ", p->uses[i].option->name,
                             p->uses[i].value ? "=" : "", p->uses[i].value ? p->uses[i].value : "");
    snprintf(text + n, sizeof(text) - n, "| %s%d", p->line.after_dashes ? "-- " : "",
             p->line.operands);
    return text;
}

static const struct {
    const char *args[ARGS_MAX];
    const char *understood;
} GOOD[] = {
    {{NULL}, "| 1"},
    {{"train.py"}, "| 1"},
    {{"--nnodes", "2", "train.py"}, "nnodes=2 | 3"},
    {{"--nnodes=2:4", "train.py"}, "nnodes=2:4 | 2"},
    {{"--nproc-per-node=2", "x"}, "nproc-per-node=2 | 2"},
    {{"--nproc_per_node=2", "x"}, "nproc-per-node=2 | 2"},
    {{"--nproc_per-node", "gpu", "x"}, "nproc-per-node=gpu | 3"},
    {{"-r", "3", "-t", "0:1", "x"}, "redirects=3 tee=0:1 | 5"},
    {{"-r3", "-t=1", "x"}, "redirects=3 tee=1 | 3"},
    {{"-m", "pkg.mod", "--r=16"}, "module | 2"},
    {{"x", "--nnodes=2", "-r", "3"}, "| 1"},
    {{"--", "--weird", "x"}, "| -- 2"},
    {{"--tee=3", "--", "job.yaml"}, "tee=3 | -- 3"},
    {{"--", "--"}, "| -- 2"},
    {{"-", "x"}, "| 1"},
    {{"--max-restarts", "-1", "x"}, "max-restarts=-1 | 3"},
    {{"--rdzv-conf", "a=1,b=2", "x"}, "rdzv-conf=a=1,b=2 | 3"},
    {{"--rdzv-conf=a=1", "x"}, "rdzv-conf=a=1 | 2"},
    {{"--role=", "x"}, "role= | 2"},
    {{"--set", "restart.max=3", "--set=a.b=c", "x"}, "set=restart.max=3 set=a.b=c | 4"},
    {{"--standalone", "--virtual_local_rank", "--no-python", "x"},
     "standalone virtual-local-rank no-python | 4"},
    {{"--help"}, "help | 2"},
    {{"-h", "restart"}, "help=restart | 3"},
    {{"--help=log.tee"}, "help=log.tee | 2"},
    {{"--help", "--version"}, "help version | 3"},
    {{"--check", "job.yaml", "--check"}, "check | 2"},
};

Test(options, end_at_the_first_operand)
{
    struct parsed p;

    for (size_t i = 0; i < ER_ARRAY_N(GOOD); i++) {
        parse(&p, GOOD[i].args);
        cr_expect_eq(p.rc, 0, "%s: %s", GOOD[i].understood, p.err.text);
        cr_expect_str_eq(describe(&p), GOOD[i].understood);
    }
}

static const struct {
    const char *args[ARGS_MAX];
    const char *message;
} BAD[] = {
    {{"--nproc-per-nod", "2", "x"},
     "unknown option '--nproc-per-nod'; did you mean '--nproc-per-node'?"},
    {{"--redirect=3", "x"}, "unknown option '--redirect=3'; did you mean '--redirects'?"},
    {{"--nproc", "3", "x"}, "unknown option '--nproc'; did you mean '--nproc-per-node'?"},
    {{"--max_restart", "3"}, "unknown option '--max_restart'; did you mean '--max-restarts'?"},
    {{"--quux", "x"}, "unknown option '--quux'; --help lists the options"},
    {{"-x", "x"}, "unknown option '-x'; --help lists the options"},
    {{"-nnodes", "2"}, "unknown option '-nnodes'; did you mean '--nnodes'?"},
    {{"-mpkg", "x"}, "unknown option '-mpkg'; --help lists the options"},
    {{"--=3", "x"}, "unknown option '--=3'; --help lists the options"},
    {{"---tee", "x"}, "unknown option '---tee'; did you mean '--tee'?"},
    {{"--nnodes"}, "option '--nnodes' needs a value (N|MIN:MAX)"},
    {{"--tee=3", "-r"}, "option '-r' needs a value (MAP)"},
    {{"--standalone=1", "x"}, "option '--standalone' takes no value, got '1'"},
    {{"--check=job.yaml"}, "option '--check' takes no value, got 'job.yaml'"},
};

Test(options, unknown_and_incomplete_ones_are_named)
{
    struct parsed p;

    for (size_t i = 0; i < ER_ARRAY_N(BAD); i++) {
        parse(&p, BAD[i].args);
        cr_expect_eq(p.rc, ER_E_USAGE, "%s", BAD[i].message);
        cr_expect_str_eq(p.err.text, BAD[i].message);
    }
}

Test(options, modes)
{
    static const struct {
        const char *args[ARGS_MAX];
        enum er_run_mode mode;
        enum er_start_kind start;
    } modes[] = {
        {{"x"}, ER_MODE_RUN, ER_START_AUTO},
        {{"--check", "x"}, ER_MODE_CHECK, ER_START_AUTO},
        {{"--dry-run", "--fresh", "x"}, ER_MODE_DRY_RUN, ER_START_FRESH},
        {{"--dry_run", "--print-config", "x"}, ER_MODE_PRINT_CONFIG, ER_START_AUTO},
        {{"--resume", "x"}, ER_MODE_RUN, ER_START_RESUME},
        {{"--version"}, ER_MODE_VERSION, ER_START_AUTO},
        {{"--help", "--check"}, ER_MODE_HELP, ER_START_AUTO},
    };
    struct parsed p;

    for (size_t i = 0; i < ER_ARRAY_N(modes); i++) {
        parse(&p, modes[i].args);
        cr_expect_eq(p.rc, 0);
        cr_expect_eq(p.line.mode, modes[i].mode, "case %zu", i);
        cr_expect_eq(p.line.start_kind, modes[i].start, "case %zu", i);
    }
}
