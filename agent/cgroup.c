#include "agent/cgroup.h"

#include <errno.h>
#include <fcntl.h>
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
#define REMOVE_TRIES   500
#define REMOVE_WAIT_NS (2 * 1000 * 1000)

static int none_begin(struct er_cgroup *cgroup, int *ret_fd, struct er_error *err)
{
    *ret_fd = -1;
    return 0;
}

static void none_act(struct er_cgroup *cgroup) {}

static uint64_t none_oom(struct er_cgroup *cgroup)
{
    return 0;
}

static int v2_begin(struct er_cgroup *cgroup, int *ret_fd, struct er_error *err)
{
    if (mkdir(cgroup->path, 0755) < 0 && errno != EEXIST)
        return er_error_errno(err, "make cgroup '%s'", cgroup->path);
    cgroup->fd = open(cgroup->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (cgroup->fd < 0)
        return er_error_errno(err, "open cgroup '%s'", cgroup->path);
    *ret_fd = cgroup->fd;
    return 0;
}

static int write_file(const char *path, const char *file, const char *text)
{
    char name[FILE_MAX_BYTES];
    ER_CLEANUP(er_cleanup_fd) int fd = -1;

    snprintf(name, sizeof(name), "%s/%s", path, file);
    fd = open(name, O_WRONLY | O_CLOEXEC);
    return fd < 0 ? -errno : er_write_all(fd, text, strlen(text));
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

static uint64_t v2_oom(struct er_cgroup *cgroup)
{
    char file[FILE_MAX_BYTES];
    struct er_buf text;
    const char *at;
    uint64_t n = 0;

    snprintf(file, sizeof(file), "%s/memory.events", cgroup->path);
    er_buf_init(&text, 4096);
    if (er_file_read(file, &text, NULL) == 0) {
        at = strstr(er_buf_str(&text), "oom_kill ");
        n = at ? strtoull(at + strlen("oom_kill "), NULL, 10) : 0;
    }
    er_buf_done(&text);
    return n;
}

/* Processes that were killed leave the cgroup a moment after they are reaped. */
static void remove_path(const char *path)
{
    for (int i = 0; i < REMOVE_TRIES && rmdir(path) < 0 && errno == EBUSY; i++)
        nanosleep(&(struct timespec){.tv_nsec = REMOVE_WAIT_NS}, NULL);
}

/* One try: the loop does not wait. What stays is used by the next generation or removed by the
 * guard. */
static void v2_end(struct er_cgroup *cgroup)
{
    if (cgroup->fd < 0)
        return;
    er_cleanup_fd(&cgroup->fd);
    (void)rmdir(cgroup->path);
}

void er_cgroup_destroy(const char *path)
{
    kill_path(path);
    remove_path(path);
}

static const struct er_cgroup_ops NONE = {
    .name = "none", .begin = none_begin, .kill = none_act, .oom_kills = none_oom, .end = none_act};
static const struct er_cgroup_ops V2 = {
    .name = "v2", .begin = v2_begin, .kill = v2_kill, .oom_kills = v2_oom, .end = v2_end};

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

static bool has_memory(const char *path, const char *file)
{
    char name[FILE_MAX_BYTES];
    struct er_buf text;
    bool has;

    snprintf(name, sizeof(name), "%s/%s", path, file);
    er_buf_init(&text, 4096);
    has = er_file_read(name, &text, NULL) == 0 && strstr(er_buf_str(&text), "memory") != NULL;
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
static void count_memory(struct er_cgroup *cgroup, const char *own)
{
    if (has_memory(own, "cgroup.subtree_control") || !has_memory(own, "cgroup.controllers"))
        return;
    snprintf(cgroup->leaf, sizeof(cgroup->leaf), "%s/elastic-run-%d-agent", own, (int)getpid());
    if (mkdir(cgroup->leaf, 0755) == 0 && move(cgroup->leaf, getppid()) == 0 &&
        move(cgroup->leaf, getpid()) == 0 &&
        write_file(own, "cgroup.subtree_control", "+memory") == 0)
        return;
    (void)move(own, getppid());
    (void)move(own, getpid());
    (void)rmdir(cgroup->leaf);
    cgroup->leaf[0] = '\0';
}

void er_cgroup_leave(const char *leaf)
{
    char own[FILE_MAX_BYTES];

    snprintf(own, sizeof(own), "%.*s", (int)(strrchr(leaf, '/') - leaf), leaf);
    (void)write_file(own, "cgroup.subtree_control", "-memory");
    (void)move(own, getpid());
    remove_path(leaf);
}

/* Our own cgroup, when it is ours to divide; "" otherwise. */
static void delegated_path(char *ret_own, size_t cap)
{
    const char *mount = is_cgroup2("/sys/fs/cgroup")           ? "/sys/fs/cgroup"
                        : is_cgroup2("/sys/fs/cgroup/unified") ? "/sys/fs/cgroup/unified"
                                                               : NULL;

    ret_own[0] = '\0';
    if (mount)
        own_path(mount, ret_own, cap);
    if (ret_own[0] && !is_delegated(ret_own))
        ret_own[0] = '\0';
}

bool er_cgroup_is_delegated(void)
{
    char own[256];

    delegated_path(own, sizeof(own));
    return own[0];
}

void er_cgroup_init(struct er_cgroup *cgroup)
{
    char own[256];

    *cgroup = (struct er_cgroup){.ops = &NONE, .fd = -1};
    delegated_path(own, sizeof(own));
    if (!own[0])
        return;
    cgroup->ops = &V2;
    snprintf(cgroup->path, sizeof(cgroup->path), "%s/elastic-run-%d", own, (int)getpid());
    count_memory(cgroup, own);
}
