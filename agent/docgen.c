#include "agent/docgen.h"

#include <stdarg.h>
#include <string.h>

#include "agent/ctl_verbs.h"
#include "agent/docgen_internal.h"
#include "agent/help.h"
#include "agent/keys.h"
#include "agent/subst.h"
#include "base/cleanup.h"
#include "base/exit_codes.h"

/* Characters of `special` get a backslash. */
static int escaped(struct er_buf *out, const char *text, const char *special)
{
    int rc = 0;

    for (; !rc && *text; text++) {
        rc = strchr(special, *text) ? er_buf_add(out, "\\", 1) : 0;
        if (!rc)
            rc = er_buf_add(out, text, 1);
    }
    return rc;
}

/* Text in a cell of a table; a bar would end the cell, even within code. */
static int cell(struct er_buf *out, const char *text)
{
    return escaped(out, text, "|<*~");
}

static int code(struct er_buf *out, const char *text)
{
    return escaped(out, text, "|");
}

static int code_cell(struct er_buf *out, const char *text)
{
    int rc = er_buf_add(out, "`", 1);

    if (!rc)
        rc = code(out, text);
    return rc ? rc : er_buf_add(out, "`", 1);
}

static int key_row(struct er_buf *out, const struct er_key_info *key)
{
    ER_CLEANUP(er_buf_done) struct er_buf attributes;
    int rc;

    er_buf_init(&attributes, 4096);
    rc = er_help_attributes(key, &attributes);
    if (!rc)
        rc = er_buf_printf(out, "| `%s` | ", key->path);
    if (!rc)
        rc = key->def ? code_cell(out, key->def) : er_buf_add_str(out, "-");
    if (!rc && key->def_program)
        rc = er_buf_printf(out, " (PROGRAM: `%s`)", key->def_program);
    if (!rc)
        rc = er_buf_add_str(out, " | ");
    if (!rc)
        rc = cell(out, er_buf_str(&attributes));
    if (!rc)
        rc = er_buf_add_str(out, " | ");
    if (!rc)
        rc = cell(out, key->help);
    return rc ? rc : er_buf_add_str(out, " |\n");
}

static bool has_keys(int group)
{
    for (size_t i = 0; i < er_keys_n; i++) {
        if ((int)er_keys[i].group == group)
            return true;
    }
    return false;
}

static int key_tables(struct er_buf *out)
{
    int rc = 0;

    for (int group = 0; !rc && group < ER_GROUP_COUNT; group++) {
        if (!has_keys(group))
            continue;
        rc = er_buf_printf(out,
                           "\n## %s\n\n| key | default | value | meaning |\n|---|---|---|---|\n",
                           er_key_group_title((enum er_key_group)group));
        for (size_t i = 0; !rc && i < er_keys_n; i++) {
            if ((int)er_keys[i].group == group)
                rc = key_row(out, &er_keys[i]);
        }
    }
    return rc;
}

static int value_forms(struct er_buf *out)
{
    static const struct {
        const char *name, *form;
    } rows[] = {ER_VALUE_FORMS};
    int rc = er_buf_add_str(out, "\n## Forms of values\n\n| type | form |\n|---|---|\n");

    for (size_t i = 0; !rc && i < ER_ARRAY_N(rows); i++) {
        rc = er_buf_printf(out, "| %s | ", rows[i].name);
        if (!rc)
            rc = cell(out, rows[i].form);
        if (!rc)
            rc = er_buf_add_str(out, " |\n");
    }
    return rc;
}

static int job_spec(struct er_buf *out)
{
    int rc = er_buf_add_str(
        out,
        "# The job spec\n\n" ER_DOCGEN_MADE_BY
        "A YAML file for `elastic-run JOB.yaml [ARG...]`. Only `command` is required. Keys are "
        "written nested:\n`restart.backoff.initial` below is\n\n"
        "```yaml\nrestart:\n  backoff:\n    initial: 5s\n```\n\n"
        "A value comes from, highest first: command line, `PET_*` environment, job spec, "
        "scheduler, default. `elastic-run\n--print-config JOB.yaml` prints all of them with "
        "their origin. Where two defaults stand, the second holds for\n`elastic-run PROGRAM` "
        "without a job spec, as scripts written for torchrun expect it. What is not available "
        "in this\nrelease is accepted with its default only; anything else ends with exit code "
        "78.\n\n"
        "Anchors, aliases and merge keys (`<<`) work. Refused are: more than 1 MiB, duplicate and "
        "unknown keys, tags,\nseveral documents, maps and lists more than 16 deep. All "
        "findings (the first 20) are told at once, each with\nfile, line and column.\n");

    if (!rc)
        rc = key_tables(out);
    if (!rc)
        rc = value_forms(out);
    if (!rc)
        rc = er_buf_add_str(out, "\n## Substitution\n\n" ER_SUBSTITUTION_TEXT "\n\nNames:");
    for (size_t i = 0; !rc && er_subst_names[i]; i++)
        rc = er_buf_printf(out, " `%s`", er_subst_names[i]);
    return rc ? rc : er_buf_add_str(out, " `env.NAME`\n");
}

static int option_row(struct er_buf *out, const struct er_option *option)
{
    int rc = er_buf_add_str(out, "| `");

    if (!rc && option->letter)
        rc = er_buf_printf(out, "-%c, ", option->letter);
    if (!rc)
        rc = er_buf_printf(out, "--%s", option->name);
    if (!rc && option->metavar)
        rc = er_buf_add(out, " ", 1);
    if (!rc && option->metavar)
        rc = code(out, option->metavar);
    if (!rc)
        rc = er_buf_add_str(out, "` | ");
    if (!rc && option->key)
        rc = er_buf_printf(out, "`%s`", option->key);
    if (!rc)
        rc = er_buf_add_str(out, " | ");
    if (!rc && option->env)
        rc = er_buf_printf(out, "`%s`%s%s%s", option->env, option->env_too ? ", `" : "",
                           option->env_too ? option->env_too : "", option->env_too ? "`" : "");
    if (!rc)
        rc = er_buf_add_str(out, " | ");
    if (!rc)
        rc = cell(out, option->help);
    return rc ? rc : er_buf_add_str(out, " |\n");
}

