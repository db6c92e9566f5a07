#pragma once
/* Screens of --help, made from the table of agent/keys.h. */
#include "base/buf.h"
#include "base/error.h"

/* `topic` NULL: usage and all options. ER_E_USAGE: no such topic (with the nearest). */
int er_help_format(const char *topic, struct er_buf *out, struct er_error *err);
/* A key's attributes in words: "duration, same on all nodes, ..."; for help and docs. */
struct er_key_info;
int er_help_attributes(const struct er_key_info *key, struct er_buf *out);
/* Of the programs. */
const char *er_agent_version(void);
