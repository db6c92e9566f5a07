#pragma once
/*
 * Slurm's lists of hosts: "login,n[1-3,07],rack[1-2]n[01-16]". Pure.
 *
 * Source: Slurm's manual, scontrol(1), "hostlist expressions": names with ranges of numbers in
 * brackets, which keep their leading zeros; several brackets in a name count like digits, the last
 * one fastest.
 */
#include <stddef.h>

#include "base/error.h"

#define ER_HOSTLIST_NAME_MAX 256 /* with the NUL */

/* The first hosts of the list, at most `max`. ER_E_CONFIG: not such a list. */
int er_hostlist_first(const char *text, char (*ret)[ER_HOSTLIST_NAME_MAX], size_t max,
                      size_t *ret_n, struct er_error *err);
