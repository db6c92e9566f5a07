/* libFuzzer: what elastic-ctl is answered, and shows: an agent's state, lists of jobs, events,
 * findings. Nothing in it reaches a terminal that would act upon it. */
#include <assert.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/ctl_explain.h"
#include "agent/ctl_print.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

static void show(const json_t *value, bool json)
{
    json_t *shown = er_ctl_tame(value);

    assert(shown);
    er_ctl_print_state(value, json);
    er_ctl_print_jobs(shown, json);
    er_ctl_print_event(value, json);
    er_ctl_explain(shown, stdout);
    json_decref(shown);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    json_t *value = json_loadb((const char *)data, n, 0, NULL);
    FILE *terminal = stdout;
    char *text = NULL;
    size_t length = 0;

    if (!value)
        return 0;
    for (int json = 0; json < 2; json++) {
        stdout = open_memstream(&text, &length);
        assert(stdout);
        show(value, json);
        fclose(stdout);
        stdout = terminal;
        for (size_t i = 0; i < length; i++)
            assert((unsigned char)text[i] >= 0x20 || text[i] == '\n');
        assert(json || !memchr(text, 0x7f, length)); /* JSON is for programs */
        free(text);
    }
    json_decref(value);
    return 0;
}
