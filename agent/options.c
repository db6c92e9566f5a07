#include "agent/options.h"

#include <string.h>

static int unknown(const char *arg, const char *name, size_t n, struct er_error *err)
{
    const char *near = er_option_nearest(name, n);

    if (near)
        return er_error_set(err, ER_E_USAGE, "unknown option '%.100s'; did you mean '--%s'?", arg,
                            near);
    return er_error_set(err, ER_E_USAGE, "unknown option '%.100s'; --help lists the options", arg);
}

/* What a use says about the run itself; keys are left to the caller. */
static int note(struct er_command_line *cl, const struct er_option *option, const char *value,
                struct er_error *err)
{
    if (option->kind == ER_OPTION_START && cl->start_kind != ER_START_AUTO &&
        cl->start_kind != (enum er_start_kind)option->number)
        return er_error_set(err, ER_E_USAGE, "--fresh and --resume exclude each other");
    cl->uses[cl->uses_n++] = (struct er_option_use){option, value};
    if (option->kind == ER_OPTION_MODULE)
        cl->module = true;
    if (option->kind == ER_OPTION_NO_PYTHON)
        cl->no_python = true;
    if (option->kind == ER_OPTION_UPDATE_SPEC)
        cl->update_spec = true;
    if (option->kind == ER_OPTION_START)
        cl->start_kind = (enum er_start_kind)option->number;
    /* Help wins over everything beside it. */
    if (option->kind == ER_OPTION_MODE && cl->mode != ER_MODE_HELP)
        cl->mode = (enum er_run_mode)option->number;
    if (option->kind == ER_OPTION_MODE && cl->mode == (enum er_run_mode)option->number && value)
        cl->help_topic = value;
    return 0;
}

/*
 * `inline_value` is what stood in the same argument, or NULL. Returns how many further arguments
 * were used (0 or 1), or a negative code.
 */
static int take(struct er_command_line *cl, const struct er_option *option, const char *arg,
                const char *inline_value, const char *next, struct er_error *err)
{
    int rc;

    if (option->flags & ER_OPTION_NO_VALUE) {
        if (inline_value)
            return er_error_set(err, ER_E_USAGE, "option '--%s' takes no value, got '%.100s'",
                                option->name, inline_value);
        return note(cl, option, NULL, err);
    }
    if (inline_value)
        return note(cl, option, inline_value, err);
    if (option->flags & ER_OPTION_MAY_HAVE) {
        bool has = next && next[0] != '-';

        rc = note(cl, option, has ? next : NULL, err);
        return rc ? rc : has;
    }
    if (!next)
        return er_error_set(err, ER_E_USAGE, "option '%.100s' needs a value (%s)", arg,
                            option->metavar);
    rc = note(cl, option, next, err);
    return rc ? rc : 1;
}

static int take_long(struct er_command_line *cl, const char *arg, const char *next,
                     struct er_error *err)
{
    const char *name = arg + 2, *equals = strchr(name, '=');
    size_t n = equals ? (size_t)(equals - name) : strlen(name);
    const struct er_option *option = er_option_find(name, n);

    if (!option)
        return unknown(arg, name, n, err);
    return take(cl, option, arg, equals ? equals + 1 : NULL, next, err);
}

static int take_short(struct er_command_line *cl, const char *arg, const char *next,
                      struct er_error *err)
{
    const struct er_option *option = er_option_find_letter(arg[1]);
    const char *rest = arg[2] ? arg + 2 : NULL;

    /* "-nnodes" is a long option that lost a dash; "-mfoo" is nothing we know. */
    if (!option || (rest && option->flags & (ER_OPTION_NO_VALUE | ER_OPTION_MAY_HAVE)))
        return unknown(arg, arg + 1, strcspn(arg + 1, "="), err);
    if (rest && *rest == '=')
        rest++;
    return take(cl, option, arg, rest, next, err);
}

int er_options_parse(struct er_command_line *cl, int argc, char **argv, struct er_error *err)
{
    struct er_option_use *uses = cl->uses;
    int i = 1;

    *cl = (struct er_command_line){.uses = uses};
    while (i < argc) {
        const char *arg = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;
        int used;

        if (arg[0] != '-' || !arg[1]) /* `-` alone is the job spec on stdin */
            break;
        if (!strcmp(arg, "--")) {
            cl->after_dashes = true;
            i++;
            break;
        }
        used = arg[1] == '-' ? take_long(cl, arg, next, err) : take_short(cl, arg, next, err);
        if (used < 0)
            return used;
        i += 1 + used;
    }
    cl->operands = i < argc ? i : argc;
    return 0;
}
