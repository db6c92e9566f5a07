#include "agent/cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/file.h"

#define FILE_MAX_BYTES 400
#define CPU_PERIOD_US  100000 /* the kernel's default */
#define REMOVE_TRIES   500
#define REMOVE_WAIT_NS (2 * 1000 * 1000)

/* Taken back by the guard at the end. */
static const char *const GIVEN_ON[] = {"-memory", "-cpu", "-pids"};

static int none_begin(struct er_cgroup *cgroup, struct er_error *err)
{
    return 0;
}

static int none_worker(struct er_cgroup *cgroup, int local_rank, int *ret_fd, struct er_error *err)
{
    *ret_fd = -1;
    return 0;
}

static void none_act(struct er_cgroup *cgroup) {}

static uint64_t none_oom(struct er_cgroup *cgroup, int local_rank)
{
    return 0;
}

static int open_folder(const char *path, int *ret_fd, struct er_error *err)
{
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        return er_error_errno(err, "make cgroup '%s'", path);
    *ret_fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return *ret_fd < 0 ? er_error_errno(err, "open cgroup '%s'", path) : 0;
}

static int write_file(const char *path, const char *file, const char *text)
{
    char name[FILE_MAX_BYTES];
    ER_CLEANUP(er_cleanup_fd) int fd = -1;

    snprintf(name, sizeof(name), "%s/%s", path, file);
    fd = open(name, O_WRONLY | O_CLOEXEC);
    return fd < 0 ? -errno : er_write_all(fd, text, strlen(text));
}

static int put(const char *path, const char *file, const char *text, struct er_error *err)
{
    int rc = write_file(path, file, text);

    return rc ? er_error_set(err, rc, "write '%s' to %s/%s: %s", text, path, file,
                             er_error_name(rc))
              : 0;
}

/* "+memory +pids": what the limits need; memory is always counted where it can be. */
static const char *controllers(const struct er_limits *l, char ret[32])
{
    snprintf(ret, 32, "%s%s%s", l->memory_bytes != UINT64_MAX ? " +memory" : "",
             l->cpus > 0 ? " +cpu" : "", l->pids != UINT32_MAX ? " +pids" : "");
    return ret[0] ? ret + 1 : ret;
}

static int v2_begin(struct er_cgroup *cgroup, struct er_error *err)
{
    char wanted[32];
    int rc = open_folder(cgroup->path, &cgroup->fd, err);

    if (rc || !cgroup->limited)
        return rc;
    return put(cgroup->path, "cgroup.subtree_control", controllers(&cgroup->limits, wanted), err);
}

static void worker_path(const struct er_cgroup *cgroup, int local_rank, char ret[FILE_MAX_BYTES])
{
    if (cgroup->limited)
        snprintf(ret, FILE_MAX_BYTES, "%s/w%d", cgroup->path, local_rank);
    else
        snprintf(ret, FILE_MAX_BYTES, "%s", cgroup->path);
}

/* A worker that is killed for memory goes as a whole: half of one helps nobody, and swap would only
 * hide the limit. Source: cgroup-v2, "Memory Interface Files", "CPU Interface Files", "PID". */
static int set_limits(const char *path, const struct er_limits *l, struct er_error *err)
{
    char text[64];
    int rc = 0;

    if (l->memory_bytes != UINT64_MAX) {
        snprintf(text, sizeof(text), "%" PRIu64, l->memory_bytes);
        rc = put(path, "memory.max", text, err);
        if (!rc)
            rc = put(path, "memory.oom.group", "1", err);
        if (!rc)
            (void)write_file(path, "memory.swap.max", "0"); /* a kernel without swap has no file */
    }
    if (!rc && l->cpus > 0) {
        snprintf(text, sizeof(text), "%.0f %d", l->cpus * CPU_PERIOD_US, CPU_PERIOD_US);
        rc = put(path, "cpu.max", text, err);
    }
    if (!rc && l->pids != UINT32_MAX) {
        snprintf(text, sizeof(text), "%" PRIu32, l->pids);
        rc = put(path, "pids.max", text, err);
    }
    return rc;
}

static int v2_worker(struct er_cgroup *cgroup, int local_rank, int *ret_fd, struct er_error *err)
{
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    char path[FILE_MAX_BYTES];
    int rc;

    worker_path(cgroup, local_rank, path);
    rc = open_folder(path, &fd, err);
    if (!rc && cgroup->limited)
        rc = set_limits(path, &cgroup->limits, err);
    if (!rc)
        *ret_fd = ER_TAKE_FD(fd);
    return rc;
}

static void kill_path(const char *path)
{
    (void)write_file(path, "cgroup.kill", "1");
}

static void v2_kill(struct er_cgroup *cgroup)
{
    if (cgroup->fd >= 0)
        kill_path(cgroup->path);
}

static uint64_t v2_oom(struct er_cgroup *cgroup, int local_rank)
{
    char path[FILE_MAX_BYTES], file[FILE_MAX_BYTES + 16];
    struct er_buf text;
    const char *at;
    uint64_t n = 0;

    worker_path(cgroup, local_rank, path);
    snprintf(file, sizeof(file), "%s/memory.events", path);
    er_buf_init(&text, 4096);
    if (er_file_read(file, &text, NULL) == 0) {
        at = strstr(er_buf_str(&text), "oom_kill ");
        n = at ? strtoull(at + strlen("oom_kill "), NULL, 10) : 0;
    }
    er_buf_done(&text);
    return n;
}

