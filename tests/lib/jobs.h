#pragma once
/* The folders of running jobs on this host, which a job that was killed with its guard leaves. */
#include <sys/types.h>

#include "tests/lib/tempdir.h"

/* Where the folder of job `name` is. */
void er_test_job_folder(const char *name, char ret_path[ER_TEST_PATH_MAX]);
/* Removes what jobs with the number of case `pid` in their names have left there: folders, locks,
 * homes of etcd. Running ones are left alone. */
void er_test_remove_jobs(pid_t pid);
