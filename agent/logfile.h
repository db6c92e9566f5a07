#pragma once
/*
 * A log file that is rotated: at max_size file -> file.1 -> file.2 -> ..., the oldest goes, between
 * two lines where there is an end of line. Never fails and never blocks for long: what cannot be
 * written (disk full) is dropped and counted, and the file is tried again with every write.
 */
#include <stddef.h>
#include <stdint.h>

struct er_log_drops {
    uint64_t lines, bytes;
    int error; /* errno of the last failed write; 0: the console was too slow */
};

struct er_logfile {
    char *path; /* owned; NULL: nothing is kept, nothing counts as dropped */
    int fd;
    uint64_t size, max_size; /* max_size UINT64_MAX: never rotated */
    uint32_t max_files;      /* the current one included */
};

/* Copies `path`, NULL is fine. -ENOMEM. */
int er_logfile_init(struct er_logfile *f, const char *path, uint64_t max_size, uint32_t max_files);
void er_logfile_done(struct er_logfile *f);
void er_logfile_write(struct er_logfile *f, const char *data, size_t n, struct er_log_drops *drops);

/* Counts bytes that were not written; error 0: the console's reader is too slow. */
void er_log_drop(struct er_log_drops *drops, const char *data, size_t n, int error);
