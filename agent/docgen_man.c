/* The man pages, in the macros of man(7). */
#include <string.h>

#include "agent/ctl_verbs.h"
#include "agent/docgen_internal.h"
#include "agent/help.h"
#include "agent/subst.h"
#include "base/cleanup.h"
#include "base/exit_codes.h"

#define MADE_BY ".\\\" Written by agent/keys_doc from the tables in agent/: change those.\n"

/* Running text: what roff would take for its own is escaped; a line never begins with a control
 * character. */
static void words(struct er_gen *g, const char *text)
{
    bool begin = true;

    for (; *text; text++) {
        if (begin && (*text == '.' || *text == '\''))
            er_gen_text(g, "\\&");
        begin = *text == '\n';
        switch (*text) {
        case '\\':
            er_gen_text(g, "\\e");
            break;
        case '-':
            er_gen_text(g, "\\-");
            break;
        case '~':
            er_gen_text(g, "\\(ti");
            break;
        case '^':
            er_gen_text(g, "\\(ha");
            break;
        case '`':
            er_gen_text(g, "\\(ga");
            break;
        case '"':
            er_gen_text(g, "\\(dq");
            break;
        default:
            er_gen_printf(g, "%c", *text);
        }
    }
}

static void bold(struct er_gen *g, const char *text)
{
    er_gen_text(g, "\\fB");
    words(g, text);
    er_gen_text(g, "\\fR");
}

static void italic(struct er_gen *g, const char *text)
{
    er_gen_text(g, "\\fI");
    words(g, text);
    er_gen_text(g, "\\fR");
}

/* Head of a page; no date, so that it is the same from every build. */
static void title(struct er_gen *g, const char *name, int section, const char *what)
{
    er_gen_text(g, MADE_BY);
    er_gen_printf(g, ".TH %s %d \"\" elastic\\-run\n.SH NAME\n", name, section);
    words(g, name);
    er_gen_text(g, " \\- ");
    words(g, what);
    er_gen_text(g, "\n");
}

static void section(struct er_gen *g, const char *name)
{
    er_gen_printf(g, ".SH %s\n", name);
}

static void sub_section(struct er_gen *g, const char *name)
{
    er_gen_printf(g, ".SS ");
    words(g, name);
    er_gen_text(g, "\n");
}

static void paragraph(struct er_gen *g, const char *text)
{
    er_gen_text(g, ".PP\n");
    words(g, text);
    er_gen_text(g, "\n");
}

static void example(struct er_gen *g, const char *text)
{
    er_gen_text(g, ".PP\n.nf\n");
    words(g, text);
    er_gen_text(g, ".fi\n");
}

static void item(struct er_gen *g, const char *head, const char *text)
{
    er_gen_text(g, ".TP\n");
    bold(g, head);
    er_gen_text(g, "\n");
    words(g, text);
    er_gen_text(g, "\n");
}

static void option_item(struct er_gen *g, const struct er_option *option)
{
    er_gen_text(g, ".TP\n");
    if (option->letter) {
        er_gen_printf(g, "\\fB\\-%c\\fR, ", option->letter);
    }
    er_gen_text(g, "\\fB\\-\\-");
    words(g, option->name);
    er_gen_text(g, "\\fR");
    if (option->metavar) {
        er_gen_text(g, " ");
        italic(g, option->metavar);
    }
    er_gen_text(g, "\n");
    words(g, option->help);
    if (option->key) {
        er_gen_text(g, ". Key ");
        bold(g, option->key);
    }
    if (option->env) {
        er_gen_text(g, ". Environment ");
        bold(g, option->env);
    }
    if (option->env_too) {
        er_gen_text(g, ", ");
        bold(g, option->env_too);
    }
    er_gen_text(g, ".\n");
}

static void options(struct er_gen *g)
{
    for (int group = 0; group < ER_GROUP_COUNT; group++) {
        bool any = false;

        for (size_t i = 0; i < er_options_n; i++) {
            if ((int)er_options[i].group != group)
                continue;
            if (!any)
                sub_section(g, er_key_group_title((enum er_key_group)group));
            any = true;
            option_item(g, &er_options[i]);
        }
    }
}

static void exit_status(struct er_gen *g)
{
    static const struct {
        const char *number, *when;
    } rows[] = {
#define OTHER_ROW(number, name, when, who, again) {number, when},
        ER_EXIT_OTHER_CODES(OTHER_ROW)
#undef OTHER_ROW
#define CODE_ROW(number, name, text, when, who, again) {#number, when},
            ER_EXIT_CODES(CODE_ROW)
#undef CODE_ROW
    };

    section(g, "\"EXIT STATUS\"");
    paragraph(g, "A worker's own failure is passed on unchanged. A worker may use the same numbers "
                 "as the agent: the first line of the final summary tells which it was.");
    for (size_t i = 0; i < ER_ARRAY_N(rows); i++)
        item(g, rows[i].number, rows[i].when);
}

