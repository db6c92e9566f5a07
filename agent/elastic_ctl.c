/* elastic-ctl: asks the agent of a job on this host. */
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/config.h"
#include "agent/statedir.h"
#include "base/cleanup.h"
#include "base/ctl.h"

enum {
    EXIT_NO = 1,
    EXIT_USAGE = 64,
    EXIT_NO_SUCH = 66,
    EXIT_UNREACHABLE = 69,
    EXIT_REFUSED = 77,
};

#define LISTED_MAX 32

static const char USAGE[] =
    "usage: elastic-ctl [-f JOB.yaml | --job NAME] status [--json] [--wait]\n"
    "       elastic-ctl ckpt VERB ...    checkpoints on disk; see elastic-ctl ckpt --help\n"
    "\n"
    "  -f JOB.yaml   the job of this file\n"
    "  --job NAME    the job of this name; neither: the only one that runs on this host\n"
    "  --json        one JSON object instead of a table\n"
    "  --wait        until the job is over; exit code 1 when it failed\n"
    "\n"
    "exit codes: 0 done, 1 the answer is no, 64 usage, 66 no such job here, 69 the agent does not\n"
    "answer, 77 not yours\n";

struct options {
    const char *file, *job, *verb;
    bool json, wait, help;
};

static int usage(const char *what, const char *which)
{
    fprintf(stderr, "elastic-ctl: %s%s%s\n%s", what, which ? ": " : "", which ? which : "", USAGE);
    return EXIT_USAGE;
}

static int parse(struct options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        bool takes_value = strcmp(arg, "-f") == 0 || strcmp(arg, "--job") == 0;

        if (takes_value && !argv[i + 1])
            return usage("a value is missing after", arg);
        if (takes_value)
            *(arg[1] == 'f' ? &o->file : &o->job) = argv[++i];
        else if (strncmp(arg, "--job=", 6) == 0)
            o->job = arg + 6;
        else if (strcmp(arg, "--json") == 0)
            o->json = true;
        else if (strcmp(arg, "--wait") == 0)
            o->wait = true;
        else if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0)
            o->help = true;
        else if (arg[0] == '-')
            return usage("unknown option", arg);
        else if (o->verb)
            return usage("one verb at a time; did not expect", arg);
        else
            o->verb = arg;
    }
    if (o->help)
        return 0;
    if (!o->verb)
        return usage("which verb?", NULL);
    if (strcmp(o->verb, "status") != 0)
        return usage("unknown verb", o->verb);
    if (o->file && o->job)
        return usage("-f and --job exclude each other", NULL);
    return 0;
}

static int name_of_file(const char *file, char ret_name[64])
{
    struct er_error err = ER_ERROR_INIT;
    struct er_config *config = NULL;
    char *argv[] = {(char[]){"elastic-ctl"}, (char[]){"--check"}, NULL, NULL};
    char *no_env[] = {NULL};

    argv[2] = strdup(file);
    if (!argv[2] || er_config_load(&config, 3, argv, no_env, &err)) {
        fprintf(stderr, "elastic-ctl: %s\n", err.text);
        free(argv[2]);
        return EXIT_NO_SUCH;
    }
    snprintf(ret_name, 64, "%s", config->name);
    er_config_free(config);
    free(argv[2]);
    return 0;
}

/* Jobs that have a folder on this host; how many, the names of the first ones. */
static size_t list_jobs(char names[LISTED_MAX][64])
{
    char bases[ER_STATE_BASES][ER_STATE_PATH_MAX];
    size_t base_n = er_statedir_bases(bases), n = 0;

    for (size_t i = 0; i < base_n; i++) {
        DIR *dir = opendir(bases[i]);

        for (struct dirent *entry; dir && n < LISTED_MAX && (entry = readdir(dir));) {
            if (entry->d_name[0] != '.')
                snprintf(names[n++], 64, "%.63s", entry->d_name);
        }
        if (dir)
            closedir(dir);
    }
    return n;
}

static int only_job(char ret_name[64])
{
    char names[LISTED_MAX][64];
    size_t n = list_jobs(names);

    if (n == 0) {
        fprintf(stderr, "elastic-ctl: no job runs on this host\n");
        return EXIT_NO_SUCH;
    }
    if (n > 1) {
        fprintf(stderr, "elastic-ctl: several jobs run on this host, say --job NAME:\n");
        for (size_t i = 0; i < n; i++)
            fprintf(stderr, "  %s\n", names[i]);
        return EXIT_USAGE;
    }
    memcpy(ret_name, names[0], 64);
    return 0;
}

/* 0, or the exit code. */
static int connect_to(const char *name, int *ret_fd)
{
    char bases[ER_STATE_BASES][ER_STATE_PATH_MAX];
    size_t base_n = er_statedir_bases(bases);
    int error = ENOENT;

    for (size_t i = 0; i < base_n; i++) {
        struct sockaddr_un addr = {.sun_family = AF_UNIX};
        ER_CLEANUP(er_cleanup_fd) int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        size_t n = (size_t)snprintf(addr.sun_path, sizeof(addr.sun_path), "%s/%s/agent.sock",
                                    bases[i], name);

        if (n >= sizeof(addr.sun_path))
            continue;
        if (fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0) {
            *ret_fd = ER_TAKE_FD(fd);
            return 0;
        }
        if (errno != ENOENT && errno != ENOTDIR)
            error = errno;
    }
    if (error == ENOENT || error == ECONNREFUSED) {
        fprintf(stderr, "elastic-ctl: no job '%s' runs on this host\n", name);
        return EXIT_NO_SUCH;
    }
    fprintf(stderr, "elastic-ctl: job '%s': %s\n", name, er_error_name(-error));
    return error == EACCES || error == EPERM ? EXIT_REFUSED : EXIT_UNREACHABLE;
}

