#include "agent/ctl_ckpt.h"

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/ctl_find.h"
#include "agent/findings.h"
#include "base/cleanup.h"
#include "base/clock.h"

#define ANSWER_US (10 * ER_US_PER_S)

struct place {
    const char *file, *job;
    char dir[PATH_MAX];
};

static int complain(const char *what, const char *which)
{
    fprintf(stderr, "elastic-ctl: ckpt: %s%s\n", what, which);
    return ER_CTL_EXIT_USAGE;
}

/* A running job tells where it writes. */
static int ask_agent(struct place *place, const struct er_ctl_job *job, struct er_error *err)
{
    struct er_ctl_client client = {.fd = -1};
    struct er_ctl_msg request = {.type = ER_CTL_STATUS}, m = {0};
    int code = er_ctl_job_connect(job, &client, ANSWER_US, err);
    json_t *state = NULL;
    const char *dir;

    if (!code && er_ctl_client_call(&client, &request, ANSWER_US, &m, err) < 0)
        code = ER_CTL_EXIT_UNREACHABLE;
    if (!code && m.str_n > 0)
        state = json_loadb(m.str[0].data, m.str[0].len, 0, NULL);
    dir = json_string_value(json_object_get(state, "checkpoint_dir"));
    if (!code && dir)
        snprintf(place->dir, sizeof(place->dir), "%s", dir);
    er_ctl_client_close(&client);
    json_decref(state);
    return code;
}

/* 0, or the exit code, told. */
static int find_dir(struct place *place, char **environ_)
{
    struct er_ctl_job job = {0};
    struct er_error err = ER_ERROR_INIT;
    int code;

    if (place->file && place->job)
        return complain("-f and --job exclude each other", "");
    code = er_ctl_job_find(&job, place->file, NULL, place->job, environ_, &err);
    if (!code && place->file && job.config && job.config->checkpoint.dir)
        snprintf(place->dir, sizeof(place->dir), "%s", job.config->checkpoint.dir);
    else if (!code && !place->file)
        code = ask_agent(place, &job, &err);
    if (!code && !place->dir[0]) {
        er_error_set(&err, ER_E_CONFIG, "job '%s' has no checkpoint.dir", job.name);
        code = ER_CTL_EXIT_NO_SUCH;
    }
    er_ctl_job_done(&job);
    if (!code)
        return 0;
    er_findings_tell("elastic-ctl", err.text);
    if (!place->file)
        fprintf(stderr, "elastic-ctl: a job that is over: say -f JOB.yaml, or the folder\n");
    return code;
}

static bool is_job_file(const char *arg)
{
    size_t n = strlen(arg);

    return arg[0] != '-' && ((n > 5 && strcmp(arg + n - 5, ".yaml") == 0) ||
                             (n > 4 && strcmp(arg + n - 4, ".yml") == 0));
}

/* The program beside this one, else the one in PATH. Returns only on failure. */
static int start(char **argv)
{
    static const char name[] = "elastic-ckpt";
    char path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - sizeof(name));

    while (n > 0 && path[n - 1] != '/')
        n--;
    if (n > 0) {
        memcpy(path + n, name, sizeof(name));
        execv(path, argv);
    }
    execvp(name, argv);
    fprintf(stderr, "elastic-ctl: start '%s': %s\n", name, er_error_name(-errno));
    return ER_CTL_EXIT_UNREACHABLE;
}

/* argv[at] is `ckpt`. With a job its folder goes behind the verb; a job file among the operands
 * becomes its folder. */
static int hand_on(struct place *place, int argc, char **argv, int at, char **environ_)
{
    ER_CLEANUP(er_cleanup_free) char **to = calloc((size_t)(argc - at) + 2, sizeof(*to));
    bool given = place->file || place->job, known = argc > at + 1 && argv[at + 1][0] != '-';
    int n = 0, code = 0;

    if (!to)
        return complain("no memory", "");
    for (int i = at; i < argc && !code; i++) {
        bool here = i > at + 1 && !given && is_job_file(argv[i]);

        if (here)
            place->file = argv[i];
        if (here || (i == at + 1 && given && known))
            code = find_dir(place, environ_);
        given = given || here;
        to[n++] = here ? place->dir : argv[i];
        if (!here && i == at + 1 && given && known)
            to[n++] = place->dir;
    }
    return code ? code : start(to);
}

bool er_ctl_ckpt(int argc, char **argv, char **environ_, int *ret)
{
    struct place place = {0};
    int i = 1;

    for (; i < argc; i++) {
        if ((strcmp(argv[i], "-f") == 0 || strcmp(argv[i], "--job") == 0) && i + 1 < argc) {
            *(argv[i][1] == 'f' ? &place.file : &place.job) = argv[i + 1];
            i++;
        } else if (strncmp(argv[i], "--job=", 6) == 0) {
            place.job = argv[i] + 6;
        } else {
            break;
        }
    }
    if (i == argc || (strcmp(argv[i], "ckpt") != 0 && strcmp(argv[i], "audit") != 0))
        return false;
    /* `audit` is short for `ckpt audit`: the word before it is free by now. */
    if (argv[i][0] == 'a')
        argv[--i] = (char *)(uintptr_t) "ckpt";
    *ret = hand_on(&place, argc, argv, i, environ_);
    return true;
}
