#pragma once
/* torchrun's error files, {"message": {"message": ..., "extraInfo": {"py_callstack": ...}}}. */
#include "base/error.h"

struct er_verdict;

/* What a worker wrote, in either form that torchrun knows; the strings are malloc'ed, NULL when
 * they are not there. A file that is missing or cannot be read gives nothing. */
void er_errorfile_read(const char *path, char **ret_message, char **ret_traceback);
/* The root cause for whoever started us under its own TORCHELASTIC_ERROR_FILE; `traceback` may be
 * NULL. */
int er_errorfile_write(const char *path, const struct er_verdict *verdict, const char *traceback,
                       struct er_error *err);
