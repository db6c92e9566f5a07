#include "agent/orphan.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"

#define PATIENCE_US   (60 * ER_US_PER_S)
#define MARKED_US     (5 * ER_US_PER_S)
#define ENVIRON_MAX   (4u * 1024 * 1024)
#define ANCESTORS_MAX 1000
#define STAT_MAX      1024
#define PASS_WAIT_NS  (2 * 1000 * 1000)
#define PROCESS_MAX   (4u * 1024 * 1024) /* pid_max's own limit */

struct process {
    pid_t pid, parent;
    bool ours, zombie;
};

struct table {
    struct process *items; /* owned */
    size_t n, room;
};

/* state and ppid of /proc/<pid>/stat; the name before them may hold anything but ends in the last
 * ')'. Source: proc(5). */
static int read_stat(pid_t pid, char *ret_state, pid_t *ret_parent)
{
    char path[64], text[1024];
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    const char *paren;
    ssize_t n;
    int parent;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? -ESRCH : -errno;
    n = read(fd, text, sizeof(text) - 1);
    if (n < 0)
        return -errno;
    text[n] = '\0';
    paren = strrchr(text, ')');
    if (!paren || sscanf(paren + 1, " %c %d", ret_state, &parent) != 2)
        return -EBADMSG;
    *ret_parent = parent;
    return 0;
}

pid_t er_orphan_parent(pid_t pid)
{
    char state;
    pid_t parent;
    int rc = read_stat(pid, &state, &parent);

    return rc ? rc : parent;
}

/* The 22nd field of its stat. Source: proc(5). */
uint64_t er_orphan_started(pid_t pid)
{
    ER_CLEANUP(er_buf_done) struct er_buf text;
    unsigned long long started = 0;
    const char *paren;
    char path[64];

    er_buf_init(&text, STAT_MAX);
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    paren = er_file_read(path, &text, NULL) ? NULL : strrchr(er_buf_str(&text), ')');
    if (paren && sscanf(paren + 1,
                        " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d "
                        "%*d %llu",
                        &started) != 1)
        return 0;
    return started;
}

static int add_process(struct table *t, pid_t pid)
{
    char state;
    pid_t parent;

    if (read_stat(pid, &state, &parent))
        return 0; /* ended while we looked */
    if (t->n == t->room) {
        size_t room = t->room ? 2 * t->room : 256;
        struct process *items =
            room <= PROCESS_MAX ? realloc(t->items, room * sizeof(*items)) : NULL;

        if (!items)
            return -ENOMEM;
        t->items = items;
        t->room = room;
    }
    t->items[t->n++] = (struct process){.pid = pid, .parent = parent, .zombie = state == 'Z'};
    return 0;
}

static int list_processes(struct table *t)
{
    DIR *dir = opendir("/proc");
    int rc = 0;

    if (!dir)
        return -errno;
    for (struct dirent *entry; !rc && (entry = readdir(dir));) {
        if (isdigit((unsigned char)entry->d_name[0]))
            rc = add_process(t, (pid_t)strtol(entry->d_name, NULL, 10));
    }
    closedir(dir);
    return rc;
}

static int by_pid(const void *a, const void *b)
{
    const struct process *x = a, *y = b;

    return (x->pid > y->pid) - (x->pid < y->pid);
}

static struct process *find(const struct table *t, pid_t pid)
{
    const struct process key = {.pid = pid};

    return t->n ? bsearch(&key, t->items, t->n, sizeof(key), by_pid) : NULL;
}

struct spared {
    const pid_t *pids;
    size_t n;
};

static bool is_spared(const struct spared *spared, pid_t pid)
{
    for (size_t i = 0; i < spared->n; i++) {
        if (spared->pids[i] == pid)
            return true;
    }
    return false;
}

/* Each one's line of parents is walked up to us, to one that is known, or to the top. Bounded,
 * since pids that were used anew while we looked may make a circle of it. */
static bool descends(const struct table *t, const struct process *p, pid_t self,
                     const struct spared *spared)
{
    for (size_t up = 0; p && up < t->n; up++) {
        if (is_spared(spared, p->pid))
            return false;
        if (p->ours || p->parent == self)
            return true;
        p = p->parent > 1 ? find(t, p->parent) : NULL;
    }
    return false;
}

static void mark_descendants(struct table *t, const struct spared *spared)
{
    pid_t self = getpid();

    if (t->n)
        qsort(t->items, t->n, sizeof(*t->items), by_pid);
    for (size_t i = 0; i < t->n; i++)
        t->items[i].ours = descends(t, &t->items[i], self, spared);
}