static void signals(struct er_gen *g)
{
    static const struct {
        const char *name, *effect;
    } rows[] = {
        {"TERM", "this node leaves: the workers are stopped, exit status 75. A second one shortens "
                 "the grace to 5 s, a third kills at once"},
        {"INT", "as TERM, exit status 130; on a single node the job stops"},
        {"HUP, QUIT", "as TERM without notice"},
        {"those of stop.forward", "passed on to the workers only"},
    };

    section(g, "SIGNALS");
    for (size_t i = 0; i < ER_ARRAY_N(rows); i++)
        item(g, rows[i].name, rows[i].effect);
}

static void files(struct er_gen *g)
{
    static const struct {
        const char *name, *what;
    } rows[] = {
        {"<log.dir>/<name>/events-<node_id>.jsonl", "events, one JSON object a line"},
        {"<log.dir>/<name>/gen-<g>/rank-<r>/{stdout,stderr}.log",
         "output of the worker that started as rank r in generation g; .1, .2, ... are older"},
        {"<log.dir>/<name>/gen-<g>/rank-<r>/error.json", "the worker's error file"},
        {"<log.dir>/<name>/current/rank-<r>", "link to the newest folder of a rank"},
        {"/run/elastic-run/<name>/", "sockets; of a user $XDG_RUNTIME_DIR/elastic-run/<name>/"},
    };

    section(g, "FILES");
    for (size_t i = 0; i < ER_ARRAY_N(rows); i++)
        item(g, rows[i].name, rows[i].what);
}

static void see_also(struct er_gen *g, const char *text)
{
    section(g, "\"SEE ALSO\"");
    words(g, text);
    er_gen_text(g, "\n");
}

int er_docgen_man_run(struct er_buf *out)
{
    struct er_gen g = {.out = out};

    title(&g, "elastic-run", 1, "start the workers of a training job and keep it alive");
    section(&g, "SYNOPSIS");
    er_gen_text(&g,
                ".B elastic\\-run\n[\\fIOPTIONS\\fR] \\fIPROGRAM\\fR [\\fIARG\\fR...]\n.br\n"
                ".B elastic\\-run\n[\\fIOPTIONS\\fR] \\fIJOB.yaml\\fR [\\fIARG\\fR...]\n.br\n"
                ".B elastic\\-run\n[\\fIOPTIONS\\fR] \\-\\- \\fIPROGRAM\\fR [\\fIARG\\fR...]\n");
    section(&g, "DESCRIPTION");
    words(&g, "Starts PROGRAM once per worker on this node, with the environment that torchrun's "
              "workers have, restarts the workers when one fails, and leaves no process behind.\n");
    paragraph(&g, "The first operand is a job spec, see elastic-job(5), when it ends in .yaml or "
                  ".yml or is - (standard input); further arguments are appended to its command. "
                  "Behind -- stands a program, whatever its name.");
    paragraph(&g, "Options end at the first operand. There are no abbreviations. --a-b and --a_b "
                  "are the same option. A value comes from, highest first: command line, PET_* "
                  "environment, job spec, scheduler (Slurm, Kubernetes), default. Times are "
                  "seconds when they have no unit.");
    paragraph(&g, "A PROGRAM that ends in .py is run by python3 -u (PYTHON_EXEC names another), "
                  "with -m as a module, with --no-python itself.");
    section(&g, "OPTIONS");
    options(&g);
    exit_status(&g);
    signals(&g);
    files(&g);
    section(&g, "EXAMPLES");
    example(&g, "elastic-run --standalone --nproc-per-node gpu train.py --lr 3e-4\n"
                "elastic-run --print-config job.yaml\n"
                "elastic-run --set restart.max=5 job.yaml --epochs 3\n");
    see_also(&g, "elastic-job(5), elastic-ctl(1)");
    return g.rc;
}

