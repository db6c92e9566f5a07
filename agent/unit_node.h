#pragma once
/* Which node a unit of systemd is: a hash of the machine's id, or what the unit's state directory
 * says, which whoever clones machines can write there. */
#include <stddef.h>

/* 0, or 1: this is no unit of systemd, or has neither. `environ_` as environ(7). */
int er_unit_node_id(char **environ_, char *ret, size_t cap);
/* Keeps it there, so that it stays when the machine's id changes. */
void er_unit_node_keep(char **environ_, const char *id);