static int send_request(int fd)
{
    const struct er_ctl_msg request = {.type = ER_CTL_STATUS, .seq = 1};
    char packet[256];
    int n = er_ctl_encode(&request, packet, sizeof(packet));

    return n > 0 && send(fd, packet, (size_t)n, MSG_NOSIGNAL) == n ? 0 : -EIO;
}

/* One state; NULL: the agent has gone or does not speak our language. */
static json_t *receive(int fd)
{
    static char packet[ER_CTL_PACKET_MAX];
    struct er_ctl_msg msg;
    ssize_t n = recv(fd, packet, sizeof(packet), 0);

    if (n <= 0 || er_ctl_decode(&msg, packet, (size_t)n, NULL) || msg.type != ER_CTL_REPLY ||
        msg.status != 0 || msg.str_n < 1)
        return NULL;
    return json_loadb(msg.str[0].data, msg.str[0].len, 0, NULL);
}

static const char *text(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_string(value) ? json_string_value(value) : "-";
}

static long long number(const json_t *object, const char *key)
{
    return (long long)json_integer_value(json_object_get(object, key));
}

static bool known(const json_t *object, const char *key)
{
    return json_is_number(json_object_get(object, key));
}

static void print_worker(const json_t *w)
{
    bool over = strcmp(text(w, "state"), "exited") == 0;
    double seconds = json_number_value(json_object_get(w, "runtime_ms")) / 1e3;

    printf("%5lld %6lld %8lld  %-9s %-12s", number(w, "rank"), number(w, "local_rank"),
           number(w, "pid"), text(w, "state"), over ? text(w, "kind") : text(w, "phase"));
    if (number(w, "total_steps") > 0)
        printf(" %lld/%lld", number(w, "step"), number(w, "total_steps"));
    else
        printf(" %lld", number(w, "step"));
    printf("  %.1fs\n", seconds);
}

static void print_table(const json_t *s)
{
    const json_t *workers = json_object_get(s, "workers");

    printf("job        %s\n", text(s, "job"));
    printf("phase      %s", text(s, "phase"));
    if (known(s, "exit_code"))
        printf(", exit code %lld (%s)", number(s, "exit_code"), text(s, "outcome"));
    printf("\nnode       %s on %s, agent %lld, since %s\n", text(s, "node_id"), text(s, "host"),
           number(s, "pid"), text(s, "started_ts"));
    printf("generation %lld, world size %lld on %lld node(s)\n", number(s, "generation"),
           number(s, "world_size"), number(s, "nnodes"));
    printf("restarts   %lld", number(s, "restarts"));
    if (known(s, "restart_max"))
        printf(" of %lld", number(s, "restart_max"));
    if (known(s, "checkpoint_step"))
        printf("\ncheckpoint step %lld", number(s, "checkpoint_step"));
    printf("\nlogs       %s\n", text(s, "log_dir"));
    printf(" RANK  LOCAL      PID  STATE     PHASE        STEP\n");
    for (size_t i = 0; i < json_array_size(workers); i++)
        print_worker(json_array_get(workers, i));
    if (number(s, "workers_left_out") > 0)
        printf("... and %lld more\n", number(s, "workers_left_out"));
}

static void print_state(const json_t *state, bool json)
{
    if (!json) {
        print_table(state);
    } else {
        json_dumpf(state, stdout, JSON_COMPACT);
        printf("\n");
    }
}

static int run_status(const struct options *o, int fd, const char *name)
{
    json_t *state = send_request(fd) ? NULL : receive(fd);
    int code = 0;

    while (o->wait && state && !known(state, "exit_code")) {
        json_decref(state);
        state = receive(fd);
    }
    if (!state) {
        fprintf(stderr, "elastic-ctl: the agent of job '%s' has gone without a last word\n", name);
        return EXIT_UNREACHABLE;
    }
    print_state(state, o->json);
    if (o->wait && number(state, "exit_code") != 0)
        code = EXIT_NO;
    json_decref(state);
    return fflush(stdout) == EOF ? EXIT_UNREACHABLE : code;
}

/* Checkpoints are another library's business, which the agent does not link: the program beside
 * this one, else the one in PATH. Returns only on failure. */
static int hand_on_to_ckpt(char **argv)
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
    return EXIT_UNREACHABLE;
}

int main(int argc, char **argv)
{
    struct options o = {0};
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    char name[64];
    int code;

    if (argc > 1 && strcmp(argv[1], "ckpt") == 0)
        return hand_on_to_ckpt(argv + 1);
    code = parse(&o, argc, argv);
    if (code)
        return code;
    if (o.help) {
        fputs(USAGE, stdout);
        return 0;
    }
    if (o.job)
        snprintf(name, sizeof(name), "%s", o.job);
    else
        code = o.file ? name_of_file(o.file, name) : only_job(name);
    if (!code)
        code = connect_to(name, &fd);
    return code ? code : run_status(&o, fd, name);
}