/* The workers' folders in a generation's. */
static void remove_workers(const char *path)
{
    DIR *dir = opendir(path);

    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        if (entry->d_type == DT_DIR && entry->d_name[0] == 'w')
            (void)unlinkat(dirfd(dir), entry->d_name, AT_REMOVEDIR);
    }
    if (dir)
        closedir(dir);
}

/* Processes that were killed leave the cgroup a moment after they are reaped. */
static void remove_path(const char *path)
{
    for (int i = 0; i < REMOVE_TRIES && rmdir(path) < 0 && errno == EBUSY; i++) {
        remove_workers(path);
        nanosleep(&(struct timespec){.tv_nsec = REMOVE_WAIT_NS}, NULL);
    }
}

/* One try: the loop does not wait. What stays is used by the next generation or removed by the
 * guard. */
static void v2_end(struct er_cgroup *cgroup)
{
    if (cgroup->fd < 0)
        return;
    er_cleanup_fd(&cgroup->fd);
    if (cgroup->limited)
        remove_workers(cgroup->path);
    (void)rmdir(cgroup->path);
}

void er_cgroup_destroy(const char *path)
{
    kill_path(path);
    remove_path(path);
}

static const struct er_cgroup_ops NONE = {.name = "none",
                                          .begin = none_begin,
                                          .worker = none_worker,
                                          .kill = none_act,
                                          .oom_kills = none_oom,
                                          .end = none_act};
static const struct er_cgroup_ops V2 = {.name = "v2",
                                        .begin = v2_begin,
                                        .worker = v2_worker,
                                        .kill = v2_kill,
                                        .oom_kills = v2_oom,
                                        .end = v2_end};

static bool is_cgroup2(const char *path)
{
    struct statfs fs;

    return statfs(path, &fs) == 0 && fs.f_type == CGROUP2_SUPER_MAGIC;
}

/* systemd marks what it delegates. Source: systemd.resource-control(5), "Delegate=". */
static bool is_delegated(const char *path)
{
    char value[8] = "";

    if (getxattr(path, "user.delegate", value, sizeof(value) - 1) <= 0 &&
        getxattr(path, "trusted.delegate", value, sizeof(value) - 1) <= 0)
        return false;
    return value[0] == '1' && access(path, W_OK) == 0;
}

/* Our own folder below `mount`, "" when unknown. */
static void own_path(const char *mount, char *ret_path, size_t cap)
{
    struct er_buf text;
    const char *own;

    ret_path[0] = '\0';
    er_buf_init(&text, 4096);
    own = er_file_read("/proc/self/cgroup", &text, NULL) ? NULL : strstr(er_buf_str(&text), "0::/");
    if (own) {
        size_t n = strcspn(own + 3, "\n");

        if (strlen(mount) + n < cap)
            snprintf(ret_path, cap, "%s%.*s", mount, (int)n, own + 3);
    }
    er_buf_done(&text);
}

/* Is the word among those of a file? */
static bool has_word(const char *path, const char *file, const char *word)
{
    char name[FILE_MAX_BYTES];
    size_t n = strlen(word);
    struct er_buf text;
    bool has = false;

    snprintf(name, sizeof(name), "%s/%s", path, file);
    er_buf_init(&text, 4096);
    if (er_file_read(name, &text, NULL) == 0) {
        for (const char *at = er_buf_str(&text); !has && *at; at += strcspn(at, " \n")) {
            at += strspn(at, " \n");
            has = strncmp(at, word, n) == 0 && strchr(" \n", at[n]) != NULL;
        }
    }
    er_buf_done(&text);
    return has;
}

static int move(const char *path, pid_t pid)
{
    char text[24];

    snprintf(text, sizeof(text), "%d", (int)pid);
    return write_file(path, "cgroup.procs", text);
}

/* A cgroup with processes of its own gives no controller to those below it, so guard and agent move
 * to a leaf; refused (back again) when somebody else lives there, too. Source: cgroup-v2,
 * "No Internal Process Constraint". */
static bool give_on(struct er_cgroup *cgroup, const char *own, const char *wanted)
{
    snprintf(cgroup->leaf, sizeof(cgroup->leaf), "%s/elastic-run-%d-agent", own, (int)getpid());
    if (mkdir(cgroup->leaf, 0755) == 0 && move(cgroup->leaf, getppid()) == 0 &&
        move(cgroup->leaf, getpid()) == 0 && write_file(own, "cgroup.subtree_control", wanted) == 0)
        return true;
    (void)move(own, getppid());
    (void)move(own, getpid());
    (void)rmdir(cgroup->leaf);
    cgroup->leaf[0] = '\0';
    return false;
}

static void count_memory(struct er_cgroup *cgroup, const char *own)
{
    if (!has_word(own, "cgroup.subtree_control", "memory") &&
        has_word(own, "cgroup.controllers", "memory"))
        (void)give_on(cgroup, own, "+memory");
}

