#include "tests/lib/jobs.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* As the agent chooses it. */
static void jobs_folder(char ret[ER_TEST_PATH_MAX])
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");

    if (geteuid() == 0)
        snprintf(ret, ER_TEST_PATH_MAX, "/run/elastic-run");
    else if (runtime)
        snprintf(ret, ER_TEST_PATH_MAX, "%.400s/elastic-run", runtime);
    else
        snprintf(ret, ER_TEST_PATH_MAX, "/tmp/elastic-run-%u", (unsigned)geteuid());
}

void er_test_job_folder(const char *name, char ret_path[ER_TEST_PATH_MAX])
{
    char base[ER_TEST_PATH_MAX];

    jobs_folder(base);
    snprintf(ret_path, ER_TEST_PATH_MAX, "%.440s/%.64s", base, name);
}

/* As a whole number: 12 is neither in case-123 nor in case-412. */
static bool has_number(const char *name, const char *number)
{
    size_t n = strlen(number);

    for (const char *at = strstr(name, number); at; at = strstr(at + 1, number)) {
        if ((at == name || !isdigit((unsigned char)at[-1])) && !isdigit((unsigned char)at[n]))
            return true;
    }
    return false;
}

/* Jobs of other people's are nobody's business, whatever number is in their names. */
static bool is_of_tests(const char *name)
{
    return strstr(name, "case-") || strstr(name, "managed-") || strstr(name, "other-");
}

static bool runs(const char *base, const char *name)
{
    char path[2 * ER_TEST_PATH_MAX];
    int fd;
    bool held;

    snprintf(path, sizeof(path), "%s/.%s.lock", base, name);
    fd = open(path, O_RDWR | O_CLOEXEC);
    held = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0;
    if (fd >= 0)
        close(fd);
    return held;
}

/* The job of an entry: NAME or .NAME.lock; others, such as .etcd-NAME-0, have no lock. */
static void job_of(const char *entry, char ret[NAME_MAX + 1])
{
    size_t n = strlen(entry);

    snprintf(ret, NAME_MAX + 1, "%s", entry);
    if (entry[0] == '.' && n > 6 && strcmp(entry + n - 5, ".lock") == 0)
        snprintf(ret, NAME_MAX + 1, "%.*s", (int)(n - 6), entry + 1);
}

void er_test_remove_jobs(pid_t pid)
{
    char base[ER_TEST_PATH_MAX], path[2 * ER_TEST_PATH_MAX], job[NAME_MAX + 1], number[16];
    DIR *d;

    snprintf(number, sizeof(number), "%d", (int)pid);
    jobs_folder(base);
    d = opendir(base);
    for (struct dirent *e; d && (e = readdir(d));) {
        job_of(e->d_name, job);
        if (!is_of_tests(job) || !has_number(e->d_name, number) || runs(base, job))
            continue;
        snprintf(path, sizeof(path), "%s/%s", base, e->d_name);
        er_test_rmtree(path);
    }
    if (d)
        closedir(d);
}