static bool has_options(int group)
{
    for (size_t i = 0; i < er_options_n; i++) {
        if ((int)er_options[i].group == group)
            return true;
    }
    return false;
}

static int cli(struct er_buf *out)
{
    int rc = er_buf_add_str(
        out,
        "# The command line\n\n" ER_DOCGEN_MADE_BY
        "```\nelastic-run [OPTIONS] PROGRAM [ARG...]       # torchrun's form\n"
        "elastic-run [OPTIONS] JOB.yaml [ARG...]      # the first operand ends in .yaml or "
        ".yml, or is - (stdin)\n"
        "elastic-run [OPTIONS] -- PROGRAM [ARG...]    # a program, whatever its name\n```\n\n"
        "Options end at the first operand. There are no abbreviations; `--a-b` and `--a_b` are "
        "the same option,\n`--option VALUE` and `--option=VALUE` the same use. Each option sets "
        "the key of the [job spec](job-spec.md) beside\nit; a `PET_` variable is used when the "
        "option is not given, flags as 0 or 1. Times are seconds when they have no\nunit. A "
        "PROGRAM that ends in `.py` is run by `python3 -u` (`PYTHON_EXEC` names another), with "
        "`-m` as a module, with\n`--no-python` itself. Wrong usage ends with exit code 64.\n");

    for (int group = 0; !rc && group < ER_GROUP_COUNT; group++) {
        if (!has_options(group))
            continue;
        rc = er_buf_printf(
            out, "\n## %s\n\n| option | key | environment | meaning |\n|---|---|---|---|\n",
            er_key_group_title((enum er_key_group)group));
        for (size_t i = 0; !rc && i < er_options_n; i++) {
            if ((int)er_options[i].group == group)
                rc = option_row(out, &er_options[i]);
        }
    }
    return rc;
}

static int exit_codes(struct er_buf *out)
{
    static const struct {
        const char *number, *name, *when, *who, *again;
    } rows[] = {
#define OTHER_ROW(number, name, when, who, again) {number, name, when, who, again},
        ER_EXIT_OTHER_CODES(OTHER_ROW)
#undef OTHER_ROW
#define CODE_ROW(number, name, text, when, who, again) {#number, text, when, who, again},
            ER_EXIT_CODES(CODE_ROW)
#undef CODE_ROW
    };
    int rc = er_buf_add_str(
        out, "# Exit codes\n\n" ER_DOCGEN_MADE_BY "## elastic-run\n\n"
             "First rule: a worker's own failure is passed on unchanged. A spent restart budget "
             "changes nothing about that. The codes\nof the agent itself are those of sysexits(3) "
             "where one fits. A worker may use the same numbers: the first line of the\nfinal "
             "summary tells which it was.\n\n"
             "| code | name | when | who exits with it | run again? |\n|---|---|---|---|---|\n");

    for (size_t i = 0; !rc && i < ER_ARRAY_N(rows); i++)
        rc = er_buf_printf(out, "| %s | %s | %s | %s | %s |\n", rows[i].number, rows[i].name,
                           rows[i].when, rows[i].who, rows[i].again);
    if (!rc)
        rc = er_buf_add_str(
            out, "\nA systemd unit wants `Restart=on-abnormal`, `RestartForceExitStatus=69 70 71`, "
                 "`SuccessExitStatus=75 79 130`; a Slurm job\nis put back into the queue on 75 and "
                 "69. Kubernetes' `podFailurePolicy`: Ignore on `DisruptionTarget`, FailJob on "
                 "64, 73, 76, 77, 78, 93.\n\n"
                 "## elastic-ctl\n\n");
    for (size_t i = 0; !rc && i < er_ctl_codes_n; i++)
        rc = er_buf_printf(out, "%s%d %s", i ? "; " : "", er_ctl_codes[i].code,
                           er_ctl_codes[i].when);
    return rc ? rc : er_buf_add_str(out, "\n");
}

void er_gen_text(struct er_gen *g, const char *text)
{
    if (!g->rc)
        g->rc = er_buf_add_str(g->out, text);
}

void er_gen_printf(struct er_gen *g, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    if (!g->rc)
        g->rc = er_buf_vprintf(g->out, fmt, ap);
    va_end(ap);
}

const struct er_doc er_docs[] = {
    {"docs/job-spec.md", job_spec},
    {"docs/cli.md", cli},
    {"docs/exit-codes.md", exit_codes},
    {"docs/metrics.md", er_docgen_metrics},
    {"packaging/man/elastic-run.1", er_docgen_man_run},
    {"packaging/man/elastic-ctl.1", er_docgen_man_ctl},
    {"packaging/man/elastic-job.5", er_docgen_man_job},
    {"packaging/schema/elastic-job.schema.json", er_docgen_schema},
    {"packaging/completion/elastic-run.bash", er_docgen_bash},
    {"packaging/completion/elastic-ctl.bash", er_docgen_bash_ctl},
    {"packaging/completion/_elastic-run", er_docgen_zsh},
    {"packaging/completion/elastic-run.fish", er_docgen_fish},
    {"packaging/completion/elastic-ctl.fish", er_docgen_fish_ctl},
};
const size_t er_docs_n = ER_ARRAY_N(er_docs);
