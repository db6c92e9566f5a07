#pragma once
/*
 * A log file that is rotated: at max_size file -> file.1 -> file.2 -> ..., the oldest goes, between
 * two lines where there is an end of line. Never fails and never blocks for long: what cannot be
 * written (disk full) is dropped and counted, and the file is tried again with every write. Several
 * threads may write to one.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct er_log_drops {
    uint64_t lines, bytes;
    int error; /* errno of the last failed write; 0: the console was too slow */
};

struct er_logfile {
    char *path; /* owned; NULL: nothing is kept, nothing counts as dropped */
    pthread_mutex_t lock;
    int fd;
    bool splices;            /* a regular file of a file system that has not refused splice(2) */
    bool in_line;            /* what went into it last ends no line, as far as is known */
    uint64_t size, max_size; /* max_size UINT64_MAX: never rotated */
    uint32_t max_files;      /* the current one included */
};

/* Copies `path`, NULL is fine. -ENOMEM. */
int er_logfile_init(struct er_logfile *f, const char *path, uint64_t max_size, uint32_t max_files);
void er_logfile_done(struct er_logfile *f);
void er_logfile_write(struct er_logfile *f, const char *data, size_t n, struct er_log_drops *drops);
/*
 * Moves what is in the pipe `fd` (non-blocking) to the file without reading it, by way of `side`,
 * an empty pipe of the caller's: a file that stands still then holds up us, but never the pipe's
 * writer within write(2), where no signal would reach it. What cannot be written is dropped and
 * counted. Returns the bytes taken from the pipe, 0 at its end, or -EAGAIN: there are none;
 * -EOPNOTSUPP: not with this file, or not so near to its rotation: read, and use
 * er_logfile_write().
 */
ssize_t er_logfile_splice(struct er_logfile *f, int fd, const int side[2],
                          struct er_log_drops *drops);

/* Counts bytes that were not written; error 0: the console's reader is too slow. */
void er_log_drop(struct er_log_drops *drops, const char *data, size_t n, int error);
