#pragma once
/*
 * A checkpoint.dir is one job's at a time: two would take each other's writers for superseded ones,
 * and remove each other's checkpoints. All agents of a job share a lock on `<dir>/.job`, which
 * holds the job's name; it lasts as long as their process, so what a crash leaves is no obstacle,
 * and a job under another name may go on from the checkpoints of one that is over.
 */
#include "base/error.h"

/*
 * *ret_fd: to be closed when the job is over; -1 where nothing can be told: no such folder, one
 * that cannot be written to, a file system without locks. -EBUSY: another job uses the folder; the
 * text names it.
 */
int er_ckptlock_take(const char *dir, const char *job, int *ret_fd, struct er_error *err);