int er_docgen_man_ctl(struct er_buf *out)
{
    struct er_gen g = {.out = out};

    title(&g, "elastic-ctl", 1, "ask and steer a running job of elastic-run");
    section(&g, "SYNOPSIS");
    er_gen_text(&g, ".B elastic\\-ctl\n[\\fB\\-f\\fR \\fIJOB.yaml\\fR | \\fB\\-\\-job\\fR "
                    "\\fINAME\\fR] \\fIVERB\\fR [...]\n");
    section(&g, "VERBS");
    for (size_t i = 0; i < er_ctl_verbs_n; i++) {
        er_gen_text(&g, ".TP\n");
        bold(&g, er_ctl_verbs[i].name);
        er_gen_text(&g, " ");
        words(&g, er_ctl_verbs[i].synopsis);
        er_gen_text(&g, "\n");
        words(&g, er_ctl_verbs[i].help);
        er_gen_text(&g, "\n");
    }
    section(&g, "OPTIONS");
    for (size_t i = 0; i < er_ctl_options_n; i++) {
        const struct er_ctl_option *o = &er_ctl_options[i];

        er_gen_text(&g, ".TP\n");
        bold(&g, o->name);
        er_gen_text(&g, o->metavar ? " " : "");
        italic(&g, o->metavar ? o->metavar : "");
        er_gen_text(&g, "\n");
        words(&g, o->help);
        er_gen_text(&g, "\n");
    }
    section(&g, "\"EXIT STATUS\"");
    for (size_t i = 0; i < er_ctl_codes_n; i++) {
        er_gen_printf(&g, ".TP\n\\fB%d\\fR\n", er_ctl_codes[i].code);
        words(&g, er_ctl_codes[i].when);
        er_gen_text(&g, "\n");
    }
    see_also(&g, "elastic-run(1), elastic-job(5)");
    return g.rc;
}

static void key_item(struct er_gen *g, const struct er_key_info *key)
{
    struct er_buf attributes;

    er_buf_init(&attributes, 4096);
    if (!g->rc)
        g->rc = er_help_attributes(key, &attributes);
    er_gen_text(g, ".TP\n");
    bold(g, key->path);
    if (key->def) {
        er_gen_text(g, ": ");
        words(g, key->def);
    }
    er_gen_text(g, "\n");
    words(g, key->help);
    er_gen_text(g, ".\n.br\n");
    italic(g, er_buf_str(&attributes));
    if (key->def_program) {
        er_gen_text(g, "; default with PROGRAM: ");
        words(g, key->def_program);
    }
    er_gen_text(g, "\n");
    er_buf_done(&attributes);
}

static void keys(struct er_gen *g)
{
    for (int group = 0; group < ER_GROUP_COUNT; group++) {
        bool any = false;

        for (size_t i = 0; i < er_keys_n; i++) {
            if ((int)er_keys[i].group != group)
                continue;
            if (!any)
                sub_section(g, er_key_group_title((enum er_key_group)group));
            any = true;
            key_item(g, &er_keys[i]);
        }
    }
}

static void substitution(struct er_gen *g)
{
    section(g, "SUBSTITUTION");
    words(g, ER_SUBSTITUTION_TEXT);
    er_gen_text(g, "\n.PP\nNames:");
    for (size_t i = 0; er_subst_names[i]; i++)
        er_gen_printf(g, " %s", er_subst_names[i]);
    er_gen_text(g, " env.NAME\n");
}

int er_docgen_man_job(struct er_buf *out)
{
    static const struct {
        const char *name, *form;
    } forms[] = {ER_VALUE_FORMS};
    struct er_gen g = {.out = out};

    title(&g, "elastic-job", 5, "job spec of elastic-run");
    section(&g, "DESCRIPTION");
    words(&g, "A YAML file for elastic-run JOB.yaml [ARG...]. Only command is required. Keys are "
              "written nested: restart.backoff.initial below is\n");
    example(&g, "restart:\n  backoff:\n    initial: 5s\n");
    paragraph(&g, "Anchors, aliases and merge keys (<<) work. Refused are: more than 1 MiB, "
                  "duplicate and unknown keys, tags, several documents, maps and lists more than "
                  "16 deep. elastic-run --check JOB.yaml tells everything that is wrong at once.");
    section(&g, "KEYS");
    words(&g, "Each with its default.\n");
    keys(&g);
    section(&g, "\"FORMS OF VALUES\"");
    for (size_t i = 0; i < ER_ARRAY_N(forms); i++)
        item(&g, forms[i].name, forms[i].form);
    substitution(&g);
    section(&g, "EXAMPLES");
    example(&g, "name: gpt-small\ncommand: [python3, -u, train.py, --lr, \"3e-4\"]\n"
                "nproc_per_node: gpu\nrestart: {max: 5}\n"
                "checkpoint: {dir: /data/ckpt/${job}, every: 10m}\n");
    see_also(&g, "elastic-run(1), elastic-ctl(1)");
    return g.rc;
}