int er_orphan_pass(int sig, const pid_t *spared, size_t spared_n)
{
    const struct spared spare = {.pids = spared, .n = spared_n};
    struct table t = {0};
    int rc = list_processes(&t), n = 0;

    if (!rc) {
        mark_descendants(&t, &spare);
        for (size_t i = 0; i < t.n; i++) {
            if (t.items[i].ours && !t.items[i].zombie && kill(t.items[i].pid, sig) == 0)
                n++;
        }
    }
    free(t.items);
    return rc ? rc : n;
}

pid_t er_orphan_find(const pid_t *spared, size_t spared_n)
{
    const struct spared spare = {.pids = spared, .n = spared_n};
    struct table t = {0};
    pid_t found = 0;

    if (list_processes(&t) == 0) {
        mark_descendants(&t, &spare);
        for (size_t i = 0; i < t.n && !found; i++) {
            if (t.items[i].ours)
                found = t.items[i].pid;
        }
    }
    free(t.items);
    return found;
}

/* The file's first line without its end; "" when it cannot be read. */
static const char *read_line(pid_t pid, const char *file, char *ret, size_t cap)
{
    ER_CLEANUP(er_cleanup_fd) int fd = -1;
    char path[64];
    ssize_t n;

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : read(fd, ret, cap - 1);
    ret[n > 0 ? n : 0] = '\0';
    ret[strcspn(ret, "\n")] = '\0';
    return ret;
}

void er_orphan_describe(pid_t pid, char *ret_text, size_t cap)
{
    char name[64], wchan[64], state = '?';
    pid_t parent;
    bool waits;

    read_stat(pid, &state, &parent);
    read_line(pid, "comm", name, sizeof(name));
    waits = read_line(pid, "wchan", wchan, sizeof(wchan))[0] && strcmp(wchan, "0") != 0;
    snprintf(ret_text, cap, "pid %d (%s, state %c%s%s)", (int)pid, name, state,
             waits ? ", in " : "", waits ? wchan : "");
}

static bool is_marked(pid_t pid, const char *entry)
{
    ER_CLEANUP(er_buf_done) struct er_buf text;
    char path[64];

    er_buf_init(&text, ENVIRON_MAX);
    snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
    if (er_file_read(path, &text, NULL) || text.len == 0)
        return false;
    for (const char *at = text.data; at < text.data + text.len; at += strlen(at) + 1) {
        if (strcmp(at, entry) == 0)
            return true;
    }
    return false;
}

static bool is_ancestor(pid_t pid)
{
    pid_t up = getpid();

    for (int i = 0; up > 1 && i < ANCESTORS_MAX; i++) {
        if (up == pid)
            return true;
        up = er_orphan_parent(up);
    }
    return false;
}

static int kill_marked_pass(const char *entry)
{
    struct table t = {0};
    int n = 0;

    if (list_processes(&t) == 0) {
        for (size_t i = 0; i < t.n; i++) {
            if (!t.items[i].zombie && is_marked(t.items[i].pid, entry) &&
                !is_ancestor(t.items[i].pid) && kill(t.items[i].pid, SIGKILL) == 0)
                n++;
        }
    }
    free(t.items);
    return n;
}

int er_orphan_kill_marked(const char *entry)
{
    uint64_t give_up_us = er_now_us() + MARKED_US;
    int all = 0, n;

    while ((n = kill_marked_pass(entry)) > 0 && er_now_us() < give_up_us) {
        all = n > all ? n : all;
        nanosleep(&(struct timespec){.tv_nsec = PASS_WAIT_NS}, NULL);
    }
    return all;
}

uint64_t er_orphan_patience_us(void)
{
    const char *text = getenv("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT");
    double seconds = text ? strtod(text, NULL) : 0;

    return seconds > 0 && seconds < 86400 ? (uint64_t)(seconds * (double)ER_US_PER_S) : PATIENCE_US;
}

void er_orphan_kill_all(const pid_t *spared, size_t spared_n)
{
    uint64_t give_up_us = er_now_us() + er_orphan_patience_us();

    for (;;) {
        pid_t pid = waitpid(-1, NULL, WNOHANG);

        if (pid > 0)
            continue;
        if (pid < 0 || er_now_us() > give_up_us)
            return; /* no child is left */
        if (er_orphan_pass(SIGKILL, spared, spared_n) == 0 && spared_n &&
            er_orphan_find(spared, spared_n) == 0)
            return;
        nanosleep(&(struct timespec){.tv_nsec = PASS_WAIT_NS}, NULL);
    }
}
