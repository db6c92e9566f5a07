/* elastic-ctl: asks a job, through its agent on this host or its store. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "agent/ctl_ckpt.h"
#include "agent/ctl_run.h"
#include "agent/ctl_verbs.h"
#include "agent/help.h"
#include "base/cleanup.h"

#define USAGE_MAX (64u << 10)

extern char **environ;

static void print_usage(void)
{
    struct er_buf text;

    er_buf_init(&text, USAGE_MAX);
    if (!er_ctl_usage(&text))
        fputs(er_buf_str(&text), stdout);
    er_buf_done(&text);
}

static int unknown_verb(const char *verb)
{
    const char *near = er_ctl_verb_nearest(verb);

    if (!near)
        return er_ctl_wrong("unknown verb", verb);
    fprintf(stderr, "elastic-ctl: unknown verb: %s; did you mean '%s'?\n", verb, near);
    return ER_CTL_EXIT_USAGE;
}

/* Where an option's value goes. */
static const struct {
    const char *name;
    size_t at;
    bool flag;
} OPTIONS[] = {
#define TEXT(name, member)                                                                         \
    {                                                                                              \
        name, offsetof(struct er_ctl_words, member), false                                         \
    }
#define FLAG(name, member)                                                                         \
    {                                                                                              \
        name, offsetof(struct er_ctl_words, member), true                                          \
    }
    TEXT("-f", file),
    TEXT("--job", job),
    TEXT("--endpoints", endpoints),
    TEXT("--state", state),
    TEXT("--nodes", nodes),
    TEXT("--timeout", timeout),
    TEXT("--deadline", deadline),
    FLAG("--json", json),
    FLAG("--wait", wait),
    FLAG("--watch", watch),
    FLAG("--follow", follow),
    FLAG("--help", help),
    FLAG("-h", help),
    FLAG("--preempt", preempt),
    FLAG("--version", version),
#undef TEXT
#undef FLAG
};

static int add_item(struct er_ctl_sets *list, const char *value, const char *what)
{
    if (list->n == ER_CTL_SETS_MAX)
        return er_ctl_wrong("too many", what);
    list->items[list->n++] = value;
    return 0;
}

/* Options that may be given again; NULL: another one. */
static struct er_ctl_sets *list_of(struct er_ctl_words *w, const char *arg, size_t n)
{
    if (n == 5 && strncmp(arg, "--set", n) == 0)
        return &w->sets;
    return n == 7 && strncmp(arg, "--unset", n) == 0 ? &w->wishes : NULL;
}

/* Takes the option at argv[*i], and its value. */
static int take_option(struct er_ctl_words *w, char **argv, int *i)
{
    const char *arg = argv[*i], *equals = arg[1] == '-' ? strchr(arg, '=') : NULL;
    size_t n = equals ? (size_t)(equals - arg) : strlen(arg);
    struct er_ctl_sets *list = list_of(w, arg, n);
    size_t k = 0;

    while (k < ER_ARRAY_N(OPTIONS) &&
           (strlen(OPTIONS[k].name) != n || strncmp(OPTIONS[k].name, arg, n) != 0))
        k++;
    if (!list && (k == ER_ARRAY_N(OPTIONS) || (OPTIONS[k].flag && equals)))
        return er_ctl_wrong("unknown option", arg);
    if (!list && OPTIONS[k].flag) {
        *(bool *)((char *)w + OPTIONS[k].at) = true;
        return 0;
    }
    if (!equals && !argv[*i + 1])
        return er_ctl_wrong("a value is missing after", arg);
    const char *value = equals ? equals + 1 : argv[++*i];

    if (list == &w->wishes && strchr(value, '='))
        return er_ctl_wrong("--unset takes a key alone, not", value);
    if (list)
        return add_item(list, value, list == &w->sets ? "--set" : "--unset");
    *(const char **)((char *)w + OPTIONS[k].at) = value;
    return 0;
}

static int parse(struct er_ctl_words *w, int argc, char **argv)
{
    const struct er_ctl_verb *verb = NULL;
    int code = 0;

    for (int i = 1; !code && i < argc; i++) {
        const char *arg = argv[i];

        if (arg[0] == '-' && arg[1])
            code = take_option(w, argv, &i);
        else if (verb && strcmp(verb->name, "set") == 0)
            code = strchr(arg, '=') ? add_item(&w->wishes, arg, "KEY=VALUE")
                                    : er_ctl_wrong("set: expected KEY=VALUE, got", arg);
        else if (verb && verb->operand && !w->operand)
            w->operand = arg;
        else if (w->verb)
            code = er_ctl_wrong("one verb at a time; did not expect", arg);
        else
            verb = er_ctl_verb_find(w->verb = arg);
    }
    if (code || w->help || w->version)
        return code;
    if (!w->verb)
        return er_ctl_wrong("which verb?", NULL);
    if (!verb)
        return unknown_verb(w->verb);
    if (w->deadline && strcmp(w->verb, "stop") != 0)
        return er_ctl_wrong("--deadline belongs to stop, not to", w->verb);
    if (w->wishes.n && strcmp(w->verb, "set") != 0)
        return er_ctl_wrong("--unset belongs to set, not to", w->verb);
    if (w->file && (w->job || w->endpoints))
        return er_ctl_wrong("-f excludes --job and --endpoints", NULL);
    if (w->endpoints && !w->job && strcmp(w->verb, "ps") != 0)
        return er_ctl_wrong("--endpoints: which job? say --job NAME", NULL);
    return 0;
}

int main(int argc, char **argv)
{
    struct er_ctl_words words = {0};
    int code;

    /* Checkpoints are another library's business, which the agent does not link. */
    if (er_ctl_ckpt(argc, argv, environ, &code))
        return code;
    code = parse(&words, argc, argv);
    if (code)
        return code;
    if (words.version)
        printf("elastic-ctl %s\n", er_agent_version());
    else if (words.help)
        print_usage();
    else
        return er_ctl_run(&words, environ);
    return er_ctl_done(0);
}
