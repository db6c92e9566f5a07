#include "tests/lib/crash_model.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/rand.h"
#include "tests/lib/file_hook.h"
#include "tests/lib/tap.h"

enum { INODES_MAX = 1024, OPS_MAX = 4096, PAGE = 4096 };

struct op {
    enum er_file_op_kind kind;
    int inode;          /* the file or folder it is about; created, moved or synced */
    int dir, other_dir; /* folder(s) whose names change; -1: none */
    char name[128], other[128];
    int replaced; /* EXCHANGE: the other inode */
    uint64_t offset;
    char *data; /* owned */
    size_t n;
};

struct entry {
    char name[128];
    int inode;
};

struct inode {
    bool is_dir;
    struct entry *entries; /* owned; a folder's */
    size_t entry_n;
    char *data; /* owned; a file's */
    size_t size;
};

/* A state of the disk: inode 0 is the folder itself. */
struct disk {
    struct inode inodes[INODES_MAX];
    int n;
};

struct er_crash_model {
    char root[PATH_MAX];
    struct disk first, now; /* before the recorded run, and as the run sees it */
    struct op *ops;         /* owned */
    size_t op_n;
    pthread_mutex_t lock;
};

static struct er_crash_model *recording;

/* ---- a disk ---- */

static int add_inode(struct disk *disk, bool is_dir)
{
    er_tap_require(disk->n < INODES_MAX);
    disk->inodes[disk->n] = (struct inode){.is_dir = is_dir};
    return disk->n++;
}

static struct entry *find(struct disk *disk, int dir, const char *name)
{
    struct inode *d = &disk->inodes[dir];

    for (size_t i = 0; i < d->entry_n; i++)
        if (strcmp(d->entries[i].name, name) == 0)
            return &d->entries[i];
    return NULL;
}

static void unlink_name(struct disk *disk, int dir, const char *name)
{
    struct inode *d = &disk->inodes[dir];
    struct entry *e = find(disk, dir, name);

    if (e)
        *e = d->entries[--d->entry_n];
}

static void link_name(struct disk *disk, int dir, const char *name, int inode)
{
    struct inode *d = &disk->inodes[dir];
    struct entry *e = find(disk, dir, name);

    if (!e) {
        d->entries = realloc(d->entries, (d->entry_n + 1) * sizeof(*d->entries));
        er_tap_require(d->entries);
        e = &d->entries[d->entry_n++];
    }
    snprintf(e->name, sizeof(e->name), "%s", name);
    e->inode = inode;
}

static void set_size(struct inode *f, size_t size)
{
    if (size > f->size) {
        f->data = realloc(f->data, size);
        er_tap_require(f->data);
        memset(f->data + f->size, 0, size - f->size);
    }
    f->size = size;
}

static void copy_disk(struct disk *to, const struct disk *from)
{
    *to = *from;
    for (int i = 0; i < from->n; i++) {
        const struct inode *f = &from->inodes[i];
        struct inode *t = &to->inodes[i];

        t->data = malloc(f->size + 1);
        t->entries = malloc((f->entry_n + 1) * sizeof(*t->entries));
        er_tap_require(t->data && t->entries);
        if (f->size)
            memcpy(t->data, f->data, f->size);
        if (f->entry_n)
            memcpy(t->entries, f->entries, f->entry_n * sizeof(*t->entries));
    }
}

static void free_disk(struct disk *disk)
{
    for (int i = 0; i < disk->n; i++) {
        free(disk->inodes[i].data);
        free(disk->inodes[i].entries);
    }
    disk->n = 0;
}

static void scan(struct disk *disk, int dir, const char *path)
{
    DIR *d = opendir(path);

    er_tap_require(d);
    for (struct dirent *e; (e = readdir(d));) {
        char full[PATH_MAX];
        struct stat st;
        int inode;

        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        er_tap_require(snprintf(full, sizeof(full), "%s/%s", path, e->d_name) < PATH_MAX &&
                       lstat(full, &st) == 0);
        inode = add_inode(disk, S_ISDIR(st.st_mode));
        link_name(disk, dir, e->d_name, inode);
        if (S_ISDIR(st.st_mode)) {
            scan(disk, inode, full);
        } else {
            int fd = open(full, O_RDONLY | O_CLOEXEC);

            set_size(&disk->inodes[inode], (size_t)st.st_size);
            er_tap_require(fd >= 0 && (st.st_size == 0 || read(fd, disk->inodes[inode].data,
                                                               (size_t)st.st_size) == st.st_size));
            close(fd);
        }
    }
    closedir(d);
}

/* ---- recording ---- */