void er_cgroup_leave(const char *leaf)
{
    char own[FILE_MAX_BYTES];

    snprintf(own, sizeof(own), "%.*s", (int)(strrchr(leaf, '/') - leaf), leaf);
    for (size_t i = 0; i < ER_ARRAY_N(GIVEN_ON); i++)
        (void)write_file(own, "cgroup.subtree_control", GIVEN_ON[i]);
    (void)move(own, getpid());
    remove_path(leaf);
}

static bool is_limited(const struct er_limits *l)
{
    return l->memory_bytes != UINT64_MAX || l->cpus > 0 || l->pids != UINT32_MAX;
}

/* Our own cgroup, when it is delegated; else false. */
static bool find_own(char *ret_own, size_t cap)
{
    const char *mount = is_cgroup2("/sys/fs/cgroup")           ? "/sys/fs/cgroup"
                        : is_cgroup2("/sys/fs/cgroup/unified") ? "/sys/fs/cgroup/unified"
                                                               : NULL;

    ret_own[0] = '\0';
    if (mount)
        own_path(mount, ret_own, cap);
    return ret_own[0] && is_delegated(ret_own);
}

static int check_in(const char *own, bool delegated, const struct er_limits *l,
                    struct er_error *err)
{
    const struct {
        const char *key, *controller;
        bool wanted;
    } NEEDS[] = {{"memory", "memory", l->memory_bytes != UINT64_MAX},
                 {"cpus", "cpu", l->cpus > 0},
                 {"pids", "pids", l->pids != UINT32_MAX}};

    for (size_t i = 0; i < ER_ARRAY_N(NEEDS); i++) {
        if (!NEEDS[i].wanted)
            continue;
        if (!delegated)
            return er_error_set(err, ER_E_CONFIG,
                                "limits.%s: needs a delegated cgroup v2, and the agent is in none: "
                                "start it in a systemd unit with Delegate=yes",
                                NEEDS[i].key);
        if (!has_word(own, "cgroup.controllers", NEEDS[i].controller))
            return er_error_set(err, ER_E_CONFIG,
                                "limits.%s: the controller '%s' is not delegated to %s (systemd: "
                                "Delegate=%s)",
                                NEEDS[i].key, NEEDS[i].controller, own, NEEDS[i].controller);
    }
    return 0;
}

int er_cgroup_check(const struct er_limits *limits, struct er_error *err)
{
    char own[256];
    bool delegated = is_limited(limits) && find_own(own, sizeof(own));

    return check_in(own, delegated, limits, err);
}

bool er_cgroup_is_delegated(void)
{
    char own[256];

    return find_own(own, sizeof(own));
}

void er_cgroup_at(struct er_cgroup *cgroup, const char *path, const struct er_limits *limits)
{
    *cgroup =
        (struct er_cgroup){.ops = &V2, .fd = -1, .limits = *limits, .limited = is_limited(limits)};
    snprintf(cgroup->path, sizeof(cgroup->path), "%s", path);
}

int er_cgroup_init(struct er_cgroup *cgroup, const struct er_limits *limits, struct er_error *err)
{
    char own[256], path[sizeof(cgroup->path)], wanted[32];
    bool delegated = find_own(own, sizeof(own));
    int rc = check_in(own, delegated, limits, err);

    *cgroup = (struct er_cgroup){.ops = &NONE, .fd = -1};
    if (rc || !delegated)
        return rc;
    snprintf(path, sizeof(path), "%s/elastic-run-%d", own, (int)getpid());
    er_cgroup_at(cgroup, path, limits);
    if (!cgroup->limited) {
        count_memory(cgroup, own);
        return 0;
    }
    if (give_on(cgroup, own, controllers(limits, wanted)))
        return 0;
    return er_error_set(err, ER_E_CONFIG,
                        "limits: %s gives no controllers on while others than elastic-run live in "
                        "it: start it in a unit of its own",
                        own);
}

#define APART "/elastic-run-etcd-"

/* The agent may have moved to its leaf already: then what was delegated is above. */
void er_cgroup_stand_apart(pid_t pid)
{
    char own[256], path[256 + 64];
    bool delegated = find_own(own, sizeof(own));
    char *slash = strrchr(own, '/');

    if (!delegated && slash && strncmp(slash, "/elastic-run-", strlen("/elastic-run-")) == 0) {
        *slash = '\0';
        delegated = is_delegated(own);
    }
    if (!delegated)
        return;
    snprintf(path, sizeof(path), "%s" APART "%d", own, (int)pid);
    if (mkdir(path, 0755) == 0 && move(path, pid) < 0)
        (void)rmdir(path);
}

void er_cgroup_stand_back(void)
{
    char path[256], above[256];
    char *slash;

    (void)find_own(path, sizeof(path));
    slash = strrchr(path, '/');
    if (!slash || strncmp(slash, APART, strlen(APART)) != 0)
        return;
    snprintf(above, sizeof(above), "%.*s", (int)(slash - path), path);
    if (move(above, getpid()) == 0)
        (void)rmdir(path);
}
