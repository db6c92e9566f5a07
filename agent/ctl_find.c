#include "agent/ctl_find.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/events.h"
#include "agent/statedir.h"
#include "base/cleanup.h"
#include "base/fd.h"

#define LISTED_MAX 32

static int of_file(struct er_ctl_job *job, const char *file, const struct er_ctl_sets *sets,
                   char **environ_, struct er_error *err)
{
    const char *argv[4 + 2 * ER_CTL_SETS_MAX] = {"elastic-ctl", "--check"};
    int n = 2;

    for (int i = 0; sets && i < sets->n; i++) {
        argv[n++] = "--set";
        argv[n++] = sets->items[i];
    }
    argv[n++] = file;
    if (er_config_load(&job->config, n, (char **)argv, environ_, err))
        return ER_CTL_EXIT_NO_SUCH;
    if (job->config->name_made_up) {
        er_error_set(err, ER_E_CONFIG,
                     "'%s' gives no name, so each run of it has another one: say --job NAME", file);
        return ER_CTL_EXIT_NO_SUCH;
    }
    snprintf(job->name, sizeof(job->name), "%s", job->config->name);
    return 0;
}

/* Where its logs would be by default; without them it is a name all the same. */
static int of_name(struct er_ctl_job *job, const char *name, char **environ_, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_free) char *copy = strdup(name);
    char *argv[] = {(char[]){"elastic-ctl"},
                    (char[]){"--log-dir"},
                    (char[]){"auto"},
                    (char[]){"--rdzv-id"},
                    copy,
                    (char[]){"true"},
                    NULL};

    if (!copy || strlen(name) >= sizeof(job->name)) {
        er_error_set(err, ER_E_USAGE, "--job: '%.100s' is no job's name", name);
        return ER_CTL_EXIT_USAGE;
    }
    snprintf(job->name, sizeof(job->name), "%s", name);
    (void)er_config_load(&job->config, 6, argv, environ_, NULL);
    return 0;
}

/* Each job once, however many of its agents run here. */
static size_t add_name(char names[LISTED_MAX][64], size_t n, const char *folder)
{
    char name[64];

    snprintf(name, sizeof(name), "%.*s", (int)strcspn(folder, (char[]){ER_STATE_NODE_MARK, 0}),
             folder);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(names[i], name) == 0)
            return 0;
    }
    memcpy(names[n], name, sizeof(name));
    return 1;
}

/* Units of systemd, those that we may ask. */
static size_t list_units(char names[LISTED_MAX][64], size_t n)
{
    char bases[ER_STATE_BASES][ER_STATE_PATH_MAX], path[ER_STATE_PATH_MAX];
    size_t base_n = er_statedir_unit_bases(bases);

    for (size_t i = 0; i < base_n; i++) {
        DIR *dir = opendir(bases[i]);

        for (struct dirent *entry; dir && n < LISTED_MAX && (entry = readdir(dir));) {
            if (entry->d_name[0] != '.' &&
                !er_statedir_unit_file(bases[i], entry->d_name, "agent.sock", path) &&
                access(path, F_OK) == 0)
                n += add_name(names, n, entry->d_name);
        }
        if (dir)
            closedir(dir);
    }
    return n;
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
                n += add_name(names, n, entry->d_name);
        }
        if (dir)
            closedir(dir);
    }
    return list_units(names, n);
}

static int the_only_one(struct er_ctl_job *job, struct er_error *err)
{
    char names[LISTED_MAX][64], list[LISTED_MAX * 70] = "";
    size_t n = list_jobs(names), used = 0;

    if (n == 0) {
        er_error_set(err, -ENOENT, "no job of yours runs on this host");
        return ER_CTL_EXIT_NO_SUCH;
    }
    if (n > 1) {
        for (size_t i = 0; i < n; i++)
            used += (size_t)snprintf(list + used, sizeof(list) - used, "\n  %s", names[i]);
        er_error_set(err, ER_E_USAGE, "several jobs run on this host, say --job NAME:%s", list);
        return ER_CTL_EXIT_USAGE;
    }
    memcpy(job->name, names[0], sizeof(job->name));
    return 0;
}

int er_ctl_job_find(struct er_ctl_job *ret, const char *file, const struct er_ctl_sets *sets,
                    const char *name, char **environ_, struct er_error *err)
{
    *ret = (struct er_ctl_job){0};
    if (file)
        return of_file(ret, file, sets, environ_, err);
    return name ? of_name(ret, name, environ_, err) : the_only_one(ret, err);
}

void er_ctl_job_done(struct er_ctl_job *job)
{
    er_config_free(job->config);
    job->config = NULL;
}

/* Does another user have jobs here? Their folder is closed to us, but a folder's links count the
 * folders in it. */