/* Path below the root -> folder and last name; false: not below it, or not known (any more). */
static bool resolve(struct er_crash_model *m, const char *path, int *ret_dir, char ret_name[128])
{
    size_t n = strlen(m->root);
    int dir = 0;

    if (strncmp(path, m->root, n) != 0 || path[n] != '/')
        return false;
    for (const char *p = path + n + 1;; p = strchr(p, '/') + 1) {
        size_t len = strcspn(p, "/");
        const struct entry *e;

        er_tap_require(len < 128);
        memcpy(ret_name, p, len);
        ret_name[len] = 0;
        if (p[len] == 0)
            break;
        e = find(&m->now, dir, ret_name);
        if (!e)
            return false;
        dir = e->inode;
    }
    *ret_dir = dir;
    return true;
}

static bool data_kept(const struct op *op, size_t page, unsigned kind, bool durable);

/* Carries one operation out. `kind`, `durable`: which pages of a write count. */
static void apply(struct disk *disk, const struct op *op, unsigned kind, bool durable)
{
    struct inode *f = &disk->inodes[op->inode];

    switch (op->kind) {
    case ER_FILE_CREATE:
    case ER_FILE_MKDIR:
        link_name(disk, op->dir, op->name, op->inode);
        break;
    case ER_FILE_WRITE:
        if (op->offset + op->n > f->size)
            set_size(f, op->offset + op->n);
        for (size_t at = 0; at < op->n; at += PAGE)
            if (data_kept(op, at / PAGE, kind, durable))
                memcpy(f->data + op->offset + at, op->data + at,
                       op->n - at < PAGE ? op->n - at : PAGE);
        break;
    case ER_FILE_TRUNCATE:
        set_size(f, op->n);
        break;
    case ER_FILE_ALLOCATE:
        if (op->n > f->size)
            set_size(f, op->n);
        break;
    case ER_FILE_RENAME:
        unlink_name(disk, op->dir, op->name);
        link_name(disk, op->other_dir, op->other, op->inode);
        break;
    case ER_FILE_EXCHANGE:
        link_name(disk, op->dir, op->name, op->replaced);
        link_name(disk, op->other_dir, op->other, op->inode);
        break;
    case ER_FILE_UNLINK:
    case ER_FILE_RMDIR:
        unlink_name(disk, op->dir, op->name);
        break;
    case ER_FILE_FSYNC:
        break;
    }
}

static int inode_at(struct er_crash_model *m, int dir, const char *name)
{
    const struct entry *e = find(&m->now, dir, name);

    return e ? e->inode : -1;
}

static bool fill_op(struct er_crash_model *m, const struct er_file_op *from, struct op *op)
{
    *op = (struct op){
        .kind = from->kind, .dir = -1, .other_dir = -1, .offset = from->offset, .n = from->n};
    if (from->kind == ER_FILE_FSYNC && strcmp(from->path, m->root) == 0)
        return true; /* inode 0 */
    if (!resolve(m, from->path, &op->dir, op->name))
        return false;
    op->inode = inode_at(m, op->dir, op->name);
    if (from->kind == ER_FILE_CREATE || from->kind == ER_FILE_MKDIR) {
        op->inode = add_inode(&m->now, from->kind == ER_FILE_MKDIR);
        return true;
    }
    if (op->inode < 0) /* an open file that has lost its name */
        return false;
    if (from->kind == ER_FILE_RENAME || from->kind == ER_FILE_EXCHANGE) {
        er_tap_require(resolve(m, from->to, &op->other_dir, op->other));
        op->replaced = inode_at(m, op->other_dir, op->other);
    }
    if (from->kind == ER_FILE_WRITE) {
        op->data = malloc(from->n);
        er_tap_require(op->data);
        memcpy(op->data, from->data, from->n);
    }
    return true;
}

static void record(const struct er_file_op *from)
{
    struct er_crash_model *m = recording;
    struct op op;

    pthread_mutex_lock(&m->lock);
    if (fill_op(m, from, &op)) {
        er_tap_require(m->op_n < OPS_MAX);
        m->ops[m->op_n++] = op;
        apply(&m->now, &op, ER_CRASH_PROCESS, true);
    }
    pthread_mutex_unlock(&m->lock);
}

struct er_crash_model *er_crash_new(const char *dir)
{
    struct er_crash_model *m = calloc(1, sizeof(*m));

    er_tap_require(m);
    m->ops = calloc(OPS_MAX, sizeof(*m->ops));
    er_tap_require(m->ops);
    pthread_mutex_init(&m->lock, NULL);
    snprintf(m->root, sizeof(m->root), "%s", dir);
    add_inode(&m->first, true);
    scan(&m->first, 0, dir);
    copy_disk(&m->now, &m->first);
    return m;
}

void er_crash_free(struct er_crash_model *m)
{
    for (size_t i = 0; i < m->op_n; i++)
        free(m->ops[i].data);
    free(m->ops);
    free_disk(&m->first);
    free_disk(&m->now);
    free(m);
}

void er_crash_record(struct er_crash_model *m)
{
    recording = m;
    er_file_after = record;
}

void er_crash_stop(void)
{
    er_file_after = NULL;
}

