/* Completions for bash, zsh and fish. */
#include <string.h>

#include "agent/config.h"
#include "agent/ctl_verbs.h"
#include "agent/docgen_internal.h"
#include "base/cleanup.h"

#define MADE_BY "# Written by agent/keys_doc from the tables in agent/: change those.\n"

/* What the value of an option is completed with. */
enum kind { NOTHING, FILES, FOLDERS, WORDS };

static const struct {
    const char *option;
    enum kind kind;
} KINDS[] = {{"log-dir", FOLDERS}, {"set", WORDS}, {"help", WORDS}, {"print-completion", WORDS}};

static const struct er_key_info *key_of(const struct er_option *option)
{
    return option->key ? er_key_find(option->key) : NULL;
}

static bool has_choices(const struct er_option *option)
{
    const struct er_key_info *key = key_of(option);

    return option->metavar && key && key->choices;
}

static enum kind kind_of(const struct er_option *option)
{
    for (size_t i = 0; i < ER_ARRAY_N(KINDS); i++) {
        if (!strcmp(KINDS[i].option, option->name))
            return KINDS[i].kind;
    }
    return has_choices(option) ? WORDS : NOTHING;
}

/* The words that may follow an option, blanks between. */
static void value_words(struct er_gen *g, const struct er_option *option)
{
    const struct er_key_info *key = key_of(option);
    const char *blank = "";

    for (size_t i = 0; has_choices(option) && key->choices[i]; i++) {
        er_gen_printf(g, "%s%s", blank, key->choices[i]);
        blank = " ";
    }
    if (option->kind == ER_OPTION_BACKEND)
        er_gen_text(g, " static c10d etcd-v2");
    for (size_t i = 0; option->kind == ER_OPTION_SET && i < er_keys_n; i++)
        er_gen_printf(g, "%s%s=", i ? " " : "", er_keys[i].path);
    if (option->number == ER_MODE_COMPLETION)
        er_gen_text(g, "bash zsh fish");
    if (option->number != ER_MODE_HELP || option->kind != ER_OPTION_MODE)
        return;
    er_gen_text(g, "keys types substitution exit-codes options");
    for (int group = 0; group < ER_GROUP_COUNT; group++)
        er_gen_printf(g, " %s", er_key_group_topic((enum er_key_group)group));
}

/* In quotes of '...' of any of the three shells. */
static void quoted(struct er_gen *g, const char *text, const char *quote)
{
    for (; *text; text++) {
        if (*text == '\'')
            er_gen_text(g, quote);
        else
            er_gen_printf(g, "%c", *text);
    }
}

/* "-r|--redirects" */
static void bash_case(struct er_gen *g, const struct er_option *option)
{
    if (option->letter)
        er_gen_printf(g, "-%c | ", option->letter);
    er_gen_printf(g, "--%s", option->name);
}

static void bash_values(struct er_gen *g)
{
    for (size_t i = 0; i < er_options_n; i++) {
        const struct er_option *option = &er_options[i];

        if (!option->metavar)
            continue;
        er_gen_text(g, "    ");
        bash_case(g, option);
        er_gen_text(g, ") ");
        if (kind_of(option) == WORDS) {
            er_gen_text(g, "words='");
            value_words(g, option);
            er_gen_text(g, "' ;;\n");
        } else {
            er_gen_printf(g, "action='%s' ;;\n", kind_of(option) == FOLDERS ? "-d" : "-W \"\"");
        }
    }
}

static void bash_options(struct er_gen *g)
{
    for (size_t i = 0; i < er_options_n; i++) {
        if (er_options[i].letter)
            er_gen_printf(g, "%s-%c", i ? " " : "", er_options[i].letter);
        er_gen_printf(g, "%s--%s", i || er_options[i].letter ? " " : "", er_options[i].name);
    }
}

/* Options that take a value, as a pattern: their next word is no operand. */
static void bash_takers(struct er_gen *g)
{
    const char *bar = "";

    for (size_t i = 0; i < er_options_n; i++) {
        if (!er_options[i].metavar || er_options[i].flags & ER_OPTION_MAY_HAVE)
            continue;
        er_gen_text(g, bar);
        bash_case(g, &er_options[i]);
        bar = " | ";
    }
}

