/* libFuzzer: command lines. Each line of the input is one argument. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "agent/options.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

enum { ARGS_MAX = 64 };

static bool within(const char *value, char *const argv[], int argc)
{
    for (int i = 0; i < argc; i++) {
        if (value >= argv[i] && value <= argv[i] + strlen(argv[i]))
            return true;
    }
    return false;
}

static void check(const struct er_command_line *cl, char *const argv[], int argc)
{
    assert(cl->operands >= 1 && cl->operands <= argc);
    assert(cl->uses_n < (size_t)argc);
    for (size_t i = 0; i < cl->uses_n; i++) {
        const struct er_option_use *use = &cl->uses[i];

        assert(er_option_find(use->option->name, strlen(use->option->name)) == use->option);
        assert(!use->value || within(use->value, argv, argc));
        assert(!(use->option->flags & ER_OPTION_NO_VALUE) || !use->value);
    }
    /* Options end at the first operand. */
    if (cl->operands < argc && !cl->after_dashes)
        assert(argv[cl->operands][0] != '-' || !argv[cl->operands][1]);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    struct er_option_use uses[ARGS_MAX + 1];
    struct er_command_line cl = {.uses = uses};
    struct er_error err = ER_ERROR_INIT;
    char *text = malloc(n + 1), *rest = text, *argv[ARGS_MAX + 1] = {(char *)"elastic-run"};
    int argc = 1, rc;

    assert(text);
    memcpy(text, data, n);
    text[n] = '\0';
    while (rest && argc < ARGS_MAX)
        argv[argc++] = strsep(&rest, "\n");
    rc = er_options_parse(&cl, argc, argv, &err);
    if (rc)
        assert(rc == ER_E_USAGE && err.text[0]);
    else
        check(&cl, argv, argc);
    free(text);
    return 0;
}
