/* libFuzzer: what elastic-run is started with: the environment (PET_*, the scheduler's, systemd's),
 * a variable a line, also options ("--...") and lines of a job spec (":..."). Whatever they are,
 * there is a configuration or a list of findings. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/config.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

enum { LINES = 40 };

struct start {
    char *variables[LINES + 2], *argv[LINES + 3];
    int variables_n, argc;
    FILE *spec;
    char path[64];
};

/* Its name must end as a job spec's does. */
static void add_spec(struct start *s, const char *line)
{
    if (!s->spec) {
        snprintf(s->path, sizeof(s->path), "/dev/shm/er-fuzz-environ-%d.yaml", (int)getpid());
        s->spec = fopen(s->path, "w");
        assert(s->spec);
    }
    fprintf(s->spec, "%s\n", line);
}

static void read_lines(struct start *s, char *rest)
{
    char *line;

    for (int i = 0; i < LINES && (line = strsep(&rest, "\n")); i++) {
        if (line[0] == ':')
            add_spec(s, line + 1);
        else if (line[0] == '-')
            s->argv[s->argc++] = line;
        else
            s->variables[s->variables_n++] = line;
    }
    s->argv[s->argc++] = s->spec ? s->path : (char *)"train";
    if (s->spec)
        fclose(s->spec);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n)
{
    struct start s = {.variables = {(char *)"HOME=/h"},
                      .variables_n = 1,
                      .argv = {(char *)"elastic-run"},
                      .argc = 1};
    char *text = malloc(n + 1);
    struct er_error err = ER_ERROR_INIT;
    struct er_config *config = NULL;
    int rc;

    assert(text);
    memcpy(text, data, n);
    text[n] = '\0';
    /* Looking for GPUs starts a program, a spec on standard input waits for it. */
    if (!strcasestr(text, "gpu") && !strcasestr(text, "auto") && !strstr(text, "-\n")) {
        read_lines(&s, text);
        rc = er_config_load(&config, s.argc, s.argv, s.variables, &err);
        if (rc < 0)
            assert(!config && err.text[0] && er_config_exit_code(&err) > 0);
        if (config)
            (void)er_config_preempt_deadline(config, 1);
        er_config_free(config);
        if (s.spec)
            unlink(s.path);
    }
    free(text);
    return 0;
}