static bool others_run_jobs(void)
{
    static const char *const PATTERNS[] = {"/run/elastic-run", "/tmp/elastic-run-*",
                                           "/run/user/*/elastic-run"};
    bool found = false;

    for (size_t i = 0; i < ER_ARRAY_N(PATTERNS); i++) {
        glob_t all = {0};

        if (glob(PATTERNS[i], GLOB_NOSORT, NULL, &all) == 0) {
            for (size_t j = 0; j < all.gl_pathc; j++) {
                struct stat st;

                found |= lstat(all.gl_pathv[j], &st) == 0 && S_ISDIR(st.st_mode) &&
                         st.st_uid != geteuid() && st.st_nlink > 2;
            }
        }
        globfree(&all);
    }
    return found;
}

static int not_connected(const char *name, int error, struct er_error *err)
{
    if (error == EACCES || error == EPERM) {
        er_error_set(err, -error, "job '%s' is another user's", name);
        return ER_CTL_EXIT_REFUSED;
    }
    if (error != ENOENT && error != ECONNREFUSED) {
        er_error_set(err, -error, "job '%s': %s", name, er_error_name(-error));
        return ER_CTL_EXIT_UNREACHABLE;
    }
    if (others_run_jobs()) {
        er_error_set(err, -EACCES,
                     "no job '%s' of yours runs on this host; jobs of another user do, which only "
                     "that user can see",
                     name);
        return ER_CTL_EXIT_REFUSED;
    }
    er_error_set(err, -ENOENT, "no job '%s' runs on this host", name);
    return ER_CTL_EXIT_NO_SUCH;
}

/* In a folder that everybody can write to somebody may play the agent. */
static int open_agent(struct er_ctl_client *client, const char *path, uint64_t timeout_us,
                      struct er_error *err)
{
    int rc = er_ctl_client_open(client, path, timeout_us, err);

    if (rc || geteuid() == 0 || er_fd_peer_is_own(client->fd))
        return rc;
    er_ctl_client_close(client);
    return er_error_set(err, -EACCES, "'%s' is another user's", path);
}

/* The agents of the job here that have node ids of their own: the first that answers. */
static int connect_any(const char *base, const char *name, struct er_ctl_client *client,
                       uint64_t timeout_us)
{
    char pattern[ER_STATE_PATH_MAX + 80];
    glob_t all = {0};
    int rc = -ENOENT;

    snprintf(pattern, sizeof(pattern), "%s/%s%c*/agent.sock", base, name, ER_STATE_NODE_MARK);
    if (glob(pattern, 0, NULL, &all) == 0) {
        for (size_t i = 0; i < all.gl_pathc && rc; i++)
            rc = open_agent(client, all.gl_pathv[i], timeout_us, NULL);
    }
    globfree(&all);
    return rc;
}

int er_ctl_job_connect(const struct er_ctl_job *job, struct er_ctl_client *client,
                       uint64_t timeout_us, struct er_error *err)
{
    char bases[ER_STATE_BASES][ER_STATE_PATH_MAX], path[ER_STATE_PATH_MAX + 80];
    size_t base_n = er_statedir_bases(bases);
    int error = ENOENT;

    for (size_t i = 0; i < base_n; i++) {
        int rc;

        snprintf(path, sizeof(path), "%s/%s/agent.sock", bases[i], job->name);
        rc = open_agent(client, path, timeout_us, NULL);
        if (rc == -ENOENT || rc == -ECONNREFUSED)
            rc = connect_any(bases[i], job->name, client, timeout_us);
        if (rc == 0)
            return 0;
        if (rc != -ENOENT && rc != -ENOTDIR && rc != -ENAMETOOLONG)
            error = -rc;
    }
    base_n = er_statedir_unit_bases(bases);
    for (size_t i = 0; i < base_n; i++) {
        int rc = er_statedir_unit_file(bases[i], job->name, "agent.sock", path);

        rc = rc ? rc : open_agent(client, path, timeout_us, NULL);
        if (rc == 0)
            return 0;
        if (rc != -ENOENT && rc != -ENOTDIR && rc != -ENAMETOOLONG)
            error = -rc;
    }
    return not_connected(job->name, error, err);
}

json_t *er_ctl_job_last_event(const struct er_ctl_job *job)
{
    const struct er_config *c = job->config;
    char dir[4096], path[4096];

    if (!c || !c->log.dir)
        return NULL;
    if (snprintf(dir, sizeof(dir), "%s/%s", c->log.dir, job->name) >= (int)sizeof(dir) ||
        !er_events_path(dir, c->node.id, path))
        return NULL;
    return er_events_last(path, NULL);
}