size_t er_crash_op_n(struct er_crash_model *m)
{
    size_t n;

    pthread_mutex_lock(&m->lock);
    n = m->op_n;
    pthread_mutex_unlock(&m->lock);
    return n;
}

/* ---- what a crash leaves ---- */

static bool is_data(const struct op *op)
{
    return op->kind == ER_FILE_WRITE || op->kind == ER_FILE_TRUNCATE ||
           op->kind == ER_FILE_ALLOCATE;
}

static bool synced(const struct er_crash_model *m, size_t i, size_t ops, int inode)
{
    for (size_t j = i + 1; j < ops; j++)
        if (m->ops[j].kind == ER_FILE_FSYNC && m->ops[j].inode == inode)
            return true;
    return false;
}

static bool is_durable(const struct er_crash_model *m, size_t i, size_t ops)
{
    const struct op *op = &m->ops[i];

    if (is_data(op))
        return synced(m, i, ops, op->inode);
    /* A name that moves between folders needs both. */
    return synced(m, i, ops, op->dir) &&
           (op->other_dir < 0 || op->other_dir == op->dir || synced(m, i, ops, op->other_dir));
}

static bool coin(unsigned kind, size_t a, size_t b)
{
    return er_rand_mix((uint64_t)kind << 48 ^ (uint64_t)a << 20 ^ b) & 1;
}

static bool op_kept(const struct er_crash_model *m, size_t i, size_t ops, unsigned kind)
{
    if (m->ops[i].kind == ER_FILE_FSYNC)
        return false;
    if (kind == ER_CRASH_PROCESS || kind == ER_CRASH_TORN || is_durable(m, i, ops))
        return true;
    if (kind == ER_CRASH_NAMES_FIRST)
        return !is_data(&m->ops[i]);
    if (kind == ER_CRASH_DATA_FIRST)
        return is_data(&m->ops[i]);
    return kind >= ER_CRASH_ANY && coin(kind, i, 0);
}

static bool data_kept(const struct op *op, size_t page, unsigned kind, bool durable)
{
    if (durable || kind < ER_CRASH_TORN)
        return true;
    if (kind == ER_CRASH_TORN)
        return page < op->n / PAGE / 2;
    return coin(kind, (size_t)op->inode + op->offset, page + 1);
}

/* A digest of names and contents; the order of names does not count. */
static uint64_t digest_of(const struct disk *disk, int dir, unsigned depth)
{
    const struct inode *d = &disk->inodes[dir];
    uint64_t digest = 0;

    er_tap_require(depth < 8);
    for (size_t i = 0; i < d->entry_n; i++) {
        const struct inode *f = &disk->inodes[d->entries[i].inode];
        uint64_t one = f->is_dir ? digest_of(disk, d->entries[i].inode, depth + 1)
                                 : er_hash(f->data, f->size).lo;

        digest += er_rand_mix(one ^ er_hash(d->entries[i].name, strlen(d->entries[i].name)).hi);
    }
    return digest;
}

static void write_file(const struct inode *f, const char *path)
{
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);

    er_tap_require(fd >= 0 && (f->size == 0 || write(fd, f->data, f->size) == (ssize_t)f->size));
    close(fd);
}

static void write_out(const struct disk *disk, int dir, const char *path)
{
    const struct inode *d = &disk->inodes[dir];

    er_tap_require(mkdir(path, 0777) == 0);
    for (size_t i = 0; i < d->entry_n; i++) {
        int inode = d->entries[i].inode;
        char full[PATH_MAX];

        er_tap_require(snprintf(full, sizeof(full), "%s/%s", path, d->entries[i].name) < PATH_MAX);
        if (disk->inodes[inode].is_dir)
            write_out(disk, inode, full);
        else
            write_file(&disk->inodes[inode], full);
    }
}

uint64_t er_crash_make(const struct er_crash_model *m, size_t ops, unsigned kind, const char *to)
{
    struct disk *disk = malloc(sizeof(*disk));
    uint64_t digest;

    er_tap_require(disk);
    copy_disk(disk, &m->first);
    while (disk->n < m->now.n) /* those made by the run; without a name they are nowhere */
        add_inode(disk, m->now.inodes[disk->n].is_dir);
    for (size_t i = 0; i < ops; i++)
        if (op_kept(m, i, ops, kind))
            apply(disk, &m->ops[i], kind, is_durable(m, i, ops));
    digest = digest_of(disk, 0, 0);
    if (to)
        write_out(disk, 0, to);
    free_disk(disk);
    free(disk);
    return digest;
}

const char *er_crash_describe(const struct er_crash_model *m, size_t i)
{
    static const char *const names[] = {
#define ER_FILE_OP_NAME(name) [ER_FILE_##name] = #name,
        ER_FILE_OPS(ER_FILE_OP_NAME)
#undef ER_FILE_OP_NAME
    };
    static char text[320];

    snprintf(text, sizeof(text), "%s %s %s", names[m->ops[i].kind], m->ops[i].name,
             m->ops[i].other);
    return text;
}
