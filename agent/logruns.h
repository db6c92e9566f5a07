#pragma once
/*
 * <log.dir>/<name>/ holds gen-* of the newest run; those of an earlier run of the same name are
 * moved to runs/<run id>/ when a new one starts. Nothing is deleted.
 */
#include "base/error.h"

/* `dir`: <log.dir>/<name>; `events`: path of its event file, whose last line names the run (a file
 * that does not gives the time of the move). The job's lock is held. */
int er_logruns_move_aside(const char *dir, const char *events, struct er_error *err);