int er_docgen_bash(struct er_buf *out)
{
    struct er_gen g = {.out = out};

    er_gen_text(&g, "# bash completion for elastic-run\n" MADE_BY "_elastic_run()\n{\n"
                    "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} "
                    "words='' action='' i\n"
                    "    COMPREPLY=()\n"
                    "    # Behind the first operand the program's own arguments begin.\n"
                    "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
                    "        case ${COMP_WORDS[i]} in\n        --) COMPREPLY=($(compgen -f -- "
                    "\"$cur\")); return ;;\n        ");
    bash_takers(&g);
    er_gen_text(&g, ") ((i++)) ;;\n        -*) ;;\n"
                    "        *) COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n        esac\n"
                    "    done\n"
                    "    case $prev in\n");
    bash_values(&g);
    er_gen_text(&g, "    *)\n        if [[ $cur == -* ]]; then\n            words='");
    bash_options(&g);
    er_gen_text(&g, "'\n        else\n            action='-f'\n        fi\n        ;;\n    esac\n"
                    "    if [[ $words ]]; then\n"
                    "        COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                    "        [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace\n"
                    "    elif [[ $action == -? ]]; then\n"
                    "        compopt -o filenames\n"
                    "        COMPREPLY=($(compgen \"$action\" -- \"$cur\"))\n    fi\n"
                    "    return 0\n}\n"
                    "complete -F _elastic_run elastic-run\n");
    return g.rc;
}

int er_docgen_bash_ctl(struct er_buf *out)
{
    struct er_gen g = {.out = out};

    er_gen_text(&g, "# bash completion for elastic-ctl\n" MADE_BY "_elastic_ctl()\n{\n"
                    "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
                    "    case $prev in\n    -f) COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n"
                    "    --job) COMPREPLY=() ;;\n    *) COMPREPLY=($(compgen -W '");
    for (size_t i = 0; i < er_ctl_verbs_n; i++)
        er_gen_printf(&g, "%s ", er_ctl_verbs[i].name);
    for (size_t i = 0; i < er_ctl_options_n; i++)
        er_gen_printf(&g, "%s%s", i ? " " : "", er_ctl_options[i].name);
    er_gen_text(&g, "' -- \"$cur\")) ;;\n    esac\n}\n"
                    "complete -F _elastic_ctl elastic-ctl\n");
    return g.rc;
}

/* A help text within [...] of _arguments. */
static void zsh_help(struct er_gen *g, const char *text)
{
    for (; *text; text++) {
        if (strchr("[]:\\", *text))
            er_gen_text(g, "\\");
        if (*text == '\'')
            er_gen_text(g, "'\\''");
        else
            er_gen_printf(g, "%c", *text);
    }
}

static void zsh_value(struct er_gen *g, const struct er_option *option)
{
    if (!option->metavar)
        return;
    er_gen_text(g, option->flags & ER_OPTION_MAY_HAVE ? "::" : ":");
    zsh_help(g, option->metavar);
    switch (kind_of(option)) {
    case FILES:
        er_gen_text(g, ":_files");
        break;
    case FOLDERS:
        er_gen_text(g, ":_files -/");
        break;
    case WORDS:
        er_gen_text(g, ":(");
        value_words(g, option);
        er_gen_text(g, ")");
        break;
    case NOTHING:
    default:
        er_gen_text(g, ": ");
    }
}

static void zsh_option(struct er_gen *g, const struct er_option *option)
{
    for (int form = 0; form < 2; form++) {
        if (!form && !option->letter)
            continue;
        er_gen_text(g, "    '*");
        if (form)
            er_gen_printf(g, "--%s%s", option->name, option->metavar ? "=" : "");
        else
            er_gen_printf(g, "-%c%s", option->letter, option->metavar ? "+" : "");
        er_gen_text(g, "[");
        zsh_help(g, option->help);
        er_gen_text(g, "]");
        zsh_value(g, option);
        er_gen_text(g, "' \\\n");
    }
}

int er_docgen_zsh(struct er_buf *out)
{
    struct er_gen g = {.out = out};

    er_gen_text(&g, "#compdef elastic-run elastic-ctl\n" MADE_BY
                    "if [[ $service == elastic-ctl ]]; then\n"
                    "  _arguments \\\n"
                    "    '-f[the job of this file]:JOB.yaml:_files -g \"*.(yaml|yml)\"' \\\n"
                    "    '--job[the job of this name]:NAME: ' \\\n    '1:verb:((");
    for (size_t i = 0; i < er_ctl_verbs_n; i++) {
        er_gen_printf(&g, "%s%s\\:\"", i ? " " : "", er_ctl_verbs[i].name);
        quoted(&g, er_ctl_verbs[i].help, "");
        er_gen_text(&g, "\"");
    }
    er_gen_text(&g, "))' \\\n    '*:argument: '\n  return\nfi\n_arguments -S \\\n");
    for (size_t i = 0; i < er_options_n; i++)
        zsh_option(&g, &er_options[i]);
    er_gen_text(&g, "    '1:program or job spec:_files' \\\n    '*::argument:_files'\n");
    return g.rc;
}

static void fish_option(struct er_gen *g, const struct er_option *option)
{
    er_gen_text(g, "complete -c elastic-run -n __elastic_run_own");
    if (option->letter)
        er_gen_printf(g, " -s %c", option->letter);
    er_gen_printf(g, " -l %s", option->name);
    if (option->metavar && !(option->flags & ER_OPTION_MAY_HAVE))
        er_gen_text(g, kind_of(option) == FOLDERS ? " -r" : " -x");
    if (kind_of(option) == WORDS) {
        er_gen_text(g, " -a '");
        value_words(g, option);
        er_gen_text(g, "'");
    }
    er_gen_text(g, " -d '");
    quoted(g, option->help, "\\'");
    er_gen_text(g, "'\n");
}

int er_docgen_fish(struct er_buf *out)
{
    struct er_gen g = {.out = out};

    er_gen_text(&g, "# fish completion for elastic-run\n" MADE_BY
                    "# Own options end at the first operand.\n"
                    "function __elastic_run_own\n"
                    "    set -l words (commandline -opc)\n"
                    "    set -e words[1]\n"
                    "    set -l value 0\n"
                    "    for word in $words\n"
                    "        if test $value = 1\n            set value 0\n            continue\n"
                    "        end\n"
                    "        switch $word\n            case --\n                return 1\n"
                    "            case ");
    for (size_t i = 0; i < er_options_n; i++) {
        if (!er_options[i].metavar || er_options[i].flags & ER_OPTION_MAY_HAVE)
            continue;
        if (er_options[i].letter)
            er_gen_printf(&g, "-%c ", er_options[i].letter);
        er_gen_printf(&g, "--%s ", er_options[i].name);
    }
    er_gen_text(&g, "\n                set value 1\n            case '-*'\n            case '*'\n"
                    "                return 1\n        end\n    end\n    return 0\nend\n");
    for (size_t i = 0; i < er_options_n; i++)
        fish_option(&g, &er_options[i]);
    return g.rc;
}

int er_docgen_fish_ctl(struct er_buf *out)
{
    struct er_gen g = {.out = out};

    er_gen_text(&g, "# fish completion for elastic-ctl\n" MADE_BY);
    for (size_t i = 0; i < er_ctl_verbs_n; i++) {
        er_gen_printf(&g, "complete -c elastic-ctl -f -a %s -d '", er_ctl_verbs[i].name);
        quoted(&g, er_ctl_verbs[i].help, "\\'");
        er_gen_text(&g, "'\n");
    }
    for (size_t i = 0; i < er_ctl_options_n; i++) {
        const struct er_ctl_option *o = &er_ctl_options[i];

        er_gen_printf(&g, "complete -c elastic-ctl %s %s%s -d '", o->name[1] == '-' ? "-l" : "-s",
                      o->name + strspn(o->name, "-"), o->metavar ? " -r" : "");
        quoted(&g, o->help, "\\'");
        er_gen_text(&g, "'\n");
    }
    return g.rc;
}
